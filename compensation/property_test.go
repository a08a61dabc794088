package compensation

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// graph is the model's view of a tree: reach[a][b] says that b depends on a, directly or not.
type graph struct {
	n     int
	reach [][]bool
}

func newGraph(n int) graph {
	g := graph{n: n, reach: make([][]bool, n)}
	for i := range g.reach {
		g.reach[i] = make([]bool, n)
	}
	return g
}

// drawTree draws a tree of up to 14 steps: it splits them again and again, in series or side by side, with
// empty nodes and needless ones strewn in.
func drawTree(t *rapid.T) []Node {
	var tree []Node
	var add func(steps int)
	add = func(steps int) {
		at := len(tree)
		odd := rapid.IntRange(0, 9).Draw(t, "odd") == 9
		if steps == 1 && !odd {
			tree = append(tree, Node{Size: 1, Ref: int32(at)})
			return
		}
		tree = append(tree, Node{Kind: rapid.SampledFrom([]Kind{Series, Parallel}).Draw(t, "kind")})
		if odd {
			tree = append(tree, Node{Kind: Parallel, Size: 1})
		}
		for steps > 0 {
			n := rapid.SampledFrom(seq(steps)).Draw(t, "child") + 1
			add(n)
			steps -= n
		}
		tree[at].Size = int32(len(tree) - at)
	}
	add(rapid.SampledFrom(seq(14)).Draw(t, "steps") + 1)
	return tree
}

// drawChain is a series of steps, some of them in a series of their own.
func drawChain(t *rapid.T) []Node {
	tree := []Node{{Kind: Series}}
	for range rapid.IntRange(1, 12).Draw(t, "n") {
		if rapid.Bool().Draw(t, "nested") {
			tree = append(tree, Node{Kind: Series, Size: 2})
		}
		tree = append(tree, Node{Size: 1})
	}
	tree[0].Size = int32(len(tree))
	return tree
}

// graphOf is the tree as a graph of all its nodes: those that aren't steps have no edges.
func graphOf(tree []Node) graph {
	g := newGraph(len(tree))
	steps, at := flatten(tree)
	for i, s := range steps {
		for _, b := range s.Before {
			g.reach[at[b]][at[i]] = true
		}
	}
	return g
}

// drawPhases gives each step any phase and a start number of its own, or sometimes one that others have too.
func drawPhases(t *rapid.T, tree []Node) {
	no := rapid.Permutation(seq(len(tree))).Draw(t, "start numbers")
	equal := rapid.IntRange(1, 3).Draw(t, "equal")
	calm := rapid.Bool().Draw(t, "calm") // most need undoing
	for i := range tree {
		if tree[i].Kind == Step {
			tree[i].StartNo = 1 + no[i]/equal
			tree[i].Phase = NeedsUndo
			if !calm || rapid.IntRange(0, 3).Draw(t, "other") == 3 {
				tree[i].Phase = Phase(rapid.SampledFrom(seq(int(HeldLetPass)+2)).Draw(t, "phase"))
			}
		}
	}
}

// Any phases at all: the plan is the one that the flat reference makes.
func TestAsTheFlatPlan(t *testing.T) {
	var pl Planner // used again and again: nothing of a former call may show
	rapid.Check(t, func(t *rapid.T) {
		tree := drawTree(t)
		drawPhases(t, tree)
		limit := rapid.IntRange(-1, 16).Draw(t, "limit")
		steps, at := flatten(tree)
		want := flatNext(steps, limit)
		want.Start, want.Waiting, want.Held = mapTo(at, want.Start), mapTo(at, want.Waiting), mapTo(at, want.Held)
		if diff := cmp.Diff(want, Next(tree, limit)); diff != "" {
			t.Fatalf("Next (-flat +got):\n%s\ntree %+v", diff, tree)
		}
		if diff := cmp.Diff(want, pl.Next(tree, limit)); diff != "" {
			t.Fatalf("Planner.Next (-flat +got):\n%s\ntree %+v", diff, tree)
		}
		var order [][]int
		for _, wave := range flatOrder(steps) {
			order = append(order, mapTo(at, wave))
		}
		if diff := cmp.Diff(order, Order(tree)); diff != "" {
			t.Fatalf("Order (-flat +got):\n%s\ntree %+v", diff, tree)
		}
		if diff := cmp.Diff(order, pl.Order(tree)); diff != "" {
			t.Fatalf("Planner.Order (-flat +got):\n%s\ntree %+v", diff, tree)
		}
	})
}

