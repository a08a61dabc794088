package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sagad/sagad/store"
)

// Bench measures commits: see [Work]. It reports transitions per second, and calls after with the number of finished sagas.
func Bench(b *testing.B, s store.Store, rows, committers int, after func(sagas int)) {
	b.ResetTimer()
	sagas, transitions, err := Work(b.Context(), s, rows, committers, b.N)
	b.StopTimer()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(transitions)/b.Elapsed().Seconds(), "rows/s")
	after(sagas)
}

// Work commits sagas of 4 transitions each: the start with its row, two steps, and the end with its row. rows is how many
// transitions are in a statement, spread over shards as far as they go; committers each own an equal part of the
// shards. It returns how many sagas have finished and how many transitions were written.
func Work(ctx context.Context, s store.Store, rows, committers, commits int) (sagas, transitions int, _ error) {
	meta, err := s.Meta(ctx)
	if err != nil {
		return 0, 0, err
	}
	grants, err := s.Acquire(ctx, node("bench"), upTo(meta.Shards), time.Hour)
	if err != nil {
		return 0, 0, err
	}
	workloads, errs := make([]workload, committers), make([]error, committers)
	var wg sync.WaitGroup
	for c := range committers {
		w := &workloads[c]
		w.name, w.grants = fmt.Sprint(c), grants[c*len(grants)/committers:(c+1)*len(grants)/committers]
		w.seqs, w.open = make([]int64, len(w.grants)), make([][]*store.Saga, len(w.grants))
		for i, g := range w.grants {
			w.seqs[i] = g.LastSeq
		}
		wg.Go(func() {
			for range (commits + committers - 1) / committers {
				batches := w.next(rows)
				got, err := s.Commit(ctx, batches)
				for _, r := range got {
					if r != store.Committed && err == nil {
						err = fmt.Errorf("a batch is %v", r)
					}
				}
				if err != nil {
					errs[c] = err
					return
				}
			}
		})
	}
	wg.Wait()
	for i := range workloads {
		sagas += workloads[i].finished
		transitions += workloads[i].transitions
	}
	return sagas, transitions, errors.Join(errs...)
}

type workload struct {
	grants            []store.Grant
	seqs              []int64
	open              [][]*store.Saga // per shard
	at                int             // next shard
	name              string
	started, finished int
	transitions       int
}

// next makes the batches of one statement.
func (w *workload) next(rows int) []store.Batch {
	shards := min(rows, len(w.grants))
	batches := make([]store.Batch, 0, shards)
	for i := range shards {
		shard := w.at
		w.at = (w.at + 1) % len(w.grants)
		w.seqs[shard]++
		b := store.Batch{Grant: w.grants[shard], Seq: w.seqs[shard]}
		n := (i+1)*rows/shards - i*rows/shards
		// Those that are under way first, one transition each, then new ones.
		var still []*store.Saga
		for j, one := range w.open[shard] {
			if j >= n {
				still = append(still, one)
				continue
			}
			next := *one
			next.N++
			tr := store.Transition{Run: one.Run, N: next.N, At: time.Now(), Facts: make([]byte, 120)}
			if next.N == 4 {
				next.Status, next.ChangedAt = store.Completed, tr.At
				tr.Saga = &next
				w.finished++
			} else {
				still = append(still, &next)
			}
			b.Transitions = append(b.Transitions, tr)
		}
		for len(b.Transitions) < n {
			now := time.Now()
			w.started++
			one := &store.Saga{
				Shard: b.Grant.Shard, Namespace: "default", ID: fmt.Sprintf("order-%s-%012d", w.name, w.started),
				Run: uuid.Must(uuid.NewV7()), Definition: "order", Version: 1, Status: store.Running, Digest: make([]byte, 32),
				StartedAt: now, ChangedAt: now, N: 1,
			}
			still = append(still, one)
			b.Transitions = append(b.Transitions, store.Transition{Run: one.Run, N: 1, At: now, Facts: make([]byte, 250), Saga: one})
		}
		w.open[shard] = still
		w.transitions += n
		batches = append(batches, b)
	}
	return batches
}
