package memory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/sagad/sagad/store"
)

var errFault = errors.New("outcome unknown: an injected fault")

// Commit writes the batches, unless the fault hook decides otherwise.
func (s *Store) Commit(_ context.Context, batches []store.Batch) ([]store.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	results := make([]store.Result, len(batches))
	fate := Answered
	if s.fault != nil {
		fate = s.fault(batches)
	}
	if fate == CommitLost {
		return results, errFault
	}
	err := store.Check(batches)
	for i := range batches {
		switch {
		case err != nil:
			results[i] = store.Refused
		default:
			results[i] = s.judge(batches[i].Grant, batches[i].Seq)
		}
	}
	if err == nil {
		for i := range batches {
			if results[i] != store.Committed {
				continue
			}
			if refusal := s.write(&batches[i]); refusal != nil {
				results[i] = store.Refused
				err = errors.Join(err, fmt.Errorf("commit of shard %d: %w", batches[i].Grant.Shard, refusal))
			}
		}
	}
	if fate == AnswerLost {
		return make([]store.Result, len(batches)), errFault
	}
	return results, err
}

// judge is the fence.
func (s *Store) judge(g store.Grant, seq int64) store.Result {
	if g.Shard >= len(s.shards) {
		return store.Regressed
	}
	switch have := &s.shards[g.Shard]; {
	case have.epoch < g.Epoch:
		return store.Regressed
	case have.epoch > g.Epoch || have.grant != g.ID:
		return store.Fenced
	case have.lastSeq >= seq:
		return store.Already
	case have.lastSeq == seq-1:
		return store.Committed
	default:
		return store.Regressed
	}
}

// write writes a batch, or nothing and says why.
func (s *Store) write(b *store.Batch) error {
	have := &s.shards[b.Grant.Shard]
	type row struct {
		run uuid.UUID
		n   int64
	}
	rows := map[row]bool{}
	for i := range b.Transitions {
		t := &b.Transitions[i]
		k := row{t.Run, t.N}
		if _, found := find(s.histories[historyKey{b.Grant.Shard, t.Run}], t.N); found || rows[k] {
			return fmt.Errorf("transition %d of run %v is there already", t.N, t.Run)
		}
		rows[k] = true
	}
	writes := b.Sagas()
	starts := map[sagaKey]bool{}
	for _, w := range writes {
		k := sagaKey{w.Saga.Namespace, w.Saga.ID}
		old, found := have.sagas[k]
		switch {
		case w.Saga.Status < store.Running || w.Saga.Status > store.Abandoned:
			return fmt.Errorf("saga %s/%s: status %d is unknown", k.namespace, k.id, w.Saga.Status)
		case w.New && (found || starts[k]):
			return fmt.Errorf("saga %s/%s is there already", k.namespace, k.id)
		case !w.New && (!found || old.Run != w.Saga.Run || old.N >= w.Saga.N):
			return fmt.Errorf("saga %s/%s isn't there or isn't older", k.namespace, k.id)
		case !w.Saga.Status.Terminal() && (w.New || old.Version != w.Saga.Version) && s.deleted(w.Saga):
			return &store.DeletedError{Namespace: w.Saga.Namespace, Name: w.Saga.Definition, Version: w.Saga.Version}
		}
		starts[k] = w.New
	}

	have.lastSeq = b.Seq
	for i := range b.Transitions {
		t := &b.Transitions[i]
		k := historyKey{b.Grant.Shard, t.Run}
		at, _ := find(s.histories[k], t.N)
		s.histories[k] = slices.Insert(s.histories[k], at, store.Row{
			Run: t.Run, N: t.N, Epoch: b.Grant.Epoch, Seq: b.Seq, At: micro(t.At), Facts: clone(t.Facts),
		})
	}
	for _, w := range writes {
		k := sagaKey{w.Saga.Namespace, w.Saga.ID}
		saga := copySaga(*w.Saga)
		if old, found := have.sagas[k]; found {
			saga.Digest, saga.StartedAt = old.Digest, old.StartedAt
		}
		have.sagas[k] = saga
		if saga.Status.Terminal() {
			delete(have.unfinished, saga.Run)
		} else {
			have.unfinished[saga.Run] = k
		}
	}
	for _, i := range b.Items() {
		item := *i
		item.OpenedAt, item.ChangedAt = micro(item.OpenedAt), micro(item.ChangedAt)
		item.Step, item.Code, item.Message = store.Text(item.Step), store.Text(item.Code), store.Text(item.Message)
		item.Fingerprint, item.How = store.Text(item.Fingerprint), store.Text(item.How)
		s.items[itemKey{item.Namespace, item.Run, item.Number}] = item
	}
	return nil
}

func find(rows []store.Row, n int64) (int, bool) {
	if last := len(rows) - 1; last < 0 || rows[last].N < n {
		return last + 1, false
	}
	return slices.BinarySearchFunc(rows, n, func(r store.Row, n int64) int { return int(r.N - n) })
}

func copySaga(s store.Saga) store.Saga {
	s.Digest = clone(s.Digest)
	if len(s.Cause) == 0 {
		s.Cause = nil
	} else {
		s.Cause = clone(s.Cause)
	}
	if len(s.Labels) == 0 {
		s.Labels = nil
	} else {
		s.Labels = maps.Clone(s.Labels)
	}
	s.StartedAt, s.ChangedAt, s.Deadline = micro(s.StartedAt), micro(s.ChangedAt), micro(s.Deadline)
	return s
}
