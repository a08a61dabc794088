package statemachine

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// flowDefinitions are definitions with each kind of block, and of blocks in blocks.
var flowDefinitions = []string{
	"signal go\ncomp a\nsleep n 10s\nwait w go 20s\ncomp b",
	"signal go\ncomp a\nwait w go 20s\nreceived\ncomp b\notherwise\ncomp c\nend\ncomp d",
	"comp a\nask q 20s 'well?'\nreceived\ncomp b\notherwise\nread c\nend\npivot p\nretriable r",
	"comp a\nswitch s\ncase input.a\ncomp b\ncase input.b\ncomp c\ndefault\nend\ncomp d",
	"loop l 3\ncomp b\nread c\nnext l.index\nwhile l.index < 1\nend\ncomp d",
	"comp a\nmap m window=2 tolerate=1 [1,2,3]\ncomp b attempts=2\ncomp c\noutput c\nend\npivot p\nretriable r",
	"map m [[1,2],[3]]\nmap n window=1 m.item\ncomp b undo=2\nend\nend\ncomp d",
	"comp a\nparallel r need=any\nbranch\ncomp b\ncomp b2\noutput b2\nbranch\ncomp c probe attempts=1\noutput c\nbranch\nread e\noutput e\nend\ncomp d",
	"comp a\nparallel r need=2\nbranch\ncomp b undo=1\noutput b\nbranch\ncomp c\noutput c\nbranch\ncomp e\noutput e\nend\ncomp d",
	"comp a\nsavepoint sp\ncomp b\ncomp c\nalternative sp.code == 'NO'\ncomp e\nalternative\nread f\nend\ncomp d",
	"savepoint sp\nmap m tolerate=0 [1,2]\ncomp b\ncomp c attempts=1\nend\nalternative\nloop l 2\ncomp e\nwhile false\nend\nend\npivot p probe attempts=1\nretriable x",
	"signal go\nparallel r need=any\nbranch\nsleep n 5s\nread b\noutput b\nbranch\nwait w go 8s\ncomp c heartbeat=1s timeout=4s claimed\noutput c\nend\ncomp d",
	"map m window=3 tolerate=2 [1,2,3,4]\nparallel z\nbranch\ncomp b hold\nbranch\ncomp c pass undo=1\nend\nend\npivot p\nmap k [1,2]\nretriable r\nend",
	"comp a\nchild kid other\nparallel r need=any\nbranch\nchild kid2 other\noutput kid2\nbranch\ncomp c\noutput c\nend\ncomp d",
}

// flow is a saga with blocks under test, and the world that its calls act on.
type flow struct {
	t       *rapid.T
	m       *Machine
	s       *State
	now     Micros
	history []*historyv1.Transition
	keys    int
	// world holds what stands, by step and item: what a worker behind a barrier did and didn't undo. undone are tombstones.
	world, undone map[string]bool
	// sent are attempts that may yet be carried out.
	sent []sentAttempt
}

type sentAttempt struct {
	call                Call
	generation, attempt int32
}

func effectKey(c Call, generation int32) string {
	return fmt.Sprintf("%s@%s/%d", c.Step, c.Item, generation)
}

// TestFlowEvents lets anything happen to sagas with blocks: whatever happens, the fold is what was decided on, something is awaited or
// somebody is asked, and in the end the world is as the saga says.
func TestFlowEvents(t *testing.T) {
	var machines []*Machine
	for _, source := range flowDefinitions {
		def, err := parseDefinition(source)
		if err != nil {
			t.Fatal(err)
		}
		m, problems := Compile(def)
		if len(problems) > 0 {
			t.Fatalf("%s\n%s", source, printProblems(problems))
		}
		machines = append(machines, m)
	}
	ends := map[string]int{}
	check(t, 3000, func(t *rapid.T) {
		f := &flow{t: t, m: machines[pick(t, len(machines), "definition")], now: 1_000_000_000, world: map[string]bool{}, undone: map[string]bool{}}
		start := Start{Namespace: "n", SagaID: "s", Version: 1, Input: []byte(inputWhole)}
		if oneIn(t, 4, "child") {
			start.Parent = &historyv1.Parent{SagaId: "p", Step: "kid", Generation: 1}
		}
		f.apply(start)
		for range pick(t, 60, "events") {
			f.event()
		}
		f.finish()
		ends[f.s.Status.String()]++
	})
	if len(ends) < 2 {
		t.Errorf("too little happens: %v", ends)
	}
}

