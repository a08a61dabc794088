package barrier_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/sagad/sagad/sdk/barrier"
	"github.com/sagad/sagad/sdk/saga"
)

type (
	ReserveIn struct {
		SKU string `json:"sku"`
		Qty int    `json:"qty"`
	}
	Reserved struct {
		ReservationID int64 `json:"reservation_id"`
	}
	Stock struct{ db *sql.DB }
)

// Reserve is the action's handler.
func (s *Stock) Reserve(ctx context.Context, in ReserveIn) (Reserved, error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return Reserved{}, err
	}
	defer func() { _ = tx.Rollback() }()
	answer, err := barrier.Do(ctx, barrier.SQLite(tx), in, func() (Reserved, error) {
		res, err := tx.ExecContext(ctx, "INSERT INTO reservation (sku, qty) VALUES ($1, $2)", in.SKU, in.Qty)
		if err != nil {
			return Reserved{}, err
		}
		id, err := res.LastInsertId()
		return Reserved{ReservationID: id}, err
	})
	if err != nil {
		return Reserved{}, err
	}
	return answer.After(tx.Commit())
}

// Release is the compensation's handler. It doesn't need the engine to know the reservation.
func (s *Stock) Release(ctx context.Context, _ saga.Undo[ReserveIn, Reserved]) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	answer, err := barrier.Undo(ctx, barrier.SQLite(tx), func(done Reserved) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM reservation WHERE id = $1", done.ReservationID)
		return err
	})
	if err != nil {
		return err
	}
	return answer.After(tx.Commit())
}

func Example() {
	stock, err := openStock()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = stock.db.Close() }()
	// The worker makes these contexts.
	action := func(run string, attempt int) context.Context {
		return saga.WithCall(context.Background(), &saga.Call{Attempt: attempt, IdempotencyKey: run + "/reserve/-/do/1"})
	}
	compensation := func(run string) context.Context {
		return saga.WithCall(context.Background(), &saga.Call{
			Attempt: 1, Undo: true, IdempotencyKey: run + "/reserve/-/undo/1", ActionKey: run + "/reserve/-/do/1",
		})
	}

	in := ReserveIn{SKU: "tea", Qty: 2}
	for attempt := 1; attempt <= 2; attempt++ { // the first one's answer is lost
		got, err := stock.Reserve(action("run-1", attempt), in)
		fmt.Println("reserved:", got.ReservationID, err)
	}
	fmt.Println("released:", stock.Release(compensation("run-1"), saga.Undo[ReserveIn, Reserved]{Input: in}))

	// The compensation of another saga overtakes its action.
	fmt.Println("released:", stock.Release(compensation("run-2"), saga.Undo[ReserveIn, Reserved]{Input: in}))
	_, err = stock.Reserve(action("run-2", 1), in)
	fmt.Println("too late:", err)
	// Output:
	// reserved: 1 <nil>
	// reserved: 1 <nil>
	// released: <nil>
	// released: nothing to undo
	// too late: ALREADY_COMPENSATED: the compensation of this action, or a probe that didn't find it, came before it, so it isn't done any more
}

func openStock() (*Stock, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	for _, table := range []string{"CREATE TABLE reservation (id INTEGER PRIMARY KEY, sku TEXT, qty INTEGER)", barrier.SQLiteTable} {
		if _, err := db.Exec(table); err != nil {
			return nil, err
		}
	}
	return &Stock{db}, nil
}
