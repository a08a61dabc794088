package engine

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/sagad/sagad/internal/wire"
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	peerv1 "github.com/sagad/sagad/proto/gen/sagad/peer/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// A step that runs another saga is a call like others, but what it asks goes to the shard of the child saga instead of to a worker.
// Nothing of it needs to arrive: a call in flight is asked again, as those to workers are, and a child that is done asks its parent now
// and then what became of it.

// NoteBus is a [Bus] that carries notes between nodes. A bus that doesn't can have children only on shards of the same node.
type NoteBus interface {
	// Tell sends a message to whatever node serves the shard. It may be lost, and never blocks for long.
	Tell(shard int, sealed []byte)
	// ServeNotes gives handle the messages for a shard, from any goroutine, until stop is called.
	ServeNotes(shard int, handle func(sealed []byte)) (stop func(), err error)
}

// askParentEvery is how often a child that is done asks what became of its parent, if nobody tells it.
const askParentEvery = time.Minute

// noteOf is what a call of a step that runs another saga asks; nil of other calls.
func noteOf(g *saga, c statemachine.Call) *peerv1.Note {
	child, ok := g.machine.Child(g.state, c)
	if !ok {
		return nil
	}
	parent := &historyv1.Parent{SagaId: g.key.id, Run: g.run[:], Step: c.Step, Item: c.Item, Generation: child.Generation}
	n := &peerv1.Note{Namespace: g.key.namespace, SagaId: statemachine.ChildID(g.state, c)}
	if c.Dir == historyv1.Direction_DIRECTION_UNDO {
		n.Kind = &peerv1.Note_UnwindChild{UnwindChild: &peerv1.UnwindChild{Parent: parent}}
	} else {
		n.Kind = &peerv1.Note_StartChild{StartChild: &peerv1.StartChild{
			Parent: parent, Definition: child.Definition, Version: child.Version, Input: child.Input, Traceparent: g.state.Traceparent,
			Unwinding: g.machine.Unwanted(g.state, c),
		}}
	}
	return n
}

// family adds what a durable transition has to tell the saga's parent and its children.
func (d *door) family(g *saga, before, after *statemachine.State) {
	if p := after.Parent; p != nil && (after.Status.Terminal() || after.Provisional) && (before == nil || before.Status != after.Status || before.Provisional != after.Provisional) {
		// Once it has said that it is done, all that it has to say is that this is undone, or can't be.
		undoing := after.Status.Terminal() && after.WasProvisional()
		if r, ok := after.ParentResult(undoing); ok && !(undoing && after.Status == statemachine.Completed) {
			d.out.notes = append(d.out.notes, resultNote(g, p, &r))
		}
	}
	if after.Status.Terminal() && (before == nil || !before.Status.Terminal()) && after.Machine().HasChildren() {
		for _, c := range after.Machine().Children(after) {
			d.out.notes = append(d.out.notes, &peerv1.Note{
				Namespace: g.key.namespace, SagaId: statemachine.ChildID(after, c),
				Kind: &peerv1.Note_ParentEnded{ParentEnded: &peerv1.ParentEnded{Status: int32(after.Status), Run: g.run[:]}},
			})
		}
	}
}

// askParent asks what became of the parent of a child that is done.
func (d *door) askParent(g *saga) {
	p := g.state.Parent
	d.out.notes = append(d.out.notes, &peerv1.Note{
		Namespace: g.key.namespace, SagaId: p.GetSagaId(), Kind: &peerv1.Note_AskParent{AskParent: &peerv1.AskParent{Run: p.GetRun(), Child: g.key.id}},
	})
}

func resultNote(g *saga, p *historyv1.Parent, r *statemachine.Result) *peerv1.Note {
	return &peerv1.Note{Namespace: g.key.namespace, SagaId: p.GetSagaId(), Kind: &peerv1.Note_ChildResult{ChildResult: &peerv1.ChildResult{
		Run: p.GetRun(), Call: &historyv1.Call{Step: r.Call.Step, Item: r.Call.Item, Direction: r.Call.Dir}, Generation: r.Generation, Outcome: r.Outcome,
		Output: r.Output, Error: r.Error, GiveUp: r.GiveUp, Child: g.key.id,
	}}}
}

