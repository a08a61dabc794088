package saga_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sagad/sagad/sdk/saga"
)

type (
	Order struct {
		SKU   string `json:"sku"`
		Qty   int    `json:"qty" jsonschema:"minimum=1"`
		Card  string `json:"card"`
		Cents int64  `json:"cents"`
	}
	Receipt struct {
		Tracking string `json:"tracking"`
	}
	ReserveIn struct {
		SKU string `json:"sku"`
		Qty int    `json:"qty"`
	}
	Reserved struct {
		ID string `json:"id"`
	}
	ScoreIn struct {
		Card string `json:"card"`
	}
	Score struct {
		Risk int `json:"risk"`
	}
	ChargeIn struct {
		Card  string `json:"card"`
		Cents int64  `json:"cents"`
	}
	Charged struct {
		ID string `json:"id"`
	}
	ShipIn struct {
		Reservation string `json:"reservation"`
	}
	Shipped struct {
		Tracking string `json:"tracking"`
	}
)

// Contracts are all that the authors of sagas and of workers share.
var (
	ReserveStock = saga.Compensatable[ReserveIn, Reserved]{Name: "inventory.reserve"}
	ScoreRisk    = saga.ReadOnly[ScoreIn, Score]{Name: "risk.score"}
	ManualReview = saga.ReadOnly[ScoreIn, struct{}]{Name: "risk.review"}
	ChargeCard   = saga.Activity[ChargeIn, Charged]{Name: "payments.charge"}
	ShipOrder    = saga.Activity[ShipIn, Shipped]{Name: "shipping.ship"}
)

var PlaceOrder = saga.Define[Order, Receipt]("place-order",
	saga.Deadline(48*time.Hour),
	saga.Do("reserve", ReserveStock, saga.Fields{"sku": "input.sku", "qty": "input.qty"}),
	saga.Read("score", ScoreRisk, saga.Fields{"card": "input.card"}),
	saga.If("score.risk > 80",
		saga.Read("review", ManualReview, saga.Fields{"card": "input.card"}, saga.Timeout(24*time.Hour))),
	saga.Pivot("charge", ChargeCard, saga.Fields{"card": "input.card", "cents": "input.cents"}, saga.Retry{MaxAttempts: 3}),
	saga.Retriable("ship", ShipOrder, saga.Fields{"reservation": "reserve.id"}),
	saga.Return(saga.Fields{"tracking": "ship.tracking"}))

func ExampleDefine() {
	if err := PlaceOrder.Verify(); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(PlaceOrder.Name(), "is fine")
	for _, a := range PlaceOrder.Proto().Activities {
		fmt.Println(a.Name, a.InputSchema)
	}
	// Output:
	// place-order is fine
	// inventory.reserve {"properties":{"qty":{"maximum":9223372036854775807,"minimum":-9223372036854775808,"type":"integer"},"sku":{"type":"string"}},"required":["sku","qty"],"type":"object"}
	// payments.charge {"properties":{"card":{"type":"string"},"cents":{"maximum":9223372036854775807,"minimum":-9223372036854775808,"type":"integer"}},"required":["card","cents"],"type":"object"}
	// risk.review {"properties":{"card":{"type":"string"}},"required":["card"],"type":"object"}
	// risk.score {"properties":{"card":{"type":"string"}},"required":["card"],"type":"object"}
	// shipping.ship {"properties":{"reservation":{"type":"string"}},"required":["reservation"],"type":"object"}
}

// A handler answers with errors that say what happened.
func ExampleReject() {
	charge := func(ctx context.Context, in ChargeIn) (Charged, error) {
		if in.Cents > 1000 {
			return Charged{}, fmt.Errorf("card %s: %w", in.Card, saga.Reject("INSUFFICIENT_FUNDS", "10.00 EUR left"))
		}
		return Charged{ID: "charge-for-" + saga.IdempotencyKey(ctx)}, nil
	}
	ctx := saga.WithCall(context.Background(), &saga.Call{IdempotencyKey: "k1", Attempt: 2})
	fmt.Println(charge(ctx, ChargeIn{Card: "4711", Cents: 900}))
	_, err := charge(ctx, ChargeIn{Card: "4711", Cents: 1001})
	m := saga.MeaningOf(err, false)
	fmt.Println(m.Kind == saga.Rejected, m.Code, m.Message)
	fmt.Println(errors.As(err, new(saga.Rejection)))
	// Output:
	// {charge-for-k1} <nil>
	// true INSUFFICIENT_FUNDS 10.00 EUR left
	// true
}

func ExampleDefinition_Verify() {
	def := saga.Define[Order, any]("careless", saga.Do("reserve", ReserveStock, saga.Fields{"sku": "input.skuu", "qty": "1"}))
	for _, p := range saga.Problems(def.Verify()) {
		fmt.Println(p.Step, p.Field, p.Expression, p.Line, p.Column)
	}
	// Output:
	// reserve input.sku input.skuu 1 7
}
