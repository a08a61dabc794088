package statemachine

import (
	"encoding/binary"
	"reflect"
	"slices"
	"sort"
	"testing"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
)

// fingerprint writes everything that a state holds, so that two states are equal exactly if their fingerprints are. It is what
// the properties compare states by, as they do so very often.
func fingerprint(s *State) string {
	if s == nil {
		return ""
	}
	f := printer{b: make([]byte, 0, 2048)}
	f.text(s.Namespace, s.SagaID, s.Definition, s.Actor, s.Traceparent, s.AbandonReason)
	f.number(int64(s.Version), s.N, int64(s.Status), s.StartedAt, s.ChangedAt, s.Deadline, int64(s.SettledByHand), int64(s.end), int64(s.startNo))
	f.bytes(s.Input, s.Output, s.Digest)
	f.flags(s.Backward, s.DeadlinePassed)
	keys := make([]string, 0, len(s.Labels))
	for k := range s.Labels {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		f.text(k, s.Labels[k])
	}
	f.flags(s.Cause != nil)
	f.number(int64(s.Cause.GetKind()), int64(s.Cause.GetAttempt()))
	f.text(s.Cause.GetStep(), s.Cause.GetActor())
	f.err(s.Cause.GetError())
	f.frame(&s.Frame)
	f.flags(s.Paused, s.Provisional, s.ParentEnded, s.Parent != nil)
	f.text(s.PauseReason, s.Parent.GetSagaId())
	f.number(s.PausedAt, int64(len(s.Signals)), int64(len(s.keys)))
	for _, x := range s.Signals {
		f.text(x.Name, x.Key)
		f.bytes(x.Payload)
		f.number(x.At)
	}
	for _, k := range s.keys {
		f.text(k.name, k.key)
		f.bytes(k.digest)
	}
	f.number(int64(len(s.Items)))
	for i := range s.Items {
		it := &s.Items[i]
		f.number(int64(it.Number), int64(it.Kind), int64(it.Status), int64(it.Call.Dir), it.OpenedAt, it.ChangedAt, it.Version)
		f.text(it.Call.Step, it.Call.Item, it.How)
		f.flags(it.Blocking)
		f.err(it.Error)
	}
	f.text(s.requests...)
	return string(f.b)
}

type printer struct{ b []byte }

func (f *printer) frame(x *Frame) {
	f.flags(x != nil)
	if x == nil {
		return
	}
	f.text(x.Item)
	f.number(int64(x.Index), int64(x.Phase), int64(x.live), int64(x.body), int64(len(x.Steps)), int64(len(x.Places)), int64(x.Cause.GetKind()))
	f.bytes(x.Value, x.Output)
	f.err(x.Cause.GetError())
	f.text(x.Cause.GetStep())
	f.flags(x.Cause != nil)
	for i := range x.Steps {
		st := &x.Steps[i]
		f.text(st.Name, st.KeyName)
		f.number(int64(st.StartNo))
		for _, c := range st.calls() {
			if f.flags(c != nil); c == nil {
				continue
			}
			f.number(int64(c.Phase), int64(c.Generation), int64(c.Attempt), c.Deadline, c.RetryAt, int64(c.LastOutcome), c.StartedAt, c.EndedAt, int64(c.budgetFrom), c.budgetFromAt, c.Reported().HeartbeatBy)
			f.bytes(c.Input, c.Output, c.Reported().Checkpoint, c.Reported().Progress)
			f.flags(c.OutputKnown, c.InDoubt, c.Empty, c.ByHand, c.Unsendable, c.happened, c.Disproved)
			f.text(c.Reported().Claim)
			f.err(c.LastError)
			f.number(int64(len(c.ended)))
			for _, e := range c.ended {
				f.number(int64(e.generation), int64(e.attempt), int64(e.outcome), int64(len(e.others)))
				f.flags(e.doubt)
				f.bytes(e.digest)
				f.bytes(e.others...)
			}
		}
	}
	for i := range x.Places {
		p := &x.Places[i]
		f.number(int64(p.Arm), int64(p.Phase), p.At, p.StartedAt, int64(p.Count), int64(p.Done), int64(p.Failed))
		f.number(int64(len(p.elements)), int64(len(p.active)), int64(len(p.order)), int64(len(p.frames)))
		f.bytes(p.Value, p.Output)
		for _, n := range slices.Concat(p.active, p.order) {
			f.number(int64(n))
		}
		for _, in := range p.frames {
			f.frame(in)
		}
	}
}

func (f *printer) number(ns ...int64) {
	for _, n := range ns {
		f.b = binary.AppendVarint(f.b, n)
	}
}

