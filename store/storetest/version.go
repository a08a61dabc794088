package storetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sagad/sagad/store"
)

// define registers versions of a definition, from 1 on.
func define(t *testing.T, s store.Store, namespace, name string, versions int32) {
	t.Helper()
	for v := int32(1); v <= versions; v++ {
		d, _, err := s.PutDefinition(t.Context(), store.Definition{
			Namespace: namespace, Name: name, Hash: fmt.Append(nil, "hash ", v), RegisteredAt: base, Body: fmt.Append(nil, "body ", v),
		})
		check(t, err)
		if d.Version != v {
			t.Fatalf("version %d, want %d", d.Version, v)
		}
	}
}

func testDefinitionsNaming(t *testing.T, s store.Store) {
	put := func(namespace, name, body string) {
		t.Helper()
		_, _, err := s.PutDefinition(t.Context(), store.Definition{
			Namespace: namespace, Name: name, Hash: []byte(body), RegisteredAt: base, Body: []byte(body),
		})
		check(t, err)
	}
	put("default", "a", "\x00ship\xff")
	put("default", "a", "nothing")
	put("default", "a", "shipment")
	put("default", "b", "to be shipped")
	put("default", "c", "SHIP")
	put("other", "a", "ship")
	list := func(word, after string, version int32, limit int) (got []string) {
		t.Helper()
		ds, err := s.DefinitionsNaming(t.Context(), "default", word, after, version, limit)
		check(t, err)
		for _, d := range ds {
			got = append(got, fmt.Sprintf("%s%d %q", d.Name, d.Version, d.Body))
		}
		return got
	}
	same(t, "all", []string{`a1 "\x00ship\xff"`, `a3 "shipment"`, `b1 "to be shipped"`}, list("ship", "", 0, 0))
	same(t, "a page", []string{`a3 "shipment"`}, list("ship", "a", 1, 1))
	same(t, "the last page", []string{`b1 "to be shipped"`}, list("ship", "a", 3, 5))
	same(t, "no more", []string(nil), list("ship", "b", 1, 5))
	check(t, s.DeleteDefinition(t.Context(), "default", "a", 3))
	same(t, "without what is deleted", []string{`a1 "\x00ship\xff"`, `b1 "to be shipped"`}, list("ship", "", 0, 0))
}

func testUsage(t *testing.T, s store.Store) {
	o := own(t, s)
	define(t, s, "default", "order", 3)
	define(t, s, "default", "refund", 1)
	define(t, s, "other", "order", 1)
	statuses := []store.Status{store.Running, store.Compensating, store.Stuck, store.Completed, store.Compensated, store.Abandoned}
	for i := range 30 {
		one := saga(i%8, fmt.Sprintf("saga %02d", i))
		one.Version, one.Status = 2, statuses[i%len(statuses)]
		o.start(one)
	}
	moved, lone, foreign := saga(0, "moved"), saga(1, "lone"), saga(2, "foreign")
	lone.Definition = "refund"
	foreign.Namespace = "other"
	o.start(moved, lone, foreign)
	usage := func(name string, version int32) []store.VersionUsage {
		t.Helper()
		got, err := s.Usage(t.Context(), "default", name, version)
		check(t, err)
		for i := range got {
			for _, id := range got[i].Examples {
				row, err := s.Sagas(t.Context(), store.SagaFilter{Namespace: "default", Definition: name, Version: got[i].Version, IDPrefix: id})
				check(t, err)
				if len(row) == 0 || row[0].Status.Terminal() {
					t.Errorf("%q is no unfinished saga of version %d", id, got[i].Version)
				}
			}
			slices.Sort(got[i].Examples)
			if len(got[i].Examples) != len(slices.Compact(slices.Clone(got[i].Examples))) {
				t.Errorf("an example twice: %q", got[i].Examples)
			}
			if name == "order" && got[i].Version == 2 {
				same(t, "examples of version 2", min(int(got[i].Unfinished), store.UsageExamplesMax), len(got[i].Examples))
				got[i].Examples = nil
			}
		}
		return got
	}
	same(t, "all versions", []store.VersionUsage{
		{Version: 3}, {Version: 2, Unfinished: 15, Sagas: 30}, {Version: 1, Unfinished: 1, Sagas: 1, Examples: []string{"moved"}},
	}, usage("order", 0))
	same(t, "one version", []store.VersionUsage{{Version: 1, Unfinished: 1, Sagas: 1, Examples: []string{"moved"}}}, usage("order", 1))
	same(t, "a version without sagas", []store.VersionUsage{{Version: 3}}, usage("order", 3))
	same(t, "another definition", []store.VersionUsage{{Version: 1, Unfinished: 1, Sagas: 1, Examples: []string{"lone"}}}, usage("refund", 0))
	for _, c := range []struct {
		namespace, name string
		version         int32
	}{{"default", "none", 0}, {"default", "order", 4}, {"other", "refund", 1}, {"default", "order", -1}} {
		if _, err := s.Usage(t.Context(), c.namespace, c.name, c.version); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%v: %v, want ErrNotFound", c, err)
		}
	}

	// A saga that moves to another version counts there.
	next := changed(moved, 2, store.Running)
	next.Version = 3
	o.commit(0, change(next))
	row, err := s.Saga(t.Context(), store.Key{Shard: 0, Namespace: "default", ID: "moved"})
	check(t, err)
	same(t, "the row of a saga that moved", *next, row)
	loaded, err := s.Load(t.Context(), []store.Key{{Shard: 0, Namespace: "default", ID: "moved"}})
	check(t, err)
	same(t, "the saga that moved, loaded", int32(3), loaded[0].Saga.Version)
	same(t, "after a move", []store.VersionUsage{
		{Version: 3, Unfinished: 1, Sagas: 1, Examples: []string{"moved"}}, {Version: 2, Unfinished: 15, Sagas: 30}, {Version: 1},
	}, usage("order", 0))
	done := changed(next, 3, store.Completed)
	o.commit(0, change(done))
	same(t, "after its end", []store.VersionUsage{{Version: 3, Sagas: 1}}, usage("order", 3))
}

