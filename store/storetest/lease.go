package storetest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sagad/sagad/store"
)

func shardsOf(grants []store.Grant) []int {
	shards := []int{}
	for _, g := range grants {
		shards = append(shards, g.Shard)
	}
	slices.Sort(shards)
	return shards
}

// until repeats what a lease's end must make true.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatal("waited 10 s for: ", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func testAcquire(t *testing.T, s store.Store) {
	meta, err := s.Meta(t.Context())
	check(t, err)
	leases, err := s.Leases(t.Context())
	check(t, err)
	want := make([]store.Lease, meta.Shards)
	for i := range want {
		want[i].Shard = i
	}
	same(t, "leases of a new database", want, leases)

	a, b := node("a"), node("b")
	first := acquire(t, s, a, hour, 0, 1, 2)
	same(t, "a's shards", []int{0, 1, 2}, shardsOf(first))
	same(t, "b's shards", []int{3, 4}, shardsOf(acquire(t, s, b, hour, 4, 3, 2, 1)))
	same(t, "shards that don't exist", []int{}, shardsOf(acquire(t, s, b, hour, meta.Shards, -1)))
	leases, err = s.Leases(t.Context())
	check(t, err)
	for i, n := range []store.Node{a, a, a, b, b, {}} {
		got := leases[i]
		if got.Node != n || got.Live != (i < 5) || got.Shard != i || i < 5 && got.Epoch < 1 {
			t.Errorf("lease %d: %+v, want one of %+v", i, got, n)
		}
	}

	// Taking again what one has gives a new grant, and fences the old one.
	again := acquire(t, s, a, hour, 1)[0]
	if again.Epoch <= first[1].Epoch || again.ID == first[1].ID || again.ID == uuid.Nil {
		t.Errorf("acquired again: %+v after %+v", again, first[1])
	}
	expect(t, s, []store.Batch{{Grant: first[1], Seq: 1}}, store.Fenced)
	expect(t, s, []store.Batch{{Grant: again, Seq: 1}}, store.Committed)
	if g := acquire(t, s, a, hour, 1)[0]; g.LastSeq != 1 {
		t.Errorf("last number %d, want 1", g.LastSeq)
	}

	// The same name in another process is another holder.
	restarted := a
	restarted.Boot = uuid.New()
	same(t, "another process of the same name", []int{}, shardsOf(acquire(t, s, restarted, hour, 0)))

	// Released shards are free at once; others' stay theirs.
	check(t, s.Release(t.Context(), a, []int{0, 3, 99}))
	same(t, "after the release", []int{0}, shardsOf(acquire(t, s, b, hour, 0, 1, 2)))
	leases, err = s.Leases(t.Context())
	check(t, err)
	if leases[0].Node != b || leases[3].Node != b || leases[1].Node != a {
		t.Errorf("leases after the release: %+v", leases[:4])
	}
	check(t, s.Release(t.Context(), a, []int{2}))
	leases, err = s.Leases(t.Context())
	check(t, err)
	if l := leases[2]; l.Live || l.Node != (store.Node{}) || l.Epoch < 1 {
		t.Errorf("a released lease: %+v", l)
	}
}

func testRenew(t *testing.T, s store.Store) {
	a, b := node("a"), node("b")
	acquire(t, s, a, time.Millisecond, 0, 1)
	acquire(t, s, a, hour, 2)
	// Expired, but nobody took them: they are revived.
	renew := func(n store.Node, ttl time.Duration) []int {
		t.Helper()
		held, err := s.Renew(t.Context(), n, ttl)
		check(t, err)
		slices.Sort(held)
		return held
	}
	until(t, "the end of a lease", func() bool {
		leases, err := s.Leases(t.Context())
		check(t, err)
		return !leases[0].Live && !leases[1].Live && leases[2].Live
	})
	same(t, "a's", []int{0, 1, 2}, renew(a, hour))
	same(t, "b's", []int{}, shardsOf(acquire(t, s, b, hour, 0, 1, 2)))

	same(t, "a's", []int{0, 1, 2}, renew(a, time.Millisecond))
	var taken []store.Grant
	until(t, "an expired lease to be taken", func() bool { taken = acquire(t, s, b, hour, 1); return len(taken) == 1 })
	same(t, "what a still has", []int{0, 2}, renew(a, hour))
	other := a
	other.Boot = uuid.New()
	same(t, "another process of the same name", []int{}, renew(other, hour))
	same(t, "b's", []int{1}, renew(b, hour))
	if taken[0].Epoch < 2 {
		t.Errorf("epoch %d after two acquisitions", taken[0].Epoch)
	}
}

