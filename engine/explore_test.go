package engine

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/memory"
)

// TestExplore visits every state that a small world can get into: real doors, the real state machine and the real rules of a commit, and
// a provider behind a barrier. What a random run meets by luck, this meets for sure, within its bounds: so many crashes, repeats, losses,
// commits of unknown outcome and so on, in every order. Each state is reached by a list of choices, which is run from the start each time.

var (
	exploreBig   = flag.Bool("explore.big", false, "explore larger worlds: minutes")
	exploreBreak = flag.String("explore.break", "", "break something, to see that it is found: fence, tombstone, unknown")
)

// bounds say how often each thing may happen in one world.
type bounds struct {
	sagas                                        int
	crashes, takeovers, unknown, repeats, losses int8
	rejections, failures, cancels, early         int8
}

// smallWorld is a shard with two nodes that may have it.
type smallWorld struct {
	t       testing.TB
	machine *statemachine.Machine
	metrics *metrics
	bounds  bounds
	left    bounds
	st      *memory.Store
	fate    memory.Fate
	now     statemachine.Micros
	chance  uint64
	nodes   [2]*smallNode
	// tasks and results are on their way.
	tasks   []*workerv1.Task
	results []smallResult
	// effects stand in the world, by action key; closed are keys that are refused from now on.
	effects, closed map[string]bool
	// answered are what was said to callers.
	violation string
	// quiet: the same was looked at before.
	quiet bool
}

type smallNode struct {
	door *door
	// commit is under way: the batch was sent, and what is known of it comes later. unknown: it isn't.
	batch   *store.Batch
	unknown bool
}

type smallResult struct {
	saga, step string
	item       string
	run        uuid.UUID
	dir        workerv1.Direction
	generation int32
	attempt    int32
	outcome    historyv1.Outcome
}

// choice is one thing that may happen.
type choice struct {
	name func() string
	do   func()
	// odd: it uses up a bound. Random walks take such choices less often.
	odd bool
}

type counter struct{ n *uint64 }

func (c counter) Read(b []byte) (int, error) {
	for i := range b {
		*c.n = *c.n*6364136223846793005 + 1442695040888963407
		b[i] = byte(*c.n >> 56)
	}
	return len(b), nil
}

func smallDefinition() *sagadv1.Definition {
	step := func(name string, kind sagadv1.Kind) *sagadv1.Node {
		return &sagadv1.Node{Kind: &sagadv1.Node_Step{Step: &sagadv1.Step{
			Name: name, Activity: "x." + name, Kind: kind, Timeout: durationpb.New(10 * time.Second),
			Retry: &sagadv1.RetryPolicy{MaxAttempts: 1},
		}}}
	}
	return &sagadv1.Definition{
		Name: "small", Activities: []*sagadv1.Activity{{Name: "x.a"}, {Name: "x.b"}, {Name: "x.c"}},
		Body: []*sagadv1.Node{step("a", sagadv1.Kind_KIND_COMPENSATABLE), step("b", sagadv1.Kind_KIND_COMPENSATABLE), step("c", sagadv1.Kind_KIND_READ_ONLY)},
	}
}

func newSmallWorld(t testing.TB, m *statemachine.Machine, ms *metrics, b bounds) *smallWorld {
	return startSmallWorld(t, m, ms, b, "null")
}

func startSmallWorld(t testing.TB, m *statemachine.Machine, ms *metrics, b bounds, input string) *smallWorld {
	w := &smallWorld{t: t, machine: m, metrics: ms, bounds: b, left: b, now: 1_000_000_000, chance: 1, effects: map[string]bool{}, closed: map[string]bool{}}
	w.st = memory.New(1, memory.Random(counter{&w.chance}), memory.Clock(func() time.Time { return time.UnixMicro(w.now) }),
		memory.Fault(func([]store.Batch) memory.Fate { return w.fate }))
	w.take(0)
	for i := range b.sagas {
		id := fmt.Sprint("s", i)
		digest := [4]byte{byte(i)}
		run, _ := uuid.NewRandomFromReader(counter{&w.chance})
		w.nodes[0].door.submit([]*event{{
			key: sagaKey{"default", id}, machine: m, run: run, to: nobody{},
			what: statemachine.Start{Namespace: "default", SagaID: id, Version: 1, Input: []byte(input), Digest: digest[:]},
		}})
	}
	return w
}

