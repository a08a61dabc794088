package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/sagad/sagad/engine/enginetest"
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/memory"

	"google.golang.org/protobuf/proto"
)

// world is a store, a bus with workers, and nodes. It lives in a synctest bubble: time passes when everybody waits.
type world struct {
	*testing.T
	st     *memory.Store
	bus    *enginetest.Bus
	ledger *enginetest.Ledger
	shards int
	// fate of the next commits, if set.
	mu      sync.Mutex
	fate    func([]store.Batch) memory.Fate
	engines []*node
	log     *slog.Logger
}

// node is an engine and its process.
type node struct {
	*Engine
	*enginetest.Process
	stopped bool
}

type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

func newWorld(t *testing.T, shards int, reply func(*workerv1.Task) *workerv1.Result) *world {
	w := &world{T: t, shards: shards, ledger: enginetest.NewLedger(reply)}
	w.bus = enginetest.NewBus(w.ledger.Handle)
	w.init()
	return w
}

// newManualWorld is one without workers: the test reports results.
func newManualWorld(t *testing.T, shards int) *world {
	w := &world{T: t, shards: shards, bus: enginetest.NewBus(nil)}
	w.init()
	return w
}

func (w *world) init() {
	w.log = slog.New(slog.NewTextHandler(testLog{w.T}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	w.st = memory.New(w.shards, memory.Fault(func(b []store.Batch) memory.Fate {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.fate == nil {
			return memory.Answered
		}
		return w.fate(b)
	}))
}

func (w *world) setFate(f func([]store.Batch) memory.Fate) {
	w.mu.Lock()
	w.fate = f
	w.mu.Unlock()
}

// start starts a node.
func (w *world) start(name string, change ...func(*Config)) *node {
	w.Helper()
	p := enginetest.NewProcess(w.st, w.bus)
	cfg := Config{Name: name, Address: "http://" + name, Logger: w.log}
	for _, c := range change {
		c(&cfg)
	}
	e, err := New(cfg, p, p)
	if err != nil {
		w.Fatal(err)
	}
	n := &node{Engine: e, Process: p}
	w.engines = append(w.engines, n)
	w.Cleanup(func() { // for tests that end early
		w.bus.Close()
		n.halt()
	})
	if err := e.Start(context.Background()); err != nil {
		w.Fatal(err)
	}
	if _, _, err := e.Register(context.Background(), "default", enginetest.Transfer()); err != nil {
		w.Fatal(err)
	}
	return n
}

// end stops everything and holds the result to the invariants.
func (w *world) end() {
	w.Helper()
	w.bus.Close()
	for _, n := range w.engines {
		n.halt()
	}
	w.check()
}

func (n *node) halt() {
	if n.stopped {
		return
	}
	n.stopped = true
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_ = n.Engine.Stop(ctx)
}

// check holds what is stored to what must always be true.
func (w *world) check() {
	w.Helper()
	m, problems := statemachine.Compile(enginetest.Transfer())
	if problems != nil {
		w.Fatal(problems)
	}
	sagas, err := w.st.Sagas(context.Background(), store.SagaFilter{Limit: 10_000})
	if err != nil {
		w.Fatal(err)
	}
	for _, s := range sagas {
		rows, err := w.st.History(context.Background(), s.Shard, s.Run, 1, 10_000)
		if err != nil {
			w.Fatal(err)
		}
		terminal := 0
		for _, r := range rows {
			var t historyv1.Transition
			if err := proto.Unmarshal(r.Facts, &t); err != nil {
				w.Fatal(err)
			}
			for _, f := range t.GetFacts() {
				if f.GetCompleted() != nil || f.GetCompensated() != nil || f.GetAbandoned() != nil {
					terminal++
				}
			}
		}
		state, _, err := foldSafely(m, &store.Loaded{Saga: s, History: rows})
		if err != nil {
			w.Errorf("saga %s: %v", s.ID, err)
			continue
		}
		if int16(state.Status) != int16(s.Status) {
			w.Errorf("saga %s: the row says %d, the history %s", s.ID, s.Status, state.Status)
		}
		if want := s.Status.Terminal(); want != (terminal == 1) || terminal > 1 {
			w.Errorf("saga %s: status %s, %d terminal facts", s.ID, state.Status, terminal)
		}
		if !state.Waits() {
			w.Errorf("saga %s: nothing will wake it", s.ID)
		}
		if w.ledger != nil && s.Status.Terminal() && s.Status != store.Abandoned {
			done, undone := w.ledger.Effects(s.Run.String())
			if s.Status == store.Completed && (done != 3 || undone != 0) || s.Status == store.Compensated && done-undone > 1 {
				w.Errorf("saga %s is %s with %d effects done and %d undone", s.ID, state.Status, done, undone)
			}
		}
	}
}

func request(id string) StartRequest {
	return StartRequest{Namespace: "default", ID: id, Definition: "transfer", Input: []byte(`{"amount":30}`)}
}

func (n *node) mustStart(w *world, r StartRequest) StartReply {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	reply, err := n.StartSaga(ctx, r)
	if err != nil {
		w.Fatalf("start %s: %v", r.ID, err)
	}
	return reply
}

// try is for other goroutines than the test's.
func (n *node) try(w *world, r StartRequest) StartReply {
	reply, err := n.StartSaga(context.Background(), r)
	if err != nil {
		w.Errorf("start %s: %v", r.ID, err)
	}
	return reply
}

func (w *world) saga(id string) (store.Saga, bool) {
	s, err := w.st.Saga(context.Background(), store.Key{Shard: store.ShardOf("default", id, w.shards), Namespace: "default", ID: id})
	return s, err == nil
}

// wait lets time pass until the saga is terminal, a minute at most.
func (w *world) wait(id string) store.Saga {
	w.Helper()
	for range 600 {
		synctest.Wait()
		if s, ok := w.saga(id); ok && s.Status.Terminal() {
			return s
		}
		time.Sleep(100 * time.Millisecond)
	}
	s, _ := w.saga(id)
	w.Fatalf("saga %s isn't terminal after a minute: %+v", id, s)
	return s
}

// task waits for the task of a step's attempt.
func (w *world) task(step string, dir workerv1.Direction, attempt, dispatch int32) *workerv1.Task {
	w.Helper()
	for range 600 {
		synctest.Wait()
		for _, t := range w.bus.Tasks() {
			if t.Step == step && t.Direction == dir && t.Attempt == attempt && (dispatch == 0 || t.Dispatch == dispatch) {
				return t
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	w.Fatalf("no task for %s %s attempt %d after a minute", dir, step, attempt)
	return nil
}

func success(t *workerv1.Task) *workerv1.Result {
	return &workerv1.Result{Token: t.Token, Outcome: workerv1.Outcome_OUTCOME_SUCCEEDED, Output: []byte(`{}`)}
}

const (
	doing   = workerv1.Direction_DIRECTION_DO
	undoing = workerv1.Direction_DIRECTION_UNDO
)

func TestSagaCompletes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4, nil)
		e := w.start("e1")
		r := e.mustStart(w, request("t-1"))
		if !r.Created || r.Version != 1 {
			t.Errorf("reply %+v", r)
		}
		if s := w.wait("t-1"); s.Status != store.Completed {
			t.Errorf("status %d", s.Status)
		}
		want := map[string]int{"debit/-/do/1": 1, "credit/-/do/1": 1, "confirm/-/do/1": 1}
		if d := cmp.Diff(want, w.ledger.Calls(r.Run.String())); d != "" {
			t.Error(d)
		}
		_, state, _, err := e.Get(context.Background(), "default", "t-1")
		if err != nil || state.N != 4 {
			t.Errorf("get: %+v %v", state, err)
		}
		if owned := e.Owned(); len(owned) != 4 {
			t.Errorf("owned %v", owned)
		}
		w.end()
	})
}

func TestSagaUnwinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4, func(task *workerv1.Task) *workerv1.Result {
			if task.Step == "credit" && task.Direction == doing {
				return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_REJECTED, Code: "ACCOUNT_CLOSED", Message: "bad\x00text\xff"}
			}
			return nil
		})
		e := w.start("e1")
		r := e.mustStart(w, request("t-1"))
		s := w.wait("t-1")
		if s.Status != store.Compensated {
			t.Errorf("status %d", s.Status)
		}
		var cause historyv1.Cause
		if err := proto.Unmarshal(s.Cause, &cause); err != nil || cause.GetStep() != "credit" || cause.GetError().GetCode() != "ACCOUNT_CLOSED" {
			t.Errorf("cause %v %v", &cause, err)
		}
		if m := cause.GetError().GetMessage(); m != "bad\u2400text\uFFFD" {
			t.Errorf("message %q", m)
		}
		want := map[string]int{"debit/-/do/1": 1, "credit/-/do/1": 1, "debit/-/undo/1": 1}
		if d := cmp.Diff(want, w.ledger.Calls(r.Run.String())); d != "" {
			t.Error(d)
		}
		w.end()
	})
}

