package statemachine

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
)

// checksGiven says that the command line says how often to check. Asked before check sets the flag itself.
var checksGiven = sync.OnceValue(func() bool {
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	return given
})

// check runs a property n times, or as often as -rapid.checks says.
func check(t *testing.T, n int, property func(*rapid.T)) {
	t.Helper()
	if !checksGiven() {
		if err := flag.Set("rapid.checks", fmt.Sprint(n)); err != nil {
			t.Fatal(err)
		}
	}
	if err := flag.Set("rapid.nofailfile", "true"); err != nil { // the seed that is printed is enough
		t.Fatal(err)
	}
	rapid.Check(t, property)
}

// TestAnyEvents lets anything happen to any saga, and compares each step with the model. Run more with
// -rapid.checks=20000; -rapid.v tells what happened.
func TestAnyEvents(t *testing.T) {
	check(t, 2000, func(t *rapid.T) {
		r := newRun(t, drawDefinition(t))
		for range pick(t, 50, "events") {
			r.now += int64(pick(t, 3, "passing")) * int64(pick(t, 700_000, "time"))
			r.event()
		}
		r.finish()
	})
}

// run is a saga under test.
type run struct {
	t       *rapid.T
	m       *Machine
	s       *State
	folded  *State
	print   string // of s
	model   *model
	now     Micros
	history []*historyv1.Transition
	results []Result // those that were recorded
	tasks   map[string]*workerv1.Task
}

func newRun(t *rapid.T, def *sagadv1.Definition) *run {
	m, problems := Compile(def)
	if len(problems) > 0 {
		t.Fatalf("a definition that should be good isn't:\n%s", printProblems(problems))
	}
	r := &run{t: t, m: m, model: newModel(def), now: 1_000_000_000, tasks: map[string]*workerv1.Task{}}
	input := inputWhole
	if oneIn(t, 4, "poor input") {
		input = inputPoor
	}
	r.apply(Start{Namespace: "n", SagaID: "s", Version: 1, Input: []byte(input), Labels: map[string]string{"k": "v"}})
	return r
}

// apply decides on an event, checks everything that must hold of any decision, and takes it.
func (r *run) apply(e Event) (Decision, error) {
	d, err := r.m.Decide(r.s, e, r.now, rapid.Uint64().Draw(r.t, "chance"))
	if p := fingerprint(r.s); p != r.print {
		r.t.Fatalf("%T: decide changed the state before", e)
	}
	if err != nil {
		var refusal *Refusal
		if !errors.As(err, &refusal) || refusal.Code == "" || refusal.Message == "" {
			r.t.Fatalf("%T: %#v", e, err)
		}
		if d.State != r.s || d.Transition != nil || d.Dispatch != nil || d.Stop != nil {
			r.t.Fatalf("%T was refused (%v) and changes something: %+v", e, err, d)
		}
		return d, err
	}
	if d.Transition == nil {
		if d.State != r.s || d.Dispatch != nil || d.Stop != nil {
			r.t.Fatalf("%T changes nothing, but something: %+v", e, d)
		}
		return d, nil
	}
	if len(d.Transition.GetFacts()) == 0 {
		r.t.Fatalf("%T: a transition without facts", e)
	}
	// As stored.
	raw, err := proto.Marshal(d.Transition)
	if err != nil {
		r.t.Fatalf("%T: %v", e, err)
	}
	stored := &historyv1.Transition{}
	if err := proto.Unmarshal(raw, stored); err != nil {
		r.t.Fatalf("%T: %v", e, err)
	}
	for _, f := range stored.GetFacts() {
		r.t.Logf("%d %s", r.now, Sentence(f))
	}
	r.history = append(r.history, stored)
	if r.folded, err = r.m.Evolve(r.folded, stored); err != nil {
		r.t.Fatalf("%T doesn't fold: %v", e, err)
	}
	before := r.s
	r.s, r.print = d.State, fingerprint(d.State)
	if fingerprint(r.folded) != r.print {
		r.t.Fatalf("%T: the fold differs from what was decided on:\n%+v\n%+v", e, r.folded, r.s)
	}
	if err := r.model.read(stored, r.now); err != nil {
		r.t.Fatalf("%T: %v", e, err)
	}
	if err := r.model.check(r.m, r.s); err != nil {
		r.t.Fatalf("%T: %v", e, err)
	}
	if before != nil && before.Status.Terminal() && before.Status != r.s.Status {
		r.t.Fatalf("%T: %s became %s", e, before.Status, r.s.Status)
	}
	r.commands(d)
	return d, nil
}