func (f *flow) apply(e Event) Decision {
	before := fingerprint(f.s)
	d, err := f.m.Decide(f.s, e, f.now, rapid.Uint64().Draw(f.t, "chance"))
	if fingerprint(f.s) != before {
		f.t.Fatalf("%T changed the state before", e)
	}
	if err != nil || d.Transition == nil {
		return d
	}
	raw, err := proto.Marshal(d.Transition)
	if err != nil {
		f.t.Fatal(err)
	}
	stored := &historyv1.Transition{}
	if err := proto.Unmarshal(raw, stored); err != nil {
		f.t.Fatal(err)
	}
	for _, x := range stored.GetFacts() {
		f.t.Logf("%d %s", f.now, Sentence(x))
	}
	f.history = append(f.history, stored)
	if f.s != nil && f.s.Status.Terminal() && d.State.Status != f.s.Status {
		f.t.Fatalf("%s became %s", f.s.Status, d.State.Status)
	}
	wasBackward := f.s != nil && f.s.Backward
	f.s = d.State
	folded, err := f.m.Fold(f.history)
	if err != nil {
		f.t.Fatalf("%T doesn't fold: %v", e, err)
	}
	if a, b := fingerprint(folded), fingerprint(f.s); a != b {
		f.t.Fatalf("%T: the fold differs from what was decided on:\n%s\n%s", e, describe(folded), describe(f.s))
	}
	for _, c := range d.Dispatch {
		cs := f.s.Call(c)
		if cs == nil || cs.Phase != InFlight {
			f.t.Fatalf("%s is to be sent and isn't in flight", c)
		}
		if c.Dir == do && wasBackward {
			f.t.Fatalf("%s starts after the saga turned back", c)
		}
		f.sent = append(f.sent, sentAttempt{c, cs.Generation, cs.Attempt})
	}
	f.invariants()
	return d
}

func (f *flow) invariants() {
	if live := count(&f.s.Frame); live != f.s.live {
		f.t.Fatalf("%d things are awaited, counted %d", live, f.s.live)
	}
	if !f.s.Waits() {
		f.t.Fatal("nothing is awaited, and nobody is asked")
	}
	e := f.m.Explain(f.s, f.now)
	if e.For == sagadv1.WaitsFor_WAITS_FOR_UNSPECIFIED || e.Text == "" || (e.For == sagadv1.WaitsFor_WAITS_FOR_NOTHING) != f.s.Status.Terminal() {
		f.t.Fatalf("explained as %+v", e)
	}
	if f.s.Status.Terminal() {
		if f.s.live != 0 || len(f.s.InFlight()) > 0 {
			f.t.Fatalf("it has ended, and waits for %v", f.s.InFlight())
		}
		if _, wakes := f.s.NextWake(); wakes {
			f.t.Fatal("it has ended, and has a timer")
		}
	}
	for _, c := range f.s.InFlight() {
		if _, isChild := f.m.Child(f.s, c); isChild {
			continue
		}
		task, err := f.m.Task(f.s, c)
		if err != nil || task.GetItem() != c.Item || task.GetAttempt() != f.s.Call(c).Attempt {
			f.t.Fatalf("%s: %v %v", c, task, err)
		}
	}
	if views, total := f.m.Views(f.s, 3); len(views) > 3 || total < len(views) {
		f.t.Fatalf("%d views of %d", len(views), total)
	}
}

// count is how much is awaited in a frame, counted anew.
func count(f *Frame) (n int32) {
	for i := range f.Steps {
		n += f.Steps[i].awaited()
	}
	for i := range f.Places {
		n += f.Places[i].awaited()
		for _, in := range f.Places[i].frames {
			if in != nil {
				n += count(in)
			}
		}
	}
	return n
}

