package saga

import (
	"errors"
	"fmt"
	"strings"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"

	"github.com/sagad/sagad/statemachine"
)

// Verify checks the definition as the engine does when it is registered. The error is an [*InvalidError] with
// everything that is wrong, or says what couldn't be turned into a definition at all.
func (d *Definition[In, Out]) Verify() error {
	if d.err != nil {
		return d.err
	}
	if _, problems := statemachine.Compile(d.Proto()); len(problems) > 0 {
		return &InvalidError{Name: d.Name(), Problems: problems}
	}
	return nil
}

// InvalidError is a definition that the verifier refuses.
type InvalidError struct {
	Name     string
	Problems []*sagadv1.Problem
}

// Error says each problem on a line of its own: where, what, and what to do.
func (e *InvalidError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "definition %s is refused:", e.Name)
	for _, p := range e.Problems {
		b.WriteString("\n\t")
		where := []string{}
		if p.Step != "" {
			where = append(where, p.Step)
		}
		if p.Field != "" {
			where = append(where, p.Field)
		}
		if p.Expression != "" {
			where = append(where, fmt.Sprintf("%q", p.Expression))
		}
		if p.Line > 0 {
			where = append(where, fmt.Sprintf("line %d, column %d", p.Line, p.Column))
		}
		if len(where) > 0 {
			b.WriteString(strings.Join(where, ", ") + ": ")
		}
		b.WriteString(p.Message)
		if p.Mend != "" {
			b.WriteString("; " + p.Mend)
		}
		fmt.Fprintf(&b, " (%s)", p.Rule)
	}
	return b.String()
}

// Err says what couldn't be turned into a definition: a type without a schema, an option given twice. [Definition.Verify]
// includes it.
func (d *Definition[In, Out]) Err() error { return d.err }

var _ error = (*InvalidError)(nil)

// Problems gives the problems of an error of [Definition.Verify], if it has some.
func Problems(err error) []*sagadv1.Problem {
	var e *InvalidError
	if errors.As(err, &e) {
		return e.Problems
	}
	return nil
}
