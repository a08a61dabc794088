package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

var rewrite = flag.Bool("rewrite", false, "write book-trip.yaml anew")

const file = "book-trip.yaml"

const head = `# The definition of main.go as data, for "sagad definition register". The package's test compares; with -rewrite it writes it.
`

// book-trip.yaml is what main.go defines.
func TestYAML(t *testing.T) {
	if err := BookTrip.Verify(); err != nil {
		t.Fatal(err)
	}
	if *rewrite {
		data, err := protojson.Marshal(BookTrip.Proto())
		if err != nil {
			t.Fatal(err)
		}
		var doc any
		if err := json.Unmarshal(data, &doc); err != nil {
			t.Fatal(err)
		}
		out := bytes.NewBufferString(head)
		enc := yaml.NewEncoder(out)
		enc.SetIndent(2)
		if err := enc.Encode(doc); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var doc any
	if err := yaml.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	if data, err = json.Marshal(doc); err != nil {
		t.Fatal(err)
	}
	got := new(sagadv1.Definition)
	if err := protojson.Unmarshal(data, got); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got, BookTrip.Proto()) {
		t.Errorf("%s isn't what main.go defines: run this test with -rewrite\n%v\n%v", file, got, BookTrip.Proto())
	}
}