// commands checks what is to be sent and stopped.
func (r *run) commands(d Decision) {
	var scheduled []string
	for _, f := range d.Transition.GetFacts() {
		if a := f.GetAttemptScheduled(); a != nil {
			scheduled = append(scheduled, Call{Step: a.GetCall().GetStep(), Dir: a.GetCall().GetDirection()}.String())
		}
	}
	if got := fmt.Sprint(d.Dispatch); got != fmt.Sprint(scheduled) {
		r.t.Fatalf("dispatch %v, scheduled %v", got, scheduled)
	}
	for _, c := range d.Dispatch {
		if r.s.Call(c).Phase != InFlight {
			r.t.Fatalf("%s is to be sent and is %s", c, r.s.Call(c).Phase)
		}
	}
	// Whatever is in flight can be sent again at any time, and each time it is the same request.
	for _, c := range r.s.InFlight() {
		task, err := r.m.Task(r.s, c)
		if err != nil {
			r.t.Fatalf("%s: %v", c, err)
		}
		if task.GetAttempt() != r.s.Call(c).Attempt || task.GetDeadlineUs() != r.s.Call(c).Deadline || task.GetTimeoutUs() <= 0 || task.GetActivity() == "" || (task.GetUndo() != nil) != (c.Dir == undo) {
			r.t.Fatalf("task %v", task)
		}
		key := fmt.Sprintf("%s/%d", c, task.GetGeneration())
		task.Attempt, task.DeadlineUs = 0, 0
		if first, ok := r.tasks[key]; ok && !proto.Equal(first, task) {
			r.t.Fatalf("two requests under one key %s:\n%v\n%v", key, first, task)
		}
		r.tasks[key] = task
	}
}

func (r *run) event() {
	switch pick(r.t, 12, "event") {
	case 0, 1, 2, 3:
		r.answer()
	case 4, 5:
		r.result()
	case 6:
		r.repeat()
	case 7, 8:
		r.tick()
	case 9:
		r.tickEarly()
	case 10:
		if oneIn(r.t, 3, "cancel") {
			r.cancel()
		}
	case 11:
		r.act()
	}
}

// answer gives a result for an attempt that is out.
func (r *run) answer() {
	calls := r.s.InFlight()
	if len(calls) == 0 {
		r.act()
		return
	}
	c := calls[pick(r.t, len(calls), "call")]
	e := r.draw(c)
	e.Generation, e.Attempt = r.s.Call(c).Generation, r.s.Call(c).Attempt
	r.give(e)
}

// result gives a result for any attempt: an old one, one of an older generation, one that isn't there yet, one of no step.
func (r *run) result() {
	i := pick(r.t, len(r.s.Steps), "step")
	c := Call{Step: r.s.Steps[i].Name, Dir: historyv1.Direction(1 + pick(r.t, 2, "direction"))}
	e := r.draw(c)
	cs := r.s.Call(c)
	e.Generation, e.Attempt = cs.Generation, cs.Attempt-int32(pick(r.t, 3, "older"))
	switch pick(r.t, 12, "odd") {
	case 8:
		e.Generation--
	case 9:
		e.Generation, e.Attempt = e.Generation+1, 1
	case 10:
		e.Attempt = cs.Attempt + 1
	case 11:
		e.Call = []Call{{Step: "nosuch", Dir: do}, {Step: c.Step, Item: "x", Dir: do}, {Step: c.Step}, {Step: c.Step, Dir: 9}}[pick(r.t, 4, "stray")]
	}
	d, _ := r.give(e)
	ahead := e.Generation > cs.Generation || e.Generation == cs.Generation && e.Attempt > cs.Attempt
	if known := e.Call == c; known && ahead != d.Reply.Ahead || !known && !d.Reply.Stray || (d.Reply.Ahead || d.Reply.Stray) && d.Transition != nil {
		r.t.Fatalf("%+v: %+v", e, d.Reply)
	}
}

