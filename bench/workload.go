package main

import (
	"context"
	"fmt"

	"github.com/sagad/sagad/sdk/client"
	"github.com/sagad/sagad/sdk/saga"
)

// namespace of the benchmark's sagas: the one that clients and workers have unless told otherwise.
const namespace = "default"

// order is the saga's input and every step's, the same as the peer's: about 100 bytes of JSON.
type order struct {
	ID       string `json:"id"`
	Customer string `json:"customer"`
	Item     string `json:"item"`
	Quantity int    `json:"quantity"`
	Cents    int64  `json:"cents"`
}

// receipt is the output of a step.
type receipt struct {
	Order string `json:"order"`
	Step  string `json:"step"`
}

// The contracts of the three activities.
var (
	reserve = saga.Compensatable[order, receipt]{Name: "bench.reserve"}
	charge  = saga.Compensatable[order, receipt]{Name: "bench.charge"}
	ship    = saga.Activity[order, receipt]{Name: "bench.ship"}
)

// definition is the saga: two steps that can be undone, and the pivot.
var definition = saga.Define[order, receipt]("bench3",
	saga.Do("reserve", reserve, whole),
	saga.Do("charge", charge, whole),
	saga.Pivot("ship", ship, whole),
	saga.Return(saga.Value("ship")))

// whole is the order, field by field, as definitions say it.
var whole = saga.Fields{"id": "input.id", "customer": "input.customer", "item": "input.item", "quantity": "input.quantity", "cents": "input.cents"}

// register makes the saga known to the engine.
func register(ctx context.Context, c *client.Client) error {
	_, err := client.Register(ctx, c, definition)
	return err
}

// newOrder is the n-th order. Its id is the saga's too.
func newOrder(n int64) order {
	return order{
		ID: fmt.Sprintf("order-%010d", n), Customer: fmt.Sprintf("customer-%06d", n%1_000_000),
		Item: "blue-teapot-0042", Quantity: 1, Cents: 4_999,
	}
}

// refusalCode is the business no of the third step in the part unwind.
const refusalCode = "OUT_OF_STOCK"