// serve lets a worker behind a barrier carry an attempt out. It says what it answers.
func (f *flow) serve(x sentAttempt) Result {
	r := Result{Call: x.call, Generation: x.generation, Attempt: x.attempt, Outcome: historyv1.Outcome_OUTCOME_SUCCEEDED, Worker: "w"}
	i := f.m.byName[x.call.Step]
	changes := f.m.steps[i].kind != sagadv1.Kind_KIND_READ_ONLY
	switch x.call.Dir {
	case do:
		key := effectKey(x.call, x.generation)
		if f.undone[key] {
			r.Outcome, r.Error = historyv1.Outcome_OUTCOME_REJECTED, &historyv1.Error{Code: "TOMBSTONE"}
			break
		}
		if changes {
			f.world[key] = true
		}
		r.Output = []byte(outputWhole)
	case undo:
		key := effectKey(x.call, max(f.s.Call(Call{Step: x.call.Step, Item: x.call.Item, Dir: do}).Generation, 1))
		if !f.world[key] && !f.undone[key] {
			r.Outcome = historyv1.Outcome_OUTCOME_NOTHING_TO_UNDO
		}
		delete(f.world, key)
		f.undone[key] = true
	case probe:
		key := effectKey(x.call, max(f.s.Call(Call{Step: x.call.Step, Item: x.call.Item, Dir: do}).Generation, 1))
		switch {
		case f.world[key]:
			r.Outcome, r.Output = historyv1.Outcome_OUTCOME_HAPPENED, []byte(outputWhole)
		case oneIn(f.t, 3, "can't tell"):
			r.Outcome = historyv1.Outcome_OUTCOME_CANT_TELL
		default:
			f.undone[key] = true
			r.Outcome = historyv1.Outcome_OUTCOME_DID_NOT_HAPPEN
		}
	}
	return r
}

func (f *flow) event() {
	f.now += int64(pick(f.t, 3, "passing")) * int64(pick(f.t, 2_000_000, "time"))
	switch n := pick(f.t, 16, "event"); {
	case n < 7:
		f.deliver(len(f.sent)-1-pick(f.t, max(min(len(f.sent), 6), 1), "newer"), false)
	case n == 7:
		f.deliver(pick(f.t, max(len(f.sent), 1), "older"), true)
	case n < 10:
		if next, ok := f.s.NextWake(); ok {
			f.now = max(f.now, next)
		}
		f.apply(Tick{})
	case n == 10:
		if oneIn(f.t, 3, "cancel") {
			f.apply(Cancel{Actor: "c", Reason: "r"})
		}
	case n == 11:
		f.keys++
		f.apply(Signal{Name: "go", Key: fmt.Sprint(f.keys - pick(f.t, 2, "again")), Payload: []byte("1")})
	case n == 12:
		if f.s.Paused || oneIn(f.t, 2, "resume") {
			f.apply(Resume{Actor: "o", Reason: "r"})
		} else {
			f.apply(Pause{Actor: "o", Reason: "r"})
		}
	case n == 13:
		if calls := f.s.InFlight(); len(calls) > 0 {
			c := calls[pick(f.t, len(calls), "call")]
			cs := f.s.Call(c)
			f.apply(Report{Call: c, Generation: cs.Generation, Attempt: cs.Attempt, Kind: ReportKind(1 + pick(f.t, 3, "report")), Data: []byte(`"x"`)})
		}
	case n == 14:
		f.act(pick(f.t, 6, "act"))
	case n == 15:
		if f.s.Parent != nil && f.s.Provisional {
			if oneIn(f.t, 2, "unwind") {
				f.apply(Unwind{})
			} else {
				f.apply(ParentEnded{Status: []Status{Completed, Compensated, Abandoned}[pick(f.t, 3, "parent")]})
			}
		}
	}
}

// deliver lets an attempt be carried out, well, badly or not at all, and answered, or not.
func (f *flow) deliver(i int, late bool) {
	if i < 0 || i >= len(f.sent) {
		return
	}
	x := f.sent[i]
	i2, isChild := f.m.byName[x.call.Step]
	if isChild && f.m.steps[i2].child && x.call.Dir == do && x.generation != f.s.Call(x.call).Generation {
		return
	}
	switch n := pick(f.t, 10, "fate"); {
	case n < 6 || late:
		f.apply(f.serve(x))
	case n == 6:
		f.serve(x) // the answer is lost
	case n == 7:
		r := Result{Call: x.call, Generation: x.generation, Attempt: x.attempt, Outcome: historyv1.Outcome_OUTCOME_FAILED, Error: &historyv1.Error{Code: "ERR"}, GiveUp: oneIn(f.t, 3, "give up")}
		if oneIn(f.t, 2, "after the effect") {
			f.serve(x)
		}
		f.apply(r)
	case n == 8 && x.call.Dir == do && !f.world[effectKey(x.call, x.generation)] && f.m.steps[f.m.byName[x.call.Step]].kind != sagadv1.Kind_KIND_RETRIABLE:
		// A refusal is for good: a later delivery is refused as well.
		f.undone[effectKey(x.call, x.generation)] = true
		f.apply(Result{Call: x.call, Generation: x.generation, Attempt: x.attempt, Outcome: historyv1.Outcome_OUTCOME_REJECTED, Error: &historyv1.Error{Code: "NO"}})
	case n == 9 && x.call.Dir == undo:
		f.apply(Result{Call: x.call, Generation: x.generation, Attempt: x.attempt, Outcome: historyv1.Outcome_OUTCOME_REJECTED, Error: &historyv1.Error{Code: "CANT_UNDO"}})
	}
}

