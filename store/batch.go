package store

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/google/uuid"
)

// Check tells what makes batches unfit to be committed together, nil if nothing does. Implementations of [Committer]
// call it first and answer Refused for all of them: it is a mistake of the caller.
func Check(batches []Batch) error {
	seen := make(map[int]bool, len(batches))
	for _, b := range batches {
		switch shard := b.Grant.Shard; {
		case shard < 0 || shard > math.MaxInt32:
			return fmt.Errorf("shard %d is out of range", shard)
		case seen[shard]:
			return fmt.Errorf("two batches of shard %d in one commit; send the second after the first is answered", shard)
		case b.Seq < 1:
			return fmt.Errorf("shard %d: sequence number %d; they begin at 1", shard, b.Seq)
		}
		seen[b.Grant.Shard] = true
		for i := range b.Transitions {
			t := &b.Transitions[i]
			if t.N < 1 || t.N > math.MaxInt32 {
				return fmt.Errorf("run %v: transition number %d is out of range", t.Run, t.N)
			}
			if s := t.Saga; s != nil && (s.Shard != b.Grant.Shard || s.Run != t.Run || s.N != t.N) {
				return fmt.Errorf("run %v: the saga's row names shard %d, run %v, number %d; the transition is number %d of shard %d",
					t.Run, s.Shard, s.Run, s.N, t.N, b.Grant.Shard)
			}
			for j := range t.Items {
				if t.Items[j].Run != t.Run {
					return fmt.Errorf("run %v: an item names run %v", t.Run, t.Items[j].Run)
				}
			}
		}
	}
	return nil
}

// SagaWrite is a saga's row as a batch leaves it.
type SagaWrite struct {
	// New: the saga starts in this batch. Its row is inserted, else updated.
	New  bool
	Saga *Saga
}

// Sagas folds what the batch writes to each saga's row into one write, in the order of their first.
func (b *Batch) Sagas() []SagaWrite {
	var writes []SagaWrite
	var at map[uuid.UUID]int
	for i := range b.Transitions {
		t := &b.Transitions[i]
		if t.Saga == nil {
			continue
		}
		if j, ok := at[t.Run]; ok {
			writes[j].Saga = t.Saga
			continue
		}
		if at == nil {
			at = make(map[uuid.UUID]int)
		}
		at[t.Run] = len(writes)
		writes = append(writes, SagaWrite{New: t.N == 1, Saga: t.Saga})
	}
	return writes
}

// Items folds what the batch writes to each operations item into one write, in the order of their first.
func (b *Batch) Items() []*Item {
	type key struct {
		run    uuid.UUID
		number int32
	}
	var writes []*Item
	var at map[key]int
	for i := range b.Transitions {
		items := b.Transitions[i].Items
		for j := range items {
			k := key{items[j].Run, items[j].Number}
			if w, ok := at[k]; ok {
				writes[w] = &items[j]
				continue
			}
			if at == nil {
				at = make(map[key]int)
			}
			at[k] = len(writes)
			writes = append(writes, &items[j])
		}
	}
	return writes
}

// ByShard returns the batches in the order of their shards, and where each was. Rows are locked in this order, so that
// two commits can't deadlock.
func ByShard(batches []Batch) (sorted []*Batch, was []int) {
	was = make([]int, len(batches))
	for i := range was {
		was[i] = i
	}
	slices.SortFunc(was, func(a, b int) int {
		return cmp.Compare(batches[a].Grant.Shard, batches[b].Grant.Shard)
	})
	sorted = make([]*Batch, len(batches))
	for i, w := range was {
		sorted[i] = &batches[w]
	}
	return sorted, was
}
