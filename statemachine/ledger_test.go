package statemachine

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// TestEffects runs sagas against a provider that keeps a ledger of what really happened, over a network that loses, repeats,
// delays and reorders. After COMPENSATED nothing stands in the ledger; after COMPLETED exactly what the steps did.
//
// Behind the barrier (an action that comes after its compensation does nothing, and a rejection is remembered) that holds
// whatever is lost. Without it the engine needs the workers' answers, and what it can't undo any more it tells a person.
func TestEffects(t *testing.T) {
	check(t, 1000, func(t *rapid.T) {
		def := drawDefinition(t)
		w := &world{run: newRun(t, def), barrier: oneIn(t, 2, "barrier"), ledger: map[string]*account{}}
		for _, s := range stepsOf(def.GetBody()) {
			w.ledger[s.GetName()] = &account{answers: map[int32]historyv1.Outcome{}}
		}
		w.collect(w.s.InFlight())
		for range pick(t, 60, "events") {
			if w.s.Status.Terminal() && len(w.letters) == 0 && len(w.replies) == 0 {
				break
			}
			w.happen()
		}
		w.kind = true
		for i := 0; !w.s.Status.Terminal(); i++ {
			if i > 2000 {
				t.Fatalf("the saga doesn't end: %+v", w.s)
			}
			w.happen()
		}
		// What was under way arrives in the end; behind the barrier it need not.
		for i := 0; len(w.letters)+len(w.replies) > 0; i++ {
			if i > 2000 {
				t.Fatal("there is no end of messages")
			}
			w.deliver()
		}
		w.audit()
	})
}

// account is what the provider knows of a step's action.
type account struct {
	stands   bool
	done     bool // once; doing it again under the same key does nothing
	rejected bool
	closed   bool // the barrier: the compensation, or a person, was there
	undone   bool
	answers  map[int32]historyv1.Outcome // of the compensation, by generation
}

type letter struct {
	call                Call
	generation, attempt int32
}

type world struct {
	*run
	barrier bool
	kind    bool // all goes well from now on
	ledger  map[string]*account
	letters []letter // tasks under way
	replies []Result // results under way
}

func (w *world) do(e Event) error {
	d, err := w.apply(e)
	if err == nil {
		w.collect(d.Dispatch)
	}
	return err
}

func (w *world) collect(calls []Call) {
	for _, c := range calls {
		w.letters = append(w.letters, letter{c, w.s.Call(c).Generation, w.s.Call(c).Attempt})
	}
}

func (w *world) happen() {
	w.now += 1000
	n := pick(w.t, 10, "happens")
	switch {
	case n < 6 && len(w.letters)+len(w.replies) > 0:
		w.deliver()
	case n == 6 && !w.kind && oneIn(w.t, 3, "cancel"):
		w.do(Cancel{Actor: "ann"})
	case n == 7 && w.person():
	default:
		if next, ok := w.s.NextWake(); ok {
			w.now = max(w.now, next)
			w.do(Tick{})
		} else if len(w.letters)+len(w.replies) > 0 {
			w.deliver()
		} else {
			w.person()
		}
	}
}

// deliver brings a task to the provider, or a result to the engine.
func (w *world) deliver() {
	n := pick(w.t, len(w.letters)+len(w.replies), "message")
	lossy := w.barrier && !w.kind
	if n < len(w.letters) {
		l := w.letters[n]
		again := !w.kind && oneIn(w.t, 4, "delivered again")
		if !again {
			w.letters = slices.Delete(w.letters, n, n+1)
		}
		if lossy && oneIn(w.t, 6, "task lost") {
			return
		}
		r, answered := w.serve(l)
		switch {
		case !answered && !lossy && !again:
			w.letters = append(w.letters, l) // its worker died: the broker delivers it again
		case answered && !(lossy && oneIn(w.t, 6, "result lost")):
			w.replies = append(w.replies, r)
		}
		return
	}
	n -= len(w.letters)
	r := w.replies[n]
	if w.kind || !oneIn(w.t, 5, "result again") {
		w.replies = slices.Delete(w.replies, n, n+1)
	}
	if err := w.do(r); err != nil {
		w.t.Fatalf("%+v: %v", r, err)
	}
}

