package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/postgres/pgdb"
)

// Saga returns a saga's row.
func (s *Store) Saga(ctx context.Context, key store.Key) (store.Saga, error) {
	row, err := s.q.Saga(ctx, s.main, pgdb.SagaParams{Shard: int32(key.Shard), Namespace: key.Namespace, ID: key.ID})
	if errors.Is(err, pgx.ErrNoRows) {
		return store.Saga{}, fmt.Errorf("saga %s/%s: %w", key.Namespace, key.ID, store.ErrNotFound)
	}
	if err != nil {
		return store.Saga{}, fmt.Errorf("reading saga %s/%s: %w", key.Namespace, key.ID, err)
	}
	return toSaga(row)
}

// Sagas returns a page of sagas.
func (s *Store) Sagas(ctx context.Context, f store.SagaFilter) ([]store.Saga, error) {
	lowest, highest, ok := f.Runs()
	if !ok {
		return nil, nil
	}
	p := pgdb.AllSagasNewestFirstParams{
		Lowest: lowest, Highest: highest, Statuses: f.StatusBits(), Definition: f.Definition, Version: f.Version,
		IDPrefix:     f.IDPrefix,
		StartedAfter: unlessZero(f.StartedAfter), StartedBefore: unlessZero(f.StartedBefore),
		MaxRows: int32(store.Limit(f.Limit)),
	}
	in := pgdb.SagasNewestFirstParams{
		Namespace: f.Namespace, Lowest: p.Lowest, Highest: p.Highest, Statuses: p.Statuses, Definition: p.Definition,
		Version: p.Version, IDPrefix: p.IDPrefix, StartedAfter: p.StartedAfter, StartedBefore: p.StartedBefore, MaxRows: p.MaxRows,
	}
	var rows []pgdb.Saga
	var err error
	switch {
	case f.Namespace == "" && f.OldestFirst:
		rows, err = s.q.AllSagasOldestFirst(ctx, s.main, pgdb.AllSagasOldestFirstParams(p))
	case f.Namespace == "":
		rows, err = s.q.AllSagasNewestFirst(ctx, s.main, p)
	case f.OldestFirst:
		rows, err = s.q.SagasOldestFirst(ctx, s.main, pgdb.SagasOldestFirstParams(in))
	default:
		rows, err = s.q.SagasNewestFirst(ctx, s.main, in)
	}
	if err != nil {
		return nil, fmt.Errorf("listing sagas: %w", err)
	}
	return toSagas(rows)
}

// History returns a page of a saga's transitions.
func (s *Store) History(ctx context.Context, shard int, run uuid.UUID, from int64, limit int) ([]store.Row, error) {
	rows, err := s.q.History(ctx, s.main, pgdb.HistoryParams{
		Shard: int32(shard), Run: run, FromN: int32(min(max(from, 0), math.MaxInt32)), MaxRows: int32(store.Limit(limit)),
	})
	if err != nil {
		return nil, fmt.Errorf("reading the history of run %v: %w", run, err)
	}
	history := make([]store.Row, len(rows))
	for i, r := range rows {
		history[i] = store.Row{Run: r.Run, N: int64(r.N), Epoch: r.Epoch, Seq: r.Seq, At: r.At.UTC(), Facts: r.Facts}
	}
	return history, nil
}

// Items returns a page of operations items, oldest first.
func (s *Store) Items(ctx context.Context, f store.ItemFilter) ([]store.Item, error) {
	p := pgdb.OpenItemsParams{
		Namespace: f.Namespace, Definition: f.Definition, SagaID: f.SagaID, AfterOpened: f.AfterOpened,
		AfterRun: f.AfterRun, AfterNumber: f.AfterNumber, MaxRows: int32(store.Limit(f.Limit)),
	}
	var rows []pgdb.OpsItem
	var err error
	if f.IncludeClosed {
		rows, err = s.q.AllItems(ctx, s.main, pgdb.AllItemsParams(p))
	} else {
		rows, err = s.q.OpenItems(ctx, s.main, p)
	}
	if err != nil {
		return nil, fmt.Errorf("listing operations items: %w", err)
	}
	items := make([]store.Item, len(rows))
	for i, r := range rows {
		items[i] = toItem(r)
	}
	return items, nil
}

// CountItems counts open items by kind.
func (s *Store) CountItems(ctx context.Context) (map[int16]int64, error) {
	rows, err := s.q.CountOpenItems(ctx, s.main)
	if err != nil {
		return nil, fmt.Errorf("counting operations items: %w", err)
	}
	counts := make(map[int16]int64, len(rows))
	for _, r := range rows {
		counts[r.Kind] = r.Items
	}
	return counts, nil
}

// KeepStray keeps a result that fits nothing.
func (s *Store) KeepStray(ctx context.Context, r store.Stray) error {
	id, err := s.q.KeepStray(ctx, s.main, pgdb.KeepStrayParams{
		At: r.At, Namespace: store.Text(r.Namespace), SagaID: store.Text(r.SagaID), Run: r.Run, Step: store.Text(r.Step),
		Attempt: r.Attempt, Outcome: r.Outcome, Worker: store.Text(r.Worker), Why: store.Text(r.Why),
	})
	if err == nil && id%100 == 0 {
		err = s.q.DropStrays(ctx, s.main, store.StraysMax)
	}
	if err != nil {
		return fmt.Errorf("keeping a stray result: %w", err)
	}
	return nil
}

// Strays returns the newest stray results, newest first.
func (s *Store) Strays(ctx context.Context, limit int) ([]store.Stray, error) {
	rows, err := s.q.Strays(ctx, s.main, int32(store.Limit(limit)))
	if err != nil {
		return nil, fmt.Errorf("listing stray results: %w", err)
	}
	strays := make([]store.Stray, len(rows))
	for i, r := range rows {
		strays[i] = store.Stray{
			At: r.At.UTC(), Namespace: r.Namespace, SagaID: r.SagaID, Run: r.Run, Step: r.Step, Attempt: r.Attempt,
			Outcome: r.Outcome, Worker: r.Worker, Why: r.Why,
		}
	}
	return strays, nil
}

func unlessZero(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
