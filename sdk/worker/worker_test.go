package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/internal/natsbus"
	"github.com/sagad/sagad/internal/wire"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

const (
	do, undo = workerv1.Direction_DIRECTION_DO, workerv1.Direction_DIRECTION_UNDO

	succeeded = workerv1.Outcome_OUTCOME_SUCCEEDED
	rejected  = workerv1.Outcome_OUTCOME_REJECTED
	failed    = workerv1.Outcome_OUTCOME_FAILED
	nothing   = workerv1.Outcome_OUTCOME_NOTHING_TO_UNDO
	cantUndo  = workerv1.Outcome_OUTCOME_CANT_UNDO

	accepted    = workerv1.Verdict_VERDICT_ACCEPTED
	refused     = workerv1.Verdict_VERDICT_REFUSED
	notOwner    = workerv1.Verdict_VERDICT_NOT_OWNER
	unavailable = workerv1.Verdict_VERDICT_UNAVAILABLE
)

// rig is the engine's side: it sends tasks and judges results.
type rig struct {
	t      testing.TB
	server *natsbus.Server
	bus    *natsbus.Bus
	ring   *wire.Keyring
	admin  *nats.Conn
	js     jetstream.JetStream
	// packs are the result requests that came, after judge answered them.
	packs chan *workerv1.ResultPack
	// left are results of the last pack that final hasn't given yet.
	left  []*workerv1.Result
	mu    sync.Mutex
	judge func(shard int, pack *workerv1.ResultPack, reply func(*workerv1.ResultReply))
	log   syncBuffer
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

const (
	ownShard   = 7
	otherShard = 8
)

func newRig(t testing.TB, ackWait time.Duration) *rig {
	t.Helper()
	r := &rig{t: t, packs: make(chan *workerv1.ResultPack, 1000)}
	var err error
	if r.server, err = natsbus.Embedded("", "127.0.0.1:0", nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.server.Close)
	if r.bus, err = natsbus.Connect(t.Context(), natsbus.Config{Server: r.server, AckWait: ackWait}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.bus.Close)
	if err := r.bus.Ready(r.ctx()); err != nil {
		t.Fatal(err)
	}
	if r.ring, err = wire.NewKeyring(1, map[int32][]byte{1: make([]byte, 32)}); err != nil {
		t.Fatal(err)
	}
	if r.admin, err = nats.Connect(r.server.ClientURL()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.admin.Close)
	if r.js, err = jetstream.New(r.admin); err != nil {
		t.Fatal(err)
	}
	for _, shard := range []int{ownShard, otherShard} {
		if _, err := r.bus.Serve(shard, func(p *workerv1.ResultPack, reply func(*workerv1.ResultReply)) {
			r.mu.Lock()
			judge := r.judge
			r.mu.Unlock()
			if judge != nil {
				judge(shard, p, reply)
			} else {
				reply(verdicts(accepted, len(p.Results)))
			}
			r.packs <- p
		}); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func verdicts(v workerv1.Verdict, n int) *workerv1.ResultReply {
	out := &workerv1.ResultReply{}
	for range n {
		out.Verdicts = append(out.Verdicts, v)
	}
	return out
}

func (r *rig) judged(judge func(shard int, pack *workerv1.ResultPack, reply func(*workerv1.ResultReply))) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.judge = judge
}

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	r.t.Cleanup(cancel)
	return ctx
}

func (r *rig) config() worker.Config {
	return worker.Config{URL: r.server.ClientURL(), Namespace: "shop", Name: "w1", Logger: slog.New(slog.NewTextHandler(&r.log, nil))}
}

func (r *rig) start(cfg worker.Config, register func(w *worker.Worker)) *worker.Worker {
	r.t.Helper()
	w, err := worker.New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	register(w)
	if err := w.Start(r.ctx()); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = w.Stop(context.Background()) })
	return w
}

func (r *rig) task(activity string, d workerv1.Direction, n int) *workerv1.Task {
	run := fmt.Sprintf("01890a5d-ac96-774b-bcce-%012x", n&0xffffffffffff)
	t := &workerv1.Task{Protocol: 1, Namespace: "shop", SagaId: fmt.Sprint("saga-", n), RunId: run, Step: "step", Direction: d, Generation: 1, Attempt: 1, Dispatch: 1,
		IdempotencyKey: wire.IdempotencyKey(run, "step", activity, d, 1), Activity: activity, Input: fmt.Appendf(nil, `{"n":%d}`, n),
		TimeoutUs: 10_000_000, DeadlineUs: time.Now().Add(10 * time.Second).UnixMicro()}
	if d == undo {
		t.ActionKey = wire.IdempotencyKey(run, "step", activity, do, 1)
	}
	r.sign(t, ownShard)
	return t
}

func (r *rig) sign(t *workerv1.Task, shard int32) {
	run, err := uuid.Parse(t.RunId)
	if err != nil {
		r.t.Fatal(err)
	}
	if t.Token, err = r.ring.Sign(&workerv1.TaskToken{Namespace: "shop", Shard: shard, Run: run[:], SagaId: t.SagaId, Step: t.Step, Item: t.Activity, Direction: t.Direction,
		Generation: t.Generation, Attempt: t.Attempt, Activity: t.Activity, ExpiresUs: 1 << 60}); err != nil {
		r.t.Fatal(err)
	}
}

