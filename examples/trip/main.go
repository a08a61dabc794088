// Trip books a journey: a seat for each traveller, whichever of two hotels answers first, a car or else a train, an insurance that is a saga
// of its own; then it waits to be paid, and charges. Whatever isn't needed in the end is given back. Start sagad with `make dev`, then
//
//	go run ./examples/trip                  # two trips: one is paid, one isn't
//	go run ./examples/trip -fail insure     # or seat, hotel, car, charge: what is refused, and what that undoes
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"sync"
	"time"

	"github.com/sagad/sagad/sdk/client"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

type (
	Trip struct {
		City       string   `json:"city"`
		Travellers []string `json:"travellers"`
		Cents      int64    `json:"cents"`
	}
	// Booking is of anything: what, and for whom.
	Booking struct {
		What string `json:"what"`
		For  string `json:"for"`
	}
	Payment struct {
		Card string `json:"card"`
	}
	Charge struct {
		Card  string `json:"card"`
		Cents int64  `json:"cents"`
	}
)

var (
	BookSeat  = saga.Compensatable[Booking, string]{Name: "airline.book"}
	BookHotel = saga.Compensatable[Booking, string]{Name: "hotel.book"}
	BookCar   = saga.Compensatable[Booking, string]{Name: "car.book"}
	BookTrain = saga.Compensatable[Booking, string]{Name: "train.book"}
	Insure    = saga.Compensatable[Booking, string]{Name: "insurance.sign"}
	// ChargeCard can be asked whether it happened, should an answer be lost.
	ChargeCard = saga.Activity[Charge, string]{Name: "card.charge", Probe: true}
	Paid       = saga.Signal[Payment]{Name: "paid"}

	// Insurance is a saga of its own. What it did stays provisional until the trip is settled.
	Insurance = saga.Define[Booking, string]("insurance",
		saga.Do("sign", Insure, saga.Value("input")),
		saga.Return(saga.Value("sign")))

	BookTrip = saga.Define[Trip, string]("trip",
		saga.Deadline(time.Hour),
		// A seat for each traveller, three at a time. If one can't be had, all are given back.
		saga.Map("seats", "input.travellers",
			saga.Window(3),
			saga.Do("seat", BookSeat, saga.Fields{"what": "'seat to ' + input.city", "for": "string(seats.item)"}),
			saga.Output(saga.Value("seat"))),
		// Two hotels are asked. The first one that answers is taken, the other is told to stop, and undone.
		saga.Any("hotel",
			saga.Branch(saga.Do("inn", BookHotel, saga.Fields{"what": "'inn'", "for": "input.city"}), saga.Output(saga.Value("inn"))),
			saga.Branch(saga.Do("palace", BookHotel, saga.Fields{"what": "'palace'", "for": "input.city"}), saga.Output(saga.Value("palace")))),
		// If there is no car, it is as if none had been asked for, and a train is taken.
		saga.Savepoint("ride",
			saga.Body(saga.Do("car", BookCar, saga.Fields{"what": "'car'", "for": "input.city"})),
			saga.Alternative(saga.Do("train", BookTrain, saga.Fields{"what": "'train'", "for": "input.city"}))),
		saga.Child("insurance", Insurance, saga.Fields{"what": "'insurance'", "for": "input.city"}),
		// Nobody is kept waiting for ever: unpaid, all of the above is undone.
		saga.Wait("payment", Paid, saga.Timeout(3*time.Second)),
		saga.Pivot("charge", ChargeCard, saga.Fields{"card": "payment.card", "cents": "input.cents"}),
		saga.Return(saga.Value("string(seats.done) + ' seats, ' + charge")))
)

// world prints what is done, and knows what stands.
type world struct {
	out  io.Writer
	fail string

	mu sync.Mutex
	// stands is by key: a second call under one key changes nothing. closed are keys that were undone first.
	stands map[string]string
	closed map[string]bool
}

