package compensation

import "strconv"

// Phase says where a step stands in the unwinding.
type Phase uint8

const (
	// NeverRan: the step never left the engine, or its branch was not taken. Nothing to undo, blocks
	// nothing.
	NeverRan Phase = iota
	// Clean: the step ran and there is nothing to undo: every attempt was rejected, it is read-only,
	// or it declares no compensation.
	Clean
	// InFlight: the action has not ended. It must be awaited, and blocks what came before it.
	InFlight
	// NeedsUndo: the action ended as succeeded, failed or unknown and has a compensation to run.
	NeedsUndo
	// Undoing: the compensation is under way: dispatched, or waiting between two attempts.
	Undoing
	// Undone: compensated, or resolved by hand.
	Undone
	// Held: the compensation was given up. The step waits for a person and blocks what came before it.
	Held
	// HeldLetPass: as Held, but the definition says that others go on.
	HeldLetPass
)

// blocks reports whether a step in this phase keeps the steps that came before it in a series from being undone. A phase
// this version doesn't know blocks: to wait for a person is the safe mistake.
func (p Phase) blocks() bool {
	switch p {
	case NeverRan, Clean, Undone, HeldLetPass:
		return false
	default:
		return true
	}
}

var phaseNames = [...]string{
	NeverRan:    "never ran",
	Clean:       "clean",
	InFlight:    "in flight",
	NeedsUndo:   "needs undo",
	Undoing:     "undoing",
	Undone:      "undone",
	Held:        "held",
	HeldLetPass: "held, others pass",
}

// String returns the phase in words.
func (p Phase) String() string {
	if int(p) < len(phaseNames) {
		return phaseNames[p]
	}
	return "phase " + strconv.Itoa(int(p))
}