func (f *printer) text(ts ...string) {
	for _, t := range ts {
		f.b = append(binary.AppendVarint(f.b, int64(len(t))), t...)
	}
}

func (f *printer) bytes(bs ...[]byte) {
	for _, b := range bs {
		f.b = append(binary.AppendVarint(f.b, int64(len(b))), b...)
	}
}

func (f *printer) flags(bs ...bool) {
	for _, b := range bs {
		if b {
			f.b = append(f.b, 1)
		} else {
			f.b = append(f.b, 0)
		}
	}
}

func (f *printer) err(e *historyv1.Error) {
	f.flags(e != nil)
	f.text(e.GetCode(), e.GetMessage(), e.GetDetail())
}

// TestFingerprintSeesEverything changes each field of a state, and wants another fingerprint each time.
func TestFingerprintSeesEverything(t *testing.T) {
	make1 := func() *State {
		return &State{
			Frame: Frame{
				Steps:  []StepState{{Do: CallState{ended: []endedAttempt{{}}, Said: &Said{}}, Undo: CallState{ended: []endedAttempt{{}}}, Probe: &CallState{}}},
				Places: []PlaceState{{frames: []*Frame{{}}}},
			},
			Items: []ItemState{{}}, Signals: []SignalState{{}}, keys: []signalKey{{}},
		}
	}
	seen := map[string]string{fingerprint(make1()): "nothing"}
	check := func(s *State, what string) {
		p := fingerprint(s)
		if before, ok := seen[p]; ok {
			t.Errorf("%s and %s have one fingerprint", before, what)
		}
		seen[p] = what
	}
	for _, part := range []struct {
		name string
		of   func(*State) any
		skip []string
	}{
		{"State", func(s *State) any { return s }, []string{"Frame", "Items", "Signals", "keys", "machine", "stamp"}},
		{"Frame", func(s *State) any { return &s.Frame }, []string{"Steps", "Places", "stamp"}},
		{"PlaceState", func(s *State) any { return &s.Places[0] }, []string{"frames", "stamp"}},
		{"inner Frame", func(s *State) any { return s.Places[0].frames[0] }, []string{"stamp"}},
		{"Said", func(s *State) any { return s.Steps[0].Do.Said }, nil},
		{"Probe", func(s *State) any { return s.Steps[0].Probe }, []string{"Said"}},
		{"SignalState", func(s *State) any { return &s.Signals[0] }, nil},
		{"signalKey", func(s *State) any { return &s.keys[0] }, nil},
		{"StepState", func(s *State) any { return &s.Steps[0] }, []string{"Do", "Undo", "Probe"}},
		{"Do", func(s *State) any { return &s.Steps[0].Do }, []string{"ended", "Said"}},
		{"Undo", func(s *State) any { return &s.Steps[0].Undo }, []string{"ended", "Said"}},
		{"Do.ended", func(s *State) any { return &s.Steps[0].Do.ended[0] }, nil},
		{"Undo.ended", func(s *State) any { return &s.Steps[0].Undo.ended[0] }, nil},
		{"ItemState", func(s *State) any { return &s.Items[0] }, []string{"Call"}},
		{"ItemState.Call", func(s *State) any { return &s.Items[0].Call }, nil},
	} {
		n := reflect.TypeOf(part.of(make1())).Elem().NumField()
		for i := range n {
			s := make1()
			v := reflect.ValueOf(part.of(s)).Elem()
			name := v.Type().Field(i).Name
			if slices.Contains(part.skip, name) {
				continue
			}
			f := v.Field(i)
			f = reflect.NewAt(f.Type(), f.Addr().UnsafePointer()).Elem() // unexported ones, too
			if f.Kind() == reflect.Pointer && f.Type().Elem().Kind() == reflect.Uint8 {
				f = f.Elem()
			}
			switch f.Kind() {
			case reflect.String:
				f.SetString("x")
			case reflect.Bool:
				f.SetBool(true)
			case reflect.Int, reflect.Int16, reflect.Int32, reflect.Int64:
				f.SetInt(7)
			case reflect.Uint8:
				f.SetUint(1)
			case reflect.Slice:
				f.Set(reflect.MakeSlice(f.Type(), 1, 1))
			case reflect.Map:
				f.Set(reflect.ValueOf(map[string]string{"k": "v"}))
			case reflect.Pointer:
				f.Set(reflect.New(f.Type().Elem()))
			default:
				t.Fatalf("%s.%s is a %s: teach the test", part.name, name, f.Kind())
			}
			check(s, part.name+"."+name)
		}
	}
}
