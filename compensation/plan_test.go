package compensation

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestNextAndOrder(t *testing.T) {
	// fork: 0 before 1 and 2, both before 3.
	fork := func(p0, p1, p2, p3 Phase) []Step {
		return []Step{
			{StartNo: 1, Phase: p0},
			{StartNo: 2, Phase: p1, Before: []int{0}},
			{StartNo: 3, Phase: p2, Before: []int{0}},
			{StartNo: 4, Phase: p3, Before: []int{0, 1, 2}},
		}
	}
	chain := func(phases ...Phase) []Step {
		var steps []Step
		for i, p := range phases {
			s := Step{StartNo: i + 1, Phase: p}
			for b := range i {
				s.Before = append(s.Before, b)
			}
			steps = append(steps, s)
		}
		return steps
	}
	tests := []struct {
		name  string
		steps []Step
		limit int
		want  Plan
		order [][]int
	}{
		{name: "no steps", limit: 4, want: Plan{Done: true}},
		{name: "nothing ran", steps: chain(NeverRan, NeverRan), limit: 4, want: Plan{Done: true}},
		{name: "all settled", steps: chain(Undone, Clean, NeverRan), limit: 4, want: Plan{Done: true}},

		{name: "chain: last first", steps: chain(NeedsUndo, NeedsUndo, NeedsUndo), limit: 4,
			want: Plan{Start: []int{2}, Waiting: []int{0, 1}}, order: [][]int{{2}, {1}, {0}}},
		{name: "chain: one under way", steps: chain(NeedsUndo, NeedsUndo, Undoing), limit: 4,
			want: Plan{Waiting: []int{0, 1}}, order: [][]int{{1}, {0}}},
		{name: "chain: next after undone", steps: chain(NeedsUndo, NeedsUndo, Undone), limit: 4,
			want: Plan{Start: []int{1}, Waiting: []int{0}}, order: [][]int{{1}, {0}}},
		{name: "chain: rejected step and steps never run are passed over",
			steps: chain(NeedsUndo, NeedsUndo, Clean, NeverRan), limit: 4,
			want: Plan{Start: []int{1}, Waiting: []int{0}}, order: [][]int{{1}, {0}}},
		{name: "chain: order holds through a step with nothing to undo",
			steps: chain(NeedsUndo, Clean, NeverRan, NeedsUndo), limit: 4,
			want: Plan{Start: []int{3}, Waiting: []int{0}}, order: [][]int{{3}, {0}}},
		{name: "chain: in flight is awaited", steps: chain(NeedsUndo, InFlight), limit: 4,
			want: Plan{Waiting: []int{0}}, order: [][]int{{1}, {0}}},
		{name: "chain: held blocks", steps: chain(NeedsUndo, Held), limit: 4,
			want: Plan{Waiting: []int{0}, Held: []int{1}}, order: [][]int{{0}}},
		{name: "chain: held blocks through an undone step", steps: chain(NeedsUndo, Undone, Held), limit: 4,
			want: Plan{Waiting: []int{0}, Held: []int{2}}, order: [][]int{{0}}},
		{name: "chain: held lets pass", steps: chain(NeedsUndo, HeldLetPass), limit: 4,
			want: Plan{Start: []int{0}, Held: []int{1}}, order: [][]int{{0}}},
		{name: "chain: held and let pass is not done", steps: chain(Undone, HeldLetPass), limit: 4,
			want: Plan{Held: []int{1}}},
		{name: "chain: a late effect is undone again, under what is undone already",
			steps: chain(Undone, NeedsUndo, Undone), limit: 4,
			want: Plan{Start: []int{1}}, order: [][]int{{1}}},
		{name: "only in flight is not done", steps: chain(Clean, InFlight), limit: 4,
			want: Plan{}, order: [][]int{{1}}},

		{name: "fork: join first", steps: fork(NeedsUndo, NeedsUndo, NeedsUndo, NeedsUndo), limit: 4,
			want: Plan{Start: []int{3}, Waiting: []int{0, 1, 2}}, order: [][]int{{3}, {2, 1}, {0}}},
		{name: "fork: branches side by side, last started first",
			steps: fork(NeedsUndo, NeedsUndo, NeedsUndo, NeverRan), limit: 4,
			want: Plan{Start: []int{2, 1}, Waiting: []int{0}}, order: [][]int{{2, 1}, {0}}},
		{name: "fork: cap", steps: fork(NeedsUndo, NeedsUndo, NeedsUndo, NeverRan), limit: 1,
			want: Plan{Start: []int{2}, Waiting: []int{0, 1}}, order: [][]int{{2, 1}, {0}}},
		{name: "fork: cap used up", steps: fork(NeedsUndo, NeedsUndo, Undoing, Undone), limit: 1,
			want: Plan{Waiting: []int{0, 1}}, order: [][]int{{1}, {0}}},
		{name: "fork: more under way than the cap, which was lowered",
			steps: fork(NeedsUndo, Undoing, Undoing, Undone), limit: 1,
			want: Plan{Waiting: []int{0}}, order: [][]int{{0}}},
		{name: "fork: limit zero starts nothing", steps: fork(NeedsUndo, NeedsUndo, NeedsUndo, NeverRan), limit: 0,
			want: Plan{Waiting: []int{0, 1, 2}}, order: [][]int{{2, 1}, {0}}},
		{name: "fork: negative limit starts nothing", steps: fork(NeedsUndo, NeedsUndo, NeedsUndo, NeverRan), limit: -3,
			want: Plan{Waiting: []int{0, 1, 2}}, order: [][]int{{2, 1}, {0}}},
		{name: "in-flight sibling: the other branch goes on, the common root waits",
			steps: fork(NeedsUndo, NeedsUndo, InFlight, NeverRan), limit: 4,
			want: Plan{Start: []int{1}, Waiting: []int{0}}, order: [][]int{{2, 1}, {0}}},
		{name: "in-flight sibling: still awaited when all else is undone",
			steps: fork(NeedsUndo, Undone, InFlight, NeverRan), limit: 4,
			want: Plan{Waiting: []int{0}}, order: [][]int{{2}, {0}}},
		{name: "in-flight sibling ended rejected", steps: fork(NeedsUndo, Undone, Clean, NeverRan), limit: 4,
			want: Plan{Start: []int{0}}, order: [][]int{{0}}},
		{name: "held sibling: the other branch goes on", steps: fork(NeedsUndo, NeedsUndo, Held, Undone), limit: 4,
			want: Plan{Start: []int{1}, Waiting: []int{0}, Held: []int{2}}, order: [][]int{{1}, {0}}},
		{name: "held of both kinds are listed", steps: fork(NeedsUndo, HeldLetPass, Held, Undone), limit: 4,
			want: Plan{Waiting: []int{0}, Held: []int{1, 2}}, order: [][]int{{0}}},
		{name: "held doesn't count against the cap", steps: fork(NeedsUndo, NeedsUndo, Held, Undone), limit: 1,
			want: Plan{Start: []int{1}, Waiting: []int{0}, Held: []int{2}}, order: [][]int{{1}, {0}}},

		{name: "start numbers decide, not indices",
			steps: []Step{{StartNo: 2, Phase: NeedsUndo}, {StartNo: 3, Phase: NeedsUndo}, {StartNo: 1, Phase: NeedsUndo}}, limit: 2,
			want: Plan{Start: []int{1, 0}, Waiting: []int{2}}, order: [][]int{{1, 0, 2}}},
		{name: "a dependent may stand before what it depends on",
			steps: []Step{{StartNo: 2, Phase: NeedsUndo, Before: []int{1}}, {StartNo: 1, Phase: NeedsUndo}}, limit: 2,
			want: Plan{Start: []int{0}, Waiting: []int{1}}, order: [][]int{{0}, {1}}},
		{name: "equal start numbers: larger index first",
			steps: []Step{{Phase: NeedsUndo}, {Phase: NeedsUndo}}, limit: 2,
			want: Plan{Start: []int{1, 0}}, order: [][]int{{1, 0}}},
		{name: "repeated entries do no harm",
			steps: []Step{{StartNo: 1, Phase: NeedsUndo}, {StartNo: 2, Phase: NeedsUndo, Before: []int{0, 0}}}, limit: 2,
			want: Plan{Start: []int{1}, Waiting: []int{0}}, order: [][]int{{1}, {0}}},
		{name: "a phase not known blocks and is shown", steps: chain(NeedsUndo, HeldLetPass+1), limit: 4,
			want: Plan{Waiting: []int{0}, Held: []int{1}}, order: [][]int{{0}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, Next(tt.steps, tt.limit)); diff != "" {
				t.Errorf("Next (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.order, Order(tt.steps)); diff != "" {
				t.Errorf("Order (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOrderWaitsUnseen(t *testing.T) {
	// 0 is blocked by 1, which is under way and so not listed; 2 is free. 0 still comes after 2's wave.
	steps := []Step{
		{StartNo: 1, Phase: NeedsUndo},
		{StartNo: 2, Phase: Undoing, Before: []int{0}},
		{StartNo: 3, Phase: NeedsUndo},
	}
	if diff := cmp.Diff([][]int{{2}, {0}}, Order(steps)); diff != "" {
		t.Errorf("Order (-want +got):\n%s", diff)
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

// longChain is the worst case: every step depends on all earlier ones.
func longChain(n int) []Step {
	steps := make([]Step, n)
	for i := range steps {
		steps[i] = Step{StartNo: i + 1, Phase: NeedsUndo, Before: make([]int, i)}
		for b := range i {
			steps[i].Before[b] = b
		}
	}
	return steps
}

func TestThousandSteps(t *testing.T) {
	steps := longChain(1000)
	begin := time.Now()
	order := Order(steps)
	for i, wave := range order {
		if i%10 == 0 { // each call is looked at by the properties; here it is the size that counts
			if diff := cmp.Diff(wave, Next(steps, 4).Start); diff != "" {
				t.Fatalf("round %d: Start is not the wave (-want +got):\n%s", i, diff)
			}
		}
		steps[wave[0]].Phase = Undone
	}
	if len(order) != 1000 || !Next(steps, 4).Done {
		t.Fatalf("%d waves, done %v; want 1000, true", len(order), Next(steps, 4).Done)
	}
	// A hundred calls take well below a second; cubic work in each would take minutes.
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("planning 1000 steps 100 times took %v", took)
	}
}

func BenchmarkNext(b *testing.B) {
	steps := longChain(1000)
	for b.Loop() {
		Next(steps, 4)
	}
}

func BenchmarkOrder(b *testing.B) {
	steps := longChain(1000)
	for b.Loop() {
		Order(steps)
	}
}
