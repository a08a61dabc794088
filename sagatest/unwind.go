package sagatest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

// itemsMax is how many runs of one step in a map or a loop are made to fail.
const itemsMax = 3

// usesMax is at how many uses of a context a handler is interrupted.
const usesMax = 12

// Unwind runs the saga again and again, each time in a new world, and makes something else fail each time: each step, each compensation,
// in each way, with cancels and the deadline in between. After each run the world's check, and the answers of the handlers,
// must be right. What isn't is a finding, which fails the test and says which step, what was injected, what is wrong, how to mend
// it, what happened, and the name of the run for [Only].
//
// The undisturbed run comes first; then each step is rejected; then all else. If one of these finds something the rest isn't run: it would
// mostly find the same.
//
// The input decides which way the saga goes: call Unwind once for each way that matters, also for inputs that a handler refuses by
// itself.
func Unwind[In, Out any](t testing.TB, def *saga.Definition[In, Out], input In, world World, opts ...Option) {
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
	e.unwind()
	e.report()
}

// scenario is one run of many.
type scenario struct {
	name string
	// step and undo are what it is about; words what is done to it.
	step   string
	undo   bool
	words  string
	kind   kind
	faults []fault
	set    func(*options)
	// stuck: it may end with a person being asked.
	stuck bool
	// plain: nothing is done but that a step says no.
	plain bool
	// reversed: what is there at the same time comes in the opposite order.
	reversed bool
}

// explorer runs scenarios.
type explorer struct {
	t     testing.TB
	def   *definition
	world World
	o     options
	start time.Time

	base     *Saga
	waits    int // of the undisturbed run
	runs     int
	left     int
	stopped  bool
	findings []*finding
	// undone are the steps whose undo has been seen to be right.
	undone map[string]bool
	// uses are how many uses the handlers make of their contexts.
	uses map[string]int
}

// trial is one run and what came of it.
type trial struct {
	sc    *scenario
	saga  *Saga
	rig   *rig
	check string // what the check said; empty if it is content
	found []*finding
}

// try runs a scenario.
func (e *explorer) try(sc *scenario) (*trial, bool) {
	if e.stopped {
		return nil, false
	}
	e.runs++
	tr := &trial{sc: sc}
	rec := &recorder{TB: e.t}
	defer rec.end()
	var register func(*worker.Worker)
	var check func(testing.TB, *Saga)
	if !rec.guard(func() { register, check = e.world(rec) }) || rec.Failed() {
		e.fatal("the world can't be made: " + rec.words())
		return nil, false
	}
	o := e.o
	o.faults = append(slices.Clone(e.o.faults), sc.faults...)
	o.signals = slices.Clone(e.o.signals)
	if sc.set != nil {
		sc.set(&o)
	}
	var err error
	if tr.rig, tr.saga, err = run(e.t.Context(), e.def, o, register); err != nil {
		e.fatal(err.Error())
		return nil, false
	}
	if check != nil && !tr.rig.hung && (tr.saga.Status == Completed || tr.saga.Status == Compensated) {
		rec.guard(func() { check(rec, tr.saga) })
		if rec.Failed() {
			tr.check = rec.words()
		}
	}
	if sc.plain {
		for i := range tr.saga.Calls {
			c := &tr.saga.Calls[i]
			what := c.where()
			if c.Undo {
				what = "undo " + what
			}
			e.uses[what] = max(e.uses[what], min(c.uses, usesMax))
		}
	}
	e.judge(tr)
	e.findings = append(e.findings, tr.found...)
	return tr, true
}

func (e *explorer) fatal(text string) {
	e.stopped = true
	e.t.Errorf("sagatest: %s: %s", e.def.name, text)
}

func (e *explorer) all(scs []*scenario) {
	for _, sc := range scs {
		if len(e.o.only) > 0 && !slices.ContainsFunc(e.o.only, func(p string) bool { return strings.HasPrefix(sc.name, p) }) {
			continue
		}
		if e.runs >= e.o.runsMax {
			e.left++
			continue
		}
		e.try(sc)
	}
}

// target is a call of a step in the undisturbed run.
type target struct {
	step, item string
	kind       sagadv1.Kind
	def        *sagadv1.Step
	// failable: it may be rejected, and the saga turns back.
	failable bool
}

func (x target) where() string {
	if x.item != "" {
		return x.step + "@" + x.item
	}
	return x.step
}

func (x target) fault(o Outcome, undo bool) fault {
	f := faultAt(x.step, o, undo)
	f.item, f.anyItem = x.item, false
	return f
}

