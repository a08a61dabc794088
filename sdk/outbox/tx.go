package outbox

import (
	"context"
	"database/sql"
)

// Tx is a transaction of yours. The outbox writes with it, and never begins, commits or rolls back one.
type Tx struct {
	exec func(ctx context.Context, query string, args ...any) (rows int64, err error)
	d    *dialect
}

// Pgx is for a pgx.Tx, of version 5. It is generic so that this package doesn't import pgx: write outbox.Pgx(tx).
func Pgx[Tag interface{ RowsAffected() int64 }](tx interface {
	Exec(ctx context.Context, query string, args ...any) (Tag, error)
	Commit(ctx context.Context) error // so that a pool isn't taken for a transaction
}) Tx {
	return Tx{exec: pgxExec(tx.Exec), d: &postgresDialect}
}

// Postgres is for a transaction of database/sql on PostgreSQL 14 or later. It is tested with pgx's driver.
func Postgres(tx *sql.Tx) Tx { return Tx{exec: standardExec(tx.ExecContext), d: &postgresDialect} }

// SQLite is for a transaction of database/sql on SQLite 3.38 or later. It is tested with modernc.org/sqlite.
func SQLite(tx *sql.Tx) Tx { return Tx{exec: standardExec(tx.ExecContext), d: &sqliteDialect} }

func pgxExec[Tag interface{ RowsAffected() int64 }](exec func(context.Context, string, ...any) (Tag, error)) func(context.Context, string, ...any) (int64, error) {
	return func(ctx context.Context, query string, args ...any) (int64, error) {
		tag, err := exec(ctx, query, args...)
		if err != nil {
			return 0, err
		}
		return tag.RowsAffected(), nil
	}
}

func standardExec(exec func(context.Context, string, ...any) (sql.Result, error)) func(context.Context, string, ...any) (int64, error) {
	return func(ctx context.Context, query string, args ...any) (int64, error) {
		res, err := exec(ctx, query, args...)
		if err != nil {
			return 0, err
		}
		return res.RowsAffected()
	}
}
