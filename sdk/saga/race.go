package saga

import (
	"fmt"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// Contender is a branch of an [Any] or an [AtLeast]: a node, or a [Branch].
type Contender interface{ contender() }

type raceNode struct {
	placed
	name     string
	join     sagadv1.Join
	count    int
	branches []Contender
}

// Any runs its branches at the same time and goes on when one is done. The others are stopped, awaited and undone; so is one that fails.
// What follows reads, by the name, a list with one element, {"branch": its index, "output": its [Output]}.
func Any(name string, branches ...Contender) Node {
	return raceNode{name: name, join: sagadv1.Join_JOIN_ANY, branches: branches}
}

// AtLeast is [Any], but goes on when n branches are done: 1 to one less than there are.
func AtLeast(n int, name string, branches ...Contender) Node {
	return raceNode{name: name, join: sagadv1.Join_JOIN_COUNT, count: n, branches: branches}
}

func (r raceNode) define(b *builder) { b.def.Body = append(b.def.Body, r.node(b)) }

func (r raceNode) node(b *builder) *sagadv1.Node {
	b.used[r.name] = true
	out := &sagadv1.Parallel{Name: r.name, Join: r.join, Count: b.count("parallel "+r.name+": the number of branches", r.count, 64)}
	for _, c := range r.branches {
		switch c := c.(type) {
		case BranchOf:
			out.Branches = append(out.Branches, c.branch(b, "parallel "+r.name))
		case Node:
			out.Branches = append(out.Branches, &sagadv1.Branch{Body: []*sagadv1.Node{c.node(b)}})
		default:
			b.fail(fmt.Errorf("parallel %s: a branch is nil: leave it out", r.name))
		}
	}
	return &sagadv1.Node{Kind: &sagadv1.Node_Parallel{Parallel: out}}
}
