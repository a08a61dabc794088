package saga

import sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"

// BodyOf is the body of a [Savepoint].
type BodyOf struct{ nodes []Node }

// Body is what a [Savepoint] runs first.
func Body(nodes ...Node) BodyOf { return BodyOf{nodes} }

// AlternativeOf is an alternative of a [Savepoint].
type AlternativeOf struct {
	condition string
	nodes     []Node
}

// Alternative is run, if all before it failed. There may be no nodes: then the saga goes on without. It is the last one.
func Alternative(nodes ...Node) AlternativeOf { return AlternativeOf{nodes: nodes} }

// AlternativeIf is run, if all before it failed and condition, a CEL expression, is true. The savepoint's name is what went wrong.
func AlternativeIf(condition string, nodes ...Node) AlternativeOf {
	return AlternativeOf{condition, nodes}
}

type savepointNode struct {
	placed
	name         string
	body         BodyOf
	alternatives []AlternativeOf
}

// Savepoint runs its body. If that fails, what was done since is undone and the first alternative is run instead; if that fails, the
// next one. In alternatives the savepoint's name is {"step": ..., "code": ..., "message": ...}, what went wrong; after it {"path": 0 for
// the body, 1, 2, ... for an alternative}. What follows can't read outputs from inside.
func Savepoint(name string, body BodyOf, alternatives ...AlternativeOf) Node {
	return savepointNode{name: name, body: body, alternatives: alternatives}
}

func (s savepointNode) define(b *builder) { b.def.Body = append(b.def.Body, s.node(b)) }

func (s savepointNode) node(b *builder) *sagadv1.Node {
	b.used[s.name] = true
	out := &sagadv1.Savepoint{Name: s.name, Body: b.nodes(s.body.nodes)}
	for _, a := range s.alternatives {
		out.Alternatives = append(out.Alternatives, &sagadv1.Alternative{Condition: a.condition, Body: b.nodes(a.nodes)})
	}
	return &sagadv1.Node{Kind: &sagadv1.Node_Savepoint{Savepoint: out}}
}
