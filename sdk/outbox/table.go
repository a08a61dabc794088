package outbox

import (
	"context"
	"fmt"
)

// The table, for migrations. id gives the order; saga_id, definition, version (0: the latest), input (JSON, 256 KiB at most) and labels (a
// JSON object) are what to start; a relay that works at the row is named by claim, and others leave it alone until due_at, in
// milliseconds since 1970; attempts are those that failed; error_code and error_message tell why the last one did; parked is 1 if
// the server refused it for good; stored_at is in milliseconds since 1970.
const (
	PostgresTable = `CREATE TABLE IF NOT EXISTS sagad_outbox (
	id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	saga_id       TEXT NOT NULL,
	definition    TEXT NOT NULL,
	version       INTEGER NOT NULL,
	input         TEXT NOT NULL,
	labels        TEXT NOT NULL,
	due_at        BIGINT NOT NULL DEFAULT 0,
	claim         TEXT NOT NULL DEFAULT '',
	attempts      INTEGER NOT NULL DEFAULT 0,
	parked        INTEGER NOT NULL DEFAULT 0 CHECK (parked IN (0, 1)),
	error_code    TEXT NOT NULL DEFAULT '',
	error_message TEXT NOT NULL DEFAULT '',
	stored_at     BIGINT NOT NULL DEFAULT ((extract(epoch FROM clock_timestamp()) * 1000)::bigint)
);
CREATE INDEX IF NOT EXISTS sagad_outbox_waiting ON sagad_outbox (id) WHERE parked = 0;
CREATE INDEX IF NOT EXISTS sagad_outbox_parked ON sagad_outbox (id) WHERE parked = 1;
`
	SQLiteTable = `CREATE TABLE IF NOT EXISTS sagad_outbox (
	id            INTEGER PRIMARY KEY AUTOINCREMENT,
	saga_id       TEXT NOT NULL,
	definition    TEXT NOT NULL,
	version       INTEGER NOT NULL,
	input         TEXT NOT NULL,
	labels        TEXT NOT NULL,
	due_at        INTEGER NOT NULL DEFAULT 0,
	claim         TEXT NOT NULL DEFAULT '',
	attempts      INTEGER NOT NULL DEFAULT 0,
	parked        INTEGER NOT NULL DEFAULT 0 CHECK (parked IN (0, 1)),
	error_code    TEXT NOT NULL DEFAULT '',
	error_message TEXT NOT NULL DEFAULT '',
	stored_at     INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))
) STRICT;
CREATE INDEX IF NOT EXISTS sagad_outbox_waiting ON sagad_outbox (id) WHERE parked = 0;
CREATE INDEX IF NOT EXISTS sagad_outbox_parked ON sagad_outbox (id) WHERE parked = 1;
`
)

// dialect is what differs between databases.
type dialect struct {
	table string
	// lock, if set, keeps others from making the table at the same time.
	lock string
	// now is the time in milliseconds since 1970.
	now string
	// peek, if set, says without taking a lock whether there is anything to claim.
	peek string
	// claim takes rows: claim, lease in milliseconds, number.
	claim string
}

const rowColumns = "id, saga_id, definition, version, input, labels, attempts"

var postgresDialect = dialect{
	table: PostgresTable,
	lock:  "SELECT pg_advisory_xact_lock(7311120230818)", // any number that nobody else uses
	now:   postgresNow,
	// Rows that others are taking just now are passed over, not waited for.
	claim: `WITH due AS MATERIALIZED (
			SELECT id AS due_id FROM sagad_outbox WHERE parked = 0 AND due_at <= ` + postgresNow + ` ORDER BY id LIMIT $3 FOR UPDATE SKIP LOCKED)
		UPDATE sagad_outbox SET claim = $1, due_at = ` + postgresNow + ` + $2 FROM due WHERE id = due_id RETURNING ` + rowColumns,
}

const postgresNow = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

var sqliteDialect = dialect{
	table: SQLiteTable,
	now:   sqliteNow,
	peek:  "SELECT 1 FROM sagad_outbox WHERE parked = 0 AND due_at <= " + sqliteNow + " LIMIT 1",
	// One writer at a time: a statement sees what the one before it took.
	claim: `UPDATE sagad_outbox SET claim = $1, due_at = ` + sqliteNow + ` + $2 WHERE id IN (
			SELECT id FROM sagad_outbox WHERE parked = 0 AND due_at <= ` + sqliteNow + ` ORDER BY id LIMIT $3)
		RETURNING ` + rowColumns,
}

const sqliteNow = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"

// CreateTable makes the table if it isn't there. Several processes may do it at a time.
func CreateTable(ctx context.Context, tx Tx) error {
	if tx.d.lock != "" {
		if _, err := tx.exec(ctx, tx.d.lock); err != nil {
			return fmt.Errorf("outbox: making the table: %w", err)
		}
	}
	if _, err := tx.exec(ctx, tx.d.table); err != nil {
		return fmt.Errorf("outbox: making the table: %w", err)
	}
	return nil
}
