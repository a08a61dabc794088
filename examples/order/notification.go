package main

import (
	"context"
	"database/sql"
)

// notify tells the customer.
func notify(ctx context.Context, tx *sql.Tx, orderID, customerID, text string) (notification int64, err error) {
	res, err := tx.ExecContext(ctx, "INSERT INTO notification (order_id, customer_id, text) VALUES (?, ?, ?)", orderID, customerID, text)
	if err != nil {
		return 0, err
	}
	return res.LastInsertId()
}
