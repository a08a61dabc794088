package engine

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/sagad/sagad/engine/enginetest"
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/memory"
)

// rig drives a door by hand: one goroutine, a clock that stands still, and a store in memory. The same seed does the
// same.
type rig struct {
	lookups int
	busDown bool
	*testing.T
	st      *memory.Store
	node    store.Node
	machine *statemachine.Machine
	door    *door
	metrics *metrics
	rng     *rand.Rand
	now     statemachine.Micros
	// fate of commits.
	fate  func() memory.Fate
	tasks []*workerv1.Task
	// what was asked and is answered.
	asked, answered int
	answers         []pending
	trail           []byte
	// before commit, after commit: the process may die there.
	dies func(point string) bool
}

type reader struct{ *rand.Rand }

func (r reader) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return len(b), nil
}

func newRig(t *testing.T, seed uint64) *rig {
	m, problems := statemachine.Compile(enginetest.Transfer())
	if problems != nil {
		t.Fatal(problems)
	}
	ms, err := newMetrics(nil, gauges{})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, machine: m, metrics: ms, rng: rand.New(rand.NewPCG(seed, 1)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()}
	r.node = store.Node{Name: "e1", Boot: uuid.Must(uuid.NewRandomFromReader(reader{r.rng}))}
	r.fate = func() memory.Fate { return memory.Answered }
	r.dies = func(string) bool { return false }
	r.st = memory.New(1, memory.Random(reader{r.rng}), memory.Clock(func() time.Time { return time.UnixMicro(r.now) }),
		memory.Fault(func([]store.Batch) memory.Fate { return r.fate() }))
	r.acquire()
	return r
}

// acquire makes a new door, as a process that starts does.
func (r *rig) acquire() {
	r.Helper()
	grants, err := r.st.Acquire(context.Background(), r.node, []int{0}, time.Hour)
	if err != nil || len(grants) != 1 {
		r.Fatal(grants, err)
	}
	r.door = newDoor(grants[0], doorConfig{
		redispatchAfter: 20 * time.Second, parkAfter: time.Minute, chance: r.rng.Uint64, metrics: r.metrics,
		noWorker: func(*saga, statemachine.Call) bool { return false }, busHealthy: func() bool { return !r.busDown },
		task: func(g *saga, c statemachine.Call, dispatch int32) (*workerv1.Task, error) {
			task, err := g.machine.Task(g.state, c)
			if err == nil {
				task.RunId, task.Dispatch = g.run.String(), dispatch
			}
			return task, err
		},
	})
	found, err := r.st.Unfinished(context.Background(), 0, uuid.Nil, 10_000)
	if err != nil {
		r.Fatal(err)
	}
	for i := range found {
		r.door.restore(r.lookedUp(&found[i]), r.now)
	}
	r.flush()
	r.asked = r.answered
}

func (r *rig) lookedUp(x *store.Loaded) lookedUp {
	l := lookedUp{key: sagaKey{x.Saga.Namespace, x.Saga.ID}, exists: true, run: x.Saga.Run, machine: r.machine}
	l.state, l.bytes, l.err = foldSafely(r.machine, x)
	return l
}

func (r *rig) answer(_ int, a answer) {
	r.answered++
	r.answers = append(r.answers, pending{answer: a})
}

func (r *rig) submit(events ...*event) {
	for _, ev := range events {
		if ev.to == nil {
			ev.to = r
		}
	}
	r.asked += len(events)
	r.door.submit(events)
}

// flush lets out what the door lets out, and holds it to being durable.
func (r *rig) flush() []store.Key {
	out := r.door.take()
	for _, task := range out.tasks {
		run, _ := uuid.Parse(task.RunId)
		if !r.scheduled(run, task) {
			r.Fatalf("a task was sent that isn't durable: %v", task)
		}
		r.tasks = append(r.tasks, task)
		r.trail = fmt.Appendf(r.trail, "task %s %s %s %d %d %d\n", task.SagaId, task.Direction, task.Step, task.Generation, task.Attempt, task.Dispatch)
	}
	for i := range out.answers {
		p := out.answers[i]
		if s := p.state; s != nil && p.err == nil {
			rows, _ := r.st.History(context.Background(), 0, p.run, 1, 10_000)
			if int64(len(rows)) < s.N {
				r.Fatalf("an answer reflects transition %d of saga %s, and %d are durable", s.N, s.SagaID, len(rows))
			}
		}
		p.to.answer(p.index, p.answer)
		r.trail = fmt.Appendf(r.trail, "answer %v %v %v\n", p.err, p.created, p.reply)
	}
	return slices.Clone(out.lookups)
}

