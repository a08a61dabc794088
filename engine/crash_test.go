package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/sagad/sagad/engine/enginetest"
	"github.com/sagad/sagad/internal/wire"
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/memory"
)

func value(c prometheus.Counter) float64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		panic(err)
	}
	return m.GetCounter().GetValue()
}

// killAt kills the process when the point is reached for the n-th time.
func killAt(point string, n int32, p *atomic.Pointer[node]) func(*Config) {
	var seen atomic.Int32
	return func(c *Config) {
		c.Fault = func(at string) {
			if at == point && seen.Add(1) == n {
				p.Load().Kill()
			}
		}
	}
}

// TestKilledAnywhere: the process dies at each point of the way, in turn; the next one finishes what was begun. There
// is no half saga, no effect is made twice, and who asks again is told of the same saga.
func TestKilledAnywhere(t *testing.T) {
	points := []string{BeforeCommit, AfterCommit, BeforePublish, AfterPublish, ResultReceived, BeforeReply}
	for _, next := range []string{"e1", "e2"} { // a restart, and another node's take-over
		for _, point := range points {
			for n := int32(1); n <= 4; n++ {
				if n == 4 && (point == BeforePublish || point == AfterPublish || point == ResultReceived) {
					continue // there are three tasks and three results
				}
				t.Run(fmt.Sprintf("%s/%s/%d", next, point, n), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						w := newWorld(t, 2, nil)
						var p atomic.Pointer[node]
						e1 := w.start("e1", killAt(point, n, &p))
						p.Store(e1)
						ctx, cancel := context.WithTimeout(context.Background(), time.Second)
						first, firstErr := e1.StartSaga(ctx, request("t-1"))
						cancel()
						synctest.Wait()
						if !e1.dead() {
							t.Fatal("the process wasn't killed: the point wasn't reached")
						}
						died := time.Now()
						e2 := w.start(next)
						var again StartReply
						for {
							ctx, cancel := context.WithTimeout(context.Background(), time.Second)
							var err error
							again, err = e2.StartSaga(ctx, request("t-1"))
							cancel()
							if err == nil {
								break
							}
							if time.Since(died) > 15*time.Second {
								t.Fatalf("not served 15 s after the crash: %v", err)
							}
							time.Sleep(100 * time.Millisecond)
						}
						if firstErr == nil && first.Run != again.Run {
							t.Error("another saga under the same id")
						}
						if s := w.wait("t-1"); s.Status != store.Completed {
							t.Errorf("status %d", s.Status)
						}
						if next == "e1" && time.Since(died) > 2*time.Second {
							t.Errorf("a restart took %s", time.Since(died))
						}
						if done, undone := w.ledger.Effects(again.Run.String()); done != 3 || undone != 0 {
							t.Errorf("%d effects, %d undone", done, undone)
						}
						w.end()
					})
				})
			}
		}
	}
}

func (n *node) dead() bool { return !n.Process.Healthy() }

// stuckReply makes a saga unwind and its first compensation fail for good.
func stuckReply(task *workerv1.Task) *workerv1.Result {
	switch {
	case task.Step == "credit" && task.Direction == doing:
		return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_REJECTED, Code: "CLOSED"}
	case task.Step == "debit" && task.Direction == undoing:
		return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_FAILED, Code: "IO"}
	}
	return nil
}

// TestUnknownCommits: each commit of a saga's life in turn has an unknown outcome, once and several times, having been
// carried out or not. Whatever is true, everything is applied once and everybody gets the answer.
func TestUnknownCommits(t *testing.T) {
	for _, fate := range []memory.Fate{memory.AnswerLost, memory.CommitLost} {
		for _, times := range []int{1, 4} {
			for n := 1; n <= 10; n++ {
				t.Run(fmt.Sprintf("fate %d, %d times, commit %d", fate, times, n), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { unknownCommit(t, fate, times, n) })
				})
			}
		}
	}
}

