package retry

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"
)

// Limits and defaults.
const (
	// MinDelay is the floor of every delay, and of Initial.
	MinDelay = 10 * time.Millisecond
	// DefaultInitial is Initial where a policy names none.
	DefaultInitial = time.Second
	// DefaultFactor is Factor where a policy names none.
	DefaultFactor = 2.0
	// DefaultMax is Max where a policy names none and Initial is not above it.
	DefaultMax = time.Hour
	// MaxDelay bounds Initial and Max.
	MaxDelay = 30 * 24 * time.Hour
	// MaxAttempts bounds Attempts.
	MaxAttempts = 1_000_000
	// MaxTotal bounds Total.
	MaxTotal = 10 * 365 * 24 * time.Hour

	// growthAttemptsMax bounds the work of Ceiling: growth ends after so many attempts. From floor to
	// MaxDelay a factor of 1.002 needs fewer; only one yet nearer to 1 ever gets here.
	growthAttemptsMax = 10_000
)

// ErrInvalid is wrapped by every error of Validate.
var ErrInvalid = errors.New("invalid retry policy")

// Policy says how often, how long and at what distance a call is tried again. The zero Policy tries
// for ever, with the default delays.
type Policy struct {
	// Initial is the ceiling of the delay after the first failed attempt; from MinDelay to MaxDelay.
	// 0 is DefaultInitial.
	Initial time.Duration
	// Max is the ceiling of all delays; from Initial to MaxDelay. 0 is the larger of DefaultMax and
	// Initial.
	Max time.Duration
	// Factor is what the ceiling grows by from attempt to attempt; 1 or more, 1 for a constant ceiling.
	// 0 is DefaultFactor. Growth ends after 10,000 attempts, wherever it is then.
	Factor float64
	// Attempts is how many attempts are made in all, the first included; at most MaxAttempts. 0 is
	// unlimited, 1 is no retry.
	Attempts int
	// Total is the time, from the start of the first attempt, after which none is made any more; at
	// most MaxTotal. 0 is no limit.
	Total time.Duration
}

// WithDefaults returns p with DefaultInitial, DefaultFactor and a maximum in place of zeros: the maximum
// is DefaultMax, or Initial if that is larger. Values that are set stay, valid or not.
func (p Policy) WithDefaults() Policy {
	if p.Initial == 0 {
		p.Initial = DefaultInitial
	}
	if p.Factor == 0 {
		p.Factor = DefaultFactor
	}
	if p.Max == 0 {
		p.Max = max(DefaultMax, p.Initial)
	}
	return p
}

// Validate reports everything that is wrong with p, zeros standing for their defaults. The errors are
// joined, wrap ErrInvalid, and each says what to write instead.
func (p Policy) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...))
	}
	d := p.WithDefaults()
	initialOK := false
	switch {
	case d.Initial < 0:
		bad("initial delay %v is negative: write %v to %v, or leave it out for %v",
			p.Initial, MinDelay, MaxDelay, DefaultInitial)
	case d.Initial < MinDelay:
		bad("initial delay %v is below the floor: write at least %v, or leave it out for %v",
			p.Initial, MinDelay, DefaultInitial)
	case d.Initial > MaxDelay:
		bad("initial delay %v is above the limit: write at most %v", p.Initial, MaxDelay)
	default:
		initialOK = true
	}
	switch {
	case p.Max < 0:
		bad("maximum delay %v is negative: write %v to %v, or leave it out for %v",
			p.Max, MinDelay, MaxDelay, DefaultMax)
	case p.Max > MaxDelay:
		bad("maximum delay %v is above the limit: write at most %v", p.Max, MaxDelay)
	case p.Max != 0 && p.Max < MinDelay:
		bad("maximum delay %v is below the floor: write at least %v, or leave it out for %v",
			p.Max, MinDelay, DefaultMax)
	case initialOK && p.Initial == 0 && d.Max < d.Initial:
		bad("maximum delay %v is below the default initial delay %v: write an initial delay of at most %v, or a maximum of at least %v",
			p.Max, d.Initial, p.Max, d.Initial)
	case initialOK && d.Max < d.Initial:
		bad("maximum delay %v is below the initial delay %v: write a maximum of at least %v, or leave it out for %v",
			p.Max, p.Initial, p.Initial, max(DefaultMax, p.Initial))
	}
	switch {
	case math.IsNaN(p.Factor) || math.IsInf(p.Factor, 0):
		bad("factor %v is not a number to grow by: write a finite one of 1 or more, or leave it out for %v",
			p.Factor, DefaultFactor)
	case d.Factor < 1:
		bad("factor %v would shrink the delay: write 1 for a constant delay, more to let it grow, or leave it out for %v",
			p.Factor, DefaultFactor)
	}
	switch {
	case p.Attempts < 0:
		bad("attempts %d is negative: write how many attempts to make in all, or 0 for no limit", p.Attempts)
	case p.Attempts > MaxAttempts:
		bad("attempts %d is above the limit: write at most %d, or 0 for no limit", p.Attempts, MaxAttempts)
	}
	switch {
	case p.Total < 0:
		bad("total time %v is negative: write how long to try in all, or 0 for no limit", p.Total)
	case p.Total > MaxTotal:
		bad("total time %v is above the limit: write at most %v, or 0 for no limit", p.Total, MaxTotal)
	}
	return errors.Join(errs...)
}

// Ceiling returns the longest delay after the given failed attempt, 1 for the first (less counts as 1).
// It never falls from one attempt to the next, and lies from MinDelay to Max, and so to MaxDelay, at any
// attempt count. Zeros stand for their defaults; a policy that Validate refuses gets some delay within
// MinDelay and MaxDelay, so that an old stored one can't make anything spin or sleep for ever.
func (p Policy) Ceiling(attempt int) time.Duration {
	p = p.WithDefaults()
	top := min(max(p.Max, MinDelay), MaxDelay)
	d := float64(min(max(p.Initial, MinDelay), top))
	if p.Factor > 1 { // false for NaN
		// Multiplied step by step, not by math.Pow: rounding a product by a factor above 1 can't make
		// it fall, while neighbouring powers may be rounded apart. Infinity ends at the cut.
		for range min(max(attempt, 1)-1, growthAttemptsMax) {
			d *= p.Factor
			if d >= float64(top) {
				return top
			}
		}
	}
	// Below top, and so far below 2^53 nanoseconds: the conversion is exact but for the fraction.
	return time.Duration(d)
}

// Delay returns how long to wait after the given failed attempt, 1 for the first: evenly spread from
// MinDelay to Ceiling(attempt), both included, as u is over all its values. u must be 64 fresh, evenly
// distributed random bits; the same u gives the same delay.
func (p Policy) Delay(attempt int, u uint64) time.Duration {
	span := uint64(p.Ceiling(attempt)-MinDelay) + 1
	// The high half of the product is u scaled from [0, 2^64) to [0, span). No modulo, no float; the
	// bias is at most span/2^64, below one in a thousand.
	offset, _ := bits.Mul64(u, span)
	return MinDelay + time.Duration(offset)
}

// Exhausted reports whether no further attempt may be made: attempts were made, the first of them
// elapsed ago. To know whether one may still be made after a delay, add the delay to elapsed.
func (p Policy) Exhausted(attempts int, elapsed time.Duration) bool {
	return p.Attempts > 0 && attempts >= p.Attempts ||
		p.Total > 0 && elapsed >= p.Total
}
