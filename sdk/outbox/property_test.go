package outbox_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"connectrpc.com/connect/v2"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/sdk/outbox"
)

// Whatever is committed and rolled back, wherever the relay dies and its connection breaks: each committed row's saga is there
// once, with the content of the row that came first; a row is parked exactly if its id was taken by other content.
func TestProperty(t *testing.T) {
	db, n := databases["sqlite"](t), startNode(t)
	var point string
	var before, after bool
	r := outbox.NewRelay(n.client(t, &link{breaks: func(string) (bool, bool) { return before, after }}), db.DB,
		outbox.Config{Batch: 3, Logger: quiet})
	r.CrashAt(func(p string) bool { return p == point })
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		db.do(t, func(x tx) { must(t, x.exec("DELETE FROM sagad_outbox")) })
		type placed struct {
			id  string
			qty int64
		}
		var committed []placed
		deliver := func() {
			// Leases and delays are over.
			db.do(t, func(x tx) { must(t, x.exec("UPDATE sagad_outbox SET due_at = 0")) })
			if _, err := r.Round(t.Context()); err != nil && !errors.Is(err, outbox.ErrCrash) && !before && !after {
				rt.Fatalf("round: %v", err)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"write": func(rt *rapid.T) {
				x := db.begin()
				defer x.rollback()
				var rows []placed
				for range rapid.IntRange(1, 3).Draw(rt, "rows") {
					p := placed{fmt.Sprintf("%d-%d", round, rapid.IntRange(1, 5).Draw(rt, "id")), rapid.Int64Range(1, 2).Draw(rt, "qty")}
					rows = append(rows, p)
					start(t, x, p.id, order{"tea", p.qty})
				}
				if rapid.IntRange(0, 2).Draw(rt, "end") > 0 {
					must(t, x.commit())
					committed = append(committed, rows...)
				}
			},
			"deliver": func(rt *rapid.T) {
				point = rapid.SampledFrom([]string{"", "", "claimed", "answered", "refused", "removed"}).Draw(rt, "crash")
				before, after = rapid.IntRange(0, 3).Draw(rt, "before") == 0, rapid.IntRange(0, 3).Draw(rt, "after") == 0
				deliver()
				point, before, after = "", false, false
			},
		})
		for db.rows(t, "parked = 0") > 0 {
			deliver()
		}
		// Which content won depends on what was delivered when; that it is one of them, and that all others are parked, doesn't.
		sagas := map[string]string{}
		for i := 1; i <= 5; i++ {
			id := fmt.Sprintf("%d-%d", round, i)
			got, err := n.sagas.GetSaga(t.Context(), &sagadv1.GetSagaRequest{Id: id})
			if connect.CodeOf(err) == connect.CodeNotFound {
				continue
			}
			must(t, err)
			sagas[id] = got.Saga.Input
		}
		ids := map[string]bool{}
		other := map[string]int{}
		for _, p := range committed {
			ids[p.id] = true
			if sagas[p.id] != fmt.Sprintf(`{"item":"tea","qty":%d}`, p.qty) {
				other[p.id]++
			}
		}
		if diff := cmp.Diff(slices.Sorted(maps.Keys(ids)), slices.Sorted(maps.Keys(sagas))); diff != "" {
			rt.Fatalf("sagas:\n%s", diff)
		}
		parked, err := r.Parked(t.Context(), 0, 1000)
		must(t, err)
		got := map[string]int{}
		for _, p := range parked {
			got[p.SagaID]++
			if p.Code != "ID_TAKEN" {
				rt.Fatalf("parked: %+v", p)
			}
		}
		if diff := cmp.Diff(other, got); diff != "" {
			rt.Fatalf("parked:\n%s", diff)
		}
	})
}
