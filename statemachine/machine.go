package statemachine

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

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
	// places are the nodes that have a state of their own, steps apart: ifs, switches, sleeps, waits and blocks.
	places  []place
	placeOf map[string]int
	signals map[string]*expr.Schema
	// bodies are what scopes run; the first one is the definition's own.
	bodies []body
	// pivots are the steps that are pivots.
	pivots []int
	// children says that some step runs another saga.
	children bool
}

// body is a sequence with a state of its own each time that it runs: the definition's, or that of an element, a round, a path or a
// branch. Arms of ifs, switches and waits, and branches of a parallel that joins all, belong to the body that they stand in.
type body struct {
	nodes []node
	// steps and places that stand in it, in order. Each knows its slot here.
	steps, places []int
	// owner is the place whose scopes run it; -1 of the definition's own. index is its number among the owner's bodies.
	owner, index int
	// depth is how many bodies it stands in: 0 for the definition's own.
	depth int
	// output is what a scope says at its end.
	output mapping
	// chain are the bodies that lead to this one, from the definition's own, itself included.
	chain []int
}

// step is a step of the machine. Times are in microseconds.
type step struct {
	name, activity      string
	kind                sagadv1.Kind
	timeout             int64
	heartbeat           int64
	retry               retry.Policy
	hold                bool
	undoTimeout         int64
	undoRetry           retry.Policy
	letPass             bool
	in                  mapping
	inSchema, outSchema *expr.Schema
	// probe: its activity can be asked whether it happened. claimed: no two attempts of it run at once.
	probe, claimed bool
	// child: it runs another saga; activity is that one's definition.
	child        bool
	childVersion int32
	// body and slot are where it stands. indexed says that its calls have an item: it stands in a map or a loop.
	body, slot int
	indexed    bool
}

// place is a node with a state of its own. Times are in microseconds.
type place struct {
	name string
	kind nodeKind
	// body and slot are where it stands. indexed: in a map or a loop.
	body, slot int
	indexed    bool

	// Of sleeps: one of three.
	duration     int64
	lasts, until *expr.Program

	// Of waits. timeout 0: none. schema is the payload's or the answer's. title is set of those that ask a person.
	signal    string
	timeout   int64
	otherwise bool
	title     *expr.Program
	schema    *expr.Schema

	// bodies of blocks: one of maps and loops, the body's and the alternatives' of savepoints, the branches' of races.
	bodies []int
	// Of maps.
	items            *expr.Program
	window, tolerate int
	// results: elements say something.
	results bool
	// Of loops.
	rounds        int
	initial, next mapping
	// keep: the value stays what it was.
	keep  bool
	while *expr.Program
	// Of savepoints, for each alternative; nil: always.
	conditions []*expr.Program
	// Of races: how many branches must be done.
	need int
	// Of switches: how many cases there are, the default apart.
	cases int
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
	sleepNode
	waitNode
	switchNode
	loopNode
	mapNode
	savepointNode
	// raceNode is a parallel that doesn't join all.
	raceNode
)

// node is a place in the tree of steps.
type node struct {
	kind nodeKind
	// index of the step, or of the place. Parallels that join all and returns have none.
	index int
	// branches of a parallel that joins all; then and else of an if; the cases and, last, the default of a switch; received and otherwise
	// of a wait that has both.
	branches [][]node
	// conditions of an if (one) or of a switch's cases.
	conditions []*expr.Program
	output     mapping
}

// returnStep names the return in items and problems. It can't be a step's name.
const returnStep = "return"

// Compile verifies a definition and makes a machine of it. If there are problems there is no machine.
func Compile(def *sagadv1.Definition) (*Machine, []*sagadv1.Problem) {
	v := verifier{def: def, m: &Machine{def: proto.CloneOf(def), byName: map[string]int{}, placeOf: map[string]int{}}}
	v.definition()
	if len(v.problems) > 0 {
		return nil, v.problems
	}
	v.m.link()
	return v.m, nil
}

// link finds what follows from the rest.
func (m *Machine) link() {
	for i := range m.bodies {
		b := &m.bodies[i]
		for j := i; ; j = m.places[m.bodies[j].owner].body {
			b.chain = append(b.chain, j)
			if m.bodies[j].owner < 0 {
				break
			}
		}
		slices.Reverse(b.chain)
	}
	var count func([]node)
	count = func(nodes []node) {
		for i := range nodes {
			if n := &nodes[i]; n.kind == switchNode {
				m.places[n.index].cases = len(n.conditions)
			}
			for _, b := range nodes[i].branches {
				count(b)
			}
		}
	}
	for i := range m.bodies {
		count(m.bodies[i].nodes)
	}
	for i := range m.steps {
		if m.steps[i].kind == sagadv1.Kind_KIND_PIVOT {
			m.pivots = append(m.pivots, i)
		}
	}
}

// frame finds the run of a body at an item, or nil.
func (m *Machine) frame(s *State, body int, item string) *Frame {
	f := &s.Frame
	if body == 0 {
		if item != "" {
			return nil
		}
		return f
	}
	chain := m.bodies[body].chain
	for _, b := range chain[1:] {
		var index int
		if index, item = m.scope(b, item); index < 0 {
			return nil
		}
		frames := f.Places[m.places[m.bodies[b].owner].slot].frames
		if index >= len(frames) || frames[index] == nil {
			return nil
		}
		f = frames[index]
	}
	if item != "" {
		return nil
	}
	return f
}

// scope says which scope of its owner a body's run is, and what is left of the item; -1 if the item doesn't fit.
func (m *Machine) scope(body int, item string) (int, string) {
	b := &m.bodies[body]
	if k := m.places[b.owner].kind; k != mapNode && k != loopNode {
		return b.index, item
	}
	head, rest, _ := strings.Cut(item, ".")
	if head == "" || len(head) > 5 || head[0] == '0' && len(head) > 1 {
		return -1, ""
	}
	n := 0
	for i := range len(head) {
		if head[i] < '0' || head[i] > '9' {
			return -1, ""
		}
		n = 10*n + int(head[i]-'0')
	}
	return n, rest
}

// itemOf is the item of a scope of a place that itself stands at item.
func (m *Machine) itemOf(p *place, item string, index int) string {
	if p.kind != mapNode && p.kind != loopNode {
		return item
	}
	if item == "" {
		return strconv.Itoa(index)
	}
	return item + "." + strconv.Itoa(index)
}

// outer is the item of what a body's owner stands at.
func (m *Machine) outer(body int, item string) string {
	if k := m.places[m.bodies[body].owner].kind; k != mapNode && k != loopNode {
		return item
	}
	if i := strings.LastIndexByte(item, '.'); i >= 0 {
		return item[:i]
	}
	return ""
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
