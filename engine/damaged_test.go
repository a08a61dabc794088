package engine

import (
	"context"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/sagad/sagad/store"
)

// damagedStore gives out a saga's history with a transition that can't be decoded, while it is on.
type damagedStore struct {
	store.Store
	id string
	on atomic.Bool
}

func (d *damagedStore) damage(found []store.Loaded) []store.Loaded {
	for i := range found {
		if d.on.Load() && found[i].Saga.ID == d.id {
			found[i].History[len(found[i].History)-1].Facts = []byte{0xff, 0xff, 0xff}
		}
	}
	return found
}

func (d *damagedStore) Unfinished(ctx context.Context, shard int, after uuid.UUID, limit int) ([]store.Loaded, error) {
	found, err := d.Store.Unfinished(ctx, shard, after, limit)
	return d.damage(found), err
}

func (d *damagedStore) Load(ctx context.Context, keys []store.Key) ([]store.Loaded, error) {
	found, err := d.Store.Load(ctx, keys)
	return d.damage(found), err
}
