package outbox

import (
	"context"
	"database/sql"
)

// DB is the database of a relay. Each of its statements is a transaction by itself.
type DB struct {
	exec  func(ctx context.Context, query string, args ...any) (rows int64, err error)
	query func(ctx context.Context, each func(scan func(dest ...any) error) error, query string, args ...any) error
	d     *dialect
}

// PgxPool is for a pgxpool.Pool, of version 5: write outbox.PgxPool(pool).
func PgxPool[Tag interface{ RowsAffected() int64 }, Rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
	Close()
}](pool interface {
	Exec(ctx context.Context, query string, args ...any) (Tag, error)
	Query(ctx context.Context, query string, args ...any) (Rows, error)
	Ping(ctx context.Context) error
	Close() // so that a transaction isn't taken for a pool
}) DB {
	return DB{
		d:    &postgresDialect,
		exec: pgxExec(pool.Exec),
		query: func(ctx context.Context, each func(func(...any) error) error, query string, args ...any) error {
			rows, err := pool.Query(ctx, query, args...)
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
				if err := each(rows.Scan); err != nil {
					return err
				}
			}
			return rows.Err()
		},
	}
}

// PostgresDB is for database/sql on PostgreSQL 14 or later.
func PostgresDB(db *sql.DB) DB { return standard(db, &postgresDialect) }

// SQLiteDB is for database/sql on SQLite 3.38 or later.
func SQLiteDB(db *sql.DB) DB { return standard(db, &sqliteDialect) }

func standard(db *sql.DB, d *dialect) DB {
	return DB{
		d:    d,
		exec: standardExec(db.ExecContext),
		query: func(ctx context.Context, each func(func(...any) error) error, query string, args ...any) error {
			rows, err := db.QueryContext(ctx, query, args...)
			if err != nil {
				return err
			}
			defer func() { _ = rows.Close() }()
			for rows.Next() {
				if err := each(rows.Scan); err != nil {
					return err
				}
			}
			return rows.Err()
		},
	}
}