func (r *rig) scheduled(run uuid.UUID, task *workerv1.Task) bool {
	rows, err := r.st.History(context.Background(), 0, run, 1, 10_000)
	if err != nil {
		r.Fatal(err)
	}
	for _, row := range rows {
		var t historyv1.Transition
		if err := proto.Unmarshal(row.Facts, &t); err != nil {
			r.Fatal(err)
		}
		for _, f := range t.GetFacts() {
			if a := f.GetAttemptScheduled(); a != nil && a.GetCall().GetStep() == task.Step && int32(a.GetCall().GetDirection()) == int32(task.Direction) &&
				a.GetGeneration() == task.Generation && a.GetAttempt() == task.Attempt {
				return true
			}
		}
	}
	return false
}

// drive steps and commits until nothing is left to do now. It says whether the process is still alive.
func (r *rig) drive() bool {
	r.Helper()
	for range 10_000 {
		batch := r.door.step(r.now)
		lookups := r.flush()
		r.lookups += len(lookups)
		if len(lookups) > 0 {
			found, err := r.st.Load(context.Background(), lookups)
			if err != nil {
				r.Fatal(err)
			}
			results := make([]lookedUp, 0, len(lookups))
			for _, k := range lookups {
				l := lookedUp{key: sagaKey{k.Namespace, k.ID}}
				for i := range found {
					if found[i].Saga.ID == k.ID {
						l = r.lookedUp(&found[i])
					}
				}
				results = append(results, l)
			}
			r.door.loaded(results)
		}
		if batch == nil {
			if r.door.idle(r.now) {
				return true
			}
			continue
		}
		if r.dies("before commit") {
			return false
		}
		for {
			results, err := r.st.Commit(context.Background(), []store.Batch{*batch})
			if results[0] == store.Unknown {
				r.door.batch.resent = true
				continue // the very same batch
			}
			if r.dies("after commit") {
				return false
			}
			r.door.committed(results[0], r.now, err)
			break
		}
		r.flush()
	}
	r.Fatal("the door doesn't come to rest")
	return false
}

func (r *rig) start(id, input string) *event {
	req := StartRequest{Namespace: "default", ID: id, Definition: "transfer"}
	digest := req.digest([]byte(input))
	return &event{
		key: sagaKey{"default", id}, machine: r.machine, run: uuid.Must(uuid.NewRandomFromReader(reader{r.rng})), invalid: r.machine.CheckInput([]byte(input)),
		what: statemachine.Start{Namespace: "default", SagaID: id, Version: 1, Input: []byte(input), Digest: digest[:]},
	}
}

func (r *rig) result(task *workerv1.Task, outcome historyv1.Outcome) *event {
	run, _ := uuid.Parse(task.RunId)
	res := statemachine.Result{
		Call: statemachine.Call{Step: task.Step, Dir: historyv1.Direction(task.Direction)}, Generation: task.Generation, Attempt: task.Attempt, Outcome: outcome,
	}
	if outcome == historyv1.Outcome_OUTCOME_SUCCEEDED {
		res.Output = []byte(`{}`)
	} else {
		res.Error = &historyv1.Error{Code: "X"}
	}
	return &event{key: sagaKey{"default", task.SagaId}, run: run, what: res}
}

func (r *rig) hash() uint64 {
	h := fnv.New64a()
	h.Write(r.trail)
	return h.Sum64()
}

// TestDoorSimulation lives through random lives of sagas: starts, results of every kind, late and twice, cancels,
// people's acts, time, commits with unknown outcomes, and crashes, and holds the door to what must be true at each
// step. At the end everything is brought to an end.
func TestDoorSimulation(t *testing.T) {
	seeds := uint64(120)
	if testing.Short() {
		seeds = 20
	}
	var crashes, unknown int
	ends := map[statemachine.Status]int{}
	for seed := range seeds {
		first := simulate(t, seed, &crashes, &unknown, ends)
		if seed%10 == 0 {
			if again := simulate(t, seed, new(int), new(int), map[statemachine.Status]int{}); again != first {
				t.Errorf("seed %d: another run of it does something else", seed)
			}
		}
	}
	t.Logf("%d crashes, %d unknown commits, ends %v", crashes, unknown, ends)
	if crashes < int(seeds) || unknown < int(seeds) || ends[statemachine.Completed] == 0 || ends[statemachine.Compensated] == 0 {
		t.Error("too little happened: the test doesn't test")
	}
}

