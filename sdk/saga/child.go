package saga

import (
	"fmt"
	"reflect"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"

	"github.com/sagad/sagad/statemachine"
)

// ChildOf is what a [Child] runs: a [Definition], or [Named] if that isn't at hand.
type ChildOf interface {
	child(b *builder, where string, c *sagadv1.Child)
}

// ChildOption is an option of a [Child]: [Fields] or [Value], [Version], [Returns].
type ChildOption interface {
	childOption(b *builder, c *sagadv1.Child)
}

type childNode struct {
	placed
	name string
	kind sagadv1.Kind
	of   ChildOf
	opts []ChildOption
}

// Child runs another saga of the same namespace and waits for its end. If this saga unwinds the child unwinds in its turn, so its
// definition may have no pivot. What follows reads the child's output by its name; its type is the definition's.
func Child(name string, of ChildOf, opts ...ChildOption) Node {
	return childNode{name: name, kind: sagadv1.Kind_KIND_COMPENSATABLE, of: of, opts: opts}
}

// RetriableChild is a [Child] after the pivot, which must in the end complete.
func RetriableChild(name string, of ChildOf, opts ...ChildOption) Node {
	return childNode{name: name, kind: sagadv1.Kind_KIND_RETRIABLE, of: of, opts: opts}
}

func (c childNode) define(b *builder) { b.def.Body = append(b.def.Body, c.node(b)) }

func (c childNode) node(b *builder) *sagadv1.Node {
	b.used[c.name] = true
	out := &sagadv1.Child{Name: c.name, Kind: c.kind}
	if c.of == nil {
		b.fail(fmt.Errorf("child %s: what it runs is nil: give a definition, or saga.Named", c.name))
	} else {
		c.of.child(b, "child "+c.name, out)
	}
	for _, o := range c.opts {
		if o == nil {
			b.fail(fmt.Errorf("child %s: an option is nil: leave it out", c.name))
			continue
		}
		o.childOption(b, out)
	}
	return &sagadv1.Node{Kind: &sagadv1.Node_Child{Child: out}}
}

func (d *Definition[In, Out]) child(b *builder, where string, c *sagadv1.Child) {
	if d == nil {
		b.fail(fmt.Errorf("%s: its definition is nil", where))
		return
	}
	if d.err != nil {
		b.fail(fmt.Errorf("%s: %w", where, d.err))
	}
	c.Definition, c.OutputSchema = d.Name(), d.proto.GetOutputSchema()
	if pivot := pivotOf(d.proto.GetBody()); pivot != "" && c.Kind == sagadv1.Kind_KIND_COMPENSATABLE {
		b.fail(fmt.Errorf("%s: %s has a pivot, %s, so it can't be undone if this saga unwinds: use saga.RetriableChild, after this saga's pivot", where, d.Name(), pivot))
	}
}

// pivotOf is the first pivot among nodes, or "".
func pivotOf(nodes []*sagadv1.Node) string {
	for _, n := range nodes {
		if s := n.GetStep(); s.GetKind() == sagadv1.Kind_KIND_PIVOT {
			return s.GetName()
		}
		for _, body := range statemachine.Bodies(n) {
			if p := pivotOf(body); p != "" {
				return p
			}
		}
	}
	return ""
}

// Named is a definition by its name, for a [Child] whose definition isn't at hand. [Returns] says what it returns.
type Named string

func (n Named) child(_ *builder, _ string, c *sagadv1.Child) { c.Definition = string(n) }

func (f Fields) childOption(b *builder, c *sagadv1.Child) {
	setOnce(b, "child "+c.Name, "the input", f, &c.Input)
}

func (v Value) childOption(b *builder, c *sagadv1.Child) {
	setOnce(b, "child "+c.Name, "the input", v, &c.Input)
}

// Version is which version of its definition a [Child] runs. Default: the latest when it starts.
type Version int32

func (v Version) childOption(_ *builder, c *sagadv1.Child) { c.Version = int32(v) }

type returns struct{ t reflect.Type }

// Returns says what a [Child] of a [Named] definition returns. Default: anything.
func Returns[T any]() ChildOption { return returns{reflect.TypeFor[T]()} }

func (r returns) childOption(b *builder, c *sagadv1.Child) {
	c.OutputSchema = b.schema(fmt.Sprintf("child %s, its output", c.Name), r.t)
}
