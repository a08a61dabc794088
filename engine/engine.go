package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/sagad/sagad/internal/wire"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// Config of a node. The zero value of everything but Name is fit for use.
type Config struct {
	// Name of the node, unique among those that run. A process that starts under the name of one that has ended takes
	// over its shards at once.
	Name string
	// Address is where other nodes reach this one's API, for example http://10.0.0.3:7230.
	Address string
	// LeaseTTL is how long the others wait before they take the shards of a node that is silent. Default 10 s.
	LeaseTTL time.Duration
	// RedispatchAfter is when an attempt without a result is sent again, with another message id; then after twice as
	// long, and so on. Default 60 s; it should be twice the bus's ack wait at least.
	RedispatchAfter time.Duration
	// SweepEvery is how often the store is searched for sagas that nothing would wake. Default 1 min.
	SweepEvery time.Duration
	// ParkAfter is when a saga that waits leaves memory until something happens. Default 10 min.
	ParkAfter time.Duration
	// RebalanceAfter is how long the set of live nodes must have been the same before shards move. Default 30 s.
	RebalanceAfter time.Duration
	// MovesPerSecond bounds how many shards move. Default 2.
	MovesPerSecond float64
	// Committers is how many commits are under way at a time at most. Default 2.
	Committers int
	// TokenKeys are the root keys of task tokens by id, and TokenKey the id of the one that signs. By default it is the
	// database's own, under id 0.
	TokenKeys map[int32][]byte
	TokenKey  int32

	// Logger defaults to slog's default.
	Logger *slog.Logger
	// Registry gets the metrics; nil: they are counted and not shown.
	Registry prometheus.Registerer
	// Tracer gets spans of attempts and sagas; nil: there are none.
	Tracer trace.TracerProvider
	// Fault is called at named points; tests make it fail, wait or end things there. nil in production.
	Fault func(point string)
}

// Engine is a node. Its methods may be called by many goroutines.
type Engine struct {
	cfg  Config
	st   store.Store
	bus  Bus
	log  *slog.Logger
	node store.Node
	keys *wire.Keyring

	clock       clock
	definitions *definitions
	metrics     *metrics
	traces      *traces
	watchers    watchers
	placement   *placement
	loader      *loader
	commits     chan *commit
	strays      chan stray
	// starting bounds how many child sagas are looked up at a time.
	starting chan struct{}
	// recovering bounds how many shards load at a time.
	recovering chan struct{}
	// random is where ids come from, and chance where random bits do.
	random io.Reader
	chance func() uint64
	// page is how many sagas are recovered at a time, batchMax how many transitions a shard commits at a time; 0 means as
	// many as the limit.
	page, batchMax int
	// hand drives the engine instead of goroutines; nil in production.
	hand *Stepper

	// shards are those that this node serves, by number.
	shards []atomic.Pointer[shard]

	// background ends when everything has been handed over.
	background context.Context
	end        context.CancelFunc
	// goroutines are those of shards and hand-overs; others are the committers, loaders and the like.
	goroutines, others sync.WaitGroup
	committers         sync.WaitGroup

	mu      sync.Mutex
	state   engineState
	cancel  context.CancelFunc
	stopped chan struct{}
	stopErr error
}

type engineState uint8

const (
	made engineState = iota
	running
	stopping
)

// New makes a node that isn't started yet.
func New(cfg Config, st store.Store, bus Bus) (*Engine, error) {
	return newEngine(cfg, st, bus, rand.Reader, straysMax)
}

