package statemachine

import (
	"strings"
	"testing"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
)

// TestDamagedHistory: a history that can't be is an error that says why, never a panic and never a saga.
func TestDamagedHistory(t *testing.T) {
	m := machineOf(t, "comp t1\nif c true\ncomp t2\nend")
	started := &historyv1.Fact{Kind: &historyv1.Fact_Started{Started: &historyv1.Started{SagaId: "s"}}}
	scheduled := func(step string, dir historyv1.Direction, generation, attempt int32) *historyv1.Fact {
		return &historyv1.Fact{Kind: &historyv1.Fact_AttemptScheduled{AttemptScheduled: &historyv1.AttemptScheduled{
			Call: &historyv1.Call{Step: step, Direction: dir}, Generation: generation, Attempt: attempt,
		}}}
	}
	item := func(n int32) *historyv1.Fact {
		return &historyv1.Fact{Kind: &historyv1.Fact_ItemOpened{ItemOpened: &historyv1.ItemOpened{Item: n}}}
	}
	compensated := &historyv1.Fact{Kind: &historyv1.Fact_Compensated{Compensated: &historyv1.Compensated{}}}
	completed := &historyv1.Fact{Kind: &historyv1.Fact_Completed{Completed: &historyv1.Completed{}}}
	nosuch := &historyv1.Call{Step: "nosuch", Direction: do}
	for _, c := range []struct {
		name, want string
		facts      []*historyv1.Fact
	}{
		{"nothing", "doesn't begin with a start", nil},
		{"no start", "doesn't begin with a start", []*historyv1.Fact{scheduled("t1", do, 1, 1)}},
		{"two starts", "starts twice", []*historyv1.Fact{started, started}},
		{"nil", "later release", []*historyv1.Fact{started, nil}},
		{"empty", "later release", []*historyv1.Fact{started, {}}},
		{"step", `no step "nosuch"`, []*historyv1.Fact{started, scheduled("nosuch", do, 1, 1)}},
		{"direction", "no direction", []*historyv1.Fact{started, scheduled("t1", 0, 1, 1)}},
		{"direction of a later release", "no direction", []*historyv1.Fact{started, scheduled("t1", 4, 1, 1)}},
		{"attempt", "no attempt 0", []*historyv1.Fact{started, scheduled("t1", do, 1, 0)}},
		{"generation", "generation -1", []*historyv1.Fact{started, scheduled("t1", do, -1, 1)}},
		{"ended", `no step ""`, []*historyv1.Fact{started, {Kind: &historyv1.Fact_AttemptEnded{}}}},
		{"planned", "no step", []*historyv1.Fact{started, {Kind: &historyv1.Fact_RetryPlanned{RetryPlanned: &historyv1.RetryPlanned{Call: nosuch}}}}},
		{"given up", "no step", []*historyv1.Fact{started, {Kind: &historyv1.Fact_CallGivenUp{CallGivenUp: &historyv1.CallGivenUp{Call: nosuch}}}}},
		{"late", "no step", []*historyv1.Fact{started, {Kind: &historyv1.Fact_LateResult{LateResult: &historyv1.LateResult{Call: nosuch}}}}},
		{"conflict", "no step", []*historyv1.Fact{started, {Kind: &historyv1.Fact_ConflictingResult{ConflictingResult: &historyv1.ConflictingResult{Call: nosuch}}}}},
		{"by hand", "no step", []*historyv1.Fact{started, {Kind: &historyv1.Fact_SettledByHand{SettledByHand: &historyv1.SettledByHand{Call: nosuch}}}}},
		{"branch", `no such "d"`, []*historyv1.Fact{started, {Kind: &historyv1.Fact_BranchTaken{BranchTaken: &historyv1.BranchTaken{Name: "d"}}}}},
		{"item number", "item 2 comes after item 0", []*historyv1.Fact{started, item(2)}},
		{"item number twice", "item 1 comes after item 1", []*historyv1.Fact{started, item(1), item(1)}},
		{"item changed", "no item 1", []*historyv1.Fact{started, {Kind: &historyv1.Fact_ItemChanged{ItemChanged: &historyv1.ItemChanged{Item: 1}}}}},
		{"item closed", "no item -1", []*historyv1.Fact{started, {Kind: &historyv1.Fact_ItemClosed{ItemClosed: &historyv1.ItemClosed{Item: -1}}}}},
		{"two ends", "ended as COMPENSATED", []*historyv1.Fact{started, compensated, completed}},
		{"sent after the end", "ended as COMPLETED", []*historyv1.Fact{started, completed, scheduled("t1", do, 1, 1)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := m.Fold([]*historyv1.Transition{{Facts: c.facts, AtUs: 1}})
			if s != nil || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
	if _, err := m.Fold(nil); err == nil {
		t.Error("no history folds")
	}
	if _, err := m.Fold([]*historyv1.Transition{nil}); err == nil {
		t.Error("a nil transition folds")
	}
	// What comes after an end as evidence is no damage.
	late := &historyv1.Fact{Kind: &historyv1.Fact_LateResult{LateResult: &historyv1.LateResult{Call: &historyv1.Call{Step: "t1", Direction: do}}}}
	if _, err := m.Fold([]*historyv1.Transition{{Facts: []*historyv1.Fact{started, compensated, late, item(1)}, AtUs: 1}}); err != nil {
		t.Error(err)
	}
}
