// Package node assembles a node: store, bus, engine and API, from one configuration.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sagad/sagad/engine"
	"github.com/sagad/sagad/internal/natsbus"
	"github.com/sagad/sagad/internal/server"
	"github.com/sagad/sagad/internal/telemetry"
	"github.com/sagad/sagad/store"
)

// Config is all that a node is told.
type Config struct {
	// Store is where sagas are kept: postgres://... or sqlite:DIR.
	Store string
	// Shards is how many a new database gets. 0 means 64.
	Shards int

	// NATS is the URL of NATS servers, or NATSEmbedded the folder of an embedded one, which listens on NATSListen.
	NATS, NATSEmbedded, NATSListen string
	NATSCreds                      string
	NATSReplicas                   int
	// AckWait is after what silence of a worker a task is delivered again. 0 means 30 s.
	AckWait time.Duration

	// Listen is the address of the API; port 0 takes a free one.
	Listen string
	// Advertise is where other nodes reach the API. Empty means the listen address.
	Advertise string
	// Name is unique among the nodes that run. Empty means host name and port.
	Name string
	// AllowUnauthenticated lets the API listen beyond loopback, AllowedHosts are further names over loopback.
	AllowUnauthenticated bool
	AllowedHosts         []string

	Version   string
	Telemetry *telemetry.Telemetry

	// WrapStore, if set, is given the store and gives what is used in its place. For benchmarks, which must see commits.
	WrapStore func(store.Store) store.Store
}

// Node is a node that is open. [Node.Run] makes it serve.
type Node struct {
	cfg    Config
	log    *slog.Logger
	ln     net.Listener
	nats   *natsbus.Server
	bus    *natsbus.Bus
	store  store.Store
	engine *engine.Engine
	server *server.Server
	// closers, in the order of opening.
	closers []func(context.Context) error
}

// stopTimeout bounds each part's stop.
const stopTimeout = 10 * time.Second

// readyTimeout is how long Open waits for the bus before it goes on without it: sagas start without a broker, their steps
// wait for it.
const readyTimeout = 5 * time.Second

// Open opens all parts, but doesn't serve yet. What was opened is closed again if a later part fails.
func Open(ctx context.Context, cfg Config) (_ *Node, err error) {
	tuneMemory()
	n := &Node{cfg: cfg}
	if cfg.Telemetry == nil {
		return nil, errors.New("node: no telemetry")
	}
	n.log = cfg.Telemetry.Logger
	// Before a database is made: a new one is initialised for good.
	if cfg.NATS == "" && cfg.NATSEmbedded == "" {
		return nil, errors.New("no message broker: give --nats nats://HOST:4222, or --nats-embedded DIR for a single node")
	}
	defer func() {
		if err != nil {
			n.close(ctx)
		}
	}()
	// The port first: whoever starts a second sagad by mistake learns it before anything is touched.
	if n.ln, err = server.Listen(ctx, cfg.Listen, cfg.AllowUnauthenticated); err != nil {
		return nil, err
	}
	n.onClose(func(context.Context) error { return ignoreClosed(n.ln.Close()) })
	if n.cfg.Name == "" {
		host, herr := os.Hostname()
		if herr != nil {
			host = "node"
		}
		n.cfg.Name = fmt.Sprintf("%s:%d", host, n.ln.Addr().(*net.TCPAddr).Port)
	}
	if n.cfg.Advertise, err = advertise(cfg, n.ln.Addr()); err != nil {
		return nil, err
	}

	if n.store, err = openStore(ctx, n.cfg); err != nil {
		return nil, err
	}
	if cfg.WrapStore != nil {
		n.store = cfg.WrapStore(n.store)
	}
	n.onClose(func(context.Context) error { return n.store.Close() })

	var engineOf atomic.Pointer[engine.Engine] // once it is there: it needs the bus first
	busConfig := natsbus.Config{
		URL: cfg.NATS, CredsFile: cfg.NATSCreds, Replicas: cfg.NATSReplicas, AckWait: cfg.AckWait,
		Name: "sagad " + n.cfg.Name, Logger: n.log,
		OnRecreated: func() {
			if e := engineOf.Load(); e != nil {
				e.Redispatch()
			}
		},
	}
	if cfg.NATSEmbedded != "" {
		unlock, err := lockFolder(cfg.NATSEmbedded)
		if err != nil {
			return nil, fmt.Errorf("folder of the embedded NATS server: %w", err)
		}
		n.onClose(func(context.Context) error { return unlock() })
		if n.nats, err = embeddedNATS(cfg, n.log); err != nil {
			return nil, err
		}
		n.onClose(func(context.Context) error { n.nats.Close(); return nil })
		busConfig.Server = n.nats
	}
	if n.bus, err = natsbus.Connect(ctx, busConfig); err != nil {
		return nil, err
	}
	n.onClose(func(context.Context) error { n.bus.Close(); return nil })
	if err := registerBus(cfg.Telemetry.Registry, n.bus); err != nil {
		return nil, err
	}
	ready, cancel := context.WithTimeout(ctx, readyTimeout)
	if err := n.bus.Ready(ready); err != nil {
		if ctx.Err() != nil {
			cancel()
			return nil, ctx.Err()
		}
		n.log.Warn("NATS can't be reached yet; sagas can be started, their steps wait", "nats", redacted(cfg.NATS))
	}
	cancel()

	if n.engine, err = newEngine(n); err != nil {
		return nil, err
	}
	n.server, err = server.New(ctx, server.Config{
		AllowedHosts: append([]string{hostOf(n.cfg.Advertise)}, cfg.AllowedHosts...),
		Checks:       n.checks(),
		Metrics:      cfg.Telemetry.MetricsHandler(),
		Logger:       n.log,
		Tracer:       cfg.Telemetry.Tracer,
		Meter:        cfg.Telemetry.Meter,
		Propagator:   cfg.Telemetry.Propagator,
	}, n.engine, n.store)
	if err != nil {
		return nil, err
	}
	if err := n.engine.Start(ctx); err != nil {
		return nil, fmt.Errorf("start the engine: %w", err)
	}
	engineOf.Store(n.engine)
	n.onClose(n.engine.Stop)
	return n, nil
}