// targets are the calls of the undisturbed run, in their order; steps of maps and loops a few times.
func (e *explorer) targets() (all []target) {
	type place struct{ step, item string }
	var order []place
	items := map[string][]string{}
	for i := range e.base.Calls {
		c := &e.base.Calls[i]
		if c.SagaID != e.base.ID || e.def.steps[c.Step] == nil || c.Undo || c.Probe || slices.Contains(order, place{c.Step, c.Item}) {
			continue
		}
		order = append(order, place{c.Step, c.Item})
		items[c.Step] = append(items[c.Step], c.Item)
	}
	past := false
	for _, p := range order {
		if list := items[p.step]; len(list) > itemsMax && p.item != list[0] && p.item != list[1] && p.item != list[len(list)-1] {
			continue
		}
		s := e.def.steps[p.step]
		x := target{step: p.step, item: p.item, kind: s.GetKind(), def: s}
		x.failable = !past && x.kind != sagadv1.Kind_KIND_RETRIABLE
		past = past || x.kind == sagadv1.Kind_KIND_PIVOT
		all = append(all, x)
	}
	return all
}

func (e *explorer) unwind() {
	base := &scenario{name: "undisturbed", words: "nothing is injected", plain: true}
	tr, ok := e.try(base)
	if !ok {
		return
	}
	e.base, e.waits = tr.saga, tr.rig.waits
	if len(e.findings) > 0 {
		return
	}
	targets := e.targets()
	var plain []*scenario
	for _, x := range targets {
		if x.failable {
			sc := &scenario{name: x.where() + "/rejected", step: x.where(), kind: rejected, words: Rejected("").words(), faults: []fault{x.fault(Rejected("INJECTED"), false)}, plain: true}
			plain = append(plain, sc)
		}
	}
	e.all(plain)
	both := e.parallel()
	if both && len(e.findings) == 0 {
		e.all(reversed(plain))
	}
	if len(e.findings) > 0 {
		return
	}
	rest := e.rest(targets)
	e.all(rest)
	if both {
		e.all(reversed(rest))
	}
}

// reversed are the same scenarios in the opposite order of what is there at the same time.
func reversed(scs []*scenario) (all []*scenario) {
	for _, sc := range scs {
		set := sc.set
		x := *sc
		x.name, x.reversed = "reversed/"+sc.name, true
		x.words += "; and what is there at the same time comes in the opposite order"
		x.set = func(o *options) {
			if set != nil {
				set(o)
			}
			o.reversed = !o.reversed
		}
		all = append(all, &x)
	}
	return all
}

// parallel says whether something can happen at the same time.
func (e *explorer) parallel() (found bool) {
	walk(e.def.proto.GetBody(), func(n *sagadv1.Node) { found = found || n.GetParallel() != nil || n.GetMap() != nil })
	return found
}

