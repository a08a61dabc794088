package statemachine

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

const (
	canonicalFile = "testdata/canonical/order.json"
	// flowFile has the nodes that canonicalFile, which is older, hasn't.
	flowFile = "testdata/canonical/flow.json"
)

// TestCanonicalGolden holds the canonical form and the hash of a definition for ever: if this fails, every definition that
// was ever registered would be registered again as a new version.
func TestCanonicalGolden(t *testing.T) {
	def := orderDefinition(t)
	got, err := Canonical(def)
	if err != nil {
		t.Fatal(err)
	}
	hash, err := Hash(def)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/canonical/order.canonical", string(got))
	golden(t, "testdata/canonical/order.sha256", fmt.Sprintf("%x\n", hash))
	if !json.Valid(got) {
		t.Error("the canonical form isn't JSON")
	}
	// The definition is older than the rule activity-kind, which its pivot breaks. Its form must stay all the same.
	def.Body[3].GetStep().Activity = "mail.send"
	if hash, err = Hash(def); err != nil {
		t.Fatal(err)
	}
	m, problems := Compile(def)
	if m == nil || m.Hash() != fmt.Sprintf("%x", hash) {
		t.Errorf("compiled: %v", problems)
	}
}

// TestCanonicalGoldenFlow does the same for the nodes that came later.
func TestCanonicalGoldenFlow(t *testing.T) {
	def := definitionOf(t, flowFile)
	got, err := Canonical(def)
	if err != nil || !json.Valid(got) {
		t.Fatal(err)
	}
	golden(t, "testdata/canonical/flow.canonical", string(got))
	m, problems := Compile(def)
	if m == nil {
		t.Fatalf("compiled: %v", problems)
	}
	golden(t, "testdata/canonical/flow.sha256", m.Hash()+"\n")
}

// TestMermaid pins the picture of a definition with each kind of node.
func TestMermaid(t *testing.T) {
	golden(t, "testdata/canonical/flow.mermaid", Mermaid(definitionOf(t, flowFile)))
}

func orderDefinition(t *testing.T) *sagadv1.Definition {
	t.Helper()
	return definitionOf(t, canonicalFile)
}

func definitionOf(t *testing.T, file string) *sagadv1.Definition {
	t.Helper()
	def := &sagadv1.Definition{}
	if err := protojson.Unmarshal([]byte(sourceOf(t, file)), def); err != nil {
		t.Fatal(err)
	}
	return def
}

// TestCanonicalIgnoresForm: what is written differently and means the same has the same hash.
func TestCanonicalIgnoresForm(t *testing.T) {
	def := orderDefinition(t)
	want, err := Canonical(def)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*sagadv1.Definition){
		"white space in a schema": func(d *sagadv1.Definition) {
			var b bytes.Buffer
			if err := json.Indent(&b, []byte(d.InputSchema), " ", "\t"); err != nil {
				t.Fatal(err)
			}
			d.InputSchema = "\n" + b.String() + "\n"
		},
		"order of keys in a schema": func(d *sagadv1.Definition) {
			d.Activities[1].OutputSchema = `{"required":["b","a"],"properties":{"b":{"type":"string"},"a":{"type":"integer"}},"type":"object"}`
		},
		"escapes in a schema": func(d *sagadv1.Definition) {
			d.InputSchema = strings.Replace(d.InputSchema, `"order"`, `"\u006frder"`, 1)
		},
		"order of fields": func(d *sagadv1.Definition) {
			m := map[string]string{}
			for _, k := range []string{"b", "a", "order"} {
				m[k] = d.Body[0].GetStep().Input.Fields[k]
			}
			d.Body[0].GetStep().Input.Fields = m
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := proto.CloneOf(def)
			change(d)
			// Through the wire, too, as it comes to a server.
			raw, err := proto.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			wired := &sagadv1.Definition{}
			if err := proto.Unmarshal(raw, wired); err != nil {
				t.Fatal(err)
			}
			for _, d := range []*sagadv1.Definition{d, wired} {
				if got, err := Canonical(d); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%v\n%s\nwant\n%s", err, got, want)
				}
			}
		})
	}
}

// TestCanonicalSeesEverything changes each field of each message, one at a time, and wants another canonical form each time.
func TestCanonicalSeesEverything(t *testing.T) {
	touched := map[protoreflect.FullName]bool{}
	changes := seesEverything(t, orderDefinition(t), touched) + seesEverything(t, definitionOf(t, flowFile), touched)
	if changes < 250 {
		t.Errorf("only %d changes", changes)
	}
	// Every field of every message that a definition is made of was touched, so the definitions in the files have all of them.
	messages := sagadv1.File_sagad_v1_definition_proto.Messages()
	for j := range messages.Len() {
		md := messages.Get(j)
		if md.Name() == "DefinitionVersion" || md.Name() == "Problem" {
			continue // made of definitions, or said about them
		}
		for i := range md.Fields().Len() {
			if f := md.Fields().Get(i).FullName(); !touched[f] {
				t.Errorf("%s is neither in %s nor in %s", f, canonicalFile, flowFile)
			}
		}
	}
}

