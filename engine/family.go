package engine

import (
	"context"
	"errors"
	"fmt"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/store"
)

// generationsMax bounds how deep child sagas may run child sagas.
const generationsMax = 8

// checkChildren says what is wrong with the child sagas that a definition names: that they are there, can be undone if they must be, and
// don't run the definition itself again. What can't be looked up is an error.
func (e *Engine) checkChildren(ctx context.Context, namespace string, def *sagadv1.Definition) ([]*sagadv1.Problem, error) {
	var problems []*sagadv1.Problem
	problem := func(c *sagadv1.Child, rule, message, mend string) {
		problems = append(problems, &sagadv1.Problem{Definition: def.GetName(), Step: c.GetName(), Field: "definition", Rule: rule, Message: message, Mend: mend})
	}
	for _, c := range children(def.ProtoReflect(), nil) {
		if c.GetDefinition() == def.GetName() {
			problem(c, "child-cycle", "the child saga is of this very definition, so that it would never end", "let a loop or a map repeat the work")
			continue
		}
		_, d, err := e.definitions.startable(ctx, namespace, c.GetDefinition(), c.GetVersion())
		var missing *NotFoundError
		if errors.As(err, &missing) {
			problem(c, "child-unknown", fmt.Sprintf("there is no definition %q to run as a child saga: %v", c.GetDefinition(), missing), "register it first, or correct the name or the version")
			continue
		}
		if err != nil {
			return nil, err
		}
		found, pivot, err := e.descend(ctx, namespace, d, def.GetName(), 1)
		switch {
		case err != nil:
			return nil, err
		case found != "":
			problem(c, "child-cycle", found, "break the circle: sagas that run each other never end")
		case pivot && c.GetKind() == sagadv1.Kind_KIND_COMPENSATABLE:
			problem(c, "child-pivot", fmt.Sprintf("definition %s version %d has a pivot, so a saga of it can't be undone, and this child saga may have to be", d.Name, d.Version),
				"run it after the pivot, as a retriable child, or name a definition without a pivot")
		}
	}
	return problems, nil
}

// descend looks through what a child saga runs in its turn: whether it comes back to a name, and whether it has a pivot itself.
func (e *Engine) descend(ctx context.Context, namespace string, d store.Definition, name string, depth int) (found string, pivot bool, _ error) {
	m, _, err := e.definitions.get(ctx, namespace, d.Name, d.Version)
	if err != nil {
		return "", false, err
	}
	for _, kid := range children(m.Definition().ProtoReflect(), nil) {
		if kid.GetDefinition() == name {
			return fmt.Sprintf("definition %s version %d runs %s again", d.Name, d.Version, name), false, nil
		}
		if depth >= generationsMax {
			return fmt.Sprintf("child sagas run child sagas deeper than %d", generationsMax), false, nil
		}
		_, next, err := e.definitions.startable(ctx, namespace, kid.GetDefinition(), kid.GetVersion())
		var missing *NotFoundError
		if errors.As(err, &missing) {
			continue // it was there when it was registered; its own saga will say so
		}
		if err != nil {
			return "", false, err
		}
		if found, _, err := e.descend(ctx, namespace, next, name, depth+1); err != nil || found != "" {
			return found, false, err
		}
	}
	return "", m.HasPivot(), nil
}
