package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/sdk/saga"
)

// Version is a registered definition.
type Version struct {
	Name    string
	Version int32
	// Hash of its content, in hexadecimal.
	Hash string
	// Created is false if the content had been registered before.
	Created bool
}

// Register verifies and stores a definition. The same content keeps its version, so every start of a program may do it.
// The error is an [Error] with all problems that were found.
func Register[In, Out any](ctx context.Context, c *Client, def *saga.Definition[In, Out]) (Version, error) {
	// A definition that couldn't be made as it was written isn't the one that was meant.
	if err := def.Err(); err != nil {
		return Version{}, err
	}
	res, err := call(ctx, c, c.definitions.RegisterDefinition,
		&sagadv1.RegisterDefinitionRequest{Namespace: c.namespace, Definition: def.Proto()}, c.retryFor, callTimeout)
	if err != nil {
		return Version{}, fmt.Errorf("register %s: %w", def.Name(), err)
	}
	v := res.GetVersion()
	return Version{Name: v.GetName(), Version: v.GetVersion(), Hash: v.GetHash(), Created: res.GetCreated()}, nil
}

type startOptions struct {
	version int32
	labels  map[string]string
}

// StartOption is for one start.
type StartOption func(*startOptions)

// WithVersion starts this version of the definition instead of the latest.
func WithVersion(version int32) StartOption { return func(o *startOptions) { o.version = version } }

// WithLabel marks the saga: 16 labels at most, of 63 bytes each.
func WithLabel(key, value string) StartOption {
	return func(o *startOptions) {
		if o.labels == nil {
			o.labels = map[string]string{}
		}
		o.labels[key] = value
	}
}

// Start starts a saga, or finds it started: the same id with the same content is the same saga. The definition must be
// registered. Errors: [ErrConflict] if the id is taken by other content, [ErrInvalid] if the input doesn't fit,
// [ErrNotFound] if there is no such definition, [ErrUnavailable] if it isn't known whether the saga was started: start
// again.
func Start[In, Out any](ctx context.Context, c *Client, def *saga.Definition[In, Out], id string, in In, opts ...StartOption) (*Run[Out], error) {
	var o startOptions
	for _, opt := range opts {
		opt(&o)
	}
	input, err := saga.Encode(in)
	if err != nil {
		return nil, fmt.Errorf("start %q of %s: the input can't be written as JSON: %w", id, def.Name(), err)
	}
	res, err := call(ctx, c, c.sagas.StartSaga, &sagadv1.StartSagaRequest{
		Namespace: c.namespace, Id: id, Definition: def.Name(), Version: o.version, Input: string(input), Labels: o.labels,
	}, c.retryFor, callTimeout)
	if err != nil {
		return nil, fmt.Errorf("start %q of %s: %w", id, def.Name(), err)
	}
	return &Run[Out]{c: c, id: id, runID: res.GetRunId(), version: res.GetVersion(), created: res.GetCreated()}, nil
}

// Attach is a handle on a saga that was started before.
func Attach[In, Out any](c *Client, _ *saga.Definition[In, Out], id string) *Run[Out] {
	return &Run[Out]{c: c, id: id}
}

// Run is a saga, seen from outside.
type Run[Out any] struct {
	c       *Client
	id      string
	runID   string
	version int32
	created bool
}

// ID is the saga's id.
func (r *Run[Out]) ID() string { return r.id }

// RunID names this run, a UUID. Empty if the run came from [Attach].
func (r *Run[Out]) RunID() string { return r.runID }

// Version is the definition's. 0 if the run came from [Attach].
func (r *Run[Out]) Version() int32 { return r.version }

// Created is false if the saga had been started before.
func (r *Run[Out]) Created() bool { return r.created }

type waitOptions struct{ stopWhenStuck bool }

// WaitOption is for one wait.
type WaitOption func(*waitOptions)

// StopWhenStuck ends the wait with a [StuckError] when the saga needs a person. Otherwise Wait goes on: a stuck saga isn't
// over.
func StopWhenStuck() WaitOption { return func(o *waitOptions) { o.stopWhenStuck = true } }