func (w *smallWorld) fail(format string, args ...any) {
	if w.violation == "" {
		w.violation = fmt.Sprintf(format, args...)
	}
}

// take lets a node take the shard, as a process that starts, or whose turn it is, does.
func (w *smallWorld) take(n int) {
	node := store.Node{Name: fmt.Sprint("n", n), Boot: uuid.UUID{byte(n), byte(w.chance)}}
	grants, err := w.st.Acquire(context.Background(), node, []int{0}, 0)
	if err != nil || len(grants) != 1 {
		w.fail("the shard can't be taken: %v", err)
		return
	}
	d := newDoor(grants[0], doorConfig{
		redispatchAfter: time.Hour, parkAfter: time.Hour, batchMax: batchTransitionsMax, chance: func() uint64 { return 7 }, metrics: w.metrics,
		noWorker: func(*saga, statemachine.Call) bool { return false }, busHealthy: func() bool { return true },
		quarantined: func(g *saga, stack string) { w.fail("saga %s is quarantined: %v %s", g.key.id, g.broken, stack) },
		task: func(g *saga, c statemachine.Call, dispatch int32) (*workerv1.Task, error) {
			task, err := g.machine.Task(g.state, c)
			if err == nil {
				task.RunId = g.run.String()
			}
			return task, err
		},
	})
	found, err := w.st.Unfinished(context.Background(), 0, uuid.Nil, 100)
	if err != nil {
		w.fail("%v", err)
	}
	for i := range found {
		d.restore(w.lookedUp(&found[i]), w.now)
	}
	w.nodes[n] = &smallNode{door: d}
	w.flush(n)
}

func (w *smallWorld) lookedUp(x *store.Loaded) lookedUp {
	l := lookedUp{key: sagaKey{x.Saga.Namespace, x.Saga.ID}, exists: true, run: x.Saga.Run, machine: w.machine}
	l.state, l.bytes, l.err = foldSafely(w.machine, x)
	return l
}

// flush takes what leaves a door. Nothing may be ahead of what is durable.
func (w *smallWorld) flush(n int) {
	out := w.nodes[n].door.take()
	for _, task := range out.tasks {
		if w.quiet {
			w.send(task)
			continue
		}
		run, _ := uuid.Parse(task.RunId)
		rows, _ := w.st.History(context.Background(), 0, run, 1, 1000)
		durable := false
		for _, row := range rows {
			var t historyv1.Transition
			if err := proto.Unmarshal(row.Facts, &t); err != nil {
				w.fail("%v", err)
			}
			for _, f := range t.GetFacts() {
				a := f.GetAttemptScheduled()
				durable = durable || a != nil && a.GetCall().GetStep() == task.Step && a.GetCall().GetItem() == task.Item && int32(a.GetCall().GetDirection()) == int32(task.Direction) &&
					a.GetGeneration() == task.Generation && a.GetAttempt() == task.Attempt
			}
		}
		if !durable {
			w.fail("a task of %s %s is sent that isn't durable", task.SagaId, task.Step)
		}
		w.send(task)
	}
	for _, p := range out.answers {
		if s := p.state; !w.quiet && s != nil && p.err == nil {
			rows, _ := w.st.History(context.Background(), 0, p.run, 1, 1000)
			if int64(len(rows)) < s.N {
				w.fail("an answer reflects transition %d of %s, and %d are durable", s.N, s.SagaID, len(rows))
			}
		}
		p.to.answer(p.index, p.answer)
	}
	if len(out.lookups) > 0 {
		found, _ := w.st.Load(context.Background(), out.lookups)
		var results []lookedUp
		for _, k := range out.lookups {
			l := lookedUp{key: sagaKey{k.Namespace, k.ID}}
			for i := range found {
				if found[i].Saga.ID == k.ID {
					l = w.lookedUp(&found[i])
				}
			}
			results = append(results, l)
		}
		w.nodes[n].door.loaded(results)
	}
}

