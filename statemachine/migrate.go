package statemachine

import (
	"fmt"
	"maps"
	"slices"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
)

// Machine is the definition that the saga runs under.
func (s *State) Machine() *Machine { return s.machine }

// migrate moves the saga to another version of its definition.
func (d *decider) migrate(e Migrate) error {
	switch {
	case d.s.answered(e.RequestID):
		d.reply.Duplicate = true
		return nil
	case d.s.Status.Terminal():
		return &Refusal{Code: RefusedNotAllowed, Message: fmt.Sprintf("the saga has ended as %s", d.s.Status)}
	case e.To.def.GetName() != d.s.Definition:
		return &Refusal{Code: RefusedInvalid, Message: fmt.Sprintf("the saga is of definition %s, not %s", d.s.Definition, e.To.def.GetName())}
	case e.Version == d.s.Version:
		d.reply.Duplicate = true
		return nil
	case e.Reason == "":
		return &Refusal{Code: RefusedInvalid, Message: "a reason is needed: it stands in the history for good"}
	}
	next, obstacles := d.m.adopt(d.s, e.To, e.Names)
	if len(obstacles) > 0 {
		d.reply.Obstacles = obstacles
		return &Refusal{Code: RefusedNotAllowed, Message: fmt.Sprintf("the saga can't go on under version %d: %s", e.Version, obstacles[0])}
	}
	f := &historyv1.Migrated{Version: e.Version, DefinitionHash: e.To.Hash(), Names: e.Names, Actor: e.Actor, Reason: e.Reason}
	d.facts = append(d.facts, &historyv1.Fact{Kind: &historyv1.Fact_Migrated{Migrated: f}})
	next.Version = e.Version
	d.s, d.m = next, e.To
	d.progress()
	return nil
}

// Migration tells of a transition that begins with a migration, to which version it leads.
func Migration(t *historyv1.Transition) (version int32, ok bool) {
	if len(t.GetFacts()) == 0 || t.GetFacts()[0].GetMigrated() == nil {
		return 0, false
	}
	return t.GetFacts()[0].GetMigrated().GetVersion(), true
}

