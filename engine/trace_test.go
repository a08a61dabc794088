package engine

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/store"
)

// TestTraces: one trace from the caller to the end: the start, each attempt with its time, the saga.
func TestTraces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recorder := tracetest.NewSpanRecorder()
		provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
		w := newWorld(t, 1, func(task *workerv1.Task) *workerv1.Result {
			time.Sleep(time.Second)
			return nil
		})
		e := w.start("e1", func(c *Config) { c.Tracer = provider })
		ctx, caller := provider.Tracer("test").Start(context.Background(), "caller")
		if _, err := e.StartSaga(ctx, request("t-1")); err != nil {
			t.Fatal(err)
		}
		caller.End()
		if s := w.wait("t-1"); s.Status != store.Completed {
			t.Fatalf("status %d", s.Status)
		}
		took := map[string]time.Duration{}
		var names []string
		for _, s := range recorder.Ended() {
			if s.SpanContext().TraceID() != caller.SpanContext().TraceID() {
				t.Errorf("%s is in another trace", s.Name())
			}
			took[s.Name()] = s.EndTime().Sub(s.StartTime())
			names = append(names, s.Name())
		}
		slices.Sort(names)
		if d := cmp.Diff([]string{"caller", "confirm", "credit", "debit", "saga transfer", "start transfer"}, names); d != "" {
			t.Error(d)
		}
		if took["credit"] != time.Second || took["saga transfer"] != 3*time.Second {
			t.Errorf("%v", took)
		}
		for _, task := range w.bus.Tasks() {
			if c, ok := parseTraceparent(task.Traceparent); !ok || c.TraceID() != caller.SpanContext().TraceID() || !c.IsSampled() {
				t.Errorf("task %s: traceparent %q", task.Step, task.Traceparent)
			}
		}
		w.end()
	})
}

func TestTraceparent(t *testing.T) {
	for _, s := range []string{"", "00-", "00-00000000000000000000000000000000-0000000000000000-01", "00-zzf7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"} {
		if _, ok := parseTraceparent(s); ok {
			t.Errorf("%q is taken", s)
		}
	}
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	c, ok := parseTraceparent(good)
	if !ok || traceparent(c) != good {
		t.Errorf("%q became %q", good, traceparent(c))
	}
}