func (r *run) draw(c Call) Result {
	e := Result{Call: c, Worker: "w", Outcome: historyv1.Outcome_OUTCOME_SUCCEEDED}
	n := pick(r.t, 16, "outcome")
	switch {
	case n < 6:
		e.Output = []byte(outputWhole)
	case n == 6:
		e.Output = []byte([]string{"", "null", `{"ok":false}`, `[]`, `{"ok":"\u0000"}`, `{"ok":1}`, `{`}[pick(r.t, 7, "output")])
	case n == 7:
		e.Error = &historyv1.Error{Code: "RESULT_NOT_STORABLE"}
	case n < 10:
		e.Outcome, e.Error = historyv1.Outcome_OUTCOME_REJECTED, &historyv1.Error{Code: "NO"}
	case n < 13:
		e.Outcome, e.Error = historyv1.Outcome_OUTCOME_FAILED, &historyv1.Error{Code: "ERR", Message: fmt.Sprint(pick(r.t, 3, "message"))}
		e.GiveUp = oneIn(r.t, 5, "give up")
		e.RetryAfter = int64(pick(r.t, 3, "retry after") * 1_000_000)
	case n < 15:
		e.Outcome = historyv1.Outcome_OUTCOME_NOTHING_TO_UNDO
	default:
		e.Outcome = historyv1.Outcome([]int32{0, 4, 6, -1}[pick(r.t, 4, "odd outcome")])
	}
	return e
}

func (r *run) give(e Result) (Decision, error) {
	d, err := r.apply(e)
	if err != nil {
		r.t.Fatalf("a result is refused: %v", err)
	}
	if d.Reply.Verdict == workerv1.Verdict_VERDICT_UNSPECIFIED {
		r.t.Fatalf("no verdict on %+v", e)
	}
	if (d.Reply.Verdict == workerv1.Verdict_VERDICT_ACCEPTED) && d.Transition == nil {
		r.t.Fatalf("accepted, and nothing changes: %+v", e)
	}
	if d.Transition != nil {
		r.results = append(r.results, e)
	}
	return d, nil
}

// repeat gives a result once more that was recorded before. Nothing changes.
func (r *run) repeat() {
	if len(r.results) == 0 {
		return
	}
	e := r.results[pick(r.t, len(r.results), "which")]
	d, _ := r.give(e)
	if d.Transition != nil || d.Reply.Verdict != workerv1.Verdict_VERDICT_DUPLICATE {
		r.t.Fatalf("a repeat is %s: %+v", d.Reply.Verdict, e)
	}
}

func (r *run) tick() {
	if next, ok := r.s.NextWake(); ok && !oneIn(r.t, 4, "whenever") {
		r.now = max(r.now, next)
	}
	r.tickNow()
}

func (r *run) tickNow() {
	r.apply(Tick{NoWorker: func(Call) bool { return false }})
	if next, ok := r.s.NextWake(); ok && next <= r.now {
		r.t.Fatalf("after a tick at %d the saga wakes at %d", r.now, next)
	}
	if d, _ := r.apply(Tick{}); d.Transition != nil {
		r.t.Fatalf("a second tick at one time changes something: %v", d.Transition)
	}
}