// TestRetries: plain errors are tried again after the policy's delay, then the step is undone.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var at []time.Duration
		began := time.Now()
		w := newWorld(t, 1, func(task *workerv1.Task) *workerv1.Result {
			if task.Step == "credit" && task.Direction == doing {
				mu.Lock()
				at = append(at, time.Since(began))
				mu.Unlock()
				return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_FAILED, Code: "IO"}
			}
			return nil
		})
		e := w.start("e1")
		r := e.mustStart(w, request("t-1"))
		if s := w.wait("t-1"); s.Status != store.Compensated {
			t.Errorf("status %d", s.Status)
		}
		if len(at) != 3 || at[2] > 4*time.Second {
			t.Errorf("attempts at %v", at)
		}
		calls := w.ledger.Calls(r.Run.String())
		if calls["credit/-/do/1"] != 3 || calls["credit/-/undo/1"] != 1 || calls["debit/-/undo/1"] != 1 {
			t.Errorf("calls %v", calls)
		}
		w.end()
	})
}

// TestAnswersOnlyAfterTheCommit: while a commit is under way nothing is sent and nobody is answered; the fastest worker
// comes after it.
func TestAnswersOnlyAfterTheCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, nil)
		gate := make(chan struct{})
		held := false
		e := w.start("e1", func(c *Config) {
			c.Fault = func(p string) {
				if p == BeforeCommit && !held {
					held = true
					<-gate
				}
			}
		})
		answered := make(chan StartReply, 1)
		go func() { answered <- e.try(w, request("t-1")) }()
		synctest.Wait()
		if len(answered) != 0 || len(w.bus.Tasks()) != 0 {
			t.Error("something left before the commit")
		}
		close(gate)
		synctest.Wait()
		if len(answered) != 1 {
			t.Error("no answer after the commit")
		}
		if s := w.wait("t-1"); s.Status != store.Completed {
			t.Errorf("status %d", s.Status)
		}
		w.end()
	})
}