// tell sends notes to where their sagas are.
func (e *Engine) tell(notes ...*peerv1.Note) {
	for _, n := range notes {
		id := store.ShardOf(n.GetNamespace(), n.GetSagaId(), len(e.shards))
		if e.shards[id].Load() != nil {
			e.note(n)
			continue
		}
		if bus, ok := e.bus.(NoteBus); ok {
			if sealed, err := e.keys.Seal(&peerv1.Notes{Notes: []*peerv1.Note{n}}); err == nil {
				bus.Tell(id, sealed)
			} else {
				e.log.Error("a message to another saga can't be sent", "namespace", n.GetNamespace(), "saga", n.GetSagaId(), "error", err)
			}
		}
	}
}

// HandleNotes takes in a message from another node. What isn't signed by this cluster is dropped.
func (e *Engine) HandleNotes(sealed []byte) {
	notes, err := e.keys.Unseal(sealed)
	if err != nil {
		e.log.Warn("a message from another node is refused", "error", err)
		return
	}
	for _, n := range notes.GetNotes() {
		if checkKey(n.GetNamespace(), n.GetSagaId()) == nil {
			e.note(n)
		}
	}
}

// note brings a note to its saga. If that can't be done now the note is dropped: whoever waits asks again.
func (e *Engine) note(n *peerv1.Note) {
	key := sagaKey{n.GetNamespace(), n.GetSagaId()}
	switch k := n.GetKind().(type) {
	case *peerv1.Note_StartChild:
		// Its definition may have to be looked up, so the shard's loop doesn't wait for it.
		if e.hand != nil {
			e.startChild(key, k.StartChild)
			return
		}
		select {
		case e.starting <- struct{}{}:
			e.others.Add(1)
			go func() {
				defer e.others.Done()
				e.startChild(key, k.StartChild)
				<-e.starting
			}()
		default: // it is asked again
		}
	case *peerv1.Note_UnwindChild:
		e.submitNote(&event{key: key, what: statemachine.Unwind{}, to: &toParent{e: e, key: key, parent: k.UnwindChild.GetParent(), undoing: true}})
	case *peerv1.Note_ChildResult:
		r := k.ChildResult
		run, err := uuid.FromBytes(r.GetRun())
		if err != nil {
			return
		}
		e.submitNote(&event{key: key, run: run, what: statemachine.Result{
			Call:       statemachine.Call{Step: r.GetCall().GetStep(), Item: r.GetCall().GetItem(), Dir: r.GetCall().GetDirection()},
			Generation: r.GetGeneration(), Outcome: r.GetOutcome(), Output: r.GetOutput(), Error: r.GetError(), GiveUp: r.GetGiveUp(),
			Worker: wire.CleanText("saga "+r.GetChild(), workerBytesMax),
		}})
	case *peerv1.Note_AskParent:
		e.submitNote(&event{key: key, look: true, to: &toChild{e: e, key: key, run: k.AskParent.GetRun(), child: k.AskParent.GetChild()}})
	case *peerv1.Note_ParentEnded:
		if s := statemachine.Status(k.ParentEnded.GetStatus()); s.Terminal() && s <= statemachine.Abandoned {
			e.submitNote(&event{key: key, what: statemachine.ParentEnded{Status: s}})
		}
	}
}

// nobody waits for an answer.
type nobody struct{}

func (nobody) answer(int, answer) {}

func (e *Engine) submitNote(ev *event) {
	if ev.to == nil {
		ev.to = nobody{}
	}
	id := store.ShardOf(ev.key.namespace, ev.key.id, len(e.shards))
	if s := e.shards[id].Load(); s != nil {
		s.submit(mailboxResultMax, ev)
	}
}

// startChild starts a child saga, unless it is there, and tells its parent what there is to tell.
func (e *Engine) startChild(key sagaKey, n *peerv1.StartChild) {
	ctx, cancel := context.WithTimeout(e.background, 30*time.Second)
	defer cancel()
	to := &toParent{e: e, key: key, parent: n.GetParent(), unwind: n.GetUnwinding()}
	r := StartRequest{Namespace: key.namespace, ID: key.id, Definition: n.GetDefinition(), Version: n.GetVersion(), Input: n.GetInput(), Actor: "saga " + n.GetParent().GetSagaId()}
	ev, err := e.startEvent(ctx, &r)
	if err != nil {
		to.refused(err)
		return
	}
	start := ev.what.(statemachine.Start)
	start.Parent, start.Actor = n.GetParent(), wire.CleanText(start.Actor, actorBytesMax)
	if n.GetTraceparent() != "" {
		start.Traceparent = n.GetTraceparent()
	}
	ev.what, ev.to = start, to
	e.submitNote(ev)
}

