package worker

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/protobuf/proto"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/internal/natsbus"
	"github.com/sagad/sagad/internal/wire"
	"github.com/sagad/sagad/sdk/saga"
)

// FuzzTaskPack: whatever bytes come as a task message, nothing panics, each task is run or handed back, results are well formed, and in
// the end nothing lies on the desk.
func FuzzTaskPack(f *testing.F) {
	type in struct {
		A int64             `json:"a"`
		B []string          `json:"b"`
		C map[string]string `json:"c"`
	}
	srv, err := natsbus.Embedded("", "127.0.0.1:0", nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(srv.Close)
	nc, err := nats.Connect(srv.ClientURL(), srv.InProcess())
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(nc.Close)
	var strange atomic.Value
	engine := func(m *nats.Msg) {
		pack := new(workerv1.ResultPack)
		if err := proto.Unmarshal(m.Data, pack); err != nil {
			strange.Store(err.Error())
		}
		for _, r := range pack.Results {
			ok := r.Outcome >= workerv1.Outcome_OUTCOME_SUCCEEDED && r.Outcome <= workerv1.Outcome_OUTCOME_HANDED_BACK && r.RetryAfterUs >= 0
			for _, text := range []string{r.Code, r.Message, r.Detail, r.Worker} {
				ok = ok && utf8.ValidString(text)
			}
			if !ok || r.Code == codePanic {
				strange.Store(r.String())
			}
		}
		reply := &workerv1.ResultReply{}
		for range pack.Results {
			reply.Verdicts = append(reply.Verdicts, workerv1.Verdict_VERDICT_ACCEPTED)
		}
		raw, _ := proto.Marshal(reply)
		_ = m.Respond(raw)
	}
	for _, subject := range []string{"sagad.result.*", "fuzz.results"} {
		if _, err := nc.Subscribe(subject, engine); err != nil {
			f.Fatal(err)
		}
	}
	w, err := New(Config{URL: srv.ClientURL(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	pair := saga.Compensatable[in, in]{Name: "t.pair"}
	Compensatable(w, pair, func(_ context.Context, x in) (in, error) { return x, nil }, func(context.Context, saga.Undo[in, in]) error { return nil })
	w.nc, w.tracer = nc, noop.NewTracerProvider().Tracer("")
	w.alive, w.endAlive = context.WithCancel(context.Background())
	w.handling, w.endHandling = context.WithCancelCause(w.alive)
	f.Cleanup(w.endAlive)
	queue := func(d workerv1.Direction) wire.Queue {
		return wire.Queue{Namespace: w.cfg.Namespace, Activity: pair.Name, Direction: d}
	}
	for _, task := range []*workerv1.Task{
		{Input: []byte(`{"a":1,"b":["x"],"c":{"k":"v"}}`)}, {Input: []byte(`{"a":9007199254740993}`), Undo: &workerv1.Undo{Output: []byte(`{"a":2}`)}, ActionKey: "k"}, {Input: []byte(`{`)},
		{Input: []byte(`{"a":1e999}`)}, {}, {Input: []byte("\xff"), Token: append([]byte{1, 0, 9}, make([]byte, 40)...), Traceparent: "00-zz"},
	} {
		task.Protocol, task.IdempotencyKey, task.Attempt, task.TimeoutUs = wire.Protocol, "run/step/-/do/1", 1, 1_000_000
		raw, err := proto.Marshal(&workerv1.TaskPack{Tasks: []*workerv1.Task{task, task}})
		if err != nil {
			f.Fatal(err)
		}
		for _, undo := range []bool{false, true} {
			f.Add(raw, undo, true)
			f.Add(raw, undo, false)
		}
	}
	f.Add([]byte{}, false, false)
	f.Add([]byte{0x0a, 0xff}, false, false)
	f.Fuzz(func(t *testing.T, raw []byte, undo, ours bool) {
		q := queue(workerv1.Direction_DIRECTION_DO)
		if undo {
			q = queue(workerv1.Direction_DIRECTION_UNDO)
		}
		if pack := new(workerv1.TaskPack); ours && proto.Unmarshal(raw, pack) == nil {
			// As a task of this worker, which isn't over yet.
			for _, task := range pack.Tasks {
				task.Protocol, task.Namespace, task.Activity, task.Direction = wire.Protocol, q.Namespace, q.Activity, q.Direction
				if task.DeadlineUs == 0 && task.TimeoutUs <= 0 {
					task.TimeoutUs = 1_000_000
				}
			}
			raw, _ = proto.Marshal(pack)
		}
		p := &puller{w: w, h: w.handlers[q], perMessage: 4}
		header := nats.Header{}
		header.Set(wire.HeaderResultSubject, "fuzz.results")
		p.take(&nats.Msg{Data: raw, Reply: "$JS.ACK.SAGAD_TASKS.c.1.2.3.4.0", Header: header}, time.Now())
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if !w.desk.wait(ctx) {
			t.Fatal("something lies on the desk after 10 s")
		}
		if s := strange.Swap(""); s != nil && s != "" {
			t.Errorf("a result is %v", s)
		}
		w.desk.mu.Lock()
		defer w.desk.mu.Unlock()
		if w.desk.open != 0 || len(w.desk.jobs) != 0 {
			t.Errorf("%d tasks are open, %d jobs are known", w.desk.open, len(w.desk.jobs))
		}
	})
}
