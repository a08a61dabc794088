package compensation

import (
	"cmp"
	"slices"
)

// Step is one step of a saga as the planner sees it.
type Step struct {
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

// Plan says what to do now. All numbers are indices into the steps given to Next. Every step that is
// NeedsUndo is in exactly one of Start and Waiting. Empty lists are nil.
type Plan struct {
	// Start holds the steps whose compensation is to start now, in this order: largest start number
	// first. There are at most limit minus the number of steps Undoing.
	Start []int

	// Waiting holds the steps that need undoing but are blocked by a step that depends on them, or
	// are over the limit; ascending.
	Waiting []int

	// Held holds the steps that wait for a person, whether or not they let others pass; ascending.
	Held []int

	// Done reports that nothing is left to undo, to await or to hold. A step that is held and lets
	// others pass still is held, so the plan is not done.
	Done bool
}

// Next returns what to do now. At most limit compensations run at once; one that waits between two
// attempts counts as running. With a limit of zero or less nothing starts.
//
// Next is to be called again after every change of a phase, and the caller must set the steps in Start
// to Undoing before the next call. It takes time in proportion to the sum of the lengths of all Before
// lists.
func Next(steps []Step, limit int) Plan {
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
	byReverseStart(steps, ready)
	if n := min(len(ready), max(free, 0)); n > 0 {
		p.Start, ready = ready[:n:n], ready[n:]
	}
	p.Waiting = append(p.Waiting, ready...)
	slices.Sort(p.Waiting)
	return p
}

// Order returns the whole plan before it runs, as waves. It holds every step that needs undoing and
// every step in flight, each once, on the assumption that steps in flight will need undoing, that each
// compensation succeeds, and that a person resolves what is held. A step is in the wave after the last
// wave, seen or not, with a step that blocks it; within a wave the largest start number comes first.
//
// Without a limit, and if all compensations take equally long, the waves are exactly what Next starts
// one after the other. Otherwise a step may start before an unrelated one of an earlier wave ends, but
// never before a step that depends on it is settled.
//
// Compensations under way and held ones are not listed, as they were started already; what they block
// comes after them. Empty waves are left out. Order takes as long as Next does.
func Order(steps []Step) [][]int {
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
			byReverseStart(steps, listed)
			waves = append(waves, listed)
		}
		wave = next
	}
	return waves
}

// byReverseStart sorts indices by start number, largest first. Equal numbers don't occur in a sound
// saga; the index decides then, so that the plan is the same everywhere all the same.
func byReverseStart(steps []Step, indices []int) {
	slices.SortFunc(indices, func(a, b int) int {
		return cmp.Or(cmp.Compare(steps[b].StartNo, steps[a].StartNo), cmp.Compare(b, a))
	})
}
