package worker_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

const (
	claim      = workerv1.Outcome_OUTCOME_CLAIM
	checkpoint = workerv1.Outcome_OUTCOME_CHECKPOINT
	progress   = workerv1.Outcome_OUTCOME_PROGRESS
	handedBack = workerv1.Outcome_OUTCOME_HANDED_BACK

	duplicate = workerv1.Verdict_VERDICT_DUPLICATE
	stale     = workerv1.Verdict_VERDICT_STALE
	unknown   = workerv1.Verdict_VERDICT_UNKNOWN_SAGA
	stop      = workerv1.Verdict_VERDICT_STOP
	busy      = workerv1.Verdict_VERDICT_BUSY
)

// answering judges results one by one. No verdict: the request isn't answered.
func (r *rig) answering(judge func(res *workerv1.Result) workerv1.Verdict) {
	r.judged(func(_ int, pack *workerv1.ResultPack, reply func(*workerv1.ResultReply)) {
		out := &workerv1.ResultReply{}
		for _, res := range pack.Results {
			v := judge(res)
			if v == 0 {
				return
			}
			out.Verdicts = append(out.Verdicts, v)
		}
		reply(out)
	})
}

// final waits for the next result that ends an attempt.
func (r *rig) final() *workerv1.Result {
	r.t.Helper()
	for {
		for len(r.left) == 0 {
			r.left = r.pack().Results
		}
		res := r.left[0]
		r.left = r.left[1:]
		if res.Outcome < claim || res.Outcome == handedBack {
			return res
		}
	}
}

func TestCheckpointIsKeptBeforeTheEffect(t *testing.T) {
	r := newRig(t, 0)
	type lift struct {
		Hook string `json:"hook"`
	}
	var effects atomic.Int64
	ends := make(chan error, 10)
	undone := make(chan saga.Undo[numIn, numOut], 1)
	w := r.start(r.config(), func(w *worker.Worker) {
		worker.Compensatable(w, reserve, func(ctx context.Context, in numIn) (numOut, error) {
			if err := saga.Checkpoint(ctx, lift{fmt.Sprint("h", in.N)}); err != nil {
				<-ctx.Done()
				ends <- context.Cause(ctx)
				return numOut{}, err
			}
			effects.Add(1)
			return numOut{in.N}, nil
		}, func(ctx context.Context, u saga.Undo[numIn, numOut]) error {
			if err := saga.Checkpoint(ctx, 1); err == nil {
				t.Error("a compensation has a checkpoint")
			}
			undone <- u
			return nil
		})
	})

	// No answer, no effect. The answer is asked for again.
	var verdict atomic.Int32
	asked := make(chan *workerv1.Result, 10)
	r.answering(func(res *workerv1.Result) workerv1.Verdict {
		if res.Outcome != checkpoint {
			return accepted
		}
		asked <- res
		return workerv1.Verdict(verdict.Load())
	})
	verdict.Store(int32(unavailable))
	task := r.task("inventory.reserve", do, 1)
	r.publish(task)
	for range 2 {
		if res := <-asked; string(res.Output) != `{"hook":"h1"}` || !cmp.Equal(res.Token, task.Token) {
			t.Errorf("%v", res)
		}
		if effects.Load() != 0 {
			t.Error("the effect came before the checkpoint was kept")
		}
	}
	verdict.Store(int32(accepted))
	if res := r.final(); res.Outcome != succeeded || effects.Load() != 1 {
		t.Errorf("%v, %d effects", res, effects.Load())
	}
	verdict.Store(int32(duplicate))
	r.publish(r.task("inventory.reserve", do, 2))
	if res := r.final(); res.Outcome != succeeded || effects.Load() != 2 {
		t.Errorf("%v, %d effects", res, effects.Load())
	}
	for i, v := range []workerv1.Verdict{stop, stale, unknown, refused} {
		verdict.Store(int32(v))
		r.publish(r.task("inventory.reserve", do, 10+i))
		if res := r.final(); res.Outcome != failed || res.Code != "STOPPED" || effects.Load() != 2 {
			t.Errorf("%v: %v, %d effects", v, res, effects.Load())
		}
		if cause := <-ends; !errors.Is(cause, saga.ErrStopped) {
			t.Errorf("%v: the context's cause is %v", v, cause)
		}
	}

	back := r.task("inventory.reserve", undo, 1)
	back.Undo = &workerv1.Undo{Checkpoint: []byte(`{"hook":"h1"}`)}
	r.publish(back)
	var got lift
	if said, err := (<-undone).Checkpoint.Decode(&got); !said || err != nil || got.Hook != "h1" {
		t.Errorf("%v %v %v", said, err, got)
	}
	r.publish(r.task("inventory.reserve", undo, 2))
	if said, err := (<-undone).Checkpoint.Decode(&got); said || err != nil {
		t.Errorf("nothing was said, and it is %v, %v", said, err)
	}
	r.until("acknowledgement of all", func() bool { return r.stored() == 0 && w.Stats().Held == 0 })
}

