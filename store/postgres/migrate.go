package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	sagadsql "github.com/sagad/sagad/sql"
	"github.com/sagad/sagad/store"
)

const (
	versionTable = "sagad_schema_version"
	lockTable    = "sagad_schema_lock"
)

// migrate brings the database's schema up to this binary's version. Several processes may do so at once: one does, the others
// wait for it. The error is [store.ErrSchema] if the schema is newer.
func migrate(ctx context.Context, pool *pgxpool.Config, log *slog.Logger) error {
	config := pool.ConnConfig.Copy()
	for _, timeout := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"} {
		delete(config.RuntimeParams, timeout) // a migration may take its time
	}
	db := stdlib.OpenDB(*config)
	defer func() { _ = db.Close() }()

	migrations, err := fs.Sub(sagadsql.Postgres, "postgres/migrations")
	if err != nil {
		return err
	}
	// A lock in a table, not in the session: it works behind a pooler.
	locker, err := lock.NewPostgresTableLocker(lock.WithTableName(lockTable),
		lock.WithTableLockTimeout(100*time.Millisecond, 3000), lock.WithTableLogger(log))
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, migrations, goose.WithTableName(versionTable),
		goose.WithLocker(locker), goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
	if err != nil {
		return fmt.Errorf("preparing migrations: %w", err)
	}
	sources := provider.ListSources()
	newest := sources[len(sources)-1].Version

	current, err := schemaVersion(ctx, db)
	if err != nil {
		return fmt.Errorf("reading the schema's version: %w", explained(err))
	}
	if current < newest {
		began := time.Now()
		applied, err := provider.Up(ctx)
		if err != nil {
			return fmt.Errorf("migrating the schema from version %d to %d: %w", current, newest, err)
		}
		if len(applied) > 0 { // else another process was first
			log.Info("schema migrated", "from", current, "to", newest, "took", time.Since(began))
		}
		if current, err = schemaVersion(ctx, db); err != nil {
			return fmt.Errorf("reading the schema's version: %w", err)
		}
	}
	if current > newest {
		return fmt.Errorf("%w: the database's is %d, this binary knows %d: run the newer release of sagad that migrated it",
			store.ErrSchema, current, newest)
	}
	return nil
}

// schemaVersion is 0 for a database without a schema.
func schemaVersion(ctx context.Context, db *sql.DB) (int64, error) {
	var version int64
	err := db.QueryRowContext(ctx, "SELECT coalesce(max(version_id), 0) FROM "+pgx.Identifier{versionTable}.Sanitize()+
		" WHERE is_applied").Scan(&version)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42P01" { // undefined_table
		return 0, nil
	}
	return version, err
}