func simulate(t *testing.T, seed uint64, crashes, unknown *int, ends map[statemachine.Status]int) uint64 {
	r := newRig(t, seed)
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	r.fate = func() memory.Fate {
		switch r.rng.IntN(12) {
		case 0:
			*unknown++
			return memory.AnswerLost
		case 1:
			*unknown++
			return memory.CommitLost
		}
		return memory.Answered
	}
	r.dies = func(string) bool { return r.rng.IntN(60) == 0 }
	ids := func() string { return fmt.Sprint("s-", r.rng.IntN(12)) }
	for range 200 {
		for range 1 + r.rng.IntN(4) {
			switch n := r.rng.IntN(20); {
			case n < 4:
				r.submit(r.start(ids(), `{"amount":1}`))
			case n == 4:
				r.submit(r.start(ids(), `{"amount":2}`))
			case n < 14 && len(r.tasks) > 0:
				// Mostly what is new, sometimes something old.
				i := len(r.tasks) - 1 - r.rng.IntN(min(len(r.tasks), 8))
				if r.rng.IntN(8) == 0 {
					i = r.rng.IntN(len(r.tasks))
				}
				o := outcomes[0]
				switch r.rng.IntN(10) {
				case 0:
					o = historyv1.Outcome_OUTCOME_REJECTED
				case 1, 2:
					o = historyv1.Outcome_OUTCOME_FAILED
				}
				r.submit(r.result(r.tasks[i], o))
			case n == 14:
				r.submit(&event{key: sagaKey{"default", ids()}, what: statemachine.Cancel{Reason: "r"}})
			case n == 15:
				r.act()
			case n == 16:
				r.now += r.rng.Int64N(3_000_000)
			case n == 17:
				if wake, ok := r.door.wake(); ok {
					r.now = max(r.now, wake)
				}
			case n == 18:
				r.now += 90_000_000
				r.sweep()
			}
		}
		if !r.drive() {
			*crashes++
			r.acquire()
		}
		if len(r.door.batchless()) > 0 {
			r.Fatalf("something is decided and not committed: %v", r.door.batchless())
		}
		if r.asked != r.answered {
			r.Fatalf("%d events were asked, %d answered", r.asked, r.answered)
		}
		r.consistent()
	}
	// Bring everything to an end.
	r.dies = func(string) bool { return false }
	for round := 0; ; round++ {
		if round > 500 {
			r.Fatal("sagas don't end")
		}
		_, unfinished, _ := r.st.Sizes()
		if unfinished == 0 {
			break
		}
		for _, task := range r.tasks {
			r.submit(r.result(task, historyv1.Outcome_OUTCOME_SUCCEEDED))
		}
		r.tasks = nil
		r.act()
		if wake, ok := r.door.wake(); ok {
			r.now = max(r.now, wake)
		}
		r.sweep()
		r.drive()
	}
	r.consistent()
	if got := value(r.metrics.repaired) + value(r.metrics.unsendable); got != 0 {
		r.Errorf("%v sagas needed repair", got)
	}
	sagas, _ := r.st.Sagas(context.Background(), store.SagaFilter{Limit: 1000})
	for _, s := range sagas {
		ends[statemachine.Status(s.Status)]++
	}
	return r.hash()
}

// batchless lists sagas with a decision that no batch will make durable.
func (d *door) batchless() []string {
	var ids []string
	for _, g := range d.sagas {
		if g.next != nil {
			ids = append(ids, g.key.id)
		}
	}
	return ids
}

// act does something that is allowed about an item that is open, if there is one.
func (r *rig) act() {
	items, err := r.st.Items(context.Background(), store.ItemFilter{Namespace: "default", Limit: 100})
	if err != nil {
		r.Fatal(err)
	}
	if len(items) == 0 {
		return
	}
	it := items[r.rng.IntN(len(items))]
	found, err := r.st.Load(context.Background(), []store.Key{{Shard: 0, Namespace: "default", ID: it.SagaID}})
	if err != nil || len(found) != 1 {
		r.Fatal(err)
	}
	l := r.lookedUp(&found[0])
	var may []historyv1.OperatorAction
	for _, a := range r.machine.Allowed(l.state, it.Number) {
		if a.GetAllowed() {
			may = append(may, a.GetAction())
		}
	}
	if len(may) > 0 {
		r.submit(&event{key: sagaKey{"default", it.SagaID}, what: statemachine.Act{
			Item: it.Number, Version: it.Version, Action: may[r.rng.IntN(len(may))], Actor: "ann", Reason: "r", Evidence: "e", Output: []byte(`{}`),
		}})
	}
}

