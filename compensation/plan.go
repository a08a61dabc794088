package compensation

import (
	"cmp"
	"fmt"
	"slices"
)

// Plan says what to do now. All numbers are indices into the tree given to Next, and are those of steps. Every
// step that is NeedsUndo is in exactly one of Start and Waiting. Empty lists are nil.
type Plan struct {
	// Start holds the steps whose compensation is to start now, in this order: largest start number
	// first. There are at most limit minus the number of steps Undoing.
	Start []int

	// Waiting holds the steps that need undoing but are blocked by a step that came after them, or
	// are over the limit; ascending.
	Waiting []int

	// Held holds the steps that wait for a person, whether or not they let others pass; ascending.
	Held []int

	// Done reports that nothing is left to undo, to await or to hold. A step that is held and lets
	// others pass still is held, so the plan is not done. An empty tree is done.
	Done bool
}

// Next returns what to do now. At most limit compensations run at once; one that waits between two
// attempts counts as running. With a limit of zero or less nothing starts.
//
// Next is to be called again after every change of a phase, and the caller must set the steps in Start
// to Undoing before the next call. It takes time in proportion to the size of the tree. A malformed tree
// is a bug of the caller and panics.
func Next(tree []Node, limit int) Plan {
	return new(Planner).Next(tree, limit)
}

// Order returns the whole plan before it runs, as waves. It holds every step that needs undoing and
// every step in flight, each once, on the assumption that steps in flight will need undoing, that each
// compensation succeeds, and that a person resolves what is held. A step is in the wave after the last
// wave, seen or not, with a step that blocks it; within a wave the largest start number comes first.
//
// Without a limit, and if all compensations take equally long, the waves are exactly what Next starts
// one after the other. Otherwise a step may start before an unrelated one of an earlier wave ends, but
// never before a step that came after it in a series is settled.
//
// Compensations under way and held ones are not listed, as they were started already; what they block
// comes after them. Empty waves are left out. Order takes as long as Next does, and the time to sort
// what it lists. A malformed tree panics, as with Next.
func Order(tree []Node) [][]int {
	return new(Planner).Order(tree)
}

// Planner plans as Next and Order do, and keeps its memory for the next call. The zero value is ready. What a
// call returns is valid until the next call of the same method. It is not safe for concurrent use.
type Planner struct {
	// waves holds by node how many waves its subtree takes to undo. Of steps that were placed it is the wave
	// they are in, from 0.
	waves []int32
	open  []openNode

	start, need, held []int
	order             []int
	cuts              [][]int
}

// openNode is a node whose children are being visited.
type openNode struct {
	index, end int
	series     bool
	// after is the wave that the next child can end in at the earliest.
	after int32
}

// Next is as the function Next.
func (pl *Planner) Next(tree []Node, limit int) Plan {
	pl.place(tree)
	p := Plan{Done: true}
	pl.start, pl.need, pl.held = pl.start[:0], pl.need[:0], pl.held[:0]
	need := 0
	for i := range tree {
		if tree[i].Kind == Step && tree[i].Phase == NeedsUndo {
			need++
		}
	}
	pl.need = slices.Grow(pl.need, need) // at once: it may be most of the tree
	free := limit
	for i := range tree {
		if tree[i].Kind != Step {
			continue
		}
		switch tree[i].Phase {
		case NeverRan, Clean, Undone:
			continue
		case Undoing:
			free--
		case InFlight:
		case NeedsUndo:
			pl.need = append(pl.need, i)
		default:
			// Held, HeldLetPass, and any phase this version doesn't know: a person must look.
			pl.held = append(pl.held, i)
		}
		p.Done = false
	}
	if free > 0 {
		pl.choose(tree, free)
	}
	if len(pl.start) > 0 {
		p.Start = slices.Clip(pl.start)
		// What is ready comes in a strict order, so the last one chosen tells the chosen from the others.
		last := pl.start[len(pl.start)-1]
		pl.need = slices.DeleteFunc(pl.need, func(i int) bool {
			return pl.waves[i] == 0 && byReverseStart(tree, i, last) <= 0
		})
	}
	if len(pl.need) > 0 {
		p.Waiting = slices.Clip(pl.need)
	}
	if len(pl.held) > 0 {
		p.Held = slices.Clip(pl.held)
	}
	return p
}

// choose puts into start the n steps that go first of those that are ready. It keeps the n best so far as a
// heap with the worst of them on top, as there may be thousands ready and few places. The last of the tree
// mostly started last, so it goes backwards and seldom has to change what it keeps.
func (pl *Planner) choose(tree []Node, n int) {
	heap := pl.start
	down := func(at int) {
		for {
			c := 2*at + 1
			if c >= len(heap) {
				return
			}
			if c+1 < len(heap) && byReverseStart(tree, heap[c+1], heap[c]) > 0 {
				c++
			}
			if byReverseStart(tree, heap[c], heap[at]) < 0 {
				return
			}
			heap[at], heap[c] = heap[c], heap[at]
			at = c
		}
	}
	for _, i := range slices.Backward(pl.need) {
		if pl.waves[i] > 0 {
			continue
		}
		if len(heap) < n {
			heap = append(heap, i)
			if len(heap) == n {
				for at := n/2 - 1; at >= 0; at-- {
					down(at)
				}
			}
		} else if byReverseStart(tree, i, heap[0]) < 0 {
			heap[0] = i
			down(0)
		}
	}
	slices.SortFunc(heap, func(a, b int) int { return byReverseStart(tree, a, b) })
	pl.start = heap
}