func (x *world) book(name string, slow time.Duration) func(context.Context, Booking) (string, error) {
	return func(ctx context.Context, b Booking) (string, error) {
		select {
		case <-time.After(slow):
		case <-ctx.Done(): // told to stop: nothing was done yet
			return "", ctx.Err()
		}
		if x.fail == name {
			fmt.Fprintf(x.out, "  no %s for %s\n", b.What, b.For)
			return "", saga.Reject("NONE_LEFT", "no "+b.What+" for "+b.For)
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		key := saga.IdempotencyKey(ctx)
		if x.closed[key] {
			return "", saga.Reject("UNDONE", "it was undone before it was done")
		}
		if x.stands[key] == "" {
			x.stands[key] = b.What
			fmt.Fprintf(x.out, "  %s for %s\n", b.What, b.For)
		}
		return b.What, nil
	}
}

func (x *world) cancel(ctx context.Context, u saga.Undo[Booking, string]) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	key := saga.ActionKey(ctx)
	x.closed[key] = true
	if x.stands[key] == "" {
		return saga.NothingToUndo
	}
	delete(x.stands, key)
	fmt.Fprintf(x.out, "  %s for %s is given back (%s)\n", u.Input.What, u.Input.For, u.Cause.Code)
	return nil
}

func (x *world) charge(ctx context.Context, c Charge) (string, error) {
	if x.fail == "charge" {
		return "", saga.Reject("REFUSED", "the card is refused")
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stands[saga.IdempotencyKey(ctx)] = "charge"
	return fmt.Sprintf("%d cents charged to %s", c.Cents, c.Card), nil
}

// charged answers the question whether a charge happened.
func (x *world) charged(ctx context.Context, c Charge) (saga.ProbeAnswer[string], error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.stands[saga.ActionKey(ctx)] != "" {
		return saga.Happened(fmt.Sprintf("%d cents charged to %s", c.Cents, c.Card)), nil
	}
	return saga.CantTell[string]("this example doesn't refuse a charge that comes later"), nil
}

func main() {
	fail := flag.String("fail", "", "what is refused: seat, hotel, car, insure or charge")
	prefix := flag.String("id-prefix", fmt.Sprintf("trip-%d-", time.Now().Unix()), "begins the trips' ids")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, env("SAGAD_ADDRESS", "http://127.0.0.1:7230"), env("NATS_URL", "nats://127.0.0.1:4222"), *prefix, *fail); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer, address, nats, prefix, fail string) error {
	x := &world{out: out, fail: fail, stands: map[string]string{}, closed: map[string]bool{}}
	w, err := worker.New(worker.Config{URL: nats})
	if err != nil {
		return err
	}
	worker.Compensatable(w, BookSeat, x.book("seat", 0), x.cancel)
	worker.Compensatable(w, BookHotel, x.book("hotel", 50*time.Millisecond), x.cancel)
	worker.Compensatable(w, BookCar, x.book("car", 0), x.cancel)
	worker.Compensatable(w, BookTrain, x.book("train", 0), x.cancel)
	worker.Compensatable(w, Insure, x.book("insure", 0), x.cancel)
	worker.Activity(w, ChargeCard, x.charge, worker.Probe(x.charged))
	if err := w.Start(ctx); err != nil {
		return err
	}
	defer w.Stop(ctx)

	c, err := client.New(address, client.WithRetryFor(3*time.Second))
	if err != nil {
		return err
	}
	if _, err := client.Register(ctx, c, Insurance); err != nil { // a child saga's definition comes first
		return err
	}
	if _, err := client.Register(ctx, c, BookTrip); err != nil {
		return err
	}
	for _, trip := range []struct {
		city string
		pays bool
	}{{"Rome", true}, {"Oslo", false}} {
		fmt.Fprintf(out, "a trip to %s\n", trip.city)
		saga, err := client.Start(ctx, c, BookTrip, prefix+trip.city, Trip{City: trip.city, Travellers: []string{"Ann", "Bob"}, Cents: 99_000})
		if err != nil {
			return err
		}
		if trip.pays {
			// A signal may come early: it is kept until the saga waits for it.
			if _, err := client.Signal(ctx, saga, Paid, "payment-1", Payment{Card: "4711"}); err != nil && !errors.Is(err, client.ErrNotAllowed) {
				return err // not allowed: the saga unwinds already
			}
		}
		receipt, err := saga.Wait(ctx)
		fmt.Fprintf(out, "%s: %q, %v\n", trip.city, receipt, err)
	}
	return nil
}

func env(name, unset string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return unset
}