// publish sends tasks in messages of their own: what is published at the same moment would share them.
func (r *rig) publish(tasks ...*workerv1.Task) {
	r.t.Helper()
	before := r.bus.Stats().Messages
	r.bus.Publish(tasks)
	r.until("the message", func() bool { return r.bus.Stats().Messages > before })
}

// pack waits for the next result request.
func (r *rig) pack() *workerv1.ResultPack {
	r.t.Helper()
	select {
	case p := <-r.packs:
		return p
	case <-r.ctx().Done():
		r.t.Fatalf("no result came\n%s\n%+v", r.log.String(), r.bus.Stats())
		return nil
	}
}

func (r *rig) one() *workerv1.Result {
	r.t.Helper()
	p := r.pack()
	if len(p.Results) != 1 {
		r.t.Fatalf("%d results", len(p.Results))
	}
	return p.Results[0]
}

func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("%s didn't come about\n%s", what, r.log.String())
		}
	}
}

// unacked is how many messages of a queue are with workers.
func (r *rig) unacked(consumer string) int {
	c, err := r.js.Consumer(r.ctx(), wire.Stream, consumer)
	if err != nil {
		return -1
	}
	return c.CachedInfo().NumAckPending
}

func (r *rig) stored() uint64 {
	s, err := r.js.Stream(r.ctx(), wire.Stream)
	if err != nil {
		r.t.Fatal(err)
	}
	return s.CachedInfo().State.Msgs
}

type numIn struct {
	N int64 `json:"n"`
}

type numOut struct {
	M int64 `json:"m"`
}

var (
	reserve = saga.Compensatable[numIn, numOut]{Name: "inventory.reserve"}
	plain   = saga.Activity[numIn, numOut]{Name: "plain"}
)

func TestActionAndCompensation(t *testing.T) {
	r := newRig(t, 0)
	calls := make(chan *saga.Call, 10)
	undos := make(chan saga.Undo[numIn, numOut], 10)
	r.start(r.config(), func(w *worker.Worker) {
		worker.Compensatable(w, reserve,
			func(ctx context.Context, in numIn) (numOut, error) {
				c, _ := saga.CallOf(ctx)
				calls <- c
				if at, ok := ctx.Deadline(); !ok || time.Until(at) > 10*time.Second || time.Until(at) < 5*time.Second {
					t.Errorf("deadline %v %v", at, ok)
				}
				return numOut{M: in.N + 1}, nil
			},
			func(ctx context.Context, u saga.Undo[numIn, numOut]) error {
				c, _ := saga.CallOf(ctx)
				calls <- c
				undos <- u
				return nil
			})
	})
	task := r.task("inventory.reserve", do, 9007199254740992)
	task.Attempt, task.Generation, task.Item = 3, 2, "i"
	r.publish(task)
	got := r.one()
	if got.Outcome != succeeded || string(got.Output) != `{"m":9007199254740993}` || got.Worker != "w1" || got.Code != "" || !bytes.Equal(got.Token, task.Token) {
		t.Errorf("%v", got)
	}
	want := &saga.Call{Namespace: "shop", SagaID: task.SagaId, RunID: task.RunId, Step: "step", Item: "i", Activity: "inventory.reserve", Generation: 2, Attempt: 3, IdempotencyKey: task.IdempotencyKey}
	if diff := cmp.Diff(want, <-calls); diff != "" {
		t.Error(diff)
	}

	back := r.task("inventory.reserve", undo, 1)
	back.Undo = &workerv1.Undo{OutputKnown: true, Output: []byte(`{"m":2}`), CauseStep: "pay", CauseCode: "NO", CauseMessage: "no money"}
	r.publish(back)
	if got := r.one(); got.Outcome != succeeded || len(got.Output) != 0 {
		t.Errorf("%v", got)
	}
	if diff := cmp.Diff(saga.Undo[numIn, numOut]{Input: numIn{1}, Output: &numOut{2}, Cause: saga.Cause{Step: "pay", Code: "NO", Message: "no money"}, ActionKey: back.ActionKey}, <-undos); diff != "" {
		t.Error(diff)
	}
	if c := <-calls; !c.Undo || c.ActionKey != back.ActionKey || c.IdempotencyKey == back.ActionKey {
		t.Errorf("%+v", c)
	}
	unknown := r.task("inventory.reserve", undo, 2)
	unknown.Undo = &workerv1.Undo{}
	r.publish(unknown)
	r.one()
	if u := <-undos; u.Output != nil || u.Input.N != 2 {
		t.Errorf("%+v", u)
	}
	r.until("acknowledgement of all", func() bool { return r.stored() == 0 })
}

type selfPanic struct{}

func (selfPanic) Error() string { panic("in the error") }

type hollowPanic struct{}

func (hollowPanic) Error() string { return "hollow" }
func (hollowPanic) Unwrap() error { panic("in the unwrapping") }

type comparedPanic struct{}

func (comparedPanic) Error() string { return "compared" }
func (comparedPanic) As(any) bool   { panic("in the comparison") }

