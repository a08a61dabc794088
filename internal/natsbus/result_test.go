package natsbus

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/internal/wire"
)

const (
	accepted    = workerv1.Verdict_VERDICT_ACCEPTED
	duplicate   = workerv1.Verdict_VERDICT_DUPLICATE
	refused     = workerv1.Verdict_VERDICT_REFUSED
	unavailable = workerv1.Verdict_VERDICT_UNAVAILABLE
)

func (r *rig) result(n int) *workerv1.Result {
	return &workerv1.Result{Token: r.token(n), Outcome: workerv1.Outcome_OUTCOME_SUCCEEDED, Output: []byte(`{}`)}
}

func (r *rig) request(t *testing.T, subject string, pack proto.Message) *workerv1.ResultReply {
	t.Helper()
	data, err := proto.Marshal(pack)
	if err != nil {
		t.Fatal(err)
	}
	return r.requestRaw(t, subject, data)
}

func (r *rig) requestRaw(t *testing.T, subject string, data []byte) *workerv1.ResultReply {
	t.Helper()
	m, err := r.admin.RequestWithContext(r.ctx(), subject, data)
	if err != nil {
		t.Fatal(err)
	}
	reply := new(workerv1.ResultReply)
	if err := proto.Unmarshal(m.Data, reply); err != nil {
		t.Fatal(err)
	}
	return reply
}

// serve is Serve, in force at the server when it returns.
func (r *rig) serve(shard int, handle func(*workerv1.ResultPack, func(*workerv1.ResultReply))) (stop func()) {
	r.t.Helper()
	stop, err := r.bus.Serve(shard, handle)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.bus.nc.FlushWithContext(r.ctx()); err != nil {
		r.t.Fatal(err)
	}
	return stop
}

func TestReplyComesAfterTheCommit(t *testing.T) {
	r := newRig(t, nil)
	type call struct {
		pack  *workerv1.ResultPack
		reply func(*workerv1.ResultReply)
	}
	calls := make(chan call, 1)
	stop := r.serve(3, func(p *workerv1.ResultPack, reply func(*workerv1.ResultReply)) { calls <- call{p, reply} })
	answers := make(chan *nats.Msg, 2)
	inbox := r.admin.NewInbox()
	if _, err := r.admin.ChanSubscribe(inbox, answers); err != nil {
		t.Fatal(err)
	}
	data, _ := proto.Marshal(&workerv1.ResultPack{Results: []*workerv1.Result{r.result(1), r.result(2)}})
	if err := r.admin.PublishRequest("sagad.result.3", inbox, data); err != nil {
		t.Fatal(err)
	}
	c := <-calls
	if len(answers) != 0 || r.bus.Stats().Answering != 1 {
		t.Error("answered before the handler did")
	}
	// From another goroutine, and a second time in vain.
	done := make(chan struct{})
	go func() {
		c.reply(&workerv1.ResultReply{Verdicts: []workerv1.Verdict{accepted, duplicate}})
		c.reply(&workerv1.ResultReply{Verdicts: []workerv1.Verdict{refused, refused}})
		close(done)
	}()
	<-done
	m := <-answers
	reply := new(workerv1.ResultReply)
	if err := proto.Unmarshal(m.Data, reply); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]workerv1.Verdict{accepted, duplicate}, reply.Verdicts); diff != "" {
		t.Error(diff)
	}
	if s := r.bus.Stats(); s.Answering != 0 || s.Requests != 1 || s.Results != 2 {
		t.Errorf("%+v", s)
	}
	stop()
	stop()
	if err := r.bus.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.admin.RequestWithContext(r.ctx(), "sagad.result.3", data); err == nil || !strings.Contains(err.Error(), "no responders") {
		t.Errorf("after stop: %v", err)
	}
	if len(answers) != 0 {
		t.Error("answered twice")
	}
}