// tickEarly ticks when nothing is due. Nothing changes.
func (r *run) tickEarly() {
	next, ok := r.s.NextWake()
	if !ok || next <= r.now {
		return
	}
	r.now = next - 1
	if d, _ := r.apply(Tick{}); d.Transition != nil {
		r.t.Fatalf("a timer fired early: %v", d.Transition)
	}
}

func (r *run) cancel() {
	before := r.s.Status
	started := r.m.pivotStartedFor(r.s)
	e := Cancel{Actor: "ann", Reason: "why", RequestID: []string{"", "r1", "r2"}[pick(r.t, 3, "request")]}
	repeated := r.s.answered(e.RequestID)
	d, err := r.apply(e)
	if err != nil {
		r.t.Fatalf("a cancel is refused: %v", err)
	}
	want := sagadv1.CancelAnswer_CANCEL_ANSWER_WILL_UNWIND
	switch {
	case r.model.backward && d.Transition == nil && repeated:
	case before == Completed:
		want = sagadv1.CancelAnswer_CANCEL_ANSWER_TOO_LATE_COMPLETED
	case before.Terminal():
		want = sagadv1.CancelAnswer_CANCEL_ANSWER_ALREADY_ENDED
	case r.model.backward && d.Transition == nil:
		want = sagadv1.CancelAnswer_CANCEL_ANSWER_ALREADY_UNWINDING
	case started:
		want = sagadv1.CancelAnswer_CANCEL_ANSWER_TOO_LATE_PAST_PIVOT
	case d.Transition == nil || !r.model.backward:
		r.t.Fatal("the cancel has no effect")
	}
	if d.Reply.Cancel != want {
		r.t.Fatalf("a cancel of a saga that is %s is answered with %s, want %s", before, d.Reply.Cancel, want)
	}
}

func (m *Machine) pivotStartedFor(s *State) bool { return (&decider{m: m, s: s}).pivotStarted() }

// act does anything to any item.
func (r *run) act() {
	e := Act{
		Item: int32(1 + pick(r.t, len(r.s.Items)+1, "item")), Action: historyv1.OperatorAction(pick(r.t, 7, "action")),
		Actor: "bob", Reason: "because", Evidence: "ticket", RequestID: []string{"", "", "r1", "r3"}[pick(r.t, 4, "request")], Output: []byte(outputWhole),
	}
	if e.Action == historyv1.OperatorAction_OPERATOR_ACTION_ABANDON && !oneIn(r.t, 4, "really abandon") {
		e.Action = historyv1.OperatorAction_OPERATOR_ACTION_RETRY
	}
	it := r.s.Item(e.Item)
	if it != nil {
		e.Version = it.Version - int64(pick(r.t, 8, "stale")/7)
		if r.m.byName[it.Call.Step] == 0 && r.s.Step(it.Call.Step) == nil && it.Call.Step != returnStep {
			e.Output = []byte([]string{"true", "false", "1"}[pick(r.t, 3, "branch")])
		}
	}
	switch pick(r.t, 12, "wrong") {
	case 9:
		e.Reason = ""
	case 10:
		e.Evidence = ""
	case 11:
		e.Output = []byte(`{"ok":"no"}`)
	}
	allowed := false
	for _, a := range r.m.Allowed(r.s, e.Item) {
		if a.GetConsequence() == "" {
			r.t.Fatalf("nothing is said of %s", a.GetAction())
		}
		allowed = allowed || a.GetAllowed() && a.GetAction() == e.Action
	}
	repeated := it != nil && r.s.answered(e.RequestID)
	terminal := r.s.Status.Terminal()
	d, err := r.apply(e)
	switch {
	case it == nil:
		if err == nil {
			r.t.Fatal("an act on an item that there isn't")
		}
	case repeated:
		if err != nil || !d.Reply.Duplicate || d.Transition != nil {
			r.t.Fatalf("a repeated request: %v %+v", err, d.Reply)
		}
	case e.Version != it.Version || !allowed || e.Reason == "":
		if err == nil {
			r.t.Fatalf("%+v was allowed on %+v", e, it)
		}
	case err != nil:
		if refusal := err.(*Refusal); refusal.Code != RefusedInvalid && refusal.Code != RefusedOutput {
			r.t.Fatalf("%+v is allowed, and is refused: %v", e, err)
		}
	default:
		if d.Transition == nil || d.Transition.GetFacts()[0].GetOperatorActed().GetActor() != "bob" {
			r.t.Fatalf("an act that doesn't stand in the history: %v", d.Transition)
		}
		if terminal && len(d.Transition.GetFacts()) != 2 {
			r.t.Fatalf("an act on a saga that has ended: %v", d.Transition)
		}
	}
}

