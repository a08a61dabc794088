// Package memory keeps sagas in memory, by the same rules as a database does. It is for tests, simulations and trying things
// out: when the process ends, all is gone.
package memory

import (
	"context"
	"crypto/rand"
	"io"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/sagad/sagad/store"
)

// Store is a [store.Store]. It is safe for concurrent use.
type Store struct {
	clock  func() time.Time
	random io.Reader
	fault  func([]store.Batch) Fate

	mu          sync.Mutex
	meta        store.Meta
	shards      []shard
	histories   map[historyKey][]store.Row // by number
	items       map[itemKey]store.Item
	definitions map[definitionKey][]store.Definition // by version
	nodes       map[string]lease
	strays      []store.Stray // oldest first
}

var _ store.Store = (*Store)(nil)

type shard struct {
	epoch      int64
	grant      uuid.UUID
	lastSeq    int64
	lease      lease
	sagas      map[sagaKey]store.Saga
	unfinished map[uuid.UUID]sagaKey
}

type lease struct {
	epoch int64
	node  store.Node
	until time.Time
	ttl   time.Duration
}

type sagaKey struct{ namespace, id string }

type historyKey struct {
	shard int
	run   uuid.UUID
}

type itemKey struct {
	namespace string
	run       uuid.UUID
	number    int32
}

type definitionKey struct{ namespace, name string }

// Option of a store.
type Option func(*Store)

// Clock sets the store's clock, [time.Now] by default.
func Clock(now func() time.Time) Option { return func(s *Store) { s.clock = now } }

// Random sets where grants and keys come from, for simulations that must repeat themselves.
func Random(r io.Reader) Option { return func(s *Store) { s.random = r } }

// Fault is asked at each commit what becomes of it. It is called with the store locked: it must not call the store.
func Fault(fate func([]store.Batch) Fate) Option { return func(s *Store) { s.fault = fate } }

// Fate is what becomes of a commit.
type Fate int

const (
	// Answered: it is carried out and answered.
	Answered Fate = iota
	// AnswerLost: it is carried out, but its results are Unknown.
	AnswerLost
	// CommitLost: it isn't carried out, and its results are Unknown.
	CommitLost
)

// New makes an empty store.
func New(shards int, options ...Option) *Store {
	s := &Store{
		clock: time.Now, random: rand.Reader,
		shards:      make([]shard, shards),
		histories:   map[historyKey][]store.Row{},
		items:       map[itemKey]store.Item{},
		definitions: map[definitionKey][]store.Definition{},
		nodes:       map[string]lease{},
	}
	for _, o := range options {
		o(s)
	}
	for i := range s.shards {
		s.shards[i].sagas = map[sagaKey]store.Saga{}
		s.shards[i].unfinished = map[uuid.UUID]sagaKey{}
	}
	s.meta = store.Meta{Shards: shards, ClusterID: s.uuid(), TokenKey: make([]byte, 32)}
	if _, err := io.ReadFull(s.random, s.meta.TokenKey); err != nil {
		panic(err)
	}
	return s
}

func (s *Store) uuid() uuid.UUID { return uuid.Must(uuid.NewRandomFromReader(s.random)) }

// now has the resolution that databases keep.
func (s *Store) now() time.Time { return micro(s.clock()) }

func micro(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC().Truncate(time.Microsecond)
}

// Meta is what New made.
func (s *Store) Meta(context.Context) (store.Meta, error) {
	m := s.meta
	m.TokenKey = clone(m.TokenKey)
	return m, nil
}

// Now is the store's clock.
func (s *Store) Now(context.Context) (time.Time, error) { return s.now(), nil }

// Ping never fails.
func (s *Store) Ping(context.Context) error { return nil }

// Close does nothing: another engine may go on with the store, as with a database.
func (s *Store) Close() error { return nil }

// clone copies b; what was nil is empty, as databases answer it.
func clone(b []byte) []byte { return append([]byte{}, b...) }
