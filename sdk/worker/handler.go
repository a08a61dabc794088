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
	call  func(ctx context.Context, t *workerv1.Task) (answer, error)
}

// answer is what a handler answered that had no error.
type answer struct {
	outcome workerv1.Outcome
	output  []byte
	// code and message say more, if there is more.
	code, message string
}

// Option is more that a worker serves of an activity: see [Probe].
type Option[In, Out any] struct {
	probe func(context.Context, In) (saga.ProbeAnswer[Out], error)
}

// Probe serves the question whether an action happened, for activities whose contract says that they have a probe. The engine asks before it
// undoes or gives up a step whose outcome nobody knows. ask gets the action's input; saga.ActionKey names the action. It answers with
// saga.Happened, saga.HappenedUnknownOutput, saga.DidNotHappen or saga.CantTell; after an error it is asked again. It changes nothing,
// except what keeps an action that didn't happen from happening later: package barrier does that for effects in the worker's own database.
func Probe[In, Out any](ask func(context.Context, In) (saga.ProbeAnswer[Out], error)) Option[In, Out] {
	return Option[In, Out]{probe: ask}
}

// inputError: the handler wasn't called, since the task can't be read into its type.
type inputError struct{ err error }

func (e inputError) Error() string { return e.err.Error() }

// outputError: the handler succeeded, but what it answered can't be stored.
type outputError struct{ err error }

func (e outputError) Error() string { return e.err.Error() }

// Compensatable serves the action and the compensation of an activity, and its [Probe] if it has one. Action and compensation must be
// idempotent by their keys. A handler answers with an output, or with an error, see package saga.
func Compensatable[In, Out any](w *Worker, c saga.Compensatable[In, Out],
	do func(context.Context, In) (Out, error), undo func(context.Context, saga.Undo[In, Out]) error, options ...Option[In, Out]) {
	if undo == nil {
		w.problem(c.Name, "its compensation is nil")
		return
	}
	action(w, c.Name, do)
	probe(w, c.Name, c.Probe, options)
	w.register(c.Name, workerv1.Direction_DIRECTION_UNDO, func(ctx context.Context, t *workerv1.Task) (answer, error) {
		u := saga.Undo[In, Out]{ActionKey: t.ActionKey, Checkpoint: t.Undo.GetCheckpoint()}
		if err := saga.Decode(t.Input, &u.Input); err != nil {
			return answer{}, inputError{fmt.Errorf("the action's input can't be read: %w", err)}
		}
		if t.Undo.GetOutputKnown() {
			u.Output = new(Out)
			if err := saga.Decode(t.Undo.Output, u.Output); err != nil {
				return answer{}, inputError{fmt.Errorf("the action's output can't be read: %w", err)}
			}
		}
		u.Cause = saga.Cause{Step: t.Undo.GetCauseStep(), Code: t.Undo.GetCauseCode(), Message: t.Undo.GetCauseMessage()}
		return answer{outcome: workerv1.Outcome_OUTCOME_SUCCEEDED}, undo(ctx, u)
	})
}

// ReadOnly serves an activity that changes nothing.
func ReadOnly[In, Out any](w *Worker, c saga.ReadOnly[In, Out], do func(context.Context, In) (Out, error)) {
	action(w, c.Name, do)
}

// Activity serves an activity that can't be undone, and its [Probe] if it has one. It must be idempotent by its key.
func Activity[In, Out any](w *Worker, c saga.Activity[In, Out], do func(context.Context, In) (Out, error), options ...Option[In, Out]) {
	action(w, c.Name, do)
	probe(w, c.Name, c.Probe, options)
}

// probe registers the probe that the contract wants.
func probe[In, Out any](w *Worker, name string, wanted bool, options []Option[In, Out]) {
	var ask func(context.Context, In) (saga.ProbeAnswer[Out], error)
	for _, o := range options {
		if o.probe == nil || ask != nil {
			w.problem(name, "give one probe, which isn't nil")
			return
		}
		ask = o.probe
	}
	switch {
	case wanted && ask == nil:
		w.problem(name, "its contract says that it has a probe, and none is given: add worker.Probe(...)")
		return
	case !wanted && ask != nil:
		w.problem(name, "it has a probe that its contract doesn't know of, so nobody would ask: set Probe in the contract")
		return
	case ask == nil:
		return
	}
	w.register(name, workerv1.Direction_DIRECTION_PROBE, func(ctx context.Context, t *workerv1.Task) (answer, error) {
		var in In
		if err := saga.Decode(t.Input, &in); err != nil {
			return answer{}, inputError{fmt.Errorf("the action's input can't be read: %w", err)}
		}
		found, err := ask(ctx, in)
		if err != nil {
			return answer{}, err
		}
		finding, output, why := found.Finding()
		switch finding {
		case saga.Occurred:
			a := answer{outcome: workerv1.Outcome_OUTCOME_HAPPENED}
			if output != nil {
				doc, err := saga.Encode(*output)
				if err != nil { // it happened all the same
					a.code, a.message = wire.CodeNotStorable, err.Error()
				}
				a.output = doc
			}
			return a, nil
		case saga.Absent:
			return answer{outcome: workerv1.Outcome_OUTCOME_DID_NOT_HAPPEN}, nil
		}
		return answer{outcome: workerv1.Outcome_OUTCOME_CANT_TELL, message: why}, nil
	})
}

func action[In, Out any](w *Worker, name string, do func(context.Context, In) (Out, error)) {
	if do == nil {
		w.problem(name, "its handler is nil")
		return
	}
	w.register(name, workerv1.Direction_DIRECTION_DO, func(ctx context.Context, t *workerv1.Task) (answer, error) {
		var in In
		if err := saga.Decode(t.Input, &in); err != nil {
			return answer{}, inputError{fmt.Errorf("the input can't be read: %w", err)}
		}
		out, err := do(ctx, in)
		if err != nil {
			return answer{}, err
		}
		doc, err := saga.Encode(out)
		if err != nil {
			return answer{}, outputError{err}
		}
		return answer{outcome: workerv1.Outcome_OUTCOME_SUCCEEDED, output: doc}, nil
	})
}

// register notes a handler. What is wrong is reported when the worker is started.
func (w *Worker) register(name string, d workerv1.Direction, call func(context.Context, *workerv1.Task) (answer, error)) {
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
