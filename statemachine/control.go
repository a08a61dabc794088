package statemachine

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/sagad/sagad/internal/expr"
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
)

// signal takes in a signal: a wait takes it at once, or later.
func (d *decider) signal(e Signal) error {
	schema, ok := d.m.signals[e.Name]
	if !ok {
		return &Refusal{Code: RefusedInvalid, Message: fmt.Sprintf("definition %s version %d has no signal %q", d.s.Definition, d.s.Version, limitText(e.Name, clipBytes))}
	}
	if e.Key == "" {
		return &Refusal{Code: RefusedInvalid, Message: "a signal needs a key: the same key is the same signal, however often it is sent"}
	}
	sum := sha256.Sum256(orNull(e.Payload))
	digest := sum[:8]
	if i := slices.IndexFunc(d.s.keys, func(k signalKey) bool { return k.name == e.Name && k.key == e.Key }); i >= 0 {
		if !bytes.Equal(d.s.keys[i].digest, digest) {
			return &Refusal{Code: RefusedConflict, Message: fmt.Sprintf("a signal %s with this key came before, with another payload: give each signal a key of its own", e.Name)}
		}
		d.reply.Duplicate = true
		return nil
	}
	if bad := checkOutput(e.Payload, schema); bad != nil {
		return &Refusal{Code: RefusedInput, Message: "the payload doesn't fit: " + bad.GetMessage()}
	}
	switch {
	case d.s.Status.Terminal():
		return &Refusal{Code: RefusedNotAllowed, Message: fmt.Sprintf("the saga has ended as %s: nothing waits for signals any more", d.s.Status)}
	case d.s.Provisional:
		return &Refusal{Code: RefusedNotAllowed, Message: "the saga is done: nothing waits for signals any more"}
	case d.s.Backward:
		return &Refusal{Code: RefusedNotAllowed, Message: "the saga unwinds: nothing waits for signals any more"}
	case len(d.s.Signals) >= signalsKeptMax:
		return &Refusal{Code: RefusedFull, Message: fmt.Sprintf("%d signals wait to be taken, which is the limit: send it again once some are", signalsKeptMax)}
	case len(d.s.keys) >= signalKeysMax:
		return &Refusal{Code: RefusedFull, Message: fmt.Sprintf("the saga has had %d signals, which is the limit", signalKeysMax)}
	}
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_SignalReceived{SignalReceived: &historyv1.SignalReceived{
		Signal: e.Name, Key: e.Key, Payload: orNull(e.Payload), Actor: e.Actor, Digest: bytes.Clone(digest),
	}}})
	d.progress()
	return nil
}

// pause stops the saga from sending anything out.
func (d *decider) pause(e Pause) error {
	switch {
	case d.s.answered(e.RequestID) || d.s.Paused:
		d.reply.Duplicate = true
		return nil
	case d.s.Status.Terminal():
		return &Refusal{Code: RefusedNotAllowed, Message: fmt.Sprintf("the saga has ended as %s: there is nothing to pause", d.s.Status)}
	case e.Reason == "":
		return &Refusal{Code: RefusedInvalid, Message: "a reason is needed: it stands in the history for good"}
	}
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_Paused{Paused: &historyv1.Paused{Actor: e.Actor, Reason: e.Reason}}})
	return nil
}

// resume lets the saga go on.
func (d *decider) resume(e Resume) error {
	switch {
	case d.s.answered(e.RequestID) || !d.s.Paused && !d.s.Status.Terminal():
		d.reply.Duplicate = true
		return nil
	case d.s.Status.Terminal():
		return &Refusal{Code: RefusedNotAllowed, Message: fmt.Sprintf("the saga has ended as %s", d.s.Status)}
	}
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_Resumed{Resumed: &historyv1.Resumed{Actor: e.Actor, Reason: e.Reason}}})
	d.takeUp()
	d.tick(Tick{})
	return nil
}