// TestSlowCommitsFastWorkers: no result is lost because its saga isn't there yet.
func TestSlowCommitsFastWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 8, nil)
		e := w.start("e1", func(c *Config) {
			c.Fault = func(p string) {
				if p == BeforeCommit || p == AfterCommit {
					time.Sleep(250 * time.Millisecond)
				}
			}
		})
		for i := range 100 {
			go e.try(w, request(fmt.Sprint("t-", i)))
		}
		began := time.Now()
		for i := range 100 {
			if s := w.wait(fmt.Sprint("t-", i)); s.Status != store.Completed {
				t.Errorf("saga %d: status %d", i, s.Status)
			}
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("took %s", took)
		}
		if strays, _ := w.st.Strays(context.Background(), 10); len(strays) != 0 {
			t.Errorf("strays %+v", strays)
		}
		w.end()
	})
}

func TestFiftyStartsOfOneSaga(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4, nil)
		e := w.start("e1")
		for round := range 20 {
			id := fmt.Sprint("order-", round)
			var mu sync.Mutex
			runs, created := map[uuid.UUID]bool{}, 0
			var wg sync.WaitGroup
			for range 50 {
				wg.Go(func() {
					r, err := e.StartSaga(context.Background(), request(id))
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						t.Error(err)
					}
					runs[r.Run] = true
					if r.Created {
						created++
					}
				})
			}
			wg.Wait()
			if len(runs) != 1 || created != 1 {
				t.Fatalf("%d runs, %d created", len(runs), created)
			}
			w.wait(id)
		}
		w.end()
	})
}

