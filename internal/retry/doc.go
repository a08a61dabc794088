// Package retry is the arithmetic of trying again: how long to wait after a failed attempt, and when to
// give up.
//
// It is pure: it reads no clock and no source of chance; the caller passes elapsed time and random bits
// in. So a delay that was drawn and stored is the delay, on every node and after any restart.
//
// # Delay
//
// The ceiling after failed attempt n is Initial × Factor^(n-1), cut at Max. The delay is drawn evenly
// between MinDelay and the ceiling ("full jitter"), so that callers that failed together don't come back
// together. The cut happens before the conversion to an integer: no attempt count gives a delay of zero,
// a negative one, or one past Max.
//
// # Limits
//
//	MinDelay     10ms     no delay is shorter, so that nothing spins
//	DefaultMax   1h       the cut where a policy names none
//	MaxDelay     30 days  no policy may wait longer between two attempts
//	MaxAttempts  1e6      no policy may count further; 0 is unlimited
//	MaxTotal     10 years no policy may go on for longer; 0 is no limit
//
// # Source
//
// Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015,
// https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/, where full jitter is
// compared with its alternatives. The floor above zero is added here.
package retry