func TestStatementsHaveLimits(t *testing.T) {
	r := newRig(t, 0)
	r.start(r.config(), func(w *worker.Worker) {
		worker.Activity(w, plain, func(ctx context.Context, in numIn) (numOut, error) {
			for name, err := range map[string]error{
				"large checkpoint": saga.Checkpoint(ctx, string(make([]byte, saga.StatementBytesMax))),
				"large progress":   saga.Progress(ctx, string(make([]byte, saga.StatementBytesMax))),
				"not JSON":         saga.Checkpoint(ctx, make(chan int)),
			} {
				if err == nil {
					t.Errorf("%s is accepted", name)
				}
			}
			return numOut{}, ctx.Err()
		})
	})
	r.publish(r.task("plain", do, 1))
	if res := r.final(); res.Outcome != succeeded {
		t.Errorf("%v", res)
	}
	if err := saga.Checkpoint(context.Background(), 1); err == nil {
		t.Error("a checkpoint outside of handlers")
	}
	if err := saga.Progress(context.Background(), 1); err == nil {
		t.Error("progress outside of handlers")
	}
	if said, err := saga.LastProgress(context.Background(), new(int)); said || err != nil {
		t.Error("progress outside of handlers")
	}
}

func TestStopMessageEndsHandlers(t *testing.T) {
	r := newRig(t, 0)
	begun := make(chan int64, 10)
	finish := make(chan struct{})
	cfg := r.config()
	cfg.Concurrency = 2
	w := r.start(cfg, func(w *worker.Worker) {
		worker.Activity(w, plain, func(ctx context.Context, in numIn) (numOut, error) {
			begun <- in.N
			select {
			case <-ctx.Done():
				if !errors.Is(context.Cause(ctx), saga.ErrStopped) {
					t.Errorf("cause %v", context.Cause(ctx))
				}
				return numOut{}, ctx.Err()
			case <-finish:
				return numOut{in.N}, nil
			}
		})
	})
	stopped, other, waiting := r.task("plain", do, 1), r.task("plain", do, 2), r.task("plain", do, 3)
	other.Attempt = 2
	r.sign(other, ownShard)
	r.publish(other)
	<-begun
	r.publish(stopped, waiting) // a pack, for which there is one hand
	<-begun
	r.until("the third task", func() bool { return w.Stats().Waiting == 1 })
	r.bus.Stop("shop", "plain", []*workerv1.Stop{
		{IdempotencyKey: stopped.IdempotencyKey, Attempt: 5}, {IdempotencyKey: waiting.IdempotencyKey, Attempt: 1},
		{IdempotencyKey: other.IdempotencyKey, Attempt: 1}, // it runs its second
	})
	got := map[string]string{}
	for range 2 {
		res := r.final()
		got[string(res.Token)] = res.Outcome.String() + " " + res.Code
	}
	want := map[string]string{string(stopped.Token): "OUTCOME_FAILED STOPPED", string(waiting.Token): "OUTCOME_FAILED STOPPED"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	close(finish)
	if res := r.final(); res.Outcome != succeeded || string(res.Output) != `{"m":2}` {
		t.Errorf("%v", res)
	}
	select {
	case n := <-begun:
		t.Errorf("%d was begun after it was stopped", n)
	default:
	}
	if s := w.Stats(); s.Stopped != 2 {
		t.Errorf("%+v", s)
	}
	r.until("acknowledgement of all", func() bool { return r.stored() == 0 })
}

// The worker says that a handler runs, without its doing, until it is told that nobody wants it.
func TestHeartbeats(t *testing.T) {
	r := newRig(t, 0)
	w := r.start(r.config(), func(w *worker.Worker) {
		worker.Activity(w, plain, func(ctx context.Context, in numIn) (numOut, error) {
			<-ctx.Done()
			return numOut{}, context.Cause(ctx)
		})
	})
	for i, v := range []workerv1.Verdict{stop, stale, unknown, refused} {
		var beats atomic.Int64
		r.answering(func(res *workerv1.Result) workerv1.Verdict {
			if res.Outcome != progress {
				return accepted
			}
			if res.Output != nil {
				t.Errorf("a heartbeat says %s", res.Output)
			}
			if beats.Add(1) < 4 {
				return accepted
			}
			return v
		})
		task := r.task("plain", do, i)
		task.HeartbeatUs = 90_000
		began := time.Now()
		r.publish(task)
		if res := r.final(); res.Outcome != failed || res.Code != "STOPPED" || beats.Load() != 4 {
			t.Errorf("%v: %v after %d heartbeats", v, res, beats.Load())
		}
		if took := time.Since(began); took < 4*30*time.Millisecond {
			t.Errorf("4 heartbeats in %v", took)
		}
	}
	// Without a heartbeat in the task nothing is said.
	before := w.Stats().Reports
	task := r.task("plain", do, 9)
	task.TimeoutUs = 200_000
	r.publish(task)
	if res := r.final(); res.Code != "TIMEOUT" {
		t.Errorf("%v", res)
	}
	if w.Stats().Reports != before {
		t.Error("reports of a task that wants none")
	}
}

func TestClaims(t *testing.T) {
	r := newRig(t, 0)
	var runs atomic.Int64
	w := r.start(r.config(), func(w *worker.Worker) {
		worker.Activity(w, plain, func(context.Context, numIn) (numOut, error) {
			runs.Add(1)
			return numOut{}, nil
		})
	})
	claims := make(chan string, 100)
	var verdict atomic.Int32
	r.answering(func(res *workerv1.Result) workerv1.Verdict {
		if res.Outcome != claim {
			return accepted
		}
		claims <- string(res.Output)
		return workerv1.Verdict(verdict.Load())
	})
	send := func(n int) {
		task := r.task("plain", do, n)
		task.Claimed, task.HeartbeatUs = true, 10_000_000
		r.publish(task)
	}
	seen := map[string]bool{}
	for i, v := range []workerv1.Verdict{accepted, duplicate} {
		verdict.Store(int32(v))
		send(i)
		if res := r.final(); res.Outcome != succeeded {
			t.Errorf("%v: %v", v, res)
		}
		c := <-claims
		if len(c) < 20 || seen[c] {
			t.Errorf("claim %s", c)
		}
		seen[c] = true
	}
	for i, v := range []workerv1.Verdict{busy, stale, stop, unknown, refused} {
		verdict.Store(int32(v))
		send(10 + i)
		<-claims
		r.until("acknowledgement", func() bool { return r.stored() == 0 && w.Stats().Held == 0 })
	}
	if s := w.Stats(); runs.Load() != 2 || s.Busy != 1 || s.Accepted != 2 {
		t.Errorf("%d runs, %+v", runs.Load(), s)
	}
	// The same claim is sent until it is answered.
	verdict.Store(int32(unavailable))
	send(20)
	first := <-claims
	if second := <-claims; second != first {
		t.Errorf("claims %s and %s of one delivery", first, second)
	}
	verdict.Store(int32(accepted))
	if res := r.final(); res.Outcome != succeeded {
		t.Errorf("%v", res)
	}
}

// A claimed attempt stops by itself before the engine, which doesn't hear of it any more, lets another one start.
func TestClaimedAttemptStopsItself(t *testing.T) {
	const heartbeat = 300 * time.Millisecond
	r := newRig(t, 0)
	stopped := make(chan time.Time, 2)
	w := r.start(r.config(), func(w *worker.Worker) {
		worker.Activity(w, plain, func(ctx context.Context, in numIn) (numOut, error) {
			if in.N == 2 { // isn't claimed
				select {
				case <-ctx.Done():
					return numOut{}, context.Cause(ctx)
				case <-time.After(2 * heartbeat):
					return numOut{}, nil
				}
			}
			<-ctx.Done()
			stopped <- time.Now()
			return numOut{}, context.Cause(ctx)
		})
	})
	var mu sync.Mutex
	var last time.Time
	heard := 0
	r.answering(func(res *workerv1.Result) workerv1.Verdict {
		mu.Lock()
		defer mu.Unlock()
		switch res.Outcome {
		case claim, progress:
			if heard++; heard > 3 {
				return 0
			}
			last = time.Now()
		}
		return accepted
	})
	task := r.task("plain", do, 1)
	task.HeartbeatUs, task.Claimed = heartbeat.Microseconds(), true
	r.publish(task)
	at := <-stopped
	mu.Lock()
	if silence := at.Sub(last); silence > heartbeat || silence < heartbeat/2 {
		t.Errorf("it stopped after %v of silence, its heartbeat is %v", silence, heartbeat)
	}
	mu.Unlock()
	if res := r.final(); res.Outcome != failed || res.Code != "STOPPED" || w.Stats().Unheard != 1 {
		t.Errorf("%v %+v", res, w.Stats())
	}
	second := r.task("plain", do, 2)
	second.HeartbeatUs = heartbeat.Microseconds()
	r.publish(second)
	if res := r.final(); res.Outcome != succeeded {
		t.Errorf("an attempt that isn't claimed: %v", res)
	}
}

func TestProgress(t *testing.T) {
	r := newRig(t, 0)
	type at struct {
		Line int `json:"line"`
	}
	r.start(r.config(), func(w *worker.Worker) {
		worker.Activity(w, plain, func(ctx context.Context, in numIn) (numOut, error) {
			from := at{Line: -1}
			if _, err := saga.LastProgress(ctx, &from); err != nil {
				return numOut{}, err
			}
			for i := 1; i <= 1000; i++ {
				if err := saga.Progress(ctx, at{i}); err != nil {
					return numOut{}, err
				}
			}
			if in.N == 1 {
				return numOut{}, fmt.Errorf("began at %d", from.Line)
			}
			return numOut{int64(from.Line)}, nil
		})
	})
	var mu sync.Mutex
	var said []string
	r.answering(func(res *workerv1.Result) workerv1.Verdict {
		mu.Lock()
		defer mu.Unlock()
		if res.Outcome == progress {
			said = append(said, string(res.Output))
		} else {
			said = append(said, res.Message)
		}
		return accepted
	})
	r.publish(r.task("plain", do, 1))
	r.final()
	mu.Lock()
	// The first at once, or none while the handler was so fast; the last when it failed, before its result.
	if n := len(said); n < 2 || n > 3 || said[n-2] != `{"line":1000}` || said[n-1] != "began at -1" {
		t.Errorf("%v", said)
	}
	mu.Unlock()
	again := r.task("plain", do, 2)
	again.Progress = []byte(`{"line":1000}`)
	r.publish(again)
	if res := r.final(); string(res.Output) != `{"m":1000}` {
		t.Errorf("%v", res)
	}
}

// An engine that is older than progress costs nothing but the progress.
func TestProgressThatNobodyTakes(t *testing.T) {
	r := newRig(t, 0)
	told := make(chan struct{}, 10)
	r.start(r.config(), func(w *worker.Worker) {
		worker.Activity(w, plain, func(ctx context.Context, in numIn) (numOut, error) {
			if err := saga.Progress(ctx, 1); err != nil {
				return numOut{}, err
			}
			<-told
			return numOut{}, saga.Progress(ctx, 2)
		})
	})
	r.answering(func(res *workerv1.Result) workerv1.Verdict {
		if res.Outcome == progress {
			told <- struct{}{}
			return refused
		}
		return accepted
	})
	r.publish(r.task("plain", do, 1))
	if res := r.final(); res.Outcome != succeeded {
		t.Errorf("%v", res)
	}
}

func TestProbes(t *testing.T) {
	const probe = workerv1.Direction_DIRECTION_PROBE
	charge := saga.Activity[numIn, numOut]{Name: "card.charge", Probe: true}
	r := newRig(t, 0)
	w := r.start(r.config(), func(w *worker.Worker) {
		worker.Activity(w, charge, func(context.Context, numIn) (numOut, error) { return numOut{}, nil },
			worker.Probe(func(ctx context.Context, in numIn) (saga.ProbeAnswer[numOut], error) {
				c, _ := saga.CallOf(ctx)
				if !c.Probe || c.Undo || saga.ActionKey(ctx) == "" || saga.ActionKey(ctx) == saga.IdempotencyKey(ctx) {
					t.Errorf("%+v", c)
				}
				switch in.N {
				case 1:
					return saga.Happened(numOut{7}), nil
				case 2:
					return saga.HappenedUnknownOutput[numOut](), nil
				case 3:
					return saga.DidNotHappen[numOut](), nil
				case 4:
					return saga.CantTell[numOut]("their log is gone"), nil
				case 5:
					return saga.ProbeAnswer[numOut]{}, errors.New("no connection")
				}
				return saga.ProbeAnswer[numOut]{}, saga.Reject("NO", "a probe can't reject")
			}))
	})
	for n, want := range map[int]string{
		1: `OUTCOME_HAPPENED {"m":7}  `, 2: "OUTCOME_HAPPENED   ", 3: "OUTCOME_DID_NOT_HAPPEN   ", 4: "OUTCOME_CANT_TELL   their log is gone",
		5: "OUTCOME_FAILED  ERROR no connection", 6: "OUTCOME_FAILED  NO a probe can't reject",
	} {
		task := r.task("card.charge", probe, n)
		task.ActionKey = "the action's"
		r.publish(task)
		res := r.final()
		if got := fmt.Sprintf("%v %s %s %s", res.Outcome, res.Output, res.Code, res.Message); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
	r.until("acknowledgement of all", func() bool { return r.stored() == 0 && w.Stats().Held == 0 })
	r.until("listening", func() bool { return r.bus.Listening("shop", "card.charge", probe) })

	ask := worker.Probe(func(context.Context, numIn) (saga.ProbeAnswer[numOut], error) {
		return saga.DidNotHappen[numOut](), nil
	})
	run := func(context.Context, numIn) (numOut, error) { return numOut{}, nil }
	for name, register := range map[string]func(w *worker.Worker){
		"none given":   func(w *worker.Worker) { worker.Activity(w, charge, run) },
		"not declared": func(w *worker.Worker) { worker.Activity(w, plain, run, ask) },
		"two":          func(w *worker.Worker) { worker.Activity(w, charge, run, ask, ask) },
		"nil":          func(w *worker.Worker) { worker.Activity(w, charge, run, worker.Probe[numIn, numOut](nil)) },
	} {
		w, err := worker.New(r.config())
		if err != nil {
			t.Fatal(err)
		}
		register(w)
		if err := w.Start(t.Context()); err == nil {
			t.Errorf("%s: started", name)
			_ = w.Stop(t.Context())
		}
	}
}
