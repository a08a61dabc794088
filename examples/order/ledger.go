package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// The ledger: money is first held on a card, then captured.

// declinedCard is a card that is always refused.
const declinedCard = "card-declined"

// authorize holds money.
func authorize(ctx context.Context, tx *sql.Tx, orderID, card string, cents int64) (hold int64, err error) {
	if card == declinedCard {
		return 0, &refusal{"CARD_DECLINED", "the card's bank said no"}
	}
	res, err := tx.ExecContext(ctx, "INSERT INTO hold (order_id, cents, state) VALUES (?, ?, 'open')", orderID, cents)
	if err != nil {
		return 0, err
	}
	return res.LastInsertId()
}

// void lets held money go.
func void(ctx context.Context, tx *sql.Tx, hold int64) error {
	return moveOn(ctx, tx, "hold", hold, "open", "void")
}

// capture takes held money; what it leaves of the hold is let go.
func capture(ctx context.Context, tx *sql.Tx, orderID string, hold, cents int64) (capture int64, err error) {
	var held int64
	err = tx.QueryRowContext(ctx, "SELECT cents FROM hold WHERE id = ? AND order_id = ? AND state = 'open'", hold, orderID).Scan(&held)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, &refusal{"NO_HOLD", fmt.Sprintf("no money is held as %d", hold)}
	}
	if err != nil {
		return 0, err
	}
	if cents > held {
		return 0, &refusal{"ABOVE_HOLD", fmt.Sprintf("%d cents are more than the %d held", cents, held)}
	}
	if err := moveOn(ctx, tx, "hold", hold, "open", "captured"); err != nil {
		return 0, err
	}
	res, err := tx.ExecContext(ctx, "INSERT INTO capture (order_id, hold_id, cents) VALUES (?, ?, ?)", orderID, hold, cents)
	if err != nil {
		return 0, err
	}
	return res.LastInsertId()
}
