package saga

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// Definition is what a saga is. In is its input, Out what it returns. Make it with [Define]; it doesn't change.
type Definition[In, Out any] struct {
	proto *sagadv1.Definition
	err   error
}

// Part is what a definition is made of: nodes, and options such as [Deadline].
type Part interface{ define(b *builder) }

// Define makes a definition of nodes, from top to bottom, and options. It never fails; [Definition.Verify] says what is wrong. The name is
// lower-case letters, digits, '-' and '_', 63 at most.
func Define[In, Out any](name string, parts ...Part) *Definition[In, Out] {
	b := &builder{def: &sagadv1.Definition{Name: name}, used: map[string]bool{}, activities: map[string]*sagadv1.Activity{}, signals: map[string]*sagadv1.Signal{}}
	b.def.InputSchema = b.schema("the saga's input", reflect.TypeFor[In]())
	b.def.OutputSchema = b.schema("the saga's output", reflect.TypeFor[Out]())
	for _, p := range parts {
		if p == nil {
			b.fail(errors.New("a part of the definition is nil: leave it out"))
			continue
		}
		p.define(b)
	}
	b.finish()
	d := &Definition[In, Out]{proto: b.def}
	if len(b.errs) > 0 {
		d.err = fmt.Errorf("definition %s: %w", name, errors.Join(b.errs...))
	}
	return d
}

// Name is the definition's name.
func (d *Definition[In, Out]) Name() string { return d.proto.GetName() }

// Proto is the definition as the engine gets it: a copy. It is the same for the same definition, byte for byte.
func (d *Definition[In, Out]) Proto() *sagadv1.Definition {
	return proto.Clone(d.proto).(*sagadv1.Definition)
}

// builder collects a definition.
type builder struct {
	def        *sagadv1.Definition
	errs       []error
	used       map[string]bool
	unnamed    []func(number func(prefix string) string)
	activities map[string]*sagadv1.Activity
	signals    map[string]*sagadv1.Signal
}

func (b *builder) fail(err error) { b.errs = append(b.errs, err) }

func (b *builder) schema(what string, t reflect.Type) string {
	s, err := schemaOf(t)
	if err != nil {
		b.fail(fmt.Errorf("%s: %w", what, err))
	}
	return s
}

// contract notes the activity that a step names.
func (b *builder) contract(step string, c contract) {
	a := &sagadv1.Activity{Name: c.name,
		InputSchema:  b.schema(fmt.Sprintf("step %s, input of activity %s", step, c.name), c.in),
		OutputSchema: b.schema(fmt.Sprintf("step %s, output of activity %s", step, c.name), c.out),
		Probe:        c.probe, Claimed: c.claimed}
	if other := b.activities[c.name]; other == nil {
		b.activities[c.name] = a
	} else if !proto.Equal(a, other) {
		b.fail(fmt.Errorf("step %s: activity %s is used with two contracts that differ: use one contract, or give them different names", step, c.name))
	}
}

// signal notes a signal that a wait names.
func (b *builder) signal(wait, name string, t reflect.Type) {
	s := &sagadv1.Signal{Name: name, Schema: b.schema(fmt.Sprintf("wait %s, payload of signal %s", wait, name), t)}
	if other := b.signals[name]; other == nil {
		b.signals[name] = s
	} else if !proto.Equal(s, other) {
		b.fail(fmt.Errorf("wait %s: signal %s is used with two types of payload: use one, or give them different names", wait, name))
	}
}

// finish names what has no name and sorts what must be in order.
func (b *builder) finish() {
	next := map[string]int{}
	for _, name := range b.unnamed {
		name(func(prefix string) string {
			for {
				next[prefix]++
				if n := prefix + strconv.Itoa(next[prefix]); !b.used[n] {
					return n
				}
			}
		})
	}
	for _, a := range b.activities {
		b.def.Activities = append(b.def.Activities, a)
	}
	for _, s := range b.signals {
		b.def.Signals = append(b.def.Signals, s)
	}
	slices.SortFunc(b.def.Signals, func(x, y *sagadv1.Signal) int { return strings.Compare(x.Name, y.Name) })
	slices.SortFunc(b.def.Activities, func(x, y *sagadv1.Activity) int { return strings.Compare(x.Name, y.Name) })
}

// partFunc is an option of a definition.
type partFunc func(b *builder)

func (f partFunc) define(b *builder) { f(b) }

// Deadline is for how long the saga may run: then it is cancelled, or, past the pivot, reported to a person. Without it
// there is none.
func Deadline(d time.Duration) Part {
	return partFunc(func(b *builder) { b.def.Deadline = durationpb.New(d) })
}

// Description says for people what the saga is for. It is part of the content.
func Description(text string) Part {
	return partFunc(func(b *builder) { b.def.Description = text })
}

// MaxParallelCompensations is how many compensations may run at the same time. Default 16.
func MaxParallelCompensations(n int) Part {
	return partFunc(func(b *builder) { b.def.MaxParallelCompensations = b.count("MaxParallelCompensations", n, 1000) })
}

// count checks a number; 0 stands for the default.
func (b *builder) count(what string, n, most int) int32 {
	if n < 0 || n > most {
		b.fail(fmt.Errorf("%s is %d: write 1 to %d, or leave it out for the default", what, n, most))
		return 0
	}
	return int32(n)
}
