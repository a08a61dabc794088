package statemachine

import (
	"bytes"
	"slices"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
)

// Status is a saga's lifecycle status. The numbers are stored.
type Status int16

const (
	Running      Status = 1
	Compensating Status = 2
	Stuck        Status = 3
	Completed    Status = 4
	Compensated  Status = 5
	Abandoned    Status = 6
)

// Terminal says that the status never changes again.
func (s Status) Terminal() bool { return s >= Completed }

func (s Status) String() string {
	switch s {
	case Running:
		return "RUNNING"
	case Compensating:
		return "COMPENSATING"
	case Stuck:
		return "STUCK"
	case Completed:
		return "COMPLETED"
	case Compensated:
		return "COMPENSATED"
	case Abandoned:
		return "ABANDONED"
	default:
		return "NEW"
	}
}

// Phase is where a call stands.
type Phase uint8

const (
	// Idle: not called yet.
	Idle Phase = iota
	// InFlight: an attempt is out.
	InFlight
	// BackingOff: the next attempt waits for its time.
	BackingOff
	// Succeeded: done; of a compensation: undone, or nothing was there to undo.
	Succeeded
	// Rejected: the worker said that nothing was done.
	Rejected
	// GivenUp: no further attempt; unless nothing was ever sent, something may have been done.
	GivenUp
	// Held: given up, and waits for a person.
	Held
)

func (p Phase) String() string {
	return [...]string{"idle", "in flight", "backing off", "succeeded", "rejected", "given up", "held"}[p]
}

// State is a saga: the fold of its facts. It is read-only outside this package.
type State struct {
	Namespace, SagaID string
	Definition        string
	Version           int32
	// N is the number of transitions folded.
	N int64
	// Status follows from the rest.
	Status      Status
	Input       []byte
	Output      []byte
	Digest      []byte
	Labels      map[string]string
	Actor       string
	Traceparent string
	StartedAt   Micros
	// ChangedAt is when the status changed last.
	ChangedAt Micros
	Deadline  Micros
	// Cause is what turned the saga back. It is never overwritten.
	Cause *historyv1.Cause
	// Backward: the saga unwinds.
	Backward       bool
	DeadlinePassed bool
	// Steps are in the definition's order.
	Steps []StepState
	// Branches tell for each if, in the definition's order, which arm was taken.
	Branches []Arm
	Items    []ItemState
	// SettledByHand counts the calls that a person settled.
	SettledByHand int32
	AbandonReason string

	end      Status
	startNo  int32
	requests []string
}

// Arm is the arm that an if took.
type Arm uint8

const (
	ArmOpen Arm = iota
	ArmThen
	ArmElse
)

// StepState is where a step stands.
type StepState struct {
	Name string
	// StartNo orders compensations: 1 for the step that started first. 0: not started.
	StartNo  int32
	Do, Undo CallState
}

// CallState is where a call stands.
type CallState struct {
	Phase Phase
	// Generation is raised only when a person or a late effect makes the call a new request.
	Generation int32
	// Attempt is the number of the last attempt made in this generation.
	Attempt int32
	// Deadline of the attempt that is in flight.
	Deadline Micros
	// RetryAt is when the next attempt is due, while backing off.
	RetryAt Micros
	// Input of an action, JSON.
	Input []byte
	// Output of an action, JSON, if OutputKnown. Of a compensation OutputKnown tells whether it was given the output.
	Output      []byte
	OutputKnown bool
	// InDoubt: some attempt failed, or its outcome is unknown.
	InDoubt bool
	// Empty: the compensation found nothing to undo.
	Empty bool
	// ByHand: a person settled it.
	ByHand bool
	// Unsendable: its input can't be built, so nothing was sent.
	Unsendable bool
	// Of an action: some result said that it succeeded, whenever it came. Of a compensation: that was known when its
	// generation began, so that an answer of nothing to undo takes it into account.
	happened    bool // stands here to fill a gap, as budgetFrom does: each decision copies all calls
	LastOutcome historyv1.Outcome
	// The attempts, and the time, at which its present budget began.
	budgetFrom int32
	LastError  *historyv1.Error
	// StartedAt is when its first attempt was made, EndedAt when it ended.
	StartedAt, EndedAt Micros

	budgetFromAt Micros
	ended        []endedAttempt
}

// endedAttempt remembers what an attempt's result was, to tell repeats from news.
type endedAttempt struct {
	generation, attempt int32
	outcome             historyv1.Outcome
	// digest of the result that counts; nil while there is none because the engine ended it.
	digest []byte
	// doubt: something may have been done. An attempt that timed out and was then answered with a rejection leaves none; one
	// that a worker called failed always does.
	doubt bool
	// others are digests of results that don't count.
	others [][]byte
}

// ItemState is an operations item.
type ItemState struct {
	Number   int32
	Kind     historyv1.ItemKind
	Status   historyv1.ItemStatus
	Call     Call
	Blocking bool
	Error    *historyv1.Error
	How      string
	OpenedAt Micros
	// ChangedAt and Version (the transition's number) are of the last change.
	ChangedAt Micros
	Version   int64
}

// Open says that a person is still needed, or that what they asked for is under way.
func (i *ItemState) Open() bool { return i.Status != historyv1.ItemStatus_ITEM_STATUS_CLOSED }

func (s *State) clone() *State {
	c := *s
	c.Steps = slices.Clone(s.Steps)
	c.Branches = slices.Clone(s.Branches)
	c.Items = slices.Clone(s.Items)
	c.requests = slices.Clip(s.requests)
	return &c
}

