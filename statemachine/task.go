package statemachine

import (
	"fmt"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
)

// Task is what an attempt asks of a worker. It follows from the state, so it can be made again after any loss. The caller
// adds the saga's names, the keys and the token.
func (m *Machine) Task(s *State, c Call) (*workerv1.Task, error) {
	i, ok := m.byName[c.Step]
	if !ok {
		return nil, fmt.Errorf("the definition has no step %q", c.Step)
	}
	st, _ := s.step(c.Step, c.Item)
	if st == nil {
		return nil, fmt.Errorf("there is no %s at %q", c.Step, c.Item)
	}
	ms, call := &m.steps[i], st.call(c.Dir)
	if call.Phase != InFlight {
		return nil, fmt.Errorf("%s is %s: it has no attempt to send", c, call.Phase)
	}
	t := &workerv1.Task{
		Protocol: 1, Namespace: s.Namespace, SagaId: s.SagaID, Step: c.Step, Item: c.Item,
		Direction: workerv1.Direction_DIRECTION_DO, Generation: call.Generation, Attempt: call.Attempt, Activity: ms.activity,
		Input: st.Do.Input, DeadlineUs: call.Deadline, TimeoutUs: ms.timeout,
	}
	switch c.Dir {
	case do:
		t.HeartbeatUs, t.Claimed, t.Progress = ms.heartbeat, ms.claimed, call.Reported().Progress
	case probe:
		t.Direction, t.TimeoutUs = workerv1.Direction_DIRECTION_PROBE, ms.undoTimeout
	case undo:
		t.Direction, t.TimeoutUs = workerv1.Direction_DIRECTION_UNDO, ms.undoTimeout
		t.Undo = &workerv1.Undo{
			OutputKnown: call.OutputKnown, CauseStep: s.Cause.GetStep(), CauseCode: s.Cause.GetError().GetCode(), CauseMessage: s.Cause.GetError().GetMessage(),
			Checkpoint: st.Do.Reported().Checkpoint,
		}
		if cause := m.causeOf(s, c); cause != nil {
			t.Undo.CauseStep, t.Undo.CauseCode, t.Undo.CauseMessage = cause.GetStep(), cause.GetError().GetCode(), cause.GetError().GetMessage()
		}
		if call.OutputKnown {
			t.Undo.Output = st.Do.Output
		}
	}
	return t, nil
}

// Activity is the activity that a step calls, or "".
func (m *Machine) Activity(step string) string {
	if i, ok := m.byName[step]; ok {
		return m.steps[i].activity
	}
	return ""
}

// causeOf is why a block that a call stands in turned back, while the saga went on; nil if none did.
func (m *Machine) causeOf(s *State, c Call) *historyv1.Cause {
	for w := (where{m.steps[m.byName[c.Step]].body, c.Item}); w.body != 0 && !s.Backward; w = m.out(w) {
		if f := m.frame(s, w.body, w.item); f.Cause != nil {
			return f.Cause
		}
	}
	return nil
}