// finish drives the saga to its end: whatever is asked succeeds from now on. Then it folds the whole history anew.
func (r *run) finish() {
	bound := 20*len(r.s.Steps) + 10*len(r.s.Items) + 20
	for i := 0; !r.s.Status.Terminal(); i++ {
		if i > bound {
			r.t.Fatalf("the saga doesn't end: %+v", r.s)
		}
		r.now += 1000
		if calls := r.s.InFlight(); len(calls) > 0 {
			c := calls[pick(r.t, len(calls), "call")]
			cs := r.s.Call(c)
			r.give(Result{Call: c, Generation: cs.Generation, Attempt: cs.Attempt, Outcome: historyv1.Outcome_OUTCOME_SUCCEEDED, Output: []byte(outputWhole)})
			continue
		}
		if r.settle() {
			continue
		}
		next, ok := r.s.NextWake()
		if !ok {
			r.t.Fatalf("the saga is lost: %+v", r.s)
		}
		r.now = max(r.now, next)
		r.tickNow()
	}
	again, err := r.m.Fold(r.history)
	if err != nil {
		r.t.Fatal(err)
	}
	if fingerprint(again) != r.print {
		r.t.Fatal("folding the whole history anew gives another state")
	}
	if d, _ := r.apply(Tick{}); d.Transition != nil {
		r.t.Fatal("a tick after the end changes something")
	}
}

// settle lets a person act on the first item that blocks the saga.
func (r *run) settle() bool {
	for i := range r.s.Items {
		it := &r.s.Items[i]
		if !it.Blocking || it.Status != historyv1.ItemStatus_ITEM_STATUS_OPEN {
			continue
		}
		e := Act{Item: it.Number, Version: it.Version, Actor: "bob", Reason: "because", Evidence: "ticket", Action: historyv1.OperatorAction_OPERATOR_ACTION_RETRY}
		if it.Call.Dir == do && (it.Kind == historyv1.ItemKind_ITEM_KIND_EXPRESSION || oneIn(r.t, 2, "complete")) {
			e.Action, e.Output = historyv1.OperatorAction_OPERATOR_ACTION_COMPLETE, []byte(outputWhole)
			if r.s.Step(it.Call.Step) == nil && it.Call.Step != returnStep {
				e.Output = []byte("true")
			}
		}
		if _, err := r.apply(e); err != nil {
			r.t.Fatalf("%+v: %v", it, err)
		}
		return true
	}
	return false
}

// TestDrawnDefinitions checks on the way that drawn definitions draw, hash and print as one would expect.
func TestDrawnDefinitions(t *testing.T) {
	check(t, 200, func(t *rapid.T) {
		def := drawDefinition(t)
		_, problems := Compile(def)
		if len(problems) > 0 {
			t.Fatal(printProblems(problems))
		}
		raw, err := proto.Marshal(def)
		if err != nil {
			t.Fatal(err)
		}
		again := &sagadv1.Definition{}
		if err := proto.Unmarshal(raw, again); err != nil {
			t.Fatal(err)
		}
		a, errA := Canonical(def)
		b, errB := Canonical(again)
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Fatalf("%v %v\n%s\n%s", errA, errB, a, b)
		}
		if chart := Mermaid(def); len(chart) < 30 {
			t.Fatal(chart)
		}
	})
}
