package saga

import "context"

// Call is what a handler is called for. It is in the handler's context; the deadline of the attempt is the context's.
type Call struct {
	Namespace string
	SagaID    string
	// RunID names this run of the saga, a UUID.
	RunID string
	Step  string
	// Item is reserved for steps that run once per item of a list, which aren't there yet. It is empty.
	Item     string
	Activity string
	// Undo says that this is the compensation, Probe that it is the probe. With neither it is the action.
	Undo, Probe bool
	// Generation rises only when a person, or a late effect, makes it a new request.
	Generation int
	// Attempt is 1, 2, ... within the generation.
	Attempt int
	// IdempotencyKey is stable over attempts, redeliveries and restarts, and different for action and compensation.
	IdempotencyKey string
	// ActionKey is, in compensations and probes, the idempotency key of the action to undo or to ask about.
	ActionKey string
}

type callKey struct{}

// WithCall gives a context for a handler. Workers do it; so do tests of handlers.
func WithCall(ctx context.Context, c *Call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// CallOf is what the handler is called for; ok is false outside of handlers. Don't change it.
func CallOf(ctx context.Context) (c *Call, ok bool) {
	c, ok = ctx.Value(callKey{}).(*Call)
	return c, ok && c != nil
}

var noCall Call

func callOf(ctx context.Context) *Call {
	if c, ok := CallOf(ctx); ok {
		return c
	}
	return &noCall
}

// IdempotencyKey names the request: hand it to what the handler calls, so that an attempt after an unknown one has no
// second effect. It is the same for all attempts, and empty outside of handlers.
func IdempotencyKey(ctx context.Context) string { return callOf(ctx).IdempotencyKey }

// ActionKey is, in a compensation or a probe, the idempotency key of the action to undo or to ask about.
func ActionKey(ctx context.Context) string { return callOf(ctx).ActionKey }

// Attempt is 1, 2, ...: which attempt this is. For logs; never make a key of it.
func Attempt(ctx context.Context) int { return callOf(ctx).Attempt }

// Generation is 1, 2, ...: it rises only when the request is a new one.
func Generation(ctx context.Context) int { return callOf(ctx).Generation }

// SagaID is the saga's id, as its starter chose it.
func SagaID(ctx context.Context) string { return callOf(ctx).SagaID }

// RunID names this run of the saga, a UUID.
func RunID(ctx context.Context) string { return callOf(ctx).RunID }

// StepName is the step's name in the definition.
func StepName(ctx context.Context) string { return callOf(ctx).Step }

// Namespace is the saga's namespace.
func Namespace(ctx context.Context) string { return callOf(ctx).Namespace }

// Undo is what a compensation is given.
type Undo[In, Out any] struct {
	// Input of the action.
	Input In
	// Output of the action; nil if it isn't known: the action may or may not have happened.
	Output *Out
	// Cause is why the saga unwinds.
	Cause Cause
	// ActionKey is the idempotency key that the action had.
	ActionKey string
	// Checkpoint is what the action said last with [Checkpoint]: some attempt of it was about to do this, if no output is known.
	Checkpoint Statement
}

// Cause is why a saga unwinds.
type Cause struct {
	// Step that was rejected or given up; empty after a cancel or a deadline.
	Step          string
	Code, Message string
}
