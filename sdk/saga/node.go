package saga

import (
	"fmt"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// Node is a place in a sequence: [Do], [Read], [Pivot], [Retriable], [Parallel], [If] or [Return].
type Node interface {
	Part
	Element
	node(b *builder) *sagadv1.Node
}

// Element is what a [Parallel] or an [If] is made of: nodes, branches, and its [Name].
type Element interface{ element() }

// Name names a [Parallel] or an [If] in histories and pictures. Without it they are called p1, p2, ... and if1, if2, ...
// in their order. The rule is that of steps.
type Name string

func (Name) element() {}

type stepNode struct {
	name     string
	kind     sagadv1.Kind
	contract contract
	opts     []StepOption
}

// Do is a compensatable step: it is undone if a later step fails. Step names are lower-case letters, digits and '_',
// starting with a letter; later expressions read the step's output by its name.
func Do[In, Out any](name string, activity Compensatable[In, Out], opts ...StepOption) Node {
	return stepNode{name, sagadv1.Kind_KIND_COMPENSATABLE, contractOf[In, Out](activity.Name), opts}
}

// Read is a step that changes nothing.
func Read[In, Out any](name string, activity ReadOnly[In, Out], opts ...StepOption) Node {
	return stepNode{name, sagadv1.Kind_KIND_READ_ONLY, contractOf[In, Out](activity.Name), opts}
}

// Pivot is the point of no return: before it a failing saga is undone, after it it is finished.
func Pivot[In, Out any](name string, activity Activity[In, Out], opts ...StepOption) Node {
	return stepNode{name, sagadv1.Kind_KIND_PIVOT, contractOf[In, Out](activity.Name), opts}
}

// Retriable is a step after the pivot, which must in the end succeed.
func Retriable[In, Out any](name string, activity Activity[In, Out], opts ...StepOption) Node {
	return stepNode{name, sagadv1.Kind_KIND_RETRIABLE, contractOf[In, Out](activity.Name), opts}
}

func (stepNode) element() {}

func (s stepNode) define(b *builder) { b.def.Body = append(b.def.Body, s.node(b)) }

func (s stepNode) node(b *builder) *sagadv1.Node {
	b.used[s.name] = true
	b.contract(s.name, s.contract)
	step := &sagadv1.Step{Name: s.name, Activity: s.contract.name, Kind: s.kind}
	for _, o := range s.opts {
		if o == nil {
			b.fail(fmt.Errorf("step %s: an option is nil: leave it out", s.name))
			continue
		}
		o.step(b, step)
	}
	return &sagadv1.Node{Kind: &sagadv1.Node_Step{Step: step}}
}

type branch []Node

// Branch is a branch of a [Parallel] that has more than one node.
func Branch(nodes ...Node) Element { return branch(nodes) }

func (branch) element() {}

type parallelNode struct{ elements []Element }

// Parallel runs its branches at the same time and goes on when all are done. Each node is a branch of its own; [Branch] makes one of
// several nodes. Branches don't see each other's outputs; what follows sees all.
func Parallel(elements ...Element) Node { return parallelNode{elements} }

func (parallelNode) element() {}

func (p parallelNode) define(b *builder) { b.def.Body = append(b.def.Body, p.node(b)) }

func (p parallelNode) node(b *builder) *sagadv1.Node {
	out := &sagadv1.Parallel{}
	b.name(p.elements, "p", &out.Name)
	for _, e := range p.elements {
		switch e := e.(type) {
		case Name:
		case branch:
			out.Branches = append(out.Branches, &sagadv1.Branch{Body: b.nodes(e)})
		case Node:
			out.Branches = append(out.Branches, &sagadv1.Branch{Body: []*sagadv1.Node{e.node(b)}})
		default:
			b.fail(fmt.Errorf("parallel %s: a branch is nil: leave it out", out.Name))
		}
	}
	return &sagadv1.Node{Kind: &sagadv1.Node_Parallel{Parallel: out}}
}

// IfNode is a node that runs one of two sequences.
type IfNode struct {
	condition string
	then      []Element
	otherwise []Node
}

// If runs its nodes, in sequence, if condition, a CEL expression, is true. Otherwise it goes on, or runs the nodes of
// [IfNode.Else]. What follows can't read outputs from inside, since they may not exist.
func If(condition string, then ...Element) IfNode { return IfNode{condition: condition, then: then} }

// Else adds the nodes that are run if the condition is false.
func (n IfNode) Else(nodes ...Node) IfNode {
	n.otherwise = append(n.otherwise[:len(n.otherwise):len(n.otherwise)], nodes...)
	return n
}

func (IfNode) element() {}

func (n IfNode) define(b *builder) { b.def.Body = append(b.def.Body, n.node(b)) }

func (n IfNode) node(b *builder) *sagadv1.Node {
	out := &sagadv1.If{Condition: n.condition}
	b.name(n.then, "if", &out.Name)
	for _, e := range n.then {
		switch e := e.(type) {
		case Name:
		case branch:
			out.Then = append(out.Then, b.nodes(e)...)
		case Node:
			out.Then = append(out.Then, e.node(b))
		default:
			b.fail(fmt.Errorf("if %q: a node is nil: leave it out", n.condition))
		}
	}
	out.Else = b.nodes(n.otherwise)
	return &sagadv1.Node{Kind: &sagadv1.Node_If{If: out}}
}

type returnNode struct{ mapping Mapping }

// Return ends the definition with the saga's output. It is the last node, and may be left out.
func Return(output Mapping) Node { return returnNode{output} }

func (returnNode) element() {}

func (r returnNode) define(b *builder) { b.def.Body = append(b.def.Body, r.node(b)) }

func (r returnNode) node(b *builder) *sagadv1.Node {
	out := &sagadv1.Return{}
	if r.mapping == nil {
		b.fail(fmt.Errorf("return: the output is nil: give saga.Fields or saga.Value, or leave the return out"))
	} else {
		out.Output = r.mapping.mapping()
	}
	return &sagadv1.Node{Kind: &sagadv1.Node_Return{Return: out}}
}

// name takes the Name among elements, or makes one when all given names are known.
func (b *builder) name(elements []Element, prefix string, to *string) {
	for _, e := range elements {
		if n, ok := e.(Name); ok {
			*to = string(n)
			b.used[*to] = true
			return
		}
	}
	b.unnamed = append(b.unnamed, func(number func(string) string) { *to = number(prefix) })
}

func (b *builder) nodes(nodes []Node) []*sagadv1.Node {
	var out []*sagadv1.Node
	for _, n := range nodes {
		if n == nil {
			b.fail(fmt.Errorf("a node is nil: leave it out"))
			continue
		}
		out = append(out, n.node(b))
	}
	return out
}
