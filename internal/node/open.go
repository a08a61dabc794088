package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"syscall"

	"github.com/sagad/sagad/engine"
	"github.com/sagad/sagad/internal/natsbus"
	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/postgres"
	"github.com/sagad/sagad/store/sqlite"
)

// openStore opens the database that the URL names, and brings its schema up to date.
func openStore(ctx context.Context, cfg Config) (store.Store, error) {
	log := slog.Default()
	if cfg.Telemetry != nil {
		log = cfg.Telemetry.Logger
	}
	st, err := openDatabase(ctx, cfg, log)
	if err != nil {
		return nil, err
	}
	if meta, err := st.Meta(ctx); err == nil && cfg.Shards != 0 && meta.Shards != cfg.Shards {
		log.Warn("the database was initialised with another number of shards, which is fixed for ever; --shards changes nothing",
			"shards", meta.Shards, "asked", cfg.Shards)
	}
	return st, nil
}

func openDatabase(ctx context.Context, cfg Config, log *slog.Logger) (store.Store, error) {
	switch {
	case strings.HasPrefix(cfg.Store, "sqlite:"):
		dir := strings.TrimPrefix(strings.TrimPrefix(cfg.Store, "sqlite:"), "//")
		if dir == "" {
			return nil, errors.New("--store sqlite: names no folder: write for example sqlite:./data")
		}
		return sqlite.Open(ctx, sqlite.Config{Dir: dir, Shards: cfg.Shards, Logger: log})
	case strings.HasPrefix(cfg.Store, "postgres://"), strings.HasPrefix(cfg.Store, "postgresql://"):
		return postgres.Open(ctx, postgres.Config{DSN: cfg.Store, Node: cfg.Name, Shards: cfg.Shards, Logger: log})
	}
	// Not quoted: it may hold a password.
	return nil, errors.New("--store names no database: use postgres://USER@HOST/DATABASE or sqlite:DIR")
}

// Migrate brings a database's schema up to date, and initialises it if it is new.
func Migrate(ctx context.Context, url string, shards int) (store.Meta, error) {
	st, err := openStore(ctx, Config{Store: url, Shards: shards, Name: "migrate"})
	if err != nil {
		return store.Meta{}, err
	}
	meta, err := st.Meta(ctx)
	return meta, errors.Join(err, st.Close())
}

// embeddedNATS starts the embedded server. Its own error for a port in use comes late and says little.
func embeddedNATS(cfg Config, log *slog.Logger) (*natsbus.Server, error) {
	if _, port, err := net.SplitHostPort(cfg.NATSListen); err == nil && port != "0" {
		ln, err := net.Listen("tcp", cfg.NATSListen)
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("the embedded NATS server can't listen on %s: the port is in use, perhaps by another sagad or NATS server. "+
				"Stop that, or choose another with --nats-listen 127.0.0.1:0", cfg.NATSListen)
		}
		if err != nil {
			return nil, fmt.Errorf("the embedded NATS server can't listen on %s: %w", cfg.NATSListen, err)
		}
		_ = ln.Close()
	}
	return natsbus.Embedded(cfg.NATSEmbedded, cfg.NATSListen, log)
}

func newEngine(n *Node) (*engine.Engine, error) {
	return engine.New(engine.Config{
		Name:     n.cfg.Name,
		Address:  n.cfg.Advertise,
		Logger:   n.log,
		Registry: n.cfg.Telemetry.Registry,
		Tracer:   n.cfg.Telemetry.Tracer,
		// Twice the broker's, so that a task that is delivered again by it isn't sent twice.
		RedispatchAfter: 2 * n.cfg.AckWait,
	}, n.store, n.bus)
}