// Order is as the function Order.
func (pl *Planner) Order(tree []Node) [][]int {
	pl.place(tree)
	pl.order, pl.cuts = pl.order[:0], pl.cuts[:0]
	for i := range tree {
		if tree[i].Kind == Step && (tree[i].Phase == NeedsUndo || tree[i].Phase == InFlight) {
			pl.order = append(pl.order, i)
		}
	}
	if len(pl.order) == 0 {
		return nil
	}
	slices.SortFunc(pl.order, func(a, b int) int {
		return cmp.Or(cmp.Compare(pl.waves[a], pl.waves[b]), byReverseStart(tree, a, b))
	})
	from := 0
	for k := 1; k <= len(pl.order); k++ {
		if k == len(pl.order) || pl.waves[pl.order[k]] != pl.waves[pl.order[from]] {
			pl.cuts = append(pl.cuts, pl.order[from:k:k])
			from = k
		}
	}
	return slices.Clip(pl.cuts)
}

// place finds the wave of each step: how many steps, one after the other, must be settled before it may be
// undone. In a series that is the sum over the later children, side by side the most that one child takes; a
// step takes one wave if it blocks, else none. The first pass adds up from the leaves, the second hands down.
func (pl *Planner) place(tree []Node) {
	if len(tree) == 0 {
		return
	}
	if int(tree[0].Size) != len(tree) {
		panic(fmt.Sprintf("compensation: malformed tree: node 0 says that it has %d nodes, and there are %d", tree[0].Size, len(tree)))
	}
	pl.waves = slices.Grow(pl.waves[:0], len(tree))[:len(tree)]
	clear(pl.waves)
	waves := pl.waves

	open := pl.open[:0]
	for i := range tree {
		n := &tree[i]
		check(open, i, n)
		if n.Kind != Step {
			open = append(open, openNode{index: i, end: i + int(n.Size), series: n.Kind == Series})
		} else if n.Phase.blocks() {
			waves[i] = 1
			if len(open) > 0 {
				open[len(open)-1].add(waves, 1)
			}
		}
		for len(open) > 0 && open[len(open)-1].end == i+1 {
			ended := open[len(open)-1].index
			open = open[:len(open)-1]
			if len(open) > 0 {
				open[len(open)-1].add(waves, waves[ended])
			}
		}
	}

	for i := range tree {
		n := &tree[i]
		for len(open) > 0 && open[len(open)-1].end == i {
			open = open[:len(open)-1]
		}
		var base int32
		if len(open) > 0 {
			in := &open[len(open)-1]
			if in.series {
				in.after -= waves[i]
			}
			base = in.after
		}
		if n.Kind == Step {
			waves[i] = base
			continue
		}
		o := openNode{index: i, end: i + int(n.Size), series: n.Kind == Series, after: base}
		if o.series {
			o.after += waves[i]
		}
		open = append(open, o)
	}
	pl.open = open[:0]
}

// add counts a child that takes n waves.
func (o *openNode) add(waves []int32, n int32) {
	if o.series {
		waves[o.index] += n
	} else {
		waves[o.index] = max(waves[o.index], n)
	}
}

// check panics if node i can't stand where it does.
func check(open []openNode, i int, n *Node) {
	switch {
	case n.Kind > Parallel:
		panic(fmt.Sprintf("compensation: malformed tree: node %d is of no known kind (%d)", i, n.Kind))
	case n.Kind == Step && n.Size != 1:
		panic(fmt.Sprintf("compensation: malformed tree: node %d is a step and of size %d, not 1", i, n.Size))
	case n.Size < 1:
		panic(fmt.Sprintf("compensation: malformed tree: node %d is of size %d, and counts itself", i, n.Size))
	case len(open) > 0 && i+int(n.Size) > open[len(open)-1].end:
		in := open[len(open)-1]
		panic(fmt.Sprintf("compensation: malformed tree: node %d ends before %d, after its parent %d, which ends before %d",
			i, i+int(n.Size), in.index, in.end))
	}
}

// byReverseStart orders indices by start number, largest first. Equal numbers don't occur in a sound
// saga; the index decides then, so that the plan is the same everywhere all the same.
func byReverseStart(tree []Node, a, b int) int {
	return cmp.Or(cmp.Compare(tree[b].StartNo, tree[a].StartNo), cmp.Compare(b, a))
}
