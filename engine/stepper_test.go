package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sagad/sagad/engine"
	"github.com/sagad/sagad/engine/enginetest"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/memory"
)

// table is where a stepper's world lies: a clock that stands still, a store, and a bus that keeps what it is given.
type table struct {
	*testing.T
	now   time.Time
	st    *memory.Store
	tasks []*workerv1.Task
	rng   *rand.Rand
}

func (b *table) Publish(tasks []*workerv1.Task)        { b.tasks = append(b.tasks, tasks...) }
func (b *table) Stop(string, string, []*workerv1.Stop) {}
func (b *table) Serve(int, func(*workerv1.ResultPack, func(*workerv1.ResultReply))) (func(), error) {
	return func() {}, nil
}
func (b *table) Listening(string, string, workerv1.Direction) bool { return true }
func (b *table) Healthy() bool                                     { return true }

func newTable(t *testing.T) *table {
	b := &table{T: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), rng: rand.New(rand.NewPCG(1, 2))}
	b.st = memory.New(4, memory.Clock(func() time.Time { return b.now }))
	return b
}

func (b *table) node(name string) *engine.Stepper {
	b.Helper()
	s, err := engine.NewStepper(context.Background(), engine.Config{Name: name, Address: "http://" + name},
		engine.Hand{Clock: func() time.Time { return b.now }, Chance: b.rng.Uint64}, b.st, b)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// commit steps and commits until nothing is left to do now.
func (b *table) commit(s *engine.Stepper) {
	b.Helper()
	for {
		commits := s.Step()
		if len(commits) == 0 {
			return
		}
		for _, c := range commits {
			results, err := b.st.Commit(context.Background(), []store.Batch{*c.Batch})
			s.Settle(c, results[0], err)
		}
	}
}

func (b *table) start(s *engine.Stepper, id string) *error {
	answer := new(error)
	*answer = context.DeadlineExceeded // no answer
	s.Start(engine.StartRequest{Namespace: "default", ID: id, Definition: "transfer", Input: []byte(`{"amount":1}`)}, func(_ engine.StartReply, err error) { *answer = err })
	return answer
}

func (b *table) status(s *engine.Stepper, id string) statemachine.Status {
	b.Helper()
	var status statemachine.Status
	s.Look("default", id, func(st *statemachine.State, _ *statemachine.Machine, err error) {
		if err != nil {
			b.Error(err)
			return
		}
		status = st.Status
	})
	b.commit(s)
	return status
}

// work answers all tasks that are out, in the way of a ledger.
func (b *table) work(s *engine.Stepper, ledger *enginetest.Ledger) {
	b.Helper()
	for len(b.tasks) > 0 {
		t := b.tasks[0]
		b.tasks = b.tasks[1:]
		r := ledger.Handle(t)
		r.Token = t.Token
		var verdict workerv1.Verdict
		s.Results(&workerv1.ResultPack{Results: []*workerv1.Result{r}}, func(reply *workerv1.ResultReply) { verdict = reply.Verdicts[0] })
		b.commit(s)
		if verdict != workerv1.Verdict_VERDICT_ACCEPTED {
			b.Fatalf("a result of %s is answered with %s", t.Step, verdict)
		}
	}
}

func (b *table) register(s *engine.Stepper) {
	b.Helper()
	if _, _, err := s.Register(context.Background(), "default", enginetest.Transfer()); err != nil {
		b.Fatal(err)
	}
}

// TestStepper drives a saga to its end by hand.
func TestStepper(t *testing.T) {
	b := newTable(t)
	s := b.node("e1")
	b.register(s)
	b.commit(s)
	if len(s.Owned()) != 4 {
		t.Fatalf("%v", s.Owned())
	}
	answer := b.start(s, "a")
	commits := s.Step()
	if len(commits) != 1 || len(b.tasks) != 0 || *answer != context.DeadlineExceeded {
		t.Fatalf("%d commits, %d tasks, answer %v before anything is durable", len(commits), len(b.tasks), *answer)
	}
	results, err := b.st.Commit(context.Background(), []store.Batch{*commits[0].Batch})
	s.Settle(commits[0], results[0], err)
	if *answer != nil || len(b.tasks) != 1 {
		t.Fatalf("answer %v, %d tasks", *answer, len(b.tasks))
	}
	ledger := enginetest.NewLedger(nil)
	b.work(s, ledger)
	if got := b.status(s, "a"); got != statemachine.Completed {
		t.Error(got)
	}

	// Time is what the clock says: an attempt times out when Wake says so, and not before.
	b.start(s, "b")
	b.commit(s)
	b.tasks = nil
	begin := b.now
	for b.now.Sub(begin) < time.Minute && len(b.tasks) == 0 {
		b.now = s.Wake()
		b.commit(s)
	}
	if len(b.tasks) != 1 || b.tasks[0].Attempt != 2 || b.now.Sub(begin) < 5*time.Second {
		t.Errorf("after %v: %v", b.now.Sub(begin), b.tasks)
	}

	var canceled sagadv1.CancelAnswer
	s.Cancel("default", "b", statemachine.Cancel{Actor: "ann"}, func(a sagadv1.CancelAnswer, _ statemachine.Status, err error) { canceled = a })
	b.commit(s)
	b.work(s, ledger)
	if got := b.status(s, "b"); got != statemachine.Compensated || canceled != sagadv1.CancelAnswer_CANCEL_ANSWER_WILL_UNWIND {
		t.Error(got, canceled)
	}
	if c := s.Counts(); c.Repaired+c.Unsendable+c.Quarantines+c.Stalled != 0 {
		t.Errorf("%+v", c)
	}
}

// TestStepperUnknown: while a commit's outcome isn't known, the very same batch is sent again and nothing else happens; a
// node that never learns it gives the shard up, and what it had in hand can't land after the next owner's epoch.
func TestStepperUnknown(t *testing.T) {
	b := newTable(t)
	s := b.node("e1")
	b.register(s)
	b.commit(s)
	answer := b.start(s, "a")
	first := s.Step()[0]
	b.st.Commit(context.Background(), []store.Batch{*first.Batch}) // it lands, and nobody is told
	s.Settle(first, store.Unknown, context.DeadlineExceeded)
	if again := s.Step(); len(again) != 0 || !s.Frozen() || *answer != context.DeadlineExceeded || len(b.tasks) > 0 {
		t.Fatal("something happens while the outcome isn't known")
	}
	b.now = s.Wake()
	again := s.Step()
	if len(again) != 1 || again[0].Batch != first.Batch {
		t.Fatalf("%v", again)
	}
	results, err := b.st.Commit(context.Background(), []store.Batch{*again[0].Batch})
	if s.Settle(again[0], results[0], err); results[0] != store.Already || *answer != nil || len(b.tasks) != 1 || s.Frozen() {
		t.Fatalf("%s, answer %v, %d tasks", results[0], *answer, len(b.tasks))
	}

	answer = b.start(s, "b")
	var batch store.Batch
	for n := 0; *answer == context.DeadlineExceeded; n++ {
		if n > 1000 {
			t.Fatal("the shard isn't given up")
		}
		for _, c := range s.Step() {
			batch = *c.Batch
			s.Settle(c, store.Unknown, context.DeadlineExceeded)
		}
		b.now = s.Wake()
	}
	other := b.node("e2")
	b.now = b.now.Add(time.Minute)
	for range 100 {
		b.commit(other)
		b.now = b.now.Add(time.Second)
	}
	if len(other.Owned()) != 4 {
		t.Fatalf("%v", other.Owned())
	}
	if results, _ := b.st.Commit(context.Background(), []store.Batch{batch}); results[0] != store.Fenced {
		t.Errorf("the old batch is %s", results[0])
	}
}

// TestStepperRefusedAfterUnknown: a refusal of a batch that was sent before doesn't settle the earlier sending, which may land
// yet. Whatever lands, nobody is told of what isn't there.
func TestStepperRefusedAfterUnknown(t *testing.T) {
	b := newTable(t)
	s := b.node("e1")
	b.register(s)
	b.commit(s)
	answer := b.start(s, "a")
	first := s.Step()[0]
	s.Settle(first, store.Unknown, context.DeadlineExceeded) // it is under way
	b.now = s.Wake()
	again := s.Step()[0]
	s.Settle(again, store.Refused, context.DeadlineExceeded)
	if *answer == nil || *answer == context.DeadlineExceeded || slices.Contains(s.Owned(), first.Batch.Grant.Shard) {
		t.Fatalf("answer %v, shards %v", *answer, s.Owned())
	}
	other := "b"
	for n := 0; store.ShardOf("default", other, 4) != first.Batch.Grant.Shard; n++ {
		other = fmt.Sprint("b-", n)
	}
	landed, _ := b.st.Commit(context.Background(), []store.Batch{*first.Batch})
	if landed[0] != store.Committed {
		t.Fatal(landed)
	}
	for range 10 {
		b.now = b.now.Add(time.Second)
		b.commit(s)
	}
	answer = b.start(s, other)
	b.commit(s)
	if *answer != nil {
		t.Fatal(*answer)
	}
	for _, id := range []string{"a", other} {
		if got := b.status(s, id); got != statemachine.Running {
			t.Errorf("saga %s is %s", id, got)
		}
		if _, err := b.st.Saga(context.Background(), store.Key{Shard: first.Batch.Grant.Shard, Namespace: "default", ID: id}); err != nil {
			t.Error(err)
		}
	}
}

// TestStepperStop: a node that stops hands its shards over at once, with what is out.
func TestStepperStop(t *testing.T) {
	b := newTable(t)
	s := b.node("e1")
	b.register(s)
	b.commit(s)
	b.start(s, "a")
	b.commit(s)
	b.start(s, "b")
	under := s.Step() // a batch is under way
	s.Stop()
	s.Step()
	late := b.start(s, "b")
	if err := *late; err == nil || !strings.Contains(err.Error(), "moving") {
		t.Errorf("a start at a shard that is handed over: %v", err)
	}
	results, err := b.st.Commit(context.Background(), []store.Batch{*under[0].Batch})
	s.Settle(under[0], results[0], err)
	b.commit(s)
	if !s.Stopped() || len(s.Owned()) != 0 {
		t.Fatal("not stopped")
	}
	b.tasks = nil
	b.now = b.now.Add(time.Second)
	other := b.node("e2")
	b.commit(other)
	b.work(other, enginetest.NewLedger(nil))
	if got := b.status(other, "a"); got != statemachine.Completed {
		t.Error(got)
	}
}