func TestSameIDOtherContent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4, nil)
		e := w.start("e1")
		if _, _, err := e.Register(context.Background(), "other", enginetest.Transfer()); err != nil {
			t.Fatal(err)
		}
		gate := make(chan struct{})
		w.bus.Filter(func(*workerv1.Task) bool {
			select {
			case <-gate:
				return true
			default:
				return false
			}
		})
		first := e.mustStart(w, request("order-1002"))

		conflicts := func(when string) {
			t.Helper()
			other := request("order-1002")
			other.Input = []byte(`{"amount":300}`)
			_, err := e.StartSaga(context.Background(), other)
			var conflict *ConflictError
			if !errors.As(err, &conflict) {
				t.Fatalf("%s: %v", when, err)
			}
			if strings.Contains(err.Error(), "30") || strings.Contains(err.Error(), first.Run.String()) {
				t.Errorf("%s: the error shows the first content: %v", when, err)
			}
		}
		same := func(input string) {
			t.Helper()
			r := request("order-1002")
			r.Input = []byte(input)
			got, err := e.StartSaga(context.Background(), r)
			if err != nil || got.Run != first.Run || got.Created || got.Version != 1 {
				t.Errorf("%s: %+v %v", input, got, err)
			}
		}
		same(`{"amount":30}`)
		same("{ \"amount\" :\n30 }")
		conflicts("while running")
		labelled := request("order-1002")
		labelled.Labels = map[string]string{"a": "b"}
		if _, err := e.StartSaga(context.Background(), labelled); err == nil {
			t.Error("other labels are the same content")
		}
		base := StartRequest{Definition: "transfer", Labels: map[string]string{"a": "b"}}
		for _, change := range []map[string]string{{"a": "c"}, {"b": "b"}, {"a": "b", "c": ""}, nil} {
			other := base
			other.Labels = change
			if base.digest(nil) == other.digest(nil) {
				t.Errorf("labels %v have the digest of %v", change, base.Labels)
			}
		}
		pinned := request("order-1002")
		pinned.Version = 1
		if _, err := e.StartSaga(context.Background(), pinned); err == nil {
			t.Error("another version asked for is the same content")
		}
		close(gate)
		if s := w.wait("order-1002"); s.Status != store.Completed && s.Status != store.Compensated {
			t.Errorf("status %d", s.Status)
		}
		conflicts("after the end")
		same(`{"amount":30}`)

		tenant := request("order-1002")
		tenant.Namespace = "other"
		got, err := e.StartSaga(context.Background(), tenant)
		if err != nil || !got.Created || got.Run == first.Run {
			t.Errorf("other namespace: %+v %v", got, err)
		}
		// A later version doesn't change what a repeat is told.
		v2 := enginetest.Transfer()
		v2.InputSchema = `{"type":"object","required":["currency"]}`
		if d, created, err := e.Register(context.Background(), "default", v2); err != nil || !created || d.Version != 2 {
			t.Fatalf("register: %+v %v", d, err)
		}
		same(`{"amount":30}`)
		if _, err := e.StartSaga(context.Background(), request("order-1003")); err == nil {
			t.Error("version 2 takes an input that doesn't fit")
		}
		w.bus.Close()
		for _, n := range w.engines {
			n.halt()
		}
	})
}

// TestResultsTwiceLateAndDifferent: the first counts; a repeat is a repeat; another one is evidence; nothing is applied
// twice.
func TestResultsTwiceLateAndDifferent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newManualWorld(t, 2)
		e := w.start("e1")
		e.mustStart(w, request("t-1"))
		debit := w.task("debit", doing, 1, 1)
		verdict := func(r *workerv1.Result, want workerv1.Verdict) {
			t.Helper()
			if got := w.bus.Report(r); got != want {
				t.Errorf("verdict %s, want %s", got, want)
			}
		}
		// Twice in one pack, and again.
		shard := store.ShardOf("default", "t-1", 2)
		got := w.bus.ReportTo(shard, success(debit), success(debit))
		if d := cmp.Diff([]workerv1.Verdict{workerv1.Verdict_VERDICT_ACCEPTED, workerv1.Verdict_VERDICT_DUPLICATE}, got); d != "" {
			t.Error(d)
		}
		verdict(success(debit), workerv1.Verdict_VERDICT_DUPLICATE)
		other := success(debit)
		other.Output = []byte(`{"other":1}`)
		verdict(other, workerv1.Verdict_VERDICT_STALE)
		verdict(other, workerv1.Verdict_VERDICT_DUPLICATE)

		forged := success(debit)
		forged.Token = append([]byte(nil), debit.Token...)
		forged.Token[len(forged.Token)-1] ^= 1
		verdict(forged, workerv1.Verdict_VERDICT_REFUSED)
		verdict(&workerv1.Result{Token: debit.Token}, workerv1.Verdict_VERDICT_REFUSED)

		// Attempt 1 of credit times out; its late success settles the step while attempt 2 is out.
		credit := w.task("credit", doing, 1, 1)
		again := w.task("credit", doing, 2, 1)
		if credit.IdempotencyKey != again.IdempotencyKey {
			t.Error("another attempt has another key")
		}
		verdict(success(credit), workerv1.Verdict_VERDICT_ACCEPTED)
		verdict(success(again), workerv1.Verdict_VERDICT_STALE)
		verdict(success(w.task("confirm", doing, 1, 1)), workerv1.Verdict_VERDICT_ACCEPTED)
		if s := w.wait("t-1"); s.Status != store.Completed {
			t.Errorf("status %d", s.Status)
		}
		// After the end, with the saga in memory and without.
		verdict(success(debit), workerv1.Verdict_VERDICT_DUPLICATE)
		e.halt()
		e2 := w.start("e2")
		synctest.Wait()
		verdict(success(debit), workerv1.Verdict_VERDICT_DUPLICATE)
		_, state, _, err := e2.Get(context.Background(), "default", "t-1")
		if err != nil || len(state.Items) != 1 || state.Items[0].Kind != historyv1.ItemKind_ITEM_KIND_CONFLICTING_RESULTS {
			t.Errorf("%+v %v", state, err)
		}
		items, err := w.st.Items(context.Background(), store.ItemFilter{Namespace: "default"})
		if err != nil || len(items) != 1 || items[0].Fingerprint == "" || items[0].Version != state.Items[0].Version {
			t.Errorf("items %+v %v", items, err)
		}
		w.end()
	})
}

