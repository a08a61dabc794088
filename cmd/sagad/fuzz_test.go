package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// FuzzDefinitionFile: whatever is in a definition's file, reading it gives a definition that can be sent, or an error, and soon.
func FuzzDefinitionFile(f *testing.F) {
	example, err := os.ReadFile("../../examples/hello/book-trip.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(example)
	for _, s := range []string{
		"", "null", "{}", `{"name":"a"}`, `{"version":{"definition":{"name":"a"}}}`, `[1,2]`, "name: &a [*a]", "name: .nan", "? [a]\n: b", "<<: {name: a}", "\xff\xfe", "name: !!binary aGk=",
		"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\n" +
			"e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nname: [*g,*g,*g,*g,*g,*g,*g,*g,*g]",
		strings.Repeat("[", 5000), strings.Repeat("- ", 5000), "deadline: 5s\nname: a\nbody: [{step: {name: a, timeout: -1s}}]",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		began := time.Now()
		def, err := readDefinition(&globals{stdin: bytes.NewReader(data)}, "-")
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("it took %v", took)
		}
		if err != nil {
			if len(err.Error()) > 64<<10 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
			return
		}
		if _, err := proto.Marshal(def); err != nil {
			t.Errorf("the definition can't be sent: %v", err)
		}
		text, err := protojson.Marshal(def)
		if err != nil {
			return // a duration that is out of range, which the server refuses
		}
		again, err := readDefinition(&globals{stdin: bytes.NewReader(text)}, "-")
		if err != nil || !proto.Equal(def, again) {
			t.Errorf("%s is read as another definition: %v", text, err)
		}
	})
}
