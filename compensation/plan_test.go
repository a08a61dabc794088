package compensation

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNextAndOrder(t *testing.T) {
	// fork: 1 before 3 and 4, both before 5.
	fork := func(p0, p1, p2, p3 Phase) []Node {
		return series(step(1, p0), parallel(step(2, p1), step(3, p2)), step(4, p3))
	}
	// chain: the first step is node 1.
	chain := func(phases ...Phase) []Node {
		var steps [][]Node
		for i, p := range phases {
			steps = append(steps, step(i+1, p))
		}
		return series(steps...)
	}
	tests := []struct {
		name  string
		tree  []Node
		limit int
		want  Plan
		order [][]int
	}{
		{name: "no steps", limit: 4, want: Plan{Done: true}},
		{name: "nothing ran", tree: chain(NeverRan, NeverRan), limit: 4, want: Plan{Done: true}},
		{name: "all settled", tree: chain(Undone, Clean, NeverRan), limit: 4, want: Plan{Done: true}},

		{name: "chain: last first", tree: chain(NeedsUndo, NeedsUndo, NeedsUndo), limit: 4,
			want: Plan{Start: []int{3}, Waiting: []int{1, 2}}, order: [][]int{{3}, {2}, {1}}},
		{name: "chain: one under way", tree: chain(NeedsUndo, NeedsUndo, Undoing), limit: 4,
			want: Plan{Waiting: []int{1, 2}}, order: [][]int{{2}, {1}}},
		{name: "chain: next after undone", tree: chain(NeedsUndo, NeedsUndo, Undone), limit: 4,
			want: Plan{Start: []int{2}, Waiting: []int{1}}, order: [][]int{{2}, {1}}},
		{name: "chain: rejected step and steps never run are passed over",
			tree: chain(NeedsUndo, NeedsUndo, Clean, NeverRan), limit: 4,
			want: Plan{Start: []int{2}, Waiting: []int{1}}, order: [][]int{{2}, {1}}},
		{name: "chain: order holds through a step with nothing to undo",
			tree: chain(NeedsUndo, Clean, NeverRan, NeedsUndo), limit: 4,
			want: Plan{Start: []int{4}, Waiting: []int{1}}, order: [][]int{{4}, {1}}},
		{name: "chain: in flight is awaited", tree: chain(NeedsUndo, InFlight), limit: 4,
			want: Plan{Waiting: []int{1}}, order: [][]int{{2}, {1}}},
		{name: "chain: held blocks", tree: chain(NeedsUndo, Held), limit: 4,
			want: Plan{Waiting: []int{1}, Held: []int{2}}, order: [][]int{{1}}},
		{name: "chain: held blocks through an undone step", tree: chain(NeedsUndo, Undone, Held), limit: 4,
			want: Plan{Waiting: []int{1}, Held: []int{3}}, order: [][]int{{1}}},
		{name: "chain: held lets pass", tree: chain(NeedsUndo, HeldLetPass), limit: 4,
			want: Plan{Start: []int{1}, Held: []int{2}}, order: [][]int{{1}}},
		{name: "chain: held and let pass is not done", tree: chain(Undone, HeldLetPass), limit: 4,
			want: Plan{Held: []int{2}}},
		{name: "chain: a late effect is undone again, under what is undone already",
			tree: chain(Undone, NeedsUndo, Undone), limit: 4,
			want: Plan{Start: []int{2}}, order: [][]int{{2}}},
		{name: "only in flight is not done", tree: chain(Clean, InFlight), limit: 4,
			want: Plan{}, order: [][]int{{2}}},

		{name: "fork: join first", tree: fork(NeedsUndo, NeedsUndo, NeedsUndo, NeedsUndo), limit: 4,
			want: Plan{Start: []int{5}, Waiting: []int{1, 3, 4}}, order: [][]int{{5}, {4, 3}, {1}}},
		{name: "fork: branches side by side, last started first",
			tree: fork(NeedsUndo, NeedsUndo, NeedsUndo, NeverRan), limit: 4,
			want: Plan{Start: []int{4, 3}, Waiting: []int{1}}, order: [][]int{{4, 3}, {1}}},
		{name: "fork: cap", tree: fork(NeedsUndo, NeedsUndo, NeedsUndo, NeverRan), limit: 1,
			want: Plan{Start: []int{4}, Waiting: []int{1, 3}}, order: [][]int{{4, 3}, {1}}},
		{name: "fork: cap used up", tree: fork(NeedsUndo, NeedsUndo, Undoing, Undone), limit: 1,
			want: Plan{Waiting: []int{1, 3}}, order: [][]int{{3}, {1}}},
		{name: "fork: more under way than the cap, which was lowered",
			tree: fork(NeedsUndo, Undoing, Undoing, Undone), limit: 1,
			want: Plan{Waiting: []int{1}}, order: [][]int{{1}}},
		{name: "fork: limit zero starts nothing", tree: fork(NeedsUndo, NeedsUndo, NeedsUndo, NeverRan), limit: 0,
			want: Plan{Waiting: []int{1, 3, 4}}, order: [][]int{{4, 3}, {1}}},
		{name: "fork: negative limit starts nothing", tree: fork(NeedsUndo, NeedsUndo, NeedsUndo, NeverRan), limit: -3,
			want: Plan{Waiting: []int{1, 3, 4}}, order: [][]int{{4, 3}, {1}}},
		{name: "in-flight sibling: the other branch goes on, the common root waits",
			tree: fork(NeedsUndo, NeedsUndo, InFlight, NeverRan), limit: 4,
			want: Plan{Start: []int{3}, Waiting: []int{1}}, order: [][]int{{4, 3}, {1}}},
		{name: "in-flight sibling: still awaited when all else is undone",
			tree: fork(NeedsUndo, Undone, InFlight, NeverRan), limit: 4,
			want: Plan{Waiting: []int{1}}, order: [][]int{{4}, {1}}},
		{name: "in-flight sibling ended rejected", tree: fork(NeedsUndo, Undone, Clean, NeverRan), limit: 4,
			want: Plan{Start: []int{1}}, order: [][]int{{1}}},
		{name: "held sibling: the other branch goes on", tree: fork(NeedsUndo, NeedsUndo, Held, Undone), limit: 4,
			want: Plan{Start: []int{3}, Waiting: []int{1}, Held: []int{4}}, order: [][]int{{3}, {1}}},
		{name: "held of both kinds are listed", tree: fork(NeedsUndo, HeldLetPass, Held, Undone), limit: 4,
			want: Plan{Waiting: []int{1}, Held: []int{3, 4}}, order: [][]int{{1}}},
		{name: "held doesn't count against the cap", tree: fork(NeedsUndo, NeedsUndo, Held, Undone), limit: 1,
			want: Plan{Start: []int{3}, Waiting: []int{1}, Held: []int{4}}, order: [][]int{{3}, {1}}},

		{name: "one step is a tree", tree: step(1, NeedsUndo), limit: 1,
			want: Plan{Start: []int{0}}, order: [][]int{{0}}},
		{name: "empty nodes", tree: series(parallel(), series(), parallel(series())), limit: 1, want: Plan{Done: true}},
		{name: "start numbers decide, not indices",
			tree: parallel(step(2, NeedsUndo), step(3, NeedsUndo), step(1, NeedsUndo)), limit: 2,
			want: Plan{Start: []int{2, 1}, Waiting: []int{3}}, order: [][]int{{2, 1, 3}}},
		{name: "the series decides, not start numbers", tree: series(step(2, NeedsUndo), step(1, NeedsUndo)), limit: 2,
			want: Plan{Start: []int{2}, Waiting: []int{1}}, order: [][]int{{2}, {1}}},
		{name: "equal start numbers: larger index first", tree: parallel(step(0, NeedsUndo), step(0, NeedsUndo)), limit: 2,
			want: Plan{Start: []int{2, 1}}, order: [][]int{{2, 1}}},
		{name: "a phase not known blocks and is shown", tree: chain(NeedsUndo, HeldLetPass+1), limit: 4,
			want: Plan{Waiting: []int{1}, Held: []int{2}}, order: [][]int{{1}}},
		{name: "what is side by side takes as many waves as its longest child, not as all",
			tree: parallel(
				series(step(1, NeedsUndo), parallel(step(2, NeedsUndo), step(3, NeedsUndo))),
				series(step(4, NeedsUndo), step(5, NeedsUndo), step(6, NeedsUndo))), limit: 1,
			want: Plan{Start: []int{9}, Waiting: []int{2, 4, 5, 7, 8}}, order: [][]int{{9, 5, 4}, {8, 2}, {7}}},
		{name: "a map's elements each unwind by themselves, and what came before it waits for all",
			tree: series(step(1, NeedsUndo), parallel(
				series(step(2, NeedsUndo), step(4, Undone)),
				series(step(3, NeedsUndo), step(5, NeedsUndo)))), limit: 4,
			want: Plan{Start: []int{8, 4}, Waiting: []int{1, 7}}, order: [][]int{{8, 4}, {7}, {1}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, Next(tt.tree, tt.limit)); diff != "" {
				t.Errorf("Next (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.order, Order(tt.tree)); diff != "" {
				t.Errorf("Order (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOrderWaitsUnseen(t *testing.T) {
	// 2 is blocked by 3, which is under way and so not listed; 4 is free. 2 still comes after 4's wave.
	tree := parallel(series(step(1, NeedsUndo), step(2, Undoing)), step(3, NeedsUndo))
	if diff := cmp.Diff([][]int{{4}, {2}}, Order(tree)); diff != "" {
		t.Errorf("Order (-want +got):\n%s", diff)
	}
}

func TestMalformedTreePanics(t *testing.T) {
	for name, tree := range map[string][]Node{
		"the root is too small":          {{Kind: Series, Size: 1}, {Size: 1}},
		"the root is too large":          {{Kind: Series, Size: 3}, {Size: 1}},
		"a step with children":           {{Size: 2}, {Size: 1}},
		"a step of no size":              {{Kind: Series, Size: 2}, {}},
		"a series of no size":            {{Kind: Series, Size: 2}, {Kind: Series}},
		"a negative size":                {{Kind: Series, Size: 2}, {Kind: Parallel, Size: -1}},
		"a child longer than its parent": {{Kind: Series, Size: 4}, {Kind: Series, Size: 2}, {Kind: Series, Size: 2}, {Size: 1}},
		"an unknown kind":                {{Kind: Series, Size: 2}, {Kind: Parallel + 1, Size: 1}},
	} {
		for call, f := range map[string]func(){"Next": func() { Next(tree, 1) }, "Order": func() { Order(tree) }} {
			t.Run(call+": "+name, func(t *testing.T) {
				defer func() {
					if s, _ := recover().(string); !strings.HasPrefix(s, "compensation: malformed tree: node ") {
						t.Errorf("panic %q, want one that names the node", s)
					}
				}()
				f()
			})
		}
	}
}

func TestPhaseString(t *testing.T) {
	want := []string{"never ran", "clean", "in flight", "needs undo", "undoing", "undone", "held",
		"held, others pass", "phase 8"}
	var got []string
	for p := NeverRan; p <= HeldLetPass+1; p++ {
		got = append(got, p.String())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// step, series and parallel build trees.
func step(startNo int, p Phase) []Node { return []Node{{Size: 1, StartNo: startNo, Phase: p}} }

func series(children ...[]Node) []Node { return join(Series, children) }

func parallel(children ...[]Node) []Node { return join(Parallel, children) }

func join(kind Kind, children [][]Node) []Node {
	tree := append([]Node{{Kind: kind}}, slices.Concat(children...)...)
	tree[0].Size = int32(len(tree))
	return tree
}

// longMap is a map of n elements with three steps each, started in turn.
func longMap(n int) []Node {
	elements := make([][]Node, n)
	for i := range elements {
		elements[i] = series(step(1+i, NeedsUndo), step(1+n+i, NeedsUndo), step(1+2*n+i, NeedsUndo))
	}
	return series(parallel(elements...))
}

func TestLongMap(t *testing.T) {
	const n = 10_000
	tree := longMap(n)
	var pl Planner
	order := Order(tree)
	if len(order) != 3 {
		t.Fatalf("%d waves, want 3", len(order))
	}
	for _, wave := range order {
		if diff := cmp.Diff(wave[:16:16], pl.Next(tree, 16).Start); diff != "" {
			t.Fatalf("Start is not the head of the wave (-want +got):\n%s", diff)
		}
		if len(wave) != n {
			t.Fatalf("a wave of %d, want %d", len(wave), n)
		}
		for _, i := range wave {
			tree[i].Phase = Undone
		}
	}
	if !pl.Next(tree, 16).Done {
		t.Error("all is undone, and the plan isn't done")
	}
	if a := testing.AllocsPerRun(10, func() { pl.Next(tree, 16) }); a > 1 {
		t.Errorf("a planner's second call allocates %v times", a)
	}
}

// A tree may be as deep as it likes: nothing recurs.
func TestDeepTree(t *testing.T) {
	const n = 200_000
	tree := make([]Node, n)
	for i := range tree {
		tree[i] = Node{Kind: Series, Size: int32(n - i)}
	}
	tree[n-1] = Node{Size: 1, StartNo: 1, Phase: NeedsUndo}
	if diff := cmp.Diff(Plan{Start: []int{n - 1}}, Next(tree, 1)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func BenchmarkNext(b *testing.B) {
	tree := longMap(10_000)
	for b.Loop() {
		Next(tree, 16)
	}
}

func BenchmarkPlannerNext(b *testing.B) {
	tree := longMap(10_000)
	var pl Planner
	b.ReportAllocs()
	for b.Loop() {
		pl.Next(tree, 16)
	}
}

func BenchmarkOrder(b *testing.B) {
	tree := longMap(10_000)
	for b.Loop() {
		Order(tree)
	}
}