// report takes in what a worker says of an attempt that goes on.
func (d *decider) report(e Report) {
	i, ok := d.m.byName[e.Call.Step]
	st, _ := d.s.step(e.Call.Step, e.Call.Item)
	if !ok || st == nil || e.Call.Dir != do && e.Call.Dir != undo && e.Call.Dir != probe {
		d.reply = Reply{Verdict: workerv1.Verdict_VERDICT_STALE, Stray: !ok}
		return
	}
	c := st.call(e.Call.Dir)
	if e.Generation > c.Generation || e.Generation == c.Generation && e.Attempt > c.Attempt {
		d.reply = Reply{Verdict: workerv1.Verdict_VERDICT_UNAVAILABLE, Ahead: true}
		return
	}
	ms := &d.m.steps[i]
	current := c.Phase == InFlight && e.Generation == c.Generation && e.Attempt == c.Attempt
	if !current || e.Call.Dir == do && d.backward(where{ms.body, e.Call.Item}) {
		d.reply.Verdict = workerv1.Verdict_VERDICT_STOP
		return
	}
	bad := len(e.Data) > checkpointMax || len(e.Data) > 0 && checkOutput(e.Data, expr.Any) != nil
	if e.Kind == ReportClaim {
		bad = len(e.Data) == 0 || len(e.Data) > claimBytesMax || !utf8.Valid(e.Data) || bytes.IndexByte(e.Data, 0) >= 0
	}
	if bad || d.s.N > transitionsMax-transitionsReserve {
		d.reply.Verdict = workerv1.Verdict_VERDICT_REFUSED
		return
	}
	d.reply.Verdict = workerv1.Verdict_VERDICT_ACCEPTED
	said := c.Reported()
	var by Micros
	if ms.heartbeat > 0 && e.Call.Dir == do {
		by = d.now + ms.heartbeat
	}
	switch e.Kind {
	case ReportClaim:
		switch {
		case said.Claim == string(e.Data):
			d.reply.Verdict = workerv1.Verdict_VERDICT_DUPLICATE
		case said.Claim != "":
			d.reply.Verdict = workerv1.Verdict_VERDICT_BUSY
		default:
			d.emit(&historyv1.Fact{Kind: &historyv1.Fact_Claimed{Claimed: &historyv1.Claimed{
				Call: e.Call.proto(), Generation: e.Generation, Attempt: e.Attempt, Claim: string(e.Data), Worker: e.Worker, HeartbeatUs: by,
			}}})
		}
	case ReportCheckpoint:
		if e.Call.Dir != do || len(e.Data) == 0 {
			d.reply.Verdict = workerv1.Verdict_VERDICT_REFUSED
		} else if bytes.Equal(said.Checkpoint, e.Data) {
			d.reply.Verdict = workerv1.Verdict_VERDICT_DUPLICATE
		} else {
			d.emit(&historyv1.Fact{Kind: &historyv1.Fact_Checkpointed{Checkpointed: &historyv1.Checkpointed{
				Call: e.Call.proto(), Generation: e.Generation, Attempt: e.Attempt, Data: e.Data,
			}}})
		}
	case ReportProgress:
		f := &historyv1.Progressed{Call: e.Call.proto(), Generation: e.Generation, Attempt: e.Attempt, HeartbeatUs: by}
		if len(e.Data) > 0 && !bytes.Equal(e.Data, said.Progress) {
			f.Data = e.Data
		}
		// A heartbeat that nothing waits for, and that says nothing new, isn't worth a transition.
		if f.Data != nil || by > said.HeartbeatBy {
			d.emit(&historyv1.Fact{Kind: &historyv1.Fact_Progressed{Progressed: f}})
		}
	default:
		d.reply.Verdict = workerv1.Verdict_VERDICT_REFUSED
	}
}