// act does something that is allowed about an open item; a person who says that something is settled has seen to it.
func (f *flow) act(n int) {
	var open []ItemState
	for _, it := range f.s.Items {
		if it.Open() {
			open = append(open, it)
		}
	}
	if len(open) == 0 {
		return
	}
	it := open[n%len(open)]
	var may []historyv1.OperatorAction
	for _, a := range f.m.Allowed(f.s, it.Number) {
		if a.GetAllowed() && a.GetAction() != historyv1.OperatorAction_OPERATOR_ACTION_ABANDON {
			may = append(may, a.GetAction())
		}
	}
	if len(may) == 0 {
		return
	}
	a := may[n%len(may)]
	e := Act{Item: it.Number, Version: it.Version, Action: a, Actor: "o", Reason: "r", Evidence: "e", Output: []byte(outputWhole)}
	i, isStep := f.m.byName[it.Call.Step]
	key := effectKey(it.Call, 1)
	if isStep {
		key = effectKey(it.Call, max(f.s.Call(Call{Step: it.Call.Step, Item: it.Call.Item, Dir: do}).Generation, 1))
	}
	switch a {
	case historyv1.OperatorAction_OPERATOR_ACTION_RESOLVE:
		delete(f.world, key)
		f.undone[key] = true
	case historyv1.OperatorAction_OPERATOR_ACTION_COMPLETE:
		if isStep && f.m.steps[i].kind != sagadv1.Kind_KIND_READ_ONLY {
			f.world[key] = true
		}
	}
	f.apply(e)
}

// finish brings the saga to its end: workers work, time passes, people act. Then the world must be as the saga says.
func (f *flow) finish() {
	for round := 0; !f.s.Status.Terminal(); round++ {
		if round > 400 {
			f.t.Fatalf("the saga doesn't end: %s", f.m.Explain(f.s, f.now).Text)
		}
		f.apply(Resume{})
		for _, c := range f.s.InFlight() {
			if cs := f.s.Call(c); cs.Phase == InFlight {
				f.apply(f.serve(sentAttempt{c, cs.Generation, cs.Attempt}))
			}
		}
		f.act(round)
		if f.s.Provisional {
			f.apply(ParentEnded{Status: Completed})
		}
		if next, ok := f.s.NextWake(); ok {
			f.now = max(f.now, next)
		}
		f.apply(Tick{})
	}
	var stands []string
	for key := range f.world { // order doesn't matter
		stands = append(stands, key)
	}
	slices.Sort(stands)
	// What isn't undone, as the saga knows it.
	var known []string
	for _, e := range f.m.Effects(f.s) {
		if e.GetState() == sagadv1.EffectState_EFFECT_STATE_STANDS {
			known = append(known, effectKey(Call{Step: e.GetStep(), Item: e.GetItem()}, max(f.s.Call(Call{Step: e.GetStep(), Item: e.GetItem(), Dir: do}).Generation, 1)))
		}
		if e.GetState() == sagadv1.EffectState_EFFECT_STATE_IN_DOUBT {
			f.t.Fatalf("it has ended as %s, and %s %s is in doubt", f.s.Status, e.GetStep(), e.GetItem())
		}
	}
	slices.Sort(known)
	if f.s.Status == Compensated && len(stands) > 0 || strings.Join(stands, " ") != strings.Join(known, " ") {
		f.t.Fatalf("it has ended as %s; it knows of %v, and %v stands", f.s.Status, known, stands)
	}
}