func TestOutcomes(t *testing.T) {
	r := newRig(t, 0)
	var mu sync.Mutex
	var answer func(ctx context.Context) (json.RawMessage, error)
	var undoAnswer error
	set := func(f func(ctx context.Context) (json.RawMessage, error), u error) {
		mu.Lock()
		defer mu.Unlock()
		answer, undoAnswer = f, u
	}
	w := r.start(r.config(), func(w *worker.Worker) {
		worker.Compensatable(w, saga.Compensatable[any, json.RawMessage]{Name: "a"},
			func(ctx context.Context, _ any) (json.RawMessage, error) {
				mu.Lock()
				f := answer
				mu.Unlock()
				return f(ctx)
			},
			func(ctx context.Context, u saga.Undo[any, json.RawMessage]) error {
				mu.Lock()
				defer mu.Unlock()
				return undoAnswer
			})
		worker.Activity(w, plain, func(context.Context, numIn) (numOut, error) { return numOut{}, nil })
	})
	output := func(s string) func(context.Context) (json.RawMessage, error) {
		return func(context.Context) (json.RawMessage, error) { return json.RawMessage(s), nil }
	}
	fails := func(err error) func(context.Context) (json.RawMessage, error) {
		return func(context.Context) (json.RawMessage, error) { return nil, err }
	}
	n := 0
	for _, c := range []struct {
		name   string
		do     func(ctx context.Context) (json.RawMessage, error)
		undo   error
		want   *workerv1.Result
		detail string
	}{
		{name: "output", do: output(`{"a":1.50,"b":[12345678901234567890123]}`), want: &workerv1.Result{Outcome: succeeded, Output: []byte(`{"a":1.50,"b":[12345678901234567890123]}`)}},
		{name: "none", do: output(``), want: &workerv1.Result{Outcome: succeeded, Output: []byte(`null`)}},
		{name: "not JSON", do: output(`{`), want: &workerv1.Result{Outcome: succeeded, Code: wire.CodeNotStorable, Message: "not storable: not JSON"}},
		{name: "NUL", do: output(`"\u0000"`), want: &workerv1.Result{Outcome: succeeded, Code: wire.CodeNotStorable, Message: "not storable: a text holds a NUL character"}},
		{name: "six characters", do: output(`"\\u0000"`), want: &workerv1.Result{Outcome: succeeded, Output: []byte(`"\\u0000"`)}},
		{name: "large", do: output(`"` + strings.Repeat("x", 256<<10) + `"`), want: &workerv1.Result{Outcome: succeeded, Code: wire.CodeNotStorable,
			Message: "not storable: 262146 bytes, the limit is 262144; store it elsewhere and pass a reference"}},
		{name: "reject", do: fails(fmt.Errorf("deep: %w", errors.Join(io.EOF, saga.Reject("NO_MONEY", "none left")))), want: &workerv1.Result{Outcome: rejected, Code: "NO_MONEY", Message: "none left"}, detail: "saga.Rejection"},
		{name: "reject without code", do: fails(saga.Reject("", "no")), want: &workerv1.Result{Outcome: rejected, Code: "REJECTED", Message: "no"}},
		{name: "error", do: fails(io.EOF), want: &workerv1.Result{Outcome: failed, Code: "ERROR", Message: "EOF"}},
		{name: "later", do: fails(saga.RetryAfter(90*time.Second, io.EOF)), want: &workerv1.Result{Outcome: failed, Code: "ERROR", Message: "EOF (again after 1m30s)", RetryAfterUs: 90_000_000}, detail: "EOF"},
		{name: "give up", do: fails(saga.GiveUp(io.EOF)), want: &workerv1.Result{Outcome: failed, Code: "ERROR", Message: "EOF (given up)", GiveUp: true}, detail: "EOF"},
		{name: "bad text", do: fails(errors.New("a\x00b\xff" + strings.Repeat("ü", 4000))), want: &workerv1.Result{Outcome: failed, Code: "ERROR", Message: "a\u2400b\uFFFD" + strings.Repeat("ü", (4096-8-3)/2) + "..."}},
		{name: "panic", do: func(context.Context) (json.RawMessage, error) { panic("oh\x00") }, want: &workerv1.Result{Outcome: failed, Code: "PANIC", Message: "panic: oh\u2400"}, detail: "worker_test.go"},
		{name: "panic with nothing", do: func(context.Context) (json.RawMessage, error) { panic(nil) }, want: &workerv1.Result{Outcome: failed, Code: "PANIC", Message: "panic: panic called with nil argument "}, detail: "worker_test.go"},
		{name: "exit", do: func(context.Context) (json.RawMessage, error) { runtime.Goexit(); return nil, nil }, want: &workerv1.Result{Outcome: failed, Code: "PANIC", Message: "the handler ended its goroutine"}},
		{name: "error that panics", do: fails(selfPanic{}), want: &workerv1.Result{Outcome: failed, Code: "PANIC", Message: "panic in the handler's error: in the error"}, detail: "goroutine"},
		{name: "nil pointer as an error", do: fails((*os.PathError)(nil)), want: &workerv1.Result{Outcome: failed, Code: "PANIC", Message: "panic in the handler's error: runtime error: invalid memory address or nil pointer dereference"}, detail: "goroutine"},
		{name: "error that panics unwrapped", do: fails(hollowPanic{}), want: &workerv1.Result{Outcome: failed, Code: "PANIC", Message: "panic in the handler's error: in the unwrapping"}, detail: "goroutine"},
		{name: "error that panics when compared", do: fails(comparedPanic{}), want: &workerv1.Result{Outcome: failed, Code: "PANIC", Message: "panic in the handler's error: in the comparison"}, detail: "goroutine"},
		{name: "undone", want: &workerv1.Result{Outcome: succeeded}},
		{name: "nothing to undo", undo: fmt.Errorf("x: %w", saga.NothingToUndo), want: &workerv1.Result{Outcome: nothing}},
		{name: "can't undo", undo: saga.CantUndo(io.EOF), want: &workerv1.Result{Outcome: cantUndo, Code: "CANT_UNDO", Message: "can't undo: EOF"}, detail: "EOF"},
		{name: "reject the undo", undo: saga.Reject("GONE", "x"), want: &workerv1.Result{Outcome: cantUndo, Code: "GONE", Message: "GONE: x"}},
		{name: "undo fails", undo: io.EOF, want: &workerv1.Result{Outcome: failed, Code: "ERROR", Message: "EOF"}},
	} {
		set(c.do, c.undo)
		n++
		d := do
		if c.do == nil {
			d = undo
		}
		task := r.task("a", d, n)
		r.publish(task)
		got := r.one()
		if c.name == "exit" {
			// Goexit took the goroutine; the worker must go on.
			set(output(`1`), nil)
		}
		if !strings.Contains(got.Detail, c.detail) || c.detail == "" && got.Detail != "" || len(got.Detail) > wire.ResultDetailBytesMax {
			t.Errorf("%s: detail %q", c.name, got.Detail)
		}
		if c.name == "panic with nothing" && strings.HasPrefix(got.Message, "panic: panic called with nil argument") {
			got.Message = c.want.Message // the rest is the runtime's
		}
		if got.Outcome != c.want.Outcome || !bytes.Equal(got.Output, c.want.Output) || got.Code != c.want.Code || got.Message != c.want.Message || got.RetryAfterUs != c.want.RetryAfterUs || got.GiveUp != c.want.GiveUp {
			t.Errorf("%s: got %.300v, want %.300v", c.name, got, c.want)
		}
	}
	bad := r.task("plain", do, 1)
	bad.Input = []byte(`{"n":1.5}`)
	r.publish(bad)
	if got := r.one(); got.Outcome != failed || got.Code != "INPUT_NOT_READABLE" || got.GiveUp {
		t.Errorf("%v", got)
	}
	set(func(ctx context.Context) (json.RawMessage, error) {
		<-ctx.Done()
		return nil, fmt.Errorf("asking: %w", ctx.Err())
	}, nil)
	slow := r.task("a", do, 999)
	slow.TimeoutUs = 50_000
	r.publish(slow)
	if got := r.one(); got.Outcome != failed || got.Code != "TIMEOUT" {
		t.Errorf("%v", got)
	}
	s := w.Stats()
	if s.Unstorable != 3 || s.Panicked != 7 || s.Rejected != 4 || s.Running != 0 {
		t.Errorf("%+v", s)
	}
	if log := r.log.String(); strings.Contains(log, "none left") || strings.Contains(log, "oh") && strings.Contains(log, "panic: oh") {
		t.Errorf("texts of handlers' errors are logged:\n%s", log)
	}
	r.until("acknowledgement of all", func() bool { return r.stored() == 0 })
}

