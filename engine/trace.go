package engine

import (
	"context"
	"encoding/hex"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	"github.com/sagad/sagad/statemachine"
)

// traces makes spans of what is durable. A saga outlives processes, so no span is kept open: the start is a short span
// of its own, below the caller's, and everything else hangs from it. Each attempt is a span made at its end, from when
// it was scheduled; the saga as a whole is a span made at its end.
type traces struct {
	tracer trace.Tracer
	active bool
}

func newTraces(p trace.TracerProvider) *traces {
	if p == nil {
		p = noop.NewTracerProvider()
	}
	_, isNoop := p.(noop.TracerProvider)
	return &traces{tracer: p.Tracer("github.com/sagad/sagad/engine"), active: !isNoop}
}

func (t *traces) on() bool { return t.active }

// start makes the trace context of a new saga, in W3C form; "" if there is none.
func (t *traces) start(ctx context.Context, definition, namespace, id string) string {
	if !t.active {
		return traceparent(trace.SpanContextFromContext(ctx))
	}
	_, span := t.tracer.Start(ctx, "start "+definition, trace.WithSpanKind(trace.SpanKindInternal), trace.WithAttributes(
		attribute.String("sagad.namespace", namespace), attribute.String("sagad.saga", id), attribute.String("sagad.definition", definition)))
	span.End()
	return traceparent(span.SpanContext())
}

// transition makes the spans of a durable transition.
func (t *traces) transition(x *traced) {
	parent, ok := parseTraceparent(x.after.Traceparent)
	if !ok || !parent.IsSampled() {
		return
	}
	ctx := trace.ContextWithRemoteSpanContext(context.Background(), parent)
	end := stamp(x.transition.GetAtUs())
	for _, f := range x.transition.GetFacts() {
		e := f.GetAttemptEnded()
		if e == nil {
			continue
		}
		call := statemachine.Call{Step: e.GetCall().GetStep(), Item: e.GetCall().GetItem(), Dir: e.GetCall().GetDirection()}
		begin := end
		if c := callState(x.before, call); c != nil && c.Attempt == e.GetAttempt() {
			if task, err := x.saga.machine.Task(x.before, call); err == nil {
				begin = stamp(task.GetDeadlineUs() - task.GetTimeoutUs())
			}
		}
		good := e.GetOutcome() == historyv1.Outcome_OUTCOME_SUCCEEDED || e.GetOutcome() == historyv1.Outcome_OUTCOME_NOTHING_TO_UNDO
		t.span(ctx, call.String(), begin, end, e.GetError(), good,
			attribute.String("sagad.saga", x.after.SagaID), attribute.Int("sagad.attempt", int(e.GetAttempt())),
			attribute.Int("sagad.generation", int(e.GetGeneration())), attribute.String("sagad.outcome", e.GetOutcome().String()))
	}
	if x.after.Status.Terminal() && !statusOf(x.before).Terminal() {
		t.span(ctx, "saga "+x.after.Definition, stamp(x.after.StartedAt), end, x.after.Cause.GetError(), x.after.Status == statemachine.Completed,
			attribute.String("sagad.namespace", x.after.Namespace), attribute.String("sagad.saga", x.after.SagaID),
			attribute.String("sagad.definition", x.after.Definition), attribute.String("sagad.status", x.after.Status.String()))
	}
}

func (t *traces) span(ctx context.Context, name string, begin, end time.Time, err *historyv1.Error, good bool, attrs ...attribute.KeyValue) {
	if begin.After(end) {
		begin = end
	}
	_, span := t.tracer.Start(ctx, name, trace.WithTimestamp(begin), trace.WithAttributes(attrs...))
	if !good {
		span.SetStatus(codes.Error, err.GetCode()) // never the message: it may hold what is nobody's business
	}
	span.End(trace.WithTimestamp(end))
}

func callState(s *statemachine.State, c statemachine.Call) *statemachine.CallState {
	if s == nil {
		return nil
	}
	return s.Call(c)
}

func traceparent(c trace.SpanContext) string {
	if !c.IsValid() {
		return ""
	}
	tid, sid := c.TraceID(), c.SpanID()
	b := make([]byte, 0, 55)
	b = append(b, "00-"...)
	b = hex.AppendEncode(b, tid[:])
	b = append(b, '-')
	b = hex.AppendEncode(b, sid[:])
	b = append(b, "-00"...)
	if c.IsSampled() {
		b[len(b)-1] = '1'
	}
	return string(b)
}

func parseTraceparent(s string) (trace.SpanContext, bool) {
	if len(s) != 55 || s[:3] != "00-" || s[35] != '-' || s[52] != '-' {
		return trace.SpanContext{}, false
	}
	tid, err1 := trace.TraceIDFromHex(s[3:35])
	sid, err2 := trace.SpanIDFromHex(s[36:52])
	flags, err3 := hex.DecodeString(s[53:])
	if err1 != nil || err2 != nil || err3 != nil {
		return trace.SpanContext{}, false
	}
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: tid, SpanID: sid, TraceFlags: trace.TraceFlags(flags[0]), Remote: true}), true
}