// toParent tells a parent what its child has to say.
type toParent struct {
	e      *Engine
	key    sagaKey
	parent *historyv1.Parent
	// undoing: the parent asks whether the child is undone.
	undoing bool
	// unwind: the child is to turn back, unless it is done.
	unwind bool
}

func (t *toParent) answer(_ int, a answer) {
	if a.err != nil {
		if gone, deleted := errors.AsType[*store.DeletedError](a.err); deleted {
			// Its version was deleted at the same moment. It is asked again, and looked up anew then.
			t.e.definitions.forget(gone.Namespace, gone.Name, gone.Version)
			return
		}
		t.refused(a.err)
		return
	}
	p := a.state.Parent
	if p == nil || p.GetSagaId() != t.parent.GetSagaId() || string(p.GetRun()) != string(t.parent.GetRun()) {
		t.send(statemachine.Result{Outcome: historyv1.Outcome_OUTCOME_REJECTED, Error: &historyv1.Error{
			Code: "CHILD_ID_TAKEN", Message: "another saga has the child saga's id: choose ids for sagas that aren't those of another one followed by '/'",
		}})
		return
	}
	if r, ok := a.state.ParentResult(t.undoing); ok {
		t.send(r)
		return
	}
	if t.unwind && !a.state.Backward {
		t.e.submitNote(&event{key: t.key, what: statemachine.Unwind{}})
	}
}

// refused tells the parent what will never be otherwise. The rest is asked again.
func (t *toParent) refused(err error) {
	var refusal *statemachine.Refusal
	var invalid *InvalidError
	var missing *NotFoundError
	var conflict *ConflictError
	r := statemachine.Result{Outcome: historyv1.Outcome_OUTCOME_REJECTED}
	switch {
	case errors.As(err, &refusal):
		r.Error = &historyv1.Error{Code: refusal.Code, Message: "the child saga refuses: " + refusal.Message}
	case errors.As(err, &invalid), errors.As(err, &missing) && missing.What == "definition", errors.As(err, &conflict):
		r.Error = &historyv1.Error{Code: "CHILD_REFUSED", Message: "the child saga can't be started: " + err.Error()}
	default:
		return
	}
	if t.undoing && r.Error.Code == "CHILD_REFUSED" {
		return // it is there, or it wouldn't be undone
	}
	t.send(r)
}

func (t *toParent) send(r statemachine.Result) {
	r.Call = statemachine.Call{Step: t.parent.GetStep(), Item: t.parent.GetItem(), Dir: historyv1.Direction_DIRECTION_DO}
	if r.Generation = t.parent.GetGeneration(); t.undoing {
		r.Call.Dir, r.Generation = historyv1.Direction_DIRECTION_UNDO, 1
	}
	if r.Error != nil {
		r.Error = proto.CloneOf(r.Error)
		r.Error.Code, r.Error.Message = wire.CleanText(r.Error.GetCode(), errorCodeBytesMax), wire.CleanText(r.Error.GetMessage(), errorMessageBytesMax)
	}
	t.e.tell(resultNote(&saga{key: t.key}, t.parent, &r))
}

// toChild tells a child what became of its parent.
type toChild struct {
	e     *Engine
	key   sagaKey
	run   []byte
	child string
}

func (t *toChild) answer(_ int, a answer) {
	status := statemachine.Status(0)
	var missing *NotFoundError
	switch {
	case errors.As(a.err, &missing):
		status = statemachine.Abandoned // there is no parent any more that could undo the child
	case a.err != nil:
		return
	case string(a.run[:]) != string(t.run):
		status = statemachine.Abandoned
	case a.state.Status.Terminal():
		status = a.state.Status
	default:
		return
	}
	t.e.tell(&peerv1.Note{Namespace: t.key.namespace, SagaId: t.child, Kind: &peerv1.Note_ParentEnded{ParentEnded: &peerv1.ParentEnded{Status: int32(status), Run: t.run}}})
}
