package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	_ "modernc.org/sqlite" // the services' database
)

// The services' tables. A real system would give each service a database of its own; here they share a file, so that
// the check at the end sees all of them at one moment.
const schema = `
CREATE TABLE IF NOT EXISTS product (
	product_id INTEGER PRIMARY KEY, product TEXT NOT NULL, initial_units INTEGER NOT NULL, on_order_units INTEGER NOT NULL,
	discontinued INTEGER NOT NULL, units INTEGER NOT NULL CHECK (units >= 0)
) STRICT;
CREATE TABLE IF NOT EXISTS reservation (
	id INTEGER PRIMARY KEY AUTOINCREMENT, order_id TEXT NOT NULL, state TEXT NOT NULL CHECK (state IN ('held', 'released', 'shipped'))
) STRICT;
CREATE TABLE IF NOT EXISTS reservation_line (
	reservation_id INTEGER NOT NULL REFERENCES reservation, product_id INTEGER NOT NULL REFERENCES product, units INTEGER NOT NULL CHECK (units > 0),
	PRIMARY KEY (reservation_id, product_id)
) STRICT;
CREATE TABLE IF NOT EXISTS hold (
	id INTEGER PRIMARY KEY AUTOINCREMENT, order_id TEXT NOT NULL, cents INTEGER NOT NULL CHECK (cents >= 0),
	state TEXT NOT NULL CHECK (state IN ('open', 'void', 'captured'))
) STRICT;
CREATE TABLE IF NOT EXISTS capture (
	id INTEGER PRIMARY KEY AUTOINCREMENT, order_id TEXT NOT NULL, hold_id INTEGER NOT NULL REFERENCES hold, cents INTEGER NOT NULL CHECK (cents >= 0)
) STRICT;
CREATE TABLE IF NOT EXISTS shipment (
	id INTEGER PRIMARY KEY AUTOINCREMENT, order_id TEXT NOT NULL, reservation_id INTEGER NOT NULL REFERENCES reservation, city TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS notification (
	id INTEGER PRIMARY KEY AUTOINCREMENT, order_id TEXT NOT NULL, customer_id TEXT NOT NULL, text TEXT NOT NULL
) STRICT;
-- What was asked under each idempotency key, and what was answered. See once and undo.
CREATE TABLE IF NOT EXISTS request (
	key TEXT PRIMARY KEY, order_id TEXT NOT NULL, step TEXT NOT NULL, digest BLOB NOT NULL,
	state TEXT NOT NULL CHECK (state IN ('done', 'rejected', 'undone', 'never')), result TEXT NOT NULL
) STRICT;
-- How often each key reached a service, whatever came of it.
CREATE TABLE IF NOT EXISTS call (key TEXT PRIMARY KEY, calls INTEGER NOT NULL) STRICT;
-- Every effect, appended by the services' own code. Nothing here keeps a key from standing twice: the check does.
CREATE TABLE IF NOT EXISTS effect (
	id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, order_id TEXT NOT NULL, step TEXT NOT NULL,
	direction TEXT NOT NULL CHECK (direction IN ('do', 'undo'))
) STRICT;
`

// Services are the stock, the ledger, the shipments and the notifications. Several processes may use one folder.
type Services struct {
	db *sql.DB
}

// openServices opens the services in a folder, and makes them, with the stock given, if they aren't there.
func openServices(ctx context.Context, dir string, stock []Product) (*Services, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	// WAL with synchronous NORMAL: what is committed survives the death of every process, though not a power cut.
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "services.db")+
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=foreign_keys(1)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	// SQLite has one writer; more connections of one process would only wait for each other.
	db.SetMaxOpenConns(1)
	s := &Services{db: db}
	if err := s.setUp(ctx, stock); err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("the services' database in %s: %w", dir, err)
	}
	return s, nil
}

func (s *Services) setUp(ctx context.Context, stock []Product) error {
	return s.write(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, schema); err != nil {
			return err
		}
		var there int
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM product").Scan(&there); err != nil || there > 0 {
			return err
		}
		for _, p := range stock {
			if _, err := tx.ExecContext(ctx,
				"INSERT INTO product (product_id, product, initial_units, on_order_units, discontinued, units) VALUES (?, ?, ?, ?, ?, ?)",
				p.ProductID, p.Product, p.UnitsInStock, p.UnitsOnOrder, p.Discontinued, p.UnitsInStock); err != nil {
				return fmt.Errorf("product %d: %w", p.ProductID, err)
			}
		}
		return nil
	})
}

// write runs a transaction. It is committed unless body fails.
func (s *Services) write(ctx context.Context, body func(tx *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := body(tx); err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}

// Close closes the database.
func (s *Services) Close() error { return s.db.Close() }
