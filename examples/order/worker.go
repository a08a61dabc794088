package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"time"

	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

// work serves the activities until ctx ends.
func work(ctx context.Context, o options, s *Services, stdout, stderr io.Writer) error {
	if err := reachable(ctx, o.nats); err != nil {
		return fmt.Errorf("no NATS server answers at %s. Is sagad running (`make dev`)? Or say with -nats where it is: %w", o.nats, err)
	}
	w, err := worker.New(worker.Config{
		URL: o.nats, Namespace: o.namespace, Concurrency: o.concurrency, AckWait: o.ackWait, Logger: logger(stderr),
		// A handler that hangs on purpose ends soon after its deadline.
		Grace: o.stepTimeout + 2*time.Second,
	})
	if err != nil {
		return err
	}
	h := handlers{s: s, faults: &o.faults}
	worker.ReadOnly(w, CheckOrder, h.check)
	worker.Compensatable(w, ReserveStock, h.reserve, h.release)
	worker.Compensatable(w, AuthorizeCard, h.authorize, h.void)
	worker.ReadOnly(w, QuoteFreight, h.quote)
	worker.Activity(w, CaptureMoney, h.capture)
	worker.Activity(w, ShipOrder, h.ship)
	worker.Activity(w, NotifyCustomer, h.notify)
	fmt.Fprintf(stdout, "serving place-order's activities as process %d\n", os.Getpid())
	return w.Run(ctx)
}

// reachable fails if nobody listens there. Once it runs, the worker waits for a server that is away; at the start that
// would hide a wrong address.
func reachable(ctx context.Context, address string) error {
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return err
	}
	return conn.Close()
}

// handlers are the services as sagad's activities.
type handlers struct {
	s      *Services
	faults *faults
}

func (h handlers) check(ctx context.Context, in CheckIn) (Checked, error) {
	return attempt(ctx, h.faults, in.OrderID, "check", func(ctx context.Context) (Checked, error) {
		cents, err := h.s.checkStock(ctx, in)
		return Checked{GoodsCents: cents}, asAnswer(err)
	})
}

func (h handlers) reserve(ctx context.Context, in ReserveIn) (Reserved, error) {
	return attempt(ctx, h.faults, in.OrderID, "reserve", func(ctx context.Context) (Reserved, error) {
		return once(ctx, h.s, requestOf(ctx, in.OrderID, "reserve"), in, func(tx *sql.Tx) (Reserved, error) {
			id, err := reserve(ctx, tx, in.OrderID, in.Lines)
			return Reserved{ReservationID: id}, err
		})
	})
}

func (h handlers) release(ctx context.Context, u saga.Undo[ReserveIn, Reserved]) error {
	return undoing(ctx, h, "reserve", u.Input.OrderID, u.ActionKey, func(tx *sql.Tx, done Reserved) error {
		return release(ctx, tx, done.ReservationID)
	})
}

func (h handlers) authorize(ctx context.Context, in AuthorizeIn) (Authorized, error) {
	return attempt(ctx, h.faults, in.OrderID, "authorize", func(ctx context.Context) (Authorized, error) {
		return once(ctx, h.s, requestOf(ctx, in.OrderID, "authorize"), in, func(tx *sql.Tx) (Authorized, error) {
			card := in.Card
			if h.faults.rejects(in.OrderID) {
				card = declinedCard
			}
			id, err := authorize(ctx, tx, in.OrderID, card, in.Cents)
			return Authorized{HoldID: id}, err
		})
	})
}

func (h handlers) void(ctx context.Context, u saga.Undo[AuthorizeIn, Authorized]) error {
	return undoing(ctx, h, "authorize", u.Input.OrderID, u.ActionKey, func(tx *sql.Tx, done Authorized) error {
		return void(ctx, tx, done.HoldID)
	})
}

func (h handlers) quote(ctx context.Context, in QuoteIn) (Quoted, error) {
	return attempt(ctx, h.faults, in.OrderID, "quote", func(context.Context) (Quoted, error) {
		return Quoted{FreightCents: quoteFreight(in.Lines, in.FreightCents)}, nil
	})
}

func (h handlers) capture(ctx context.Context, in CaptureIn) (Captured, error) {
	return attempt(ctx, h.faults, in.OrderID, "capture", func(ctx context.Context) (Captured, error) {
		return once(ctx, h.s, requestOf(ctx, in.OrderID, "capture"), in, func(tx *sql.Tx) (Captured, error) {
			id, err := capture(ctx, tx, in.OrderID, in.HoldID, in.Cents)
			return Captured{CaptureID: id}, err
		})
	})
}

func (h handlers) ship(ctx context.Context, in ShipIn) (Shipped, error) {
	return attempt(ctx, h.faults, in.OrderID, "ship", func(ctx context.Context) (Shipped, error) {
		return once(ctx, h.s, requestOf(ctx, in.OrderID, "ship"), in, func(tx *sql.Tx) (Shipped, error) {
			id, err := ship(ctx, tx, in.OrderID, in.ReservationID, in.City)
			return Shipped{ShipmentID: id}, err
		})
	})
}

func (h handlers) notify(ctx context.Context, in NotifyIn) (Notified, error) {
	return attempt(ctx, h.faults, in.OrderID, "notify", func(ctx context.Context) (Notified, error) {
		return once(ctx, h.s, requestOf(ctx, in.OrderID, "notify"), in, func(tx *sql.Tx) (Notified, error) {
			text := fmt.Sprintf("your order %s over %s is on its way as shipment %d", in.OrderID, euros(in.Cents), in.ShipmentID)
			id, err := notify(ctx, tx, in.OrderID, in.CustomerID, text)
			return Notified{NotificationID: id}, err
		})
	})
}

func requestOf(ctx context.Context, orderID, step string) request {
	return request{key: saga.IdempotencyKey(ctx), orderID: orderID, step: step}
}

// undoing runs a compensation.
func undoing[Out any](ctx context.Context, h handlers, step, orderID, actionKey string, reverse func(tx *sql.Tx, done Out) error) error {
	if h.faults.breakUndo == step {
		return fmt.Errorf("undo %s: broken: %w", step, errInjected)
	}
	_, err := attempt(ctx, h.faults, orderID, "undo "+step, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, undo(ctx, h.s, requestOf(ctx, orderID, step), actionKey, reverse)
	})
	return err
}
