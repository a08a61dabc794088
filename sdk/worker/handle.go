package worker

import (
	"context"
	"errors"
	"fmt"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/internal/wire"
	"github.com/sagad/sagad/sdk/saga"
)

// Handle runs one task through its registered handler, in the caller's goroutine, and gives the result that the worker would
// report. It is for tests of handlers, which package sagatest has: no NATS is needed, and the worker needn't be started. What
// the handler says while it runs goes where [saga.WithStatements] says; the deadline is ctx's. The error says that nothing serves the
// task, or that a handler was registered wrongly.
func (w *Worker) Handle(ctx context.Context, t *workerv1.Task) (*workerv1.Result, error) {
	h, err := w.handlerOf(t.GetActivity(), t.GetDirection())
	if err != nil {
		return nil, err
	}
	undo := t.Direction == workerv1.Direction_DIRECTION_UNDO
	ctx = saga.WithCall(ctx, &saga.Call{
		Namespace: t.Namespace, SagaID: t.SagaId, RunID: t.RunId, Step: t.Step, Item: t.Item, Activity: t.Activity, Undo: undo,
		Probe: t.Direction == workerv1.Direction_DIRECTION_PROBE, Generation: int(t.Generation), Attempt: int(t.Attempt),
		IdempotencyKey: t.IdempotencyKey, ActionKey: t.ActionKey,
	})
	output, stack, err := call(ctx, h, t)
	r := w.result(ctx, output, err, stack, t.Direction)
	r.Token = t.Token
	return r, nil
}

// Serves says whether a handler is registered for an activity's action, compensation or probe. The error says what was
// registered wrongly.
func (w *Worker) Serves(activity string, d workerv1.Direction) (bool, error) {
	h, err := w.handlerOf(activity, d)
	if errors.Is(err, errNotServed) {
		return false, nil
	}
	return h != nil, err
}

var errNotServed = errors.New("no handler is registered for it")

func (w *Worker) handlerOf(activity string, d workerv1.Direction) (*handler, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := errors.Join(w.problems...); err != nil {
		return nil, err
	}
	h := w.handlers[wire.Queue{Namespace: w.cfg.Namespace, Activity: activity, Direction: d}]
	if h == nil {
		return nil, fmt.Errorf("activity %s: %w", activity, errNotServed)
	}
	return h, nil
}
