package barrier

import (
	"context"
	"fmt"
	"time"
)

// The table, for migrations. idempotency_key is the call's; asked is a hash of its input, of a compensation that of the action's key, and empty in
// a tombstone; outcome is succeeded, rejected or nothing; attempt is the one that was answered; result is the output or the rejection as
// JSON, 256 KiB at most; undone is 1 if the compensation of this action has been there; stored_at is in seconds since
// 1970.
const (
	PostgresTable = `CREATE TABLE IF NOT EXISTS sagad_barrier (
	idempotency_key TEXT PRIMARY KEY,
	asked           TEXT NOT NULL,
	outcome         TEXT NOT NULL CHECK (outcome IN ('started', 'succeeded', 'rejected', 'nothing')),
	attempt         INTEGER NOT NULL,
	result          TEXT NOT NULL,
	undone          INTEGER NOT NULL CHECK (undone IN (0, 1)),
	stored_at       BIGINT NOT NULL DEFAULT (extract(epoch FROM now())::bigint)
);
CREATE INDEX IF NOT EXISTS sagad_barrier_stored_at ON sagad_barrier (stored_at);
`
	SQLiteTable = `CREATE TABLE IF NOT EXISTS sagad_barrier (
	idempotency_key TEXT PRIMARY KEY,
	asked           TEXT NOT NULL,
	outcome         TEXT NOT NULL CHECK (outcome IN ('started', 'succeeded', 'rejected', 'nothing')),
	attempt         INTEGER NOT NULL,
	result          TEXT NOT NULL,
	undone          INTEGER NOT NULL CHECK (undone IN (0, 1)),
	stored_at       INTEGER NOT NULL DEFAULT (unixepoch())
);
CREATE INDEX IF NOT EXISTS sagad_barrier_stored_at ON sagad_barrier (stored_at);
`
)

// CreateTable makes the table if it isn't there. Several processes may do it at a time.
func CreateTable(ctx context.Context, tx Tx) error {
	if tx.lock != "" {
		if _, err := tx.exec(ctx, tx.lock); err != nil {
			return fmt.Errorf("barrier: making the table: %w", err)
		}
	}
	if _, err := tx.exec(ctx, tx.table); err != nil {
		return fmt.Errorf("barrier: making the table: %w", err)
	}
	return nil
}

const (
	// RetentionMin is the least that Purge keeps: longer than any task stays in the broker.
	RetentionMin = 7 * 24 * time.Hour
	// PurgeRowsMax bounds what one call of Purge removes.
	PurgeRowsMax = 10_000
)

// Purge removes rows that were made longer than age ago, by the database's clock, at most [PurgeRowsMax] of them, and says how
// many. Call it, each time in a transaction of its own, until it says fewer.
//
// A row must be kept until its saga has ended and no task of it can arrive any more: without the action's row, a compensation
// takes the action for never done, and leaves its effect standing; without a tombstone, a late action is done. So age must be more
// than the longest that a saga of yours can take, with its compensations and the time that people let an operations item lie,
// and a week on top. A year costs little. Less than [RetentionMin] is refused.
func Purge(ctx context.Context, tx Tx, age time.Duration) (rows int64, err error) {
	if age < RetentionMin {
		return 0, fmt.Errorf("barrier: purging rows of %v and older: keep them for %v at least, and for as long as any saga takes", age, RetentionMin)
	}
	rows, err = tx.exec(ctx, `DELETE FROM sagad_barrier WHERE idempotency_key IN (
		SELECT idempotency_key FROM sagad_barrier WHERE stored_at < `+tx.now+` - $1 ORDER BY stored_at LIMIT $2)`, int64(age/time.Second), PurgeRowsMax)
	if err != nil {
		return 0, fmt.Errorf("barrier: purging: %w", err)
	}
	return rows, nil
}
