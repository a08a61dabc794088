package statemachine

import (
	"bytes"
	"encoding/json"
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
	// Frame is the state of the definition's own body.
	Frame
	Items []ItemState
	// Paused: nothing is sent out.
	Paused      bool
	PauseReason string
	PausedAt    Micros
	// Signals came and weren't taken yet, the oldest first.
	Signals []SignalState
	// Parent is set of child sagas.
	Parent *historyv1.Parent
	// Provisional: a child saga that is done, and waits for what becomes of its parent.
	Provisional bool
	// ParentEnded: the parent has come to its end.
	ParentEnded bool
	// SettledByHand counts the calls that a person settled.
	SettledByHand int32
	AbandonReason string

	machine  *Machine
	end      Status
	startNo  int32
	requests []string
	// keys are all signals that ever came.
	keys []signalKey
	// stamp tells whose a frame is: one with the same stamp belongs to this state alone.
	stamp uint64
}

// Frame is the state of one run of a body: of the definition's, or of an element, a round, a path or a branch of a block.
type Frame struct {
	// Steps and Places are those that stand in the body, in the definition's order.
	Steps  []StepState
	Places []PlaceState
	// Item is the frame's place in maps and loops; empty outside of them.
	Item  string
	Index int32
	Phase FramePhase
	// Value is what a round reads, or what went wrong before an alternative. Output is what the scope said at its end. JSON.
	Value  []byte
	Output []byte
	// Cause is why it turned back, while the saga went on.
	Cause *historyv1.Cause

	// live counts the calls, and places, in it and below, that something is awaited for.
	live  int32
	body  int
	stamp uint64
}

// FramePhase is where the run of a body stands.
type FramePhase uint8

const (
	FrameRunning FramePhase = iota
	// FrameUnwinding: what it did is being undone, while the saga goes on.
	FrameUnwinding
	FrameDone
	FrameUndone
)

func (p FramePhase) String() string {
	return [...]string{"running", "unwinding", "done", "undone"}[p]
}

// PlacePhase is where a sleep, a wait or a block stands.
type PlacePhase uint8

const (
	PlaceIdle PlacePhase = iota
	// PlaceActive: it began, and isn't over.
	PlaceActive
	PlaceDone
	// PlaceStopped: it was active when what it stands in turned back.
	PlaceStopped
)

func (p PlacePhase) String() string {
	return [...]string{"idle", "active", "done", "stopped"}[p]
}

// PlaceState is where a node stands that isn't a step.
type PlaceState struct {
	// Arm is the arm of an if or of a wait that was taken, and 1 + the case of a switch.
	Arm   Arm
	Phase PlacePhase
	// At is when a sleep, or a wait's time, is over. 0: never.
	At        Micros
	StartedAt Micros
	// Value is a map's list. Output is what is read by the place's name once it is done. JSON.
	Value  []byte
	Output []byte
	// Count is how many scopes there are, or may be.
	Count int32
	// Done and Failed count scopes that ended.
	Done, Failed int32

	frames []*Frame
	stamp  uint64 // of frames
	// elements of a map's list.
	elements []json.RawMessage
	// active are the scopes under way, in order; order those done, as they were.
	active, order []int32
}

// Frames are the block's scopes, by index; nil where there is none.
func (p *PlaceState) Frames() []*Frame { return p.frames }

// SignalState is a signal that waits to be taken.
type SignalState struct {
	Name, Key string
	Payload   []byte
	At        Micros
}

type signalKey struct {
	name, key string
	digest    []byte
}

// Arm is the arm that an if, a wait or a switch took.
type Arm int16

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
	// KeyName is the name under which it began, if a migration gave it another one.
	KeyName string
	// Probe is the question whether the action happened; nil while it wasn't asked.
	Probe *CallState
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
	// Disproved: a probe said that the action did not happen, and never will.
	Disproved bool
	// Of an action: some result said that it succeeded, whenever it came. Of a compensation: that was known when its
	// generation began, so that an answer of nothing to undo takes it into account.
	happened    bool // stands here to fill a gap, as budgetFrom does: each decision copies all calls
	LastOutcome historyv1.Outcome
	// The attempts, and the time, at which its present budget began.
	budgetFrom int32
	LastError  *historyv1.Error
	// Said is what attempts said before they were over; nil while none said anything. See [CallState.Reported].
	Said *Said
	// StartedAt is when its first attempt was made, EndedAt when it ended.
	StartedAt, EndedAt Micros

	budgetFromAt Micros
	ended        []endedAttempt
}

// Said is what attempts of a call said before they were over.
type Said struct {
	// HeartbeatBy is when the attempt in flight must have been heard of again; 0 while it wasn't heard of at all.
	HeartbeatBy Micros
	// Claim is the delivery that has the attempt to itself.
	Claim string
	// Checkpoint is what the action said before its effect, Progress what it said last. JSON.
	Checkpoint, Progress []byte
}

// Reported is what attempts of the call said before they were over.
func (c *CallState) Reported() Said {
	if c.Said == nil {
		return Said{}
	}
	return *c.Said
}

// say changes what was said. States that share it keep theirs.
func (c *CallState) say(change func(*Said)) {
	s := c.Reported()
	change(&s)
	if c.Said = nil; s.HeartbeatBy != 0 || s.Claim != "" || s.Checkpoint != nil || s.Progress != nil {
		c.Said = &s
	}
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
	c.Places = slices.Clone(s.Places)
	c.Items = slices.Clone(s.Items)
	c.requests = slices.Clip(s.requests)
	c.keys = slices.Clip(s.keys)
	c.stamp = s.stamp + 1
	c.Frame.stamp = c.stamp
	return &c
}