func (n *Node) onClose(f func(context.Context) error) { n.closers = append(n.closers, f) }

// close closes what was opened, the last first.
func (n *Node) close(ctx context.Context) {
	for i := len(n.closers) - 1; i >= 0; i-- {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		if err := n.closers[i](stop); err != nil {
			n.log.Warn("a part of the node didn't stop cleanly", "error", err)
		}
		cancel()
	}
	n.closers = nil
}

// Run serves until ctx ends or the port fails, then stops everything: calls under way end, shards are given back, so that
// others take them at once.
func (n *Node) Run(ctx context.Context) error {
	n.log.Info("serving", "address", n.ln.Addr().String(), "node", n.cfg.Name, "advertise", n.cfg.Advertise, "version", n.cfg.Version)
	err := n.server.Serve(ctx, n.ln)
	n.log.Info("stopping", "node", n.cfg.Name)
	n.close(ctx)
	return err
}

// URL is where the API is.
func (n *Node) URL() string {
	return "http://" + n.ln.Addr().String()
}

// NATSURL is where workers connect.
func (n *Node) NATSURL() string {
	if n.nats != nil {
		return n.nats.ClientURL()
	}
	return redacted(n.cfg.NATS)
}

// Waits says what the node can't do yet, in a few words; empty if it can do everything.
func (n *Node) Waits() string {
	if err := n.bus.Problem(); err != nil {
		return err.Error()
	}
	return ""
}

// Name is the node's.
func (n *Node) Name() string { return n.cfg.Name }

// Server is the API, for calls within the process.
func (n *Node) Server() *server.Server { return n.server }

func (n *Node) checks() []server.Check {
	return []server.Check{
		{Name: "store", Run: func(ctx context.Context) error {
			if err := n.store.Ping(ctx); err != nil {
				n.log.Warn("not ready: the store", "error", err)
				return errors.New("the database doesn't take writes; this node's log says more")
			}
			return nil
		}},
		{Name: "nats", Run: func(context.Context) error {
			return n.bus.Problem()
		}},
		{Name: "shards", Run: n.checkShards},
	}
}

// checkShards: every shard has an owner that lives. A node without shards of its own is ready all the same: it forwards.
// But not if another has taken its name, which is a mistake of configuration.
func (n *Node) checkShards(ctx context.Context) error {
	if err := n.engine.NameTaken(); err != nil {
		return err
	}
	leases, err := n.store.Leases(ctx)
	if err != nil {
		n.log.Warn("not ready: the leases can't be read", "error", err)
		return errors.New("the shards' leases can't be read; this node's log says more")
	}
	without := 0
	for _, l := range leases {
		if !l.Live {
			without++
		}
	}
	if without > 0 {
		return fmt.Errorf("%d of %d shards have no owner just now", without, len(leases))
	}
	return nil
}

// advertise is the address that goes into leases.
func advertise(cfg Config, addr net.Addr) (string, error) {
	if cfg.Advertise != "" {
		if !strings.HasPrefix(cfg.Advertise, "http://") && !strings.HasPrefix(cfg.Advertise, "https://") {
			return "", fmt.Errorf("--advertise %q: write a URL, for example http://10.0.0.3:7230", cfg.Advertise)
		}
		return strings.TrimSuffix(cfg.Advertise, "/"), nil
	}
	if tcp, ok := addr.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() && strings.HasPrefix(cfg.Store, "postgres") {
		return "", errors.New("listening on all interfaces: say with --advertise http://HOST:PORT where other nodes reach this one")
	}
	return "http://" + addr.String(), nil
}

func hostOf(url string) string {
	_, rest, _ := strings.Cut(url, "://")
	host, _, err := net.SplitHostPort(rest)
	if err != nil {
		return rest
	}
	return host
}

// redacted is a URL list without user and password.
func redacted(urls string) string {
	parts := strings.Split(urls, ",")
	for i, u := range parts {
		scheme, rest, ok := strings.Cut(u, "://")
		if !ok {
			scheme, rest = "", u
		} else {
			scheme += "://"
		}
		if at := strings.LastIndex(rest, "@"); at >= 0 {
			rest = rest[at+1:]
		}
		parts[i] = scheme + rest
	}
	return strings.Join(parts, ",")
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// registerBus makes the bus's counters metrics.
func registerBus(reg prometheus.Registerer, bus *natsbus.Bus) error {
	return reg.Register(busCollector{bus})
}
