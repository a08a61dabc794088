package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/internal/wire"
	"github.com/sagad/sagad/sdk/saga"
)

// Codes of failures that aren't a handler's own.
const (
	codeError   = "ERROR"
	codePanic   = "PANIC"
	codeTimeout = "TIMEOUT"
	codeInput   = "INPUT_NOT_READABLE"
	codeStopped = "STOPPED"
	// Of rejections and refusals whose handler gave none.
	codeRejected = "REJECTED"
	codeCantUndo = "CANT_UNDO"
)

// attempt calls the handler. The result is nil if the task's time was over before it got its turn; handBack says that there is none since
// the worker stops.
func (w *Worker) attempt(j *job) (r *workerv1.Result, handBack bool) {
	t := j.task
	if !time.Now().Before(j.deadline) {
		w.desk.expired(1)
		return nil, false
	}
	if w.handling.Err() != nil {
		return nil, true
	}
	timed, cancel := context.WithDeadline(w.handling, j.deadline)
	defer cancel()
	ctx, end := context.WithCancelCause(timed)
	defer end(nil)
	if !w.desk.begin(j, end) {
		return w.failed(codeStopped, "it was stopped before it began"), false
	}
	heard := time.Now() // before the claim is sent: the engine counts from when it gets it
	if t.Claimed {
		switch w.claim(ctx, j) {
		case others:
			return nil, false
		case unsure:
			switch {
			case errors.Is(context.Cause(ctx), errStopping):
				return nil, true
			case errors.Is(context.Cause(ctx), saga.ErrStopped):
				return w.failed(codeStopped, "it was stopped before it began"), false
			}
			w.desk.expired(1)
			return nil, false
		}
	}
	ctx, span := w.span(ctx, t)
	defer span.End()
	undo := t.Direction == workerv1.Direction_DIRECTION_UNDO
	p := newPulse(w, j, ctx, end, heard)
	defer p.stop() // also if the handler ends this goroutine
	handling := saga.WithCall(ctx, &saga.Call{
		Namespace: t.Namespace, SagaID: t.SagaId, RunID: t.RunId, Step: t.Step, Item: t.Item, Activity: t.Activity,
		Undo: undo, Probe: t.Direction == workerv1.Direction_DIRECTION_PROBE,
		Generation: int(t.Generation), Attempt: int(t.Attempt), IdempotencyKey: t.IdempotencyKey, ActionKey: t.ActionKey,
	})
	if t.Direction == workerv1.Direction_DIRECTION_DO {
		handling = saga.WithStatements(handling, p.statements())
	}
	answer, stack, err := call(handling, j.h, t)
	p.stop()
	r = w.result(ctx, answer, err, stack, t.Direction)
	if r.Outcome == workerv1.Outcome_OUTCOME_FAILED {
		p.flush()
	}
	// A claim can't be passed on.
	if r.Outcome == workerv1.Outcome_OUTCOME_FAILED && errors.Is(context.Cause(ctx), errStopping) && !t.Claimed {
		// Not the handler's failure: delivery to another worker isn't an attempt.
		span.SetStatus(codes.Error, "the worker stopped")
		return nil, true
	}
	w.count(r)
	if bad := r.Outcome == workerv1.Outcome_OUTCOME_REJECTED || r.Outcome == workerv1.Outcome_OUTCOME_FAILED || r.Outcome == workerv1.Outcome_OUTCOME_CANT_UNDO; bad && span.IsRecording() {
		span.SetStatus(codes.Error, r.Code)
	}
	if r.Code != "" && w.log.Enabled(ctx, slog.LevelInfo) {
		level := slog.LevelInfo
		if r.Code == codePanic || r.Code == wire.CodeNotStorable || r.Code == codeInput {
			level = slog.LevelError
		}
		w.log.Log(ctx, level, "attempt ended", "saga", t.SagaId, "step", t.Step, "activity", t.Activity, "undo", undo,
			"attempt", t.Attempt, "outcome", r.Outcome.String(), "code", r.Code)
	}
	return r, false
}

// failed is the result of an attempt whose handler has nothing to say.
func (w *Worker) failed(code, message string) *workerv1.Result {
	r := &workerv1.Result{Worker: w.cfg.Name, Outcome: workerv1.Outcome_OUTCOME_FAILED, Code: code, Message: message}
	w.count(r)
	return r
}

// panicked is what a panic becomes.
type panicked struct{ value string }

func (p panicked) Error() string { return "panic: " + p.value }

// call calls a handler and survives its panics; stack is set if there was one. It doesn't return if the handler ends its
// goroutine.
func call(ctx context.Context, h *handler, t *workerv1.Task) (a answer, stack []byte, err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		p := recover()
		stack = debug.Stack()
		a, err = answer{}, panicked{printed(p)}
	}()
	a, err = h.call(ctx, t)
	returned = true
	return a, nil, err
}

// printed is a panic's value in words, even if printing it panics.
func printed(p any) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("a %T", p)
		}
	}()
	return fmt.Sprint(p)
}