// own makes the frame at p one that only s has, and gives it.
func (s *State) own(p **Frame) *Frame {
	if f := *p; f.stamp != s.stamp {
		c := *f
		c.Steps, c.Places, c.stamp = slices.Clone(f.Steps), slices.Clone(f.Places), s.stamp
		*p = &c
	}
	return *p
}

// scopes gives the place's frames, to be changed.
func (s *State) scopes(p *PlaceState) []*Frame {
	if p.stamp != s.stamp {
		p.frames, p.stamp = slices.Clone(p.frames), s.stamp
	}
	return p.frames
}

// each visits the frame and all below it that visit says true for, from the outside in.
func (f *Frame) each(visit func(*Frame) bool) {
	if !visit(f) {
		return
	}
	for i := range f.Places {
		for _, in := range f.Places[i].frames {
			if in != nil {
				in.each(visit)
			}
		}
	}
}

// isLive tells each to look only where something is awaited.
func (f *Frame) isLive() bool { return f.live > 0 }

// awaited counts what is awaited of a step.
func (st *StepState) awaited() (n int32) {
	for _, c := range st.calls() {
		if c != nil && (c.Phase == InFlight || c.Phase == BackingOff) {
			n++
		}
	}
	return n
}

// awaited says of a place whether something is awaited for it, other than its scopes.
func (p *PlaceState) awaited() int32 {
	if p.Phase == PlaceActive && p.Count == 0 && p.frames == nil {
		return 1
	}
	return 0
}

// call returns the step's call in the given direction.
func (st *StepState) call(dir historyv1.Direction) *CallState {
	switch dir {
	case historyv1.Direction_DIRECTION_UNDO:
		return &st.Undo
	case historyv1.Direction_DIRECTION_PROBE:
		if st.Probe == nil {
			return &CallState{}
		}
		return st.Probe
	}
	return &st.Do
}

// calls are the step's calls, in the order do, undo, probe.
func (st *StepState) calls() [3]*CallState { return [...]*CallState{&st.Do, &st.Undo, st.Probe} }

// directions of calls(), in its order.
var directions = [...]historyv1.Direction{do, undo, probe}

// Step returns the step of that name that stands in no block, or nil.
func (s *State) Step(name string) *StepState {
	st, _ := s.step(name, "")
	return st
}

// step returns a step's state in its frame, or nil.
func (s *State) step(name, item string) (*StepState, *Frame) {
	i, ok := s.machine.byName[name]
	if !ok {
		return nil, nil
	}
	d := &s.machine.steps[i]
	f := s.machine.frame(s, d.body, item)
	if f == nil {
		return nil, nil
	}
	return &f.Steps[d.slot], f
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

// NextWake is the earliest time at which something is due: an attempt's deadline, a retry, the end of a sleep or of a wait, or the
// saga's deadline.
func (s *State) NextWake() (Micros, bool) {
	if s.Status.Terminal() || s.Provisional {
		return 0, false
	}
	var next Micros
	consider := func(t Micros) {
		if t != 0 && (next == 0 || t < next) {
			next = t
		}
	}
	s.each(func(f *Frame) bool {
		if !f.isLive() {
			return false
		}
		for i := range f.Steps {
			for _, c := range f.Steps[i].calls() {
				switch {
				case c == nil:
				case c.Phase == InFlight:
					consider(c.Deadline)
					consider(c.Reported().HeartbeatBy)
				case c.Phase == BackingOff && !s.Paused:
					consider(c.RetryAt)
				}
			}
		}
		for i := range f.Places {
			if p := &f.Places[i]; p.Phase == PlaceActive && !s.Paused {
				consider(p.At)
			}
		}
		return true
	})
	if !s.DeadlinePassed {
		consider(s.Deadline)
	}
	return next, next != 0
}

// InFlight lists the calls of which an attempt is out: what must be sent again after a loss.
func (s *State) InFlight() []Call {
	var calls []Call
	s.each(func(f *Frame) bool {
		if !f.isLive() {
			return false
		}
		for i := range f.Steps {
			for n, c := range f.Steps[i].calls() {
				if c != nil && c.Phase == InFlight {
					calls = append(calls, Call{Step: f.Steps[i].Name, Item: f.Item, Dir: directions[n]})
				}
			}
		}
		return true
	})
	return calls
}

// Waits says that something will wake the saga, or that a person is asked: the opposite would be a lost saga. The saga's
// deadline doesn't count, and an item that is being retried doesn't either: what it retries does.
func (s *State) Waits() bool {
	if s.Status.Terminal() || s.Provisional || s.Paused {
		return true
	}
	for i := range s.Items {
		if s.Items[i].Blocking && s.Items[i].Status == historyv1.ItemStatus_ITEM_STATUS_OPEN {
			return true
		}
	}
	return s.live > 0
}

// Call returns where a call stands, or nil if there is no such step.
func (s *State) Call(c Call) *CallState {
	st, _ := s.step(c.Step, c.Item)
	if st == nil {
		return nil
	}
	return st.call(c.Dir)
}

// Place returns where a place of that name stands, or nil.
func (s *State) Place(name, item string) *PlaceState {
	i, ok := s.machine.placeOf[name]
	if !ok {
		return nil
	}
	d := &s.machine.places[i]
	f := s.machine.frame(s, d.body, item)
	if f == nil {
		return nil
	}
	return &f.Places[d.slot]
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
	if c.Disproved && !c.happened {
		return true
	}
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