func unknownCommit(t *testing.T, fate memory.Fate, times, n int) {
	w := newWorld(t, 1, stuckReply)
	w.ledger = nil // effects are settled by hand
	e := w.start("e1")
	var seqs []int64
	left := times
	w.setFate(func(b []store.Batch) memory.Fate {
		seqs = append(seqs, b[0].Seq)
		if int(b[0].Seq) == n && left > 0 {
			left--
			return fate
		}
		return memory.Answered
	})
	r := e.mustStart(w, request("t-1"))
	for range 300 {
		synctest.Wait()
		if s, _ := w.saga("t-1"); s.Status == store.Stuck {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	// A cancel of what unwinds already changes nothing, and may be asked for while a commit is unknown.
	reply, status, err := insist(func() (sagadv1.CancelAnswer, statemachine.Status, error) {
		return e.Cancel(context.Background(), "default", "t-1", statemachine.Cancel{RequestID: "c"})
	})
	if err != nil || reply != sagadv1.CancelAnswer_CANCEL_ANSWER_ALREADY_UNWINDING || status != statemachine.Stuck {
		t.Errorf("cancel: %v %s %v", reply, status, err)
	}
	state, _, err := insist(func() (*statemachine.State, int, error) {
		s, err := e.Act(context.Background(), "default", "t-1", statemachine.Act{
			Item: 1, Action: historyv1.OperatorAction_OPERATOR_ACTION_RESOLVE, Actor: "ann", Reason: "undone by hand", Evidence: "T-7", RequestID: "a",
		})
		return s, 0, err
	})
	if err != nil {
		t.Fatal(err)
	}
	if state.Status != statemachine.Compensated {
		t.Errorf("after the act: %s", state.Status)
	}
	s := w.wait("t-1")
	if s.Status != store.Compensated || s.Run != r.Run || s.SettledByHand != 1 {
		t.Errorf("%+v", s)
	}
	rows, _ := w.st.History(context.Background(), s.Shard, s.Run, 1, 100)
	// start, debit, credit rejected, three times undo failed, two of them retried by a timer, act.
	if len(rows) != 9 {
		t.Errorf("%d transitions", len(rows))
	}
	if n <= len(rows) {
		if left != 0 {
			t.Error("no commit was unknown")
		}
		if got := value(e.metrics.commits[store.Unknown]); got != float64(times) {
			t.Errorf("unknown commits counted: %v", got)
		}
	}
	for i := 1; i < len(seqs); i++ {
		if d := seqs[i] - seqs[i-1]; d < 0 || d > 1 {
			t.Errorf("sequence numbers %v", seqs)
		}
	}
	for id, n := range w.bus.Published() {
		if n > 1 {
			t.Errorf("%s was published %d times", id, n)
		}
	}
	w.bus.Close()
	e.halt()
	w.check()
}

// insist asks again while the answer is that it can't be given now.
func insist[A, B any](ask func() (A, B, error)) (a A, b B, err error) {
	for range 100 {
		a, b, err = ask()
		var u *UnavailableError
		if !errors.As(err, &u) {
			return a, b, err
		}
		time.Sleep(u.RetryIn)
	}
	return a, b, err
}

// TestUnknownCancel: a cancel's commit is unknown; the answer comes when it is settled, and nobody is let in meanwhile.
func TestUnknownCancel(t *testing.T) {
	for _, fate := range []memory.Fate{memory.AnswerLost, memory.CommitLost} {
		synctest.Test(t, func(t *testing.T) {
			w := newManualWorld(t, 1)
			e := w.start("e1")
			e.mustStart(w, request("t-1"))
			debit := w.task("debit", doing, 1, 1)
			broken := true
			w.setFate(func([]store.Batch) memory.Fate {
				if broken {
					return fate
				}
				return memory.Answered
			})
			answered := make(chan sagadv1.CancelAnswer, 1)
			go func() {
				r, _, err := e.Cancel(context.Background(), "default", "t-1", statemachine.Cancel{Reason: "r"})
				if err != nil {
					t.Error(err)
				}
				answered <- r
			}()
			time.Sleep(time.Second)
			synctest.Wait()
			if len(answered) != 0 {
				t.Error("answered while the outcome is unknown")
			}
			var u *UnavailableError
			if _, err := e.StartSaga(context.Background(), request("t-2")); !errors.As(err, &u) {
				t.Errorf("a start while the shard is frozen: %v", err)
			}
			if v := w.bus.Report(success(debit)); v != workerv1.Verdict_VERDICT_UNAVAILABLE {
				t.Errorf("a result while the shard is frozen: %s", v)
			}
			w.setFate(nil)
			time.Sleep(1100 * time.Millisecond)
			synctest.Wait()
			if got := <-answered; got != sagadv1.CancelAnswer_CANCEL_ANSWER_WILL_UNWIND {
				t.Errorf("answer %s", got)
			}
			if v := w.bus.Report(success(debit)); v != workerv1.Verdict_VERDICT_ACCEPTED {
				t.Errorf("verdict %s", v)
			}
			w.bus.Report(success(w.task("debit", undoing, 1, 1)))
			if s := w.wait("t-1"); s.Status != store.Compensated {
				t.Errorf("status %d", s.Status)
			}
			w.end()
		})
	}
}

// TestUnknownForLong: a commit stays unknown for longer than a lease; the shard is given up, its next owner settles it.
func TestUnknownForLong(t *testing.T) {
	for _, fate := range []memory.Fate{memory.AnswerLost, memory.CommitLost} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 1, nil)
			e := w.start("e1")
			w.setFate(func([]store.Batch) memory.Fate { return fate })
			var u *UnavailableError
			if _, err := e.StartSaga(context.Background(), request("t-1")); !errors.As(err, &u) {
				t.Errorf("start: %v", err)
			}
			if len(w.bus.Tasks()) != 0 {
				t.Error("a task was sent of a commit that isn't known")
			}
			w.setFate(nil)
			time.Sleep(3 * time.Second)
			r := e.mustStart(w, request("t-1"))
			if r.Created != (fate == memory.CommitLost) {
				t.Errorf("created %v", r.Created)
			}
			if s := w.wait("t-1"); s.Status != store.Completed {
				t.Errorf("status %d", s.Status)
			}
			w.end()
		})
	}
}

