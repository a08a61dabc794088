package postgres

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/sagad/sagad/internal/pgtest"
	"github.com/sagad/sagad/store"
)

// TestInfiniteTimes: somebody sets times to infinity by SQL. Lists, histories and items still answer, for that saga and for all others.
func TestInfiniteTimes(t *testing.T) {
	for name, options := range map[string]string{"binary": "", "text": "&default_query_exec_mode=simple_protocol"} {
		t.Run(name, func(t *testing.T) {
			s := open(t, pgtest.Start(t)+options)
			grants, err := s.Acquire(t.Context(), store.Node{Name: "a", Boot: uuid.New()}, []int{0}, time.Hour)
			if err != nil || len(grants) != 1 {
				t.Fatal(grants, err)
			}
			var sagas []store.Saga
			for i, id := range []string{"before", "odd", "after"} {
				one, tr := started(0, id)
				tr.Items = []store.Item{{
					Namespace: "default", SagaID: id, Run: one.Run, Number: 1, Definition: "order", Kind: 1, Status: 1, Step: "pay",
					OpenedAt: one.StartedAt, ChangedAt: one.StartedAt, Version: 1,
				}}
				got, err := s.Commit(t.Context(), []store.Batch{{Grant: grants[0], Seq: int64(i + 1), Transitions: []store.Transition{tr}}})
				if err != nil || got[0] != store.Committed {
					t.Fatal(got, err)
				}
				sagas = append(sagas, one)
			}
			odd := &sagas[1]
			for _, statement := range []string{
				"UPDATE saga SET started_at = '-infinity', changed_at = '12026-01-01', deadline = 'infinity' WHERE id = 'odd'",
				"UPDATE history SET at = 'infinity' WHERE run = (SELECT run FROM saga WHERE id = 'odd')",
				"UPDATE ops_item SET changed_at = 'infinity' WHERE saga_id = 'odd'",
			} {
				if _, err := s.main.Exec(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
			odd.StartedAt, odd.ChangedAt, odd.Deadline = farPast, time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC), farFuture

			list, err := s.Sagas(t.Context(), store.SagaFilter{OldestFirst: true})
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(sagas, list); d != "" {
				t.Error(d)
			}
			unfinished, err := s.Unfinished(t.Context(), 0, uuid.Nil, 10)
			if err != nil || len(unfinished) != 3 || !unfinished[1].History[0].At.Equal(farFuture) {
				t.Errorf("%v %v", unfinished, err)
			}
			for _, one := range sagas {
				rows, err := s.History(t.Context(), 0, one.Run, 1, 10)
				want := one.StartedAt
				if one.ID == "odd" {
					want = farFuture
				}
				if err != nil || len(rows) != 1 || !rows[0].At.Equal(want) {
					t.Errorf("%s: %v %v", one.ID, rows, err)
				}
				if got, err := s.Saga(t.Context(), store.Key{Shard: 0, Namespace: "default", ID: one.ID}); err != nil || got.Run != one.Run {
					t.Errorf("%s: %v %v", one.ID, got, err)
				}
			}
			items, err := s.Items(t.Context(), store.ItemFilter{})
			if err != nil || len(items) != 3 {
				t.Errorf("%v %v", items, err)
			}
		})
	}
}
