package main

import (
	"context"
	"database/sql"
)

// The carrier.

// The tariff, in cents.
const (
	freightBaseCents = 450
	freightUnitCents = 35
)

// quoteFreight is what the shipment costs: by the tariff, but never more than the customer agreed to.
func quoteFreight(lines []Line, agreedCents int64) int64 {
	cents := int64(freightBaseCents)
	for _, l := range lines {
		cents += freightUnitCents * l.Quantity
	}
	return min(cents, agreedCents)
}

// ship hands reserved units to the carrier.
func ship(ctx context.Context, tx *sql.Tx, orderID string, reservation int64, city string) (shipment int64, err error) {
	if err := moveOn(ctx, tx, "reservation", reservation, "held", "shipped"); err != nil {
		return 0, err
	}
	res, err := tx.ExecContext(ctx, "INSERT INTO shipment (order_id, reservation_id, city) VALUES (?, ?, ?)", orderID, reservation, city)
	if err != nil {
		return 0, err
	}
	return res.LastInsertId()
}
