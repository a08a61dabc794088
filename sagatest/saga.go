package sagatest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/statemachine"
)

// Status is a saga's.
type Status = statemachine.Status

// The statuses. Of a test, Running means that the saga waits for something that the test doesn't give: [Saga.WaitsFor].
const (
	Running      = statemachine.Running
	Compensating = statemachine.Compensating
	Stuck        = statemachine.Stuck
	Completed    = statemachine.Completed
	Compensated  = statemachine.Compensated
	Abandoned    = statemachine.Abandoned
)

// Saga is what became of one.
type Saga struct {
	Definition, ID string
	Status         Status
	// Input and Output are JSON; Output is nil unless it completed.
	Input, Output json.RawMessage
	// Cause is why it turned back; nil if it didn't.
	Cause *saga.Cause
	// Effects are what its steps did in the world, in the order of their start; steps that change nothing or are known to have done nothing
	// aren't there.
	Effects []Effect
	// Items are the operations items that are open: what a person would have to look at.
	Items []Item
	// Calls are the tasks, in the order of their delivery.
	Calls []Call
	// History is what happened, in sentences, with what was injected.
	History []Entry
	// WaitsFor is what it waits for, if it waits for a signal, a person or another saga; else empty.
	WaitsFor string
	// Took is the saga's own time, which isn't the test's.
	Took time.Duration

	unusable []string
	expired  bool
}

// EffectState is how an effect stands.
type EffectState string

// The states of effects.
const (
	Stands  EffectState = "stands"
	Undone  EffectState = "undone"
	InDoubt EffectState = "in doubt"
)

// Effect is what a step did, or may have done.
type Effect struct {
	Step, Item string
	State      EffectState
}

// Item is an open operations item.
type Item struct {
	Number int
	// Step is the step and, in maps and loops, its place: "pay" or "pay@3". Undo says that it is about its compensation.
	Step string
	Undo bool
	// Kind says in words what it is about.
	Kind          string
	Code, Message string
	Blocking      bool

	kind historyv1.ItemKind
}

// Call is one delivery of a task.
type Call struct {
	Step, Item, Activity string
	// SagaID is the saga's own or, of its children, theirs.
	SagaID              string
	Undo, Probe         bool
	Generation, Attempt int
	IdempotencyKey      string
	ActionKey           string
	Input               json.RawMessage
	// OutputKnown is whether a compensation was given the action's output.
	OutputKnown bool
	// At is the saga's time since its start.
	At time.Duration
	// Injected says in words what was made of it; empty if nothing was.
	Injected string
	// Handled: the handler was called. Then Outcome, Code, Message and Output are its own answer, whatever the engine was told.
	Handled       bool
	Outcome       string
	Code, Message string
	Output        json.RawMessage

	fault     kind
	late      bool
	disturbed bool // interrupted
	hung      bool
	uses      int
}

func (c *Call) where() string {
	if c.Item != "" {
		return c.Step + "@" + c.Item
	}
	return c.Step
}

// Entry is a line of a history.
type Entry struct {
	// At is the saga's time since its start.
	At   time.Duration
	Text string
	// Injected: the test did it.
	Injected bool
}

// Decode reads the saga's output.
func (s *Saga) Decode(v any) error {
	if s.Status != Completed {
		return fmt.Errorf("the saga is %s: it has no output", s.Status)
	}
	return saga.Decode(s.Output, v)
}

// Effect is the state of a step's effect, of the first one in maps and loops; empty if there is none.
func (s *Saga) Effect(step string) EffectState {
	for _, e := range s.Effects {
		if e.Step == step {
			return e.State
		}
	}
	return ""
}

// Called counts the calls of a step's action; undo counts those of its compensation instead. Deliveries whose handler wasn't called don't
// count.
func (s *Saga) Called(step string, undo bool) (n int) {
	for i := range s.Calls {
		if c := &s.Calls[i]; c.Step == step && c.Undo == undo && !c.Probe && c.Handled {
			n++
		}
	}
	return n
}

// String is the history.
func (s *Saga) String() string {
	var b strings.Builder
	for i, e := range s.History {
		if i == 60 && len(s.History) > 80 {
			fmt.Fprintf(&b, "        ... %d more ...\n", len(s.History)-80)
		}
		if i >= 60 && i < len(s.History)-20 {
			continue
		}
		mark := " "
		if e.Injected {
			mark = "*"
		}
		fmt.Fprintf(&b, "%10s %s %s\n", span(e.At), mark, e.Text)
	}
	return b.String()
}

func span(d time.Duration) string { return "+" + d.Round(time.Millisecond).String() }

// note is what the test did, between two transitions.
type note struct {
	n    int64
	at   time.Duration
	text string
}

