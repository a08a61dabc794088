package saga

import (
	"fmt"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// LoopPart is what a [Loop] is made of: nodes, [Initial], [Next] and [While].
type LoopPart interface{ loopPart() }

type loopNode struct {
	placed
	name  string
	most  int
	parts []LoopPart
}

// Loop runs its nodes again and again, at most so many rounds, 1 to 1000, while [While] holds after a round. Inside, the loop's name is
// {"index": 0, 1, ..., "value": [Initial], then what [Next] said}; after it {"rounds": how many, "value": the last one}. If another round is
// due after the last one the loop has failed.
func Loop(name string, maxRounds int, parts ...LoopPart) Node {
	return loopNode{name: name, most: maxRounds, parts: parts}
}

func (l loopNode) define(b *builder) { b.def.Body = append(b.def.Body, l.node(b)) }

func (l loopNode) node(b *builder) *sagadv1.Node {
	b.used[l.name] = true
	out := &sagadv1.Loop{Name: l.name, MaxRounds: b.count("loop "+l.name+": the number of rounds", l.most, 1000)}
	for _, p := range l.parts {
		switch p := p.(type) {
		case Node:
			out.Body = append(out.Body, p.node(b))
		case initial:
			setOnce(b, "loop "+l.name, "Initial", p.Mapping, &out.Initial)
		case next:
			setOnce(b, "loop "+l.name, "Next", p.Mapping, &out.Next)
		case While:
			if out.While != "" {
				b.fail(fmt.Errorf("loop %s: While is given twice: give it once", l.name))
			}
			out.While = string(p)
		default:
			b.fail(fmt.Errorf("loop %s: a part is nil: leave it out", l.name))
		}
	}
	return &sagadv1.Node{Kind: &sagadv1.Node_Loop{Loop: out}}
}

// setOnce takes a mapping that may be given once.
func setOnce(b *builder, where, what string, m Mapping, to **sagadv1.Mapping) {
	switch {
	case m == nil:
		b.fail(fmt.Errorf("%s: %s is nil: give saga.Fields or saga.Value, or leave it out", where, what))
	case *to != nil:
		b.fail(fmt.Errorf("%s: %s is given twice: give it once", where, what))
	default:
		*to = m.mapping()
	}
}

type initial struct{ Mapping }

// Initial is the value that the first round of a [Loop] reads. Default null.
func Initial(value Mapping) LoopPart { return initial{value} }

func (initial) loopPart() {}

type next struct{ Mapping }

// Next is the value after a round of a [Loop]. It reads what the last of the nodes could. Default: the value stays.
func Next(value Mapping) LoopPart { return next{value} }

func (next) loopPart() {}

// While says, after a round of a [Loop], whether there is another one: a CEL expression of a boolean. It reads what [Next] does.
type While string

func (While) loopPart() {}
