// Hello is a first saga: a seat is reserved, then a card charged. If the charge is refused, the seat is given back. Start
// sagad with `make dev`, then run it. What it registers stands in book-trip.yaml too, as data.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/sagad/sagad/sdk/client"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

type Trip struct {
	Seat  string `json:"seat"`
	Cents int64  `json:"cents"`
}

var (
	ReserveSeat = saga.Compensatable[Trip, string]{Name: "seat.reserve"}
	ChargeCard  = saga.Activity[Trip, string]{Name: "card.charge"}

	BookTrip = saga.Define[Trip, string]("book-trip",
		saga.Do("reserve", ReserveSeat, saga.Value("input")), // undone if a later step fails
		saga.Pivot("charge", ChargeCard, saga.Value("input")),
		saga.Return(saga.Value("reserve + ', ' + charge")))
)

func reserve(ctx context.Context, t Trip) (string, error) {
	fmt.Println("reserve", t.Seat, "under", saga.IdempotencyKey(ctx))
	return "seat " + t.Seat, nil
}

func release(ctx context.Context, u saga.Undo[Trip, string]) error {
	fmt.Println("release", u.Input.Seat, "because of", u.Cause.Code)
	return nil
}

func charge(ctx context.Context, t Trip) (string, error) {
	if t.Cents > 100_000 {
		return "", saga.Reject("LIMIT", "the card's limit is 1000.00")
	}
	return fmt.Sprintf("%d cents charged", t.Cents), nil
}

func main() {
	if err := run(context.Background(), env("SAGAD_ADDRESS", "http://127.0.0.1:7230"), env("NATS_URL", "nats://127.0.0.1:4222")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, address, nats string) error {
	w, err := worker.New(worker.Config{URL: nats})
	if err != nil {
		return err
	}
	worker.Compensatable(w, ReserveSeat, reserve, release)
	worker.Activity(w, ChargeCard, charge)
	if err := w.Start(ctx); err != nil {
		return err
	}
	defer w.Stop(ctx)

	// Whoever tries this shouldn't wait long for a sagad that isn't there.
	c, err := client.New(address, client.WithRetryFor(3*time.Second))
	if err != nil {
		return err
	}
	if _, err := client.Register(ctx, c, BookTrip); err != nil {
		return err
	}
	for _, trip := range []Trip{{"12A", 9_900}, {"12B", 1_000_000}} {
		run, err := client.Start(ctx, c, BookTrip, "trip-"+trip.Seat, trip)
		if err != nil {
			return err
		}
		ticket, err := run.Wait(ctx)
		fmt.Printf("%s: %q, %v\n", run.ID(), ticket, err)
	}
	return nil
}

func env(name, unset string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return unset
}
