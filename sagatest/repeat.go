package sagatest

import (
	"slices"
	"testing"
	"time"

	"github.com/sagad/sagad/sdk/saga"
)

// Repeat calls every handler twice for each request, with the same key, as a broker that delivers at least once does sooner or later: the
// answer must be the same, and the effect there once. The saga runs undisturbed, and then to each step that can be rejected, so
// that compensations are called twice too. With [Concurrently] the two calls overlap.
//
// [Unwind] repeats one request at a time, and more besides; Repeat is quicker.
func Repeat[In, Out any](t testing.TB, def *saga.Definition[In, Out], input In, world World, opts ...Option) {
	t.Helper()
	o := optionsOf(opts)
	d, err := define(def, input)
	if err == nil {
		err = o.err
	}
	if err != nil {
		t.Fatalf("sagatest: %v", err)
		return
	}
	e := &explorer{t: t, def: d, world: world, o: o, undone: map[string]bool{}, uses: map[string]int{}, start: time.Now()}
	e.repeat()
	e.report()
}

func (e *explorer) repeat() {
	tr, ok := e.try(&scenario{name: "undisturbed", words: "nothing is injected", plain: true})
	if !ok {
		return
	}
	e.base = tr.saga
	if len(e.findings) > 0 {
		return
	}
	twice := Duplicate().Always()
	if e.o.concurrently {
		twice = Outcome{kind: atOnce, always: true}
	}
	next := Outcome{kind: erroredAfter, attempt: 1}
	for _, o := range []Outcome{twice, next} {
		if e.o.concurrently && o.kind == erroredAfter {
			continue // that is not at the same time
		}
		words := "each task is delivered twice"
		switch {
		case e.o.concurrently:
			words = "each task is delivered twice at the same time"
		case o.kind == erroredAfter:
			words = "each first attempt does its work and fails, so that there is a second one"
		}
		var all []fault
		for name := range e.def.steps {
			for _, undo := range []bool{false, true} {
				if o.kind == erroredAfter {
					s := e.def.steps[name]
					attempts := s.GetRetry().GetMaxAttempts()
					if undo {
						attempts = s.GetCompensation().GetRetry().GetMaxAttempts()
					}
					if attempts == 1 {
						continue
					}
				}
				all = append(all, fault{Outcome: o, step: name, anyItem: true, undo: undo})
			}
		}
		e.all([]*scenario{{name: o.name(), kind: o.kind, words: words, faults: all}})
		if len(e.findings) > 0 {
			return
		}
		for _, x := range e.targets() {
			if !x.failable {
				continue
			}
			faults := append([]fault{x.fault(Rejected("INJECTED"), false)}, all...)
			e.all([]*scenario{{name: o.name() + "/" + x.where() + "/rejected", step: x.where(), kind: o.kind, words: words + ", until it is rejected", faults: slices.Clip(faults)}})
			if len(e.findings) > 0 {
				return
			}
		}
	}
}
