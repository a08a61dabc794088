package storetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/sagad/sagad/store"
)

func byRun(a, b *store.Saga) int { return slices.Compare(a.Run[:], b.Run[:]) }

func testUnfinished(t *testing.T, s store.Store) {
	o := own(t, s)
	var want []store.Loaded
	var sagas []*store.Saga
	statuses := []store.Status{store.Running, store.Compensating, store.Stuck, store.Completed, store.Compensated, store.Abandoned}
	for i := range 30 {
		one := saga(2, fmt.Sprintf("saga %02d", i))
		one.StartedAt = base.Add(time.Duration(i%4) * time.Millisecond)
		one.Run = run(one.StartedAt)
		sagas = append(sagas, one)
	}
	o.start(sagas...)
	o.start(saga(1, "another shard's"))
	for i, one := range sagas {
		if status := statuses[i%len(statuses)]; status != store.Running {
			o.commit(2, step(one, 2), change(changed(one, 3, status)))
		}
	}
	slices.SortFunc(sagas, byRun)
	for _, one := range sagas {
		row, err := s.Saga(t.Context(), store.Key{Shard: 2, Namespace: "default", ID: one.ID})
		check(t, err)
		if !row.Status.Terminal() {
			want = append(want, store.Loaded{Saga: row, History: history(t, s, one)})
		}
	}
	if len(want) != 15 || len(want[0].History) == 0 {
		t.Fatalf("%d unfinished sagas, want 15 with histories", len(want))
	}
	var got []store.Loaded
	var after uuid.UUID
	for {
		page, err := s.Unfinished(t.Context(), 2, after, 4)
		check(t, err)
		if len(page) > 4 {
			t.Fatalf("a page of %d", len(page))
		}
		if len(page) == 0 {
			break
		}
		got = append(got, page...)
		after = page[len(page)-1].Saga.Run
	}
	same(t, "pages", want, got)
	whole, err := s.Unfinished(t.Context(), 2, uuid.Nil, 0)
	check(t, err)
	same(t, "one page", want, whole)
	none, err := s.Unfinished(t.Context(), 3, uuid.Nil, 10)
	check(t, err)
	same(t, "an empty shard", []store.Loaded{}, none)
}

func testLoad(t *testing.T, s store.Store) {
	o := own(t, s)
	long, done := saga(0, "long"), saga(7, "done")
	o.start(long, done)
	var steps []store.Transition
	for n := int64(2); n <= 300; n++ {
		steps = append(steps, step(long, n))
	}
	o.commit(0, steps...)
	finished := changed(done, 2, store.Completed)
	o.commit(7, change(finished))
	got, err := s.Load(t.Context(), []store.Key{
		{Shard: 7, Namespace: "default", ID: "done"}, {Shard: 0, Namespace: "default", ID: "none"},
		{Shard: 0, Namespace: "default", ID: "long"}, {Shard: 1, Namespace: "default", ID: "long"},
		{Shard: 0, Namespace: "other", ID: "long"},
	})
	check(t, err)
	slices.SortFunc(got, func(a, b store.Loaded) int { return a.Saga.Shard - b.Saga.Shard })
	same(t, "loaded", []store.Loaded{
		{Saga: *long, History: history(t, s, long)}, {Saga: *finished, History: history(t, s, done)},
	}, got)
	if len(got[0].History) != 300 {
		t.Errorf("%d transitions, want 300", len(got[0].History))
	}
	none, err := s.Load(t.Context(), nil)
	check(t, err)
	same(t, "nothing", []store.Loaded{}, none)
}

