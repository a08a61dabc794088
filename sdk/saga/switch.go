package saga

import (
	"fmt"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// SwitchPart is what a [Switch] is made of: [Case] and [Default].
type SwitchPart interface {
	add(b *builder, s *sagadv1.Switch)
}

type switchNode struct {
	placed
	name  string
	parts []SwitchPart
}

// Switch runs the nodes of the first case whose condition holds, else those of its default, which must be there. What follows can't
// read outputs from inside, since they may not exist.
func Switch(name string, parts ...SwitchPart) Node { return switchNode{name: name, parts: parts} }

func (s switchNode) define(b *builder) { b.def.Body = append(b.def.Body, s.node(b)) }

func (s switchNode) node(b *builder) *sagadv1.Node {
	b.used[s.name] = true
	out := &sagadv1.Switch{Name: s.name}
	for _, p := range s.parts {
		if p == nil {
			b.fail(fmt.Errorf("switch %s: a case is nil: leave it out", s.name))
			continue
		}
		p.add(b, out)
	}
	return &sagadv1.Node{Kind: &sagadv1.Node_Switch{Switch: out}}
}

type switchCase struct {
	condition string
	nodes     []Node
}

// Case runs its nodes, of which there may be none, if condition, a CEL expression, is the first that is true.
func Case(condition string, nodes ...Node) SwitchPart { return switchCase{condition, nodes} }

func (c switchCase) add(b *builder, s *sagadv1.Switch) {
	if s.Default != nil {
		b.fail(fmt.Errorf("switch %s: the case %q comes after the default: put the default last", s.Name, c.condition))
	}
	s.Cases = append(s.Cases, &sagadv1.Case{Condition: c.condition, Body: b.nodes(c.nodes)})
}

type switchDefault []Node

// Default runs its nodes, of which there may be none, if no case's condition is true.
func Default(nodes ...Node) SwitchPart { return switchDefault(nodes) }

func (d switchDefault) add(b *builder, s *sagadv1.Switch) {
	if s.Default != nil {
		b.fail(fmt.Errorf("switch %s: it has two defaults: keep one", s.Name))
		return
	}
	s.Default = &sagadv1.Default{Body: b.nodes(d)}
}