// Wait waits for the saga's end and gives its output. It asks again while the server can't be reached, until ctx ends.
// Errors: [CompensatedError], [AbandonedError], [ErrNotFound], and ctx's.
func (r *Run[Out]) Wait(ctx context.Context, opts ...WaitOption) (Out, error) {
	var none Out
	var o waitOptions
	for _, opt := range opts {
		opt(&o)
	}
	portion := 50 * time.Second
	if o.stopWhenStuck {
		// Stuck isn't an end, so the server doesn't answer at once.
		portion = time.Second
	}
	for {
		res, err := call(ctx, r.c, r.c.sagas.WaitSaga, &sagadv1.WaitSagaRequest{
			Namespace: r.c.namespace, Id: r.id, Timeout: durationpb.New(portion),
		}, untilDone, portion+callTimeout)
		if err != nil {
			return none, fmt.Errorf("wait for %q: %w", r.id, err)
		}
		s := res.GetSaga()
		switch s.GetSummary().GetStatus() {
		case sagadv1.SagaStatus_SAGA_STATUS_COMPLETED:
			return r.output(s)
		case sagadv1.SagaStatus_SAGA_STATUS_COMPENSATED:
			return none, &CompensatedError{ID: r.id, Cause: asCause(s.Summary.Cause), SettledByHand: int(s.Summary.SettledByHand)}
		case sagadv1.SagaStatus_SAGA_STATUS_ABANDONED:
			return none, &AbandonedError{ID: r.id, Cause: asCause(s.Summary.Cause)}
		case sagadv1.SagaStatus_SAGA_STATUS_STUCK:
			if o.stopWhenStuck {
				return none, &StuckError{ID: r.id, Items: s.Items}
			}
		}
		if err := ctx.Err(); err != nil {
			return none, fmt.Errorf("wait for %q: %w", r.id, context.Cause(ctx))
		}
	}
}

func (r *Run[Out]) output(s *sagadv1.Saga) (Out, error) {
	var out Out
	text := s.GetOutput()
	if text == "" {
		text = "null"
	}
	dec := json.NewDecoder(bytes.NewReader([]byte(text)))
	// A number in an interface keeps its digits.
	dec.UseNumber()
	if err := dec.Decode(&out); err != nil {
		return out, fmt.Errorf("saga %q has completed, but its output doesn't fit %T (was it started by another version?): %w", r.id, out, err)
	}
	return out, nil
}

// Get is the saga as it is now.
func (r *Run[Out]) Get(ctx context.Context) (*sagadv1.Saga, error) {
	res, err := call(ctx, r.c, r.c.sagas.GetSaga, &sagadv1.GetSagaRequest{Namespace: r.c.namespace, Id: r.id}, r.c.retryFor, callTimeout)
	if err != nil {
		return nil, fmt.Errorf("get %q: %w", r.id, err)
	}
	return res.GetSaga(), nil
}

// ErrTooLate: the saga can't be cancelled any more: it has ended, or its pivot was sent. In the latter case it finishes, unless
// the pivot turns out not to have happened.
var ErrTooLate = errors.New("too late to cancel")

// Cancel unwinds the saga, if it isn't past its pivot; the reason stays in its history. It returns once that is decided,
// not when it is done: Wait for that. A saga that unwinds already is no error. Errors: [ErrTooLate], [ErrNotFound].
func (r *Run[Out]) Cancel(ctx context.Context, reason string) error {
	res, err := call(ctx, r.c, r.c.sagas.CancelSaga, &sagadv1.CancelSagaRequest{
		// One id for all tries: a repeat is answered as the first.
		Namespace: r.c.namespace, Id: r.id, Reason: reason, RequestId: uuid.NewString(),
	}, r.c.retryFor, callTimeout)
	if err != nil {
		return fmt.Errorf("cancel %q: %w", r.id, err)
	}
	switch res.GetAnswer() {
	case sagadv1.CancelAnswer_CANCEL_ANSWER_WILL_UNWIND, sagadv1.CancelAnswer_CANCEL_ANSWER_ALREADY_UNWINDING:
		return nil
	case sagadv1.CancelAnswer_CANCEL_ANSWER_TOO_LATE_PAST_PIVOT:
		return fmt.Errorf("cancel %q: %w: its pivot was sent; it finishes, unless the pivot turns out not to have happened", r.id, ErrTooLate)
	}
	return fmt.Errorf("cancel %q: %w: it has ended", r.id, ErrTooLate)
}
