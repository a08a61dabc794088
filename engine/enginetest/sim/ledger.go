package sim

import (
	"fmt"
	"strings"

	"github.com/google/uuid"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/store"
)

// account is what the provider knows of an action, under its idempotency key. Handlers stand behind a barrier: what was done
// under a key is done once and its answer kept, and an action whose compensation was there before it isn't done any more.
type account struct {
	m        *model
	step     string
	stands   bool
	done     bool // once; doing it again under the same key does nothing
	rejected bool
	closed   bool // the compensation, or a person, was there
	undone   bool
	output   []byte
	// answers of the compensation, by generation.
	answers map[int32]workerv1.Outcome
	// working are workers on the call now; attempts those on each attempt.
	working  int
	attempts map[int32]int
}

func (s *sim) account(t *workerv1.Task) *account {
	key := t.GetIdempotencyKey()
	if t.GetDirection() == workerv1.Direction_DIRECTION_UNDO {
		key = t.GetActionKey()
	}
	run, _ := uuid.Parse(t.GetRunId())
	return s.accountOf(s.models[run], t.GetStep(), key)
}

func (s *sim) accountOf(m *model, step, key string) *account {
	a := s.ledger[key]
	if a == nil {
		a = &account{m: m, step: step, answers: map[int32]workerv1.Outcome{}, attempts: map[int32]int{}}
		s.ledger[key] = a
	}
	return a
}

func (s *sim) whole(output string) []byte {
	return fmt.Appendf(nil, output, strings.Repeat("p", s.padding))
}

// act makes the effect stand.
func (s *sim) act(a *account) {
	if a.done && a.stands {
		return
	}
	a.stands, a.done = true, true
	if a.output == nil {
		a.output = s.whole(outputWhole)
		if !s.calm && s.oneIn(8) {
			a.output = s.whole(outputPoor)
		}
		if !s.calm && s.of(s.badOutput) {
			s.fault("output that can't be used")
			a.output = []byte([]string{`{"ok":`, `{"ok":"\u0000"}`, `[1]`, "\xff"}[s.upTo(4)])
		}
	}
	if s.barrier && a.m.end == store.Compensated && !a.m.readOnly(a.step) {
		s.fail("I6: saga %s: %s takes effect after the saga was compensated", a.m.id, a.step)
	}
}

// serve is the provider. nil: the worker dies.
func (s *sim) serve(t *workerv1.Task) *workerv1.Result {
	a := s.account(t)
	s.note("serve", t.GetIdempotencyKey(), int64(t.GetAttempt()))
	if t.GetDirection() == workerv1.Direction_DIRECTION_DO {
		return s.doIt(a)
	}
	return s.undoIt(a, t.GetGeneration())
}

func failed(code string) *workerv1.Result {
	return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_FAILED, Code: code}
}

func (s *sim) doIt(a *account) *workerv1.Result {
	switch {
	case s.barrier && a.closed && !a.done:
		s.sometimes("the barrier refuses an action after its compensation")
		return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_REJECTED, Code: "ALREADY_COMPENSATED"}
	case s.barrier && a.rejected:
		return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_REJECTED, Code: "NO"}
	case a.done:
		return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_SUCCEEDED, Output: a.output}
	}
	readOnly := a.m.readOnly(a.step)
	// Without a barrier whoever fails after a compensation or a rejection has done nothing: no answer would tell of it.
	late := len(a.answers) > 0 || a.closed || a.rejected
	switch {
	case s.calm:
	case s.of(s.fails):
		s.fault("action fails")
		r := failed("ERR")
		if s.oneIn(3) && !late {
			s.act(a)
			s.sometimes("an action fails and its effect stands")
		}
		if s.of(s.retryAfter) {
			r.RetryAfterUs = s.Int64N(retryAfterMax.Microseconds())
		}
		r.GiveUp = s.oneIn(10)
		return r
	case s.of(s.rejects) && !s.mustSucceed(a):
		s.fault("action rejected")
		a.rejected = true
		return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_REJECTED, Code: "NO"}
	}
	s.act(a)
	if readOnly {
		a.done, a.stands = false, false
		out := a.output
		a.output = nil
		return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_SUCCEEDED, Output: out}
	}
	return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_SUCCEEDED, Output: a.output}
}

