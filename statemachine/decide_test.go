package statemachine

import (
	"errors"
	"strings"
	"testing"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
)

func mustDecide(t *testing.T, m *Machine, s *State, e Event, now Micros) Decision {
	t.Helper()
	d, err := m.Decide(s, e, now, 1)
	if err != nil {
		t.Fatalf("%T: %v", e, err)
	}
	return d
}

func succeed(s *State, c Call) Result {
	return Result{Call: c, Generation: s.Call(c).Generation, Attempt: s.Call(c).Attempt, Outcome: historyv1.Outcome_OUTCOME_SUCCEEDED}
}

// TestHistoryLimit: a saga whose history nears its limit is brought to its end, not lost: nothing is tried again any more.
func TestHistoryLimit(t *testing.T) {
	m := machineOf(t, "comp t1 attempts=10000 undo=10000")
	call, undoCall := Call{Step: "t1", Dir: do}, Call{Step: "t1", Dir: undo}
	fail := func(s *State, c Call) Result {
		r := succeed(s, c)
		r.Outcome = historyv1.Outcome_OUTCOME_FAILED
		return r
	}
	s := mustDecide(t, m, nil, Start{Input: []byte("{}")}, 1).State

	s.N = transitionsMax - transitionsReserve - 1
	if d := mustDecide(t, m, s, fail(s, call), 2); d.State.Status != Running || d.State.Call(call).Phase != BackingOff {
		t.Errorf("before the reserve: %s, %s", d.State.Status, d.State.Call(call).Phase)
	}
	s.N = transitionsMax - transitionsReserve
	s = mustDecide(t, m, s, fail(s, call), 2).State
	if s.Status != Compensating || s.Call(undoCall).Phase != InFlight {
		t.Fatalf("in the reserve: %s, %s", s.Status, s.Call(undoCall).Phase)
	}
	s = mustDecide(t, m, s, fail(s, undoCall), 3).State
	if s.Status != Stuck {
		t.Fatalf("a compensation in the reserve: %s", s.Status)
	}

	// Late results are counted, and no longer kept.
	s.N = transitionsMax - transitionsReserve/2
	late := succeed(s, call)
	late.Outcome, late.Error = historyv1.Outcome_OUTCOME_FAILED, &historyv1.Error{Code: "OTHER"}
	if d := mustDecide(t, m, s, late, 4); !d.Reply.Stray || d.Reply.Verdict != workerv1.Verdict_VERDICT_STALE || d.Transition != nil {
		t.Errorf("a late result: %+v", d.Reply)
	}

	// At the limit only the end is left.
	s.N = transitionsMax
	var refusal *Refusal
	for _, e := range []Event{Tick{}, Cancel{}, succeed(s, undoCall), Act{Item: 1, Action: historyv1.OperatorAction_OPERATOR_ACTION_RETRY, Reason: "r"}} {
		if d, err := m.Decide(s, e, 5, 1); !errors.As(err, &refusal) || refusal.Code != RefusedHistoryLimit || d.State != s {
			t.Errorf("%T at the limit: %v", e, err)
		}
	}
	d := mustDecide(t, m, s, Act{Item: 1, Action: historyv1.OperatorAction_OPERATOR_ACTION_ABANDON, Actor: "bob", Reason: "r"}, 5)
	if d.State.Status != Abandoned {
		t.Errorf("abandoned at the limit: %s", d.State.Status)
	}
}

// TestEvidenceLimit: a worker that answers one attempt again and again, always differently, fills no history.
func TestEvidenceLimit(t *testing.T) {
	m := machineOf(t, "comp t1\ncomp t2")
	call := Call{Step: "t1", Dir: do}
	s := mustDecide(t, m, nil, Start{Input: []byte("{}")}, 1).State
	first := succeed(s, call)
	s = mustDecide(t, m, s, first, 2).State
	for i := range 2 * latesMax {
		again := first
		again.Output = []byte(strings.Repeat("1", i+1))
		s = mustDecide(t, m, s, again, 3).State
	}
	if s.N != 2+latesMax || len(s.Items) != 1 {
		t.Errorf("%d transitions, %d items", s.N, len(s.Items))
	}
}