func (r *rig) sweep() {
	found, err := r.st.Unfinished(context.Background(), 0, uuid.Nil, 10_000)
	if err != nil {
		r.Fatal(err)
	}
	var keys []sagaKey
	for _, x := range found {
		keys = append(keys, sagaKey{x.Saga.Namespace, x.Saga.ID})
	}
	if n := r.door.sweep(keys, r.now); n > 0 {
		r.Fatalf("%d sagas were lost and needed repair", n)
	}
}

// consistent compares the door's memory with the store.
func (r *rig) consistent() {
	r.Helper()
	sagas, err := r.st.Sagas(context.Background(), store.SagaFilter{Limit: 1000})
	if err != nil {
		r.Fatal(err)
	}
	for _, s := range sagas {
		rows, _ := r.st.History(context.Background(), 0, s.Run, 1, 10_000)
		state, _, err := foldSafely(r.machine, &store.Loaded{Saga: s, History: rows})
		if err != nil {
			r.Fatal(err)
		}
		if int16(state.Status) != int16(s.Status) {
			r.Fatalf("saga %s: row %d, history %s", s.ID, s.Status, state.Status)
		}
		if !state.Waits() {
			r.Fatalf("saga %s: nothing will wake it", s.ID)
		}
		g := r.door.sagas[sagaKey{"default", s.ID}]
		if g == nil {
			if !s.Status.Terminal() {
				r.Fatalf("saga %s isn't in memory", s.ID)
			}
			continue
		}
		if g.broken != nil {
			r.Fatalf("saga %s is quarantined: %v", s.ID, g.broken)
		}
		if g.state == nil {
			continue // cold
		}
		if g.state.N != state.N || g.state.Status != state.Status {
			r.Fatalf("saga %s: memory %d %s, store %d %s", s.ID, g.state.N, g.state.Status, state.N, state.Status)
		}
		if wake, ok := g.state.NextWake(); ok && (g.place < 0 || g.wake > max(wake, r.now+stalled.Microseconds())) {
			r.Fatalf("saga %s: wakes at %d, its timer is at %d", s.ID, wake, g.wake)
		}
		if len(g.sent) != len(g.state.InFlight()) {
			r.Fatalf("saga %s: %d attempts out, %d sent", s.ID, len(g.state.InFlight()), len(g.sent))
		}
	}
}

// TestDoorTicksAreCapped: after a pause timers don't all fire at once.
func TestDoorTicksAreCapped(t *testing.T) {
	r := newRig(t, 1)
	for i := range 3 * ticksMax {
		r.submit(r.start(fmt.Sprint("s-", i), `{"amount":1}`))
	}
	r.drive()
	r.now += 5_000_000
	batch := r.door.step(r.now)
	if len(batch.Transitions) != ticksMax {
		t.Errorf("%d timers fired in one turn", len(batch.Transitions))
	}
	results, _ := r.st.Commit(context.Background(), []store.Batch{*batch})
	r.door.committed(results[0], r.now, nil)
	r.drive()
	for _, g := range r.door.sagas {
		if g.state.Steps[0].Do.LastOutcome != historyv1.Outcome_OUTCOME_UNKNOWN {
			t.Fatalf("saga %s: its timer didn't fire", g.key.id)
		}
	}
}

// TestDoorBatchIsBounded: whatever is queued, a batch stays within its limits.
func TestDoorBatchIsBounded(t *testing.T) {
	r := newRig(t, 1)
	for i := range 2 * batchTransitionsMax {
		r.submit(r.start(fmt.Sprint("s-", i), `{"amount":1}`))
	}
	if n := len(r.door.step(r.now).Transitions); n != batchTransitionsMax {
		t.Errorf("%d transitions", n)
	}
}

