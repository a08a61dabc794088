package saga

import "reflect"

// Compensatable is the contract of an activity that can be undone: it has an action and a compensation. In is the
// action's input, Out its output. Saga authors and workers share it:
//
//	var ReserveStock = saga.Compensatable[ReserveIn, Reserved]{Name: "inventory.reserve"}
type Compensatable[In, Out any] struct {
	// Name is words of lower-case letters, digits, '-' and '_' joined by dots, 63 characters at most.
	Name string
	// Probe: its workers can be asked, by the action's key, whether the action happened.
	Probe bool
	// Claimed: an attempt must be claimed before it runs, and no two run at once. Its steps need a [Heartbeat].
	Claimed bool
}

// ReadOnly is the contract of an activity that changes nothing, so that there is nothing to undo.
type ReadOnly[In, Out any] struct {
	// Name is words of lower-case letters, digits, '-' and '_' joined by dots, 63 characters at most.
	Name string
	// Claimed: an attempt must be claimed before it runs, and no two run at once. Its steps need a [Heartbeat].
	Claimed bool
}

// Activity is the contract of an activity that changes something and can't be undone: a pivot, or a step after it.
type Activity[In, Out any] struct {
	// Name is words of lower-case letters, digits, '-' and '_' joined by dots, 63 characters at most.
	Name string
	// Probe: its workers can be asked, by the action's key, whether the action happened.
	Probe bool
	// Claimed: an attempt must be claimed before it runs, and no two run at once. Its steps need a [Heartbeat].
	Claimed bool
}

// Signal is the contract of a message to a running saga: T is its payload. Saga authors share it with whoever sends it:
//
//	var Paid = saga.Signal[Payment]{Name: "paid"}
type Signal[T any] struct {
	// Name is lower-case letters, digits and '_', starting with a letter, 63 at most.
	Name string
}

// contract is a contract without its types.
type contract struct {
	name           string
	in, out        reflect.Type
	probe, claimed bool
}

func contractOf[In, Out any](name string, probe, claimed bool) contract {
	return contract{name: name, in: reflect.TypeFor[In](), out: reflect.TypeFor[Out](), probe: probe, claimed: claimed}
}
