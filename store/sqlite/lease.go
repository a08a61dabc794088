package sqlite

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/sqlite/litedb"
)

// live: not expired. What ends more than twice its length from now was written under another clock and has.
func live(until, ttl int64, at time.Time) bool {
	now := at.UnixMicro()
	return until > now && until <= now+2*ttl
}

// Acquire takes shards that nobody holds, or that this very process holds.
func (s *Store) Acquire(ctx context.Context, node store.Node, shards []int, ttl time.Duration) ([]store.Grant, error) {
	shards = slices.Clone(shards)
	slices.Sort(shards)
	var grants []store.Grant
	err := s.write(ctx, func(ctx context.Context, w *writer) error {
		grants = []store.Grant{}
		for _, shard := range slices.Compact(shards) {
			if shard < 0 || shard >= s.meta.Shards {
				continue
			}
			lease, err := s.q.Lease(ctx, w, int64(shard))
			if err != nil {
				return err
			}
			mine := lease.Node == node.Name && uuid.UUID(lease.Boot) == node.Boot
			if live(lease.Until, lease.Ttl, now()) && !mine {
				continue
			}
			id := uuid.New()
			raised, err := s.q.Raise(ctx, w, litedb.RaiseParams{ID: int64(shard), GrantID: id[:]})
			if err != nil {
				return err
			}
			err = s.q.TakeLease(ctx, w, litedb.TakeLeaseParams{
				Shard: int64(shard), Epoch: raised.Epoch, Until: now().Add(ttl).UnixMicro(), Ttl: ttl.Microseconds(),
				Boot: node.Boot[:], Node: node.Name, Address: node.Address,
			})
			if err != nil {
				return err
			}
			grants = append(grants, store.Grant{Shard: shard, Epoch: raised.Epoch, ID: id, LastSeq: raised.LastSeq})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("acquiring shards: %w", err)
	}
	return grants, nil
}

// Renew prolongs the node's leases.
func (s *Store) Renew(ctx context.Context, node store.Node, ttl time.Duration) ([]int, error) {
	var held []int
	err := s.write(ctx, func(ctx context.Context, w *writer) error {
		rows, err := s.q.Renew(ctx, w, litedb.RenewParams{
			Node: node.Name, Boot: node.Boot[:], Until: now().Add(ttl).UnixMicro(), Ttl: ttl.Microseconds(),
		})
		held = make([]int, len(rows))
		for i, shard := range rows {
			held[i] = int(shard)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("renewing leases: %w", err)
	}
	return held, nil
}

// Release gives shards back.
func (s *Store) Release(ctx context.Context, node store.Node, shards []int) error {
	err := s.write(ctx, func(ctx context.Context, w *writer) error {
		for _, shard := range shards {
			err := s.q.Release(ctx, w, litedb.ReleaseParams{
				Shard: int64(shard), Node: node.Name, Boot: node.Boot[:], Until: now().UnixMicro(),
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("releasing shards: %w", err)
	}
	return nil
}

// Leases lists all leases by shard.
func (s *Store) Leases(ctx context.Context) ([]store.Lease, error) {
	var rows []litedb.ShardLease
	err := s.read(ctx, func(ctx context.Context, db litedb.DBTX) (err error) {
		rows, err = s.q.Leases(ctx, db)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listing leases: %w", err)
	}
	leases := make([]store.Lease, len(rows))
	for i, r := range rows {
		leases[i] = store.Lease{
			Shard: int(r.Shard), Epoch: r.Epoch, Live: r.Node != "" && live(r.Until, r.Ttl, now()),
			Node: store.Node{Name: r.Node, Boot: uuid.UUID(r.Boot), Address: r.Address},
		}
	}
	return leases, nil
}

// Beat says that the node lives, and lists those that do, by name.
func (s *Store) Beat(ctx context.Context, node store.Node, ttl time.Duration) ([]store.Node, error) {
	var rows []litedb.Node
	err := s.write(ctx, func(ctx context.Context, w *writer) error {
		err := s.q.Beat(ctx, w, litedb.BeatParams{
			Name: node.Name, Boot: node.Boot[:], Address: node.Address, Until: now().Add(ttl).UnixMicro(), Ttl: ttl.Microseconds(),
		})
		if err == nil {
			err = s.q.ForgetNodes(ctx, w, now().Add(-time.Hour).UnixMicro())
		}
		if err == nil {
			rows, err = s.q.Nodes(ctx, w)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("heartbeat: %w", err)
	}
	nodes := []store.Node{}
	for _, r := range rows {
		if live(r.Until, r.Ttl, now()) {
			nodes = append(nodes, store.Node{Name: r.Name, Boot: uuid.UUID(r.Boot), Address: r.Address})
		}
	}
	return nodes, nil
}