// TestFenced: an owner that has been replaced without knowing it writes, sends and answers nothing.
func TestFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newManualWorld(t, 1)
		e := w.start("e1")
		e.mustStart(w, request("t-1"))
		debit := w.task("debit", doing, 1, 1)
		// Somebody takes the shard.
		intruder := store.Node{Name: "e9", Boot: uuid.New(), Address: "http://e9"}
		if err := w.st.Release(context.Background(), e.node, []int{0}); err != nil {
			t.Fatal(err)
		}
		if g, err := w.st.Acquire(context.Background(), intruder, []int{0}, time.Minute); err != nil || len(g) != 1 {
			t.Fatal(g, err)
		}
		if v := w.bus.Report(success(debit)); v != workerv1.Verdict_VERDICT_UNAVAILABLE {
			t.Errorf("verdict %s", v)
		}
		if n := len(w.bus.Tasks()); n != 1 {
			t.Errorf("%d tasks", n)
		}
		if _, err := e.StartSaga(context.Background(), request("t-2")); err == nil {
			t.Error("a start is accepted")
		}
		time.Sleep(3 * time.Second)
		var other *NotOwnerError
		if _, err := e.StartSaga(context.Background(), request("t-2")); !errors.As(err, &other) || other.Address != "http://e9" {
			t.Errorf("start: %v", err)
		}
		if n, _, transitions := w.st.Sizes(); n != 1 || transitions != 1 {
			t.Errorf("%d sagas, %d transitions", n, transitions)
		}
		if got := value(e.metrics.commits[store.Fenced]); got != 1 {
			t.Errorf("fenced: %v", got)
		}
		w.end()
	})
}

