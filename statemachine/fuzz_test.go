package statemachine

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// FuzzCompile: whatever bytes come as a definition, the answer is a machine or problems that can be sent, and a machine can be
// used.
func FuzzCompile(f *testing.F) {
	add := func(def *sagadv1.Definition, err error) {
		if err != nil {
			f.Fatal(err)
		}
		raw, err := proto.Marshal(def)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	for _, source := range []string{
		"read a", "comp a hold\ncomp b pass in=a\npivot c\nretriable d\nreturn [a,b]", "parallel p\nbranch\ncomp a\nbranch\nif c input.x\ncomp b\nelse\nread d\nend\nend",
		"if c true\npivot a\nend\ncomp b", "deadline 5s\nread a in=input.b.c+1",
	} {
		add(parseDefinition(source))
	}
	add(readDefinition("json", sourceOf(f, canonicalFile)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		def := &sagadv1.Definition{}
		if proto.Unmarshal(raw, def) != nil {
			return
		}
		m, problems := Compile(def)
		if (m == nil) == (len(problems) == 0) {
			t.Fatalf("machine %v, %d problems", m != nil, len(problems))
		}
		checkProblems(t, def, problems)
		Mermaid(def)
		if m == nil {
			return
		}
		if hash, err := Hash(def); err != nil || m.hash != hash {
			t.Fatalf("%v %x %x", err, hash, m.hash)
		}
		d, err := m.Decide(nil, Start{Input: []byte(`{"x":true}`)}, 1, 1)
		for i := 0; err == nil && i < 100 && !d.State.Status.Terminal(); i++ {
			calls := d.State.InFlight()
			if len(calls) == 0 {
				break
			}
			c := d.State.Call(calls[0])
			d, err = m.Decide(d.State, Result{Call: calls[0], Generation: c.Generation, Attempt: c.Attempt, Outcome: historyv1.Outcome_OUTCOME_SUCCEEDED, Output: []byte("{}")}, 2, 2)
		}
		if err != nil || !d.State.Waits() {
			t.Fatalf("%v %+v", err, d.State)
		}
	})
}

// FuzzEvolve: whatever is stored as history, folding it gives a state that can be asked everything, or an error.
func FuzzEvolve(f *testing.F) {
	type machine struct {
		def *sagadv1.Definition
		m   *Machine
	}
	var machines []machine
	paths, err := filepath.Glob("testdata/golden/*.json")
	if err != nil || len(paths) == 0 {
		f.Fatal(err, paths)
	}
	for _, path := range paths {
		var stored storedHistory
		if err := json.Unmarshal([]byte(sourceOf(f, path)), &stored); err != nil {
			f.Fatal(err)
		}
		def := &sagadv1.Definition{}
		if err := protojson.Unmarshal(stored.Definition, def); err != nil {
			f.Fatal(err)
		}
		m, _ := Compile(def)
		// All transitions in one: the history of the fuzz test is one message.
		all := &historyv1.Transition{}
		for _, raw := range stored.Transitions {
			tr := &historyv1.Transition{}
			if err := protojson.Unmarshal(raw, tr); err != nil {
				f.Fatal(err)
			}
			all.Facts, all.AtUs = append(all.Facts, tr.Facts...), tr.AtUs
		}
		raw, err := proto.Marshal(all)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(len(machines)), byte(3), raw)
		machines = append(machines, machine{def, m})
	}
	f.Fuzz(func(t *testing.T, which, cut byte, raw []byte) {
		all := &historyv1.Transition{}
		if proto.Unmarshal(raw, all) != nil {
			return
		}
		m := machines[int(which)%len(machines)].m
		ts := []*historyv1.Transition{all}
		if n := int(cut); n > 0 && n < len(all.GetFacts()) {
			ts = []*historyv1.Transition{{Facts: all.GetFacts()[:n], AtUs: all.GetAtUs()}, {Facts: all.GetFacts()[n:], AtUs: all.GetAtUs() + 1, RequestId: "r"}}
		}
		s, err := m.Fold(ts)
		if (s == nil) == (err == nil) {
			t.Fatalf("%v %v", s, err)
		}
		if err != nil {
			return
		}
		s.NextWake()
		s.Waits()
		m.Effects(s)
		m.OldestUnsettled(s)
		for _, c := range s.InFlight() {
			if _, err := m.Task(s, c); err != nil {
				t.Fatal(err)
			}
		}
		for i := range s.Items {
			m.Allowed(s, s.Items[i].Number)
		}
		for _, f := range all.GetFacts() {
			Sentence(f)
		}
		fingerprint(s)
	})
}