// TestRepairedExpression: an expression that failed and was mended by a release, or a person, lets the saga go on; its item is
// closed.
func TestRepairedExpression(t *testing.T) {
	broken, mended := machineOf(t, "pivot t1\nif c t1.ok\nretriable t2\nend"), machineOf(t, "pivot t1\nif c true\nretriable t2\nend")
	s := mustDecide(t, broken, nil, Start{Input: []byte("{}")}, 1).State
	s = mustDecide(t, broken, s, succeed(s, Call{Step: "t1", Dir: do}), 2).State
	if s.Status != Stuck || len(s.Items) != 1 {
		t.Fatalf("%s, %d items", s.Status, len(s.Items))
	}
	act := Act{Item: 1, Action: historyv1.OperatorAction_OPERATOR_ACTION_RETRY, Actor: "bob", Reason: "mended"}
	if d := mustDecide(t, broken, s, act, 3); d.State.Status != Stuck || d.State.Items[0].Status != historyv1.ItemStatus_ITEM_STATUS_OPEN {
		t.Errorf("tried again in vain: %s, %s", d.State.Status, d.State.Items[0].Status)
	}
	s = mustDecide(t, mended, s, act, 3).State
	if s.Status != Running || s.Items[0].Open() || s.Call(Call{Step: "t2", Dir: do}).Phase != InFlight {
		t.Errorf("tried again: %s, %s", s.Status, s.Items[0].Status)
	}
}

// TestRefusedActs: what a person must add has another code than what doesn't fit.
func TestRefusedActs(t *testing.T) {
	m := machineOf(t, "pivot t1\nif c t1.ok\nretriable t2\nend")
	s := mustDecide(t, m, nil, Start{Input: []byte("{}")}, 1).State
	s = mustDecide(t, m, s, succeed(s, Call{Step: "t1", Dir: do}), 2).State
	complete := Act{Item: 1, Action: historyv1.OperatorAction_OPERATOR_ACTION_COMPLETE, Actor: "bob", Reason: "r", Evidence: "e", Output: []byte("true")}
	for want, change := range map[string]func(*Act){
		RefusedOutput:  func(a *Act) { a.Output = []byte("7") },
		RefusedInvalid: func(a *Act) { a.Evidence = "" },
	} {
		act := complete
		change(&act)
		var refusal *Refusal
		if _, err := m.Decide(s, act, 3, 1); !errors.As(err, &refusal) || refusal.Code != want {
			t.Errorf("%v, want code %s", err, want)
		}
	}
	mustDecide(t, m, s, complete, 3)
}

// TestNoSaga: events that have no saga to happen to, and one that has already happened.
func TestNoSaga(t *testing.T) {
	m := machineOf(t, "comp t1")
	s := mustDecide(t, m, nil, Start{Input: []byte("{}")}, 1).State
	var refusal *Refusal
	if d, err := m.Decide(s, Start{Input: []byte("{}")}, 2, 1); !errors.As(err, &refusal) || refusal.Code != RefusedNotAllowed || d.State != s {
		t.Errorf("a second start: %v", err)
	}
	for _, e := range []Event{Tick{}, Cancel{}, Result{}, Act{}} {
		if d, err := m.Decide(nil, e, 2, 1); !errors.As(err, &refusal) || refusal.Code != RefusedNotFound || d.State != nil {
			t.Errorf("%T without a saga: %v", e, err)
		}
	}
	if _, err := m.Decide(s, nil, 2, 1); !errors.As(err, &refusal) || refusal.Code != RefusedInvalid {
		t.Errorf("no event: %v", err)
	}
}

// TestInput: what a saga may start with.
func TestInput(t *testing.T) {
	def, err := parseDefinition("comp t1")
	if err != nil {
		t.Fatal(err)
	}
	def.InputSchema = `{"type":"object","required":["a"]}`
	m, problems := Compile(def)
	if len(problems) > 0 {
		t.Fatal(printProblems(problems))
	}
	secret := strings.Repeat("s", 300)
	for input, code := range map[string]string{
		`{"a":1}`:              "",
		``:                     RefusedInput,
		`{`:                    RefusedInput,
		`{"b":1}`:              RefusedInput,
		`"a"`:                  RefusedInput,
		"{\"a\xff\": 1}":       RefusedInput,
		`{"a":"\u0000"}`:       RefusedInput,
		`{"a":1,"a":2}`:        RefusedInput,
		`["` + secret + `"]`:   RefusedInput,
		`{"` + secret + `":1}`: RefusedInput,
		strings.Repeat(" ", payloadBytesMax) + `{"a":1}`:      CodeTooLarge,
		strings.Repeat("[", 1000) + strings.Repeat("]", 1000): RefusedInput,
	} {
		err := m.CheckInput([]byte(input))
		var refusal *Refusal
		switch {
		case code == "":
			if err != nil {
				t.Errorf("%s: %v", clip(input), err)
			}
		case !errors.As(err, &refusal) || refusal.Code != code || len(refusal.Message) > 800 || strings.Contains(refusal.Message, secret):
			t.Errorf("%s: %v, want %s", clip(input), err, code)
		}
	}
}
