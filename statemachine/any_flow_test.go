package statemachine

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// TestAnyFlow lets anything happen to sagas of each kind of node: results, also late and twice, signals, cancels, time, decisions of people.
// Without a model of its own it checks what must hold of all: what is stored folds to what was decided, no saga is lost, each comes to
// its end when the world becomes kind and people decide, and at the end what was done is meant, undone or settled by hand.
func TestAnyFlow(t *testing.T) {
	ends := map[Status]int{}
	check(t, 2000, func(t *rapid.T) {
		r := newFlowRun(t)
		for i := 0; i < 1500 && !r.s.Status.Terminal(); i++ {
			r.event(i > 80)
		}
		r.ended()
		ends[r.s.Status]++
	})
	for _, s := range []Status{Completed, Compensated} {
		if ends[s] < 50 {
			t.Errorf("%d sagas ended as %s: %v", ends[s], s, ends)
		}
	}
}

type flowRun struct {
	t         *rapid.T
	def       *sagadv1.Definition
	m         *Machine
	s, folded *State
	now       Micros
	bad       int // how bad luck is, of 8
	log       []string
	// done and undone are the calls that the world did and undid, settled those that a person vouched for.
	done, undone, settled map[string]bool
	sent                  []Result
}

func newFlowRun(t *rapid.T) *flowRun {
	r := &flowRun{t: t, def: drawFlow(t), now: 1_000_000, bad: pick(t, 8, "bad luck"), done: map[string]bool{}, undone: map[string]bool{}, settled: map[string]bool{}}
	var problems []*sagadv1.Problem
	if r.m, problems = Compile(r.def); len(problems) > 0 {
		t.Fatal(printProblems(problems))
	}
	input := inputWhole
	if oneIn(t, 2, "poor") {
		input = inputPoor
	}
	r.submit(Start{Namespace: "n", SagaID: "s", Version: 1, Input: []byte(input)})
	return r
}

func (r *flowRun) fatal(what string, args ...any) {
	r.t.Helper()
	r.t.Fatalf(what+"\n%s\n%s", append(args, protojson.Format(r.def), strings.Join(r.log, "\n"))...)
}

// submit decides on an event, and holds what comes out of it against what is stored of it.
func (r *flowRun) submit(e Event) {
	before := ""
	if r.s != nil {
		before = fingerprint(r.s)
	}
	defer func() {
		if p := recover(); p != nil {
			if s, ok := p.(string); ok && strings.Contains(s, "doesn't fold") {
				r.fatal("%T: %s", e, s)
			}
			panic(p)
		}
	}()
	d, err := r.m.Decide(r.s, e, r.now, uint64(pick(r.t, 1000, "chance")))
	if r.s != nil && fingerprint(r.s) != before {
		r.fatal("%T changed the state that it was decided on", e)
	}
	if err != nil {
		return // a refusal
	}
	r.s = d.State
	if d.Transition == nil {
		return
	}
	raw, err := proto.Marshal(d.Transition)
	if err != nil {
		r.t.Fatal(err)
	}
	stored := &historyv1.Transition{}
	if err := proto.Unmarshal(raw, stored); err != nil {
		r.t.Fatal(err)
	}
	for _, f := range stored.GetFacts() {
		r.log = append(r.log, Sentence(f))
		if c := f.GetSettledByHand().GetCall(); c != nil {
			r.settled[c.GetStep()+"["+c.GetItem()+"]"] = true
		}
	}
	if r.folded, err = r.m.Evolve(r.folded, stored); err != nil {
		r.fatal("%T doesn't fold: %v", e, err)
	}
	if fingerprint(r.folded) != fingerprint(r.s) {
		r.fatal("%T: the fold differs from what was decided on", e)
	}
	if !r.s.Status.Terminal() && !r.s.Waits() {
		r.fatal("%T: the saga is lost", e)
	}
	for _, c := range r.s.InFlight() {
		if _, err := r.m.Task(r.s, c); err != nil {
			r.fatal("%v can't be sent: %v", c, err)
		}
	}
}

func callKey(c Call) string { return c.Step + "[" + c.Item + "]" }