// rest are all scenarios but the plain ones.
func (e *explorer) rest(targets []target) (all []*scenario) {
	add := func(sc scenario) { all = append(all, &sc) }
	// later is a step, after the one at i, whose rejection turns the saga back: the next one, or the last.
	later := func(i int, last bool) *target {
		var found *target
		for k := i + 1; k < len(targets); k++ {
			if x := &targets[k]; x.failable && (x.step != targets[i].step || x.item != targets[i].item) {
				found = x
				if !last {
					break
				}
			}
		}
		return found
	}
	for i, x := range targets {
		name := x.where()
		one := func(o Outcome, stuck bool) {
			add(scenario{name: name + "/" + o.name(), step: name, kind: o.kind, words: o.words(), faults: []fault{x.fault(o, false)}, stuck: stuck})
		}
		// undone is the same, and then the saga turns back.
		undone := func(o Outcome) {
			one(o, x.kind == sagadv1.Kind_KIND_PIVOT || x.def.GetRetry().GetMaxAttempts() == 1)
			if next := later(i, false); next != nil && x.failable {
				add(scenario{
					name: name + "/" + o.name() + "/then-undone", step: name, kind: o.kind, words: o.words() + "; later " + next.where() + " is rejected",
					faults: []fault{x.fault(o, false), next.fault(Rejected("INJECTED"), false)},
					stuck:  x.kind == sagadv1.Kind_KIND_PIVOT,
				})
			}
		}
		one(Errored(), x.kind == sagadv1.Kind_KIND_PIVOT)
		if x.kind == sagadv1.Kind_KIND_READ_ONLY {
			one(UnknownDone(), false)
			if x.failable {
				one(Errored().Always(), false)
			}
			continue
		}
		for _, o := range []Outcome{ErroredAfter(), UnknownDone(), Duplicate(), CrashAfter(), Late()} {
			undone(o)
		}
		one(UnknownNotDone(), x.kind == sagadv1.Kind_KIND_PIVOT)
		one(CrashBefore(), x.kind == sagadv1.Kind_KIND_PIVOT)
		always := []Outcome{Errored(), ErroredAfter(), UnknownDone(), UnknownNotDone(), LateAnswer(), Late(), Late().AtEnd()}
		if x.failable && x.kind == sagadv1.Kind_KIND_COMPENSATABLE {
			for _, o := range always {
				one(o.Always(), false)
			}
		}
		if x.kind == sagadv1.Kind_KIND_PIVOT {
			// A person is asked, or the probe: whatever it says must be so.
			for _, o := range []Outcome{UnknownDone(), UnknownNotDone(), LateAnswer(), Late(), Late().AtEnd()} {
				one(o.Always(), true)
			}
		}
		if x.failable {
			add(scenario{
				name: name + "/error/cancelled", step: name, kind: errored, words: Errored().words() + ", and the saga is cancelled while it waits for the next attempt",
				faults: []fault{x.fault(Errored(), false)}, set: func(o *options) { o.cancelOnWait = true }, stuck: x.kind == sagadv1.Kind_KIND_PIVOT,
			})
		}
		for n := 1; n <= e.uses[x.where()]; n++ {
			undone(Interrupted(n))
			if x.failable && x.kind == sagadv1.Kind_KIND_COMPENSATABLE {
				one(Interrupted(n).Always(), false)
			}
		}
		if !x.failable || x.kind != sagadv1.Kind_KIND_COMPENSATABLE {
			continue
		}
		// Compensations. The action's output is known if a later step turns the saga back, and unknown if it itself does.
		type trigger struct {
			name, words string
			fault       fault
		}
		triggers := []trigger{{"/output-unknown", "the answers of " + name + " are lost", x.fault(UnknownDone().Always(), false)}}
		if last := later(i, true); last != nil {
			triggers = append(triggers, trigger{"", last.where() + " is rejected", last.fault(Rejected("INJECTED"), false)})
		}
		single := x.def.GetCompensation().GetRetry().GetMaxAttempts() == 1
		for _, tg := range triggers {
			undo := func(o Outcome, set func(*options), stuck bool, suffix, words string) {
				add(scenario{
					name: name + "/undo/" + o.name() + suffix + tg.name, step: name, undo: true, kind: o.kind, words: tg.words + "; then its compensation: " + o.words() + words,
					faults: []fault{tg.fault, x.fault(o, true)}, set: set, stuck: stuck || single,
				})
			}
			for _, o := range []Outcome{Errored(), ErroredAfter(), UnknownDone(), UnknownNotDone(), Duplicate(), CrashBefore(), CrashAfter()} {
				undo(o, nil, false, "", "")
			}
			for n := 1; n <= e.uses["undo "+x.where()]; n++ {
				undo(Interrupted(n), nil, false, "", "")
			}
			// A person has it tried again, when it is out of attempts.
			attempts := int(x.def.GetCompensation().GetRetry().GetMaxAttempts())
			if attempts == 0 {
				attempts = 10
			}
			if attempts <= 20 {
				undo(UnknownDone().Always(), func(o *options) {
					o.retries = 1
					o.faults[len(o.faults)-1].upTo = attempts
				}, false, "/retried-by-hand", "; then a person has it tried again")
			}
		}
		// It is called although nothing happened.
		add(scenario{
			name: name + "/undo/duplicate/not-done", step: name, undo: true, kind: duplicate,
			words:  "the tasks of " + name + " are lost, so that nothing was done; then its compensation: " + Duplicate().words(),
			faults: []fault{x.fault(UnknownNotDone().Always(), false), x.fault(Duplicate(), true)}, stuck: single,
		})
	}
	deliveries := 0
	for i := range e.base.Calls {
		if !e.base.Calls[i].Probe {
			deliveries++
		}
	}
	step := max(1, deliveries/200)
	for n := 1; n <= deliveries; n += step {
		c := &e.base.Calls[n-1]
		add(scenario{name: fmt.Sprintf("cancel/%d", n), step: c.where(), words: "the saga is cancelled while its task is on its way", set: func(o *options) { o.cancelAt = n }, stuck: true})
		if e.def.proto.GetDeadline() != nil {
			add(scenario{
				name: fmt.Sprintf("deadline/%d", n), step: c.where(), words: "the saga's deadline passes while its task is on its way",
				set: func(o *options) { o.deadlineAt = n }, stuck: true,
			})
		}
	}
	for n := 1; n <= min(e.waits, 50); n++ {
		add(scenario{name: fmt.Sprintf("cancel/wait-%d", n), words: fmt.Sprintf("the saga is cancelled at its wait number %d", n), set: func(o *options) { o.cancelAtWait = n }, stuck: true})
	}
	return all
}