func testDelete(t *testing.T, s store.Store) {
	o := own(t, s)
	define(t, s, "default", "order", 3)
	define(t, s, "other", "order", 1)
	old, runs := saga(0, "old"), saga(1, "runs")
	old.Version, runs.Version = 2, 3
	o.start(old, runs)

	refused := func(version int32, want int64) {
		t.Helper()
		err := s.DeleteDefinition(t.Context(), "default", "order", version)
		var used *store.InUseError
		if !errors.As(err, &used) {
			t.Fatalf("deleting version %d: %v, want it in use", version, err)
		}
		same(t, "in use", store.InUseError{Namespace: "default", Name: "order", Version: version, Unfinished: want}, *used)
	}
	refused(2, 1)
	refused(3, 1)
	// Whatever isn't terminal needs it.
	for n, status := range []store.Status{store.Compensating, store.Stuck} {
		o.commit(0, change(changed(old, int64(n+2), status)))
		refused(2, 1)
	}
	o.commit(0, change(changed(old, 4, store.Compensated)))
	before, err := s.Now(t.Context())
	check(t, err)
	check(t, s.DeleteDefinition(t.Context(), "default", "order", 2))
	check(t, s.DeleteDefinition(t.Context(), "default", "order", 2))
	for _, c := range []struct {
		namespace, name string
		version         int32
	}{{"default", "none", 1}, {"default", "order", 4}, {"other", "order", 2}, {"default", "order", 0}, {"default", "order", -1}} {
		if err := s.DeleteDefinition(t.Context(), c.namespace, c.name, c.version); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%v: %v, want ErrNotFound", c, err)
		}
	}

	// It is still read by its number, and by that alone.
	got, err := s.Definition(t.Context(), "default", "order", 2)
	check(t, err)
	if got.DeletedAt.Before(before) || got.DeletedAt.Sub(before) > time.Minute {
		t.Errorf("deleted at %v, want %v or a little later", got.DeletedAt, before)
	}
	got.DeletedAt = time.Time{}
	same(t, "a deleted version", store.Definition{
		Namespace: "default", Name: "order", Version: 2, Hash: []byte("hash 2"), RegisteredAt: base, Body: []byte("body 2"),
	}, got)
	list := func(name, after string) (got []string) {
		t.Helper()
		ds, err := s.Definitions(t.Context(), "default", name, after, 0)
		check(t, err)
		for _, d := range ds {
			got = append(got, fmt.Sprint(d.Name, d.Version))
		}
		return got
	}
	same(t, "versions", []string{"order3", "order1"}, list("order", ""))
	same(t, "versions before 3", []string{"order1"}, list("order", "3"))
	if _, err := s.Usage(t.Context(), "default", "order", 2); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("usage of a deleted version: %v, want ErrNotFound", err)
	}

	// Nothing starts under it or moves to it; what ended under it is as it was, and other batches go through.
	late := saga(2, "late")
	late.Version = 2
	moves := changed(runs, 2, store.Running)
	moves.Version = 2
	ends := changed(old, 5, store.Compensated)
	for name, c := range map[string]struct {
		shard int
		bad   store.Transition
	}{"a start": {2, start(late)}, "a move": {1, change(moves)}} {
		beside := saga(3, "beside "+name)
		beside.Definition = "another"
		batches := []store.Batch{o.batch(c.shard, c.bad), o.batch(3, start(beside))}
		results, err := s.Commit(t.Context(), batches)
		same(t, name, []store.Result{store.Refused, store.Committed}, results)
		o.seqs[3]++
		var gone *store.DeletedError
		if !errors.As(err, &gone) {
			t.Fatalf("%s: %v, want a DeletedError", name, err)
		}
		same(t, name, store.DeletedError{Namespace: "default", Name: "order", Version: 2}, *gone)
	}
	if _, err := s.Saga(t.Context(), store.Key{Shard: 2, Namespace: "default", ID: "late"}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a saga of a deleted version: %v, want it not found", err)
	}
	row, err := s.Saga(t.Context(), store.Key{Shard: 1, Namespace: "default", ID: "runs"})
	check(t, err)
	same(t, "a move that was refused", *runs, row)
	o.commit(0, change(ends))

	// The same content again is the next version, and the number never comes back.
	put := func(hash string) (int32, bool) {
		t.Helper()
		d, created, err := s.PutDefinition(t.Context(), store.Definition{
			Namespace: "default", Name: "order", Hash: []byte(hash), RegisteredAt: base, Body: []byte("body"),
		})
		check(t, err)
		return d.Version, created
	}
	for _, c := range []struct {
		hash    string
		version int32
		created bool
	}{{"hash 2", 4, true}, {"hash 2", 4, false}, {"hash 3", 3, false}} {
		version, created := put(c.hash)
		same(t, c.hash, c.version, version)
		same(t, c.hash, c.created, created)
	}
	o.commit(1, change(changed(runs, 2, store.Completed)))
	for _, v := range []int32{4, 3, 1} {
		check(t, s.DeleteDefinition(t.Context(), "default", "order", v))
	}
	if _, err := s.Definition(t.Context(), "default", "order", 0); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the latest of none: %v, want ErrNotFound", err)
	}
	same(t, "definitions", []string(nil), list("", ""))
	version, created := put("hash 3")
	same(t, "after all were deleted", int32(5), version)
	same(t, "after all were deleted, created", true, created)
}