// send lets a task be on its way. The same attempt sent again is the same to a worker behind a barrier: one is enough.
func (w *smallWorld) send(task *workerv1.Task) {
	if !slices.ContainsFunc(w.tasks, func(x *workerv1.Task) bool { return sameAttempt(x, task) }) {
		w.tasks = append(w.tasks, task)
	}
}

func sameAttempt(a, b *workerv1.Task) bool {
	return a.RunId == b.RunId && a.Step == b.Step && a.Item == b.Item && a.Direction == b.Direction && a.Generation == b.Generation && a.Attempt == b.Attempt
}

// choices are all things that may happen now, always in the same order.
func (w *smallWorld) choices() []choice {
	var out []choice
	add := func(do func(), name string, args ...any) {
		out = append(out, choice{func() string { return fmt.Sprintf(name, args...) }, do, false})
	}
	odd := func(do func(), name string, args ...any) {
		add(do, name, args...)
		out[len(out)-1].odd = true
	}
	for n, x := range w.nodes {
		if x == nil {
			continue
		}
		switch {
		case x.batch == nil:
			if !x.door.idle(w.now) {
				add(func() { w.decide(n) }, "n%d decides", n)
			}
		default:
			add(func() { w.commit(n, memory.Answered) }, "n%d commits", n)
			if w.left.unknown > 0 {
				odd(func() { w.left.unknown--; w.commit(n, memory.AnswerLost) }, "n%d commits and isn't told", n)
				odd(func() { w.left.unknown--; w.commit(n, memory.CommitLost) }, "n%d's commit is lost", n)
			}
		}
		if w.left.crashes > 0 {
			odd(func() { w.left.crashes--; w.nodes[n] = nil }, "n%d dies", n)
		}
	}
	if w.nodes[0] == nil && w.nodes[1] == nil {
		add(func() { w.take(1) }, "n1 starts")
	} else if w.left.takeovers > 0 && (w.nodes[0] == nil) != (w.nodes[1] == nil) {
		n := 0
		if w.nodes[0] != nil {
			n = 1
		}
		odd(func() { w.left.takeovers--; w.take(n) }, "n%d takes over", n)
	}
	for i, task := range w.tasks {
		dir := strings.ToLower(strings.TrimPrefix(task.Direction.String(), "DIRECTION_"))
		of := func(do func(), how string) {
			add(do, "%s %s %s/%d "+how, task.SagaId, dir, task.Step, task.Attempt)
			out[len(out)-1].odd = how != "is carried out"
		}
		of(func() { w.serve(i, historyv1.Outcome_OUTCOME_SUCCEEDED, true) }, "is carried out")
		if task.Direction == workerv1.Direction_DIRECTION_DO && w.left.rejections > 0 {
			of(func() { w.left.rejections--; w.serve(i, historyv1.Outcome_OUTCOME_REJECTED, false) }, "is rejected")
		}
		if w.left.failures > 0 {
			of(func() { w.left.failures--; w.serve(i, historyv1.Outcome_OUTCOME_FAILED, true) }, "fails after its effect")
		}
		if w.left.losses > 0 {
			of(func() { w.left.losses--; w.serve(i, 0, true) }, "is carried out, and its answer lost")
			of(func() { w.left.losses--; w.tasks = slices.Delete(w.tasks, i, i+1) }, "is lost")
		}
	}
	for i := range w.results {
		for n, x := range w.nodes {
			if x == nil {
				continue
			}
			r := w.results[i]
			add(func() { w.hear(i, n, true) }, "n%d hears of %s %s %v/%d", n, r.saga, r.step, r.dir, r.attempt)
			if w.left.repeats > 0 {
				odd(func() { w.left.repeats--; w.hear(i, n, false) }, "n%d hears of %s %s %v/%d, and will again", n, r.saga, r.step, r.dir, r.attempt)
			}
		}
	}
	if w.left.cancels > 0 {
		for n, x := range w.nodes {
			if x != nil {
				odd(func() {
					w.left.cancels--
					x.door.submit([]*event{{key: sagaKey{"default", "s0"}, to: nobody{}, what: statemachine.Cancel{Reason: "r"}}})
				}, "n%d is asked to cancel s0", n)
			}
		}
	}
	// Time passes if nothing else can happen, and now and then all the same.
	if len(out) == 0 || w.left.early > 0 && len(w.tasks)+len(w.results) > 0 {
		early := len(out) > 0
		for n, x := range w.nodes {
			if x == nil || x.batch != nil {
				continue
			}
			if wake, ok := x.door.wake(); ok && wake > w.now {
				odd(func() {
					if early {
						w.left.early--
					}
					w.now = wake
				}, "time passes for n%d", n)
				break
			}
		}
	}
	return out
}