// TestPausedOwner: an owner is stopped with a result's batch on its way; another takes over and finishes the saga; the
// first one wakes up and can do no harm.
func TestPausedOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newManualWorld(t, 1)
		gate := make(chan struct{})
		var pausing atomic.Bool
		e1 := w.start("e1", func(c *Config) {
			c.Fault = func(p string) {
				if p == BeforeCommit && pausing.CompareAndSwap(true, false) {
					<-gate
				}
			}
		})
		e1.mustStart(w, request("t-1"))
		debit := w.task("debit", doing, 1, 1)
		pausing.Store(true)
		verdict := make(chan workerv1.Verdict, 1)
		go func() { verdict <- w.bus.Report(success(debit)) }()
		synctest.Wait()
		// Its lease ends: it can't renew while it is stopped.
		if err := w.st.Release(context.Background(), e1.node, []int{0}); err != nil {
			t.Fatal(err)
		}
		e2 := w.start("e2")
		if got := e2.Owned(); len(got) != 1 && len(e1.Owned()) == 1 {
			time.Sleep(25 * time.Second) // placed on e1: taken over when it has been free for long
		}
		synctest.Wait()
		var resent *workerv1.Task
		for _, task := range w.bus.Tasks() {
			if task.Step == "debit" && task.Dispatch > 1 {
				resent = task
			}
		}
		if resent == nil {
			t.Fatal("the next owner didn't send the attempt again")
		}
		sent := len(w.bus.Tasks())
		close(gate)
		synctest.Wait()
		if got := value(e1.metrics.commits[store.Fenced]); got != 1 {
			t.Errorf("fenced: %v", got)
		}
		if n := len(w.bus.Tasks()); n != sent {
			t.Errorf("the old owner sent %d tasks", n-sent)
		}
		if v := <-verdict; v != workerv1.Verdict_VERDICT_UNAVAILABLE && v != workerv1.Verdict_VERDICT_UNSPECIFIED {
			t.Errorf("the old owner answered %s", v)
		}
		for _, step := range []string{"debit", "credit", "confirm"} {
			var last *workerv1.Task
			for range 100 {
				synctest.Wait()
				for _, task := range w.bus.Tasks() {
					if task.Step == step {
						last = task
					}
				}
				if last != nil {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			if v := w.bus.Report(success(last)); v != workerv1.Verdict_VERDICT_ACCEPTED {
				t.Errorf("%s: %s", step, v)
			}
		}
		if s := w.wait("t-1"); s.Status != store.Completed {
			t.Errorf("status %d", s.Status)
		}
		w.end()
	})
}

// gatedStore gives out the sweep's answer late.
type gatedStore struct {
	store.Store
	gate  chan struct{}
	calls atomic.Int32
}

func (g *gatedStore) Unfinished(ctx context.Context, shard int, after uuid.UUID, limit int) ([]store.Loaded, error) {
	found, err := g.Store.Unfinished(ctx, shard, after, limit)
	if g.calls.Add(1) == 2 { // the first is the recovery
		<-g.gate
	}
	return found, err
}

// TestSweepOnAnOldSnapshot: the sweep read that a saga waits for its first step; meanwhile it ends. The sweep changes
// and sends nothing.
func TestSweepOnAnOldSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newManualWorld(t, 1)
		gated := &gatedStore{Store: w.st, gate: make(chan struct{})}
		p := enginetest.NewProcess(gated, w.bus)
		e, err := New(Config{Name: "e1", Logger: w.log, SweepEvery: time.Second}, p, p)
		if err != nil {
			t.Fatal(err)
		}
		n := &node{Engine: e, Process: p}
		w.engines = append(w.engines, n)
		if err := e.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		if _, _, err := e.Register(context.Background(), "default", enginetest.Transfer()); err != nil {
			t.Fatal(err)
		}
		r := n.mustStart(w, request("t-1"))
		time.Sleep(1500 * time.Millisecond) // the sweep has read
		synctest.Wait()
		if gated.calls.Load() != 2 {
			t.Fatalf("%d reads", gated.calls.Load())
		}
		for _, step := range []string{"debit", "credit", "confirm"} {
			w.bus.Report(success(w.task(step, doing, 1, 0)))
		}
		if s := w.wait("t-1"); s.Status != store.Completed {
			t.Fatalf("status %d", s.Status)
		}
		// Push it out of the memory of ended sagas.
		for i := range endedMax + 10 {
			id := fmt.Sprint("x-", i)
			n.mustStart(w, request(id))
			if _, _, err := n.Cancel(context.Background(), "default", id, statemachine.Cancel{}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		for _, task := range w.bus.Tasks() {
			if task.SagaId != "t-1" && task.Direction == doing {
				w.bus.Report(&workerv1.Result{Token: task.Token, Outcome: workerv1.Outcome_OUTCOME_REJECTED})
			}
		}
		synctest.Wait()
		rows, _ := w.st.History(context.Background(), 0, r.Run, 1, 100)
		tasks := len(w.bus.Tasks())
		close(gated.gate)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		after, _ := w.st.History(context.Background(), 0, r.Run, 1, 100)
		if len(after) != len(rows) || len(w.bus.Tasks()) != tasks {
			t.Errorf("%d transitions became %d, %d tasks %d", len(rows), len(after), tasks, len(w.bus.Tasks()))
		}
		w.end()
	})
}

