package engine

import (
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// saga is one that a door has in its memory.
//
// It is hot with a state; cold with nothing but its next timer, until an event or the timer makes the door load it;
// broken if it can't be worked on.
type saga struct {
	key     sagaKey
	run     uuid.UUID
	machine *statemachine.Machine
	// state is what is durable. nil: cold, or not there yet.
	state *statemachine.State
	// next is what is decided and not durable yet, with its machine. nil: nothing is.
	next        *statemachine.State
	nextMachine *statemachine.Machine
	// bytes of history: about what the saga weighs.
	bytes int

	// wake is when the next timer is due; 0: none. place is the saga's in the heap of timers, -1 if it isn't there.
	wake  statemachine.Micros
	place int
	// sent are the attempts that are out, as far as this node sent them.
	sent []*sent
	// oldest is since when some effect of the saga isn't settled; 0: all are.
	oldest statemachine.Micros
	// touched is the time of the last event.
	touched statemachine.Micros
	stuck   bool
	paused  bool
	// resumed is added to the dispatch number when the saga is loaded again.
	resumed int32
	// broken tells why the saga is quarantined, since when.
	broken      error
	brokenSince statemachine.Micros

	// Ended sagas, the least recently touched first.
	older, newer *saga
	isEnded      bool
}

// current is the state that the next event meets.
func (g *saga) current() *statemachine.State {
	if g.next != nil {
		return g.next
	}
	return g.state
}

// currentMachine is that of the current state.
func (g *saga) currentMachine() *statemachine.Machine {
	if g.next != nil {
		return g.nextMachine
	}
	return g.machine
}

// row is the saga's row as it is from now on, or nil if that hasn't changed.
func (g *saga) row(shard int, before, after *statemachine.State) *store.Saga {
	if before != nil && before.Version == after.Version && before.Status == after.Status && before.SettledByHand == after.SettledByHand &&
		(before.Cause == nil) == (after.Cause == nil) {
		return nil
	}
	r := &store.Saga{
		Shard:         shard,
		Namespace:     g.key.namespace,
		ID:            g.key.id,
		Run:           g.run,
		Definition:    after.Definition,
		Version:       after.Version,
		Status:        store.Status(after.Status),
		Digest:        after.Digest,
		StartedAt:     stamp(after.StartedAt),
		ChangedAt:     stamp(after.ChangedAt),
		Deadline:      stamp(after.Deadline),
		Labels:        after.Labels,
		SettledByHand: after.SettledByHand,
		N:             after.N,
	}
	if after.Cause != nil {
		// Marshalling a message that was unmarshalled or built here can't fail.
		r.Cause, _ = proto.Marshal(after.Cause)
	}
	return r
}

// items are the operations items that the last transition changed.
func (g *saga) items(after *statemachine.State) []store.Item {
	var items []store.Item
	for i := range after.Items {
		it := &after.Items[i]
		if it.Version != after.N {
			continue
		}
		item := store.Item{
			Namespace:  g.key.namespace,
			SagaID:     g.key.id,
			Run:        g.run,
			Number:     it.Number,
			Definition: after.Definition,
			Kind:       int16(it.Kind),
			Status:     int16(it.Status),
			Direction:  int16(it.Call.Dir),
			Blocking:   it.Blocking,
			Step:       it.Call.Step,
			Code:       it.Error.GetCode(),
			Message:    it.Error.GetMessage(),
			How:        it.How,
			OpenedAt:   stamp(it.OpenedAt),
			ChangedAt:  stamp(it.ChangedAt),
			Version:    it.Version,
		}
		item.Fingerprint = fingerprint(&item)
		if c := after.Call(it.Call); c != nil {
			item.Attempts = c.Attempt
		}
		items = append(items, item)
	}
	return items
}

// stamp makes a time of microseconds; none of 0.
func stamp(t statemachine.Micros) time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.UnixMicro(t).UTC()
}

// inFlight says that the attempt is the one that the saga waits for.
func inFlight(s *statemachine.State, call statemachine.Call, generation, attempt int32) bool {
	c := s.Call(call)
	return c != nil && c.Phase == statemachine.InFlight && c.Generation == generation && c.Attempt == attempt
}

// outcomes that attempts end with, by number.
var outcomes = [...]historyv1.Outcome{
	historyv1.Outcome_OUTCOME_SUCCEEDED,
	historyv1.Outcome_OUTCOME_REJECTED,
	historyv1.Outcome_OUTCOME_FAILED,
	historyv1.Outcome_OUTCOME_UNKNOWN,
	historyv1.Outcome_OUTCOME_NOTHING_TO_UNDO,
	historyv1.Outcome_OUTCOME_HAPPENED,
	historyv1.Outcome_OUTCOME_DID_NOT_HAPPEN,
	historyv1.Outcome_OUTCOME_CANT_TELL,
}