func (w *smallWorld) decide(n int) {
	x := w.nodes[n]
	batch := x.door.step(w.now)
	w.flush(n)
	x.batch, x.unknown = batch, false
}

func (w *smallWorld) commit(n int, fate memory.Fate) {
	x := w.nodes[n]
	w.fate = fate
	batch := *x.batch
	if *exploreBreak == "fence" {
		batch.Grant = w.grant()
	}
	results, err := w.st.Commit(context.Background(), []store.Batch{batch})
	w.fate = memory.Answered
	r := results[0]
	if *exploreBreak == "unknown" && r == store.Unknown {
		r = store.Refused
	}
	switch r {
	case store.Unknown:
		x.door.batch.resent = true // and the very same batch is sent again: the commit is still under way
		x.unknown = true
	case store.Committed, store.Already:
		x.batch = nil
		x.door.committed(r, w.now, nil)
		w.flush(n)
	case store.Fenced:
		w.nodes[n] = nil // its memory is dropped
	case store.Refused:
		x.batch = nil
		x.door.committed(r, w.now, err)
		w.flush(n)
	default:
		w.fail("a commit of n%d is %v", n, r)
	}
}

// grant is the present owner's, for a fence that is broken on purpose.
func (w *smallWorld) grant() store.Grant {
	best := w.nodes[0]
	if best == nil || w.nodes[1] != nil && w.nodes[1].door.grant.Epoch > best.door.grant.Epoch {
		best = w.nodes[1]
	}
	return best.door.grant
}

// changes says whether a step does something that can be undone.
func (w *smallWorld) changes(step string) bool { return !strings.HasPrefix(step, "c") }

func effectOf(run, step, item string) string { return run + "/" + step + "@" + item }

// serve lets a worker behind a barrier carry a task out. It answers as it did before, if it did.
func (w *smallWorld) serve(i int, outcome historyv1.Outcome, effect bool) {
	task := w.tasks[i]
	w.tasks = slices.Delete(w.tasks, i, i+1)
	key := effectOf(task.RunId, task.Step, task.Item)
	switch task.Direction {
	case workerv1.Direction_DIRECTION_DO:
		switch {
		case w.closed[key]:
			if outcome == historyv1.Outcome_OUTCOME_SUCCEEDED || outcome == historyv1.Outcome_OUTCOME_FAILED {
				outcome = historyv1.Outcome_OUTCOME_REJECTED
			}
		case outcome == historyv1.Outcome_OUTCOME_REJECTED:
			if w.effects[key] {
				outcome = historyv1.Outcome_OUTCOME_SUCCEEDED // the barrier has the answer
			} else {
				w.closed[key] = true // and keeps this one
			}
		case effect && w.changes(task.Step):
			w.effects[key] = true
		}
	case workerv1.Direction_DIRECTION_PROBE:
		if outcome == historyv1.Outcome_OUTCOME_SUCCEEDED {
			if outcome = historyv1.Outcome_OUTCOME_HAPPENED; !w.effects[key] {
				w.closed[key] = true
				outcome = historyv1.Outcome_OUTCOME_DID_NOT_HAPPEN
			}
		}
	default:
		if outcome == historyv1.Outcome_OUTCOME_SUCCEEDED && !w.effects[key] && !w.closed[key] {
			outcome = historyv1.Outcome_OUTCOME_NOTHING_TO_UNDO
		}
		delete(w.effects, key)
		if *exploreBreak != "tombstone" {
			w.closed[key] = true
		}
	}
	if outcome == 0 {
		return
	}
	run, _ := uuid.Parse(task.RunId)
	w.results = append(w.results, smallResult{task.SagaId, task.Step, task.Item, run, task.Direction, task.Generation, task.Attempt, outcome})
}

