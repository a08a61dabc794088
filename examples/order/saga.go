package main

import (
	"time"

	"github.com/sagad/sagad/sdk/saga"
)

// The contracts that the saga's author and the services' authors share. The type says what undoing means.
var (
	CheckOrder     = saga.ReadOnly[CheckIn, Checked]{Name: "order.check"}
	ReserveStock   = saga.Compensatable[ReserveIn, Reserved]{Name: "stock.reserve"}
	AuthorizeCard  = saga.Compensatable[AuthorizeIn, Authorized]{Name: "payment.authorize"}
	QuoteFreight   = saga.ReadOnly[QuoteIn, Quoted]{Name: "freight.quote"}
	CaptureMoney   = saga.Activity[CaptureIn, Captured]{Name: "payment.capture"}
	ShipOrder      = saga.Activity[ShipIn, Shipped]{Name: "shipment.ship"}
	NotifyCustomer = saga.Activity[NotifyIn, Notified]{Name: "customer.notify"}
)

// Receipt is what the saga returns.
type Receipt struct {
	ShipmentID int64 `json:"shipment_id"`
	TotalCents int64 `json:"total_cents"`
}

// What the activities take and give.
type (
	CheckIn struct {
		OrderID      string `json:"order_id"`
		FreightCents int64  `json:"freight_cents"`
		Lines        []Line `json:"lines"`
	}
	Checked struct {
		GoodsCents int64 `json:"goods_cents"`
	}

	ReserveIn struct {
		OrderID string `json:"order_id"`
		Lines   []Line `json:"lines"`
	}
	Reserved struct {
		ReservationID int64 `json:"reservation_id"`
	}

	AuthorizeIn struct {
		OrderID string `json:"order_id"`
		Card    string `json:"card"`
		Cents   int64  `json:"cents"`
	}
	Authorized struct {
		HoldID int64 `json:"hold_id"`
	}

	QuoteIn struct {
		OrderID      string `json:"order_id"`
		FreightCents int64  `json:"freight_cents"`
		Lines        []Line `json:"lines"`
	}
	Quoted struct {
		FreightCents int64 `json:"freight_cents"`
	}

	CaptureIn struct {
		OrderID string `json:"order_id"`
		HoldID  int64  `json:"hold_id"`
		Cents   int64  `json:"cents"`
	}
	Captured struct {
		CaptureID int64 `json:"capture_id"`
	}

	ShipIn struct {
		OrderID       string `json:"order_id"`
		ReservationID int64  `json:"reservation_id"`
		City          string `json:"city"`
	}
	Shipped struct {
		ShipmentID int64 `json:"shipment_id"`
	}

	NotifyIn struct {
		OrderID    string `json:"order_id"`
		CustomerID string `json:"customer_id"`
		ShipmentID int64  `json:"shipment_id"`
		Cents      int64  `json:"cents"`
	}
	Notified struct {
		NotificationID int64 `json:"notification_id"`
	}
)

// placeOrder is the saga, from top to bottom. The times are parameters so that tests can be quick; other times are
// another version of the definition.
func placeOrder(stepTimeout, retryInitial time.Duration) *saga.Definition[Order, Receipt] {
	timeout := saga.Timeout(stepTimeout)
	retry := saga.Retry{Initial: retryInitial, Max: 50 * retryInitial}
	// The pivot isn't repeated or unwound on a guess: out of attempts, it waits for a person. So it gets more of them.
	patient := saga.Retry{Initial: retryInitial, Max: 50 * retryInitial, MaxAttempts: 10}
	// The most that the order can cost is held at first; what is taken is known when the freight is.
	return saga.Define[Order, Receipt]("place-order",
		saga.Read("check", CheckOrder, saga.Fields{
			"order_id": "input.id", "freight_cents": "input.freight_cents", "lines": "input.lines"}, timeout, retry),
		saga.Do("reserve", ReserveStock, saga.Fields{
			"order_id": "input.id", "lines": "input.lines"}, timeout, retry, saga.Compensation(timeout, patient)),
		saga.Parallel(saga.Name("pay_and_quote"),
			saga.Do("authorize", AuthorizeCard, saga.Fields{
				"order_id": "input.id", "card": "input.card", "cents": "check.goods_cents + input.freight_cents"}, timeout, retry, saga.Compensation(timeout, patient)),
			saga.Read("quote", QuoteFreight, saga.Fields{
				"order_id": "input.id", "freight_cents": "input.freight_cents", "lines": "input.lines"}, timeout, retry)),
		saga.Pivot("capture", CaptureMoney, saga.Fields{
			"order_id": "input.id", "hold_id": "authorize.hold_id", "cents": "check.goods_cents + quote.freight_cents"}, timeout, patient),
		saga.Retriable("ship", ShipOrder, saga.Fields{
			"order_id": "input.id", "reservation_id": "reserve.reservation_id", "city": "input.ship_to.city"}, timeout, patient),
		saga.Retriable("notify", NotifyCustomer, saga.Fields{
			"order_id": "input.id", "customer_id": "input.customer_id", "shipment_id": "ship.shipment_id",
			"cents": "check.goods_cents + quote.freight_cents"}, timeout, patient),
		saga.Return(saga.Fields{"shipment_id": "ship.shipment_id", "total_cents": "check.goods_cents + quote.freight_cents"}))
}