// TestRedispatch: an attempt that the bus lost is sent again, as the same attempt under the same key and another
// message id.
func TestRedispatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newManualWorld(t, 1)
		e := w.start("e1", func(c *Config) { c.RedispatchAfter = time.Second })
		e.mustStart(w, request("t-1"))
		time.Sleep(3500 * time.Millisecond)
		synctest.Wait()
		tasks := w.bus.Tasks()
		if len(tasks) != 3 { // at 0 s, 1 s, 3 s
			t.Fatalf("%d tasks", len(tasks))
		}
		for i, task := range tasks {
			if task.Attempt != 1 || task.IdempotencyKey != tasks[0].IdempotencyKey || task.Dispatch != int32(i+1) {
				t.Errorf("task %d: %v", i, task)
			}
		}
		if v := w.bus.Report(success(tasks[1])); v != workerv1.Verdict_VERDICT_ACCEPTED {
			t.Errorf("verdict %s", v)
		}
		if v := w.bus.Report(success(tasks[0])); v != workerv1.Verdict_VERDICT_DUPLICATE {
			t.Errorf("verdict %s", v)
		}
		if got := value(e.metrics.redispatched); got != 2 {
			t.Errorf("redispatched %v", got)
		}
		w.end()
	})
}

// TestTimeout: an attempt without an answer is unknown at its deadline, not before; that nobody listens is said.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newManualWorld(t, 1)
		e := w.start("e1")
		e.mustStart(w, request("t-1"))
		state := func() *statemachine.State {
			_, s, _, err := e.Get(context.Background(), "default", "t-1")
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		time.Sleep(5*time.Second - time.Millisecond)
		synctest.Wait()
		if s := state(); s.N != 1 {
			t.Errorf("something happened early: %d transitions", s.N)
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		s := state()
		if c := s.Steps[0].Do; s.N != 2 || c.LastOutcome != historyv1.Outcome_OUTCOME_UNKNOWN || c.LastError.GetCode() != statemachine.CodeNoWorker {
			t.Errorf("%+v", c)
		}
		w.end()
	})
}

// refusingStore can't write one saga's results.
type refusingStore struct {
	store.Store
	run atomic.Pointer[uuid.UUID]
}

func (r *refusingStore) Commit(ctx context.Context, batches []store.Batch) ([]store.Result, error) {
	for _, b := range batches {
		for _, t := range b.Transitions {
			if run := r.run.Load(); run != nil && t.Run == *run {
				results := make([]store.Result, len(batches))
				for i := range results {
					results[i] = store.Refused
				}
				return results, errors.New("a constraint says no")
			}
		}
	}
	return r.Store.Commit(ctx, batches)
}

