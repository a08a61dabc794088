package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/postgres/pgdb"
)

// Acquire takes shards that nobody holds, or that this very process holds: then their grants are new all the same. It
// waits for a commit of the old owner that is under way, so what is read afterwards is final. If that takes longer than a second,
// the shard is left out.
func (s *Store) Acquire(ctx context.Context, node store.Node, shards []int, ttl time.Duration) ([]store.Grant, error) {
	rows, err := s.q.Acquire(ctx, s.leases, pgdb.AcquireParams{
		Node: node.Name, Boot: node.Boot, Address: node.Address, Shards: int32s(shards), TtlUs: ttl.Microseconds(),
	})
	if err != nil {
		return nil, fmt.Errorf("acquiring shards: %w", err)
	}
	grants := make([]store.Grant, len(rows))
	for i, r := range rows {
		grants[i] = store.Grant{Shard: int(r.Shard), Epoch: r.Epoch, ID: r.GrantID, LastSeq: r.LastSeq}
	}
	return grants, nil
}

// Renew prolongs the node's leases.
func (s *Store) Renew(ctx context.Context, node store.Node, ttl time.Duration) ([]int, error) {
	rows, err := s.q.Renew(ctx, s.leases, pgdb.RenewParams{Node: node.Name, Boot: node.Boot, TtlUs: ttl.Microseconds()})
	if err != nil {
		return nil, fmt.Errorf("renewing leases: %w", err)
	}
	held := make([]int, len(rows))
	for i, shard := range rows {
		held[i] = int(shard)
	}
	return held, nil
}

// Release gives shards back.
func (s *Store) Release(ctx context.Context, node store.Node, shards []int) error {
	err := s.q.Release(ctx, s.leases, pgdb.ReleaseParams{Node: node.Name, Boot: node.Boot, Shards: int32s(shards)})
	if err != nil {
		return fmt.Errorf("releasing shards: %w", err)
	}
	return nil
}

// Leases lists all leases by shard.
func (s *Store) Leases(ctx context.Context) ([]store.Lease, error) {
	rows, err := s.q.Leases(ctx, s.leases)
	if err != nil {
		return nil, fmt.Errorf("listing leases: %w", err)
	}
	leases := make([]store.Lease, len(rows))
	for i, r := range rows {
		leases[i] = store.Lease{
			Shard: int(r.Shard), Epoch: r.Epoch, Live: r.Live,
			Node: store.Node{Name: r.Node, Boot: r.Boot, Address: r.Address},
		}
	}
	return leases, nil
}

// Beat says that the node lives, and lists those that do, by name.
func (s *Store) Beat(ctx context.Context, node store.Node, ttl time.Duration) ([]store.Node, error) {
	err := s.q.Beat(ctx, s.leases, pgdb.BeatParams{
		Name: node.Name, Boot: node.Boot, Address: node.Address, TtlUs: ttl.Microseconds(),
	})
	if err != nil {
		return nil, fmt.Errorf("heartbeat: %w", err)
	}
	rows, err := s.q.LiveNodes(ctx, s.leases)
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	nodes := make([]store.Node, len(rows))
	for i, r := range rows {
		nodes[i] = store.Node{Name: r.Name, Boot: r.Boot, Address: r.Address}
	}
	return nodes, nil
}

func int32s(in []int) []int32 {
	out := make([]int32, len(in))
	for i, v := range in {
		out[i] = int32(v)
	}
	return out
}