// unwindChild turns a child saga back because its parent unwinds.
func (d *decider) unwindChild() error {
	switch {
	case d.s.Parent == nil:
		return &Refusal{Code: RefusedNotAllowed, Message: "the saga is no child of another one"}
	case d.s.Status.Terminal() || d.s.Backward:
		d.reply.Duplicate = true
		return nil
	case d.pivotStarted():
		return &Refusal{Code: RefusedNotAllowed, Message: "the child saga is past its pivot and can't unwind any more"}
	}
	d.turnBack(&historyv1.Cause{Kind: historyv1.CauseKind_CAUSE_KIND_PARENT, Error: &historyv1.Error{
		Code: "PARENT_UNWINDS", Message: fmt.Sprintf("saga %s, of which this one is a child, unwinds", d.s.Parent.GetSagaId()),
	}})
	return nil
}

// parentEnded settles a child saga for good, or turns it back.
func (d *decider) parentEnded(e ParentEnded) {
	if d.s.Parent == nil || d.s.ParentEnded || d.s.Status.Terminal() || !e.Status.Terminal() {
		d.reply.Duplicate = true
		return
	}
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_ParentSettled{ParentSettled: &historyv1.ParentSettled{Status: e.Status.String()}}})
	switch {
	case e.Status == Compensated && !d.s.Backward && !d.pivotStarted():
		d.turnBack(&historyv1.Cause{Kind: historyv1.CauseKind_CAUSE_KIND_PARENT, Error: &historyv1.Error{
			Code: "PARENT_UNWOUND", Message: fmt.Sprintf("saga %s, of which this one is a child, was undone", d.s.Parent.GetSagaId()),
		}})
	case d.s.Provisional:
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_Completed{Completed: &historyv1.Completed{Output: d.s.Output}}})
	default:
		d.progress()
	}
}

// ChildStart is what a step that runs another saga asks for.
type ChildStart struct {
	Definition string
	// Version 0 means the latest.
	Version    int32
	Input      []byte
	Generation int32
}

// Child says which saga a call runs or, in the undo direction, unwinds. ok is false of other calls.
func (m *Machine) Child(s *State, c Call) (_ ChildStart, ok bool) {
	i, isStep := m.byName[c.Step]
	if !isStep || !m.steps[i].child {
		return ChildStart{}, false
	}
	st, _ := s.step(c.Step, c.Item)
	if st == nil {
		return ChildStart{}, false
	}
	return ChildStart{Definition: m.steps[i].activity, Version: m.steps[i].childVersion, Input: st.Do.Input, Generation: max(st.Do.Generation, 1)}, true
}

// HasPivot says that a saga of the definition may pass a point of no return.
func (m *Machine) HasPivot() bool { return len(m.pivots) > 0 }

// HasChildren says that some step runs another saga.
func (m *Machine) HasChildren() bool { return m.children }

// Children lists the calls of a saga that ran another saga.
func (m *Machine) Children(s *State) (calls []Call) {
	if !m.children {
		return nil
	}
	s.each(func(f *Frame) bool {
		for slot, i := range m.bodies[f.body].steps {
			if m.steps[i].child && f.Steps[slot].Do.Attempt > 0 {
				calls = append(calls, Call{Step: f.Steps[slot].Name, Item: f.Item, Dir: do})
			}
		}
		return true
	})
	return calls
}