// TestRefusedBatch: the database can't write one saga; it is found among those of its batch and rests, the others go
// on.
func TestRefusedBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newManualWorld(t, 2)
		refusing := &refusingStore{Store: w.st}
		p := enginetest.NewProcess(refusing, w.bus)
		e, err := New(Config{Name: "e1", Logger: w.log}, p, p)
		if err != nil {
			t.Fatal(err)
		}
		n := &node{Engine: e, Process: p}
		w.engines = append(w.engines, n)
		if err := e.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		if _, _, err := e.Register(context.Background(), "default", enginetest.Transfer()); err != nil {
			t.Fatal(err)
		}
		const sagas = 9
		for i := range sagas {
			r := n.mustStart(w, request(fmt.Sprint("t-", i)))
			if i == 4 {
				refusing.run.Store(&r.Run)
			}
		}
		synctest.Wait()
		byShard := map[int][]*workerv1.Result{}
		var bad *workerv1.Result
		for _, task := range w.bus.Tasks() {
			shard, _ := wire.TokenShard(task.Token)
			r := success(task)
			byShard[shard] = append(byShard[shard], r)
			if task.SagaId == "t-4" {
				bad = r
			}
		}
		for shard, results := range byShard {
			for i, v := range w.bus.ReportTo(shard, results...) {
				want := workerv1.Verdict_VERDICT_ACCEPTED
				if results[i] == bad {
					want = workerv1.Verdict_VERDICT_UNAVAILABLE
				}
				if v != want {
					t.Errorf("shard %d, result %d: %s, want %s", shard, i, v, want)
				}
			}
		}
		time.Sleep(refreshEvery)
		synctest.Wait()
		if q := e.Quarantined(); len(q) != 1 || q[0].SagaID != "t-4" {
			t.Errorf("quarantined: %+v", q)
		}
		w.end()
	})
}

// TestRefusedBatchOfAnotherShard: a shard's batch isn't refused because of one that was sent along with it.
func TestRefusedBatchOfAnotherShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const shards = 3
		w := newManualWorld(t, shards)
		refusing := &refusingStore{Store: w.st}
		p := enginetest.NewProcess(refusing, w.bus)
		var slow atomic.Bool
		e, err := New(Config{Name: "e1", Logger: w.log, Committers: 1, Fault: func(p string) {
			if p == BeforeCommit && slow.Load() {
				time.Sleep(100 * time.Millisecond)
			}
		}}, p, p)
		if err != nil {
			t.Fatal(err)
		}
		n := &node{Engine: e, Process: p}
		w.engines = append(w.engines, n)
		if err := e.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		if _, _, err := e.Register(context.Background(), "default", enginetest.Transfer()); err != nil {
			t.Fatal(err)
		}
		// A saga in each shard.
		byShard := map[int]*workerv1.Task{}
		for i := 0; len(byShard) < shards; i++ {
			id := fmt.Sprint("t-", i)
			shard := store.ShardOf("default", id, shards)
			if byShard[shard] != nil {
				continue
			}
			r := n.mustStart(w, request(id))
			synctest.Wait()
			tasks := w.bus.Tasks()
			byShard[shard] = tasks[len(tasks)-1]
			if shard == 2 {
				refusing.run.Store(&r.Run)
			}
		}
		slow.Store(true)
		var wg sync.WaitGroup
		verdicts := make([]workerv1.Verdict, shards)
		for shard := range shards { // the first is under way alone, the others gather
			wg.Go(func() { verdicts[shard] = w.bus.Report(success(byShard[shard])) })
			synctest.Wait()
		}
		wg.Wait()
		for shard, want := range []workerv1.Verdict{workerv1.Verdict_VERDICT_ACCEPTED, workerv1.Verdict_VERDICT_ACCEPTED, workerv1.Verdict_VERDICT_UNAVAILABLE} {
			if verdicts[shard] != want {
				t.Errorf("shard %d: %s, want %s", shard, verdicts[shard], want)
			}
		}
		w.end()
	})
}

// TestTakeOver: a node dies; the other has its shards one lease later, and finishes its sagas.
func TestTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 16, nil)
		e1 := w.start("e1")
		e2 := w.start("e2")
		var foreign *NotOwnerError
		if _, err := e2.StartSaga(context.Background(), request("t-0")); !errors.As(err, &foreign) || foreign.Address != "http://e1" {
			t.Errorf("start at the other node: %v", err)
		}
		w.bus.Filter(func(*workerv1.Task) bool { return false })
		for i := range 50 {
			e1.mustStart(w, request(fmt.Sprint("t-", i)))
		}
		w.bus.Filter(nil)
		e1.Kill()
		died := time.Now()
		for len(e2.Owned()) < 16 {
			time.Sleep(100 * time.Millisecond)
			if time.Since(died) > 15*time.Second {
				t.Fatalf("e2 owns %v", e2.Owned())
			}
		}
		if took := time.Since(died); took < 7*time.Second {
			t.Errorf("taken over after %s: before the lease was over", took)
		}
		for i := range 50 {
			if s := w.wait(fmt.Sprint("t-", i)); s.Status != store.Completed {
				t.Errorf("saga %d: status %d", i, s.Status)
			}
		}
		w.end()
	})
}

