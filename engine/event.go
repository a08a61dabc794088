package engine

import (
	"cmp"

	"github.com/google/uuid"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/statemachine"
)

// sagaKey names a saga.
type sagaKey struct{ namespace, id string }

func (k sagaKey) compare(other sagaKey) int {
	return cmp.Or(cmp.Compare(k.namespace, other.namespace), cmp.Compare(k.id, other.id))
}

// event is what goes through a shard's door.
type event struct {
	key  sagaKey
	what statemachine.Event
	// look: nothing is to happen, the answer is the saga as it is. what is nil.
	look bool
	// back: an attempt that a worker handed back. what is nil.
	back *attempt
	// known: the saga may be there already, so it is looked up before a start is decided.
	known bool
	// run is the new saga's, of starts; the token's, of results.
	run uuid.UUID
	// machine of the definition to start, of starts; invalid says why it wouldn't take the input.
	machine *statemachine.Machine
	invalid error
	// to gets the answer under index. nil: nobody waits.
	to    receiver
	index int
}

// receiver waits for the answers to events. Each event is answered once; from the shard's goroutine, so an answer must
// not block.
type receiver interface{ answer(index int, a answer) }

// answer tells what became of an event. It reflects nothing that isn't durable.
type answer struct {
	err error
	// state after the event.
	state   *statemachine.State
	machine *statemachine.Machine
	run     uuid.UUID
	created bool
	reply   statemachine.Reply
	// why a result is stray; empty if it isn't.
	stray string
}

// verdict is the answer to a result.
func (a *answer) verdict() workerv1.Verdict {
	if a.err != nil {
		return workerv1.Verdict_VERDICT_UNAVAILABLE
	}
	return a.reply.Verdict
}

// pending is an answer that waits to be given.
type pending struct {
	to    receiver
	index int
	answer
}

// call is a receiver for one event of an API call.
type call chan answer

func (c call) answer(_ int, a answer) { c <- a }
