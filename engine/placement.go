package engine

import (
	"context"
	"hash/fnv"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sagad/sagad/store"
)

// placement decides which shards this node takes and gives, and keeps their leases. All of this is for liveness: what
// keeps two nodes from writing one shard is the fence in each commit.
//
// Shards are placed by rendezvous hashing over the live nodes. What is free is taken by the node that it is placed on,
// or by anyone if it stays free. What is held by another than its node moves only when the set of nodes has been the
// same for a while, and a few at a time.
type placement struct {
	e   *Engine
	st  store.Leaser
	log *slog.Logger

	// until is when this node must take its leases for expired: nanoseconds since began, by the monotonic clock.
	until atomic.Int64
	began time.Time

	mu sync.Mutex
	// running are the shards that have a goroutine. A shard is in here until that has ended.
	running map[int]*shard
	stopped bool
	// addresses of the owners, by shard; "" for none.
	addresses atomic.Pointer[[]string]
	// twin is another process that holds shards under this node's name; nil if there is none.
	twin atomic.Pointer[store.Node]

	// Of the loop alone.
	nodes      []store.Node
	nodesSince time.Time
	freeSince  map[int]time.Time
	moves      float64
	movesAt    time.Time
	giving     bool
	kick       chan struct{}
	// over is closed when the loop has ended.
	over chan struct{}
}

func newPlacement(e *Engine) *placement {
	return &placement{
		e: e, st: e.st, log: e.log, began: e.clock.local(), running: map[int]*shard{}, freeSince: map[int]time.Time{},
		kick: make(chan struct{}, 1), over: make(chan struct{}),
	}
}

// margin is how long before its end a lease is taken for expired.
func (p *placement) margin() time.Duration { return min(3*time.Second, p.e.cfg.LeaseTTL*3/10) }

// left is how long the leases are good for.
func (p *placement) left() time.Duration {
	return time.Duration(p.until.Load()) - p.e.clock.since(p.began)
}

// valid says that this node may serve its shards.
func (p *placement) valid() bool { return p.left() > 0 }

// owner is the address of the node that owns a shard, as far as this node knows; "" if it doesn't.
func (p *placement) owner(shard int) string {
	if a := p.addresses.Load(); a != nil && shard < len(*a) {
		return (*a)[shard]
	}
	return ""
}

// ended is called by a shard's goroutine as its last act.
func (p *placement) ended(s *shard) {
	p.e.shards[s.grant.Shard].CompareAndSwap(s, nil)
	p.mu.Lock()
	if p.running[s.grant.Shard] == s {
		delete(p.running, s.grant.Shard)
	}
	p.mu.Unlock()
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// run keeps the leases until ctx ends.
func (p *placement) run(ctx context.Context) {
	defer close(p.over)
	for {
		t := time.NewTimer(p.wait())
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-p.kick:
			t.Stop()
			if !pause(ctx, 20*time.Millisecond) {
				return
			}
		case <-t.C:
		}
		p.round(ctx)
	}
}

// wait is how long it is to the next round.
func (p *placement) wait() time.Duration {
	every := p.e.cfg.LeaseTTL / 5
	wait := every*4/5 + time.Duration(p.e.chance()%uint64(max(every*2/5, 1)))
	if len(p.freeSince) > 0 || p.giving {
		wait = min(wait, 500*time.Millisecond)
	}
	return wait
}

// round renews, looks who lives, takes and gives.
func (p *placement) round(ctx context.Context) {
	if err := p.try(ctx); err != nil && ctx.Err() == nil {
		p.e.metrics.leaseErrors.Inc()
		p.log.Warn("leases can't be kept; it is tried again", "left", max(p.left(), 0), "error", err)
	}
}