func seq(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// drawForward runs the saga forward, starting and ending steps in an order that the graph allows, until
// it stops at a random point: a failure, a cancel, or the end. Steps may be left in flight.
func drawForward(t *rapid.T, g graph, tree []Node) []Node {
	steps := slices.Clone(tree)
	settled := make([]bool, g.n)
	ready := func(i int) bool {
		for b := range g.n {
			if g.reach[b][i] && !settled[b] {
				return false
			}
		}
		return true
	}
	events := rapid.IntRange(0, 2*g.n).Draw(t, "events")
	startNo := 0
	for range events {
		var startable, running []int
		for i, s := range steps {
			switch {
			case s.Kind != Step:
			case s.Phase == InFlight:
				running = append(running, i)
			case !settled[i] && ready(i):
				startable = append(startable, i)
			}
		}
		if len(startable)+len(running) == 0 {
			break
		}
		i := rapid.SampledFrom(append(startable, running...)).Draw(t, "step")
		switch {
		case steps[i].Phase == InFlight:
			settled[i] = true
			steps[i].Phase = NeedsUndo
			if rapid.IntRange(0, 4).Draw(t, "end") == 0 {
				steps[i].Phase = Clean
			}
		case rapid.IntRange(0, 7).Draw(t, "branch") == 0:
			settled[i] = true // branch not taken
		default:
			startNo++
			steps[i].StartNo = startNo
			steps[i].Phase = InFlight
		}
	}
	return steps
}

// unwinding drives a plan to its end and checks every step of the way against the model.
type unwinding struct {
	t     *rapid.T
	g     graph
	steps []Node
	limit int

	starts   []int // by step: compensations started
	undone   []int // by step: times it became Undone
	needed   []bool
	passed   []bool // by step: was HeldLetPass at some time, so it promises no order
	begin    []int  // by step: when its compensation first started
	end      []int  // by step: when it was settled
	clock    int
	handBack int // by step of the whole run: times a person sent a held step back
}

func newUnwinding(t *rapid.T, g graph, steps []Node, limit int) *unwinding {
	u := &unwinding{t: t, g: g, steps: slices.Clone(steps), limit: limit,
		starts: make([]int, g.n), undone: make([]int, g.n), needed: make([]bool, g.n),
		passed: make([]bool, g.n), begin: make([]int, g.n), end: make([]int, g.n)}
	for i, s := range steps {
		u.needed[i] = s.Phase == NeedsUndo
	}
	return u
}

func (u *unwinding) in(phases ...Phase) []int {
	var out []int
	for i, s := range u.steps {
		if s.Kind == Step && slices.Contains(phases, s.Phase) {
			out = append(out, i)
		}
	}
	return out
}

// free is the rule written down once more, on the graph and not on the tree.
func (u *unwinding) free(i int) bool {
	for d := range u.g.n {
		if u.g.reach[i][d] && slices.Contains([]Phase{InFlight, NeedsUndo, Undoing, Held}, u.steps[d].Phase) {
			return false
		}
	}
	return true
}

// plan calls Next, checks the whole answer, and starts what it says.
func (u *unwinding) plan() Plan {
	before := slices.Clone(u.steps)
	p := Next(u.steps, u.limit)
	if diff := cmp.Diff(before, u.steps); diff != "" {
		u.t.Fatalf("Next changed its input (-before +after):\n%s", diff)
	}
	var ready []int
	for _, i := range u.in(NeedsUndo) {
		if u.free(i) {
			ready = append(ready, i)
		}
	}
	slices.SortFunc(ready, func(a, b int) int { return u.steps[b].StartNo - u.steps[a].StartNo })
	n := min(len(ready), max(0, u.limit-len(u.in(Undoing))))
	want := Plan{
		Held: u.in(Held, HeldLetPass),
		Done: len(u.in(InFlight, NeedsUndo, Undoing, Held, HeldLetPass)) == 0,
	}
	if n > 0 {
		want.Start = ready[:n]
	}
	for _, i := range u.in(NeedsUndo) {
		if !slices.Contains(want.Start, i) {
			want.Waiting = append(want.Waiting, i)
		}
	}
	if diff := cmp.Diff(want, p); diff != "" {
		u.t.Fatalf("plan (-model +got):\n%s\nsteps %+v", diff, u.steps)
	}
	for _, i := range p.Start {
		u.clock++
		u.starts[i]++
		if u.begin[i] == 0 {
			u.begin[i] = u.clock
		}
		u.steps[i].Phase = Undoing
	}
	if n := len(u.in(Undoing)); n > u.limit {
		u.t.Fatalf("%d under way, limit %d", n, u.limit)
	}
	return p
}

func (u *unwinding) settle(i int) {
	u.clock++
	u.end[i] = u.clock
	u.undone[i]++
	u.steps[i].Phase = Undone
}

// event lets one thing happen to a step that something can happen to.
func (u *unwinding) event(i int) {
	switch u.steps[i].Phase {
	case InFlight:
		u.clock++
		u.steps[i].Phase = NeedsUndo
		u.needed[i] = true
		if rapid.IntRange(0, 2).Draw(u.t, "late end") == 0 {
			u.steps[i].Phase = Clean
			u.needed[i] = false
		}
	case Undoing:
		switch rapid.IntRange(0, 5).Draw(u.t, "undo end") {
		case 0:
			u.steps[i].Phase = Held
		case 1:
			u.steps[i].Phase = HeldLetPass
			u.passed[i] = true
		default:
			u.settle(i)
		}
	case Held, HeldLetPass:
		if u.handBack < 5 && rapid.Bool().Draw(u.t, "retry by hand") {
			u.handBack++
			u.steps[i].Phase = NeedsUndo
			return
		}
		u.settle(i)
	default:
		u.t.Fatalf("event for step %d, which is %v", i, u.steps[i].Phase)
	}
}

// finish checks what must hold of any run that came to its end.
func (u *unwinding) finish() {
	for i := range u.g.n {
		want := 0
		if u.needed[i] {
			want = 1
		}
		if u.undone[i] != want {
			u.t.Fatalf("step %d undone %d times, want %d", i, u.undone[i], want)
		}
		if (u.starts[i] > 0) != u.needed[i] {
			u.t.Fatalf("step %d: compensation started %d times, needed %v", i, u.starts[i], u.needed[i])
		}
		for d := range u.g.n {
			if u.g.reach[i][d] && u.needed[i] && u.needed[d] && !u.passed[d] && u.begin[i] < u.end[d] {
				u.t.Fatalf("step %d began at %d, before its dependent %d was settled at %d",
					i, u.begin[i], d, u.end[d])
			}
		}
	}
}

func TestRunProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tree := drawTree(t)
		g := graphOf(tree)
		u := newUnwinding(t, g, drawForward(t, g, tree), rapid.IntRange(1, 4).Draw(t, "limit"))
		for {
			p := u.plan()
			open := u.in(InFlight, Undoing, Held, HeldLetPass)
			if p.Done {
				if len(open) > 0 || len(u.in(NeedsUndo)) > 0 {
					t.Fatalf("done with steps left: %+v", u.steps)
				}
				break
			}
			if len(open) == 0 {
				t.Fatalf("not done, and nothing can happen any more: %+v", u.steps)
			}
			u.event(rapid.SampledFrom(open).Draw(t, "event"))
		}
		u.finish()
	})
}