// TestDoorTakesStartsForNew: a start isn't looked up, unless the database has just said that one wasn't new. Then the whole
// batch is decided again, and its other events lose nothing.
func TestDoorTakesStartsForNew(t *testing.T) {
	r := newRig(t, 1)
	r.submit(r.start("old", `{"amount":1}`))
	r.drive()
	if r.lookups != 0 {
		t.Errorf("%d lookups for a new saga", r.lookups)
	}
	old := r.answers[0]
	r.door = newDoor(store.Grant{Shard: r.door.grant.Shard, Epoch: r.door.grant.Epoch, ID: r.door.grant.ID, LastSeq: r.door.seq}, r.door.cfg)
	r.answers = nil
	r.submit(r.start("new-1", `{"amount":1}`))
	r.submit(r.start("old", `{"amount":1}`))
	r.submit(r.start("old", `{"amount":2}`))
	r.submit(r.start("new-2", `{"amount":1}`))
	r.drive()
	created, conflicts := 0, 0
	for _, a := range r.answers {
		var conflict *ConflictError
		switch {
		case errors.As(a.err, &conflict):
			conflicts++
		case a.err != nil:
			t.Error(a.err)
		case a.created:
			created++
		case a.run != old.run:
			t.Errorf("the repeat is told of run %s, not %s", a.run, old.run)
		}
	}
	if len(r.answers) != 4 || created != 2 || conflicts != 1 {
		t.Errorf("%d answers, %d created, %d conflicts", len(r.answers), created, conflicts)
	}
	before := r.lookups
	r.submit(r.start("new-3", `{"amount":1}`))
	r.drive()
	if r.lookups != before+1 {
		t.Errorf("%d lookups after a repeat, want %d", r.lookups, before+1)
	}
	r.now += lookAfterRefusal.Microseconds()
	r.submit(r.start("new-4", `{"amount":1}`))
	r.drive()
	if r.lookups != before+1 {
		t.Errorf("%d lookups long after a repeat, want %d", r.lookups, before+1)
	}
}

// TestDoorWaitsForTheBus: while the bus is away nothing is sent again, which would only fill it; afterwards it is.
func TestDoorWaitsForTheBus(t *testing.T) {
	r := newRig(t, 1)
	r.door.cfg.redispatchAfter = time.Second // the attempts have 5
	after := r.door.cfg.redispatchAfter.Microseconds()
	r.submit(r.start("s-1", `{"amount":1}`))
	r.drive()
	sent := len(r.tasks)
	r.busDown = true
	r.now += after
	r.drive()
	if len(r.tasks) != sent {
		t.Error("sent again while the bus is away")
	}
	r.busDown = false
	r.now += after
	r.drive()
	if len(r.tasks) != sent+1 {
		t.Error("not sent again when the bus is back")
	}
}

// TestDoorResends: what is out is sent again at once when the bus has lost it, once, and later again as ever.
func TestDoorResends(t *testing.T) {
	r := newRig(t, 1)
	r.door.cfg.redispatchAfter = time.Second // the attempts have 5
	for i := range 3 {
		r.submit(r.start(fmt.Sprint("s-", i), `{"amount":1}`))
	}
	r.drive()
	sent := len(r.tasks)
	r.drive()
	if len(r.tasks) != sent {
		t.Fatal("sent again without a reason")
	}
	r.door.resend(r.now)
	r.drive()
	if len(r.tasks) != 2*sent || r.tasks[sent].Dispatch != 2 {
		t.Fatalf("%d tasks, want each of %d sent again", len(r.tasks), sent)
	}
	r.drive()
	if len(r.tasks) != 2*sent {
		t.Error("sent a third time")
	}
	r.now += 2 * time.Second.Microseconds()
	r.drive()
	if len(r.tasks) != 3*sent {
		t.Errorf("%d tasks, want a third sending of each when it is due", len(r.tasks))
	}
}

// TestDoorForgetsEnded: ended sagas stay for a while, and not more than a number of them; a late repeat of one that is
// gone is still one.
func TestDoorForgetsEnded(t *testing.T) {
	r := newRig(t, 1)
	for i := range endedMax + 50 {
		r.submit(r.start(fmt.Sprint("s-", i), `{"amount":1}`))
	}
	for range 4 {
		r.drive()
		for _, task := range r.tasks {
			r.submit(r.result(task, historyv1.Outcome_OUTCOME_SUCCEEDED))
		}
		if r.tasks[0].Step != "confirm" {
			r.tasks = r.tasks[:0]
		}
	}
	r.drive()
	if len(r.door.sagas) != endedMax || r.door.ended.count != endedMax {
		t.Fatalf("%d sagas in memory, %d ended", len(r.door.sagas), r.door.ended.count)
	}
	for i := range endedMax + 50 {
		r.submit(r.start(fmt.Sprint("s-", i), `{"amount":1}`))
	}
	r.answers = nil
	r.drive()
	for _, a := range r.answers {
		if a.err != nil || a.created || a.state.Status != statemachine.Completed {
			t.Fatalf("%+v", a)
		}
	}
	if len(r.answers) != endedMax+50 || len(r.door.sagas) > endedMax || r.door.ended.count != len(r.door.sagas) {
		t.Errorf("%d answers, %d sagas in memory, %d ended", len(r.answers), len(r.door.sagas), r.door.ended.count)
	}
	bytes := 0
	for _, g := range r.door.sagas {
		bytes += g.bytes
	}
	if bytes != r.door.ended.bytes || bytes > endedBytesMax {
		t.Errorf("%d bytes, counted %d", bytes, r.door.ended.bytes)
	}
}

