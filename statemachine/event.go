package statemachine

import (
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
)

// Micros is a point in time: microseconds since 1970, UTC, by the database's clock. 0 means none.
type Micros = int64

// Call names what is called: a step's action or its compensation.
type Call struct {
	Step string
	// Item is empty except in steps that run once per item of a list.
	Item string
	Dir  historyv1.Direction
}

func (c Call) proto() *historyv1.Call {
	return &historyv1.Call{Step: c.Step, Item: c.Item, Direction: c.Dir}
}

// String is the form that scripts and logs use: "reserve", "undo reserve", "probe charge" or, in maps and loops, "undo reserve@3".
func (c Call) String() string {
	s := c.Step
	if c.Item != "" {
		s += "@" + c.Item
	}
	switch c.Dir {
	case historyv1.Direction_DIRECTION_UNDO:
		return "undo " + s
	case historyv1.Direction_DIRECTION_PROBE:
		return "probe " + s
	}
	return s
}

// Event is something that happened to a saga. There is no other way to change one.
type Event interface{ event() }

// Start begins a saga. The input is JSON that [Machine.CheckInput] has passed.
type Start struct {
	Namespace, SagaID string
	Version           int32
	Input             []byte
	// Digest is of all that the start asked for; it tells a repeat from another saga under the same id.
	Digest      []byte
	Labels      map[string]string
	Actor       string
	Traceparent string
	// Parent is set of child sagas.
	Parent *historyv1.Parent
}

// Result is what a worker says of an attempt.
type Result struct {
	Call                Call
	Generation, Attempt int32
	Outcome             historyv1.Outcome
	// Output is JSON, of successes. nil means null.
	Output []byte
	Error  *historyv1.Error
	// RetryAfter is in microseconds: the next attempt of a failed call starts no sooner.
	RetryAfter int64
	// GiveUp asks that no further attempt be made.
	GiveUp bool
	Worker string
}

// Tick says that time has passed: whatever is due happens.
type Tick struct {
	// NoWorker says that no worker listens for the call, to tell a person why an attempt timed out. May be nil.
	NoWorker func(Call) bool
}

// Cancel asks that the saga be unwound.
type Cancel struct {
	Actor, Reason, RequestID string
}

// Act is what a person does about an operations item.
type Act struct {
	Item int32
	// Version of the item that the person saw; 0 refuses nothing.
	Version                            int64
	Action                             historyv1.OperatorAction
	Actor, Reason, Evidence, RequestID string
	// Output is JSON, for completing by hand.
	Output []byte
}

// Signal tells a saga something. The payload is JSON.
type Signal struct {
	Name, Key string
	Payload   []byte
	Actor     string
}

// Pause stops a saga from sending anything out; Resume lets it go on.
type Pause struct{ Actor, Reason, RequestID string }

type Resume struct{ Actor, Reason, RequestID string }

// ReportKind is what a worker reports of an attempt that goes on.
type ReportKind uint8

const (
	// ReportClaim: this delivery is going to run the attempt. The data is a string drawn for the delivery.
	ReportClaim ReportKind = iota + 1
	// ReportCheckpoint: what a compensation is to be given, before the effect.
	ReportCheckpoint
	// ReportProgress: a heartbeat, perhaps with what the next attempt is to be given.
	ReportProgress
)

// Report is what a worker says of an attempt that goes on.
type Report struct {
	Call                Call
	Generation, Attempt int32
	Kind                ReportKind
	// Data is JSON; nil of a heartbeat that says nothing more.
	Data   []byte
	Worker string
}

// Migrate moves a running saga to another version of its definition.
type Migrate struct {
	To      *Machine
	Version int32
	// Names that changed, old to new.
	Names                    map[string]string
	Actor, Reason, RequestID string
}

// Unwind asks a child saga to unwind, for its parent.
type Unwind struct{}

// ParentEnded tells a child saga what became of its parent.
type ParentEnded struct{ Status Status }

func (Signal) event()      {}
func (Pause) event()       {}
func (Resume) event()      {}
func (Report) event()      {}
func (Migrate) event()     {}
func (Unwind) event()      {}
func (ParentEnded) event() {}
func (Start) event()       {}
func (Result) event()      {}
func (Tick) event()        {}
func (Cancel) event()      {}
func (Act) event()         {}

// Decision is what an event leads to.
type Decision struct {
	// Transition is nil if nothing changes.
	Transition *historyv1.Transition
	// State is the state after. It is the state before if nothing changes.
	State *State
	// Dispatch lists attempts that are to be sent once the transition is durable.
	Dispatch []Call
	// Stop lists calls in flight whose work is no longer wanted. They are still awaited.
	Stop  []Call
	Reply Reply
}

// Reply is what the sender of the event is told once the transition is durable.
type Reply struct {
	// Verdict is for results.
	Verdict workerv1.Verdict
	// Stray: the result is for a step or attempt that the saga doesn't know. Keep it, and count it.
	Stray bool
	// Ahead: the result is for an attempt that hasn't been made yet as far as this state knows, so the state is old.
	Ahead bool
	// Cancel is for cancels.
	Cancel sagadv1.CancelAnswer
	// Duplicate: the same request was answered before.
	Duplicate bool
	// Obstacles say why a saga can't be migrated.
	Obstacles []string
}

// Refusal says why an event changes nothing.
type Refusal struct {
	Code    string
	Message string
}

func (r *Refusal) Error() string { return r.Message }

// Codes of refusals.
const (
	RefusedNotFound     = "NOT_FOUND"
	RefusedStale        = "STALE_VERSION"
	RefusedNotAllowed   = "NOT_ALLOWED"
	RefusedInvalid      = "INVALID"
	RefusedInput        = "INVALID_INPUT"
	RefusedOutput       = "INVALID_OUTPUT"
	RefusedHistoryLimit = "HISTORY_LIMIT"
	// RefusedConflict: the key was used for something else.
	RefusedConflict = "CONFLICT"
	// RefusedFull: too much of it waits.
	RefusedFull = "FULL"
)