// mustSucceed: a retriable step is mostly not rejected.
func (s *sim) mustSucceed(a *account) bool {
	return a.m.steps[a.step].GetKind() == sagadv1.Kind_KIND_RETRIABLE && !s.oneIn(4)
}

func (s *sim) undoIt(a *account, generation int32) *workerv1.Result {
	if o, ok := a.answers[generation]; ok {
		return &workerv1.Result{Outcome: o}
	}
	if !s.calm {
		switch {
		case s.of(s.undoFails):
			s.fault("compensation fails")
			r := failed("ERR")
			if s.oneIn(3) { // done, but it says that it failed
				s.undo(a)
			}
			r.GiveUp = s.oneIn(10)
			return r
		case s.of(s.undoRefuses):
			s.fault("compensation refused")
			return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_CANT_UNDO, Code: "CANT"}
		}
	}
	o := s.undo(a)
	if s.barrier || s.oneIn(2) {
		a.answers[generation] = o
	}
	return &workerv1.Result{Outcome: o}
}

func (s *sim) undo(a *account) workerv1.Outcome {
	o := workerv1.Outcome_OUTCOME_SUCCEEDED
	switch {
	case a.stands:
		a.stands, a.undone = false, true
	case !a.undone:
		o = workerv1.Outcome_OUTCOME_NOTHING_TO_UNDO
		s.sometimes("a compensation finds nothing to undo")
	}
	a.closed = true
	return o
}

// world makes true in the world what a person has said, once that is durable, and looks at what ended.
func (s *sim) world(m *model, before store.Status) {
	for _, e := range m.settled {
		step := e.GetCall().GetStep()
		if m.stepsOf[step] == nil {
			continue
		}
		a := s.accountOf(m, step, actionKey(m.run, step))
		if e.GetCall().GetDirection() == do && e.GetSettlement() == historyv1.Settlement_SETTLEMENT_DONE {
			if !m.readOnly(step) {
				a.stands, a.done = true, true
				if a.output == nil {
					a.output = s.whole(outputWhole)
				}
			}
		} else {
			a.undone = a.undone || a.stands
			a.stands, a.closed = false, true
		}
	}
	if before != 0 || m.end == 0 {
		return
	}
	s.open--
	s.note("end", m.id, int64(m.end))
	if m.end == store.Abandoned && s.barrier {
		left := map[string]bool{}
		for _, c := range m.left {
			left[c.GetStep()] = true
		}
		for _, name := range m.order {
			if a := s.ledger[actionKey(m.run, name)]; a != nil && a.stands && !m.readOnly(name) && !left[name] {
				s.fail("I6: saga %s is abandoned; %s stands and isn't listed", m.id, name)
			}
		}
	}
	s.settled(m)
}

// settled compares the ledger with what an ended saga says of itself: I6.
func (s *sim) settled(m *model) {
	for _, name := range m.order {
		if m.readOnly(name) {
			continue
		}
		a := s.ledger[actionKey(m.run, name)]
		stands := a != nil && a.stands
		st := m.stepsOf[name]
		switch m.end {
		case store.Compensated:
			if stands && s.barrier {
				s.fail("I6: saga %s is compensated; what %s did stands", m.id, name)
			}
		case store.Completed:
			if st.do.phase == fine && !stands {
				s.fail("I6: saga %s is completed; what %s did doesn't stand", m.id, name)
			}
			if st.do.phase == idle && stands {
				s.fail("I6: saga %s is completed; %s wasn't called and stands", m.id, name)
			}
		case store.Abandoned:
		default:
			if s.calm && s.open == 0 {
				s.fail("saga %s has no end", m.id)
			}
		}
	}
}