func TestBadResultsAreRefused(t *testing.T) {
	r := newRig(t, nil)
	var handled []*workerv1.Result
	r.serve(3, func(p *workerv1.ResultPack, reply func(*workerv1.ResultReply)) {
		handled = append(handled, p.Results...)
		reply(all(accepted, len(p.Results)))
	})
	many := &workerv1.ResultPack{}
	for i := range wire.PackResultsMax + 1 {
		many.Results = append(many.Results, r.result(i))
	}
	manyBytes, _ := proto.Marshal(many)
	for name, data := range map[string][]byte{
		"empty": {}, "json": []byte(`{"stream":"SAGAD_TASKS","seq":1}`), "junk": []byte("\xff\xff\xff"), "a reply of the engine's": {0x0a, 0x02, 1, 1}, "too many": manyBytes,
	} {
		if reply := r.requestRaw(t, "sagad.result.3", data); len(reply.Verdicts) != 1 || reply.Verdicts[0] != refused {
			t.Errorf("%s: %v", name, reply)
		}
	}
	noOutcome, noToken, odd, back := r.result(1), r.result(2), r.result(3), r.result(4)
	noOutcome.Outcome, noToken.Token, odd.Outcome, back.RetryAfterUs = 0, []byte("x"), 77, -1
	if reply := r.request(t, "sagad.result.3", &workerv1.ResultPack{Results: []*workerv1.Result{noOutcome, noToken, odd, back}}); !cmp.Equal(reply.Verdicts, []workerv1.Verdict{refused, refused, refused, refused}) {
		t.Error(reply)
	}
	if len(handled) != 0 {
		t.Fatalf("handled: %v", handled)
	}
	// The good ones among bad ones go through, each with its own verdict; texts are made storable.
	good := r.result(5)
	good.Message, good.Detail = "a\x00b", strings.Repeat("ü", wire.ResultDetailBytesMax)
	reply := r.request(t, "sagad.result.3", &workerv1.ResultPack{Results: []*workerv1.Result{noToken, good, noOutcome, r.result(6)}})
	if !cmp.Equal(reply.Verdicts, []workerv1.Verdict{refused, accepted, refused, accepted}) {
		t.Error(reply)
	}
	if len(handled) != 2 || handled[0].Message != "a\u2400b" || len(handled[0].Detail) > wire.ResultDetailBytesMax {
		t.Errorf("%d handled", len(handled))
	}
	if s := r.bus.Stats(); s.Refused != 5+4+2 {
		t.Errorf("%+v", s)
	}
}

// A request whose reply subject isn't an inbox would make the engine publish there, with the engine's rights.
func TestReplySubjectsAreInboxes(t *testing.T) {
	r := newRig(t, nil)
	handled := make(chan struct{}, 10)
	r.serve(3, func(p *workerv1.ResultPack, reply func(*workerv1.ResultReply)) {
		reply(all(accepted, len(p.Results)))
		handled <- struct{}{}
	})
	data, _ := proto.Marshal(&workerv1.ResultPack{Results: []*workerv1.Result{r.result(1)}})
	hostile := []string{"sagad.task.shop.do.a", "sagad.result.4", "$JS.API.STREAM.DELETE.SAGAD_TASKS", "$JS.API.STREAM.PURGE.SAGAD_TASKS", "elsewhere", ""}
	for _, to := range hostile {
		if err := r.admin.PublishMsg(&nats.Msg{Subject: "sagad.result.3", Reply: to, Data: data}); err != nil {
			t.Fatal(err)
		}
	}
	r.until("refusals", func() bool { return r.bus.Stats().Unanswerable == int64(len(hostile)) })
	if len(handled) != 0 {
		t.Error("handled")
	}
	if _, err := r.js.Stream(r.ctx(), wire.Stream); err != nil {
		t.Error(err)
	}
}

func BenchmarkPublish(b *testing.B) {
	s, err := Embedded("", "", nil)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	bus, err := Connect(b.Context(), Config{Server: s, BacklogBytesMax: 1 << 30})
	if err != nil {
		b.Fatal(err)
	}
	defer bus.Close()
	if err := bus.Ready(b.Context()); err != nil {
		b.Fatal(err)
	}
	ring, _ := wire.NewKeyring(1, map[int32][]byte{1: make([]byte, 32)})
	token, _ := ring.Sign(&workerv1.TaskToken{Namespace: "shop", Shard: 7, SagaId: "x", ExpiresUs: 1 << 60})
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		tasks := make([]*workerv1.Task, 16)
		for i := range tasks {
			n++
			tasks[i] = &workerv1.Task{Protocol: 1, Namespace: "shop", SagaId: "saga", Step: "step", Direction: do, Generation: 1, Attempt: 1, Dispatch: 1,
				IdempotencyKey: fmt.Sprint("key-", n), Activity: "a", Input: []byte(`{}`), TimeoutUs: 30_000_000, Token: token}
		}
		bus.Publish(tasks)
		for bus.Stats().BacklogTasks > 100_000 {
			_ = bus.nc.Flush()
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(n), "us/task")
}