// saga tells what became of the saga.
func (r *rig) saga() *Saga {
	st := r.state
	s := &Saga{
		Definition: r.def.name, ID: r.o.id, Status: st.Status, Input: st.Input, Calls: r.calls, Took: r.now.Sub(began), expired: r.exhausted,
	}
	if st.Status == Completed {
		s.Output = st.Output
		if s.Output == nil {
			s.Output = []byte("null")
		}
	}
	if c := st.Cause; c != nil {
		s.Cause = &saga.Cause{Step: c.GetStep(), Code: c.GetError().GetCode(), Message: c.GetError().GetMessage()}
	}
	states := map[sagadv1.EffectState]EffectState{
		sagadv1.EffectState_EFFECT_STATE_STANDS: Stands, sagadv1.EffectState_EFFECT_STATE_UNDONE: Undone, sagadv1.EffectState_EFFECT_STATE_IN_DOUBT: InDoubt,
	}
	for _, e := range r.machine.Effects(st) {
		s.Effects = append(s.Effects, Effect{Step: e.GetStep(), Item: e.GetItem(), State: states[e.GetState()]})
	}
	for i := range st.Items {
		it := &st.Items[i]
		if !it.Open() {
			continue
		}
		step := it.Call.Step
		if it.Call.Item != "" {
			step += "@" + it.Call.Item
		}
		s.Items = append(s.Items, Item{
			Number: int(it.Number), Step: step, Undo: it.Call.Dir == historyv1.Direction_DIRECTION_UNDO, Kind: statemachine.KindWords(it.Kind),
			Code: it.Error.GetCode(), Message: it.Error.GetMessage(), Blocking: it.Blocking, kind: it.Kind,
		})
	}
	notes := r.notes
	for n, t := range r.transitions() {
		for len(notes) > 0 && notes[0].n <= int64(n) {
			s.History = append(s.History, Entry{At: notes[0].at, Text: notes[0].text, Injected: true})
			notes = notes[1:]
		}
		for _, f := range t.GetFacts() {
			s.History = append(s.History, Entry{At: time.UnixMicro(t.GetAtUs()).Sub(began), Text: statemachine.Sentence(f)})
			if e := f.GetAttemptEnded(); e.GetUnusable() {
				s.unusable = append(s.unusable, fmt.Sprintf("%s: %s: %s", e.GetCall().GetStep(), e.GetError().GetCode(), e.GetError().GetMessage()))
			}
		}
	}
	for _, x := range notes {
		s.History = append(s.History, Entry{At: x.at, Text: x.text, Injected: true})
	}
	if !st.Status.Terminal() {
		s.WaitsFor = r.awaited()
	}
	return s
}

// transitions are the saga's, as they are stored.
func (r *rig) transitions() []*historyv1.Transition {
	rows, err := r.st.History(r.ctx, 0, r.run, 1, 1_000_000)
	if err != nil {
		panic(err) // the store is in memory
	}
	out := make([]*historyv1.Transition, len(rows))
	for i, row := range rows {
		out[i] = &historyv1.Transition{}
		if err := proto.Unmarshal(row.Facts, out[i]); err != nil {
			panic(err)
		}
	}
	return out
}

// open are the waits that have begun and aren't over: the wait's name, and the signal's; that is empty if a person is asked.
func (r *rig) open() (waits [][2]string) {
	names := map[string]string{}
	walk(r.def.proto.GetBody(), func(n *sagadv1.Node) {
		if w := n.GetWait(); w != nil {
			names[w.GetName()] = w.GetSignal()
		}
	})
	if len(names) == 0 {
		return nil
	}
	type at struct{ name, item string }
	var begun []at
	over := func(name, item string) {
		begun = slices.DeleteFunc(begun, func(x at) bool { return x == at{name, item} })
	}
	for _, t := range r.transitions() {
		for _, f := range t.GetFacts() {
			switch {
			case f.GetWaitStarted() != nil:
				begun = append(begun, at{f.GetWaitStarted().GetName(), f.GetWaitStarted().GetItem()})
			case f.GetSignalConsumed() != nil:
				over(f.GetSignalConsumed().GetName(), f.GetSignalConsumed().GetItem())
			case f.GetWaitExpired() != nil:
				over(f.GetWaitExpired().GetName(), f.GetWaitExpired().GetItem())
			case f.GetUnwindStarted() != nil:
				begun = nil
			}
		}
	}
	for _, x := range begun {
		waits = append(waits, [2]string{x.name, names[x.name]})
	}
	return waits
}

// awaited says what the saga waits for.
func (r *rig) awaited() string {
	for i := range r.state.Items {
		if it := &r.state.Items[i]; it.Open() && it.Blocking {
			return "a person: " + statemachine.KindWords(it.Kind) + ", " + it.Call.String()
		}
	}
	if open := r.open(); len(open) > 0 {
		if w := open[0]; w[1] != "" {
			return "signal " + w[1] + " at " + w[0]
		}
		return "a person's answer at " + open[0][0]
	}
	return "nothing that the test gives"
}

// walk visits all nodes of a body, from the outside in.
func walk(nodes []*sagadv1.Node, visit func(*sagadv1.Node)) {
	for _, n := range nodes {
		visit(n)
		for _, body := range statemachine.Bodies(n) {
			walk(body, visit)
		}
	}
}
