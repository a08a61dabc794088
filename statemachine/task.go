package statemachine

import (
	"fmt"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
)

// Task is what an attempt asks of a worker. It follows from the state, so it can be made again after any loss. The caller
// adds the saga's names, the keys and the token.
func (m *Machine) Task(s *State, c Call) (*workerv1.Task, error) {
	i, ok := m.byName[c.Step]
	if !ok {
		return nil, fmt.Errorf("the definition has no step %q", c.Step)
	}
	st, ms := &s.Steps[i], &m.steps[i]
	call := st.call(c.Dir)
	if call.Phase != InFlight {
		return nil, fmt.Errorf("%s is %s: it has no attempt to send", c, call.Phase)
	}
	t := &workerv1.Task{
		Protocol: 1, Namespace: s.Namespace, SagaId: s.SagaID, Step: c.Step, Item: c.Item,
		Direction: workerv1.Direction_DIRECTION_DO, Generation: call.Generation, Attempt: call.Attempt, Activity: ms.activity,
		Input: st.Do.Input, DeadlineUs: call.Deadline, TimeoutUs: ms.timeout,
	}
	if c.Dir == undo {
		t.Direction, t.TimeoutUs = workerv1.Direction_DIRECTION_UNDO, ms.undoTimeout
		t.Undo = &workerv1.Undo{
			OutputKnown: call.OutputKnown, CauseStep: s.Cause.GetStep(), CauseCode: s.Cause.GetError().GetCode(), CauseMessage: s.Cause.GetError().GetMessage(),
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