func TestPackIsAnsweredTogether(t *testing.T) {
	r := newRig(t, 0)
	release := make(chan struct{})
	r.start(r.config(), func(w *worker.Worker) {
		worker.Activity(w, plain, func(ctx context.Context, in numIn) (numOut, error) {
			if in.N == 15 {
				<-release
			}
			return numOut{in.N}, nil
		})
	})
	var tasks []*workerv1.Task
	for i := range 16 {
		tasks = append(tasks, r.task("plain", do, i))
	}
	r.publish(tasks...)
	count := 0
	for count < 15 { // all but one, in few requests
		count += len(r.pack().Results)
	}
	if got := r.unacked("shop=do=plain"); got != 1 {
		t.Errorf("%d messages unacknowledged, want 1 until the last task is done", got)
	}
	close(release)
	if p := r.pack(); len(p.Results) != 1 || string(p.Results[0].Output) != `{"m":15}` {
		t.Errorf("%v", p)
	}
	r.until("acknowledgement", func() bool { return r.unacked("shop=do=plain") == 0 })
}

func TestAcknowledgedOnlyAfterTheAnswer(t *testing.T) {
	r := newRig(t, 0)
	answer := make(chan func(*workerv1.ResultReply), 1)
	r.judged(func(_ int, p *workerv1.ResultPack, reply func(*workerv1.ResultReply)) { answer <- reply })
	w := r.start(r.config(), func(w *worker.Worker) {
		worker.Activity(w, plain, func(context.Context, numIn) (numOut, error) { return numOut{}, nil })
	})
	r.publish(r.task("plain", do, 1))
	reply := <-answer
	if got := r.unacked("shop=do=plain"); got != 1 || w.Stats().Held != 1 {
		t.Errorf("acknowledged before the answer: %d, %+v", got, w.Stats())
	}
	reply(verdicts(accepted, 1))
	r.until("acknowledgement", func() bool { return r.unacked("shop=do=plain") == 0 && r.stored() == 0 })
	if s := w.Stats(); s.Accepted != 1 || s.Held != 0 {
		t.Errorf("%+v", s)
	}
}