// serve is the provider.
func (w *world) serve(l letter) (Result, bool) {
	a := w.ledger[l.call.Step]
	r := Result{Call: l.call, Generation: l.generation, Attempt: l.attempt, Outcome: historyv1.Outcome_OUTCOME_SUCCEEDED}
	luck := pick(w.t, 12, "luck")
	if w.kind {
		luck = 0
	}
	fail := func() { r.Outcome, r.Error = historyv1.Outcome_OUTCOME_FAILED, &historyv1.Error{Code: "ERR"} }
	if l.call.Dir == do {
		r.Output = []byte(outputWhole)
		act := func() { a.stands, a.done = true, true }
		late := len(a.answers) > 0 || a.closed || a.rejected
		switch {
		case a.closed && w.barrier && !a.done, a.rejected && w.barrier:
			r.Outcome, r.Error, r.Output = historyv1.Outcome_OUTCOME_REJECTED, &historyv1.Error{Code: "NO"}, nil
		case a.done:
		case luck < 6:
			act()
		case luck < 8:
			a.rejected = true
			r.Outcome, r.Error, r.Output = historyv1.Outcome_OUTCOME_REJECTED, &historyv1.Error{Code: "NO"}, nil
		case luck == 8:
			fail()
		case luck == 9:
			if fail(); !late { // whoever fails after a compensation or a rejection has done nothing: no answer tells of it
				act()
			}
		case luck == 10:
			act()
			return r, false
		default:
			return r, false
		}
		return r, true
	}
	if o, ok := a.answers[l.generation]; ok {
		r.Outcome = o
		return r, true
	}
	if luck == 6 {
		fail()
		return r, true
	}
	if luck == 7 {
		r.Outcome, r.Error = historyv1.Outcome_OUTCOME_REJECTED, &historyv1.Error{Code: "CANT"}
		return r, true
	}
	if luck == 8 {
		return r, false
	}
	switch {
	case a.stands:
		a.stands, a.undone = false, true
	case !a.undone:
		r.Outcome = historyv1.Outcome_OUTCOME_NOTHING_TO_UNDO
	}
	a.closed = true
	if luck == 9 { // done, but it says that it failed
		fail()
		return r, true
	}
	a.answers[l.generation] = r.Outcome
	return r, luck != 10
}

// person acts on the first item that blocks the saga, and makes true in the world what they say.
func (w *world) person() bool {
	for i := range w.s.Items {
		it := w.s.Items[i]
		if !it.Blocking || it.Status != historyv1.ItemStatus_ITEM_STATUS_OPEN {
			continue
		}
		e := Act{Item: it.Number, Version: it.Version, Actor: "bob", Reason: "because", Evidence: "ticket", Output: []byte(outputWhole)}
		a := w.ledger[it.Call.Step]
		if a == nil { // an if or a return
			if e.Action = historyv1.OperatorAction_OPERATOR_ACTION_COMPLETE; it.Call.Step != returnStep {
				e.Output = []byte("true")
			}
			if err := w.do(e); err != nil {
				w.t.Fatalf("%+v: %v", it, err)
			}
			return true
		}
		switch pick(w.t, 3, "decision") {
		case 0:
			e.Action = historyv1.OperatorAction_OPERATOR_ACTION_RETRY
		case 1:
			e.Action = historyv1.OperatorAction_OPERATOR_ACTION_COMPLETE
		default:
			e.Action = historyv1.OperatorAction_OPERATOR_ACTION_RESOLVE
		}
		if it.Kind == historyv1.ItemKind_ITEM_KIND_EXPRESSION && it.Call.Dir == do {
			e.Action = historyv1.OperatorAction_OPERATOR_ACTION_COMPLETE
		}
		if err := w.do(e); err != nil {
			return false // not allowed here
		}
		switch e.Action {
		case historyv1.OperatorAction_OPERATOR_ACTION_COMPLETE:
			a.stands, a.done = true, true
		case historyv1.OperatorAction_OPERATOR_ACTION_RESOLVE:
			a.stands, a.closed, a.undone = false, true, a.undone || a.stands
		}
		return true
	}
	return false
}

// audit compares the ledger with what the saga says of itself.
func (w *world) audit() {
	for i := range w.s.Steps {
		st, kind := &w.s.Steps[i], w.m.steps[i].kind
		if kind == sagadv1.Kind_KIND_READ_ONLY {
			continue
		}
		a := w.ledger[st.Name]
		told := slices.ContainsFunc(w.s.Items, func(it ItemState) bool {
			return it.Call == Call{Step: st.Name, Dir: do} && it.Kind == historyv1.ItemKind_ITEM_KIND_LATE_EFFECT
		})
		what := fmt.Sprintf("%s: %s, stands %v, told %v, barrier %v", st.Name, w.s.Status, a.stands, told, w.barrier)
		switch w.s.Status {
		case Compensated:
			if a.stands && (w.barrier || !told) {
				w.t.Fatal(what)
			}
		case Completed:
			if st.Do.Phase == Succeeded && !a.stands || st.Do.Phase == Idle && a.stands {
				w.t.Fatal(what)
			}
		default:
			w.t.Fatal(what)
		}
	}
}
