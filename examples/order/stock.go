package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// The warehouse.

// unitPriceCentsMax bounds a line's unit price, so that no sum of an order overflows.
const unitPriceCentsMax = 100_000_000

// checkStock reads whether an order could ever be fulfilled, and sums its goods. It changes nothing.
func (s *Services) checkStock(ctx context.Context, o CheckIn) (goodsCents int64, err error) {
	if len(o.Lines) == 0 {
		return 0, &refusal{"NO_LINES", "the order has no lines"}
	}
	for _, l := range o.Lines {
		if l.Quantity <= 0 {
			return 0, &refusal{"IMPOSSIBLE_QUANTITY", fmt.Sprintf("%d units of product %d", l.Quantity, l.ProductID)}
		}
		if l.DiscountPercent < 0 || l.DiscountPercent > 100 || l.UnitPriceCents < 0 || l.UnitPriceCents > unitPriceCentsMax {
			return 0, &refusal{"BAD_PRICE", fmt.Sprintf("product %d at %d cents with %d%% off", l.ProductID, l.UnitPriceCents, l.DiscountPercent)}
		}
	}
	if o.FreightCents < 0 || o.FreightCents > unitPriceCentsMax {
		return 0, &refusal{"BAD_PRICE", fmt.Sprintf("freight of up to %d cents", o.FreightCents)}
	}
	wanted := units(o.Lines)
	for _, id := range slices.Sorted(maps.Keys(wanted)) {
		var most int64
		var discontinued bool
		err := s.db.QueryRowContext(ctx, "SELECT initial_units + on_order_units, discontinued FROM product WHERE product_id = ?", id).
			Scan(&most, &discontinued)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return 0, &refusal{"UNKNOWN_PRODUCT", fmt.Sprintf("product %d", id)}
		case err != nil:
			return 0, err
		case discontinued:
			return 0, &refusal{"DISCONTINUED", fmt.Sprintf("product %d isn't sold any more", id)}
		case wanted[id] > most:
			return 0, &refusal{"IMPOSSIBLE_QUANTITY", fmt.Sprintf("%d units of product %d, of which there are never more than %d", wanted[id], id, most)}
		}
	}
	for _, l := range o.Lines {
		goodsCents += l.cents()
	}
	return goodsCents, nil
}

// reserve takes the units of all lines from the stock, or of none.
func reserve(ctx context.Context, tx *sql.Tx, orderID string, lines []Line) (reservation int64, err error) {
	wanted := units(lines)
	products := slices.Sorted(maps.Keys(wanted))
	for _, id := range products {
		var there int64
		if err := tx.QueryRowContext(ctx, "SELECT units FROM product WHERE product_id = ?", id).Scan(&there); err != nil {
			return 0, err
		}
		if there < wanted[id] {
			return 0, &refusal{"OUT_OF_STOCK", fmt.Sprintf("%d units of product %d are wanted, %d are there", wanted[id], id, there)}
		}
	}
	res, err := tx.ExecContext(ctx, "INSERT INTO reservation (order_id, state) VALUES (?, 'held')", orderID)
	if err != nil {
		return 0, err
	}
	if reservation, err = res.LastInsertId(); err != nil {
		return 0, err
	}
	for _, id := range products {
		if _, err := tx.ExecContext(ctx, "UPDATE product SET units = units - ? WHERE product_id = ?", wanted[id], id); err != nil {
			return 0, err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO reservation_line (reservation_id, product_id, units) VALUES (?, ?, ?)",
			reservation, id, wanted[id]); err != nil {
			return 0, err
		}
	}
	return reservation, nil
}

// release puts a reservation's units back.
func release(ctx context.Context, tx *sql.Tx, reservation int64) error {
	if err := moveOn(ctx, tx, "reservation", reservation, "held", "released"); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `UPDATE product SET units = product.units + line.units
		FROM reservation_line AS line WHERE line.reservation_id = ? AND line.product_id = product.product_id`, reservation)
	return err
}

// moveOn changes a row's state, and fails if it isn't in the one that is expected.
func moveOn(ctx context.Context, tx *sql.Tx, table string, id int64, from, to string) error {
	res, err := tx.ExecContext(ctx, "UPDATE "+table+" SET state = ? WHERE id = ? AND state = ?", to, id, from)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return errors.Join(fmt.Errorf("%s %d isn't %s", table, id, from), err)
	}
	return nil
}
