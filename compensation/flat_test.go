package compensation

import (
	"cmp"
	"slices"
)

// The reference: the same plan over a flat list of steps that each name all they depend on. It is slow and
// short, and knows nothing of trees.

// flatStep is one step of a saga as the planner sees it.
type flatStep struct {
	// StartNo is the saga's counter at the step's start, 1 for the first. Of two steps that may both
	// be undone, the one with the larger number goes first (of equal ones, the one with the larger
	// index). It is not looked at for a step that never ran.
	StartNo int

	Phase Phase

	// Before holds the indices of all steps that had to be settled before this one started, indirect
	// ones included: the planner does not look for paths. Steps not run stand in it like any other.
	// An index outside the slice is a bug of the caller and panics; repeated ones do no harm.
	Before []int
}

// flatNext is Next.
func flatNext(steps []flatStep, limit int) Plan {
	p := Plan{Done: true}
	// blocked[i]: a step that has i in Before may still have an effect.
	blocked := make([]bool, len(steps))
	free := limit
	for _, s := range steps {
		if !s.Phase.blocks() {
			continue
		}
		for _, b := range s.Before {
			blocked[b] = true
		}
		if s.Phase == Undoing {
			free--
		}
	}
	var ready []int
	for i, s := range steps {
		switch s.Phase {
		case NeverRan, Clean, Undone:
			continue
		case InFlight, Undoing:
		case NeedsUndo:
			if blocked[i] {
				p.Waiting = append(p.Waiting, i)
			} else {
				ready = append(ready, i)
			}
		default:
			// Held, HeldLetPass, and any phase this version doesn't know: a person must look.
			p.Held = append(p.Held, i)
		}
		p.Done = false
	}
	flatSort(steps, ready)
	if n := min(len(ready), max(free, 0)); n > 0 {
		p.Start, ready = ready[:n:n], ready[n:]
	}
	p.Waiting = append(p.Waiting, ready...)
	slices.Sort(p.Waiting)
	return p
}

// flatOrder is Order.
func flatOrder(steps []flatStep) [][]int {
	// dependents[i]: how many steps not yet in a wave have i in Before and block it. Before is
	// transitive, so steps that block nothing can be left out without losing an order through them.
	dependents := make([]int, len(steps))
	for _, s := range steps {
		if s.Phase.blocks() {
			for _, b := range s.Before {
				dependents[b]++
			}
		}
	}
	var wave []int
	for i, s := range steps {
		if s.Phase.blocks() && dependents[i] == 0 {
			wave = append(wave, i)
		}
	}
	var waves [][]int
	for len(wave) > 0 {
		var listed, next []int
		for _, i := range wave {
			if p := steps[i].Phase; p == NeedsUndo || p == InFlight {
				listed = append(listed, i)
			}
			for _, b := range steps[i].Before {
				dependents[b]--
				if dependents[b] == 0 && steps[b].Phase.blocks() {
					next = append(next, b)
				}
			}
		}
		if len(listed) > 0 {
			flatSort(steps, listed)
			waves = append(waves, listed)
		}
		wave = next
	}
	return waves
}

// flatSort sorts indices by start number, largest first.
func flatSort(steps []flatStep, indices []int) {
	slices.SortFunc(indices, func(a, b int) int {
		return cmp.Or(cmp.Compare(steps[b].StartNo, steps[a].StartNo), cmp.Compare(b, a))
	})
}

// flatten gives the tree's steps and, by step, its index in the tree.
func flatten(tree []Node) (steps []flatStep, at []int) {
	// walk visits the subtree at i, whose steps all come after before, and returns the steps of it.
	var walk func(i int, before []int) []int
	walk = func(i int, before []int) []int {
		n := tree[i]
		if n.Kind == Step {
			steps = append(steps, flatStep{StartNo: n.StartNo, Phase: n.Phase, Before: slices.Clone(before)})
			at = append(at, i)
			return []int{len(steps) - 1}
		}
		var all []int
		for c := i + 1; c < i+int(n.Size); c += int(tree[c].Size) {
			b := slices.Clone(before)
			if n.Kind == Series {
				b = append(b, all...)
			}
			all = append(all, walk(c, b)...)
		}
		return all
	}
	if len(tree) > 0 {
		walk(0, nil)
	}
	return steps, at
}

// mapTo turns indices into the flat list into those of the tree.
func mapTo(at, indices []int) []int {
	var out []int
	for _, i := range indices {
		out = append(out, at[i])
	}
	return out
}
