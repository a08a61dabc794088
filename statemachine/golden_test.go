package statemachine

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

var keep = flag.String("keep", "", "store histories of the scripts as golden ones: names of scripts with the number of the saga in it, such as late-2,stuck-1")

// storedHistory is a saga's history as a file of testdata/golden holds it.
type storedHistory struct {
	Comment    string          `json:"comment"`
	Definition json.RawMessage `json:"definition"`
	// Versions are the definition's versions from the second on, if the saga moved to one of them.
	Versions    []json.RawMessage `json:"versions,omitempty"`
	Transitions []json.RawMessage `json:"transitions"`
}

// TestGolden folds histories that were stored once. A release may decide otherwise than those before it, but what they stored
// means the same for ever: these files are never written anew, and if one of them folds to another state, sagas that are
// running will break when they are read. To add one, name a saga of a script: go test -run TestScripts -keep late-2
func TestGolden(t *testing.T) {
	paths, err := filepath.Glob("testdata/golden/*.json")
	if err != nil || len(paths) < 5 {
		t.Fatalf("%d histories, %v", len(paths), err)
	}
	facts := map[string]bool{}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			var stored storedHistory
			if err := json.Unmarshal([]byte(sourceOf(t, path)), &stored); err != nil {
				t.Fatal(err)
			}
			var versions []*Machine
			for _, raw := range append([]json.RawMessage{stored.Definition}, stored.Versions...) {
				def := &sagadv1.Definition{}
				if err := protojson.Unmarshal(raw, def); err != nil {
					t.Fatal(err)
				}
				m, problems := Compile(def)
				if len(problems) > 0 {
					t.Fatalf("a definition that was registered once is refused:\n%s", printProblems(problems))
				}
				versions = append(versions, m)
			}
			m := versions[0]
			var ts []*historyv1.Transition
			for _, raw := range stored.Transitions {
				tr := &historyv1.Transition{}
				if err := protojson.Unmarshal(raw, tr); err != nil {
					t.Fatal(err)
				}
				ts = append(ts, tr)
				for _, f := range tr.GetFacts() {
					facts[fmt.Sprintf("%T", f.GetKind())] = true
				}
			}
			if hash := ts[0].GetFacts()[0].GetStarted().GetDefinitionHash(); hash != m.Hash() {
				t.Errorf("the definition's hash was %s and is %s", hash, m.Hash())
			}
			s, err := FoldAll(ts, func(version int32) (*Machine, error) { return versions[version-1], nil })
			if err != nil {
				t.Fatal(err)
			}
			want := strings.TrimSuffix(path, ".json") + ".state"
			if got := describe(s); got != sourceOf(t, want) {
				t.Errorf("%s folds to another state. Got:\n%s\nwant:\n%s", path, got, sourceOf(t, want))
			}
		})
	}
	// Every kind of fact is in some history.
	var missing []string
	kinds := (&historyv1.Fact{}).ProtoReflect().Descriptor().Oneofs().ByName("kind").Fields()
	for i := range kinds.Len() {
		f := &historyv1.Fact{}
		f.ProtoReflect().Mutable(kinds.Get(i))
		if name := fmt.Sprintf("%T", f.GetKind()); !facts[name] {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		t.Errorf("no golden history has %v", missing)
	}
}

// keepHistory stores a saga of a script, unless there is such a file: what was stored is never stored anew.
func keepHistory(t *testing.T, name, comment string, versions []*Machine, history []*historyv1.Transition) {
	path := "testdata/golden/" + name + ".json"
	if _, err := os.Stat(path); err == nil || !slices.Contains(strings.Split(*keep, ","), name) {
		return
	}
	marshal := func(m proto.Message) json.RawMessage {
		b, err := protojson.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	stored := storedHistory{Comment: comment, Definition: marshal(versions[0].Definition())}
	for _, m := range versions[1:] {
		stored.Versions = append(stored.Versions, marshal(m.Definition()))
	}
	for _, tr := range history {
		stored.Transitions = append(stored.Transitions, marshal(tr))
	}
	b, err := json.MarshalIndent(stored, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := FoldAll(history, func(version int32) (*Machine, error) { return versions[version-1], nil })
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("testdata/golden/"+name+".state", []byte(describe(s)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// describe prints all of a state that others can see and that isn't zero, so that a field which is added changes no golden file.
func describe(s *State) string {
	var b strings.Builder
	describeValue(&b, "", reflect.ValueOf(s).Elem())
	return b.String()
}

func describeValue(b *strings.Builder, name string, v reflect.Value) {
	if v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0 {
		return
	}
	if said, ok := v.Interface().(*Said); ok {
		describeValue(b, strings.TrimSuffix(name, ".Said"), reflect.ValueOf(said).Elem()) // as part of the call
		return
	}
	if v.CanInterface() {
		switch x := v.Interface().(type) {
		case proto.Message:
			describeProto(b, name, x)
			return
		case fmt.Stringer:
			fmt.Fprintf(b, "%s: %s\n", name, x)
			return
		}
	}
	switch v.Kind() {
	case reflect.Pointer:
		describeValue(b, name, v.Elem())
	case reflect.Struct:
		if p, ok := v.Interface().(PlaceState); ok {
			for i, f := range p.Frames() {
				if f != nil {
					describeValue(b, fmt.Sprintf("%s.Frames[%d]", name, i), reflect.ValueOf(f).Elem())
				}
			}
		}
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if !f.IsExported() {
				continue
			}
			if f.Anonymous {
				describeValue(b, name, v.Field(i))
				continue
			}
			if f.Name == "Places" && name == "" {
				describeArms(b, v.Field(i).Interface().([]PlaceState))
			}
			if f.Name == "Arm" {
				continue // is printed above
			}
			describeValue(b, strings.TrimPrefix(name+"."+f.Name, "."), v.Field(i))
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			if doc := v.Bytes(); json.Valid(doc) {
				fmt.Fprintf(b, "%s: %s\n", name, doc)
			} else {
				fmt.Fprintf(b, "%s: %x\n", name, doc)
			}
			return
		}
		for i := range v.Len() {
			describeValue(b, fmt.Sprintf("%s[%d]", name, i), v.Index(i))
		}
	default:
		fmt.Fprintf(b, "%s: %v\n", name, v)
	}
}

// describeArms prints the arms that were taken as the first histories have them: digits in a row.
func describeArms(b *strings.Builder, places []PlaceState) {
	arms := ""
	taken := false
	for i := range places {
		arms += fmt.Sprintf("%02x", int(places[i].Arm))
		taken = taken || places[i].Arm != ArmOpen
	}
	if taken {
		fmt.Fprintf(b, "Branches: %s\n", arms)
	}
}

// describeProto prints a message by reflection, since the library's text form isn't stable.
func describeProto(b *strings.Builder, name string, m proto.Message) {
	switch x := m.(type) {
	case *historyv1.Error:
		fmt.Fprintf(b, "%s: %s %q %q\n", name, x.GetCode(), x.GetMessage(), x.GetDetail())
	case *historyv1.Cause:
		fmt.Fprintf(b, "%s: %s step %q attempt %d actor %q\n", name, x.GetKind(), x.GetStep(), x.GetAttempt(), x.GetActor())
		if x.GetError() != nil {
			describeProto(b, name+".Error", x.GetError())
		}
	case *historyv1.Parent:
		fmt.Fprintf(b, "%s: %s step %q item %q generation %d\n", name, x.GetSagaId(), x.GetStep(), x.GetItem(), x.GetGeneration())
	default:
		panic(fmt.Sprintf("teach the test to print %T", m))
	}
}
