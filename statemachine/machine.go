package statemachine

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/sagad/sagad/internal/expr"
	"github.com/sagad/sagad/internal/retry"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// Machine is a verified definition, ready to decide. It is never changed and may be used by many goroutines.
type Machine struct {
	def      *sagadv1.Definition
	hash     [32]byte
	hashText string
	input    *expr.Schema
	output   *expr.Schema
	deadline int64
	undoMax  int
	steps    []step
	byName   map[string]int
	ifs      []string
	body     []node
}

// step is a step of the machine. Times are in microseconds.
type step struct {
	name, activity      string
	kind                sagadv1.Kind
	timeout             int64
	retry               retry.Policy
	hold                bool
	undoTimeout         int64
	undoRetry           retry.Policy
	letPass             bool
	in                  mapping
	inSchema, outSchema *expr.Schema
	// before are the steps that are settled when this one starts, of whatever branch.
	before []int
}

// mapping builds a JSON document. The zero mapping builds null.
type mapping struct {
	object *expr.Object
	value  *expr.Program
	// fits: what it builds of documents that fit their schemas needs no validation.
	fits bool
}

// eval builds the document. docs are in the order of refs.
func (m *mapping) eval(docs []json.RawMessage) ([]byte, error) {
	switch {
	case m.object != nil:
		return m.object.EvalDocs(docs)
	case m.value != nil:
		return m.value.EvalDocs(docs)
	default:
		return []byte("null"), nil
	}
}

func (m *mapping) refs() []string {
	switch {
	case m.object != nil:
		return m.object.Refs()
	case m.value != nil:
		return m.value.Refs()
	default:
		return nil
	}
}

type nodeKind uint8

const (
	stepNode nodeKind = iota
	parallelNode
	ifNode
	returnNode
)

// node is a place in the tree of steps.
type node struct {
	kind nodeKind
	// index of the step or of the if.
	index int
	// branches of a parallel; then and else of an if.
	branches  [][]node
	condition *expr.Program
	output    mapping
}

// returnStep names the return in items and problems. It can't be a step's name.
const returnStep = "return"

// Compile verifies a definition and makes a machine of it. If there are problems there is no machine.
func Compile(def *sagadv1.Definition) (*Machine, []*sagadv1.Problem) {
	v := verifier{def: def, m: &Machine{def: proto.CloneOf(def), byName: map[string]int{}}}
	v.definition()
	if len(v.problems) > 0 {
		return nil, v.problems
	}
	return v.m, nil
}

// Definition is what the machine was made of. It must not be changed.
func (m *Machine) Definition() *sagadv1.Definition { return m.def }

// Hash of the definition's canonical form, in hexadecimal.
func (m *Machine) Hash() string { return m.hashText }

// CheckInput says whether a saga may start with this input: storable JSON that fits the schema.
func (m *Machine) CheckInput(input []byte) error {
	if len(input) > payloadBytesMax {
		return &Refusal{Code: CodeTooLarge, Message: fmt.Sprintf("input has %d bytes; the limit is %d: put large data elsewhere and pass a reference", len(input), payloadBytesMax)}
	}
	if err := m.input.Validate(input); err != nil {
		return &Refusal{Code: RefusedInput, Message: "input " + err.Error()}
	}
	return nil
}
