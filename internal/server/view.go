package server

import (
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sagad/sagad/internal/wire"
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// earliest and latest are the ends of what an answer can hold. A time beyond, however it came to be, would keep the whole answer from
// being written as JSON.
var earliest, latest = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC)

func timestamp(t time.Time) *timestamppb.Timestamp {
	switch {
	case t.IsZero():
		return nil
	case t.Before(earliest):
		t = earliest
	case t.After(latest):
		t = latest
	}
	return timestamppb.New(t)
}

func micros(us statemachine.Micros) *timestamppb.Timestamp {
	if us == 0 {
		return nil
	}
	return timestamp(time.UnixMicro(us))
}

func sagaSummary(row store.Saga) *sagadv1.SagaSummary {
	return &sagadv1.SagaSummary{
		Namespace:     row.Namespace,
		Id:            row.ID,
		RunId:         row.Run.String(),
		Definition:    row.Definition,
		Version:       row.Version,
		Status:        sagadv1.SagaStatus(row.Status),
		StartedAt:     timestamp(row.StartedAt),
		ChangedAt:     timestamp(row.ChangedAt),
		Deadline:      timestamp(row.Deadline),
		Labels:        row.Labels,
		Cause:         cause(row.Cause),
		SettledByHand: row.SettledByHand,
	}
}

func cause(encoded []byte) *historyv1.Cause {
	if len(encoded) == 0 {
		return nil
	}
	c := new(historyv1.Cause)
	if proto.Unmarshal(encoded, c) != nil {
		return nil
	}
	return c
}

// sagaView is a saga with its steps. state and m may be nil, if the history can't be folded.
func sagaView(row store.Saga, state *statemachine.State, m *statemachine.Machine, items []store.Item) *sagadv1.Saga {
	v := &sagadv1.Saga{Summary: sagaSummary(row), LastTransition: row.N}
	for i := range items {
		v.Items = append(v.Items, itemView(items[i], state, m))
	}
	if state == nil {
		return v
	}
	v.Summary.Status = sagadv1.SagaStatus(state.Status)
	v.Summary.Version = state.Version
	v.Summary.SettledByHand = state.SettledByHand
	v.Summary.Cause = state.Cause
	v.Summary.ChangedAt = micros(state.ChangedAt)
	v.Input = string(state.Input)
	v.Output = string(state.Output)
	v.LastTransition = state.N
	v.Traceparent = state.Traceparent
	v.Paused, v.Provisional = state.Paused, state.Provisional
	if p := state.Parent; p != nil {
		run, _ := uuid.FromBytes(p.GetRun())
		v.Parent = &sagadv1.SagaParent{Id: p.GetSagaId(), RunId: run.String(), Step: p.GetStep(), Item: p.GetItem()}
	}
	steps, total := m.Views(state, stepsShownMax)
	v.StepsTotal = int32(total)
	for i := range steps {
		st := &steps[i]
		call := func(dir historyv1.Direction, c *statemachine.CallState) *sagadv1.SagaCall {
			return callView(row.Run, state.KeyName(statemachine.Call{Step: st.Name, Item: st.Item}), st.Item, dir, c)
		}
		x := &sagadv1.SagaStep{
			Name:         st.Name,
			Item:         st.Item,
			Activity:     st.Activity,
			Status:       stepStatus(state, st.StepState, st.Skipped || st.Undone),
			Action:       call(historyv1.Direction_DIRECTION_DO, &st.Do),
			Compensation: call(historyv1.Direction_DIRECTION_UNDO, &st.Undo),
		}
		if st.Probe != nil {
			x.Probe = call(historyv1.Direction_DIRECTION_PROBE, st.Probe)
		}
		if st.Child && st.Do.Attempt > 0 {
			x.ChildId = statemachine.ChildID(state, statemachine.Call{Step: st.Name, Item: st.Item})
		}
		v.Steps = append(v.Steps, x)
	}
	return v
}

// stepsShownMax bounds the steps of an answer; the history has them all.
const stepsShownMax = 1000