func testSagaFilters(t *testing.T, s store.Store) {
	o := own(t, s)
	puts := byte(0)
	put := func(namespace, id, definition string, at time.Time, status store.Status) {
		one := saga(store.ShardOf(namespace, id, 8), id)
		one.Namespace, one.Definition, one.StartedAt, one.Run, one.Status = namespace, definition, at, run(at), status
		puts++
		one.Run[6], one.Run[7] = 0x70, puts // in this order also within a millisecond
		if namespace == "b" && status == store.Running {
			one.Version = 2
		}
		o.start(one)
	}
	put("a", "order-1", "order", base, store.Running)
	put("a", "order-2", "order", base.Add(time.Second), store.Completed)
	put("a", "refund-1", "refund", base.Add(2*time.Second), store.Stuck)
	put("a", "refund-2", "refund", base.Add(2*time.Second+time.Microsecond), store.Compensated)
	put("b", "order-1", "order", base.Add(3*time.Second), store.Running)
	put("b", "order-old", "order", base.Add(-1000*time.Hour), store.Abandoned)
	for _, c := range []struct {
		name string
		f    store.SagaFilter
		want []string
	}{
		{"all", store.SagaFilter{}, []string{"order-1", "refund-2", "refund-1", "order-2", "order-1", "order-old"}},
		{"oldest first", store.SagaFilter{OldestFirst: true}, []string{"order-old", "order-1", "order-2", "refund-1", "refund-2", "order-1"}},
		{"a namespace", store.SagaFilter{Namespace: "b"}, []string{"order-1", "order-old"}},
		{"an unknown namespace", store.SagaFilter{Namespace: "c"}, nil},
		{"a status", store.SagaFilter{Statuses: []store.Status{store.Stuck}}, []string{"refund-1"}},
		{"statuses", store.SagaFilter{Statuses: []store.Status{store.Running, store.Completed}}, []string{"order-1", "order-2", "order-1"}},
		{"an unknown status", store.SagaFilter{Statuses: []store.Status{99, -1}}, nil},
		{"a definition", store.SagaFilter{Namespace: "a", Definition: "refund", OldestFirst: true}, []string{"refund-1", "refund-2"}},
		{"a version", store.SagaFilter{Definition: "order", Version: 2}, []string{"order-1"}},
		{"a version of any definition", store.SagaFilter{Namespace: "a", Version: 1}, []string{"refund-2", "refund-1", "order-2", "order-1"}},
		{"an unknown version", store.SagaFilter{Version: 3}, nil},
		{"a prefix", store.SagaFilter{IDPrefix: "refund-"}, []string{"refund-2", "refund-1"}},
		{"a whole id", store.SagaFilter{Namespace: "a", IDPrefix: "order-1"}, []string{"order-1"}},
		{"started after, inclusive", store.SagaFilter{StartedAfter: base.Add(2 * time.Second)}, []string{"order-1", "refund-2", "refund-1"}},
		{"started after by a microsecond", store.SagaFilter{StartedAfter: base.Add(2*time.Second + time.Microsecond)}, []string{"order-1", "refund-2"}},
		{"started before, exclusive", store.SagaFilter{Namespace: "a", StartedBefore: base.Add(2 * time.Second)}, []string{"order-2", "order-1"}},
		{"started between", store.SagaFilter{StartedAfter: base, StartedBefore: base.Add(time.Microsecond)}, []string{"order-1"}},
		{"started never", store.SagaFilter{StartedAfter: base.Add(hour), StartedBefore: base.Add(-hour)}, nil},
		{"limited", store.SagaFilter{Limit: 2}, []string{"order-1", "refund-2"}},
		{"everything", store.SagaFilter{
			Namespace: "a", Statuses: []store.Status{store.Completed, store.Stuck}, Definition: "order", IDPrefix: "ord",
			StartedAfter: base, StartedBefore: base.Add(hour), Version: 1, Limit: 5,
		}, []string{"order-2"}},
	} {
		got, err := s.Sagas(t.Context(), c.f)
		check(t, err)
		same(t, c.name, c.want, ids(got))
	}
	// The last of all pages.
	for _, oldest := range []bool{false, true} {
		for _, after := range []uuid.UUID{{15: 1}, uuid.Max} {
			got, err := s.Sagas(t.Context(), store.SagaFilter{After: after, OldestFirst: oldest})
			check(t, err)
			if all := oldest == (after != uuid.Max); all != (len(got) == 6) || !all && len(got) != 0 {
				t.Errorf("after %v, oldest first %v: %d", after, oldest, len(got))
			}
		}
	}
}

// testSagaPages: sagas that started in the same microsecond are listed once each.
func testSagaPages(t *testing.T, s store.Store) {
	o := own(t, s)
	var sagas []*store.Saga
	for i := range 25 {
		sagas = append(sagas, saga(i%8, fmt.Sprint("saga ", i)))
	}
	o.start(sagas...)
	slices.SortFunc(sagas, byRun)
	want := make([]string, 25)
	for i, one := range sagas {
		want[i] = one.ID
	}
	for _, namespace := range []string{"default", ""} {
		for _, oldest := range []bool{true, false} {
			f := store.SagaFilter{Namespace: namespace, OldestFirst: oldest, Limit: 10}
			var got []string
			for _, size := range []int{10, 10, 5, 0} {
				page, err := s.Sagas(t.Context(), f)
				check(t, err)
				if len(page) != size {
					t.Fatalf("oldest first %v: a page of %d, want %d", oldest, len(page), size)
				}
				got = append(got, ids(page)...)
				if size > 0 {
					f.After = page[size-1].Run
				}
			}
			same(t, fmt.Sprintf("oldest first %v", oldest), want, got)
			slices.Reverse(want)
		}
	}
}