func (w *smallWorld) hear(i, n int, last bool) {
	r := w.results[i]
	if last {
		w.results = slices.Delete(w.results, i, i+1)
	}
	what := statemachine.Result{
		Call: statemachine.Call{Step: r.step, Item: r.item, Dir: historyv1.Direction(r.dir)}, Generation: r.generation, Attempt: r.attempt, Outcome: r.outcome, Worker: "w",
	}
	switch r.outcome {
	case historyv1.Outcome_OUTCOME_SUCCEEDED, historyv1.Outcome_OUTCOME_HAPPENED:
		what.Output = []byte(`{"n":1}`)
	case historyv1.Outcome_OUTCOME_REJECTED, historyv1.Outcome_OUTCOME_FAILED:
		what.Error = &historyv1.Error{Code: "X"}
	}
	back := r
	w.nodes[n].door.submit([]*event{{key: sagaKey{"default", r.saga}, run: r.run, what: what, to: heard(func(a answer) {
		// What isn't taken in, a worker reports again.
		if v := a.verdict(); v == workerv1.Verdict_VERDICT_UNAVAILABLE && !slices.Contains(w.results, back) {
			w.results = append(w.results, back)
		}
	})}})
}

// heard is told of an answer.
type heard func(answer)

func (h heard) answer(_ int, a answer) { h(a) }

// check is what must hold in every state.
func (w *smallWorld) check() {
	rows, _ := w.st.Sagas(context.Background(), store.SagaFilter{Limit: 100})
	for _, s := range rows {
		history, _ := w.st.History(context.Background(), 0, s.Run, 1, 1000)
		state, _, err := foldSafely(w.machine, &store.Loaded{Saga: s, History: history})
		if err != nil {
			w.fail("I2: saga %s doesn't fold: %v", s.ID, err)
			return
		}
		if int16(state.Status) != int16(s.Status) {
			w.fail("I2: saga %s is %v by its row and %v by its history", s.ID, s.Status, state.Status)
		}
		if !state.Waits() {
			w.fail("I1: nothing will wake saga %s", s.ID)
		}
		backward, ended := false, 0
		for _, row := range history {
			var t historyv1.Transition
			_ = proto.Unmarshal(row.Facts, &t)
			for _, f := range t.GetFacts() {
				switch {
				case f.GetUnwindStarted() != nil:
					backward = true
				case f.GetAttemptScheduled() != nil:
					if a := f.GetAttemptScheduled(); backward && a.GetCall().GetDirection() == historyv1.Direction_DIRECTION_DO {
						w.fail("I8: %s of saga %s starts after it turned back", a.GetCall().GetStep(), s.ID)
					} else if ended > 0 {
						w.fail("I11: an attempt after the end of saga %s", s.ID)
					}
				case f.GetCompleted() != nil, f.GetCompensated() != nil, f.GetAbandoned() != nil:
					ended++
				}
			}
		}
		if ended > 1 || s.Status.Terminal() != (ended == 1) {
			w.fail("I11: saga %s is %v with %d ends", s.ID, s.Status, ended)
		}
		if !s.Status.Terminal() {
			continue
		}
		// What stands is what the saga knows of, and nothing if it was undone.
		var stands, known []string
		for key := range w.effects { // sorted below
			if strings.HasPrefix(key, s.Run.String()+"/") {
				stands = append(stands, key)
			}
		}
		for _, e := range w.machine.Effects(state) {
			if e.GetState() != sagadv1.EffectState_EFFECT_STATE_UNDONE {
				known = append(known, effectOf(s.Run.String(), e.GetStep(), e.GetItem()))
			}
		}
		slices.Sort(stands)
		slices.Sort(known)
		if !slices.Equal(stands, known) || s.Status == store.Compensated && len(stands) > 0 {
			w.fail("I6: saga %s is %v; it knows of %v, and %v stands", s.ID, statemachine.Status(s.Status), known, stands)
		}
	}
}

