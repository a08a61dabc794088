package main

import (
	"context"
	"database/sql"
)

// book is what the services' database says, read at one moment.
type book struct {
	products []bookProduct
	orders   map[string]*bookOrder
	// twice are keys under which an effect was done more than once.
	twice []bookKey
	// calls and effects in all.
	calls, effects int64
}

type bookProduct struct {
	id                          int64
	name                        string
	initial, now, shipped, held int64
}

type bookKey struct {
	key   string
	times int64
}

// bookOrder is what stands for an order.
type bookOrder struct {
	held, shipped            map[int64]int64 // units by product
	holdsOpen, heldCents     int64
	captures, capturedCents  int64
	shipments, notifications int64
	does, undoes             map[string]int64 // effects by step
}

// read takes everything down in one transaction.
func (s *Services) read(ctx context.Context) (*book, error) {
	b := &book{orders: map[string]*bookOrder{}}
	err := s.write(ctx, func(tx *sql.Tx) error { // immediate, so that nothing changes between the queries
		*b = book{orders: map[string]*bookOrder{}}
		products := map[int64]int{}
		var p bookProduct
		if err := rows(ctx, tx, "SELECT product_id, product, initial_units, units FROM product ORDER BY product_id",
			[]any{&p.id, &p.name, &p.initial, &p.now}, func() {
				products[p.id] = len(b.products)
				b.products = append(b.products, p)
			}); err != nil {
			return err
		}
		var order, text string
		var id, n, m int64
		if err := rows(ctx, tx, `SELECT r.order_id, r.state, l.product_id, l.units FROM reservation r JOIN reservation_line l ON l.reservation_id = r.id
			WHERE r.state <> 'released'`, []any{&order, &text, &id, &n}, func() {
			p, o := &b.products[products[id]], b.order(order)
			if text == "held" {
				p.held += n
				o.held[id] += n
			} else {
				p.shipped += n
				o.shipped[id] += n
			}
		}); err != nil {
			return err
		}
		if err := rows(ctx, tx, "SELECT order_id, count(*), sum(cents) FROM hold WHERE state = 'open' GROUP BY 1", []any{&order, &n, &m},
			func() { o := b.order(order); o.holdsOpen, o.heldCents = n, m }); err != nil {
			return err
		}
		if err := rows(ctx, tx, "SELECT order_id, count(*), sum(cents) FROM capture GROUP BY 1", []any{&order, &n, &m},
			func() { o := b.order(order); o.captures, o.capturedCents = n, m }); err != nil {
			return err
		}
		if err := rows(ctx, tx, "SELECT order_id, count(*) FROM shipment GROUP BY 1", []any{&order, &n},
			func() { b.order(order).shipments = n }); err != nil {
			return err
		}
		if err := rows(ctx, tx, "SELECT order_id, count(*) FROM notification GROUP BY 1", []any{&order, &n},
			func() { b.order(order).notifications = n }); err != nil {
			return err
		}
		var step, direction string
		if err := rows(ctx, tx, "SELECT order_id, step, direction, count(*) FROM effect GROUP BY 1, 2, 3", []any{&order, &step, &direction, &n}, func() {
			if direction == "do" {
				b.order(order).does[step] += n
			} else {
				b.order(order).undoes[step] += n
			}
			b.effects += n
		}); err != nil {
			return err
		}
		if err := rows(ctx, tx, "SELECT key, count(*) FROM effect GROUP BY 1 HAVING count(*) > 1", []any{&text, &n},
			func() { b.twice = append(b.twice, bookKey{text, n}) }); err != nil {
			return err
		}
		if err := rows(ctx, tx, "SELECT DISTINCT order_id FROM request", []any{&order}, func() { b.order(order) }); err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, "SELECT coalesce(sum(calls), 0) FROM call").Scan(&b.calls)
	})
	return b, err
}

func (b *book) order(id string) *bookOrder {
	o := b.orders[id]
	if o == nil {
		o = &bookOrder{held: map[int64]int64{}, shipped: map[int64]int64{}, does: map[string]int64{}, undoes: map[string]int64{}}
		b.orders[id] = o
	}
	return o
}

// rows runs a query and calls each after every row was scanned into into.
func rows(ctx context.Context, tx *sql.Tx, query string, into []any, each func()) error {
	r, err := tx.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	for r.Next() {
		if err := r.Scan(into...); err != nil {
			return err
		}
		each()
	}
	return r.Err()
}