// result says in the protocol's words what became of an attempt.
func (w *Worker) result(ctx context.Context, a answer, err error, stack []byte, d workerv1.Direction) *workerv1.Result {
	r := &workerv1.Result{Worker: w.cfg.Name}
	if err == nil {
		r.Outcome, r.Output, r.Code, r.Message = a.outcome, a.output, a.code, wire.CleanText(a.message, wire.ResultMessageBytesMax)
		return r
	}
	r.Outcome, r.Code = workerv1.Outcome_OUTCOME_FAILED, codeError
	if stack != nil {
		r.Code, r.Message, r.Detail = codePanic, err.Error(), string(stack)
	} else {
		w.interpret(ctx, r, err, d)
	}
	r.Code = wire.CleanText(r.Code, wire.ResultCodeBytesMax)
	r.Message = wire.CleanText(r.Message, wire.ResultMessageBytesMax)
	r.Detail = wire.CleanText(r.Detail, wire.ResultDetailBytesMax)
	return r
}

// interpret reads a handler's error. Nothing else may ask that error anything: it is the handler's code, and a nil pointer in it is
// enough to panic.
func (w *Worker) interpret(ctx context.Context, r *workerv1.Result, err error, d workerv1.Direction) {
	defer func() {
		if p := recover(); p != nil {
			r.Outcome, r.Code, r.Message, r.Detail = workerv1.Outcome_OUTCOME_FAILED, codePanic, "panic in the handler's error: "+printed(p), string(debug.Stack())
			r.RetryAfterUs, r.GiveUp = 0, false
		}
	}()
	switch own := err.(type) { // they come as they are, never wrapped
	case outputError:
		// Done, but without a usable output: the engine must know both.
		r.Outcome, r.Code, r.Message = workerv1.Outcome_OUTCOME_SUCCEEDED, wire.CodeNotStorable, own.Error()
		return
	case inputError:
		r.Code, r.Message = codeInput, own.Error()
		return
	}
	m := saga.MeaningOf(err, d == workerv1.Direction_DIRECTION_UNDO)
	r.Message = m.Message
	if d == workerv1.Direction_DIRECTION_PROBE && m.Kind != saga.Failed {
		m.Kind = saga.Failed // a question has no other bad ends
	}
	switch m.Kind {
	case saga.Rejected:
		r.Outcome, r.Code = workerv1.Outcome_OUTCOME_REJECTED, codeRejected
	case saga.NothingUndone:
		r.Outcome, r.Code, r.Message = workerv1.Outcome_OUTCOME_NOTHING_TO_UNDO, "", ""
		return
	case saga.Unable:
		r.Outcome, r.Code = workerv1.Outcome_OUTCOME_CANT_UNDO, codeCantUndo
	default:
		r.RetryAfterUs, r.GiveUp = m.RetryAfter.Microseconds(), m.GiveUp
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
			r.Code = codeTimeout
		}
		if isStopped(ctx, err) {
			r.Code = codeStopped
		}
	}
	if m.Code != "" {
		r.Code = m.Code
	}
	r.Detail = causes(err)
}

// causes lists an error's chain with its types, one a line, if there is one.
func causes(err error) string {
	var b strings.Builder
	const linesMax = 16
	lines := 0
	var walk func(err error, depth int)
	walk = func(err error, depth int) {
		if err == nil || lines >= linesMax || depth > linesMax {
			return
		}
		lines++
		fmt.Fprintf(&b, "%s%T: %s\n", strings.Repeat("  ", depth), err, err)
		switch u := err.(type) {
		case interface{ Unwrap() error }:
			walk(u.Unwrap(), depth+1)
		case interface{ Unwrap() []error }:
			for _, e := range u.Unwrap() {
				walk(e, depth+1)
			}
		}
	}
	walk(err, 0)
	if lines < 2 {
		return ""
	}
	return b.String()
}

func (w *Worker) count(r *workerv1.Result) {
	c := &w.counters
	switch r.Outcome {
	case workerv1.Outcome_OUTCOME_SUCCEEDED, workerv1.Outcome_OUTCOME_NOTHING_TO_UNDO,
		workerv1.Outcome_OUTCOME_HAPPENED, workerv1.Outcome_OUTCOME_DID_NOT_HAPPEN, workerv1.Outcome_OUTCOME_CANT_TELL:
		c.succeeded.Add(1)
		if r.Code == wire.CodeNotStorable {
			c.unstorable.Add(1)
		}
	case workerv1.Outcome_OUTCOME_REJECTED, workerv1.Outcome_OUTCOME_CANT_UNDO:
		c.rejected.Add(1)
	default:
		c.failed.Add(1)
		if r.Code == codePanic {
			c.panicked.Add(1)
		}
	}
}

// span begins the span of an attempt, under the saga's trace.
func (w *Worker) span(ctx context.Context, t *workerv1.Task) (context.Context, trace.Span) {
	if t.Traceparent != "" {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": t.Traceparent})
	}
	name := t.Activity
	switch t.Direction {
	case workerv1.Direction_DIRECTION_UNDO:
		name = "undo " + name
	case workerv1.Direction_DIRECTION_PROBE:
		name = "probe " + name
	}
	ctx, span := w.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindConsumer))
	if span.IsRecording() {
		span.SetAttributes(
			attribute.String("sagad.namespace", t.Namespace), attribute.String("sagad.saga_id", t.SagaId), attribute.String("sagad.step", t.Step),
			attribute.String("sagad.idempotency_key", t.IdempotencyKey), attribute.Int("sagad.attempt", int(t.Attempt)), attribute.String("sagad.worker", w.cfg.Name))
	}
	return ctx, span
}