func testItems(t *testing.T, s store.Store) {
	o := own(t, s)
	one, two := saga(0, "one"), saga(1, "two")
	two.Namespace = "other"
	item := func(of *store.Saga, number int32, kind int16, at time.Time) store.Item {
		return store.Item{
			Namespace: of.Namespace, SagaID: of.ID, Run: of.Run, Number: number, Definition: of.Definition, Kind: kind, Status: 1,
			Direction: 2, Blocking: true, Step: "pay", Code: "TIMEOUT", Message: "no answer", Fingerprint: "f", Attempts: 7,
			How: "how", OpenedAt: at, ChangedAt: at, Version: 1,
		}
	}
	a, b, c := item(one, 1, 1, base), item(one, 2, 4, base), item(two, 1, 1, base.Add(-time.Second))
	first, second := start(one), start(two)
	first.Items, second.Items = []store.Item{a, b}, []store.Item{c}
	o.commit(0, first)
	o.commit(1, second)

	list := func(name string, f store.ItemFilter, want ...store.Item) {
		t.Helper()
		got, err := s.Items(t.Context(), f)
		check(t, err)
		same(t, name, want, got)
	}
	count := func(name string, want map[int16]int64) {
		t.Helper()
		got, err := s.CountItems(t.Context())
		check(t, err)
		same(t, name, want, got)
	}
	list("all, oldest first", store.ItemFilter{}, c, a, b)
	list("a namespace", store.ItemFilter{Namespace: "default"}, a, b)
	list("a saga", store.ItemFilter{SagaID: "two"}, c)
	list("a definition", store.ItemFilter{Definition: "none"})
	list("a page", store.ItemFilter{Limit: 2}, c, a)
	list("the next page", store.ItemFilter{AfterOpened: a.OpenedAt, AfterRun: a.Run, AfterNumber: a.Number, Limit: 2}, b)
	count("counts", map[int16]int64{1: 2, 4: 1})

	// Changed twice in a batch: the last change stands.
	retrying, closed := a, a
	retrying.Status, retrying.Attempts, retrying.Version = 2, 8, 2
	closed.Status, closed.ChangedAt, closed.Version, closed.Blocking, closed.How = store.ItemClosed, base.Add(time.Minute), 3, false, "by hand"
	x, y := step(one, 2), step(one, 3)
	x.Items, y.Items = []store.Item{retrying}, []store.Item{closed}
	o.commit(0, x, y)
	list("open ones", store.ItemFilter{}, c, b)
	list("closed ones too", store.ItemFilter{IncludeClosed: true}, c, closed, b)
	list("closed ones, next page", store.ItemFilter{IncludeClosed: true, AfterOpened: c.OpenedAt, AfterRun: c.Run, AfterNumber: 1}, closed, b)
	count("counts", map[int16]int64{1: 1, 4: 1})

	// A fenced batch's items aren't written.
	lost := o.batch(0, step(one, 4))
	lost.Grant.Epoch--
	gone := b
	gone.Status = store.ItemClosed
	lost.Transitions[0].Items = []store.Item{gone}
	z := step(two, 2)
	z.Items = []store.Item{item(two, 2, 5, base)}
	expect(t, s, []store.Batch{lost, o.batch(1, z)}, store.Fenced, store.Committed)
	count("counts", map[int16]int64{1: 1, 4: 1, 5: 1})
}