// TestHandOff: shards move to a new node after a while, and back at once when it stops; sagas are started all the time
// and none is lost.
func TestHandOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 16, nil)
		e1 := w.start("e1")
		e2 := w.start("e2", func(c *Config) { c.MovesPerSecond = 4 })
		stop := make(chan struct{})
		var wg sync.WaitGroup
		var ids []string
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(50 * time.Millisecond):
				}
				id := fmt.Sprint("t-", i)
				ids = append(ids, id)
				for try := 0; ; try++ {
					n := []*node{e1, e2}[try%2]
					ctx, cancel := context.WithTimeout(context.Background(), time.Second)
					_, err := n.StartSaga(ctx, request(id))
					cancel()
					if err == nil {
						break
					}
					if try > 100 {
						t.Errorf("saga %s can't be started: %v", id, err)
						return
					}
					time.Sleep(50 * time.Millisecond)
				}
			}
		})
		time.Sleep(20 * time.Second)
		if len(e1.Owned()) != 16 {
			t.Errorf("shards moved before the nodes were settled: %v", e1.Owned())
		}
		time.Sleep(60 * time.Second)
		one, two := e1.Owned(), e2.Owned()
		if len(one)+len(two) != 16 || len(two) < 3 || len(one) < 3 {
			t.Errorf("e1 owns %v, e2 %v", one, two)
		}
		stopped := time.Now()
		e2.halt()
		for len(e1.Owned()) != 16 {
			time.Sleep(50 * time.Millisecond)
			if time.Since(stopped) > 3*time.Second {
				t.Fatalf("e1 owns %v", e1.Owned())
			}
		}
		t.Logf("hand-off took %s", time.Since(stopped))
		close(stop)
		wg.Wait()
		for _, id := range ids {
			if s := w.wait(id); s.Status != store.Completed {
				t.Errorf("saga %s: status %d", id, s.Status)
			}
		}
		w.end()
	})
}

// TestDatabaseAway: while leases can't be renewed the node stops by itself; it comes back by itself.
func TestDatabaseAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, nil)
		flaky := &flakyLeases{Store: w.st}
		p := enginetest.NewProcess(flaky, w.bus)
		e, err := New(Config{Name: "e1", Logger: w.log}, p, p)
		if err != nil {
			t.Fatal(err)
		}
		n := &node{Engine: e, Process: p}
		w.engines = append(w.engines, n)
		if err := e.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		if _, _, err := e.Register(context.Background(), "default", enginetest.Transfer()); err != nil {
			t.Fatal(err)
		}
		flaky.away.Store(true)
		time.Sleep(6500 * time.Millisecond)
		synctest.Wait()
		if len(e.Owned()) == 0 {
			// Renewed at the latest 2.4 s before: good for 7 s from then.
			t.Log("stopped early; the last renewal was long ago")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := e.Owned(); len(got) != 0 {
			t.Errorf("still serves %v though its lease is over", got)
		}
		if e.Healthy() == nil {
			t.Error("a node without leases is healthy")
		}
		flaky.away.Store(false)
		time.Sleep(5 * time.Second)
		n.mustStart(w, request("t-1"))
		if s := w.wait("t-1"); s.Status != store.Completed {
			t.Errorf("status %d", s.Status)
		}
		w.end()
	})
}

type flakyLeases struct {
	store.Store
	away atomic.Bool
}

func (f *flakyLeases) Renew(ctx context.Context, n store.Node, ttl time.Duration) ([]int, error) {
	if f.away.Load() {
		return nil, errors.New("no connection")
	}
	return f.Store.Renew(ctx, n, ttl)
}
