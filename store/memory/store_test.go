package memory

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(*testing.T) store.Store { return New(8) })
}

func TestFault(t *testing.T) {
	ctx := context.Background()
	var fate Fate
	s := New(1, Fault(func([]store.Batch) Fate { return fate }))
	grants, err := s.Acquire(ctx, store.Node{Name: "a", Boot: uuid.New()}, []int{0}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	commit := func(seq int64, with Fate) store.Result {
		fate = with
		got, err := s.Commit(ctx, []store.Batch{{Grant: grants[0], Seq: seq}})
		if (err != nil) != (got[0] == store.Unknown) {
			t.Errorf("%v with error %v", got[0], err)
		}
		return got[0]
	}
	got := []store.Result{
		commit(1, AnswerLost), commit(1, Answered), commit(2, CommitLost), commit(2, Answered), commit(2, Answered),
	}
	want := []store.Result{store.Unknown, store.Already, store.Unknown, store.Committed, store.Already}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("results (-want +got):\n%s", d)
	}
}

func TestClock(t *testing.T) {
	ctx := context.Background()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := New(1, Clock(func() time.Time { return now }), Random(bytes.NewReader(make([]byte, 1024))))
	a, b := store.Node{Name: "a"}, store.Node{Name: "b"}
	take := func(n store.Node) int {
		grants, err := s.Acquire(ctx, n, []int{0}, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return len(grants)
	}
	got := []int{take(a), take(b)}
	now = now.Add(10 * time.Second)
	got = append(got, take(b), take(a))
	now = now.Add(-time.Hour) // a lease from an impossible future has expired
	got = append(got, take(a))
	if d := cmp.Diff([]int{1, 0, 1, 0, 1}, got); d != "" {
		t.Errorf("shards taken (-want +got):\n%s", d)
	}
}
