package postgres

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/postgres/pgdb"
)

// Unfinished returns a page of a shard's sagas that aren't terminal, with their histories, from one snapshot.
func (s *Store) Unfinished(ctx context.Context, shard int, after uuid.UUID, limit int) ([]store.Loaded, error) {
	rows, err := s.q.Unfinished(ctx, s.main, pgdb.UnfinishedParams{
		Shard: int32(shard), After: after, MaxRows: int32(store.Limit(limit)),
	})
	if err != nil {
		return nil, fmt.Errorf("loading unfinished sagas of shard %d: %w", shard, err)
	}
	loaded := make([]store.Loaded, len(rows))
	for i, r := range rows {
		if loaded[i], err = toLoaded(pgdb.LoadRow(r)); err != nil {
			return nil, err
		}
	}
	return loaded, nil
}

// Load returns those of the sagas that exist, with their histories, from one snapshot.
func (s *Store) Load(ctx context.Context, keys []store.Key) ([]store.Loaded, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	var p pgdb.LoadParams
	for _, k := range keys {
		p.Shards = append(p.Shards, int32(k.Shard))
		p.Namespaces = append(p.Namespaces, k.Namespace)
		p.Ids = append(p.Ids, k.ID)
	}
	rows, err := s.q.Load(ctx, s.main, p)
	if err != nil {
		return nil, fmt.Errorf("loading %d sagas: %w", len(keys), err)
	}
	loaded := make([]store.Loaded, len(rows))
	for i, r := range rows {
		if loaded[i], err = toLoaded(r); err != nil {
			return nil, err
		}
	}
	return loaded, nil
}