// Without a limit, with all compensations equally long, what starts is wave by wave what Order said.
func TestOrderIsTheRunInLockStep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tree := drawTree(t)
		g := graphOf(tree)
		steps := drawForward(t, g, tree)
		for i := range steps {
			if steps[i].Phase == InFlight {
				// As Order assumes; drawing it here keeps both views on one input.
				steps[i].Phase = NeedsUndo
			}
		}
		u := newUnwinding(t, g, steps, g.n)
		var run [][]int
		for {
			p := u.plan()
			if p.Done {
				break
			}
			if len(p.Start) == 0 {
				t.Fatalf("stuck: %+v", u.steps)
			}
			run = append(run, p.Start)
			for _, i := range p.Start {
				u.settle(i)
			}
		}
		u.finish()
		if diff := cmp.Diff(run, Order(steps)); diff != "" {
			t.Fatalf("Order (-run +got):\n%s", diff)
		}
	})
}

// One at a time, a chain is undone exactly as Order said; any tree in some order that it allows.
func TestOrderIsTheRunOneByOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		chain := rapid.Bool().Draw(t, "chain")
		tree := drawTree(t)
		if chain {
			tree = drawChain(t)
		}
		g := graphOf(tree)
		steps := drawForward(t, g, tree)
		for i := range steps {
			if steps[i].Phase == InFlight {
				steps[i].Phase = NeedsUndo
			}
		}
		u := newUnwinding(t, g, steps, 1)
		var run []int
		for {
			p := u.plan()
			if p.Done {
				break
			}
			if len(p.Start) != 1 {
				t.Fatalf("started %v, want exactly one: %+v", p.Start, u.steps)
			}
			run = append(run, p.Start[0])
			u.settle(p.Start[0])
		}
		u.finish()
		planned := slices.Concat(Order(steps)...)
		if !chain {
			slices.Sort(run)
			slices.Sort(planned)
		}
		if diff := cmp.Diff(planned, run); diff != "" {
			t.Fatalf("run (-planned +got):\n%s", diff)
		}
	})
}

