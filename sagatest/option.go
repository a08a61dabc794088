package sagatest

import (
	"encoding/json"
	"time"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// Option of [Run], [Unwind] and [Repeat].
type Option func(*options)

type options struct {
	id       string
	faults   []fault
	signals  []signal
	answers  map[string]json.RawMessage
	others   []*sagadv1.Definition
	err      error
	patience time.Duration
	reversed bool
	retries  int
	// cancelBefore and deadlineBefore name steps.
	cancelBefore, deadlineBefore string
	// cancelAt and deadlineAt are deliveries, and cancelAtWait waits, counted from 1; cancelOnWait is the first wait after a fault.
	cancelAt, deadlineAt, cancelAtWait int
	cancelOnWait                       bool
	// Of Unwind and Repeat.
	only         []string
	concurrently bool
	runsMax      int
}

func optionsOf(opts []Option) options {
	o := options{id: "test", answers: map[string]json.RawMessage{}, patience: 10 * time.Second, runsMax: 20_000}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// Fail strikes a step's action. In maps and loops "step" is all runs of it, and "step@3" the one at index 3.
func Fail(step string, o Outcome) Option {
	return func(opts *options) { opts.faults = append(opts.faults, faultAt(step, o, false)) }
}

// FailUndo strikes a step's compensation.
func FailUndo(step string, o Outcome) Option {
	return func(opts *options) { opts.faults = append(opts.faults, faultAt(step, o, true)) }
}

// CancelBefore cancels the saga when the step's first task is on its way to the worker.
func CancelBefore(step string) Option { return func(o *options) { o.cancelBefore = step } }

// DeadlineBefore lets the saga's deadline pass when the step's first task is on its way to the worker.
func DeadlineBefore(step string) Option { return func(o *options) { o.deadlineBefore = step } }

// Reversed delivers tasks that are there at the same time in the opposite order.
func Reversed() Option { return func(o *options) { o.reversed = true } }

// RetriedByHand lets a person retry what waits for one: each time up to n times in all.
func RetriedByHand(n int) Option { return func(o *options) { o.retries = n } }

// SagaID is the saga's id. Default "test".
func SagaID(id string) Option { return func(o *options) { o.id = id } }

// Signal is sent when the saga waits for it. Signals of one name are sent in the order in which they are given, one for each wait.
func Signal(name, key string, payload any) Option {
	return func(o *options) {
		doc, err := json.Marshal(payload)
		if err != nil && o.err == nil {
			o.err = err
		}
		o.signals = append(o.signals, signal{name, key, doc})
	}
}

type signal struct {
	name, key string
	payload   json.RawMessage
}

// Answer is what a person answers when the saga asks one at the wait of that name.
func Answer(wait string, answer any) Option {
	return func(o *options) {
		doc, err := json.Marshal(answer)
		if err != nil && o.err == nil {
			o.err = err
		}
		o.answers[wait] = doc
	}
}

// With registers further definitions: those of child sagas.
func With(definitions ...interface{ Proto() *sagadv1.Definition }) Option {
	return func(o *options) {
		for _, d := range definitions {
			o.others = append(o.others, d.Proto())
		}
	}
}

// Patience is how long, in real time, a handler may take; its context ends then, or at the attempt's timeout if that is sooner. Default
// 10 s.
func Patience(d time.Duration) Option {
	return func(o *options) {
		if d > 0 {
			o.patience = d
		}
	}
}

// Only makes no runs but those whose names, as findings tell them, begin with one of these. An undisturbed run is always made.
func Only(names ...string) Option {
	return func(o *options) { o.only = append(o.only, names...) }
}

// Concurrently lets [Repeat] call each handler a second time while it runs the first time. The world must bear that; run it
// with -race.
func Concurrently() Option { return func(o *options) { o.concurrently = true } }
