package saga

import (
	"fmt"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// Node is a place in a sequence: [Do], [Read], [Pivot], [Retriable], [Child], [Parallel], [Any], [AtLeast], [If], [Switch], [Loop],
// [Map], [Savepoint], [Sleep], [Wait], [Approve] or [Return].
type Node interface {
	Part
	Element
	LoopPart
	MapPart
	BranchPart
	Contender
	node(b *builder) *sagadv1.Node
}

// placed is part of each node, and lets it stand wherever nodes may.
type placed struct{}

func (placed) element()    {}
func (placed) loopPart()   {}
func (placed) mapPart()    {}
func (placed) branchPart() {}
func (placed) contender()  {}

// Element is what a [Parallel] or an [If] is made of: nodes, branches, and its [Name].
type Element interface{ element() }

// Name names a [Parallel] or an [If] in histories and pictures. Without it they are called p1, p2, ... and if1, if2, ...
// in their order. The rule is that of steps.
type Name string

func (Name) element() {}

type stepNode struct {
	placed
	name     string
	kind     sagadv1.Kind
	contract contract
	opts     []StepOption
}

// Do is a compensatable step: it is undone if a later step fails. Step names are lower-case letters, digits and '_',
// starting with a letter; later expressions read the step's output by its name.
func Do[In, Out any](name string, activity Compensatable[In, Out], opts ...StepOption) Node {
	return stepNode{placed{}, name, sagadv1.Kind_KIND_COMPENSATABLE, contractOf[In, Out](activity.Name, activity.Probe, activity.Claimed), opts}
}

// Read is a step that changes nothing.
func Read[In, Out any](name string, activity ReadOnly[In, Out], opts ...StepOption) Node {
	return stepNode{placed{}, name, sagadv1.Kind_KIND_READ_ONLY, contractOf[In, Out](activity.Name, false, activity.Claimed), opts}
}

// Pivot is the point of no return: before it a failing saga is undone, after it it is finished.
func Pivot[In, Out any](name string, activity Activity[In, Out], opts ...StepOption) Node {
	return stepNode{placed{}, name, sagadv1.Kind_KIND_PIVOT, contractOf[In, Out](activity.Name, activity.Probe, activity.Claimed), opts}
}

// Retriable is a step after the pivot, which must in the end succeed.
func Retriable[In, Out any](name string, activity Activity[In, Out], opts ...StepOption) Node {
	return stepNode{placed{}, name, sagadv1.Kind_KIND_RETRIABLE, contractOf[In, Out](activity.Name, activity.Probe, activity.Claimed), opts}
}

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

// BranchPart is what a [Branch] is made of: nodes, and of branches of an [Any] or an [AtLeast] an [Output].
type BranchPart interface{ branchPart() }

// BranchOf is a branch of a [Parallel], an [Any] or an [AtLeast].
type BranchOf struct{ parts []BranchPart }

// Branch is a branch that has more than one node, or an [Output].
func Branch(parts ...BranchPart) BranchOf { return BranchOf{parts} }

func (BranchOf) element()   {}
func (BranchOf) contender() {}

func (br BranchOf) branch(b *builder, where string) *sagadv1.Branch {
	out := &sagadv1.Branch{}
	for _, p := range br.parts {
		switch p := p.(type) {
		case Node:
			out.Body = append(out.Body, p.node(b))
		case output:
			p.set(b, where, &out.Output)
		default:
			b.fail(fmt.Errorf("%s: a part of a branch is nil: leave it out", where))
		}
	}
	return out
}

type parallelNode struct {
	placed
	elements []Element
}

// Parallel runs its branches at the same time and goes on when all are done. Each node is a branch of its own; [Branch] makes one of
// several nodes. Branches don't see each other's outputs; what follows sees all.
func Parallel(elements ...Element) Node { return parallelNode{elements: elements} }

func (p parallelNode) define(b *builder) { b.def.Body = append(b.def.Body, p.node(b)) }

func (p parallelNode) node(b *builder) *sagadv1.Node {
	out := &sagadv1.Parallel{}
	b.name(p.elements, "p", &out.Name)
	for _, e := range p.elements {
		switch e := e.(type) {
		case Name:
		case BranchOf:
			out.Branches = append(out.Branches, e.branch(b, "parallel "+out.Name))
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
	placed
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

func (n IfNode) define(b *builder) { b.def.Body = append(b.def.Body, n.node(b)) }

func (n IfNode) node(b *builder) *sagadv1.Node {
	out := &sagadv1.If{Condition: n.condition}
	b.name(n.then, "if", &out.Name)
	for _, e := range n.then {
		switch e := e.(type) {
		case Name:
		case BranchOf:
			inner := e.branch(b, fmt.Sprintf("if %q", n.condition))
			if inner.Output != nil {
				b.fail(fmt.Errorf("if %q: an output belongs to branches of saga.Any and saga.AtLeast: leave it out", n.condition))
			}
			out.Then = append(out.Then, inner.Body...)
		case Node:
			out.Then = append(out.Then, e.node(b))
		default:
			b.fail(fmt.Errorf("if %q: a node is nil: leave it out", n.condition))
		}
	}
	out.Else = b.nodes(n.otherwise)
	return &sagadv1.Node{Kind: &sagadv1.Node_If{If: out}}
}

type returnNode struct {
	placed
	mapping Mapping
}

// Return ends the definition with the saga's output. It is the last node, and may be left out.
func Return(output Mapping) Node { return returnNode{mapping: output} }

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