// ParentResult is what a child saga has to tell its parent: of its action once it is done or undone by itself; of its compensation once it is
// undone. It is for whichever attempt asked last: its number is 0. ok is false while there is nothing to tell.
func (s *State) ParentResult(undoing bool) (_ Result, ok bool) {
	r := Result{
		Call: Call{Step: s.Parent.GetStep(), Item: s.Parent.GetItem(), Dir: do}, Generation: s.Parent.GetGeneration(), Worker: "child saga " + s.SagaID,
	}
	if undoing {
		r.Call.Dir, r.Generation = undo, 1
		switch s.Status {
		case Compensated:
			r.Outcome = historyv1.Outcome_OUTCOME_SUCCEEDED
		case Completed, Abandoned:
			r.Outcome = historyv1.Outcome_OUTCOME_REJECTED
			r.Error = &historyv1.Error{Code: "CHILD_" + s.Status.String(), Message: fmt.Sprintf("child saga %s has ended as %s and can't be undone", s.SagaID, s.Status)}
		default:
			return Result{}, false
		}
		return r, true
	}
	switch {
	case s.WasProvisional(), s.Status == Completed:
		r.Outcome, r.Output = historyv1.Outcome_OUTCOME_SUCCEEDED, s.Output
	case s.Status == Compensated:
		r.Outcome = historyv1.Outcome_OUTCOME_REJECTED
		r.Error = &historyv1.Error{Code: s.Cause.GetError().GetCode(), Message: fmt.Sprintf("child saga %s was undone: %s", s.SagaID, s.Cause.GetError().GetMessage())}
	case s.Status == Abandoned:
		r.Outcome, r.GiveUp = historyv1.Outcome_OUTCOME_FAILED, true
		r.Error = &historyv1.Error{Code: "CHILD_ABANDONED", Message: fmt.Sprintf("child saga %s was abandoned: what it did stands as its history says", s.SagaID)}
	default:
		return Result{}, false
	}
	return r, true
}

// WasProvisional says that a child saga was done once, whatever came later.
func (s *State) WasProvisional() bool { return s.Parent != nil && s.Output != nil }

// Unwanted says that a call is in flight whose work isn't wanted any more.
func (m *Machine) Unwanted(s *State, c Call) bool {
	i, ok := m.byName[c.Step]
	if !ok || c.Dir != do {
		return false
	}
	d := decider{m: m, s: s}
	return d.backward(where{m.steps[i].body, c.Item})
}

// Form is the JSON Schema of the answer that an operations item asks for; empty if it asks for none, or for anything.
func (m *Machine) Form(c Call) string {
	var found string
	var walk func([]*sagadv1.Node)
	walk = func(nodes []*sagadv1.Node) {
		for _, n := range nodes {
			if w := n.GetWait(); w.GetName() == c.Step && w.GetApproval() != nil {
				found = w.GetApproval().GetFormSchema()
			}
			for _, b := range within(n) {
				walk(b)
			}
		}
	}
	walk(m.def.GetBody())
	return found
}

// within are the sequences that a node holds.
func within(n *sagadv1.Node) (out [][]*sagadv1.Node) {
	switch k := n.GetKind().(type) {
	case *sagadv1.Node_Parallel:
		for _, b := range k.Parallel.GetBranches() {
			out = append(out, b.GetBody())
		}
	case *sagadv1.Node_If:
		out = append(out, k.If.GetThen(), k.If.GetElse())
	case *sagadv1.Node_Wait:
		out = append(out, k.Wait.GetReceived(), k.Wait.GetOtherwise())
	case *sagadv1.Node_Switch:
		for _, c := range k.Switch.GetCases() {
			out = append(out, c.GetBody())
		}
		out = append(out, k.Switch.GetDefault().GetBody())
	case *sagadv1.Node_Loop:
		out = append(out, k.Loop.GetBody())
	case *sagadv1.Node_Map:
		out = append(out, k.Map.GetBody())
	case *sagadv1.Node_Savepoint:
		out = append(out, k.Savepoint.GetBody())
		for _, a := range k.Savepoint.GetAlternatives() {
			out = append(out, a.GetBody())
		}
	}
	return out
}

func childID(parent, step, item string, generation int32) string {
	id := fmt.Sprintf("%s/%s", parent, step)
	if item != "" {
		id += "/" + item
	}
	if generation > 1 {
		id += fmt.Sprintf("/g%d", generation)
	}
	if len(id) > idBytesMax {
		sum := sha256.Sum256([]byte(id))
		id = fmt.Sprintf("%s/%x", limitText(parent, idBytesMax-33), sum[:16])
	}
	return id
}
