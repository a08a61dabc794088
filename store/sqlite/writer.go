package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/sagad/sagad/store/sqlite/litedb"
)

// writer is the one connection that writes. It prepares each statement once: preparing costs more than running.
type writer struct {
	conn     *sql.Conn
	prepared map[string]*sql.Stmt
}

var _ litedb.DBTX = (*writer)(nil)

// errUnended: a transaction could be neither committed nor rolled back.
var errUnended = errors.New("the transaction could not be rolled back")

// transact runs do in a transaction.
func (w *writer) transact(ctx context.Context, do func(ctx context.Context, w *writer) error) error {
	if _, err := w.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	err := do(ctx, w)
	if err == nil {
		_, err = w.ExecContext(ctx, "COMMIT")
	}
	if err != nil {
		// SQLite has rolled back by itself after some errors; then this fails, and that's fine.
		if _, rollback := w.ExecContext(ctx, "ROLLBACK"); rollback != nil {
			if _, begin := w.ExecContext(ctx, "BEGIN"); begin != nil {
				return fmt.Errorf("%w: %w", errUnended, err)
			}
			_, _ = w.ExecContext(ctx, "ROLLBACK")
		}
	}
	return err
}

func (w *writer) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	if stmt, ok := w.prepared[query]; ok {
		return stmt, nil
	}
	stmt, err := w.conn.PrepareContext(ctx, query)
	if err == nil {
		w.prepared[query] = stmt
	}
	return stmt, err
}

func (w *writer) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	stmt, err := w.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	return stmt.ExecContext(ctx, args...)
}

func (w *writer) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	stmt, err := w.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	return stmt.QueryContext(ctx, args...)
}

func (w *writer) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	stmt, err := w.PrepareContext(ctx, query)
	if err != nil {
		return w.conn.QueryRowContext(ctx, query, args...) // fails with the same error
	}
	return stmt.QueryRowContext(ctx, args...)
}

func (w *writer) close() error {
	var errs []error
	for _, stmt := range w.prepared {
		errs = append(errs, stmt.Close())
	}
	return errors.Join(append(errs, w.conn.Close())...)
}
