package storetest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/sagad/sagad/store"
)

// testPagesWhileSagasChange: 25 sagas of one microsecond are read in pages of 10, and five of them end between the first page and the second.
// The list of all has each of them once. The list of those that run has each that ran all the time once, and none twice.
func testPagesWhileSagasChange(t *testing.T, s store.Store) {
	o := own(t, s)
	round := 0
	for _, oldest := range []bool{true, false} {
		for _, statuses := range [][]store.Status{nil, {store.Running}} {
			round++
			namespace := fmt.Sprint("round-", round)
			var sagas []*store.Saga
			for i := range 25 {
				one := saga(i%8, fmt.Sprintf("saga %02d", i))
				one.Namespace = namespace
				sagas = append(sagas, one)
			}
			o.start(sagas...)
			slices.SortFunc(sagas, byRun)
			if !oldest {
				slices.Reverse(sagas)
			}
			f := store.SagaFilter{Namespace: namespace, OldestFirst: oldest, Statuses: statuses, Limit: 10}
			var want, got []string
			for _, one := range sagas {
				want = append(want, one.ID)
			}
			for page := 0; ; page++ {
				found, err := s.Sagas(t.Context(), f)
				check(t, err)
				got = append(got, ids(found)...)
				if len(found) < 10 {
					break
				}
				f.After = found[9].Run
				if page > 0 {
					continue
				}
				// Some that were read, and some that weren't.
				for _, i := range []int{3, 9, 10, 17, 24} {
					o.commit(sagas[i].Shard, change(changed(sagas[i], 2, store.Completed)))
				}
			}
			if statuses != nil {
				for _, i := range []int{24, 17, 10} { // they had ended when their page was read
					want = slices.Delete(want, i, i+1)
				}
			}
			same(t, fmt.Sprintf("oldest first %v, statuses %v", oldest, statuses), want, got)
		}
	}
}
