// Package storetest is the conformance suite of stores: what the engine relies on, and every implementation must do.
package storetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"github.com/sagad/sagad/store"
)

// Run holds a store to the suite. open returns a new, empty store with at least 8 shards, and closes it with the test.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, s store.Store)
	}{
		{"Meta", testMeta},
		{"Fence", testFence},
		{"FenceOfManyShards", testFenceOfManyShards},
		{"Resend", testResend},
		{"ResendAtOnce", testResendAtOnce},
		{"Atomic", testAtomic},
		{"Misuse", testMisuse},
		{"EndedContext", testEndedContext},
		{"SagaRow", testSagaRow},
		{"History", testHistory},
		{"Unfinished", testUnfinished},
		{"Load", testLoad},
		{"SagaFilters", testSagaFilters},
		{"SagaPages", testSagaPages},
		{"PagesWhileSagasChange", testPagesWhileSagasChange},
		{"Items", testItems},
		{"Strays", testStrays},
		{"RoundTrip", testRoundTrip},
		{"Definitions", testDefinitions},
		{"DefinitionsAtOnce", testDefinitionsAtOnce},
		{"DefinitionsNaming", testDefinitionsNaming},
		{"Usage", testUsage},
		{"Delete", testDelete},
		{"DeleteWhileSagasStart", testDeleteWhileSagasStart},
		{"Acquire", testAcquire},
		{"Renew", testRenew},
		{"AcquireAtOnce", testAcquireAtOnce},
		{"Beat", testBeat},
		{"CommitAtOnce", testCommitAtOnce},
		{"TakeOver", testTakeOver},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

// base is when the suite's sagas start.
var base = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)

// hour is longer than any test.
const hour = time.Hour

func node(name string) store.Node {
	return store.Node{Name: name, Boot: uuid.New(), Address: "http://" + name + ".test:7230"}
}

// run is a UUIDv7 of a time.
func run(at time.Time) (id uuid.UUID) {
	if _, err := rand.Read(id[:]); err != nil {
		panic(err)
	}
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(at.UnixMilli()))
	copy(id[:6], ms[2:])
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	return id
}

// saga is a row as a start writes it.
func saga(shard int, id string) *store.Saga {
	return &store.Saga{
		Shard: shard, Namespace: "default", ID: id, Run: run(base), Definition: "order", Version: 1, Status: store.Running,
		Digest: []byte("digest of " + id), StartedAt: base, ChangedAt: base, N: 1,
	}
}

// changed is a copy of a row, as transition n leaves it.
func changed(s *store.Saga, n int64, status store.Status) *store.Saga {
	c := *s
	c.N, c.Status, c.ChangedAt = n, status, base.Add(time.Duration(n)*time.Second)
	return &c
}

// start is the first transition of a saga.
func start(s *store.Saga) store.Transition { return change(s) }

// change is the transition that writes a row.
func change(s *store.Saga) store.Transition {
	t := step(s, s.N)
	t.Saga = s
	return t
}

// step is a transition that writes no row.
func step(s *store.Saga, n int64) store.Transition {
	return store.Transition{
		Run: s.Run, N: n, At: base.Add(time.Duration(n) * time.Second), Facts: fmt.Appendf(nil, "facts %d of %s", n, s.ID),
	}
}

// owner owns all shards of a store and counts their batches.
type owner struct {
	t      *testing.T
	s      store.Store
	node   store.Node
	grants map[int]store.Grant

	mu   sync.Mutex
	seqs map[int]int64
}

func own(t *testing.T, s store.Store) *owner {
	t.Helper()
	o := &owner{t: t, s: s, node: node("owner"), grants: map[int]store.Grant{}, seqs: map[int]int64{}}
	meta, err := s.Meta(t.Context())
	check(t, err)
	for _, g := range acquire(t, s, o.node, hour, upTo(meta.Shards)...) {
		o.grants[g.Shard], o.seqs[g.Shard] = g, g.LastSeq
	}
	if len(o.grants) != meta.Shards {
		t.Fatalf("acquired %d of %d shards", len(o.grants), meta.Shards)
	}
	return o
}

// batch is the shard's next.
func (o *owner) batch(shard int, transitions ...store.Transition) store.Batch {
	o.mu.Lock()
	defer o.mu.Unlock()
	return store.Batch{Grant: o.grants[shard], Seq: o.seqs[shard] + 1, Transitions: transitions}
}

// commit commits a shard's next batch.
func (o *owner) commit(shard int, transitions ...store.Transition) {
	o.t.Helper()
	expect(o.t, o.s, []store.Batch{o.batch(shard, transitions...)}, store.Committed)
	o.seqs[shard]++
}

// start commits the starts of sagas.
func (o *owner) start(sagas ...*store.Saga) {
	o.t.Helper()
	byShard := map[int][]store.Transition{}
	for _, s := range sagas {
		byShard[s.Shard] = append(byShard[s.Shard], start(s))
	}
	for shard, transitions := range byShard {
		o.commit(shard, transitions...)
	}
}

// expect commits and wants these results, with an error if one of them is Refused, and only then.
func expect(t *testing.T, s store.Store, batches []store.Batch, want ...store.Result) {
	t.Helper()
	got, err := s.Commit(t.Context(), batches)
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Fatalf("results (-want +got), error %v:\n%s", err, d)
	}
	refused := false
	for _, r := range got {
		refused = refused || r == store.Refused
	}
	if refused != (err != nil) {
		t.Fatalf("results %v with error %v", got, err)
	}
}

func acquire(t *testing.T, s store.Store, n store.Node, ttl time.Duration, shards ...int) []store.Grant {
	t.Helper()
	grants, err := s.Acquire(t.Context(), n, shards, ttl)
	check(t, err)
	return grants
}

func upTo(n int) []int {
	shards := make([]int, n)
	for i := range shards {
		shards[i] = i
	}
	return shards
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// same compares whole values; a nil slice equals an empty one.
func same(t *testing.T, what string, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmp.FilterValues(long, cmp.Comparer(bytes.Equal))); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// long payloads aren't worth a diff, which takes seconds.
func long(a, b []byte) bool { return len(a)+len(b) > 1000 }

// history is a saga's, whole.
func history(t *testing.T, s store.Store, of *store.Saga) []store.Row {
	t.Helper()
	rows, err := s.History(t.Context(), of.Shard, of.Run, 0, store.LimitMax)
	check(t, err)
	return rows
}

func numbers(rows []store.Row) []int64 {
	ns := []int64{}
	for _, r := range rows {
		ns = append(ns, r.N)
	}
	return ns
}

func ids(sagas []store.Saga) []string {
	out := []string{}
	for _, s := range sagas {
		out = append(out, s.ID)
	}
	return out
}

func background(t *testing.T) context.Context { return context.WithoutCancel(t.Context()) }