func (p *placement) try(ctx context.Context) error {
	ttl, me := p.e.cfg.LeaseTTL, p.e.node
	ctx, cancel := context.WithTimeout(ctx, ttl/3)
	defer cancel()

	sent := p.e.clock.since(p.began)
	held, err := p.st.Renew(ctx, me, ttl)
	if err != nil {
		return err
	}
	p.until.Store(int64(sent + ttl - p.margin()))

	// Whose lease is gone is stopped at once. A lease without a goroutine is given back: it needs a new grant.
	var orphans []int
	p.mu.Lock()
	for id, s := range p.running {
		if !slices.Contains(held, id) {
			s.lose()
		}
	}
	for _, id := range held {
		if p.running[id] == nil {
			orphans = append(orphans, id)
		}
	}
	p.mu.Unlock()
	if len(orphans) > 0 {
		if err := p.st.Release(ctx, me, orphans); err != nil {
			return err
		}
	}

	nodes, err := p.st.Beat(ctx, me, ttl)
	if err != nil {
		return err
	}
	slices.SortFunc(nodes, func(a, b store.Node) int { return strings.Compare(a.Name, b.Name) })
	if !slices.EqualFunc(nodes, p.nodes, func(a, b store.Node) bool { return a.Name == b.Name && a.Boot == b.Boot }) {
		p.nodes, p.nodesSince = nodes, p.e.clock.local()
		p.log.Info("live nodes", "nodes", len(nodes))
	}
	leases, err := p.st.Leases(ctx)
	if err != nil {
		return err
	}
	p.look(leases)
	addresses := make([]string, len(p.e.shards))
	var take, give []int
	now := p.e.clock.local()
	p.mu.Lock()
	for _, l := range leases {
		if l.Shard >= len(addresses) {
			continue
		}
		mine := p.placed(l.Shard) == me.Name
		switch {
		case p.running[l.Shard] != nil:
			delete(p.freeSince, l.Shard)
			if !mine {
				give = append(give, l.Shard)
			}
		case l.Live && l.Node.Boot != me.Boot:
			addresses[l.Shard] = l.Node.Address
			delete(p.freeSince, l.Shard)
			if mine {
				p.freeSince[l.Shard] = now // expected: look again soon
			}
		default:
			since, ok := p.freeSince[l.Shard]
			if !ok {
				since = now
				p.freeSince[l.Shard] = now
			}
			if mine || now.Sub(since) > 2*ttl {
				take = append(take, l.Shard)
			}
		}
	}
	stopped := p.stopped
	p.mu.Unlock()
	p.addresses.Store(&addresses)
	if stopped {
		return nil
	}
	if len(take) > 0 {
		if err := p.take(ctx, take); err != nil {
			return err
		}
	}
	p.give(give)
	return nil
}

// look finds out whether another process runs under this node's name. It took this node's shards for those of its own last
// run, so this node is the one that has none, and the only one that can tell.
func (p *placement) look(leases []store.Lease) {
	var twin *store.Node
	for i := range leases {
		if n := &leases[i].Node; leases[i].Live && n.Name == p.e.node.Name && n.Boot != p.e.node.Boot {
			twin = n
			break
		}
	}
	switch before := p.twin.Swap(twin); {
	case twin != nil && (before == nil || before.Boot != twin.Boot):
		p.log.Warn("another process runs under this node's name and has taken its shards: give each node a name of its own "+
			"(--node-name), or stop one of the two", "node", twin.Name, "other_address", twin.Address, "other_boot", twin.Boot.String())
	case twin == nil && before != nil:
		p.log.Info("no other process holds shards under this node's name any more", "node", before.Name)
	}
}

// take acquires shards and starts their goroutines.
func (p *placement) take(ctx context.Context, shards []int) error {
	grants, err := p.st.Acquire(ctx, p.e.node, shards, p.e.cfg.LeaseTTL)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range grants {
		if p.stopped || p.running[g.Shard] != nil {
			continue // an orphan: the next round gives it back
		}
		delete(p.freeSince, g.Shard)
		s := newShard(p.e, g)
		p.running[g.Shard] = s
		p.e.shards[g.Shard].Store(s)
		p.e.launch(s)
	}
	return nil
}

// launch serves a shard that was just taken.
func (e *Engine) launch(s *shard) {
	if e.hand != nil {
		e.hand.launch(s)
		return
	}
	e.goroutines.Add(1)
	go func() {
		defer e.goroutines.Done()
		s.run()
	}()
}

