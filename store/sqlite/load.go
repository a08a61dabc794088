package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/sqlite/litedb"
)

// Unfinished returns a page of a shard's sagas that aren't terminal, with their histories, from one snapshot.
func (s *Store) Unfinished(ctx context.Context, shard int, after uuid.UUID, limit int) ([]store.Loaded, error) {
	var loaded []store.Loaded
	err := s.read(ctx, func(ctx context.Context, db litedb.DBTX) error {
		rows, err := s.q.Unfinished(ctx, db, litedb.UnfinishedParams{
			Shard: int64(shard), After: after[:], MaxRows: int64(store.Limit(limit)),
		})
		if err != nil {
			return err
		}
		loaded = make([]store.Loaded, len(rows))
		for i, r := range rows {
			if loaded[i], err = s.loaded(ctx, db, r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("loading unfinished sagas of shard %d: %w", shard, err)
	}
	return loaded, nil
}

// Load returns those of the sagas that exist, with their histories, from one snapshot.
func (s *Store) Load(ctx context.Context, keys []store.Key) ([]store.Loaded, error) {
	loaded := []store.Loaded{}
	err := s.read(ctx, func(ctx context.Context, db litedb.DBTX) error {
		for _, k := range keys {
			row, err := s.q.Saga(ctx, db, litedb.SagaParams{Shard: int64(k.Shard), Namespace: k.Namespace, ID: k.ID})
			if errors.Is(err, sql.ErrNoRows) {
				continue
			}
			if err != nil {
				return err
			}
			l, err := s.loaded(ctx, db, row)
			if err != nil {
				return err
			}
			loaded = append(loaded, l)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("loading %d sagas: %w", len(keys), err)
	}
	return loaded, nil
}

func (s *Store) loaded(ctx context.Context, db litedb.DBTX, row litedb.Saga) (store.Loaded, error) {
	saga, err := toSaga(row)
	if err != nil {
		return store.Loaded{}, err
	}
	rows, err := s.q.RunHistory(ctx, db, row.Run)
	return store.Loaded{Saga: saga, History: toRows(rows)}, err
}
