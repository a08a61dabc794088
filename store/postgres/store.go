// Package postgres keeps sagas in PostgreSQL, version 14 or newer. It is the store for production.
//
// A commit is one statement (sagad_commit, in sql/postgres), so that neither a paused nor a dying owner can hold a lock.
package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/postgres/pgdb"
)

const (
	// commitTimeout bounds a commit, all its resendings included. After it the outcome is unknown.
	commitTimeout = 10 * time.Second
	// poolConnsMin is how many connections the main pool may have at least, whatever the machine: two committers, and
	// readers beside them.
	poolConnsMin = 8
	// leaseConns is how many connections there are for leases, which must be renewed when all others are busy.
	leaseConns = 3
	shardsMax  = 4096
)

// Config of a store.
type Config struct {
	// DSN is a libpq connection string or URL. pool_max_conns sets the size of the main pool; three more
	// connections are for leases. Behind pgbouncer in transaction mode set default_query_exec_mode=exec (or cache_describe): then
	// nothing is kept in the session, neither prepared statements nor settings.
	DSN string
	// Node is the name that the database shows for this process's sessions, as sagad/NAME.
	Node string
	// Shards is how many shards a new database gets, 1 to 4096; [store.DefaultShards] if 0. An initialised database keeps
	// its number.
	Shards int
	// Logger is [slog.Default] if nil.
	Logger *slog.Logger
	// Tracer observes queries; may be nil.
	Tracer pgx.QueryTracer
}

// Store is a [store.Store].
type Store struct {
	log    *slog.Logger
	main   *pgxpool.Pool
	leases *pgxpool.Pool
	q      *pgdb.Queries
	meta   store.Meta
}

var _ store.Store = (*Store)(nil)

// Open migrates the database, initialises it if it is new, and returns its store. Several processes may do so at once.
// The error is [store.ErrSchema] if the database is of a newer version. No error shows the password.
func Open(ctx context.Context, c Config) (*Store, error) {
	if c.Shards == 0 {
		c.Shards = store.DefaultShards
	}
	if c.Shards < 1 || c.Shards > shardsMax {
		return nil, fmt.Errorf("%d shards: choose 1 to %d", c.Shards, shardsMax)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	config, err := parse(c.DSN, c.Node)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.Tracer = c.Tracer
	if err := migrate(ctx, config, c.Logger); err != nil {
		return nil, err
	}

	s := &Store{log: c.Logger, q: pgdb.New()}
	if s.main, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, fmt.Errorf("connecting to Postgres: %w", err)
	}
	forLeases := config.Copy()
	forLeases.MaxConns, forLeases.MinConns = leaseConns, 1
	if s.leases, err = pgxpool.NewWithConfig(ctx, forLeases); err != nil {
		s.main.Close()
		return nil, fmt.Errorf("connecting to Postgres: %w", err)
	}
	if err := s.init(ctx, c.Shards); err != nil {
		_ = s.Close()
		return nil, err
	}
	c.Logger.Info("postgres store is open", "host", config.ConnConfig.Host, "database", config.ConnConfig.Database,
		"shards", s.meta.Shards, "cluster", s.meta.ClusterID, "exec_mode", config.ConnConfig.DefaultQueryExecMode.String())
	return s, nil
}

// init writes what a new database needs; others keep what they have.
func (s *Store) init(ctx context.Context, shards int) error {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	meta, err := s.q.Meta(ctx, s.main)
	if errors.Is(err, pgx.ErrNoRows) {
		err = s.q.InitMeta(ctx, s.main, pgdb.InitMetaParams{Shards: int32(shards), ClusterID: uuid.New(), TokenKey: key})
		if err == nil {
			meta, err = s.q.Meta(ctx, s.main)
		}
	}
	if err != nil {
		return fmt.Errorf("initialising the database: %w", err)
	}
	s.meta = store.Meta{Shards: int(meta.Shards), ClusterID: meta.ClusterID, TokenKey: meta.TokenKey}
	if err := s.q.InitShards(ctx, s.main, meta.Shards); err != nil {
		return fmt.Errorf("initialising the shards: %w", err)
	}
	if err := s.q.InitLeases(ctx, s.main, meta.Shards); err != nil {
		return fmt.Errorf("initialising the leases: %w", err)
	}
	if err := s.q.ForgetNodes(ctx, s.main); err != nil {
		return fmt.Errorf("forgetting nodes that are long gone: %w", err)
	}
	health, err := s.q.Health(ctx, s.main)
	if err != nil {
		return fmt.Errorf("asking for the database's settings: %w", err)
	}
	if health.FsyncOff {
		s.log.Warn("Postgres runs with fsync=off: a crash of its machine may lose or corrupt sagas")
	}
	return nil
}

