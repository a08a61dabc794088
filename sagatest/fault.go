package sagatest

import (
	"fmt"
	"strings"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
)

// Outcome is what is made of an attempt instead of what its handler would have made of it. It strikes the first attempt; see
// [Outcome.On] and [Outcome.Always].
type Outcome struct {
	kind    kind
	code    string
	uses    int
	attempt int
	always  bool
	// atEnd: what is late comes when all is over, not right after its undo.
	atEnd bool
}

type kind uint8

const (
	noFault kind = iota
	rejected
	errored
	erroredAfter
	unknownDone
	unknownNotDone
	late
	lateAnswer
	duplicate
	atOnce
	crashBefore
	crashAfter
	interrupted
)

// Rejected: the handler isn't called, and the answer is a business no with this code.
func Rejected(code string) Outcome { return Outcome{kind: rejected, code: code} }

// Errored: the handler isn't called, and the attempt fails.
func Errored() Outcome { return Outcome{kind: errored} }

// ErroredAfter: the handler is called, and the attempt fails nevertheless.
func ErroredAfter() Outcome { return Outcome{kind: erroredAfter} }

// UnknownDone: the handler is called, and its answer is lost. The attempt times out.
func UnknownDone() Outcome { return Outcome{kind: unknownDone} }

// UnknownNotDone: the task is lost, so the handler isn't called. The attempt times out.
func UnknownNotDone() Outcome { return Outcome{kind: unknownNotDone} }

// Late: the attempt times out, and its handler is called only when the step has been undone, or else at the saga's end.
func Late() Outcome { return Outcome{kind: late} }

// LateAnswer: the handler is called in time, and its answer comes only when the step has been undone, or else at the saga's end.
func LateAnswer() Outcome { return Outcome{kind: lateAnswer} }

// Duplicate: the task is delivered twice, and both answers arrive.
func Duplicate() Outcome { return Outcome{kind: duplicate} }

// CrashBefore: the worker dies before it calls the handler, and another one gets the task again.
func CrashBefore() Outcome { return Outcome{kind: crashBefore} }

// CrashAfter: the worker dies after the handler returned, and another one gets the task again.
func CrashAfter() Outcome { return Outcome{kind: crashAfter} }

// Interrupted: the handler's context ends at the n-th use that is made of it: of Err, of Done, or by a checkpoint, of which each
// has two, before and after it is kept. The answer is the handler's.
func Interrupted(n int) Outcome { return Outcome{kind: interrupted, uses: max(n, 1)} }

// On strikes the n-th attempt instead of the first.
func (o Outcome) On(n int) Outcome { o.attempt = max(n, 1); return o }

// Always strikes all attempts.
func (o Outcome) Always() Outcome { o.always = true; return o }

// AtEnd lets what is late come when the whole saga is over.
func (o Outcome) AtEnd() Outcome { o.atEnd = true; return o }

// name is what the outcome is called in the names of runs.
func (o Outcome) name() string {
	s := map[kind]string{
		rejected: "rejected", errored: "error", erroredAfter: "error-after", unknownDone: "unknown-done", unknownNotDone: "unknown-not-done",
		late: "late", lateAnswer: "late-answer", duplicate: "duplicate", atOnce: "at-once", crashBefore: "crash-before", crashAfter: "crash-after",
	}[o.kind]
	if o.kind == interrupted {
		s = fmt.Sprintf("interrupted-%d", o.uses)
	}
	if o.atEnd {
		s += "-at-end"
	}
	switch {
	case o.always:
		s += "/always"
	case o.attempt > 1:
		s += fmt.Sprintf("/attempt-%d", o.attempt)
	}
	return s
}

// words says what is injected; undo says that it is done to a compensation.
func (o Outcome) words() string {
	s := map[kind]string{
		rejected:       "it is answered with a business no, and nothing was done",
		errored:        "it fails before it has done anything",
		erroredAfter:   "it does its work, and then fails",
		unknownDone:    "it does its work, and its answer is lost",
		unknownNotDone: "its task is lost, and nothing was done",
		late:           "it times out, and does its work much later: when it has been undone, or at the end",
		lateAnswer:     "it does its work and times out, and its answer comes much later: when it has been undone, or at the end",
		duplicate:      "its task is delivered twice",
		atOnce:         "its task is delivered twice at the same time",
		crashBefore:    "the worker dies before the work, and another one gets the task again",
		crashAfter:     "the worker dies after the work, and another one gets the task again",
		interrupted:    fmt.Sprintf("its context ends at its use number %d, halfway through the work", o.uses),
	}[o.kind]
	if o.atEnd {
		s = "it times out, and does its work only when the whole saga is over"
	}
	switch {
	case o.always:
		s += " (each attempt)"
	case o.attempt > 1:
		s += fmt.Sprintf(" (attempt %d)", o.attempt)
	}
	return s
}

// fault is an outcome and the call that it strikes.
type fault struct {
	Outcome
	step, item string
	anyItem    bool
	undo       bool
	// upTo is the last attempt that it strikes; 0: there is none.
	upTo int
}

// faultAt reads where a fault strikes: a step, or one of its runs in a map or a loop, as "step@3".
func faultAt(where string, o Outcome, undo bool) fault {
	step, item, has := strings.Cut(where, "@")
	if o.attempt == 0 {
		o.attempt = 1
	}
	return fault{Outcome: o, step: step, item: item, anyItem: !has, undo: undo}
}

func (f *fault) where() string {
	if f.anyItem || f.item == "" {
		return f.step
	}
	return f.step + "@" + f.item
}

func (f *fault) hits(t *workerv1.Task) bool {
	undo := t.Direction == workerv1.Direction_DIRECTION_UNDO
	if f.upTo > 0 && int(t.Attempt) > f.upTo {
		return false
	}
	return t.Direction != workerv1.Direction_DIRECTION_PROBE && f.step == t.Step && (f.anyItem || f.item == t.Item) && f.undo == undo &&
		(f.always || int(t.Attempt) == f.attempt && t.Generation == 1)
}

// calls says whether the handler is called at all.
func (o Outcome) calls() bool {
	switch o.kind {
	case rejected, errored, unknownNotDone, crashBefore:
		return false
	}
	return true
}
