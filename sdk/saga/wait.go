package saga

import (
	"fmt"
	"reflect"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// WaitOption is an option of a [Wait]: [Timeout].
type WaitOption interface {
	wait(b *builder, w *sagadv1.Wait)
}

// ApproveOption is an option of an [Approve]: [Title], [Timeout].
type ApproveOption interface {
	approve(b *builder, w *sagadv1.Wait)
}

// WaitNode is a node that waits for a signal or for a person's answer.
type WaitNode struct {
	placed
	name            string
	signal          string
	payload         reflect.Type
	options         []func(b *builder, w *sagadv1.Wait)
	arms            bool
	then, otherwise []Node
}

// Wait waits for a signal; one that came earlier is taken at once. What follows reads the payload by the wait's name. If nothing
// comes in time the saga unwinds, unless [WaitNode.Otherwise] says what else is done.
func Wait[T any](name string, signal Signal[T], opts ...WaitOption) WaitNode {
	w := WaitNode{name: name, signal: signal.Name, payload: reflect.TypeFor[T]()}
	for _, o := range opts {
		if o == nil {
			w.options = append(w.options, nil)
			continue
		}
		w.options = append(w.options, o.wait)
	}
	return w
}

// Approve asks a person and waits for the answer, a T, which what follows reads by the wait's name. The question, its [Title], stands
// in the operations queue.
func Approve[T any](name string, opts ...ApproveOption) WaitNode {
	w := WaitNode{name: name, payload: reflect.TypeFor[T]()}
	w.options = append(w.options, func(b *builder, p *sagadv1.Wait) {
		p.Approval = &sagadv1.Approval{FormSchema: b.schema(fmt.Sprintf("wait %s, the answer", name), w.payload)}
	})
	for _, o := range opts {
		if o == nil {
			w.options = append(w.options, nil)
			continue
		}
		w.options = append(w.options, o.approve)
	}
	return w
}

// Then adds nodes that run when it was received. With it, as with Otherwise, the wait has two ways: only what runs here can read the
// payload, and when the time is up the saga goes on by the other.
func (n WaitNode) Then(nodes ...Node) WaitNode {
	n.arms, n.then = true, append(n.then[:len(n.then):len(n.then)], nodes...)
	return n
}

// Otherwise adds nodes that run when the time is up. Without nodes, the saga just goes on.
func (n WaitNode) Otherwise(nodes ...Node) WaitNode {
	n.arms, n.otherwise = true, append(n.otherwise[:len(n.otherwise):len(n.otherwise)], nodes...)
	return n
}

func (n WaitNode) define(b *builder) { b.def.Body = append(b.def.Body, n.node(b)) }

func (n WaitNode) node(b *builder) *sagadv1.Node {
	b.used[n.name] = true
	out := &sagadv1.Wait{Name: n.name, Signal: n.signal, HasOtherwise: n.arms}
	if n.signal != "" {
		b.signal(n.name, n.signal, n.payload)
	}
	for _, o := range n.options {
		if o == nil {
			b.fail(fmt.Errorf("wait %s: an option is nil: leave it out", n.name))
			continue
		}
		o(b, out)
	}
	out.Received, out.Otherwise = b.nodes(n.then), b.nodes(n.otherwise)
	return &sagadv1.Node{Kind: &sagadv1.Node_Wait{Wait: out}}
}

func (t timeout) wait(_ *builder, w *sagadv1.Wait) { w.Timeout = durationpb.New(time.Duration(t)) }

func (t timeout) approve(b *builder, w *sagadv1.Wait) { t.wait(b, w) }

type title string

// Title is the question that a person is asked: a CEL expression of a string.
func Title(expression string) ApproveOption { return title(expression) }

func (t title) approve(_ *builder, w *sagadv1.Wait) { w.Approval.Title = string(t) }

// SignalName is the signal's name in definitions. Package client asks for it.
func (s Signal[T]) SignalName() string { return s.Name }

// SignalPayload writes what the signal says as JSON. Package client asks for it.
func (s Signal[T]) SignalPayload(payload T) ([]byte, error) { return Encode(payload) }