// give hands shards over that are placed on others, a few at a time, once the set of nodes has been the same for a
// while.
func (p *placement) give(shards []int) {
	now := p.e.clock.local()
	p.giving = len(shards) > 0
	perSecond := p.e.cfg.MovesPerSecond
	p.moves = min(p.moves+now.Sub(p.movesAt).Seconds()*perSecond, max(perSecond, 1))
	p.movesAt = now
	if now.Sub(p.nodesSince) < p.e.cfg.RebalanceAfter {
		return
	}
	for _, id := range shards {
		if p.moves < 1 {
			return
		}
		p.moves--
		p.mu.Lock()
		s := p.running[id]
		p.mu.Unlock()
		if s != nil {
			p.handOver(s)
		}
	}
}

// handOver stops a shard cleanly and releases its lease. It doesn't wait.
func (p *placement) handOver(s *shard) {
	s.stop()
	if p.e.hand != nil {
		p.e.hand.handOver(s)
		return
	}
	p.e.goroutines.Add(1)
	go func() {
		defer p.e.goroutines.Done()
		select {
		case <-s.done:
		case <-p.e.background.Done():
			return
		}
		p.released(s)
	}()
}

// released gives back the lease of a shard that has been handed over.
func (p *placement) released(s *shard) {
	ctx, cancel := context.WithTimeout(p.e.background, p.e.cfg.LeaseTTL/3)
	defer cancel()
	if err := p.st.Release(ctx, p.e.node, []int{s.grant.Shard}); err != nil {
		p.log.Warn("a lease can't be released; it will expire", "shard", s.grant.Shard, "error", err)
	}
}

// placed is the name of the live node that a shard is placed on.
func (p *placement) placed(shard int) string {
	var name string
	var best uint64
	for _, n := range p.nodes {
		h := fnv.New64a()
		h.Write([]byte{byte(shard), byte(shard >> 8)})
		h.Write([]byte(n.Name))
		w := h.Sum64()
		w ^= w >> 33
		w *= 0xff51afd7ed558ccd
		w ^= w >> 33
		if name == "" || w > best {
			name, best = n.Name, w
		}
	}
	return name
}

// reclaim gives back the leases of an earlier process under this node's name, so that a restart needn't wait for their
// end. Names are unique among the nodes that run; if one isn't, the fence keeps the data safe, the later node takes all
// shards of the earlier one, and that one says so.
func (p *placement) reclaim(ctx context.Context) error {
	leases, err := p.st.Leases(ctx)
	if err != nil {
		return err
	}
	var nodes []store.Node
	shards := map[store.Node][]int{}
	for _, l := range leases {
		if l.Live && l.Node.Name == p.e.node.Name && l.Node.Boot != p.e.node.Boot {
			if shards[l.Node] == nil {
				nodes = append(nodes, l.Node)
			}
			shards[l.Node] = append(shards[l.Node], l.Shard)
		}
	}
	for _, node := range nodes {
		p.log.Info("taking back the leases of this node's last run", "shards", len(shards[node]))
		if err := p.st.Release(ctx, node, shards[node]); err != nil {
			return err
		}
	}
	return nil
}

// stop hands all shards over and waits for them, until ctx ends. Then it gives the leases back.
func (p *placement) stop(ctx context.Context) error {
	p.mu.Lock()
	p.stopped = true
	var all []*shard
	for _, s := range p.running {
		all = append(all, s)
	}
	p.mu.Unlock()
	// First, so that those who take the shards don't wait for this node.
	if _, err := p.st.Beat(ctx, p.e.node, time.Millisecond); err != nil {
		p.log.Warn("the node can't say that it stops", "error", err)
	}
	for _, s := range all {
		s.stop()
	}
	for _, s := range all {
		select {
		case <-s.done:
		case <-ctx.Done():
			s.lose()
			<-s.done
		}
	}
	<-p.over // it may just have taken something
	every := make([]int, len(p.e.shards))
	for i := range every {
		every[i] = i
	}
	release, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.e.cfg.LeaseTTL/3)
	defer cancel()
	if err := p.st.Release(release, p.e.node, every); err != nil {
		return err
	}
	return ctx.Err()
}
