package memory

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/sagad/sagad/store"
)

// live: not expired. What ends more than twice its length from now was written under another clock and has.
func (l *lease) live(now time.Time) bool {
	return l.node.Name != "" && l.until.After(now) && !l.until.After(now.Add(2*l.ttl))
}

func same(a, b store.Node) bool { return a.Name == b.Name && a.Boot == b.Boot }

// Acquire takes shards that nobody holds, or that this very process holds.
func (s *Store) Acquire(_ context.Context, node store.Node, shards []int, ttl time.Duration) ([]store.Grant, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	grants := []store.Grant{}
	shards = slices.Clone(shards)
	slices.Sort(shards)
	for _, i := range slices.Compact(shards) {
		if i < 0 || i >= len(s.shards) {
			continue
		}
		have := &s.shards[i]
		if have.lease.live(now) && !same(have.lease.node, node) {
			continue
		}
		have.epoch++
		have.grant = s.uuid()
		have.lease = lease{epoch: have.epoch, node: node, until: now.Add(ttl), ttl: ttl}
		grants = append(grants, store.Grant{Shard: i, Epoch: have.epoch, ID: have.grant, LastSeq: have.lastSeq})
	}
	return grants, nil
}

// Renew prolongs the node's leases.
func (s *Store) Renew(_ context.Context, node store.Node, ttl time.Duration) ([]int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := []int{}
	for i := range s.shards {
		if l := &s.shards[i].lease; same(l.node, node) {
			l.until, l.ttl = s.now().Add(ttl), ttl
			held = append(held, i)
		}
	}
	return held, nil
}

// Release gives shards back.
func (s *Store) Release(_ context.Context, node store.Node, shards []int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range shards {
		if i < 0 || i >= len(s.shards) {
			continue
		}
		if l := &s.shards[i].lease; same(l.node, node) {
			*l = lease{epoch: l.epoch}
		}
	}
	return nil
}

// Leases lists all leases by shard.
func (s *Store) Leases(context.Context) ([]store.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	leases := make([]store.Lease, len(s.shards))
	for i := range s.shards {
		l := &s.shards[i].lease
		leases[i] = store.Lease{Shard: i, Epoch: l.epoch, Node: l.node, Live: l.live(s.now())}
	}
	return leases, nil
}

// Beat says that the node lives, and lists those that do, by name.
func (s *Store) Beat(_ context.Context, node store.Node, ttl time.Duration) ([]store.Node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.nodes[node.Name] = lease{node: node, until: now.Add(ttl), ttl: ttl}
	nodes := []store.Node{}
	for name, l := range s.nodes {
		if l.live(now) {
			nodes = append(nodes, l.node)
		} else if now.Sub(l.until) > time.Hour {
			delete(s.nodes, name)
		}
	}
	slices.SortFunc(nodes, func(a, b store.Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes, nil
}
