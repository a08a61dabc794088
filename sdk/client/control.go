package client

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/sdk/saga"
)

// Signal tells the saga something that its definition waits for. It waits in the saga until a wait takes it. The key names
// this signal among all of the saga's: the same key with the same payload is the same signal, however often it is sent, so use
// something that the event itself has, for example a payment's number. fresh is false if it had come before. Errors:
// [ErrConflict] if the key was used for another payload, [ErrInvalid] if the definition has no such signal or the payload
// doesn't fit, [ErrNotAllowed] if the saga no longer goes forward, [ErrNotFound].
func (r *Run[Out]) Signal(ctx context.Context, signal, key string, payload any) (fresh bool, _ error) {
	document, err := saga.Encode(payload)
	if err != nil {
		return false, fmt.Errorf("signal %s to %q: the payload can't be written as JSON: %w", signal, r.id, err)
	}
	res, err := call(ctx, r.c, r.c.sagas.SignalSaga, &sagadv1.SignalSagaRequest{
		Namespace: r.c.namespace, Id: r.id, Signal: signal, Key: key, Payload: string(document),
	}, r.c.retryFor, callTimeout)
	if err != nil {
		return false, fmt.Errorf("signal %s to %q: %w", signal, r.id, err)
	}
	return res.GetFresh(), nil
}

// SignalContract is a signal of a definition: its name, and the type of what it says.
type SignalContract[T any] interface {
	// SignalName is its name in the definition.
	SignalName() string
	// SignalPayload writes what it says as JSON.
	SignalPayload(T) ([]byte, error)
}

// Signal is [Run.Signal] with a payload of the contract's type.
func Signal[T, Out any](ctx context.Context, r *Run[Out], s SignalContract[T], key string, payload T) (fresh bool, _ error) {
	document, err := s.SignalPayload(payload)
	if err != nil {
		return false, fmt.Errorf("signal %s to %q: the payload can't be written as JSON: %w", s.SignalName(), r.id, err)
	}
	return r.Signal(ctx, s.SignalName(), key, json.RawMessage(document))
}

// Pause lets the saga send nothing more out until it is resumed; the reason stays in its history. Results of what is under
// way are taken in. Errors: [ErrNotAllowed] if it has ended, [ErrNotFound].
func (r *Run[Out]) Pause(ctx context.Context, reason string) error {
	_, err := call(ctx, r.c, r.c.sagas.PauseSaga, &sagadv1.PauseSagaRequest{
		Namespace: r.c.namespace, Id: r.id, Reason: reason, RequestId: uuid.NewString(),
	}, r.c.retryFor, callTimeout)
	if err != nil {
		return fmt.Errorf("pause %q: %w", r.id, err)
	}
	return nil
}

// Resume lets the saga go on. One that isn't paused goes on anyway. Errors: those of Pause.
func (r *Run[Out]) Resume(ctx context.Context, reason string) error {
	_, err := call(ctx, r.c, r.c.sagas.ResumeSaga, &sagadv1.ResumeSagaRequest{
		Namespace: r.c.namespace, Id: r.id, Reason: reason, RequestId: uuid.NewString(),
	}, r.c.retryFor, callTimeout)
	if err != nil {
		return fmt.Errorf("resume %q: %w", r.id, err)
	}
	return nil
}

// Explain tells the one thing that the saga waits for, since when, until when, and what would help.
func (r *Run[Out]) Explain(ctx context.Context) (*sagadv1.ExplainSagaResponse, error) {
	res, err := call(ctx, r.c, r.c.sagas.ExplainSaga, &sagadv1.ExplainSagaRequest{Namespace: r.c.namespace, Id: r.id}, r.c.retryFor, callTimeout)
	if err != nil {
		return nil, fmt.Errorf("explain %q: %w", r.id, err)
	}
	return res, nil
}
