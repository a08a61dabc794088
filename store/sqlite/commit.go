package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/sqlite/litedb"
)

// errSaga: the saga's row to update isn't there or isn't older.
var errSaga = errors.New("the saga's row isn't there or isn't older")

// Commit writes the batches in one transaction. If it is refused, each batch is tried by itself, so that only the guilty one
// is refused. An I/O error closes the store, since what it left on disk isn't known before the file is opened anew.
func (s *Store) Commit(ctx context.Context, batches []store.Batch) ([]store.Result, error) {
	results := make([]store.Result, len(batches))
	if len(batches) == 0 {
		return results, nil
	}
	if err := store.Check(batches); err != nil {
		for i := range results {
			results[i] = store.Refused
		}
		return results, err
	}
	sorted, was := store.ByShard(batches)
	got, err := s.commit(ctx, sorted)
	if err != nil && got[0] == store.Refused && len(sorted) > 1 {
		err = nil
		for i := range sorted {
			one, oneErr := s.commit(ctx, sorted[i:i+1])
			got[i] = one[0]
			err = errors.Join(err, oneErr)
		}
	}
	for i := range got {
		results[was[i]] = got[i]
	}
	return results, err
}

// commit is one transaction. With an error all results are Unknown or all are Refused.
func (s *Store) commit(ctx context.Context, batches []*store.Batch) ([]store.Result, error) {
	results := make([]store.Result, len(batches))
	err := s.write(ctx, func(ctx context.Context, w *writer) error {
		for i, b := range batches {
			var err error
			if results[i], err = s.fence(ctx, w, b); err != nil {
				return err
			}
			if results[i] == store.Committed {
				if err := s.put(ctx, w, b); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err == nil {
		return results, nil
	}
	result := store.Unknown
	if errors.Is(err, errSaga) || judge(err) == refused {
		result = store.Refused
	}
	for i := range results {
		results[i] = result
	}
	return results, fmt.Errorf("commit of %d batches, the first of shard %d: %w", len(batches), batches[0].Grant.Shard, err)
}

// fence compares and swaps the shard's row.
func (s *Store) fence(ctx context.Context, w *writer, b *store.Batch) (store.Result, error) {
	swapped, err := s.q.Swap(ctx, w, litedb.SwapParams{
		ID: int64(b.Grant.Shard), Epoch: b.Grant.Epoch, GrantID: b.Grant.ID[:], Seq: b.Seq, Before: b.Seq - 1,
	})
	if err != nil || swapped == 1 {
		return store.Committed, err
	}
	if b.Grant.Shard >= s.meta.Shards {
		return store.Regressed, nil
	}
	have, err := s.q.Fence(ctx, w, int64(b.Grant.Shard))
	switch {
	case err != nil:
		return store.Unknown, err
	case have.Epoch < b.Grant.Epoch:
		return store.Regressed, nil
	case have.Epoch > b.Grant.Epoch || uuid.UUID(have.GrantID) != b.Grant.ID:
		return store.Fenced, nil
	case have.LastSeq >= b.Seq:
		return store.Already, nil
	default:
		return store.Regressed, nil
	}
}

// put writes a batch.
func (s *Store) put(ctx context.Context, w *writer, b *store.Batch) error {
	for i := range b.Transitions {
		t := &b.Transitions[i]
		err := s.q.InsertHistory(ctx, w, litedb.InsertHistoryParams{
			Run: t.Run[:], N: t.N, Shard: int64(b.Grant.Shard), Epoch: b.Grant.Epoch, Seq: b.Seq, At: t.At.UnixMicro(),
			Facts: filled(t.Facts),
		})
		if err != nil {
			return err
		}
	}
	for _, write := range b.Sagas() {
		if err := s.putSaga(ctx, w, write); err != nil {
			return err
		}
	}
	for _, item := range b.Items() {
		if err := s.q.PutItem(ctx, w, fromItem(item)); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) putSaga(ctx context.Context, w *writer, write store.SagaWrite) error {
	row := fromSaga(write.Saga)
	if write.New {
		return deletedError(s.q.InsertSaga(ctx, w, litedb.InsertSagaParams(row)), write.Saga)
	}
	updated, err := s.q.UpdateSaga(ctx, w, litedb.UpdateSagaParams{
		N: row.N, Definition: row.Definition, Version: row.Version, Status: row.Status, ChangedAt: row.ChangedAt,
		Deadline: row.Deadline, Labels: row.Labels, Cause: row.Cause, SettledByHand: row.SettledByHand,
		Shard: row.Shard, Namespace: row.Namespace, ID: row.ID, Run: row.Run, Below: row.N,
	})
	if err == nil && updated != 1 {
		err = fmt.Errorf("%s/%s: %w", row.Namespace, row.ID, errSaga)
	}
	return deletedError(err, write.Saga)
}