func TestVerdicts(t *testing.T) {
	r := newRig(t, 0)
	var calls atomic.Int64
	w := r.start(r.config(), func(w *worker.Worker) {
		worker.Activity(w, plain, func(context.Context, numIn) (numOut, error) { calls.Add(1); return numOut{}, nil })
	})

	// Told to come again: the same result comes again, the handler isn't called again.
	var asked atomic.Int64
	r.judged(func(_ int, p *workerv1.ResultPack, reply func(*workerv1.ResultReply)) {
		if asked.Add(1) < 4 {
			reply(verdicts(unavailable, len(p.Results)))
			return
		}
		reply(verdicts(accepted, len(p.Results)))
	})
	r.publish(r.task("plain", do, 1))
	first := r.one()
	for range 3 {
		if again := r.one(); !bytes.Equal(again.Token, first.Token) {
			t.Error("another result")
		}
	}
	if calls.Load() != 1 {
		t.Errorf("%d calls", calls.Load())
	}

	// Another shard's results go to the first one's subject, and only if that says so to their own.
	shards := make(chan int, 10)
	r.judged(func(shard int, p *workerv1.ResultPack, reply func(*workerv1.ResultReply)) {
		shards <- shard
		out := verdicts(accepted, len(p.Results))
		for i, res := range p.Results {
			if s, _ := wire.TokenShard(res.Token); s != shard {
				out.Verdicts[i] = notOwner
			}
		}
		reply(out)
	})
	tasks := []*workerv1.Task{r.task("plain", do, 10), r.task("plain", do, 11), r.task("plain", do, 12)}
	for _, task := range tasks[1:] {
		r.sign(task, otherShard)
	}
	r.publish(tasks...)
	got := map[string]bool{}
	for len(got) < 3 {
		shard := <-shards
		for _, res := range r.pack().Results {
			if s, _ := wire.TokenShard(res.Token); s == shard {
				got[string(res.Token)] = true
			}
		}
	}
	r.until("acknowledgement", func() bool { return r.stored() == 0 })

	// Final words, whatever they are, end it.
	for _, v := range []workerv1.Verdict{workerv1.Verdict_VERDICT_DUPLICATE, workerv1.Verdict_VERDICT_STALE, workerv1.Verdict_VERDICT_UNKNOWN_SAGA, refused} {
		r.judged(func(_ int, p *workerv1.ResultPack, reply func(*workerv1.ResultReply)) {
			reply(verdicts(v, len(p.Results)))
		})
		r.publish(r.task("plain", do, 100+int(v)))
		r.one()
		r.until("acknowledgement", func() bool { return r.stored() == 0 })
	}

	// A pack that is refused as a whole is taken apart: one bad result doesn't take the others with it.
	r.judged(func(_ int, p *workerv1.ResultPack, reply func(*workerv1.ResultReply)) {
		if len(p.Results) > 1 {
			reply(verdicts(refused, 1))
			return
		}
		reply(verdicts(accepted, 1))
	})
	before := w.Stats().Accepted
	r.publish(r.task("plain", do, 200), r.task("plain", do, 201), r.task("plain", do, 202))
	r.until("acceptance one by one", func() bool { return w.Stats().Accepted == before+3 })
	r.until("acknowledgement", func() bool { return r.stored() == 0 })
	s := w.Stats()
	if s.Duplicate != 1 || s.Stale != 1 || s.UnknownSaga != 1 || s.Refused != 1 || s.Unsent != 0 || s.Held != 0 {
		t.Errorf("%+v", s)
	}
}

func TestResultWaitsForItsShardUntilTheDeadline(t *testing.T) {
	r := newRig(t, 0)
	w := r.start(r.config(), func(w *worker.Worker) {
		worker.Activity(w, plain, func(context.Context, numIn) (numOut, error) { return numOut{}, nil })
	})
	nobody, late := r.task("plain", do, 1), r.task("plain", do, 2)
	r.sign(nobody, 99) // nobody serves it for now
	r.sign(late, 98)   // nobody ever will
	late.TimeoutUs = 300_000
	r.publish(nobody)
	r.publish(late)
	r.until("tries", func() bool { return w.Stats().Resent >= 2 })
	if _, err := r.bus.Serve(99, func(p *workerv1.ResultPack, reply func(*workerv1.ResultReply)) {
		reply(verdicts(accepted, len(p.Results)))
		r.packs <- p
	}); err != nil {
		t.Fatal(err)
	}
	if got := r.one(); !bytes.Equal(got.Token, nobody.Token) {
		t.Error("another result")
	}
	r.until("letting go", func() bool { return w.Stats().Unsent == 1 && r.stored() == 0 })
}

