package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// loader looks sagas up that doors don't have in memory. Lookups of many shards go into one query; while it is under
// way the next gather.
type loader struct {
	st          store.Loader
	definitions *definitions
	metrics     *metrics
	log         *slog.Logger
	// pause is where it waits before it asks again.
	pause func(context.Context, time.Duration) bool

	mu      sync.Mutex
	waiting []lookup
	wake    chan struct{}
}

type lookup struct {
	shard *shard
	key   store.Key
}

func newLoader(st store.Loader, defs *definitions, m *metrics, log *slog.Logger) *loader {
	return &loader{st: st, definitions: defs, metrics: m, log: log, pause: pause, wake: make(chan struct{}, 1)}
}

// ask queues lookups; the shard is told what was found.
func (l *loader) ask(s *shard, keys []store.Key) {
	l.mu.Lock()
	for _, k := range keys {
		l.waiting = append(l.waiting, lookup{s, k})
	}
	l.mu.Unlock()
	l.signal()
}

func (l *loader) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run looks up until ctx ends.
func (l *loader) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		}
		for ctx.Err() == nil {
			asked, more := l.take()
			if len(asked) == 0 {
				break
			}
			if more {
				l.signal() // for the other loader
			}
			l.load(ctx, asked)
		}
	}
}

// take hands over some of the lookups that wait.
func (l *loader) take() (asked []lookup, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(len(l.waiting), lookupMax)
	asked = l.waiting[:n:n]
	l.waiting = l.waiting[n:]
	more = len(l.waiting) > 0
	if !more {
		l.waiting = nil
	}
	return asked, more
}

func (l *loader) load(ctx context.Context, asked []lookup) {
	keys := make([]store.Key, len(asked))
	for i, a := range asked {
		keys[i] = a.key
	}
	l.metrics.loads.Add(float64(len(keys)))
	found, err := l.query(ctx, keys)
	byShard := make(map[*shard][]lookedUp)
	if err != nil {
		l.log.Warn("sagas can't be looked up", "sagas", len(keys), "error", err)
		for _, a := range asked {
			byShard[a.shard] = append(byShard[a.shard], lookedUp{
				key: sagaKey{a.key.Namespace, a.key.ID}, failed: unavailable("the database can't be read"),
			})
		}
	} else {
		at := make(map[sagaKey]int, len(found))
		for i := range found {
			at[sagaKey{found[i].Saga.Namespace, found[i].Saga.ID}] = i
		}
		for _, a := range asked {
			r := lookedUp{key: sagaKey{a.key.Namespace, a.key.ID}}
			if i, ok := at[r.key]; ok {
				r = l.decode(ctx, &found[i])
			}
			byShard[a.shard] = append(byShard[a.shard], r)
		}
	}
	for s, results := range byShard {
		s.mail.loaded(results)
	}
}

// query tries for a while: the store may be failing over.
func (l *loader) query(ctx context.Context, keys []store.Key) ([]store.Loaded, error) {
	for wait := 20 * time.Millisecond; ; wait *= 2 {
		q, cancel := context.WithTimeout(ctx, 10*time.Second)
		found, err := l.st.Load(q, keys)
		cancel()
		if err == nil || wait > 200*time.Millisecond || !l.pause(ctx, wait) {
			return found, err
		}
	}
}

// decode folds a saga's history. What can't be applied is told in err; what can't be looked up in failed.
func (l *loader) decode(ctx context.Context, x *store.Loaded) (r lookedUp) {
	r = lookedUp{key: sagaKey{x.Saga.Namespace, x.Saga.ID}, exists: true, run: x.Saga.Run}
	m, _, err := l.definitions.get(ctx, x.Saga.Namespace, x.Saga.Definition, x.Saga.Version)
	if err != nil {
		var transient *UnavailableError
		if errors.As(err, &transient) {
			r.failed = transient
			return r
		}
		r.err = err
		return r
	}
	r.machine = m
	r.state, r.bytes, r.err = foldVersions(func(version int32) (*statemachine.Machine, error) {
		if version == x.Saga.Version {
			return m, nil
		}
		// It ran under another version before it was moved to this one.
		m, _, err := l.definitions.get(ctx, x.Saga.Namespace, x.Saga.Definition, version)
		return m, err
	}, x)
	var transient *UnavailableError
	if errors.As(r.err, &transient) {
		r.failed, r.err = transient, nil
	}
	return r
}

// foldSafely folds the history of a saga that never changed its version.
func foldSafely(m *statemachine.Machine, x *store.Loaded) (s *statemachine.State, bytes int, err error) {
	return foldVersions(func(int32) (*statemachine.Machine, error) { return m, nil }, x)
}

// foldVersions folds a saga's history. A panic is an error: one bad saga doesn't stop the others.
func foldVersions(machine func(version int32) (*statemachine.Machine, error), x *store.Loaded) (s *statemachine.State, bytes int, err error) {
	defer func() {
		if r := recover(); r != nil {
			s, err = nil, fmt.Errorf("applying its history panicked: %v", r)
		}
	}()
	ts := make([]*historyv1.Transition, len(x.History))
	all := make([]historyv1.Transition, len(x.History))
	for i := range x.History {
		row := &x.History[i]
		if row.N != int64(i+1) || row.Run != x.Saga.Run {
			return nil, 0, fmt.Errorf("its history has a gap: transition %d of run %s follows %d", row.N, row.Run, i)
		}
		ts[i] = &all[i]
		if err := proto.Unmarshal(row.Facts, ts[i]); err != nil {
			return nil, 0, fmt.Errorf("transition %d can't be decoded: %w", row.N, err)
		}
		bytes += len(row.Facts)
	}
	s, err = statemachine.FoldAll(ts, machine)
	if err != nil {
		return nil, 0, err
	}
	if s.SagaID != x.Saga.ID || s.Namespace != x.Saga.Namespace {
		return nil, 0, fmt.Errorf("its history is that of saga %q in namespace %q", s.SagaID, s.Namespace)
	}
	return s, bytes, nil
}

// pause waits, and says whether ctx is still good.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