// testDeleteWhileSagasStart: of a deletion and the starts beside it, either the deletion loses or the starts after it do.
func testDeleteWhileSagasStart(t *testing.T, s store.Store) {
	o := own(t, s)
	const rounds, starters = 12, 3
	define(t, s, "default", "order", rounds)
	for version := int32(1); version <= rounds; version++ {
		var wg sync.WaitGroup
		begun := make(chan struct{}, 1)
		var started atomic.Int64
		var deletion error
		for i := range starters {
			wg.Go(func() {
				shard := int(version)%2*starters + i
				for n := 0; n < 40; n++ {
					one := saga(shard, fmt.Sprintf("saga %d %d", version, n))
					one.Run, one.Version = uuid.Must(uuid.NewV7()), version
					// Sagas that end at once make room for the deletion; one that stays closes it.
					if n%4 != 3 {
						one.Status = store.Completed
					}
					results, err := s.Commit(background(t), []store.Batch{o.batch(shard, start(one))})
					switch results[0] {
					case store.Committed:
						o.mu.Lock()
						o.seqs[shard]++
						o.mu.Unlock()
						if one.Status == store.Running {
							started.Add(1)
						}
					case store.Refused:
						var gone *store.DeletedError
						if !errors.As(err, &gone) {
							t.Errorf("a start: %v", err)
						}
						return
					default:
						t.Errorf("a start: %v, %v", results[0], err)
						return
					}
					select {
					case begun <- struct{}{}:
					default:
					}
				}
			})
		}
		wg.Go(func() {
			<-begun
			deletion = s.DeleteDefinition(background(t), "default", "order", version)
		})
		wg.Wait()
		d, err := s.Definition(t.Context(), "default", "order", version)
		check(t, err)
		var used *store.InUseError
		switch {
		case deletion == nil && (started.Load() > 0 || d.DeletedAt.IsZero()):
			t.Errorf("version %d is deleted, and %d sagas run under it", version, started.Load())
		case deletion != nil && (!errors.As(deletion, &used) || used.Unfinished < 1 || !d.DeletedAt.IsZero()):
			t.Errorf("version %d: %v", version, deletion)
		}
	}
}
