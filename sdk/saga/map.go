package saga

import (
	"fmt"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// MapPart is what a [Map] is made of: nodes, [Window], [Tolerate] and [Output].
type MapPart interface{ mapPart() }

type mapNode struct {
	placed
	name, items string
	parts       []MapPart
}

// Map runs its nodes once for each element of a list, items, a CEL expression; 10,000 elements at most. Inside, the map's name is
// {"index": 0, 1, ..., "item": the element}; after it {"done": n, "failed": m} and, if there is an [Output], "results", a list in the
// elements' order of {"ok": true, "output": ...} and {"ok": false, "code": ..., "message": ...}.
func Map(name, items string, parts ...MapPart) Node {
	return mapNode{name: name, items: items, parts: parts}
}

func (m mapNode) define(b *builder) { b.def.Body = append(b.def.Body, m.node(b)) }

func (m mapNode) node(b *builder) *sagadv1.Node {
	b.used[m.name] = true
	out := &sagadv1.Map{Name: m.name, Items: m.items}
	for _, p := range m.parts {
		switch p := p.(type) {
		case Node:
			out.Body = append(out.Body, p.node(b))
		case Window:
			out.Window = b.count("map "+m.name+": Window", int(p), 1000)
		case Tolerate:
			out.Tolerate = b.count("map "+m.name+": Tolerate", int(p), 10_000)
		case output:
			p.set(b, "map "+m.name, &out.Output)
		default:
			b.fail(fmt.Errorf("map %s: a part is nil: leave it out", m.name))
		}
	}
	return &sagadv1.Node{Kind: &sagadv1.Node_Map{Map: out}}
}

// Window is how many elements of a [Map] run at the same time, 1 to 1000. Default 16.
type Window int

func (Window) mapPart() {}

// Tolerate is how many elements of a [Map] may fail: they are undone, and the others go on. Default: none.
type Tolerate int

func (Tolerate) mapPart() {}

// OutputOption goes with maps and with branches.
type OutputOption interface {
	MapPart
	BranchPart
}

type output struct{ mapping Mapping }

// Output is what an element of a [Map], or a [Branch] of an [Any] or an [AtLeast], says. It reads what the last of the nodes could.
func Output(value Mapping) OutputOption { return output{value} }

func (output) mapPart()    {}
func (output) branchPart() {}

func (o output) set(b *builder, where string, to **sagadv1.Mapping) {
	setOnce(b, where, "Output", o.mapping, to)
}