func stepStatus(state *statemachine.State, st *statemachine.StepState, skipped bool) sagadv1.StepStatus {
	switch st.Undo.Phase {
	case statemachine.InFlight, statemachine.BackingOff:
		return sagadv1.StepStatus_STEP_STATUS_COMPENSATING
	case statemachine.Succeeded:
		return sagadv1.StepStatus_STEP_STATUS_COMPENSATED
	case statemachine.Rejected, statemachine.GivenUp, statemachine.Held:
		if state.Status.Terminal() {
			return sagadv1.StepStatus_STEP_STATUS_GIVEN_UP
		}
		return sagadv1.StepStatus_STEP_STATUS_HELD
	}
	switch st.Do.Phase {
	case statemachine.InFlight:
		return sagadv1.StepStatus_STEP_STATUS_RUNNING
	case statemachine.BackingOff:
		return sagadv1.StepStatus_STEP_STATUS_BACKING_OFF
	case statemachine.Succeeded:
		return sagadv1.StepStatus_STEP_STATUS_SUCCEEDED
	case statemachine.Rejected:
		return sagadv1.StepStatus_STEP_STATUS_REJECTED
	case statemachine.GivenUp:
		return sagadv1.StepStatus_STEP_STATUS_GIVEN_UP
	case statemachine.Held:
		if state.Status.Terminal() {
			return sagadv1.StepStatus_STEP_STATUS_GIVEN_UP
		}
		return sagadv1.StepStatus_STEP_STATUS_HELD
	}
	if skipped || state.Backward || state.Status.Terminal() {
		return sagadv1.StepStatus_STEP_STATUS_SKIPPED
	}
	return sagadv1.StepStatus_STEP_STATUS_PENDING
}

// callView is nil for a call that was never made and never will have been: there is nothing to say about it.
func callView(run uuid.UUID, step, item string, dir historyv1.Direction, c *statemachine.CallState) *sagadv1.SagaCall {
	if c.Phase == statemachine.Idle && c.Attempt == 0 {
		return nil
	}
	v := &sagadv1.SagaCall{
		Generation:     c.Generation,
		Attempts:       c.Attempt,
		LastOutcome:    c.LastOutcome,
		LastError:      c.LastError,
		IdempotencyKey: key(run, step, item, dir, c.Generation),
		StartedAt:      micros(c.StartedAt),
		EndedAt:        micros(c.EndedAt),
	}
	if dir == historyv1.Direction_DIRECTION_DO {
		said := c.Reported()
		v.Checkpoint, v.Progress = string(said.Checkpoint), string(said.Progress)
		if c.OutputKnown {
			v.Output = string(c.Output)
		}
	}
	switch c.Phase {
	case statemachine.InFlight:
		v.Deadline = micros(c.Deadline)
	case statemachine.BackingOff:
		v.NextAttemptAt = micros(c.RetryAt)
	}
	return v
}

// itemView is an operations item's row, with what only the saga's state knows if it is at hand.
func itemView(it store.Item, state *statemachine.State, m *statemachine.Machine) *sagadv1.OperationsItem {
	v := &sagadv1.OperationsItem{
		Namespace:   it.Namespace,
		SagaId:      it.SagaID,
		RunId:       it.Run.String(),
		Number:      it.Number,
		Kind:        historyv1.ItemKind(it.Kind),
		Status:      historyv1.ItemStatus(it.Status),
		Blocking:    it.Blocking,
		Definition:  it.Definition,
		Step:        it.Step,
		Direction:   historyv1.Direction(it.Direction),
		OpenedAt:    timestamp(it.OpenedAt),
		ChangedAt:   timestamp(it.ChangedAt),
		Version:     it.Version,
		Attempts:    it.Attempts,
		How:         it.How,
		Fingerprint: it.Fingerprint,
	}
	if it.Code != "" || it.Message != "" {
		v.Error = &historyv1.Error{Code: it.Code, Message: it.Message}
	}
	if state != nil {
		if s := state.Item(it.Number); s != nil {
			if s.Error != nil {
				v.Error = s.Error
			}
			v.Item = s.Call.Item
			if m != nil {
				v.FormSchema = m.Form(s.Call)
			}
			if c := state.Call(s.Call); c != nil {
				v.Attempts = c.Attempt
			}
		}
	}
	return v
}

// historyEntry is a stored transition. t is nil if its facts can't be read.
func historyEntry(r store.Row, t *historyv1.Transition) *sagadv1.HistoryEntry {
	e := &sagadv1.HistoryEntry{Number: r.N, At: timestamp(r.At)}
	if t == nil {
		e.Sentences = []string{"What happened here can't be read: the stored facts are damaged, or written by a newer release."}
		return e
	}
	e.Trigger, e.RequestId, e.Facts = t.Trigger, t.RequestId, t.Facts
	for _, f := range t.Facts {
		e.Sentences = append(e.Sentences, statemachine.Sentence(f))
	}
	return e
}

func key(run uuid.UUID, step, item string, dir historyv1.Direction, generation int32) string {
	return wire.IdempotencyKey(run.String(), step, item, workerv1.Direction(dir), generation)
}

func definitionVersion(d store.Definition, def *sagadv1.Definition) *sagadv1.DefinitionVersion {
	return &sagadv1.DefinitionVersion{
		Namespace:    d.Namespace,
		Name:         d.Name,
		Version:      d.Version,
		Hash:         hexadecimal(d.Hash),
		RegisteredAt: timestamp(d.RegisteredAt),
		Definition:   def,
	}
}