// key tells states apart.
func (w *smallWorld) key() uint64 {
	h := fnv.New64a()
	put := func(v ...int64) {
		for _, x := range v {
			_ = binary.Write(h, binary.LittleEndian, x)
		}
	}
	text := func(s string) { put(int64(len(s))); h.Write([]byte(s)) }
	put(w.now, int64(w.left.crashes), int64(w.left.takeovers), int64(w.left.unknown), int64(w.left.repeats), int64(w.left.losses), int64(w.left.rejections),
		int64(w.left.failures), int64(w.left.cancels), int64(w.left.early))
	for i := range w.bounds.sagas {
		s, err := w.st.Saga(context.Background(), store.Key{Namespace: "default", ID: fmt.Sprint("s", i)})
		if err != nil {
			put(-1)
			continue
		}
		rows, _ := w.st.History(context.Background(), 0, s.Run, 1, 1000)
		put(int64(len(rows)), int64(s.Status))
		for _, r := range rows {
			h.Write(r.Facts)
		}
		for _, step := range []string{"a", "b"} {
			put(flag01(w.effects[effectOf(s.Run.String(), step, "")]), flag01(w.closed[effectOf(s.Run.String(), step, "")]))
		}
	}
	for _, x := range w.nodes {
		if x == nil {
			put(-2)
			continue
		}
		d := x.door
		put(d.grant.Epoch, d.seq, int64(len(d.queue)-d.head), flag01(x.batch != nil), flag01(x.unknown))
		for i := range w.bounds.sagas {
			g := d.sagas[sagaKey{"default", fmt.Sprint("s", i)}]
			if g == nil {
				put(-3)
				continue
			}
			put(stateN(g.state), stateN(g.next), g.wake, int64(len(g.sent)))
		}
		if x.batch != nil {
			for i := range x.batch.Transitions {
				h.Write(x.batch.Transitions[i].Facts)
			}
		}
		for _, ev := range d.queue[d.head:] {
			text(fmt.Sprintf("%s %T", ev.key.id, ev.what))
			if r, ok := ev.what.(statemachine.Result); ok {
				text(fmt.Sprint(r.Call, r.Generation, r.Attempt, r.Outcome))
			}
		}
	}
	var messages []string
	for _, t := range w.tasks {
		messages = append(messages, fmt.Sprint("t", t.SagaId, t.Step, t.Direction, t.Generation, t.Attempt))
	}
	for _, r := range w.results {
		messages = append(messages, fmt.Sprint("r", r.saga, r.step, r.dir, r.generation, r.attempt, r.outcome))
	}
	slices.Sort(messages)
	for _, m := range messages {
		text(m)
	}
	return h.Sum64()
}