func seesEverything(t *testing.T, def *sagadv1.Definition, touched map[protoreflect.FullName]bool) (changes int) {
	t.Helper()
	seen := map[string]string{}
	note := func(d *sagadv1.Definition, what string) {
		c, err := Canonical(d)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if before, ok := seen[string(c)]; ok {
			t.Errorf("%s and %s have one canonical form", before, what)
		}
		seen[string(c)] = what
	}
	note(def, "the definition as it is")
	for n := 0; ; n++ {
		d := proto.CloneOf(def)
		left := n
		what := mutate(d.ProtoReflect(), "definition", &left, touched)
		if what == "" {
			return changes
		}
		changes++
		note(d, what)
	}
}

// mutate makes the n-th change that can be made to m, and says which it was.
func mutate(m protoreflect.Message, path string, n *int, touched map[protoreflect.FullName]bool) string {
	turn := func() bool { *n--; return *n < 0 }
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if !m.Has(fd) {
			continue
		}
		at := path + "." + string(fd.Name())
		touched[fd.FullName()] = true
		if turn() {
			m.Clear(fd)
			return at + " cleared"
		}
		switch {
		case fd.IsMap():
			mp := m.Mutable(fd).Map()
			if turn() {
				mp.Set(protoreflect.ValueOfString("added").MapKey(), protoreflect.ValueOfString("1"))
				return at + " added to"
			}
			if turn() {
				mp.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
					mp.Set(k, protoreflect.ValueOfString(v.String()+" "))
					return false
				})
				return at + " one value changed"
			}
		case fd.IsList():
			l := m.Mutable(fd).List()
			if l.Len() > 1 && turn() {
				a, b := l.Get(0), l.Get(1)
				l.Set(0, b)
				l.Set(1, a)
				return at + " swapped"
			}
			for j := range l.Len() {
				if what := mutate(l.Get(j).Message(), fmt.Sprintf("%s[%d]", at, j), n, touched); what != "" {
					return what
				}
			}
		case fd.Kind() == protoreflect.MessageKind:
			if what := mutate(m.Mutable(fd).Message(), at, n, touched); what != "" {
				return what
			}
		case turn():
			switch v := m.Get(fd); fd.Kind() {
			case protoreflect.StringKind:
				if strings.HasSuffix(string(fd.Name()), "schema") {
					m.Set(fd, protoreflect.ValueOfString(`{"title":"x","allOf":[`+v.String()+`]}`))
				} else {
					m.Set(fd, protoreflect.ValueOfString(v.String()+" "))
				}
			case protoreflect.BoolKind:
				m.Set(fd, protoreflect.ValueOfBool(!v.Bool()))
				return "" // the same as cleared
			case protoreflect.EnumKind:
				m.Set(fd, protoreflect.ValueOfEnum(v.Enum()+50))
			case protoreflect.Int32Kind:
				m.Set(fd, protoreflect.ValueOfInt32(int32(v.Int())+1))
			case protoreflect.Int64Kind:
				m.Set(fd, protoreflect.ValueOfInt64(v.Int()+1))
			case protoreflect.DoubleKind:
				m.Set(fd, protoreflect.ValueOfFloat64(v.Float()+0.5))
			}
			return at + " changed"
		}
	}
	return ""
}

// TestCanonicalRefuses what would make two different definitions look equal, or equal ones different.
func TestCanonicalRefuses(t *testing.T) {
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1)
	for name, change := range map[string]func(*sagadv1.Definition){
		"field-unknown at the top": func(d *sagadv1.Definition) { d.ProtoReflect().SetUnknown(unknown) },
		"field-unknown in a list":  func(d *sagadv1.Definition) { d.Activities[0].ProtoReflect().SetUnknown(unknown) },
		"field-unknown deep": func(d *sagadv1.Definition) {
			d.Body[0].GetStep().Retry.Initial = durationpb.New(1)
			d.Body[0].GetStep().Retry.Initial.ProtoReflect().SetUnknown(unknown)
		},
		"schema":  func(d *sagadv1.Definition) { d.InputSchema = "{" },
		"schema2": func(d *sagadv1.Definition) { d.OutputSchema = `{"a":1,"a":2}` },
		"text":    func(d *sagadv1.Definition) { d.Description = "\xff" },
	} {
		t.Run(name, func(t *testing.T) {
			d := orderDefinition(t)
			change(d)
			if c, err := Canonical(d); err == nil {
				t.Errorf("no error: %s", c)
			}
			if _, err := Hash(d); err == nil {
				t.Error("it has a hash")
			}
			if m, problems := Compile(d); m != nil || len(problems) == 0 {
				t.Error("it compiles")
			}
		})
	}
}

// TestCanonicalStrings pins how texts are written, independently of any library.
func TestCanonicalStrings(t *testing.T) {
	c, err := Canonical(&sagadv1.Definition{Description: "\"\\/\b\f\n\r\t\x00\x1f\x7f<>&\u2028é😀"})
	if want := `{"description":"\"\\/\u0008\u000c\u000a\u000d\u0009\u0000\u001f` + "\x7f<>&\u2028é😀" + `"}`; err != nil || string(c) != want {
		t.Errorf("%v %s, want %s", err, c, want)
	}
}

func rewriting() bool {
	f := flag.Lookup("rewrite")
	return f != nil && f.Value.String() == "true"
}

// golden compares with a file, or writes it with -rewrite.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if rewriting() {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want := sourceOf(t, path); got != want {
		t.Errorf("%s differs; run with -rewrite and read the difference if that is meant. Got:\n%s\nwant:\n%s", path, got, want)
	}
}
