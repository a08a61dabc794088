package compensation

// Kind says what a node is.
type Kind uint8

const (
	// Step is a leaf.
	Step Kind = iota
	// Series: its children ran one after the other, in the order they stand in.
	Series
	// Parallel: its children ran side by side, and don't depend on one another.
	Parallel
)

// Node is one node of the tree of what ran. A tree is a slice in pre-order: a node is followed by its
// subtree, and the first node, the root, holds all others. A Series or Parallel may be empty. Steps that need
// nothing any more (NeverRan, Clean, Undone) may be left out: the plan is the same but for the indices.
type Node struct {
	Kind Kind
	// Phase is where a step stands. It is looked at for steps only.
	Phase Phase
	// Size counts the nodes of the subtree, itself included; 1 of steps.
	Size int32
	// StartNo is the saga's counter at the step's start, 1 for the first. Of two steps that may both be
	// undone, the one with the larger number goes first (of equal ones, the one with the larger index). It is
	// not looked at for a step that never ran.
	StartNo int
	// Ref is the caller's own, and not looked at.
	Ref int32
}