func flag01(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func stateN(s *statemachine.State) int64 {
	if s == nil {
		return -1
	}
	return s.N
}

type explored struct {
	states, transitions, depth int
	ends                       map[string]int
}

// explore visits all states, nearest first, so that what is found is found by the shortest way.
func explore(t *testing.T, b bounds, limit int) (e explored, violation string, path []byte) {
	m, problems := statemachine.Compile(smallDefinition())
	if problems != nil {
		t.Fatal(problems)
	}
	ms, err := newMetrics(nil, gauges{})
	if err != nil {
		t.Fatal(err)
	}
	run := func(path []byte) *smallWorld {
		w := newSmallWorld(t, m, ms, b)
		for i, c := range path {
			w.quiet = i < len(path)-1 // it was looked at when it was new
			w.choices()[c].do()
		}
		return w
	}
	e.ends = map[string]int{}
	seen := map[uint64]bool{}
	queue := [][]byte{{}}
	seen[run(nil).key()] = true
	e.states = 1
	for len(queue) > 0 {
		path := queue[0]
		queue[0] = nil
		queue = queue[1:]
		e.depth = max(e.depth, len(path))
		n := len(run(path).choices())
		if n == 0 {
			w := run(path)
			e.ends[w.end()]++
			if w.violation != "" {
				return e, w.violation, path
			}
			continue
		}
		if n > 255 {
			t.Fatalf("%d choices", n)
		}
		for c := range n {
			next := append(slices.Clip(path), byte(c))
			w := run(next)
			e.transitions++
			k := w.key()
			if fresh := !seen[k]; fresh {
				w.check()
			}
			if w.violation != "" {
				return e, w.violation, next
			}
			if !seen[k] {
				seen[k] = true
				e.states++
				if e.states > limit {
					t.Fatalf("more than %d states: the bounds %+v are too wide", limit, b)
				}
				queue = append(queue, next)
			}
		}
	}
	return e, "", nil
}

// end says how a world ended in which nothing can happen any more.
func (w *smallWorld) end() string {
	var out []string
	for i := range w.bounds.sagas {
		s, err := w.st.Saga(context.Background(), store.Key{Namespace: "default", ID: fmt.Sprint("s", i)})
		switch {
		case err != nil:
			out = append(out, "not started")
		case !s.Status.Terminal() && s.Status != store.Stuck:
			w.fail("I1: nothing can happen any more, and saga %s is %v", s.ID, statemachine.Status(s.Status))
		default:
			out = append(out, statemachine.Status(s.Status).String())
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func TestExplore(t *testing.T) {
	worlds := []struct {
		name string
		bounds
		// floor is about 95 % of what was visited once: a world that shrinks isn't explored any more.
		floor int
	}{
		{"nodes", bounds{sagas: 1, crashes: 1, takeovers: 1, unknown: 1}, 15_700},
		{"repeats", bounds{sagas: 1, takeovers: 1, repeats: 1, losses: 1}, 8_400},
		{"workers", bounds{sagas: 1, repeats: 1, losses: 1, rejections: 1, failures: 1, early: 1}, 30_000},
		{"cancel", bounds{sagas: 1, cancels: 1, unknown: 1, rejections: 1}, 760},
		{"two sagas, a crash", bounds{sagas: 2, crashes: 1}, 15_700},
		{"two sagas, an unknown commit", bounds{sagas: 2, unknown: 1}, 950},
	}
	if *exploreBig {
		worlds = append(worlds, []struct {
			name string
			bounds
			floor int
		}{
			{"nodes and repeats", bounds{sagas: 1, crashes: 1, takeovers: 1, unknown: 1, repeats: 1}, 114_000},
			{"a cancel at any moment", bounds{sagas: 1, cancels: 1, takeovers: 1, unknown: 1, early: 1}, 0},
			{"two sagas, two nodes", bounds{sagas: 2, takeovers: 1}, 0},
			{"two sagas, crashes, repeats", bounds{sagas: 2, crashes: 1, unknown: 1, repeats: 1}, 0},
		}...)
	}
	for _, x := range worlds {
		t.Run(x.name, func(t *testing.T) {
			if (raceOn || testing.Short()) && x.floor > 1_000 {
				t.Skip("this world is too large for the race detector, and for -short")
			}
			began := time.Now()
			e, violation, path := explore(t, x.bounds, 3_000_000)
			t.Logf("%d distinct states, %d transitions, depth %d, ends %v, in %v", e.states, e.transitions, e.depth, e.ends, time.Since(began).Round(time.Millisecond))
			if violation != "" {
				m, _ := statemachine.Compile(smallDefinition())
				ms, _ := newMetrics(nil, gauges{})
				w := newSmallWorld(t, m, ms, x.bounds)
				for _, c := range path {
					cs := w.choices()
					t.Log(cs[c].name())
					cs[c].do()
				}
				t.Errorf("%s", violation)
			} else if e.states < x.floor {
				t.Errorf("%d states; the floor is %d", e.states, x.floor)
			}
		})
	}
}

// TestExploreFinds breaks something at the edge of the small world, and wants it found.
func TestExploreFinds(t *testing.T) {
	defer func(was string) { *exploreBreak = was }(*exploreBreak)
	for _, x := range []struct {
		what string
		bounds
	}{
		{"fence", bounds{sagas: 1, takeovers: 1}},
		{"unknown", bounds{sagas: 1, unknown: 1}},
		{"tombstone", bounds{sagas: 1, losses: 1, repeats: 1, failures: 1, early: 1}},
	} {
		*exploreBreak = x.what
		e, violation, path := explore(t, x.bounds, 1_000_000)
		if violation == "" {
			t.Errorf("without %s nothing is found in %d states", x.what, e.states)
		}
		t.Logf("without %s: after %d states, by %d choices: %s", x.what, e.states, len(path), violation)
	}
}
