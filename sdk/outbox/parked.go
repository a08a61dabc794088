package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrNotParked: there is no such row, or it isn't parked.
var ErrNotParked = errors.New("outbox: no parked row of this id")

// parkedMax bounds one answer of [Relay.Parked].
const parkedMax = 1000

// Parked is a start that the server refused for good. Its input stands in the table.
type Parked struct {
	// ID of the row, for Retry and Discard.
	ID         int64
	SagaID     string
	Definition string
	// Version is 0 for the latest.
	Version int32
	// Code is the server's, for example ID_TAKEN, or [CodeBadRow].
	Code string
	// Message says what to do.
	Message string
	// Attempts that failed.
	Attempts int
	// StoredAt is when the row was written, by the database's clock.
	StoredAt time.Time
}

// Parked lists parked rows in order, beginning after the row after; 0 for the first. There are up to limit of them, and 1000 at most.
func (r *Relay) Parked(ctx context.Context, after int64, limit int) ([]Parked, error) {
	var all []Parked
	err := r.db.query(ctx, func(scan func(...any) error) error {
		var p Parked
		var stored int64
		if err := scan(&p.ID, &p.SagaID, &p.Definition, &p.Version, &p.Code, &p.Message, &p.Attempts, &stored); err != nil {
			return err
		}
		p.StoredAt = time.UnixMilli(stored)
		all = append(all, p)
		return nil
	}, `SELECT id, saga_id, definition, version, error_code, error_message, attempts, stored_at FROM sagad_outbox
		WHERE parked = 1 AND id > $1 ORDER BY id LIMIT $2`, after, min(max(limit, 0), parkedMax))
	return all, wrap(err, "listing parked rows")
}

// Retry lets a parked row be delivered again, for example once its definition is registered. [ErrNotParked] if it isn't parked.
func (r *Relay) Retry(ctx context.Context, id int64) error {
	err := r.unpark(ctx, "retrying", id, "UPDATE sagad_outbox SET parked = 0, due_at = 0, attempts = 0, error_code = '', error_message = '' WHERE id = $1 AND parked = 1")
	if err == nil {
		wakeAll()
		r.Wake()
	}
	return err
}

// Discard removes a parked row: its saga isn't started. [ErrNotParked] if it isn't parked.
func (r *Relay) Discard(ctx context.Context, id int64) error {
	return r.unpark(ctx, "discarding", id, "DELETE FROM sagad_outbox WHERE id = $1 AND parked = 1")
}

func (r *Relay) unpark(ctx context.Context, what string, id int64, query string) error {
	n, err := r.db.exec(ctx, query, id)
	if err != nil {
		return fmt.Errorf("outbox: %s row %d: %w", what, id, err)
	}
	if n == 0 {
		return fmt.Errorf("%w: %d", ErrNotParked, id)
	}
	return nil
}

// Backlog is what stands in the table.
type Backlog struct {
	// Waiting rows are committed and not delivered yet; Parked ones need a person.
	Waiting, Parked int64
	// Oldest is how long ago the oldest waiting row was written. If it grows, no relay delivers.
	Oldest time.Duration
}

// Backlog counts rows. It reads the whole table: ask once a minute rather than each second.
func (r *Relay) Backlog(ctx context.Context) (Backlog, error) {
	var b Backlog
	var oldest int64
	err := r.db.query(ctx, func(scan func(...any) error) error { return scan(&b.Waiting, &b.Parked, &oldest) },
		`SELECT coalesce(sum(1 - parked), 0), coalesce(sum(parked), 0), coalesce(max(CASE WHEN parked = 0 THEN `+r.db.d.now+` - stored_at END), 0) FROM sagad_outbox`)
	b.Oldest = max(0, time.Duration(oldest)*time.Millisecond)
	return b, wrap(err, "counting rows")
}
