package statemachine

import (
	"fmt"
	"slices"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

const (
	do   = historyv1.Direction_DIRECTION_DO
	undo = historyv1.Direction_DIRECTION_UNDO
)

// Fold folds a saga's whole history.
func (m *Machine) Fold(ts []*historyv1.Transition) (*State, error) {
	var s *State
	for _, t := range ts {
		var err error
		if s, err = m.Evolve(s, t); err != nil {
			return nil, err
		}
	}
	if s == nil {
		return nil, fmt.Errorf("the history is empty")
	}
	return s, nil
}

// Evolve folds one transition into s, which it changes. s is nil before the first. An error says that the history is damaged,
// of another definition or of a later release; s must not be used then.
func (m *Machine) Evolve(s *State, t *historyv1.Transition) (*State, error) {
	if s == nil {
		if len(t.GetFacts()) == 0 || t.GetFacts()[0].GetStarted() == nil {
			return nil, fmt.Errorf("the history doesn't begin with a start")
		}
		s = m.empty()
	}
	s.N++
	for _, f := range t.GetFacts() {
		if err := m.evolve(s, f, t.GetAtUs()); err != nil {
			return nil, fmt.Errorf("transition %d: %w", s.N, err)
		}
	}
	if id := t.GetRequestId(); id != "" {
		s.requests = append(s.requests, id)
		if len(s.requests) > requestsMax {
			s.requests = slices.Clone(s.requests[len(s.requests)-requestsMax:])
		}
	}
	return s, nil
}

func (m *Machine) empty() *State {
	s := &State{Steps: make([]StepState, len(m.steps)), Branches: make([]Arm, len(m.ifs))}
	for i := range m.steps {
		s.Steps[i].Name = m.steps[i].name
	}
	return s
}

// evolve folds one fact. It reads nothing but its arguments, and decides nothing: a later release may decide otherwise, but
// folds the facts of all earlier ones as they did.
func (m *Machine) evolve(s *State, fact *historyv1.Fact, at Micros) error {
	if s.end != 0 {
		switch fact.GetKind().(type) {
		case *historyv1.Fact_LateResult, *historyv1.Fact_ConflictingResult, *historyv1.Fact_ItemOpened, *historyv1.Fact_ItemChanged,
			*historyv1.Fact_ItemClosed, *historyv1.Fact_OperatorActed:
		default:
			return fmt.Errorf("a fact of kind %T comes after the saga has ended as %s", fact.GetKind(), s.end)
		}
	}
	switch f := fact.GetKind().(type) {
	case *historyv1.Fact_Started:
		if s.Status != 0 {
			return fmt.Errorf("the saga starts twice")
		}
		e := f.Started
		s.Namespace, s.SagaID, s.Definition, s.Version = e.GetNamespace(), e.GetSagaId(), e.GetDefinition(), e.GetVersion()
		s.Input, s.Digest, s.Labels, s.Actor, s.Traceparent = e.GetInput(), e.GetRequestDigest(), e.GetLabels(), e.GetActor(), e.GetTraceparent()
		s.Deadline, s.StartedAt, s.ChangedAt = e.GetDeadlineUs(), at, at

	case *historyv1.Fact_AttemptScheduled:
		e := f.AttemptScheduled
		st, c, err := m.locate(s, e.GetCall())
		if err != nil {
			return err
		}
		if e.GetGeneration() < 1 || e.GetAttempt() < 1 {
			return fmt.Errorf("%s has no attempt %d of generation %d", e.GetCall().GetStep(), e.GetAttempt(), e.GetGeneration())
		}
		if e.GetGeneration() != c.Generation {
			c.Generation, c.Attempt, c.budgetFrom, c.budgetFromAt = e.GetGeneration(), 0, 0, at
			c.Empty = false
			if e.GetCall().GetDirection() == undo {
				c.OutputKnown, c.happened = st.Do.OutputKnown, st.Do.happened
			} else {
				c.Input = e.GetInput()
			}
		}
		if c.StartedAt == 0 {
			c.StartedAt = at
		}
		if c.budgetFromAt == 0 {
			c.budgetFromAt = at
		}
		if n := e.GetStartNo(); n != 0 {
			st.StartNo = n
			s.startNo = max(s.startNo, n)
		}
		c.Phase, c.Attempt, c.Deadline, c.RetryAt, c.Unsendable, c.EndedAt = InFlight, e.GetAttempt(), e.GetDeadlineUs(), 0, false, 0

	case *historyv1.Fact_AttemptEnded:
		e := f.AttemptEnded
		_, c, err := m.locate(s, e.GetCall())
		if err != nil {
			return err
		}
		c.Deadline = 0
		c.LastOutcome, c.LastError = e.GetOutcome(), e.GetError()
		rec := c.record(e.GetGeneration(), e.GetAttempt())
		rec.doubt = rec.doubt && rec.digest != nil || e.GetOutcome() != historyv1.Outcome_OUTCOME_REJECTED
		rec.note(e.GetOutcome(), e.GetDigest())
		switch e.GetOutcome() {
		case historyv1.Outcome_OUTCOME_SUCCEEDED:
			if e.GetUnusable() {
				c.Phase, c.InDoubt = GivenUp, true
			} else {
				c.Phase = Succeeded
				if e.GetCall().GetDirection() == do {
					c.Output, c.OutputKnown = orNull(e.GetOutput()), true
				}
			}
			if e.GetCall().GetDirection() == do {
				c.happened = true
			}
			c.EndedAt, c.RetryAt = at, 0
		case historyv1.Outcome_OUTCOME_NOTHING_TO_UNDO:
			c.Phase, c.Empty, c.EndedAt, c.RetryAt = Succeeded, true, at, 0
		case historyv1.Outcome_OUTCOME_REJECTED:
			c.Phase, c.EndedAt, c.RetryAt = Rejected, at, 0
			c.InDoubt = c.happened || !c.allRejected()
		default:
			c.InDoubt = true
			// What follows says whether it is tried again or given up; without it the call would be lost.
			c.Phase = GivenUp
		}

	case *historyv1.Fact_RetryPlanned:
		_, c, err := m.locate(s, f.RetryPlanned.GetCall())
		if err != nil {
			return err
		}
		c.Phase, c.RetryAt = BackingOff, f.RetryPlanned.GetAtUs()

	case *historyv1.Fact_CallGivenUp:
		e := f.CallGivenUp
		_, c, err := m.locate(s, e.GetCall())
		if err != nil {
			return err
		}
		if c.Attempt == 0 {
			c.Unsendable = true
		}
		if e.GetError() != nil {
			c.LastError = e.GetError()
		}
		c.Phase, c.RetryAt, c.Deadline, c.EndedAt = GivenUp, 0, 0, at

	case *historyv1.Fact_BranchTaken:
		i := slices.Index(m.ifs, f.BranchTaken.GetName())
		if i < 0 {
			return fmt.Errorf("the definition has no if %q", f.BranchTaken.GetName())
		}
		if s.Branches[i] = ArmElse; f.BranchTaken.GetCondition() {
			s.Branches[i] = ArmThen
		}

	case *historyv1.Fact_CancelRequested:
	case *historyv1.Fact_DeadlinePassed:
		s.DeadlinePassed = true
	case *historyv1.Fact_UnwindStarted:
		s.Backward = true
		if s.Cause == nil {
			s.Cause = f.UnwindStarted.GetCause()
		}

	case *historyv1.Fact_LateResult:
		e := f.LateResult
		_, c, err := m.locate(s, e.GetCall())
		if err != nil {
			return err
		}
		c.record(e.GetGeneration(), e.GetAttempt()).note(e.GetOutcome(), e.GetDigest())
		if e.GetOutcome() == historyv1.Outcome_OUTCOME_SUCCEEDED && e.GetCall().GetDirection() == do {
			if !c.OutputKnown && len(e.GetOutput()) > 0 {
				c.Output, c.OutputKnown = e.GetOutput(), true
			}
			c.happened = true
			c.InDoubt = c.InDoubt || c.Phase != Succeeded
		}

	case *historyv1.Fact_ConflictingResult:
		e := f.ConflictingResult
		_, c, err := m.locate(s, e.GetCall())
		if err != nil {
			return err
		}
		c.record(e.GetGeneration(), e.GetAttempt()).note(e.GetOutcome(), e.GetDigest())

	case *historyv1.Fact_ItemOpened:
		e := f.ItemOpened
		if int(e.GetItem()) != len(s.Items)+1 {
			return fmt.Errorf("operations item %d comes after item %d", e.GetItem(), len(s.Items))
		}
		call := Call{Step: e.GetCall().GetStep(), Item: e.GetCall().GetItem(), Dir: e.GetCall().GetDirection()}
		s.Items = append(s.Items, ItemState{
			Number: e.GetItem(), Kind: e.GetKind(), Status: historyv1.ItemStatus_ITEM_STATUS_OPEN, Call: call, Blocking: e.GetBlocking(),
			Error: e.GetError(), OpenedAt: at, ChangedAt: at, Version: s.N,
		})
		if c := s.Call(call); c != nil && e.GetBlocking() {
			c.Phase = Held
		}

	case *historyv1.Fact_ItemChanged:
		e := f.ItemChanged
		it := s.Item(e.GetItem())
		if it == nil {
			return fmt.Errorf("there is no item %d", e.GetItem())
		}
		it.Status, it.ChangedAt, it.Version = e.GetStatus(), at, s.N
		if e.GetError() != nil {
			it.Error = e.GetError()
		}
		if c := s.Call(it.Call); c != nil && it.Blocking {
			if e.GetStatus() == historyv1.ItemStatus_ITEM_STATUS_OPEN {
				c.Phase = Held
			} else {
				// A person's retry has a budget of its own. What was never sent is built anew.
				c.budgetFrom, c.budgetFromAt, c.Phase = c.Attempt, at, GivenUp
				if c.Attempt == 0 {
					c.Phase, c.Unsendable = Idle, false
				}
			}
		}

	case *historyv1.Fact_ItemClosed:
		it := s.Item(f.ItemClosed.GetItem())
		if it == nil {
			return fmt.Errorf("there is no item %d", f.ItemClosed.GetItem())
		}
		it.Status, it.How, it.ChangedAt, it.Version = historyv1.ItemStatus_ITEM_STATUS_CLOSED, f.ItemClosed.GetHow(), at, s.N

	case *historyv1.Fact_OperatorActed:

	case *historyv1.Fact_SettledByHand:
		e := f.SettledByHand
		s.SettledByHand++
		_, c, err := m.locate(s, e.GetCall())
		if err != nil {
			if slices.Contains(m.ifs, e.GetCall().GetStep()) || e.GetCall().GetStep() == returnStep {
				break // a person decided a branch or the output; the fact after this one says which
			}
			return err
		}
		c.ByHand, c.EndedAt, c.RetryAt, c.Deadline = true, at, 0, 0
		switch {
		case e.GetCall().GetDirection() == undo:
			c.Phase = Succeeded
		case e.GetSettlement() == historyv1.Settlement_SETTLEMENT_DONE:
			c.Phase, c.Output, c.OutputKnown, c.Unsendable, c.happened = Succeeded, orNull(e.GetOutput()), true, false, true
		default:
			c.Phase, c.InDoubt, c.happened = Rejected, false, false
		}

	case *historyv1.Fact_Completed:
		s.end, s.Output = Completed, orNull(f.Completed.GetOutput())
	case *historyv1.Fact_Compensated:
		s.end = Compensated
	case *historyv1.Fact_Abandoned:
		s.end, s.AbandonReason = Abandoned, f.Abandoned.GetReason()
		for i := range s.Steps {
			for _, c := range [...]*CallState{&s.Steps[i].Do, &s.Steps[i].Undo} {
				switch c.Phase {
				case InFlight, BackingOff, Held:
					c.InDoubt = c.InDoubt || c.Phase == InFlight
					c.Phase, c.EndedAt, c.Deadline, c.RetryAt = GivenUp, at, 0, 0
				}
			}
		}
	default:
		return fmt.Errorf("a fact of a kind that this version doesn't know: it was written by a later release, which must be used to go on")
	}
	if st := s.status(); st != s.Status {
		s.Status, s.ChangedAt = st, at
	}
	return nil
}

func (m *Machine) locate(s *State, call *historyv1.Call) (*StepState, *CallState, error) {
	i, ok := m.byName[call.GetStep()]
	if !ok {
		return nil, nil, fmt.Errorf("the definition has no step %q", call.GetStep())
	}
	if call.GetDirection() != do && call.GetDirection() != undo {
		return nil, nil, fmt.Errorf("a call of %q has no direction", call.GetStep())
	}
	st := &s.Steps[i]
	return st, st.call(call.GetDirection()), nil
}

func orNull(doc []byte) []byte {
	if len(doc) == 0 {
		return []byte("null")
	}
	return doc
}

// hasEffect says whether something of the step may stand in the world.
func (m *Machine) hasEffect(i int, st *StepState) bool {
	if m.steps[i].kind == sagadv1.Kind_KIND_READ_ONLY || st.Do.Attempt == 0 && !st.Do.ByHand {
		return false
	}
	if st.Do.nothingDone() {
		return false
	}
	return st.Undo.Phase != Succeeded
}

// OldestUnsettled is when the oldest effect began that is neither confirmed nor undone nor settled by a person.
func (m *Machine) OldestUnsettled(s *State) (Micros, bool) {
	if s.Status.Terminal() {
		return 0, false
	}
	var oldest Micros
	for i := range s.Steps {
		st := &s.Steps[i]
		if t := st.Do.StartedAt; t != 0 && (oldest == 0 || t < oldest) && m.hasEffect(i, st) {
			oldest = t
		}
	}
	return oldest, oldest != 0
}
