package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"connectrpc.com/connect/v2/connectinprocess"

	"github.com/sagad/sagad/sdk/client"
	"github.com/sagad/sagad/sdk/outbox"
)

func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	c, db, end, err := setUpExample(ctx) // a client, and a database with the table of outbox.SQLiteTable and one of orders
	if err != nil {
		fmt.Println(err)
		return
	}
	defer end()

	place := func(id string, commit bool) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id) VALUES ($1)", id); err != nil {
			return err
		}
		if err := outbox.Start(ctx, outbox.SQLite(tx), placeOrder, id, order{Item: "tea", Qty: 2}); err != nil {
			return err
		}
		if !commit {
			return nil // rolled back
		}
		return tx.Commit()
	}
	fmt.Println("order-41:", place("order-41", false))
	fmt.Println("order-42:", place("order-42", true))

	relay := outbox.NewRelay(c, outbox.SQLiteDB(db), outbox.Config{})
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	for {
		b, err := relay.Backlog(ctx)
		if err != nil {
			fmt.Println(err)
			return
		}
		if b.Waiting == 0 {
			break
		}
	}
	for _, id := range []string{"order-41", "order-42"} {
		s, err := client.Attach(c, placeOrder, id).Get(ctx)
		if errors.Is(err, client.ErrNotFound) {
			fmt.Println(id, "has no saga")
			continue
		}
		fmt.Println(id, s.GetSummary().GetStatus(), err)
	}
	stop()
	fmt.Println("relay:", <-ended)
	// Output:
	// order-41: <nil>
	// order-42: <nil>
	// order-41 has no saga
	// order-42 SAGA_STATUS_RUNNING <nil>
	// relay: <nil>
}

func setUpExample(ctx context.Context) (c *client.Client, db *sql.DB, end func(), err error) {
	n, err := newNode()
	if err != nil {
		return nil, nil, nil, err
	}
	end = func() { _ = n.stop() }
	if c, err = client.New("", client.WithTransport(connectinprocess.New(n.rpc))); err != nil {
		return nil, nil, end, err
	}
	if _, err = client.Register(ctx, c, placeOrder); err != nil {
		return nil, nil, end, err
	}
	if db, err = sql.Open("sqlite", ":memory:"); err != nil {
		return nil, nil, end, err
	}
	db.SetMaxOpenConns(1)
	for _, table := range []string{"CREATE TABLE orders (id TEXT PRIMARY KEY)", outbox.SQLiteTable} {
		if _, err = db.Exec(table); err != nil {
			return nil, nil, end, err
		}
	}
	return c, db, end, nil
}