// call returns the step's call in the given direction.
func (st *StepState) call(dir historyv1.Direction) *CallState {
	if dir == historyv1.Direction_DIRECTION_UNDO {
		return &st.Undo
	}
	return &st.Do
}

// Step returns the step of that name, or nil.
func (s *State) Step(name string) *StepState {
	for i := range s.Steps {
		if s.Steps[i].Name == name {
			return &s.Steps[i]
		}
	}
	return nil
}

// Item returns the item of that number, or nil.
func (s *State) Item(number int32) *ItemState {
	if number < 1 || int(number) > len(s.Items) {
		return nil
	}
	return &s.Items[number-1]
}

func (s *State) status() Status {
	if s.end != 0 {
		return s.end
	}
	for i := range s.Items {
		if it := &s.Items[i]; it.Blocking && it.Status == historyv1.ItemStatus_ITEM_STATUS_OPEN {
			return Stuck
		}
	}
	if s.Backward {
		return Compensating
	}
	return Running
}

// NextWake is the earliest time at which something is due: an attempt's deadline, a retry or the saga's deadline.
func (s *State) NextWake() (Micros, bool) {
	if s.Status.Terminal() {
		return 0, false
	}
	var next Micros
	consider := func(t Micros) {
		if t != 0 && (next == 0 || t < next) {
			next = t
		}
	}
	for i := range s.Steps {
		for _, c := range [...]*CallState{&s.Steps[i].Do, &s.Steps[i].Undo} {
			switch c.Phase {
			case InFlight:
				consider(c.Deadline)
			case BackingOff:
				consider(c.RetryAt)
			}
		}
	}
	if !s.DeadlinePassed {
		consider(s.Deadline)
	}
	return next, next != 0
}

// InFlight lists the calls of which an attempt is out: what must be sent again after a loss.
func (s *State) InFlight() []Call {
	var calls []Call
	for i := range s.Steps {
		st := &s.Steps[i]
		if st.Do.Phase == InFlight {
			calls = append(calls, Call{Step: st.Name, Dir: historyv1.Direction_DIRECTION_DO})
		}
		if st.Undo.Phase == InFlight {
			calls = append(calls, Call{Step: st.Name, Dir: historyv1.Direction_DIRECTION_UNDO})
		}
	}
	return calls
}

// Waits says that something will wake the saga, or that a person is asked: the opposite would be a lost saga. The saga's
// deadline doesn't count, and an item that is being retried doesn't either: what it retries does.
func (s *State) Waits() bool {
	if s.Status.Terminal() {
		return true
	}
	for i := range s.Items {
		if s.Items[i].Blocking && s.Items[i].Status == historyv1.ItemStatus_ITEM_STATUS_OPEN {
			return true
		}
	}
	for i := range s.Steps {
		for _, c := range [...]*CallState{&s.Steps[i].Do, &s.Steps[i].Undo} {
			if c.Phase == InFlight || c.Phase == BackingOff {
				return true
			}
		}
	}
	return false
}

// Call returns where a call stands, or nil if there is no such step.
func (s *State) Call(c Call) *CallState {
	st := s.Step(c.Step)
	if st == nil {
		return nil
	}
	return st.call(c.Dir)
}

// allRejected says that every attempt of the generation was rejected. One that is out, or was when another ended the call, may
// yet have an effect.
func (c *CallState) allRejected() bool {
	n := int32(0)
	for i := range c.ended {
		if e := &c.ended[i]; e.generation == c.Generation && !e.doubt {
			n++
		}
	}
	return n == c.Attempt
}

// nothingDone says that an action was called and is known to have done nothing: each attempt was rejected, or a person said so.
func (c *CallState) nothingDone() bool {
	switch c.Phase {
	case Rejected:
		return !c.InDoubt
	case Held, GivenUp:
		return !c.InDoubt && c.LastOutcome == historyv1.Outcome_OUTCOME_REJECTED
	default:
		return false
	}
}

// known says that the very same result was recorded before.
func (e *endedAttempt) known(digest []byte) bool {
	return e.digest != nil && bytes.Equal(e.digest, digest) ||
		slices.ContainsFunc(e.others, func(other []byte) bool { return bytes.Equal(other, digest) })
}

// note records a result. The first conclusive one counts, else the first.
func (e *endedAttempt) note(outcome historyv1.Outcome, digest []byte) {
	switch {
	case e.digest == nil:
		e.outcome, e.digest = outcome, digest
	case conclusive(outcome) && !conclusive(e.outcome):
		e.others = append(slices.Clip(e.others), e.digest)
		e.outcome, e.digest = outcome, digest
	default:
		e.others = append(slices.Clip(e.others), digest)
	}
}

// record returns what is remembered of an attempt, to be changed: states that share it keep theirs.
func (c *CallState) record(generation, attempt int32) *endedAttempt {
	c.ended = append(make([]endedAttempt, 0, len(c.ended)+1), c.ended...)
	if rec := c.find(generation, attempt); rec != nil {
		return rec
	}
	c.ended = append(c.ended, endedAttempt{generation: generation, attempt: attempt})
	return &c.ended[len(c.ended)-1]
}

func (c *CallState) find(generation, attempt int32) *endedAttempt {
	for i := range c.ended {
		if e := &c.ended[i]; e.generation == generation && e.attempt == attempt {
			return e
		}
	}
	return nil
}

func (s *State) answered(requestID string) bool {
	return requestID != "" && slices.Contains(s.requests, requestID)
}
