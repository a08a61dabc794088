package barrier

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// Tx is a transaction of yours. The barrier writes with it, and never begins, commits or rolls back one; within it, it uses a
// savepoint named sagad_barrier.
type Tx struct {
	exec  func(ctx context.Context, query string, args ...any) (rows int64, err error)
	query func(ctx context.Context, query string, args ...any) scanner
	// Of the dialect:
	table, now string
	// lock, if set, keeps others from making the table at the same time.
	lock string
}

type scanner interface{ Scan(dest ...any) error }

// Pgx is for a pgx.Tx, of version 5. It is generic so that this package doesn't import pgx: write barrier.Pgx(tx).
func Pgx[Tag interface{ RowsAffected() int64 }, Row scanner](tx interface {
	Exec(ctx context.Context, query string, args ...any) (Tag, error)
	QueryRow(ctx context.Context, query string, args ...any) Row
	Commit(ctx context.Context) error // so that a pool isn't taken for a transaction
}) Tx {
	return postgres(Tx{
		exec: func(ctx context.Context, query string, args ...any) (int64, error) {
			tag, err := tx.Exec(ctx, query, args...)
			if err != nil {
				return 0, err
			}
			return tag.RowsAffected(), nil
		},
		query: func(ctx context.Context, query string, args ...any) scanner { return tx.QueryRow(ctx, query, args...) },
	})
}

// Postgres is for a transaction of database/sql on PostgreSQL 14 or later. It is tested with pgx's driver.
func Postgres(tx *sql.Tx) Tx { return postgres(standard(tx)) }

// SQLite is for a transaction of database/sql on SQLite 3.38 or later. It is tested with modernc.org/sqlite.
func SQLite(tx *sql.Tx) Tx {
	t := standard(tx)
	t.table, t.now = SQLiteTable, "unixepoch()"
	return t
}

func postgres(tx Tx) Tx {
	tx.table, tx.now = PostgresTable, "extract(epoch FROM now())::bigint"
	tx.lock = "SELECT pg_advisory_xact_lock(7311120230817)" // any number that nobody else uses
	return tx
}

func standard(tx *sql.Tx) Tx {
	return Tx{
		exec: func(ctx context.Context, query string, args ...any) (int64, error) {
			res, err := tx.ExecContext(ctx, query, args...)
			if err != nil {
				return 0, err
			}
			return res.RowsAffected()
		},
		query: func(ctx context.Context, query string, args ...any) scanner {
			return tx.QueryRowContext(ctx, query, args...)
		},
	}
}

// guard undoes what body wrote if it fails, so that it doesn't stand even if the transaction is committed all the same.
func (tx Tx) guard(ctx context.Context, body func() error) error {
	if _, err := tx.exec(ctx, "SAVEPOINT sagad_barrier"); err != nil {
		return fmt.Errorf("barrier: making a savepoint: %w", err)
	}
	failure := body()
	if failure != nil {
		late := ctx.Err()
		ctx = context.WithoutCancel(ctx)
		if _, err := tx.exec(ctx, "ROLLBACK TO SAVEPOINT sagad_barrier"); err != nil {
			// The failure isn't wrapped: a rejection says that nothing was done, which isn't sure any more.
			return errors.Join(fmt.Errorf("barrier: going back to the savepoint: %w; before that: %v", err, failure), late)
		}
	}
	if _, err := tx.exec(ctx, "RELEASE SAVEPOINT sagad_barrier"); err != nil {
		if failure != nil {
			return failure
		}
		return fmt.Errorf("barrier: releasing the savepoint: %w", err)
	}
	return failure
}