// TestUnknownSaga: a genuine token for a saga that the database doesn't have is answered and kept.
func TestUnknownSaga(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newManualWorld(t, 2)
		e := w.start("e1")
		e.mustStart(w, request("t-1"))
		debit := w.task("debit", doing, 1, 1)
		run, _ := uuid.Parse(debit.RunId)
		token := func(id string, run uuid.UUID, step string) []byte {
			tok, err := e.keys.Sign(&workerv1.TaskToken{
				Namespace: "default", SagaId: id, Run: run[:], Shard: int32(store.ShardOf("default", id, 2)), Step: step, Direction: doing,
				Generation: 1, Attempt: 1, ExpiresUs: e.clock.now() + 1e9,
			})
			if err != nil {
				t.Fatal(err)
			}
			return tok
		}
		for _, c := range []struct {
			token []byte
			want  workerv1.Verdict
		}{
			{token("nobody", run, "debit"), workerv1.Verdict_VERDICT_UNKNOWN_SAGA},
			{token("t-1", uuid.New(), "debit"), workerv1.Verdict_VERDICT_UNKNOWN_SAGA},
			{token("t-1", run, "nostep"), workerv1.Verdict_VERDICT_STALE},
		} {
			r := success(debit)
			r.Token = c.token
			if got := w.bus.Report(r); got != c.want {
				t.Errorf("verdict %s, want %s", got, c.want)
			}
		}
		strays, err := w.st.Strays(context.Background(), 10)
		if err != nil || len(strays) != 3 {
			t.Errorf("strays %+v %v", strays, err)
		}
		w.end()
	})
}

// TestCancelRacesTheLastResult: exactly one wins, and both sides are told.
func TestCancelRacesTheLastResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const sagas = 1000
		hold := make(chan struct{})
		w := newWorld(t, 8, func(task *workerv1.Task) *workerv1.Result {
			if task.Step == "confirm" {
				<-hold
			}
			return nil
		})
		e := w.start("e1")
		var wg sync.WaitGroup
		for i := range sagas {
			wg.Go(func() { e.try(w, request(fmt.Sprint("t-", i))) })
		}
		wg.Wait()
		synctest.Wait()
		answers := make([]sagadv1.CancelAnswer, sagas)
		for i := range sagas {
			if i == sagas/2 {
				close(hold)
			}
			wg.Go(func() {
				r, _, err := e.Cancel(context.Background(), "default", fmt.Sprint("t-", i), statemachine.Cancel{Actor: "a", Reason: "r", RequestID: fmt.Sprint(i)})
				if err != nil {
					t.Error(err)
				}
				answers[i] = r
			})
		}
		wg.Wait()
		counts := map[store.Status]int{}
		for i := range sagas {
			s := w.wait(fmt.Sprint("t-", i))
			counts[s.Status]++
			want := sagadv1.CancelAnswer_CANCEL_ANSWER_WILL_UNWIND
			if s.Status == store.Completed {
				want = sagadv1.CancelAnswer_CANCEL_ANSWER_TOO_LATE_COMPLETED
			}
			if answers[i] != want {
				t.Errorf("saga %d: status %d, the cancel was answered %s", i, s.Status, answers[i])
			}
		}
		t.Logf("completed %d, compensated %d", counts[store.Completed], counts[store.Compensated])
		if counts[store.Compensated] == 0 {
			t.Error("no cancel won: the race wasn't one")
		}
		w.end()
	})
}