// FoldAll folds a history in which the saga may have moved to other versions. machine gives the definition of a version.
func FoldAll(ts []*historyv1.Transition, machine func(version int32) (*Machine, error)) (*State, error) {
	if len(ts) == 0 || len(ts[0].GetFacts()) == 0 {
		return nil, fmt.Errorf("the history is empty")
	}
	m, err := machine(ts[0].GetFacts()[0].GetStarted().GetVersion())
	if err != nil {
		return nil, err
	}
	var s *State
	for _, t := range ts {
		version, moves := Migration(t)
		if moves && s != nil {
			to, err := machine(version)
			if err != nil {
				return nil, err
			}
			next, obstacles := m.adopt(s, to, t.GetFacts()[0].GetMigrated().GetNames())
			if len(obstacles) > 0 {
				return nil, fmt.Errorf("transition %d moves the saga to version %d, where it doesn't fit: %s", s.N+1, version, obstacles[0])
			}
			next.Version = version
			m, s = to, next
			t = &historyv1.Transition{Facts: t.GetFacts()[1:], AtUs: t.GetAtUs(), Trigger: t.GetTrigger(), RequestId: t.GetRequestId()}
		}
		if s, err = m.Evolve(s, t); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// adopt makes the state under another version, or says why it can't be. s isn't changed. It is what a stored migration means, so it
// never becomes stricter.
func (m *Machine) adopt(s *State, to *Machine, names map[string]string) (*State, []string) {
	a := adoption{m: m, to: to, names: names, backward: s.Backward}
	next := s.clone()
	next.machine = to
	next.Frame = Frame{stamp: next.stamp}
	to.open(&next.Frame, 0)
	for _, old := range slices.Sorted(maps.Keys(names)) {
		_, isStep := m.byName[old]
		_, isPlace := m.placeOf[old]
		if !isStep && !isPlace {
			a.refuse("the present version has nothing that is called %s", old)
		}
	}
	if err := to.input.Validate(orNull(s.Input)); err != nil {
		a.refuse("the saga's input doesn't fit: %v", err)
	}
	a.frame(&s.Frame, &next.Frame)
	for _, sig := range s.Signals {
		if _, ok := to.signals[sig.Name]; !ok {
			a.refuse("a signal %s waits to be taken, which the new version doesn't have", sig.Name)
		}
	}
	if !s.Backward && !s.Provisional && len(a.obstacles) == 0 {
		a.order(to.bodies[0].nodes, &next.Frame)
	}
	for i := range next.Items {
		if it := &next.Items[i]; it.Call.Step != "" && it.Call.Step != returnStep {
			it.Call.Step = a.name(it.Call.Step)
		}
	}
	return next, a.obstacles
}

type adoption struct {
	m, to     *Machine
	names     map[string]string
	backward  bool
	obstacles []string
}

func (a *adoption) refuse(format string, args ...any) {
	if len(a.obstacles) < 100 {
		a.obstacles = append(a.obstacles, fmt.Sprintf(format, args...))
	}
}

func (a *adoption) name(old string) string {
	if n, ok := a.names[old]; ok {
		return n
	}
	return old
}

// frame moves what a frame holds. from may have frames below; those of to are made.
func (a *adoption) frame(from, to *Frame) {
	to.Item, to.Index, to.Phase, to.Value, to.Output, to.Cause, to.live = from.Item, from.Index, from.Phase, from.Value, from.Output, from.Cause, from.live
	for slot, i := range a.m.bodies[from.body].steps {
		a.step(i, &from.Steps[slot], to)
	}
	for slot, i := range a.m.bodies[from.body].places {
		a.place(i, &from.Places[slot], to)
	}
}

func (a *adoption) step(i int, st *StepState, to *Frame) {
	if st.Do.Phase == Idle && st.Do.Generation == 0 {
		return // as if it weren't there
	}
	old := &a.m.steps[i]
	name := a.name(old.name)
	under := ""
	if name != old.name {
		under = fmt.Sprintf(" (now %s)", name)
	}
	n, ok := a.to.byName[name]
	if !ok || a.to.steps[n].body != to.body {
		switch {
		case a.m.hasEffect(i, st):
			a.refuse("step %s%s has run, and isn't there any more: what it did would lose its undo", old.name, under)
		case st.awaited() > 0 || st.Do.Phase == Held || st.Undo.Phase == Held:
			a.refuse("step %s%s is under way, and isn't there any more", old.name, under)
		}
		return
	}
	next := &a.to.steps[n]
	if a.m.hasEffect(i, st) {
		switch {
		case old.kind != next.kind:
			a.refuse("step %s%s has run as %s and would be %s: what it did would lose its undo, or get one that doesn't fit", old.name, under, kindWord(old.kind), kindWord(next.kind))
		case old.activity != next.activity || old.child != next.child:
			a.refuse("step %s%s has run %s, and the new version undoes it with %s", old.name, under, old.activity, next.activity)
		}
	}
	if st.awaited() > 0 && (name != old.name || old.activity != next.activity) {
		a.refuse("step %s%s is under way: its name and activity can't change", old.name, under)
	}
	if st.Do.OutputKnown {
		if err := next.outSchema.Validate(st.Do.Output); err != nil {
			a.refuse("the output of step %s%s doesn't fit: %v", old.name, under, err)
		}
	}
	moved := *st
	moved.Name = name
	if moved.KeyName == "" && name != old.name {
		moved.KeyName = old.name
	}
	to.Steps[next.slot] = moved
}

func (a *adoption) place(i int, p *PlaceState, to *Frame) {
	if p.Phase == PlaceIdle && p.Arm == ArmOpen {
		return
	}
	old := &a.m.places[i]
	name := a.name(old.name)
	n, ok := a.to.placeOf[name]
	if !ok || a.to.places[n].body != to.body || a.to.places[n].kind != old.kind {
		if p.awaited() > 0 {
			a.refuse("%s is under way, and isn't there any more", old.name)
			return
		}
		for _, f := range p.frames {
			if f != nil && f.live > 0 {
				a.refuse("%s is under way, and isn't there any more", old.name)
			} else if f != nil {
				a.orphan(f, old.name)
			}
		}
		return
	}
	next := &a.to.places[n]
	switch {
	case int(p.Arm) > a.arms(next):
		a.refuse("%s took arm %d, which isn't there any more", old.name, p.Arm)
		return
	case old.kind == waitNode && p.Phase == PlaceActive && (old.signal != next.signal || (old.title == nil) != (next.title == nil)):
		a.refuse("%s is under way: what it waits for can't change", old.name)
	case old.kind == waitNode && p.Output != nil && next.schema.Validate(p.Output) != nil:
		a.refuse("what %s got doesn't fit any more", old.name)
	}
	moved := *p
	moved.frames, moved.stamp = nil, to.stamp
	for index, f := range p.frames {
		if f == nil {
			moved.frames = append(moved.frames, nil)
			continue
		}
		body := -1
		if next.kind == mapNode || next.kind == loopNode {
			body = next.bodies[0]
		} else if index < len(next.bodies) {
			body = next.bodies[index]
		}
		if body < 0 {
			a.refuse("%s has taken path %d, which isn't there any more", old.name, index)
			return
		}
		in := &Frame{stamp: to.stamp}
		a.to.open(in, body)
		a.frame(f, in)
		moved.frames = append(moved.frames, in)
	}
	to.Places[next.slot] = moved
}

func (a *adoption) arms(p *place) int {
	if p.kind == switchNode {
		return p.cases + 1
	}
	return 2
}

// orphan looks whether something would be lost with a block that isn't there any more.
func (a *adoption) orphan(f *Frame, block string) {
	f.each(func(f *Frame) bool {
		for slot, i := range a.m.bodies[f.body].steps {
			if st := &f.Steps[slot]; a.m.hasEffect(i, st) || st.awaited() > 0 {
				a.refuse("step %s has run in %s, which isn't there any more: what it did would lose its undo", st.Name, block)
				return false
			}
		}
		return true
	})
}

// order looks whether something new would run before what has run already. It says whether something of the nodes began, and whether all is
// done.
func (a *adoption) order(nodes []node, f *Frame) (began, done bool) {
	done = true
	open := ""
	for i := range nodes {
		n := &nodes[i]
		name, b, d := "", false, false
		switch n.kind {
		case stepNode:
			st := &f.Steps[a.to.steps[n.index].slot]
			name, b, d = st.Name, st.Do.Phase != Idle, st.Do.Phase == Succeeded
		case returnNode:
			name = returnStep
		case parallelNode:
			d = true
			for _, branch := range n.branches {
				bb, dd := a.order(branch, f)
				b, d = b || bb, d && dd
			}
			name = "a parallel"
		default:
			p := &f.Places[a.to.places[n.index].slot]
			name, b, d = a.to.places[n.index].name, p.Phase != PlaceIdle || p.Arm != ArmOpen, p.Phase == PlaceDone
			if p.Arm != ArmOpen && len(n.branches) > 0 {
				_, d = a.order(n.branches[p.Arm-ArmThen], f)
			}
		}
		if b && open != "" {
			a.refuse("%s hasn't run, and would come before %s, which has", open, name)
		}
		if !d && open == "" {
			open = name
		}
		began, done = began || b, done && d
	}
	return began, done
}

// KeyName is the step's name in idempotency keys: the one under which it began.
func (s *State) KeyName(c Call) string {
	if st, _ := s.step(c.Step, c.Item); st != nil && st.KeyName != "" {
		return st.KeyName
	}
	return c.Step
}
