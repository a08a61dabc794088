package engine

import (
	"fmt"
	"time"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// NotOwnerError: another node owns the saga's shard. Ask it.
type NotOwnerError struct {
	Shard int
	// Address of the owner's API.
	Address string
}

func (e *NotOwnerError) Error() string {
	return fmt.Sprintf("shard %d belongs to the node at %s: ask there", e.Shard, e.Address)
}

// UnavailableError: this can't be answered now, and nothing is lost. What was asked for may or may not have happened;
// ask again with the same content.
type UnavailableError struct {
	Reason string
	// RetryIn says when it makes sense to ask again.
	RetryIn time.Duration
	// Cause is for logs; nil if there is none.
	Cause error
}

func (e *UnavailableError) Unwrap() error { return e.Cause }

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("%s: ask again in %s with the same content", e.Reason, e.RetryIn)
}

func unavailable(reason string) *UnavailableError {
	return &UnavailableError{Reason: reason, RetryIn: retryIn}
}

func databaseError(cause error) *UnavailableError {
	return &UnavailableError{Reason: "the database can't be used now", RetryIn: retryIn, Cause: cause}
}

// ConflictError: the id is taken by a saga that was started with other content. It shows nothing of that content.
type ConflictError struct {
	Namespace, ID string
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("saga %q exists in namespace %q with other content: use another id, or ask with what it was started with", e.ID, e.Namespace)
}

// NotFoundError: there is no such saga or definition.
type NotFoundError struct {
	// What is "saga" or "definition".
	What            string
	Namespace, Name string
	Version         int32
	// Deleted: there was one, of definitions.
	Deleted bool
}

func (e *NotFoundError) Error() string {
	if e.Deleted {
		return fmt.Sprintf("version %d of %s %q in namespace %q was deleted", e.Version, e.What, e.Name, e.Namespace)
	}
	if e.Version > 0 {
		return fmt.Sprintf("there is no %s %q version %d in namespace %q", e.What, e.Name, e.Version, e.Namespace)
	}
	return fmt.Sprintf("there is no %s %q in namespace %q", e.What, e.Name, e.Namespace)
}

// InvalidError: an argument is outside of its limits. Mend it; asking again doesn't help.
type InvalidError struct {
	Field, Message string
}

func (e *InvalidError) Error() string { return e.Field + " " + e.Message }

// ProblemsError: a definition doesn't pass the verifier.
type ProblemsError struct {
	Problems []*sagadv1.Problem
}

func (e *ProblemsError) Error() string {
	if len(e.Problems) == 0 {
		return "the definition can't be accepted"
	}
	p := e.Problems[0]
	where := p.GetDefinition()
	if p.GetStep() != "" {
		where += "." + p.GetStep()
	}
	more := ""
	if n := len(e.Problems) - 1; n > 0 {
		more = fmt.Sprintf(" (and %d more)", n)
	}
	return fmt.Sprintf("%s: %s (%s): %s%s", where, p.GetMessage(), p.GetRule(), p.GetMend(), more)
}

// QuarantinedError: the saga's history can't be applied by this release, or the database refuses what follows from it.
// The saga rests, its history is untouched, and it is tried again each minute. A person must look at it.
type QuarantinedError struct {
	Namespace, ID string
	Why           string
}

func (e *QuarantinedError) Error() string {
	return fmt.Sprintf("saga %q in namespace %q is quarantined and tried again each minute: %s", e.ID, e.Namespace, e.Why)
}
