package worker_test

import (
	"context"
	"fmt"

	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

type (
	ReserveIn struct {
		SKU string `json:"sku"`
		Qty int    `json:"qty"`
	}
	Reserved struct {
		ID string `json:"id"`
	}
)

var ReserveStock = saga.Compensatable[ReserveIn, Reserved]{Name: "inventory.reserve"}

func reserveStock(ctx context.Context, in ReserveIn) (Reserved, error) {
	if in.Qty > 10 {
		return Reserved{}, saga.Reject("OUT_OF_STOCK", "10 left")
	}
	return Reserved{ID: "reservation for " + saga.IdempotencyKey(ctx)}, nil
}

// The compensation finds the reservation by the action's key, whether or not the action's output is known.
func releaseStock(ctx context.Context, u saga.Undo[ReserveIn, Reserved]) error {
	if u.Output == nil {
		return saga.NothingToUndo
	}
	return nil
}

// The pair is checked against the contract by the compiler. Run serves until its context ends.
func ExampleCompensatable() {
	w, err := worker.New(worker.Config{URL: "nats://127.0.0.1:4222", Namespace: "shop", Concurrency: 32})
	if err != nil {
		fmt.Println(err)
		return
	}
	worker.Compensatable(w, ReserveStock, reserveStock, releaseStock)
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // a real one ends on a signal
	fmt.Println(w.Run(ctx))
	// Output:
	// context canceled
}

func ExampleNew() {
	_, err := worker.New(worker.Config{URL: "nats://127.0.0.1:4222", Namespace: "My Shop"})
	fmt.Println(err)
	// Output:
	// worker: namespace "My Shop": not a legal name: write lower-case letters, digits, '-' and '_', starting with a letter or digit, 1 to 63 characters
}
