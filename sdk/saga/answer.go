package saga

import (
	"errors"
	"fmt"
	"time"
)

// What handlers answer besides an output. All of them are recognised however deeply they are wrapped, by %w or in
// errors.Join, and as values as well as pointers.

// Rejection is a business no: nothing was done, and asking again won't help. A compensation that answers so can't
// undo.
type Rejection struct {
	// Code is short and stable, for example INSUFFICIENT_FUNDS.
	Code    string
	Message string
}

func (r Rejection) Error() string {
	if r.Message == "" {
		return r.Code
	}
	return r.Code + ": " + r.Message
}

// Reject answers that nothing was done and that asking again won't help, for example ("INSUFFICIENT_FUNDS", "the card
// has 12.50 EUR left").
func Reject(code, message string) error { return Rejection{Code: code, Message: message} }

// Later is a failure that should be tried again, but not yet.
type Later struct {
	After time.Duration
	Err   error
}

func (l Later) Error() string { return fmt.Sprintf("%s (again after %v)", text(l.Err), l.After) }

// Unwrap gives the cause.
func (l Later) Unwrap() error { return l.Err }

// RetryAfter answers that the attempt failed and that the next one should wait for d at least.
func RetryAfter(d time.Duration, err error) error { return Later{After: d, Err: err} }

// Surrender is a failure that shouldn't be tried again, although something may have been done.
type Surrender struct{ Err error }

func (s Surrender) Error() string { return text(s.Err) + " (given up)" }

// Unwrap gives the cause.
func (s Surrender) Unwrap() error { return s.Err }

// GiveUp answers that the attempt failed and that there should be no other one. Something may have been done, so the
// step is undone.
func GiveUp(err error) error { return Surrender{Err: err} }

// NothingToUndo is the answer of a compensation that finds nothing of the action.
//
//lint:ignore ST1012 it is an answer, and is read as one
var NothingToUndo = errors.New("nothing to undo")

// Undoable is a compensation that can't be done.
type Undoable struct{ Err error }

func (u Undoable) Error() string { return "can't undo: " + text(u.Err) }

// Unwrap gives the cause.
func (u Undoable) Unwrap() error { return u.Err }

// CantUndo is the answer of a compensation that a person must look at: it isn't tried again.
func CantUndo(err error) error { return Undoable{Err: err} }

func text(err error) string {
	if err == nil {
		return "no reason given"
	}
	return err.Error()
}

// Find looks for an answer of type T in err, as a value or a pointer, however deeply wrapped.
func find[T error](err error) (T, bool) {
	var v T
	if errors.As(err, &v) {
		return v, true
	}
	var p *T
	if errors.As(err, any(&p)) && p != nil {
		return *p, true
	}
	return v, false
}

// Kind is what a handler's error means.
type Kind uint8

// The meanings. Failed is that of every error that isn't one of the answers here.
const (
	Failed Kind = iota
	Rejected
	NothingUndone
	Unable
)

// Meaning is what a handler's error means, taken apart.
type Meaning struct {
	Kind Kind
	// Code and Message are the rejection's, if there is one. Else Code is empty and Message is the error's text.
	Code, Message string
	// RetryAfter and GiveUp are of failures.
	RetryAfter time.Duration
	GiveUp     bool
}

// MeaningOf says what a handler's error means; undo says that the handler is a compensation. If an error holds several
// answers, the more careful one counts: giving up (something may have been done) over a rejection (nothing was), not being able to
// undo over having nothing to undo.
func MeaningOf(err error, undo bool) Meaning {
	m := Meaning{Message: err.Error()}
	rejection, rejected := find[Rejection](err)
	_, unable := find[Undoable](err)
	_, surrender := find[Surrender](err)
	switch {
	case undo && (unable || rejected):
		m.Kind = Unable
		if rejected {
			m.Code = rejection.Code
		}
	case surrender:
		m.GiveUp = true
	case undo && errors.Is(err, NothingToUndo):
		m.Kind = NothingUndone
	case rejected:
		m.Kind, m.Code, m.Message = Rejected, rejection.Code, rejection.Message
		if m.Message == "" {
			m.Message = err.Error()
		}
	default:
		if later, ok := find[Later](err); ok && later.After > 0 {
			m.RetryAfter = later.After
		}
	}
	return m
}