// event lets something happen; when calm, only what is kind.
func (r *flowRun) event(calm bool) {
	r.now += int64(pick(r.t, 300_000, "time"))
	in := r.s.InFlight()
	switch k := pick(r.t, 12, "event"); {
	case len(in) > 0 && k < 7:
		r.result(in[pick(r.t, len(in), "call")], calm)
	case k == 7:
		r.submit(Signal{Name: []string{"sig1", "sig2"}[pick(r.t, 2, "signal")], Key: string(rune('a' + pick(r.t, 26, "key"))), Payload: []byte("1")})
	case k == 8 && !calm && oneIn(r.t, 8, "cancel"):
		r.submit(Cancel{Actor: "eve", Reason: "why"})
	case k == 9 && len(r.sent) > 0 && !calm:
		r.submit(r.sent[pick(r.t, len(r.sent), "again")])
	default:
		if at, ok := r.s.NextWake(); ok && (calm || oneIn(r.t, 2, "on time")) {
			r.now = max(r.now, at)
		}
		r.submit(Tick{})
		r.decide()
	}
}

func (r *flowRun) result(call Call, calm bool) {
	c := r.s.Call(call)
	e := Result{Call: call, Generation: c.Generation, Attempt: c.Attempt, Outcome: historyv1.Outcome_OUTCOME_SUCCEEDED, Output: []byte(outputWhole)}
	if !calm && pick(r.t, 8, "luck") < r.bad {
		e.Outcome = []historyv1.Outcome{historyv1.Outcome_OUTCOME_REJECTED, historyv1.Outcome_OUTCOME_FAILED}[pick(r.t, 2, "outcome")]
		e.Error = &historyv1.Error{Code: "NO"}
	}
	// A failed attempt may have done something; the world knows.
	if e.Outcome == historyv1.Outcome_OUTCOME_SUCCEEDED || e.Outcome == historyv1.Outcome_OUTCOME_FAILED && oneIn(r.t, 2, "half done") {
		if call.Dir == undo {
			r.undone[callKey(call)] = true
		} else {
			r.done[callKey(call)] = true
		}
	}
	if len(r.sent) < 20 {
		r.sent = append(r.sent, e)
	}
	r.submit(e)
}

// decide lets a person decide about an open item.
func (r *flowRun) decide() {
	for i := range r.s.Items {
		it := r.s.Items[i]
		if it.Status != historyv1.ItemStatus_ITEM_STATUS_OPEN {
			continue
		}
		actions := r.m.Allowed(r.s, it.Number)
		if len(actions) == 0 {
			continue
		}
		a := actions[pick(r.t, len(actions), "action")].GetAction()
		if a == historyv1.OperatorAction_OPERATOR_ACTION_ABANDON {
			continue
		}
		// What completes a condition isn't what completes a step; what doesn't fit is refused.
		output := []string{outputWhole, "true", "[1]", "0"}[pick(r.t, 4, "completed with")]
		r.submit(Act{Item: it.Number, Version: it.Version, Action: a, Actor: "bob", Reason: "because", Evidence: "ticket", Output: []byte(output)})
		return
	}
}

// ended checks what must hold of a saga that has come to its end.
func (r *flowRun) ended() {
	if !r.s.Status.Terminal() {
		r.fatal("the saga doesn't end: it is %s", r.s.Status)
	}
	if _, ok := r.s.NextWake(); ok || len(r.s.InFlight()) > 0 {
		r.fatal("an ended saga has something to do")
	}
	for _, e := range r.m.Effects(r.s) {
		in := e.GetState() == sagadv1.EffectState_EFFECT_STATE_IN_DOUBT
		if stands := e.GetState() == sagadv1.EffectState_EFFECT_STATE_STANDS; !e.GetByHand() && (in || stands && r.s.Status == Compensated) {
			r.fatal("%s, and the effect of %s[%s] is %s", r.s.Status, e.GetStep(), e.GetItem(), e.GetState())
		}
	}
	if r.s.Status != Compensated {
		return
	}
	kinds := map[string]sagadv1.Kind{}
	for i := range r.m.steps {
		kinds[r.m.steps[i].name] = r.m.steps[i].kind
	}
	for key := range r.done {
		name, _, _ := strings.Cut(key, "[")
		if kinds[name] != sagadv1.Kind_KIND_READ_ONLY && !r.undone[key] && !r.settled[key] {
			r.fatal("the saga is compensated, and %s was done and not undone", key)
		}
	}
}
