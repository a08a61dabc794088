package client

import (
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// Which errors there are; use errors.Is.
var (
	// ErrNotFound: there is no such saga or definition.
	ErrNotFound = errors.New("not found")
	// ErrConflict: the id is taken by a saga that was started with other content, or a signal's key by another payload.
	// Choose another id, or find out who took it.
	ErrConflict = errors.New("the id is taken by other content")
	// ErrNotAllowed: the saga is beyond what was asked for: it has ended, or no longer goes forward.
	ErrNotAllowed = errors.New("not allowed now")
	// ErrInvalid: the request can't be right, whenever it is made.
	ErrInvalid = errors.New("invalid request")
	// ErrUnavailable: the server couldn't answer within the time for retries. The call may have had its effect; making
	// it again is safe.
	ErrUnavailable = errors.New("sagad can't be reached")
)

// Error is a call's failure.
type Error struct {
	// Code is stable, for example ID_TAKEN.
	Code string
	// Message says what to do.
	Message string
	// Problems of a definition.
	Problems []*sagadv1.Problem

	kind  error
	cause error
}

func (e *Error) Error() string {
	if len(e.Problems) < 2 {
		return e.Message
	}
	var b strings.Builder
	// The message goes on with the first problem.
	head, _, _ := strings.Cut(e.Message, ": ")
	b.WriteString(head + ":")
	for _, p := range e.Problems {
		place := p.Definition
		for _, name := range [...]string{p.Step, p.Field} {
			if name != "" {
				place += "." + name
			}
		}
		fmt.Fprintf(&b, "\n  %s: %s [%s]: %s", place, p.Message, p.Rule, p.Mend)
	}
	return b.String()
}

// Unwrap gives the sentinel, if there is one, and the transport's error.
func (e *Error) Unwrap() []error {
	if e.kind == nil {
		return []error{e.cause}
	}
	return []error{e.kind, e.cause}
}

// remote says that a server gave this answer.
func remote(err error) bool {
	var cerr *connect.Error
	return errors.As(err, &cerr) && cerr.IsRemote()
}

func asError(err error, address string) *Error {
	var cerr *connect.Error
	if !errors.As(err, &cerr) || cerr.Code() == connect.CodeUnavailable && !cerr.IsRemote() {
		return &Error{
			Code: "UNAVAILABLE", Message: fmt.Sprintf("no sagad answers at %s; is it running? (%v)", address, err), kind: ErrUnavailable, cause: err,
		}
	}
	e := &Error{Code: strings.ToUpper(cerr.Code().String()), Message: cerr.Message(), cause: err}
	if e.Message == "" {
		e.Message = cerr.Error()
	}
	for _, d := range cerr.Details() {
		m, derr := connectproto.UnmarshalErrorDetail(d)
		if derr != nil {
			continue
		}
		switch m := m.(type) {
		case *errdetails.ErrorInfo:
			e.Code = m.Reason
		case *sagadv1.Problem:
			e.Problems = append(e.Problems, m)
		}
	}
	switch cerr.Code() {
	case connect.CodeNotFound:
		e.kind = ErrNotFound
	case connect.CodeAlreadyExists:
		e.kind = ErrConflict
	case connect.CodeInvalidArgument:
		e.kind = ErrInvalid
	case connect.CodeFailedPrecondition:
		e.kind = ErrNotAllowed
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded:
		e.kind = ErrUnavailable
	}
	return e
}

// Cause is what turned a saga back.
type Cause struct {
	// Kind is for example CAUSE_KIND_REJECTED.
	Kind historyv1.CauseKind
	// Step is empty if it wasn't a step.
	Step string
	// Code and Message are the step's error: what a handler's Reject said.
	Code, Message string
	// Actor cancelled, or decided.
	Actor string
}

func asCause(c *historyv1.Cause) Cause {
	return Cause{Kind: c.GetKind(), Step: c.GetStep(), Code: c.GetError().GetCode(), Message: c.GetError().GetMessage(), Actor: c.GetActor()}
}

// String tells it in a few words.
func (c Cause) String() string {
	var what string
	switch c.Kind {
	case historyv1.CauseKind_CAUSE_KIND_REJECTED:
		what = c.Step + " was rejected"
	case historyv1.CauseKind_CAUSE_KIND_GIVEN_UP:
		what = c.Step + " was given up"
	case historyv1.CauseKind_CAUSE_KIND_CANCELLED:
		what = "it was cancelled"
	case historyv1.CauseKind_CAUSE_KIND_DEADLINE:
		what = "its deadline passed"
	case historyv1.CauseKind_CAUSE_KIND_OPERATOR:
		what = "a person decided so"
	case historyv1.CauseKind_CAUSE_KIND_EXPRESSION:
		what = "an expression of " + c.Step + " can't be evaluated"
	case historyv1.CauseKind_CAUSE_KIND_BLOCK:
		what = c.Step + " failed"
	case historyv1.CauseKind_CAUSE_KIND_PARENT:
		what = "the saga of which it is a child unwinds"
	default:
		return "no cause is known"
	}
	if c.Actor != "" {
		what += " (by " + c.Actor + ")"
	}
	if c.Code != "" {
		what += ": " + c.Code
	}
	if c.Message != "" {
		what += ": " + c.Message
	}
	return what
}

// CompensatedError: the saga was undone. Nothing of it stands.
type CompensatedError struct {
	ID string
	// Cause turned it back.
	Cause Cause
	// SettledByHand is how many of its effects a person settled.
	SettledByHand int
}

func (e *CompensatedError) Error() string {
	return fmt.Sprintf("saga %q was undone: %s", e.ID, e.Cause)
}

// AbandonedError: a person gave the saga up. Effects were left behind; its history lists them.
type AbandonedError struct {
	ID    string
	Cause Cause
}

func (e *AbandonedError) Error() string {
	return fmt.Sprintf("saga %q was abandoned by a person, and effects may be left behind: its history lists them", e.ID)
}

// StuckError: the saga waits for a person. It isn't over: waiting again is right. Only [StopWhenStuck] asks for it.
type StuckError struct {
	ID string
	// Items are its open operations items.
	Items []*sagadv1.OperationsItem
}

func (e *StuckError) Error() string {
	items := "1 open operations item"
	if len(e.Items) != 1 {
		items = fmt.Sprintf("%d open operations items", len(e.Items))
	}
	return fmt.Sprintf("saga %q waits for a person: %s, see `sagad ops list --saga %s`", e.ID, items, e.ID)
}