func newEngine(cfg Config, st store.Store, bus Bus, random io.Reader, strays int) (*Engine, error) {
	if cfg.Name == "" {
		return nil, errors.New("the node has no name: set Config.Name to one that no other running node has")
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&cfg.LeaseTTL, 10*time.Second)
	def(&cfg.RedispatchAfter, 2*wire.DefaultAckWait)
	def(&cfg.SweepEvery, time.Minute)
	def(&cfg.ParkAfter, 10*time.Minute)
	def(&cfg.RebalanceAfter, 30*time.Second)
	if cfg.MovesPerSecond <= 0 {
		cfg.MovesPerSecond = 2
	}
	if cfg.Committers <= 0 {
		cfg.Committers = 2
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	boot, err := uuid.NewRandomFromReader(random)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		cfg: cfg, st: st, bus: bus, log: cfg.Logger.With("node", cfg.Name),
		node:   store.Node{Name: cfg.Name, Boot: boot, Address: cfg.Address},
		random: random, chance: mathrand.Uint64, page: pageMax,
		traces:     newTraces(cfg.Tracer),
		strays:     make(chan stray, strays),
		recovering: make(chan struct{}, 8),
		starting:   make(chan struct{}, childrenMax),
		stopped:    make(chan struct{}),
	}
	e.definitions = newDefinitions(st, &e.clock)
	sum := func(of func(*shard) int64) func() float64 {
		return func() float64 {
			var n int64
			for i := range e.shards {
				if s := e.shards[i].Load(); s != nil {
					n += of(s)
				}
			}
			return float64(n)
		}
	}
	e.metrics, err = newMetrics(cfg.Registry, gauges{
		owned:       sum(func(*shard) int64 { return 1 }),
		depth:       sum(func(s *shard) int64 { return s.waiting.Load() }),
		hot:         sum(func(s *shard) int64 { return s.hot.Load() }),
		stuck:       sum(func(s *shard) int64 { return s.stuck.Load() }),
		quarantined: sum(func(s *shard) int64 { return s.broken.Load() }),
		oldest: func() float64 {
			var oldest int64
			for i := range e.shards {
				if s := e.shards[i].Load(); s != nil {
					if o := s.oldest.Load(); o != 0 && (oldest == 0 || o < oldest) {
						oldest = o
					}
				}
			}
			if oldest == 0 {
				return 0
			}
			return max(0, float64(e.clock.now()-oldest)/1e6)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	e.loader = newLoader(st, e.definitions, e.metrics, e.log)
	e.placement = newPlacement(e)
	e.background, e.end = context.WithCancel(context.Background())
	return e, nil
}

// Start begins to serve. When it returns, this node's share of the shards has been taken, or a warning logged and it is
// tried on; their sagas are loaded in the background, and events of a shard wait until its sagas are there. ctx bounds
// the start only.
func (e *Engine) Start(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state != made {
		return errors.New("the engine has been started before: make a new one")
	}
	if err := e.open(ctx); err != nil {
		return err
	}
	e.commits = make(chan *commit, 2*len(e.shards))

	run, cancel := context.WithCancel(e.background)
	e.cancel = cancel
	e.state = running
	c := &committer{st: e.st, queue: e.commits, metrics: e.metrics, log: e.log, fault: e.fault, atOnce: e.cfg.Committers}
	e.committers.Go(c.run)
	for range 2 {
		e.others.Go(func() { e.loader.run(e.background) })
	}
	e.others.Go(func() { e.recordStrays(e.background) })
	e.others.Go(func() {
		e.clock.run(e.background, e.st, func(err error) { e.log.Warn("the database's clock can't be read", "error", err) })
	})
	e.reclaim(ctx)
	e.placement.round(ctx)
	e.goroutines.Go(func() { e.placement.run(run) })
	e.goroutines.Go(func() { e.sweep(run) })
	return nil
}

// reclaim takes the shards of this node's last run, if it can.
func (e *Engine) reclaim(ctx context.Context) {
	if err := e.placement.reclaim(ctx); err != nil {
		e.log.Warn("the leases of this node's last run can't be taken back; they will expire", "error", err)
	}
}

// open reads what the database says to all nodes.
func (e *Engine) open(ctx context.Context) error {
	meta, err := e.st.Meta(ctx)
	if err != nil {
		return fmt.Errorf("read the database's settings: %w", err)
	}
	if meta.Shards < 1 || meta.Shards > 1<<16 {
		return fmt.Errorf("the database has %d shards: it must be 1 to 65536", meta.Shards)
	}
	keys, current := e.cfg.TokenKeys, e.cfg.TokenKey
	if len(keys) == 0 {
		keys, current = map[int32][]byte{0: meta.TokenKey}, 0
	}
	if e.keys, err = wire.NewKeyring(current, keys); err != nil {
		return fmt.Errorf("task token keys: %w", err)
	}
	if err := e.clock.measure(ctx, e.st); err != nil {
		return fmt.Errorf("read the database's clock: %w", err)
	}
	e.shards = make([]atomic.Pointer[shard], meta.Shards)
	return nil
}

// Stop hands the shards over and ends everything. ctx bounds how long it waits for batches under way. It may be called
// twice.
func (e *Engine) Stop(ctx context.Context) error {
	e.mu.Lock()
	if e.state == stopping {
		e.mu.Unlock()
		<-e.stopped
		return e.stopErr
	}
	began := e.state == running
	e.state = stopping
	e.mu.Unlock()
	if began {
		e.cancel()
		e.stopErr = e.placement.stop(ctx)
	}
	e.end()
	if began {
		e.goroutines.Wait()
		close(e.commits)
		e.committers.Wait()
		e.others.Wait()
	}
	close(e.stopped)
	return e.stopErr
}

// Healthy tells what keeps this node from working; nil if nothing does. The store's health is asked for by its own
// Ping.
func (e *Engine) Healthy() error {
	twin := e.NameTaken()
	switch {
	case twin != nil:
		return twin
	case !e.placement.valid():
		return errors.New("the node's leases can't be renewed: look at the database")
	case !e.bus.Healthy():
		return errors.New("the bus isn't connected or takes no tasks: sagas start, and go on when it does")
	}
	return nil
}

// NameTaken is an error that says so if another process runs under this node's name and holds its shards.
func (e *Engine) NameTaken() error {
	if twin := e.placement.twin.Load(); twin != nil {
		return fmt.Errorf("another process, at %s, runs under this node's name %q and has taken its shards: "+
			"give each node a name of its own, or stop one of the two", twin.Address, twin.Name)
	}
	return nil
}

// Redispatch sends all attempts again that this node's shards wait for, soon: call it when the bus has lost what it had.
// Without it they are sent again only after [Config.RedispatchAfter] each.
func (e *Engine) Redispatch() {
	for i := range e.shards {
		if s := e.shards[i].Load(); s != nil {
			s.mail.redispatch()
		}
	}
}

// ShardCount is the number of shards, fixed when the database was initialised. It is 0 before Start.
func (e *Engine) ShardCount() int { return len(e.shards) }

// Owned lists the shards that this node serves.
func (e *Engine) Owned() []int {
	var owned []int
	for i := range e.shards {
		if e.shards[i].Load() != nil {
			owned = append(owned, i)
		}
	}
	return owned
}

// Now is the database's clock as this node estimates it; never ahead.
func (e *Engine) Now() time.Time { return stamp(e.clock.now()) }

// Quarantine is a saga that is put aside.
type Quarantine struct {
	Namespace, SagaID string
	Run               uuid.UUID
	Why               string
	Since             time.Time
}

// Quarantined lists the sagas of this node's shards that are put aside, in no order. It may be some seconds old.
func (e *Engine) Quarantined() []Quarantine {
	var list []Quarantine
	for i := range e.shards {
		if s := e.shards[i].Load(); s != nil {
			if q := s.quarantined.Load(); q != nil {
				list = append(list, *q...)
			}
		}
	}
	return list
}

func (e *Engine) fault(point string) {
	if e.cfg.Fault != nil {
		e.cfg.Fault(point)
	}
}

func (e *Engine) doorConfig() doorConfig {
	return doorConfig{
		redispatchAfter: e.cfg.RedispatchAfter,
		parkAfter:       e.cfg.ParkAfter,
		batchMax:        e.batchMax,
		chance:          e.chance,
		task:            e.task,
		noWorker:        e.noWorker,
		busHealthy:      e.bus.Healthy,
		metrics:         e.metrics,
		traced:          e.traces.on(),
		quarantined: func(g *saga, stack string) {
			e.log.Error("a saga is quarantined: its history is kept, the others go on", "namespace", g.key.namespace, "saga", g.key.id,
				"run", g.run.String(), "error", g.broken, "stack", stack)
		},
	}
}

// shard finds the shard of a saga if this node serves it.
func (e *Engine) shard(key sagaKey) (*shard, error) {
	if len(e.shards) == 0 {
		return nil, unavailable("the engine isn't started")
	}
	id := store.ShardOf(key.namespace, key.id, len(e.shards))
	if s := e.shards[id].Load(); s != nil {
		return s, nil
	}
	if address := e.placement.owner(id); address != "" {
		return nil, &NotOwnerError{Shard: id, Address: address}
	}
	return nil, unavailable("the saga's shard has no owner at the moment")
}

// submit puts an event into the mailbox of its saga's shard.
func (e *Engine) submit(ev *event) error {
	s, err := e.shard(ev.key)
	if err != nil {
		return err
	}
	if !s.submit(mailboxMax, ev) {
		if s.frozen.Load() {
			return unavailable("the outcome of a commit isn't known yet")
		}
		if s.mail.isClosed() {
			return errMoving
		}
		return unavailable("too much is waiting")
	}
	return nil
}

// ask puts an event through the door and waits for the answer.
func (e *Engine) ask(ctx context.Context, ev *event) (answer, error) {
	c := make(call, 1)
	ev.to = c
	if err := e.submit(ev); err != nil {
		return answer{}, err
	}
	select {
	case a := <-c:
		return a, a.err
	case <-ctx.Done():
		return answer{}, fmt.Errorf("no answer yet; whether it happened isn't known, ask again with the same content: %w", context.Cause(ctx))
	}
}

// Cancel unwinds a saga, or says why not. The status is the saga's after the answer. Errors: *[NotFoundError],
// *[NotOwnerError], *[UnavailableError], *[InvalidError], *[QuarantinedError].
func (e *Engine) Cancel(ctx context.Context, namespace, id string, what statemachine.Cancel) (sagadv1.CancelAnswer, statemachine.Status, error) {
	ev, err := cancelEvent(namespace, id, what)
	if err != nil {
		return 0, 0, err
	}
	a, err := e.ask(ctx, ev)
	if err != nil {
		return 0, 0, err
	}
	return a.reply.Cancel, a.state.Status, nil
}

func cancelEvent(namespace, id string, what statemachine.Cancel) (*event, error) {
	if err := checkKey(namespace, id); err != nil {
		return nil, err
	}
	if err := checkTexts(text{"reason", what.Reason, reasonBytesMax}, text{"request id", what.RequestID, requestIDBytesMax},
		text{"actor", what.Actor, actorBytesMax}); err != nil {
		return nil, err
	}
	return &event{key: sagaKey{namespace, id}, what: what}, nil
}

// Act does what a person decided about an operations item, and returns the saga after it. Errors:
// *[statemachine.Refusal] with the reason, and those of Cancel.
func (e *Engine) Act(ctx context.Context, namespace, id string, what statemachine.Act) (*statemachine.State, error) {
	ev, err := actEvent(namespace, id, what)
	if err != nil {
		return nil, err
	}
	a, err := e.ask(ctx, ev)
	if err != nil {
		return nil, err
	}
	return a.state, nil
}

func actEvent(namespace, id string, what statemachine.Act) (*event, error) {
	if err := checkKey(namespace, id); err != nil {
		return nil, err
	}
	if err := checkTexts(text{"reason", what.Reason, reasonBytesMax}, text{"evidence", what.Evidence, reasonBytesMax},
		text{"request id", what.RequestID, requestIDBytesMax}, text{"actor", what.Actor, actorBytesMax}); err != nil {
		return nil, err
	}
	return &event{key: sagaKey{namespace, id}, what: what}, nil
}

// Get returns a saga as it is committed: from memory if this node owns it, else from the store; any node can. Errors:
// *[NotFoundError], *[QuarantinedError], *[UnavailableError].
func (e *Engine) Get(ctx context.Context, namespace, id string) (store.Saga, *statemachine.State, *statemachine.Machine, error) {
	if err := checkKey(namespace, id); err != nil {
		return store.Saga{}, nil, nil, err
	}
	if len(e.shards) == 0 {
		return store.Saga{}, nil, nil, unavailable("the engine isn't started")
	}
	shard := store.ShardOf(namespace, id, len(e.shards))
	a, err := e.ask(ctx, &event{key: sagaKey{namespace, id}, look: true})
	if err == nil {
		g := saga{key: sagaKey{namespace, id}, run: a.run}
		return *g.row(shard, nil, a.state), a.state, a.machine, nil
	}
	if _, none := errors.AsType[*NotFoundError](err); none || ctx.Err() != nil {
		return store.Saga{}, nil, nil, err
	}
	// Not here, or not now.
	found, err := e.st.Load(ctx, []store.Key{{Shard: shard, Namespace: namespace, ID: id}})
	switch {
	case err != nil:
		return store.Saga{}, nil, nil, databaseError(fmt.Errorf("load saga %q: %w", id, err))
	case len(found) == 0:
		return store.Saga{}, nil, nil, &NotFoundError{What: "saga", Namespace: namespace, Name: id}
	}
	r := e.loader.decode(ctx, &found[0])
	switch {
	case r.failed != nil:
		return store.Saga{}, nil, nil, r.failed
	case r.err != nil:
		return found[0].Saga, nil, nil, &QuarantinedError{Namespace: namespace, ID: id, Why: r.err.Error()}
	}
	return found[0].Saga, r.state, r.machine, nil
}
