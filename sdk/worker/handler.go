package worker

import (
	"context"
	"fmt"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/internal/wire"
	"github.com/sagad/sagad/sdk/saga"
)

// handler serves a queue.
type handler struct {
	queue wire.Queue
	call  func(ctx context.Context, t *workerv1.Task) (output []byte, err error)
}

// inputError: the handler wasn't called, since the task can't be read into its type.
type inputError struct{ err error }

func (e inputError) Error() string { return e.err.Error() }

// outputError: the handler succeeded, but what it answered can't be stored.
type outputError struct{ err error }

func (e outputError) Error() string { return e.err.Error() }

// Compensatable serves the action and the compensation of an activity. Both must be idempotent by their keys. A handler answers
// with an output, or with an error, see package saga.
func Compensatable[In, Out any](w *Worker, c saga.Compensatable[In, Out],
	do func(context.Context, In) (Out, error), undo func(context.Context, saga.Undo[In, Out]) error) {
	if undo == nil {
		w.problem(c.Name, "its compensation is nil")
		return
	}
	action(w, c.Name, do)
	w.register(c.Name, workerv1.Direction_DIRECTION_UNDO, func(ctx context.Context, t *workerv1.Task) ([]byte, error) {
		u := saga.Undo[In, Out]{ActionKey: t.ActionKey}
		if err := saga.Decode(t.Input, &u.Input); err != nil {
			return nil, inputError{fmt.Errorf("the action's input can't be read: %w", err)}
		}
		if t.Undo.GetOutputKnown() {
			u.Output = new(Out)
			if err := saga.Decode(t.Undo.Output, u.Output); err != nil {
				return nil, inputError{fmt.Errorf("the action's output can't be read: %w", err)}
			}
		}
		u.Cause = saga.Cause{Step: t.Undo.GetCauseStep(), Code: t.Undo.GetCauseCode(), Message: t.Undo.GetCauseMessage()}
		return nil, undo(ctx, u)
	})
}

// ReadOnly serves an activity that changes nothing.
func ReadOnly[In, Out any](w *Worker, c saga.ReadOnly[In, Out], do func(context.Context, In) (Out, error)) {
	action(w, c.Name, do)
}

// Activity serves an activity that can't be undone. It must be idempotent by its key.
func Activity[In, Out any](w *Worker, c saga.Activity[In, Out], do func(context.Context, In) (Out, error)) {
	action(w, c.Name, do)
}

func action[In, Out any](w *Worker, name string, do func(context.Context, In) (Out, error)) {
	if do == nil {
		w.problem(name, "its handler is nil")
		return
	}
	w.register(name, workerv1.Direction_DIRECTION_DO, func(ctx context.Context, t *workerv1.Task) ([]byte, error) {
		var in In
		if err := saga.Decode(t.Input, &in); err != nil {
			return nil, inputError{fmt.Errorf("the input can't be read: %w", err)}
		}
		out, err := do(ctx, in)
		if err != nil {
			return nil, err
		}
		doc, err := saga.Encode(out)
		if err != nil {
			return nil, outputError{err}
		}
		return doc, nil
	})
}

// register notes a handler. What is wrong is reported when the worker is started.
func (w *Worker) register(name string, d workerv1.Direction, call func(context.Context, *workerv1.Task) ([]byte, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := wire.Queue{Namespace: w.cfg.Namespace, Activity: name, Direction: d}
	switch err := q.Valid(); {
	case err != nil:
		w.problems = append(w.problems, fmt.Errorf("worker: %w", err))
	case w.started:
		w.problems = append(w.problems, fmt.Errorf("worker: activity %s is registered after the start: register it before", name))
		w.log.Error("a handler was registered after the worker was started, and isn't served", "activity", name)
	case w.handlers[q] != nil:
		w.problems = append(w.problems, fmt.Errorf("worker: activity %s is registered twice: register it once", name))
	default:
		w.handlers[q] = &handler{queue: q, call: call}
	}
}

func (w *Worker) problem(name, what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problems = append(w.problems, fmt.Errorf("worker: activity %s: %s", name, what))
}
