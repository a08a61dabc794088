// Package compensation plans the unwinding of a saga: which steps to undo next, which wait, which are
// held for a person, and whether all is settled.
//
// It is pure. It knows no clock, chance, goroutine, storage or definition: the caller describes what ran
// as a tree of steps in series and side by side, each step with its phase and start number, and gets a
// plan. The same tree always gives the same plan, so the plan can be shown before it runs, and a node
// that takes a saga over goes on exactly where the former one stopped.
//
// # Order
//
// Steps are undone against the order of the tree. A step may be undone once nothing that came after it in
// a series, of any series around it, may still have an effect: each such step never ran, had nothing to
// undo, or is undone. What ran side by side is undone side by side, within a cap. Where the tree leaves a
// choice, the step that started last is undone first; start numbers are counters, not clocks, so the
// choice is the same on every node.
//
// A step whose action has not ended is never undone and blocks what came before it: undoing under a
// running action would let the action take effect after its compensation. A compensation that was
// given up blocks likewise, until a person settles it, unless the definition says that others go on.
//
// # Phases
//
//	NeverRan, Clean ......................... nothing to undo, blocks nothing
//	InFlight ──► NeedsUndo | Clean .......... the action ends
//	NeedsUndo ──► Undoing ................... the caller starts what Next names
//	Undoing ──► Undone | Held | HeldLetPass   the compensation succeeds, or is given up
//	Held, HeldLetPass ──► Undone ............ resolved by hand
//	Held, HeldLetPass ──► NeedsUndo|Undoing   retried by hand
//	Undone ──► NeedsUndo .................... an effect came late, after "nothing to undo"
//
// The caller alone changes phases; this package only reads them.
//
// # Sources
//
// Sagas, compensating transactions and their reverse order: Hector Garcia-Molina and Kenneth Salem,
// "Sagas", Proceedings of the 1987 ACM SIGMOD International Conference on Management of Data,
// pp. 249-259. Its parallel sagas are the origin of unwinding by dependency in place of by time; here
// the dependencies are those of a series-parallel tree.
package compensation