// TestBadSagaDoesNotStopOthers: a saga whose history is damaged rests; the others of its shard go on; its history
// stays.
func TestBadSagaDoesNotStopOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newManualWorld(t, 1)
		e := w.start("e1")
		for i := range 3 {
			e.mustStart(w, request(fmt.Sprint("t-", i)))
		}
		synctest.Wait()
		e.halt()
		damaged := &damagedStore{Store: w.st, id: "t-1"}
		damaged.on.Store(true)
		p := enginetest.NewProcess(damaged, w.bus)
		e2, err := New(Config{Name: "e2", Logger: w.log}, p, p)
		if err != nil {
			t.Fatal(err)
		}
		if err := e2.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if q := e2.Quarantined(); len(q) != 1 || q[0].SagaID != "t-1" {
			t.Errorf("quarantined %+v", q)
		}
		tasks := map[string]*workerv1.Task{}
		for _, task := range w.bus.Tasks() {
			tasks[task.SagaId] = task
		}
		if tasks["t-0"].Dispatch == 1 || tasks["t-1"].Dispatch != 1 || tasks["t-2"].Dispatch == 1 {
			t.Errorf("tasks sent again: %v", tasks)
		}
		for id, want := range map[string]workerv1.Verdict{
			"t-0": workerv1.Verdict_VERDICT_ACCEPTED, "t-1": workerv1.Verdict_VERDICT_UNAVAILABLE, "t-2": workerv1.Verdict_VERDICT_ACCEPTED,
		} {
			if got := w.bus.Report(success(tasks[id])); got != want {
				t.Errorf("%s: %s, want %s", id, got, want)
			}
		}
		_, _, err = e2.Cancel(context.Background(), "default", "t-1", statemachine.Cancel{})
		var q *QuarantinedError
		if !errors.As(err, &q) {
			t.Errorf("cancel: %v", err)
		}
		// Once it can be read again, the sweep brings it back, with its task sent under a new message id.
		damaged.on.Store(false)
		time.Sleep(70 * time.Second)
		synctest.Wait()
		if q := e2.Quarantined(); len(q) != 0 {
			t.Errorf("still quarantined: %+v", q)
		}
		s, _ := w.saga("t-1")
		if s.Status == 0 {
			t.Error("the saga is gone")
		}
		_ = e2.Stop(context.Background())
		w.end()
	})
}

func TestBackpressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newManualWorld(t, 1)
		gate := make(chan struct{})
		e := w.start("e1", func(c *Config) {
			c.Fault = func(p string) {
				if p == BeforeCommit {
					<-gate
				}
			}
		})
		var wg sync.WaitGroup
		var mu sync.Mutex
		refused, good := 0, 0
		for i := range mailboxMax + 100 {
			wg.Go(func() {
				_, err := e.StartSaga(context.Background(), request(fmt.Sprint("t-", i)))
				var u *UnavailableError
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					good++
				case errors.As(err, &u):
					refused++
				default:
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		mu.Lock()
		if refused != 100 || good != 0 {
			t.Errorf("refused %d, good %d", refused, good)
		}
		mu.Unlock()
		close(gate)
		wg.Wait()
		if good != mailboxMax {
			t.Errorf("good %d", good)
		}
		w.bus.Close()
		e.halt()
	})
}

func TestInvalidRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newManualWorld(t, 1)
		e := w.start("e1")
		for name, change := range map[string]func(*StartRequest){
			"namespace": func(r *StartRequest) { r.Namespace = "A.b" },
			"no id":     func(r *StartRequest) { r.ID = "" },
			"id":        func(r *StartRequest) { r.ID = "a\x00b" },
			"long id":   func(r *StartRequest) { r.ID = strings.Repeat("x", 256) },
			"version":   func(r *StartRequest) { r.Version = -1 },
			"not JSON":  func(r *StartRequest) { r.Input = []byte("{") },
			"NUL":       func(r *StartRequest) { r.Input = []byte(`{"amount":30,"x":"\u0000"}`) },
			"schema":    func(r *StartRequest) { r.Input = []byte(`{"amount":"x"}`) },
			"too large": func(r *StartRequest) { r.Input = []byte(`{"amount":30,"x":"` + strings.Repeat("x", 256<<10) + `"}`) },
			"no such":   func(r *StartRequest) { r.Definition = "nothing" },
			"label":     func(r *StartRequest) { r.Labels = map[string]string{"a": "\xff"} },
		} {
			r := request("t-1")
			change(&r)
			_, err := e.StartSaga(context.Background(), r)
			var invalid *InvalidError
			var refusal *statemachine.Refusal
			var none *NotFoundError
			if !errors.As(err, &invalid) && !errors.As(err, &refusal) && !errors.As(err, &none) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, _, err := e.Cancel(context.Background(), "default", "t-1", statemachine.Cancel{}); err == nil {
			t.Error("a cancel of nothing is answered")
		}
		if _, _, err := e.Register(context.Background(), "default", &sagadv1.Definition{Name: "x"}); err == nil {
			t.Error("an empty definition is registered")
		}
		if n, _, _ := w.st.Sizes(); n != 0 {
			t.Errorf("%d sagas", n)
		}
		w.end()
	})
}

func TestChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newManualWorld(t, 1)
		e := w.start("e1")
		ch, stop := e.Changes("default", "t-1")
		e.mustStart(w, request("t-1"))
		e.mustStart(w, request("t-2"))
		synctest.Wait()
		select {
		case <-ch:
		default:
			t.Error("not told of the start")
		}
		if len(ch) != 0 {
			t.Error("told of another saga")
		}
		w.bus.Report(success(w.task("debit", doing, 1, 1)))
		synctest.Wait()
		if len(ch) != 1 {
			t.Error("not told of the result")
		}
		stop()
		stop()
		if e.watchers.any.Load() != 0 || len(e.watchers.of) != 0 {
			t.Error("a watcher is left")
		}
		w.end()
	})
}

// Two processes under one name: the first, whose shards are gone, says so once, and works again when the other has ended.
func TestNameTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newManualWorld(t, 4)
		var logs bytes.Buffer
		first := w.start("twin", func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&logs, nil)); c.Address = "http://first" })
		time.Sleep(time.Minute)
		if err := first.NameTaken(); err != nil || first.Engine.Healthy() != nil {
			t.Fatalf("alone: %v, %v", err, first.Engine.Healthy())
		}
		second := w.start("twin", func(c *Config) { c.Address = "http://second" })
		time.Sleep(time.Minute)
		synctest.Wait()
		if err := first.NameTaken(); err == nil || !strings.Contains(err.Error(), "http://second") || first.Engine.Healthy() == nil {
			t.Errorf("the first says %v, and is healthy: %v", err, first.Engine.Healthy())
		}
		if err := second.NameTaken(); err != nil {
			t.Errorf("the second says %v", err)
		}
		second.halt()
		time.Sleep(time.Minute)
		synctest.Wait()
		if err := first.NameTaken(); err != nil || len(first.Owned()) != 4 {
			t.Errorf("alone again: %v, it owns %v", err, first.Owned())
		}
		w.end()
		if n := strings.Count(logs.String(), "another process runs under this node's name"); n != 1 {
			t.Errorf("said %d times:\n%s", n, &logs)
		}
	})
}

func TestStopLeavesNothing(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	st := memory.New(8)
	ledger := enginetest.NewLedger(nil)
	bus := enginetest.NewBus(ledger.Handle)
	e, err := New(Config{Name: "e1"}, st, bus)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := e.Register(context.Background(), "default", enginetest.Transfer()); err != nil {
		t.Fatal(err)
	}
	ch, stop := e.Changes("default", "t-1")
	defer stop()
	if _, err := e.StartSaga(context.Background(), request("t-1")); err != nil {
		t.Fatal(err)
	}
	for range ch {
		s, err := st.Saga(context.Background(), store.Key{Shard: store.ShardOf("default", "t-1", 8), Namespace: "default", ID: "t-1"})
		if err == nil && s.Status.Terminal() {
			break
		}
	}
	bus.Close()
	if err := e.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := e.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := e.StartSaga(context.Background(), request("t-2")); err == nil {
		t.Error("a stopped engine starts sagas")
	}
	leases, err := st.Leases(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range leases {
		if l.Live {
			t.Errorf("shard %d is still held", l.Shard)
		}
	}
}
