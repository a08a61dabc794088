package statemachine

import (
	"fmt"
	"strings"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// Explanation is the one thing that a saga waits for.
type Explanation struct {
	For sagadv1.WaitsFor
	// Text is a sentence; Help what would help, as a command where there is one.
	Text, Help string
	// Call is the call, or the place, that it is about, if it is about one.
	Call Call
	// Activity of the call that waits for a worker.
	Activity string
	// What is the activity, the signal, the item's number or the other saga's id.
	What string
	// Since when, and until when at the latest; 0: nothing says so.
	Since, Until Micros
}

// Explain says what a saga waits for. If there are several things, it is the one that it has waited for longest, but what a person must do
// comes first.
func (m *Machine) Explain(s *State, now Micros) Explanation {
	id := quoteArg(s.SagaID)
	switch {
	case s.Status.Terminal():
		return Explanation{For: sagadv1.WaitsFor_WAITS_FOR_NOTHING, Text: fmt.Sprintf("it has ended as %s", s.Status), Since: s.ChangedAt}
	case s.Paused:
		return Explanation{
			For: sagadv1.WaitsFor_WAITS_FOR_RESUME, Text: "it is paused: " + limitText(s.PauseReason, 256), Help: "sagad saga resume " + id, Since: s.PausedAt,
		}
	}
	for i := range s.Items {
		if it := &s.Items[i]; it.Blocking && statusWord(it.Status) == "open" {
			return Explanation{
				For: sagadv1.WaitsFor_WAITS_FOR_PERSON, Call: it.Call, What: fmt.Sprint(it.Number), Since: it.ChangedAt,
				Text: fmt.Sprintf("a person must decide about %s: %s", callWords(it.Call.proto()), firstLine(it.Error.GetCode(), it.Error.GetMessage())),
				Help: fmt.Sprintf("sagad ops show %s %d", id, it.Number),
			}
		}
	}
	if s.Provisional {
		parent := s.Parent.GetSagaId()
		return Explanation{
			For: sagadv1.WaitsFor_WAITS_FOR_SAGA, What: parent, Since: s.ChangedAt,
			Text: fmt.Sprintf("it is done, and stays provisional until saga %s, of which it is a child, is settled", parent),
			Help: "sagad saga explain " + quoteArg(parent),
		}
	}
	var best *Explanation
	consider := func(e Explanation) {
		if best == nil || e.Since < best.Since {
			best = &e
		}
	}
	s.each(func(f *Frame) bool {
		if !f.isLive() {
			return false
		}
		b := &m.bodies[f.body]
		for slot, i := range b.steps {
			for n, c := range f.Steps[slot].calls() {
				if c != nil && (c.Phase == InFlight || c.Phase == BackingOff) {
					consider(m.explainCall(s, i, Call{Step: m.steps[i].name, Item: f.Item, Dir: directions[n]}, c, now))
				}
			}
		}
		for slot, i := range b.places {
			p := &f.Places[slot]
			if p.awaited() == 0 {
				continue
			}
			d := &m.places[i]
			e := Explanation{Call: Call{Step: d.name, Item: f.Item, Dir: do}, Since: p.StartedAt, Until: p.At}
			switch {
			case d.kind == sleepNode:
				e.For, e.Text, e.Help = sagadv1.WaitsFor_WAITS_FOR_TIMER, "it sleeps in "+placeWords(e.Call), ""
			case d.title != nil:
				e.For, e.Text, e.Help = sagadv1.WaitsFor_WAITS_FOR_PERSON, "a person is asked in "+placeWords(e.Call), "sagad ops list --saga "+id
				for k := range s.Items {
					if it := &s.Items[k]; it.Call == e.Call && it.Open() {
						e.What = fmt.Sprint(it.Number)
						e.Text = fmt.Sprintf("a person is asked in %s: %s", placeWords(e.Call), limitText(it.Error.GetMessage(), 256))
						e.Help = fmt.Sprintf("sagad ops answer %s %d JSON --reason TEXT", id, it.Number)
					}
				}
			default:
				e.For, e.What = sagadv1.WaitsFor_WAITS_FOR_SIGNAL, d.signal
				e.Text, e.Help = fmt.Sprintf("it waits in %s for a signal %s", placeWords(e.Call), d.signal), fmt.Sprintf("sagad saga signal %s %s --key KEY --payload JSON", id, d.signal)
			}
			consider(e)
		}
		return true
	})
	if best != nil {
		return *best
	}
	// It can't be, and if it is, this says so instead of inventing a reason.
	return Explanation{For: sagadv1.WaitsFor_WAITS_FOR_UNSPECIFIED, Text: "nothing that it waits for can be told: please report it", Since: s.ChangedAt}
}

func (m *Machine) explainCall(s *State, i int, call Call, c *CallState, now Micros) Explanation {
	st := &m.steps[i]
	e := Explanation{Call: call, Activity: st.activity, What: st.activity, Since: c.StartedAt}
	tries := ""
	if c.Attempt > 1 {
		tries = fmt.Sprintf(", attempt %d", c.Attempt)
	}
	switch {
	case st.child:
		e.For, e.Since, e.What = sagadv1.WaitsFor_WAITS_FOR_SAGA, c.StartedAt, ChildID(s, call)
		e.Text = fmt.Sprintf("child saga %s runs for %s", e.What, callWords(call.proto()))
		if call.Dir == undo {
			e.Text = fmt.Sprintf("child saga %s unwinds for %s", e.What, callWords(call.proto()))
		}
		e.Activity, e.Help = "", "sagad saga explain "+quoteArg(e.What)
	case c.Phase == BackingOff:
		e.For, e.Until = sagadv1.WaitsFor_WAITS_FOR_TIMER, c.RetryAt
		e.Text = fmt.Sprintf("%s failed (%s) and is tried again%s", callWords(call.proto()), firstLine(c.LastError.GetCode(), c.LastError.GetMessage()), nextAttempt(c))
		e.Help = fmt.Sprintf("see what fails in the worker of %s", st.activity)
		if call.Dir == do && !s.Backward {
			e.Help += "; or sagad saga cancel " + quoteArg(s.SagaID)
		}
	default:
		e.For, e.Until = sagadv1.WaitsFor_WAITS_FOR_WORKER, c.Deadline
		if by := c.Reported().HeartbeatBy; by != 0 && (e.Until == 0 || by < e.Until) {
			e.Until = by
		}
		e.Text = fmt.Sprintf("a worker of %s is to answer for %s%s", st.activity, callWords(call.proto()), tries)
		if c.Deadline != 0 && c.Deadline <= now {
			e.Text += "; its time is up, and it is about to be given up"
		}
		e.Help = fmt.Sprintf("see whether the worker of %s gets on", st.activity)
	}
	return e
}

func nextAttempt(c *CallState) string { return fmt.Sprintf(", as attempt %d", c.Attempt+1) }

// ChildID is the id of the saga that a call runs: the parent's id, the step, its item and generation, joined by '/'. It is shortened to a
// digest if it would be too long.
func ChildID(s *State, c Call) string {
	generation := int32(1)
	if do := s.Call(Call{Step: c.Step, Item: c.Item, Dir: do}); do != nil {
		generation = max(do.Generation, 1)
	}
	return childID(s.SagaID, s.KeyName(c), c.Item, generation)
}

func placeWords(c Call) string { return callWords(Call{Step: c.Step, Item: c.Item, Dir: do}.proto()) }

func firstLine(code, message string) string {
	message, _, _ = strings.Cut(message, "\n")
	switch {
	case code == "":
		return limitText(message, 256)
	case message == "":
		return code
	}
	return code + ": " + limitText(message, 256)
}

// quoteArg makes an argument of a shell command.
func quoteArg(s string) string {
	for _, r := range s {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@%+=,", r) {
			return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
		}
	}
	if s == "" || s[0] == '-' {
		return "'" + s + "'"
	}
	return s
}