// Meta is what was fixed when the database was initialised.
func (s *Store) Meta(context.Context) (store.Meta, error) {
	m := s.meta
	m.TokenKey = append([]byte(nil), m.TokenKey...)
	return m, nil
}

// Now is the database's clock.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	at, err := s.q.Now(ctx, s.leases)
	if err != nil {
		return time.Time{}, fmt.Errorf("reading the database's clock: %w", err)
	}
	return at.UTC(), nil
}

// Ping fails while the database can't be reached, is a standby or read-only.
func (s *Store) Ping(ctx context.Context) error {
	health, err := s.q.Health(ctx, s.leases)
	if err != nil {
		return fmt.Errorf("postgres doesn't answer: %w", err)
	}
	if health.ReadOnly {
		s.leases.Reset()
		return errors.New("postgres is read-only, maybe a standby: point the DSN at the primary (several hosts with " +
			"target_session_attrs=read-write find it)")
	}
	return nil
}

// Pools are the connection pools, for metrics: the main one and the one for leases.
func (s *Store) Pools() (main, leases *pgxpool.Pool) { return s.main, s.leases }

// Close waits for what is under way and disconnects.
func (s *Store) Close() error {
	s.main.Close()
	s.leases.Close()
	return nil
}

// parse makes the configuration of the main pool.
func parse(dsn, node string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		// pgx's message quotes the DSN, and can't hide the password when it can't tell where it is.
		return nil, errors.New("the Postgres DSN can't be read: write postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=MODE, " +
			"with reserved characters percent-encoded, or host=HOST port=PORT user=USER dbname=DATABASE")
	}
	if !strings.Contains(dsn, "pool_max_conns") {
		config.MaxConns = max(config.MaxConns, poolConnsMin)
	}
	config.ConnConfig.DialFunc = (&net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3,
	}}).DialContext
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = 5 * time.Second
	}
	set := func(name, value string) {
		if _, ok := config.ConnConfig.RuntimeParams[name]; !ok {
			config.ConnConfig.RuntimeParams[name] = value
		}
	}
	if node == "" {
		node = "-"
	}
	set("application_name", "sagad/"+node)
	if !pooled(config.ConnConfig) {
		// Backstops; nothing relies on them. A transaction pooler would refuse them.
		set("statement_timeout", milliseconds(commitTimeout))
		set("lock_timeout", "5000")
		set("idle_in_transaction_session_timeout", "2000")
		set("tcp_keepalives_idle", "5")
		set("tcp_keepalives_interval", "2")
		set("tcp_keepalives_count", "3")
		set("tcp_user_timeout", "5000")
		set("jit", "off")
		// Prepared plans are kept, and one that was made while a table was small would scan it when it is large. Every query
		// here has its index. (A pooler's connections keep no plans.)
		set("enable_seqscan", "off")
		set("enable_hashjoin", "off")
		set("enable_mergejoin", "off")
		set("default_transaction_isolation", "read committed")
	}
	config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		registerUUIDs(conn.TypeMap())
		registerTimes(conn.TypeMap())
		conn.TypeMap().RegisterDefaultPgType([][]byte{}, "_bytea")
		return nil
	}
	return config, nil
}

// pooled says that the DSN is for a transaction pooler, where sessions keep nothing.
func pooled(c *pgx.ConnConfig) bool {
	return c.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