func TestExpiredTasksArentRun(t *testing.T) {
	r := newRig(t, 0)
	var calls atomic.Int64
	w := r.start(r.config(), func(w *worker.Worker) {
		worker.Activity(w, plain, func(context.Context, numIn) (numOut, error) { calls.Add(1); return numOut{}, nil })
	})
	old := r.task("plain", do, 1)
	old.DeadlineUs = time.Now().Add(-time.Second).UnixMicro()
	r.publish(old, r.task("plain", do, 2))
	if got := r.one(); string(got.Output) != `{"m":0}` {
		t.Error(got)
	}
	r.until("acknowledgement", func() bool { return r.stored() == 0 })
	if calls.Load() != 1 || w.Stats().Expired != 1 {
		t.Errorf("%d calls, %+v", calls.Load(), w.Stats())
	}
}

func TestLongTaskKeepsItsMessage(t *testing.T) {
	const ackWait = time.Second
	r := newRig(t, ackWait)
	var calls atomic.Int64
	cfg := r.config()
	cfg.AckWait = ackWait
	w := r.start(cfg, func(w *worker.Worker) {
		worker.Activity(w, plain, func(ctx context.Context, in numIn) (numOut, error) {
			calls.Add(1)
			select {
			case <-time.After(9 * ackWait / 4): // is what is tested
			case <-ctx.Done():
			}
			return numOut{}, nil
		})
	})
	r.publish(r.task("plain", do, 1))
	r.one()
	r.until("acknowledgement", func() bool { return r.stored() == 0 })
	if s := w.Stats(); calls.Load() != 1 || s.Redelivered != 0 {
		t.Errorf("%d calls, %+v", calls.Load(), s)
	}
}

