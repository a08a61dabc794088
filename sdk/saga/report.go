package saga

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sagad/sagad/internal/wire"
)

// What a handler says while it runs.

// ErrStopped is the cause of a handler's context that ends because its attempt isn't wanted any more: the saga unwinds, another attempt
// is the one that counts, or, of claimed activities, the engine couldn't be asked for longer than the heartbeat. [Checkpoint]
// and [Progress] answer with it too. A handler that meets it should stop, and answer what is so: done, or an error.
var ErrStopped = errors.New("the attempt isn't wanted any more")

// StatementBytesMax bounds what [Checkpoint] and [Progress] take, as JSON.
const StatementBytesMax = wire.CheckpointBytesMax

// Statement is what a handler said while it ran, as JSON. It is nil if it said nothing.
type Statement []byte

// Decode reads a statement. said is false if there is none; v stays as it is then.
func (s Statement) Decode(v any) (said bool, err error) {
	if s == nil {
		return false, nil
	}
	return true, Decode(s, v)
}

// Checkpoint says what the compensation will need to undo this action, before the action's effect. It returns once that is kept
// for sure: [Undo.Checkpoint] has it then, even if the action's output never becomes known. After an error don't go on; if
// the attempt isn't wanted any more the error is [ErrStopped], and the context has ended. A later checkpoint replaces an earlier one.
//
// The data is JSON of [StatementBytesMax] at most. Only actions have checkpoints. While the engine can't be reached it waits, until
// the context ends.
func Checkpoint(ctx context.Context, data any) error {
	s := statementsOf(ctx)
	if s == nil || s.Checkpoint == nil {
		return errors.New("saga: a checkpoint is for actions: call it with the context of an action's handler; in tests make one with saga.WithStatements")
	}
	doc, err := statement("a checkpoint", data)
	if err != nil {
		return err
	}
	return s.Checkpoint(ctx, doc)
}

// Progress says how far the handler is: the next attempt finds it with [LastProgress], if this one fails. It doesn't wait. Only the
// newest is sent, every 5 s at most, or with the heartbeats if these are more frequent, and when the attempt fails. The
// error says that the data can't be sent, or is [ErrStopped].
//
// The data is JSON of [StatementBytesMax] at most. Heartbeats need no call: the worker sends them while the handler runs.
func Progress(ctx context.Context, data any) error {
	s := statementsOf(ctx)
	if s == nil || s.Progress == nil {
		return errors.New("saga: progress is of actions: call it with the context of an action's handler; in tests make one with saga.WithStatements")
	}
	doc, err := statement("progress", data)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.Progress(doc)
	return nil
}

// LastProgress reads what the attempt before this one said last with [Progress]. said is false if it said nothing, and v stays as it is.
func LastProgress(ctx context.Context, v any) (said bool, err error) {
	s := statementsOf(ctx)
	if s == nil {
		return false, nil
	}
	return s.Last.Decode(v)
}

func statement(what string, data any) (Statement, error) {
	doc, err := Encode(data)
	if err != nil {
		return nil, fmt.Errorf("saga: %s: %w", what, err)
	}
	if len(doc) > StatementBytesMax {
		return nil, fmt.Errorf("saga: %s of %d bytes: say less, %d at most; a larger one belongs into a store of your own, behind a reference", what, len(doc), StatementBytesMax)
	}
	return doc, nil
}

// Statements is where what a handler says goes. Workers make it; so do tests of handlers.
type Statements struct {
	// Checkpoint keeps a checkpoint and returns when that is done. nil: there are none.
	Checkpoint func(context.Context, Statement) error
	// Progress passes progress on, without waiting. nil: there is none.
	Progress func(Statement)
	// Last is what the attempt before said of its progress.
	Last Statement
}

type statementsKey struct{}

// WithStatements gives a context for a handler. Workers do it; so do tests of handlers.
func WithStatements(ctx context.Context, s *Statements) context.Context {
	return context.WithValue(ctx, statementsKey{}, s)
}

func statementsOf(ctx context.Context) *Statements {
	s, _ := ctx.Value(statementsKey{}).(*Statements)
	return s
}

// ProgressEvery is how often progress is sent at most, unless heartbeats are more frequent.
const ProgressEvery = 5 * time.Second