func testAcquireAtOnce(t *testing.T, s store.Store) {
	meta, err := s.Meta(t.Context())
	check(t, err)
	var mu sync.Mutex
	owners := map[int]int{}
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() {
			shards := upTo(meta.Shards)
			if i%2 == 1 {
				slices.Reverse(shards)
			}
			grants, err := s.Acquire(background(t), node(fmt.Sprint("node ", i)), shards, hour)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, g := range grants {
				owners[g.Shard]++
			}
		})
	}
	wg.Wait()
	for shard := range meta.Shards {
		if owners[shard] != 1 {
			t.Errorf("shard %d has %d owners", shard, owners[shard])
		}
	}
}

func testBeat(t *testing.T, s store.Store) {
	a, b := node("a"), node("b")
	beat := func(n store.Node, ttl time.Duration) []store.Node {
		t.Helper()
		nodes, err := s.Beat(t.Context(), n, ttl)
		check(t, err)
		return nodes
	}
	same(t, "alone", []store.Node{b}, beat(b, hour))
	same(t, "two", []store.Node{a, b}, beat(a, hour))
	a.Boot, a.Address = uuid.New(), "http://elsewhere.test"
	same(t, "restarted", []store.Node{a, b}, beat(a, hour))
	beat(a, time.Millisecond)
	until(t, "a node's end", func() bool { return len(beat(b, hour)) == 1 })
	same(t, "back", []store.Node{a, b}, beat(a, hour))
}

// testTakeOver takes a shard from an owner that doesn't stop committing.
func testTakeOver(t *testing.T, s store.Store) {
	old := acquire(t, s, node("owner 0"), time.Microsecond, 6)[0]
	one := saga(6, "one")
	expect(t, s, []store.Batch{{Grant: old, Seq: 1, Transitions: []store.Transition{start(one)}}}, store.Committed)
	old.LastSeq = 1
	const rounds = 15
	for round := range rounds {
		committing, stopped := make(chan struct{}), make(chan int64)
		go func() {
			seq := old.LastSeq
			defer func() { stopped <- seq }()
			for {
				got, err := s.Commit(background(t), []store.Batch{{
					Grant: old, Seq: seq + 1, Transitions: []store.Transition{step(one, seq+1)},
				}})
				if err != nil {
					t.Error(err)
					return
				}
				if got[0] == store.Fenced {
					return
				}
				if got[0] != store.Committed {
					t.Errorf("round %d: %v", round, got[0])
					return
				}
				seq++
				if seq == old.LastSeq+3 {
					close(committing)
				}
			}
		}()
		<-committing
		var taken store.Grant
		until(t, "a shard whose lease is over", func() bool {
			grants := acquire(t, s, node(fmt.Sprint("owner ", round+1)), time.Microsecond, 6)
			if len(grants) == 1 {
				taken = grants[0]
			}
			return len(grants) == 1
		})
		// What is read now is final.
		loaded, err := s.Load(t.Context(), []store.Key{{Shard: 6, Namespace: "default", ID: "one"}})
		check(t, err)
		read := int64(len(loaded[0].History))
		if last := <-stopped; last != taken.LastSeq || read != last {
			t.Fatalf("round %d: the old owner committed up to %d, the new one was told %d and read %d", round, last, taken.LastSeq, read)
		}
		old = taken
	}
}