func TestSecondDeliveryJoinsTheFirst(t *testing.T) {
	r := newRig(t, 0)
	var calls atomic.Int64
	begun, release := make(chan struct{}, 10), make(chan struct{})
	w := r.start(r.config(), func(w *worker.Worker) {
		worker.Activity(w, plain, func(_ context.Context, in numIn) (numOut, error) {
			n := calls.Add(1)
			begun <- struct{}{}
			<-release
			return numOut{n}, nil
		})
	})
	first, second, retry := r.task("plain", do, 1), r.task("plain", do, 1), r.task("plain", do, 1)
	second.Dispatch = 2
	r.publish(first)
	<-begun
	r.publish(second)
	r.until("the second delivery", func() bool { return w.Stats().Joined == 1 })
	// A new attempt isn't a second delivery: the engine asked for it.
	retry.Attempt = 2
	r.sign(retry, ownShard)
	r.publish(retry)
	<-begun
	close(release)
	got := map[string]int{}
	for range 3 {
		res := r.one()
		got[fmt.Sprintf("%x %s", res.Token[len(res.Token)-4:], res.Output)]++
	}
	want := map[string]int{fmt.Sprintf("%x %s", first.Token[len(first.Token)-4:], `{"m":1}`): 2, fmt.Sprintf("%x %s", retry.Token[len(retry.Token)-4:], `{"m":2}`): 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	r.until("acknowledgement", func() bool { return r.stored() == 0 })
	if calls.Load() != 2 {
		t.Errorf("%d calls", calls.Load())
	}
}

func TestStrangeMessagesGoBack(t *testing.T) {
	r := newRig(t, 0)
	w := r.start(r.config(), func(w *worker.Worker) {
		worker.Activity(w, plain, func(context.Context, numIn) (numOut, error) { return numOut{}, nil })
	})
	newer := r.task("plain", do, 1)
	newer.Protocol = 2
	r.publish(newer)
	if _, err := r.js.Publish(r.ctx(), "sagad.task.shop.do.plain", []byte("junk")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.js.Publish(r.ctx(), "sagad.task.shop.do.plain", nil); err != nil {
		t.Fatal(err)
	}
	r.publish(r.task("plain", do, 2))
	r.one()
	r.until("strange ones", func() bool { return w.Stats().Strange == 3 })
	r.until("others acknowledged", func() bool { return r.stored() == 3 })
	if s := w.Stats(); s.Tasks != 1 {
		t.Errorf("%+v", s)
	}
}

func TestConcurrencyIsALimit(t *testing.T) {
	r := newRig(t, 0)
	var running, most, calls atomic.Int64
	gate := make(chan struct{})
	cfg := r.config()
	cfg.Concurrency = 3
	w := r.start(cfg, func(w *worker.Worker) {
		worker.Activity(w, plain, func(context.Context, numIn) (numOut, error) {
			calls.Add(1)
			n := running.Add(1)
			for {
				m := most.Load()
				if n <= m || most.CompareAndSwap(m, n) {
					break
				}
			}
			<-gate
			running.Add(-1)
			return numOut{}, nil
		})
	})
	for i := range 200 {
		r.publish(r.task("plain", do, i))
	}
	r.until("three at once", func() bool { return running.Load() == 3 })
	// It doesn't hoard: what it can't run waits in the stream, for others.
	r.until("calm", func() bool { return r.bus.Stats().BacklogTasks == 0 })
	if s := w.Stats(); s.Held > 10 {
		t.Errorf("holds %d messages", s.Held)
	}
	close(gate)
	for range 200 {
		r.one()
	}
	if most.Load() != 3 || calls.Load() != 200 {
		t.Errorf("%d at once, %d calls", most.Load(), calls.Load())
	}
}

func TestStopFinishesWhatRunsAndHandsBackTheRest(t *testing.T) {
	r := newRig(t, 0)
	begun, release := make(chan struct{}, 10), make(chan struct{})
	cfg := r.config()
	cfg.Concurrency = 1
	blocking := func(w *worker.Worker) {
		worker.Activity(w, plain, func(_ context.Context, in numIn) (numOut, error) {
			begun <- struct{}{}
			<-release
			return numOut{1}, nil
		})
	}
	w, err := worker.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	blocking(w)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.Run(ctx) }()
	r.publish(r.task("plain", do, 1), r.task("plain", do, 2)) // a pack: one runs, one waits
	<-begun
	for i := 3; i < 10; i++ {
		r.publish(r.task("plain", do, i))
	}
	r.until("calm", func() bool { return r.bus.Stats().BacklogTasks == 0 })
	cancel()
	close(release)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	// The begun pack was finished, both tasks of it.
	done := map[string]bool{}
	for len(done) < 2 {
		for _, res := range r.pack().Results {
			done[string(res.Token)] = true
		}
	}
	if s := w.Stats(); s.Accepted != 2 || s.Held != 0 {
		t.Errorf("%+v", s)
	}
	// All else is there for another worker at once.
	cfg.Name = "w2"
	r.start(cfg, func(w *worker.Worker) {
		worker.Activity(w, plain, func(context.Context, numIn) (numOut, error) { return numOut{2}, nil })
	})
	for range 7 {
		if got := r.one(); got.Worker != "w2" {
			t.Errorf("%v", got)
		}
	}
	if err := w.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestStopEndsContextsAfterTheGrace(t *testing.T) {
	r := newRig(t, 0)
	begun := make(chan struct{}, 10)
	cfg := r.config()
	cfg.Grace = 50 * time.Millisecond
	deaf := make(chan struct{})
	w := r.start(cfg, func(w *worker.Worker) {
		worker.Activity(w, plain, func(ctx context.Context, in numIn) (numOut, error) {
			begun <- struct{}{}
			switch in.N {
			case 1: // heeds its context
				<-ctx.Done()
				return numOut{}, ctx.Err()
			case 2: // finishes when told to
				<-ctx.Done()
				return numOut{22}, nil
			default: // is deaf
				<-deaf
				return numOut{}, nil
			}
		})
	})
	defer close(deaf)
	for i := 1; i <= 3; i++ {
		r.publish(r.task("plain", do, i))
		<-begun
	}
	err := w.Stop(context.Background())
	if err == nil || !strings.Contains(err.Error(), "1 handlers didn't end") {
		t.Errorf("stop: %v", err)
	}
	if got := r.one(); string(got.Output) != `{"m":22}` {
		t.Errorf("%v", got)
	}
	r.start(r.config(), func(w *worker.Worker) {
		worker.Activity(w, plain, func(_ context.Context, in numIn) (numOut, error) { return numOut{100 + in.N}, nil })
	})
	got := map[string]bool{}
	for range 2 {
		got[string(r.one().Output)] = true
	}
	if !got[`{"m":101}`] || !got[`{"m":103}`] {
		t.Errorf("handed back: %v", got)
	}
}

func TestSurvivesTheServer(t *testing.T) {
	dir := t.TempDir()
	server, err := natsbus.Embedded(dir, "127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	url := server.ClientURL()
	r := &rig{t: t, packs: make(chan *workerv1.ResultPack, 100)}
	if r.bus, err = natsbus.Connect(t.Context(), natsbus.Config{URL: url}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.bus.Close)
	r.ring, _ = wire.NewKeyring(1, map[int32][]byte{1: make([]byte, 32)})
	if _, err := r.bus.Serve(ownShard, func(p *workerv1.ResultPack, reply func(*workerv1.ResultReply)) {
		reply(verdicts(accepted, len(p.Results)))
		r.packs <- p
	}); err != nil {
		t.Fatal(err)
	}
	cfg := worker.Config{URL: url, Namespace: "shop", Logger: slog.New(slog.NewTextHandler(&r.log, nil))}
	w := r.start(cfg, func(w *worker.Worker) {
		worker.Activity(w, plain, func(_ context.Context, in numIn) (numOut, error) { return numOut(in2out(in)), nil })
	})
	r.publish(r.task("plain", do, 1))
	r.one()
	for round := range 2 {
		server.Close()
		r.publish(r.task("plain", do, 10+round))
		store := dir
		if round == 1 { // and comes back without anything
			store = t.TempDir()
		}
		if server, err = natsbus.Embedded(store, strings.TrimPrefix(url, "nats://"), nil); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(server.Close)
		r.publish(r.task("plain", do, 20+round))
		// What was published during the outage comes too; lost PubAcks may make it come twice.
		want := map[string]bool{fmt.Sprintf(`{"m":%d}`, 10+round): true, fmt.Sprintf(`{"m":%d}`, 20+round): true}
		for len(want) > 0 {
			for _, res := range r.pack().Results {
				delete(want, string(res.Output))
			}
		}
	}
	if s := w.Stats(); s.Failed != 0 {
		t.Errorf("%+v", s)
	}
}

func in2out(in numIn) numOut { return numOut{M: in.N} }

func TestDeletedConsumerIsAskedFor(t *testing.T) {
	r := newRig(t, 0)
	r.start(r.config(), func(w *worker.Worker) {
		worker.Activity(w, plain, func(_ context.Context, in numIn) (numOut, error) { return in2out(in), nil })
	})
	r.publish(r.task("plain", do, 1))
	r.one()
	r.until("acknowledgement", func() bool { return r.stored() == 0 })
	if err := r.js.DeleteConsumer(r.ctx(), wire.Stream, "shop=do=plain"); err != nil {
		t.Fatal(err)
	}
	r.publish(r.task("plain", do, 2))
	if got := r.one(); string(got.Output) != `{"m":2}` {
		t.Error(got)
	}
}

func TestTraceGoesOn(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(provider)
	t.Cleanup(func() { otel.SetTracerProvider(before) })
	r := newRig(t, 0)
	inside := make(chan trace.SpanContext, 1)
	r.start(r.config(), func(w *worker.Worker) {
		worker.Activity(w, plain, func(ctx context.Context, in numIn) (numOut, error) {
			inside <- trace.SpanContextFromContext(ctx)
			return numOut{}, saga.Reject("NO", "secret")
		})
	})
	task := r.task("plain", do, 1)
	task.Traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	r.publish(task)
	r.one()
	if sc := <-inside; sc.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" || sc.SpanID().String() == "b7ad6b7169203331" {
		t.Errorf("the handler's span: %v", sc)
	}
	got := spans.GetSpans()
	if len(got) != 1 || got[0].Name != "plain" || got[0].Parent.SpanID().String() != "b7ad6b7169203331" || got[0].Status.Description != "NO" {
		t.Errorf("%+v", got)
	}
}

func TestMisuseIsRefused(t *testing.T) {
	for name, c := range map[string]worker.Config{
		"nothing": {}, "both": {URL: "x", Conn: &nats.Conn{}}, "namespace": {URL: "x", Namespace: "a.b"}, "concurrency": {URL: "x", Concurrency: -1},
		"grace": {URL: "x", Grace: -1}, "inbox": {URL: "x", InboxPrefix: "mine"},
		"sagad's address": {URL: "http://127.0.0.1:4222"}, "the second": {URL: "nats://127.0.0.1:4222, https://x"},
	} {
		if _, err := worker.New(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	handler := func(context.Context, numIn) (numOut, error) { return numOut{}, nil }
	for name, c := range map[string]struct {
		register func(w *worker.Worker)
		want     string
	}{
		"none":  {func(*worker.Worker) {}, "no handler"},
		"twice": {func(w *worker.Worker) { worker.Activity(w, plain, handler); worker.Activity(w, plain, handler) }, "twice"},
		"name":  {func(w *worker.Worker) { worker.Activity(w, saga.Activity[numIn, numOut]{Name: "A b"}, handler) }, "write words of"},
		"nil":   {func(w *worker.Worker) { worker.Activity(w, plain, nil) }, "nil"},
		"undo":  {func(w *worker.Worker) { worker.Compensatable(w, reserve, handler, nil) }, "nil"},
	} {
		w, err := worker.New(worker.Config{URL: "nats://127.0.0.1:1"})
		if err != nil {
			t.Fatal(err)
		}
		c.register(w)
		if err := w.Start(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if err := w.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestClosedConnectionEndsTheRun(t *testing.T) {
	r := newRig(t, 0)
	nc, err := nats.Connect(r.server.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	w, err := worker.New(worker.Config{Conn: nc, Namespace: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	worker.Activity(w, plain, func(context.Context, numIn) (numOut, error) { return numOut{}, nil })
	ended := make(chan error)
	go func() { ended <- w.Run(t.Context()) }()
	r.publish(r.task("plain", do, 1))
	r.one()
	nc.Close()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "closed") {
		t.Error(err)
	}
}

// told is a log that says when a message was written, and how often.
type told struct {
	slog.Handler
	message string
	seen    chan struct{}
}

func (h told) Handle(_ context.Context, r slog.Record) error {
	if r.Message == h.message {
		h.seen <- struct{}{}
	}
	return nil
}

// A worker without a logger of its own says by the default one that NATS can't be reached, once.
func TestUnreachableServerIsTold(t *testing.T) {
	before := slog.Default()
	h := told{slog.NewTextHandler(io.Discard, nil), "NATS can't be reached; trying again", make(chan struct{}, 100)}
	slog.SetDefault(slog.New(h))
	t.Cleanup(func() { slog.SetDefault(before) })
	w, err := worker.New(worker.Config{URL: "nats://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	worker.Activity(w, saga.Activity[numIn, numOut]{Name: "a.b"}, func(context.Context, numIn) (numOut, error) { return numOut{}, nil })
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-h.seen:
	case <-time.After(10 * time.Second):
		t.Error("nothing was said")
	}
	if err := w.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if len(h.seen) > 0 {
		t.Errorf("it was said %d times more", len(h.seen))
	}
}
