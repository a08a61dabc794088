package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"github.com/google/uuid"

	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/sqlite/litedb"
)

// Saga returns a saga's row.
func (s *Store) Saga(ctx context.Context, key store.Key) (saga store.Saga, _ error) {
	err := s.read(ctx, func(ctx context.Context, db litedb.DBTX) error {
		row, err := s.q.Saga(ctx, db, litedb.SagaParams{Shard: int64(key.Shard), Namespace: key.Namespace, ID: key.ID})
		if err != nil {
			return err
		}
		saga, err = toSaga(row)
		return err
	})
	if errors.Is(err, sql.ErrNoRows) {
		err = store.ErrNotFound
	}
	if err != nil {
		return store.Saga{}, fmt.Errorf("saga %s/%s: %w", key.Namespace, key.ID, err)
	}
	return saga, nil
}

// Sagas returns a page of sagas.
func (s *Store) Sagas(ctx context.Context, f store.SagaFilter) ([]store.Saga, error) {
	lowest, highest, ok := f.Runs()
	if !ok {
		return nil, nil
	}
	p := litedb.AllSagasNewestFirstParams{
		Lowest: lowest[:], Highest: highest[:], Statuses: int64(f.StatusBits()), Definition: f.Definition,
		Version: int64(f.Version), IDPrefix: f.IDPrefix, StartedAfter: math.MinInt64, StartedBefore: math.MaxInt64,
		MaxRows: int64(store.Limit(f.Limit)),
	}
	if !f.StartedAfter.IsZero() {
		p.StartedAfter = f.StartedAfter.UnixMicro()
	}
	if !f.StartedBefore.IsZero() {
		p.StartedBefore = f.StartedBefore.UnixMicro()
	}
	in := litedb.SagasNewestFirstParams{
		Namespace: f.Namespace, Lowest: p.Lowest, Highest: p.Highest, Statuses: p.Statuses, Definition: p.Definition,
		Version: p.Version, IDPrefix: p.IDPrefix, StartedAfter: p.StartedAfter, StartedBefore: p.StartedBefore, MaxRows: p.MaxRows,
	}
	var sagas []store.Saga
	err := s.read(ctx, func(ctx context.Context, db litedb.DBTX) error {
		var rows []litedb.Saga
		var err error
		switch {
		case f.Namespace == "" && f.OldestFirst:
			rows, err = s.q.AllSagasOldestFirst(ctx, db, litedb.AllSagasOldestFirstParams(p))
		case f.Namespace == "":
			rows, err = s.q.AllSagasNewestFirst(ctx, db, p)
		case f.OldestFirst:
			rows, err = s.q.SagasOldestFirst(ctx, db, litedb.SagasOldestFirstParams(in))
		default:
			rows, err = s.q.SagasNewestFirst(ctx, db, in)
		}
		if err != nil {
			return err
		}
		sagas = make([]store.Saga, len(rows))
		for i, r := range rows {
			if sagas[i], err = toSaga(r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing sagas: %w", err)
	}
	return sagas, nil
}

// History returns a page of a saga's transitions.
func (s *Store) History(ctx context.Context, shard int, run uuid.UUID, from int64, limit int) (history []store.Row, _ error) {
	err := s.read(ctx, func(ctx context.Context, db litedb.DBTX) error {
		rows, err := s.q.History(ctx, db, litedb.HistoryParams{
			Shard: int64(shard), Run: run[:], FromN: from, MaxRows: int64(store.Limit(limit)),
		})
		history = toRows(rows)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the history of run %v: %w", run, err)
	}
	return history, nil
}

// Items returns a page of operations items, oldest first.
func (s *Store) Items(ctx context.Context, f store.ItemFilter) (items []store.Item, _ error) {
	p := litedb.OpenItemsParams{
		Namespace: f.Namespace, Definition: f.Definition, SagaID: f.SagaID, AfterOpened: f.AfterOpened.UnixMicro(),
		AfterRun: f.AfterRun[:], AfterNumber: int64(f.AfterNumber), MaxRows: int64(store.Limit(f.Limit)),
	}
	err := s.read(ctx, func(ctx context.Context, db litedb.DBTX) error {
		var rows []litedb.OpsItem
		var err error
		if f.IncludeClosed {
			rows, err = s.q.AllItems(ctx, db, litedb.AllItemsParams(p))
		} else {
			rows, err = s.q.OpenItems(ctx, db, p)
		}
		items = make([]store.Item, len(rows))
		for i, r := range rows {
			items[i] = toItem(r)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listing operations items: %w", err)
	}
	return items, nil
}

// CountItems counts open items by kind.
func (s *Store) CountItems(ctx context.Context) (map[int16]int64, error) {
	counts := map[int16]int64{}
	err := s.read(ctx, func(ctx context.Context, db litedb.DBTX) error {
		rows, err := s.q.CountOpenItems(ctx, db)
		for _, r := range rows {
			counts[int16(r.Kind)] = r.Items
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("counting operations items: %w", err)
	}
	return counts, nil
}

// KeepStray keeps a result that fits nothing.
func (s *Store) KeepStray(ctx context.Context, r store.Stray) error {
	err := s.write(ctx, func(ctx context.Context, w *writer) error {
		id, err := s.q.KeepStray(ctx, w, litedb.KeepStrayParams{
			At: r.At.UnixMicro(), Namespace: store.Text(r.Namespace), SagaID: store.Text(r.SagaID), Run: r.Run[:],
			Step: store.Text(r.Step), Attempt: int64(r.Attempt), Outcome: int64(r.Outcome), Worker: store.Text(r.Worker),
			Why: store.Text(r.Why),
		})
		if err == nil && id%100 == 0 {
			err = s.q.DropStrays(ctx, w, store.StraysMax)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("keeping a stray result: %w", err)
	}
	return nil
}

// Strays returns the newest stray results, newest first.
func (s *Store) Strays(ctx context.Context, limit int) (strays []store.Stray, _ error) {
	err := s.read(ctx, func(ctx context.Context, db litedb.DBTX) error {
		rows, err := s.q.Strays(ctx, db, int64(store.Limit(limit)))
		strays = make([]store.Stray, len(rows))
		for i, r := range rows {
			strays[i] = store.Stray{
				At: at(r.At), Namespace: r.Namespace, SagaID: r.SagaID, Run: uuid.UUID(r.Run), Step: r.Step,
				Attempt: int32(r.Attempt), Outcome: int16(r.Outcome), Worker: r.Worker, Why: r.Why,
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listing stray results: %w", err)
	}
	return strays, nil
}