// TestDoorParks: a saga that waits for a person leaves memory, and is there when the person acts.
func TestDoorParks(t *testing.T) {
	r := newRig(t, 1)
	r.submit(r.start("s-1", `{"amount":1}`))
	r.drive()
	r.submit(r.result(r.tasks[0], historyv1.Outcome_OUTCOME_SUCCEEDED))
	r.drive()
	r.submit(r.result(r.tasks[1], historyv1.Outcome_OUTCOME_REJECTED))
	r.drive()
	r.submit(r.result(r.tasks[2], historyv1.Outcome_OUTCOME_REJECTED)) // can't undo
	r.drive()
	g := r.door.sagas[sagaKey{"default", "s-1"}]
	if g.state.Status != statemachine.Stuck || r.door.stuck != 1 || r.door.oldest() == 0 {
		t.Fatalf("%s", g.state.Status)
	}
	r.sweep()
	if g.state == nil {
		t.Error("parked at once")
	}
	r.now += 2 * 60_000_000
	r.sweep()
	if g.state != nil || r.door.stuck != 1 || r.door.oldest() == 0 || r.door.hot() != 1 {
		t.Error("not parked, or not counted any more")
	}
	r.act()
	r.act()
	r.drive()
	if g.state == nil || g.state.N < 5 {
		t.Errorf("%+v", g.state)
	}
	r.consistent()
}

// TestDoorSurvivesPanics: a machine that panics puts its saga aside and nothing else.
func TestDoorSurvivesPanics(t *testing.T) {
	r := newRig(t, 1)
	r.submit(r.start("s-1", `{"amount":1}`), r.start("s-2", `{"amount":1}`))
	r.drive()
	good := r.door.sagas[sagaKey{"default", "s-1"}].machine
	r.door.sagas[sagaKey{"default", "s-1"}].machine = nil
	r.answers = nil
	r.submit(r.result(r.tasks[0], historyv1.Outcome_OUTCOME_SUCCEEDED), r.result(r.tasks[1], historyv1.Outcome_OUTCOME_SUCCEEDED))
	r.drive()
	var q *QuarantinedError
	if len(r.answers) != 2 || !errors.As(r.answers[0].err, &q) || r.answers[1].err != nil {
		t.Fatalf("%+v", r.answers)
	}
	if len(r.door.quarantines()) != 1 {
		t.Errorf("%+v", r.door.quarantines())
	}
	r.machine = good
	r.sweep()
	r.drive()
	if len(r.door.quarantines()) != 0 {
		t.Errorf("%+v", r.door.quarantines())
	}
	r.consistent()
}

func TestResumedDispatch(t *testing.T) {
	seen := map[int32]bool{}
	for _, epoch := range []int64{1, 2, 3, 32767, 1<<32 + 1} {
		n := resumedDispatch(epoch)
		if n < 2 || seen[n] {
			t.Errorf("epoch %d: %d", epoch, n)
		}
		seen[n] = true
	}
}

func TestTimers(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	var h timers
	var all []*saga
	for range 500 {
		g := &saga{place: -1}
		all = append(all, g)
	}
	for range 5000 {
		g := all[rng.IntN(len(all))]
		g.wake = rng.Int64N(1000)
		h.set(g)
	}
	want := 0
	for _, g := range all {
		if g.wake != 0 {
			want++
		}
	}
	if len(h) != want {
		t.Fatalf("%d in the heap, want %d", len(h), want)
	}
	last := statemachine.Micros(0)
	for len(h) > 0 {
		g := h[0]
		if g.wake < last || g.place != 0 {
			t.Fatalf("out of order")
		}
		last = g.wake
		h.remove(g)
	}
}
