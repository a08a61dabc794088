package statemachine

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

const (
	orderIn   = `{"type":"object","properties":{"id":{"type":"string"},"cents":{"type":"integer"}},"required":["id","cents"],"additionalProperties":false}`
	chargeIn  = `{"type":"object","properties":{"order":{"type":"string"},"cents":{"type":"integer","minimum":1},"ref":{"type":"string"}},"required":["order"],"additionalProperties":false}`
	reference = `{"type":"object","properties":{"ref":{"type":"string"}},"required":["ref"]}`
)

func mapped(t *testing.T) *Machine {
	fields := func(pairs ...string) *sagadv1.Mapping {
		m := &sagadv1.Mapping{Fields: map[string]string{}}
		for i := 0; i < len(pairs); i += 2 {
			m.Fields[pairs[i]] = pairs[i+1]
		}
		return m
	}
	m, problems := Compile(&sagadv1.Definition{
		Name: "mapped", InputSchema: orderIn, OutputSchema: reference,
		Activities: []*sagadv1.Activity{
			{Name: "charge", InputSchema: chargeIn, OutputSchema: reference}, {Name: "reserve", InputSchema: orderIn, OutputSchema: reference},
		},
		Body: []*sagadv1.Node{
			{Kind: &sagadv1.Node_Step{Step: &sagadv1.Step{Name: "a", Activity: "reserve", Kind: sagadv1.Kind_KIND_COMPENSATABLE, Input: fields("id", "input.id", "cents", "input.cents")}}},
			{Kind: &sagadv1.Node_Step{Step: &sagadv1.Step{Name: "b", Activity: "charge", Kind: sagadv1.Kind_KIND_PIVOT, Input: fields("order", "input.id", "cents", "input.cents", "ref", "a.ref")}}},
			{Kind: &sagadv1.Node_Return{Return: &sagadv1.Return{Output: fields("ref", "b.ref")}}},
		},
	})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return m
}

// thorough is m without what was proven at compile time.
func thorough(m *Machine) *Machine {
	c := *m
	c.steps = append([]step(nil), m.steps...)
	for i := range c.steps {
		c.steps[i].in.fits = false
	}
	c.bodies = slices.Clone(m.bodies)
	nodes := slices.Clone(m.bodies[0].nodes)
	for i := range nodes {
		nodes[i].output.fits = false
	}
	c.bodies[0].nodes = nodes
	return &c
}

// What needs no validation is decided as it is with one; what needs one has it.
func TestInputsThatNeedNoValidation(t *testing.T) {
	m := mapped(t)
	if !m.steps[0].in.fits || m.steps[1].in.fits || !m.bodies[0].nodes[2].output.fits {
		t.Fatal("a: types leave nothing open; b: cents has a minimum; return: types leave nothing open")
	}
	for _, tt := range []struct {
		input string
		end   Status
	}{
		{`{"id":"o-1","cents":5}`, Completed},
		{`{ "cents" : 5.0, "id" : "\u0061" }`, Completed},
		{`{"id":"o-1","cents":0}`, Compensating}, // charge wants at least 1
	} {
		if err := m.CheckInput([]byte(tt.input)); err != nil {
			t.Fatal(err)
		}
		var last [2]Decision
		for i, m := range []*Machine{m, thorough(m)} {
			d, err := m.Decide(nil, Start{Namespace: "n", SagaID: "s", Version: 1, Input: []byte(tt.input)}, 1_000_000, 1)
			for _, step := range []string{"a", "b"} {
				if err == nil && len(d.Dispatch) > 0 && d.Dispatch[0] == (Call{Step: step, Dir: do}) {
					d, err = m.Decide(d.State, Result{
						Call: d.Dispatch[0], Generation: 1, Attempt: 1, Outcome: historyv1.Outcome_OUTCOME_SUCCEEDED, Output: []byte(`{"ref":"r"}`),
					}, 2_000_000, 2)
				}
			}
			if err != nil || d.State.Status != tt.end {
				t.Fatal(tt.input, err, d.State.Status)
			}
			last[i] = d
		}
		if diff := cmp.Diff(last[0].Transition, last[1].Transition, protocmp.Transform()); diff != "" {
			t.Error(tt.input, diff)
		}
	}
}

// A document that nothing has held to its schema is no ground to leave a validation out.
func TestUnprovenDocumentsAreValidated(t *testing.T) {
	m := mapped(t)
	d := decider{m: m, s: m.empty()}
	d.s.Steps[1].Do.Output = []byte(`{"ref":1}`)
	if _, err := d.build(&m.bodies[0].nodes[2].output, m.output, where{}); err == nil {
		t.Error("the output of a step that didn't succeed was taken for proven")
	}
	d.s.Steps[1].Do.Phase, d.s.Steps[1].Do.OutputKnown, d.s.Steps[1].Do.Output = Succeeded, true, []byte(`{"ref":"r"}`)
	if doc, err := d.build(&m.bodies[0].nodes[2].output, m.output, where{}); err != nil || string(doc) != `{"ref":"r"}` {
		t.Errorf("%s, %v", doc, err)
	}
}