// From any state at all, Order lists what it says it lists, each once, and never before a dependent.
func TestOrderProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tree := drawTree(t)
		g := graphOf(tree)
		steps := drawForward(t, g, tree)
		for i := range steps {
			if steps[i].Phase == NeedsUndo {
				steps[i].Phase = rapid.SampledFrom([]Phase{NeedsUndo, NeedsUndo, Undoing, Undone, Held, HeldLetPass}).Draw(t, "phase")
			}
		}
		order := Order(steps)
		wave := make([]int, g.n)
		for w, indices := range order {
			if len(indices) == 0 {
				t.Fatalf("wave %d is empty: %v", w, order)
			}
			for k, i := range indices {
				if wave[i] != 0 {
					t.Fatalf("step %d is listed twice: %v", i, order)
				}
				wave[i] = w + 1
				if k > 0 && steps[indices[k-1]].StartNo < steps[i].StartNo {
					t.Fatalf("wave %d is not by reverse start number: %v", w, order)
				}
			}
		}
		for i, s := range steps {
			if (wave[i] != 0) != (s.Phase == NeedsUndo || s.Phase == InFlight) {
				t.Fatalf("step %d is %v, in wave %d of %v", i, s.Phase, wave[i], order)
			}
			for d := range g.n {
				if g.reach[i][d] && wave[i] != 0 && wave[d] >= wave[i] {
					t.Fatalf("step %d in wave %d, its dependent %d in %d: %v", i, wave[i], d, wave[d], order)
				}
			}
		}
	})
}