func testStrays(t *testing.T, s store.Store) {
	stray := func(i int) store.Stray {
		return store.Stray{
			At: base.Add(time.Duration(i) * time.Second), Namespace: "default", SagaID: "gone", Run: run(base), Step: "pay",
			Attempt: int32(i), Outcome: 1, Worker: "w\x00", Why: "unknown saga",
		}
	}
	var want []store.Stray
	for i := -3; i < 0; i++ {
		one := stray(i)
		check(t, s.KeepStray(t.Context(), one))
		one.Worker = "w\uFFFD"
		want = append([]store.Stray{one}, want...)
	}
	got, err := s.Strays(t.Context(), 2)
	check(t, err)
	same(t, "newest", want[:2], got)

	// Kept without bound they would fill the disk.
	const more = store.StraysMax + 500
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := w; i < more; i += 8 {
				if err := s.KeepStray(background(t), stray(i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	got, err = s.Strays(t.Context(), store.LimitMax)
	check(t, err)
	if len(got) != store.StraysMax {
		t.Errorf("%d strays, want %d", len(got), store.StraysMax)
	}
	seen := map[int32]bool{}
	for _, r := range got {
		seen[r.Attempt] = true
	}
	if seen[-1] || seen[-2] || seen[-3] {
		t.Error("the oldest strays are among the newest")
	}
}

func testDefinitions(t *testing.T, s store.Store) {
	put := func(name, hash string) (store.Definition, bool) {
		t.Helper()
		d, created, err := s.PutDefinition(t.Context(), store.Definition{
			Namespace: "default", Name: name, Hash: []byte(hash), RegisteredAt: base, Body: []byte("body of " + hash),
		})
		check(t, err)
		return d, created
	}
	want := func(name, hash string, version int32) store.Definition {
		return store.Definition{
			Namespace: "default", Name: name, Version: version, Hash: []byte(hash), RegisteredAt: base, Body: []byte("body of " + hash),
		}
	}
	for _, c := range []struct {
		name, hash string
		version    int32
		created    bool
	}{
		{"order", "h1", 1, true}, {"order", "h2", 2, true}, {"order", "h1", 1, false}, {"order", "h3", 3, true},
		{"Refund", "h1", 1, true}, {"über", "h1", 1, true}, {"order", "h2", 2, false},
	} {
		got, created := put(c.name, c.hash)
		same(t, c.name+" "+c.hash, want(c.name, c.hash, c.version), got)
		same(t, c.name+" "+c.hash+" created", c.created, created)
	}
	for version, hash := range map[int32]string{0: "h3", 1: "h1", 2: "h2", 3: "h3"} {
		got, err := s.Definition(t.Context(), "default", "order", version)
		check(t, err)
		if version == 0 {
			version = 3
		}
		same(t, "definition", want("order", hash, version), got)
	}
	for _, c := range []struct {
		namespace, name string
		version         int32
	}{{"default", "none", 0}, {"other", "order", 0}, {"default", "order", 4}, {"default", "order", -1}} {
		if _, err := s.Definition(t.Context(), c.namespace, c.name, c.version); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%v: %v, want ErrNotFound", c, err)
		}
	}
	list := func(name, after string, limit int) (got []string) {
		t.Helper()
		ds, err := s.Definitions(t.Context(), "default", name, after, limit)
		check(t, err)
		for _, d := range ds {
			got = append(got, fmt.Sprint(d.Name, d.Version))
			if len(d.Body) != 0 || len(d.Hash) == 0 || !d.RegisteredAt.Equal(base) {
				t.Errorf("listed: %+v", d)
			}
		}
		return got
	}
	same(t, "latest", []string{"Refund1", "order3", "über1"}, list("", "", 0)) // by bytes
	same(t, "latest, paged", []string{"order3"}, list("", "Refund", 1))
	same(t, "versions", []string{"order3", "order2", "order1"}, list("order", "", 0))
	same(t, "versions, paged", []string{"order2"}, list("order", "3", 1))
	same(t, "versions, last page", []string(nil), list("order", "1", 1))
	if _, err := s.Definitions(t.Context(), "default", "order", "x", 1); err == nil {
		t.Error("no error for a version that isn't a number")
	}

	before, err := s.Now(t.Context())
	check(t, err)
	d, _, err := s.PutDefinition(t.Context(), store.Definition{Namespace: "default", Name: "now", Hash: []byte("h")})
	check(t, err)
	if d.RegisteredAt.Before(before) || d.RegisteredAt.Sub(before) > time.Minute {
		t.Errorf("registered at %v, want %v or a little later", d.RegisteredAt, before)
	}
}

func testDefinitionsAtOnce(t *testing.T, s store.Store) {
	var mu sync.Mutex
	versions, created := map[string][]int32{}, 0
	var wg sync.WaitGroup
	for i := range 24 {
		hash := fmt.Sprint("hash ", i%8) // each by three
		wg.Go(func() {
			d, isNew, err := s.PutDefinition(background(t), store.Definition{
				Namespace: "default", Name: "order", Hash: []byte(hash), RegisteredAt: base,
			})
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			versions[hash] = append(versions[hash], d.Version)
			if isNew {
				created++
			}
		})
	}
	wg.Wait()
	all := []int32{}
	for hash, vs := range versions {
		if len(slices.Compact(vs)) != 1 {
			t.Errorf("%s has versions %v", hash, vs)
		}
		all = append(all, vs[0])
	}
	slices.Sort(all)
	if d := cmp.Diff([]int32{1, 2, 3, 4, 5, 6, 7, 8}, all); d != "" || created != 8 {
		t.Errorf("%d created, versions (-want +got):\n%s", created, d)
	}
}
