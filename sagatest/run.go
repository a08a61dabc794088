package sagatest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

// Run runs one saga to its end, or until it waits for something that the options don't give, and says what became of it. It
// fails the test only if the saga can't be run at all: if the definition is refused, a handler is missing, or one doesn't come back; if a
// fault strikes no call; or if the engine doesn't come to rest. What the saga should have come to is the test's to say.
func Run[In, Out any](t testing.TB, def *saga.Definition[In, Out], input In, register func(*worker.Worker), opts ...Option) *Saga {
	t.Helper()
	o := optionsOf(opts)
	d, err := define(def, input)
	if err == nil {
		err = o.err
	}
	if err != nil {
		t.Fatalf("sagatest: %v", err)
		return nil
	}
	r, s, err := run(t.Context(), d, o, register)
	switch {
	case err != nil:
		t.Fatalf("sagatest: %s: %v", d.name, err)
	case r.hung || s.expired:
		t.Fatalf("sagatest: %s: %s\n%s", d.name, noEnd(r), s)
	}
	for i := range o.faults {
		f := &o.faults[i]
		if r.struck[f.where()+" "+f.name()] == 0 {
			verb := "Fail"
			if f.undo {
				verb = "FailUndo"
			}
			t.Errorf("sagatest: %s: %s(%q, %s) struck nothing: no such attempt was made; is the name of the step right?\n%s", d.name, verb, f.where(), f.name(), s)
		}
	}
	return s
}

// noEnd says why a saga came to no end.
func noEnd(r *rig) string {
	if !r.hung {
		return fmt.Sprintf("the saga isn't at rest after %d turns: does some loop or retry never end?", turnsMax)
	}
	for i := range r.calls {
		if c := &r.calls[i]; c.hung {
			what := "the action"
			if c.Undo {
				what = "the compensation"
			}
			return fmt.Sprintf("%s of step %s doesn't come back within %v, although its context has ended: heed ctx.Done(), or give sagatest.Patience", what, c.where(), r.o.patience)
		}
	}
	return "a handler doesn't come back"
}

// run runs one saga.
func run(ctx context.Context, d *definition, o options, register func(*worker.Worker)) (*rig, *Saga, error) {
	r, err := newRig(ctx, d, o, register)
	if err != nil {
		return nil, nil, err
	}
	s, err := r.play()
	return r, s, err
}

// indent puts a text under another one.
func indent(s, by string) string {
	return by + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n"+by)
}
