package statemachine

import (
	"encoding/json"
	"fmt"
	"slices"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

const (
	do    = historyv1.Direction_DIRECTION_DO
	undo  = historyv1.Direction_DIRECTION_UNDO
	probe = historyv1.Direction_DIRECTION_PROBE
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
	s := &State{machine: m}
	m.open(&s.Frame, 0)
	return s
}

// open makes a body's frame ready to run.
func (m *Machine) open(f *Frame, body int) {
	b := &m.bodies[body]
	f.body = body
	f.Steps, f.Places = make([]StepState, len(b.steps)), make([]PlaceState, len(b.places))
	for slot, i := range b.steps {
		f.Steps[slot].Name = m.steps[i].name
	}
}

// trail are the frames that lead to one, from the definition's own: all of them to be changed.
type trail struct {
	at [nestingMax + 2]*Frame
	n  int
}

// add tells the frames that more, or less, is awaited.
func (t *trail) add(delta int32) {
	for _, f := range t.at[:t.n] {
		f.live += delta
	}
}

// lead goes to the run of a body at an item.
func (m *Machine) lead(s *State, t *trail, body int, item string) (*Frame, error) {
	f, rest := &s.Frame, item
	t.at[0], t.n = f, 1
	for _, b := range m.bodies[body].chain[1:] {
		var index int
		index, rest = m.scope(b, rest)
		p := &f.Places[m.places[m.bodies[b].owner].slot]
		if index < 0 || index >= len(p.frames) || p.frames[index] == nil {
			return nil, fmt.Errorf("%s has no scope at %q", m.places[m.bodies[b].owner].name, item)
		}
		f = s.own(&s.scopes(p)[index])
		t.at[t.n] = f
		t.n++
	}
	if rest != "" {
		return nil, fmt.Errorf("there is nothing at %q", item)
	}
	return f, nil
}

// spot is what a fact changes: a step's call, or a place.
type spot struct {
	trail
	frame  *Frame
	step   *StepState
	call   *CallState
	place  *PlaceState
	before int32
}

func (m *Machine) atCall(s *State, x *spot, call *historyv1.Call) error {
	i, ok := m.byName[call.GetStep()]
	if !ok {
		return fmt.Errorf("the definition has no step %q", call.GetStep())
	}
	var err error
	if x.frame, err = m.lead(s, &x.trail, m.steps[i].body, call.GetItem()); err != nil {
		return err
	}
	x.step = &x.frame.Steps[m.steps[i].slot]
	x.before = x.step.awaited()
	switch call.GetDirection() {
	case do:
		x.call = &x.step.Do
	case undo:
		x.call = &x.step.Undo
	case probe:
		c := CallState{}
		if x.step.Probe != nil {
			c = *x.step.Probe
		}
		x.step.Probe = &c
		x.call = &c
	default:
		return fmt.Errorf("a call of %q has no direction", call.GetStep())
	}
	return nil
}

func (m *Machine) atPlace(s *State, x *spot, name, item string, kinds ...nodeKind) (*place, error) {
	i, ok := m.placeOf[name]
	if !ok || len(kinds) > 0 && !slices.Contains(kinds, m.places[i].kind) {
		return nil, fmt.Errorf("the definition has no such %q", name)
	}
	d := &m.places[i]
	var err error
	if x.frame, err = m.lead(s, &x.trail, d.body, item); err != nil {
		return nil, err
	}
	x.place = &x.frame.Places[d.slot]
	x.before = x.place.awaited()
	return d, nil
}

// settle counts anew what is awaited.
func (x *spot) settle() {
	switch {
	case x.step != nil:
		x.add(x.step.awaited() - x.before)
	case x.place != nil:
		x.add(x.place.awaited() - x.before)
	}
}

// unheard: there is no attempt in flight that was heard of.
func (c *CallState) unheard() {
	if c.Said != nil {
		c.say(func(s *Said) { s.HeartbeatBy, s.Claim = 0, "" })
	}
}

// quiet stops the sleeps, waits and blocks in a frame that turned back. It returns by how much less is awaited.
func (s *State) quiet(f *Frame) (delta int32) {
	for i := range f.Places {
		p := &f.Places[i]
		if p.Phase != PlaceActive {
			continue
		}
		before := p.awaited()
		p.Phase, p.At = PlaceStopped, 0
		delta += p.awaited() - before
		for _, index := range p.active {
			if p.frames[index].live > 0 {
				delta += s.quiet(s.own(&s.scopes(p)[index]))
			}
		}
	}
	f.live += delta
	return delta
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
	var x spot
	switch f := fact.GetKind().(type) {
	case *historyv1.Fact_Started:
		if s.Status != 0 {
			return fmt.Errorf("the saga starts twice")
		}
		e := f.Started
		s.Namespace, s.SagaID, s.Definition, s.Version = e.GetNamespace(), e.GetSagaId(), e.GetDefinition(), e.GetVersion()
		s.Input, s.Digest, s.Labels, s.Actor, s.Traceparent = e.GetInput(), e.GetRequestDigest(), e.GetLabels(), e.GetActor(), e.GetTraceparent()
		s.Deadline, s.StartedAt, s.ChangedAt, s.Parent = e.GetDeadlineUs(), at, at, e.GetParent()

	case *historyv1.Fact_AttemptScheduled:
		e := f.AttemptScheduled
		if err := m.atCall(s, &x, e.GetCall()); err != nil {
			return err
		}
		st, c := x.step, x.call
		if e.GetGeneration() < 1 || e.GetAttempt() < 1 {
			return fmt.Errorf("%s has no attempt %d of generation %d", e.GetCall().GetStep(), e.GetAttempt(), e.GetGeneration())
		}
		if e.GetGeneration() != c.Generation {
			c.Generation, c.Attempt, c.budgetFrom, c.budgetFromAt = e.GetGeneration(), 0, 0, at
			c.Empty = false
			switch e.GetCall().GetDirection() {
			case undo:
				c.OutputKnown, c.happened = st.Do.OutputKnown, st.Do.happened
			case do:
				c.Input, c.Said, c.Disproved = e.GetInput(), nil, false
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
		c.unheard()

	case *historyv1.Fact_AttemptEnded:
		e := f.AttemptEnded
		if err := m.atCall(s, &x, e.GetCall()); err != nil {
			return err
		}
		c := x.call
		c.Deadline = 0
		c.unheard()
		c.LastOutcome, c.LastError = e.GetOutcome(), e.GetError()
		rec := c.record(e.GetGeneration(), e.GetAttempt())
		rec.doubt = rec.doubt && rec.digest != nil || e.GetOutcome() != historyv1.Outcome_OUTCOME_REJECTED
		rec.note(e.GetOutcome(), e.GetDigest())
		switch e.GetOutcome() {
		case historyv1.Outcome_OUTCOME_HAPPENED:
			c.Phase, c.EndedAt, c.RetryAt = Succeeded, at, 0
			x.step.Do.happened, x.step.Do.Disproved = true, false
			if len(e.GetOutput()) > 0 && !x.step.Do.OutputKnown {
				x.step.Do.Output, x.step.Do.OutputKnown = e.GetOutput(), true
			}
		case historyv1.Outcome_OUTCOME_DID_NOT_HAPPEN:
			c.Phase, c.EndedAt, c.RetryAt = Succeeded, at, 0
			x.step.Do.Disproved = !x.step.Do.happened
		case historyv1.Outcome_OUTCOME_CANT_TELL:
			c.Phase, c.EndedAt, c.RetryAt = Succeeded, at, 0
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
		if err := m.atCall(s, &x, f.RetryPlanned.GetCall()); err != nil {
			return err
		}
		c := x.call
		c.Phase, c.RetryAt = BackingOff, f.RetryPlanned.GetAtUs()

	case *historyv1.Fact_CallGivenUp:
		e := f.CallGivenUp
		if err := m.atCall(s, &x, e.GetCall()); err != nil {
			return err
		}
		c := x.call
		if c.Attempt == 0 {
			c.Unsendable = true
		}
		if e.GetError() != nil {
			c.LastError = e.GetError()
		}
		c.Phase, c.RetryAt, c.Deadline, c.EndedAt = GivenUp, 0, 0, at

	case *historyv1.Fact_BranchTaken:
		if _, err := m.atPlace(s, &x, f.BranchTaken.GetName(), f.BranchTaken.GetItem(), ifNode); err != nil {
			return err
		}
		if x.place.Arm = ArmElse; f.BranchTaken.GetCondition() {
			x.place.Arm = ArmThen
		}

	case *historyv1.Fact_CaseTaken:
		d, err := m.atPlace(s, &x, f.CaseTaken.GetName(), f.CaseTaken.GetItem(), switchNode)
		if err != nil {
			return err
		}
		n := f.CaseTaken.GetIndex()
		if n < 0 {
			n = int32(d.cases)
		}
		if int(n) > d.cases {
			return fmt.Errorf("%s has no case %d", d.name, n)
		}
		x.place.Arm = Arm(n) + 1

	case *historyv1.Fact_TimerStarted:
		e := f.TimerStarted
		if _, err := m.atPlace(s, &x, e.GetName(), e.GetItem(), sleepNode); err != nil {
			return err
		}
		x.place.Phase, x.place.At, x.place.StartedAt = PlaceActive, e.GetAtUs(), at

	case *historyv1.Fact_TimerFired:
		if _, err := m.atPlace(s, &x, f.TimerFired.GetName(), f.TimerFired.GetItem(), sleepNode); err != nil {
			return err
		}
		x.place.Phase, x.place.At = PlaceDone, 0

	case *historyv1.Fact_WaitStarted:
		e := f.WaitStarted
		if _, err := m.atPlace(s, &x, e.GetName(), e.GetItem(), waitNode); err != nil {
			return err
		}
		x.place.Phase, x.place.At, x.place.StartedAt = PlaceActive, e.GetDeadlineUs(), at

	case *historyv1.Fact_SignalReceived:
		e := f.SignalReceived
		s.keys = append(slices.Clip(s.keys), signalKey{e.GetSignal(), e.GetKey(), e.GetDigest()})
		s.Signals = append(slices.Clip(s.Signals), SignalState{Name: e.GetSignal(), Key: e.GetKey(), Payload: e.GetPayload(), At: at})

	case *historyv1.Fact_SignalConsumed:
		e := f.SignalConsumed
		if _, err := m.atPlace(s, &x, e.GetName(), e.GetItem(), waitNode); err != nil {
			return err
		}
		payload := e.GetPayload()
		if e.GetSignal() != "" {
			i := slices.IndexFunc(s.Signals, func(k SignalState) bool { return k.Name == e.GetSignal() && k.Key == e.GetKey() })
			if i < 0 {
				return fmt.Errorf("there is no signal %q with key %q to take", e.GetSignal(), e.GetKey())
			}
			payload = s.Signals[i].Payload
			s.Signals = slices.Concat(s.Signals[:i:i], s.Signals[i+1:])
		}
		x.place.Phase, x.place.At, x.place.Output, x.place.Arm = PlaceDone, 0, orNull(payload), ArmThen

	case *historyv1.Fact_WaitExpired:
		if _, err := m.atPlace(s, &x, f.WaitExpired.GetName(), f.WaitExpired.GetItem(), waitNode); err != nil {
			return err
		}
		x.place.Phase, x.place.At, x.place.Arm = PlaceDone, 0, ArmElse

	case *historyv1.Fact_BlockStarted:
		e := f.BlockStarted
		d, err := m.atPlace(s, &x, e.GetName(), e.GetItem(), mapNode, loopNode, savepointNode, raceNode)
		if err != nil {
			return err
		}
		p := x.place
		if d.kind == mapNode {
			if err := json.Unmarshal(e.GetValue(), &p.elements); err != nil || len(p.elements) != int(e.GetCount()) {
				return fmt.Errorf("the list of %s has no %d elements", d.name, e.GetCount())
			}
		}
		p.Phase, p.Value, p.Count, p.StartedAt = PlaceActive, e.GetValue(), e.GetCount(), at
		p.frames, p.stamp = make([]*Frame, 0, min(max(p.Count, 1), 16)), s.stamp

	case *historyv1.Fact_ScopeStarted:
		e := f.ScopeStarted
		d, err := m.atPlace(s, &x, e.GetName(), e.GetItem(), mapNode, loopNode, savepointNode, raceNode)
		if err != nil {
			return err
		}
		p, index := x.place, int(e.GetIndex())
		if p.Phase != PlaceActive || index < 0 || index >= int(p.Count) || index < len(p.frames) && p.frames[index] != nil {
			return fmt.Errorf("%s can't start scope %d", d.name, index)
		}
		frames := s.scopes(p)
		for len(frames) <= index {
			frames = append(frames, nil)
		}
		body := d.bodies[0]
		if d.kind == savepointNode || d.kind == raceNode {
			body = d.bodies[index]
		}
		in := &Frame{Item: m.itemOf(d, e.GetItem(), index), Index: e.GetIndex(), Value: e.GetValue(), stamp: s.stamp}
		m.open(in, body)
		frames[index] = in
		p.frames = frames
		p.active = append(slices.Clip(p.active), e.GetIndex())

	case *historyv1.Fact_ScopeUnwinding:
		e := f.ScopeUnwinding
		in, err := m.atScope(s, &x, e.GetName(), e.GetItem(), e.GetIndex())
		if err != nil {
			return err
		}
		in.Phase, in.Cause = FrameUnwinding, e.GetCause()
		x.add(s.quiet(in))

	case *historyv1.Fact_ScopeEnded:
		e := f.ScopeEnded
		in, err := m.atScope(s, &x, e.GetName(), e.GetItem(), e.GetIndex())
		if err != nil {
			return err
		}
		p := x.place
		i := slices.Index(p.active, e.GetIndex())
		if i < 0 {
			return fmt.Errorf("scope %d of %s ends twice", e.GetIndex(), e.GetName())
		}
		p.active = slices.Concat(p.active[:i:i], p.active[i+1:])
		if in.Phase, in.Output = FrameDone, e.GetOutput(); e.GetUndone() {
			in.Phase = FrameUndone
			p.Failed++
		} else {
			p.Done++
			p.order = append(slices.Clip(p.order), e.GetIndex())
		}

	case *historyv1.Fact_BlockEnded:
		e := f.BlockEnded
		if _, err := m.atPlace(s, &x, e.GetName(), e.GetItem(), mapNode, loopNode, savepointNode, raceNode); err != nil {
			return err
		}
		x.place.Phase, x.place.Output, x.place.active = PlaceDone, orNull(e.GetOutput()), nil

	case *historyv1.Fact_Checkpointed:
		if err := m.atCall(s, &x, f.Checkpointed.GetCall()); err != nil {
			return err
		}
		x.call.say(func(s *Said) { s.Checkpoint = f.Checkpointed.GetData() })

	case *historyv1.Fact_Progressed:
		e := f.Progressed
		if err := m.atCall(s, &x, e.GetCall()); err != nil {
			return err
		}
		x.call.say(func(s *Said) {
			if s.HeartbeatBy = e.GetHeartbeatUs(); len(e.GetData()) > 0 {
				s.Progress = e.GetData()
			}
		})

	case *historyv1.Fact_Claimed:
		if err := m.atCall(s, &x, f.Claimed.GetCall()); err != nil {
			return err
		}
		x.call.say(func(s *Said) { s.Claim, s.HeartbeatBy = f.Claimed.GetClaim(), f.Claimed.GetHeartbeatUs() })

	case *historyv1.Fact_Paused:
		s.Paused, s.PauseReason, s.PausedAt = true, f.Paused.GetReason(), at
	case *historyv1.Fact_Resumed:
		s.Paused, s.PauseReason, s.PausedAt = false, "", 0
	case *historyv1.Fact_Migrated:
		return fmt.Errorf("a migration is folded with both versions of the definition")
	case *historyv1.Fact_Provisional:
		s.Provisional, s.Output = true, orNull(f.Provisional.GetOutput())
	case *historyv1.Fact_ParentSettled:
		s.ParentEnded = true

	case *historyv1.Fact_CancelRequested:
	case *historyv1.Fact_DeadlinePassed:
		s.DeadlinePassed = true
	case *historyv1.Fact_UnwindStarted:
		s.Backward, s.Provisional = true, false
		s.quiet(&s.Frame)
		if s.Cause == nil {
			s.Cause = f.UnwindStarted.GetCause()
		}

	case *historyv1.Fact_LateResult:
		e := f.LateResult
		if err := m.atCall(s, &x, e.GetCall()); err != nil {
			return err
		}
		c := x.call
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
		if err := m.atCall(s, &x, e.GetCall()); err != nil {
			return err
		}
		x.call.record(e.GetGeneration(), e.GetAttempt()).note(e.GetOutcome(), e.GetDigest())

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
		if e.GetBlocking() && m.atCall(s, &x, e.GetCall()) == nil {
			x.call.Phase = Held
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
		if it.Blocking && m.atCall(s, &x, it.Call.proto()) == nil {
			c := x.call
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
		if _, isStep := m.byName[e.GetCall().GetStep()]; !isStep {
			if _, isPlace := m.placeOf[e.GetCall().GetStep()]; isPlace || e.GetCall().GetStep() == returnStep {
				break // a person decided a branch or the output; the fact after this one says which
			}
		}
		if err := m.atCall(s, &x, e.GetCall()); err != nil {
			return err
		}
		c := x.call
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
		s.abandon(&s.Frame, at)
	default:
		return fmt.Errorf("a fact of a kind that this version doesn't know: it was written by a later release, which must be used to go on")
	}
	x.settle()
	if st := s.status(); st != s.Status {
		s.Status, s.ChangedAt = st, at
	}
	return nil
}

// atScope goes to a scope of a block: x is at the place.
func (m *Machine) atScope(s *State, x *spot, name, item string, index int32) (*Frame, error) {
	d, err := m.atPlace(s, x, name, item, mapNode, loopNode, savepointNode, raceNode)
	if err != nil {
		return nil, err
	}
	if index < 0 || int(index) >= len(x.place.frames) || x.place.frames[index] == nil {
		return nil, fmt.Errorf("%s has no scope %d", d.name, index)
	}
	return s.own(&s.scopes(x.place)[index]), nil
}

// abandon gives up all that is under way.
func (s *State) abandon(f *Frame, at Micros) {
	for i := range f.Steps {
		st := &f.Steps[i]
		if st.Probe != nil {
			c := *st.Probe
			st.Probe = &c
		}
		for _, c := range st.calls() {
			if c == nil {
				continue
			}
			switch c.Phase {
			case InFlight, BackingOff, Held:
				c.InDoubt = c.InDoubt || c.Phase == InFlight
				c.Phase, c.EndedAt, c.Deadline, c.RetryAt = GivenUp, at, 0, 0
				c.unheard()
			}
		}
	}
	for i := range f.Places {
		p := &f.Places[i]
		if p.Phase == PlaceActive {
			p.Phase, p.At = PlaceStopped, 0
		}
		for index := range p.frames {
			if p.frames[index] != nil {
				s.abandon(s.own(&s.scopes(p)[index]), at)
			}
		}
	}
	f.live = 0
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
	s.each(func(f *Frame) bool {
		for slot, i := range m.bodies[f.body].steps {
			st := &f.Steps[slot]
			if t := st.Do.StartedAt; t != 0 && (oldest == 0 || t < oldest) && m.hasEffect(i, st) {
				oldest = t
			}
		}
		return true
	})
	return oldest, oldest != 0
}
