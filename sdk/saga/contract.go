package saga

import "reflect"

// Compensatable is the contract of an activity that can be undone: it has an action and a compensation. In is the
// action's input, Out its output. Saga authors and workers share it:
//
//	var ReserveStock = saga.Compensatable[ReserveIn, Reserved]{Name: "inventory.reserve"}
type Compensatable[In, Out any] struct {
	// Name is words of lower-case letters, digits, '-' and '_' joined by dots, 63 characters at most.
	Name string
	// Probe says that workers can be asked whether the action happened; they serve a probe for it.
	Probe bool
	// Claimed says that no two attempts run at once: each is claimed before it runs. Its steps need a heartbeat.
	Claimed bool
}

// ReadOnly is the contract of an activity that changes nothing, so that there is nothing to undo.
type ReadOnly[In, Out any] struct {
	// Name is words of lower-case letters, digits, '-' and '_' joined by dots, 63 characters at most.
	Name string
}

// Activity is the contract of an activity that changes something and can't be undone: a pivot, or a step after it.
type Activity[In, Out any] struct {
	// Name is words of lower-case letters, digits, '-' and '_' joined by dots, 63 characters at most.
	Name string
	// Probe says that workers can be asked whether the action happened; they serve a probe for it.
	Probe bool
	// Claimed says that no two attempts run at once: each is claimed before it runs. Its steps need a heartbeat.
	Claimed bool
}

// contract is a contract without its types.
type contract struct {
	name    string
	in, out reflect.Type
}

func contractOf[In, Out any](name string) contract {
	return contract{name: name, in: reflect.TypeFor[In](), out: reflect.TypeFor[Out]()}
}
