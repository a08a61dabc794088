package sagatest_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/sagad/sagad/sagatest"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

// The saga that is tested: a seat is booked, then paid for.
type (
	Trip   struct{ Seat string }
	Booked struct{ Number int }
)

var (
	Book = saga.Compensatable[Trip, Booked]{Name: "seat.book"}
	Pay  = saga.Activity[Trip, struct{}]{Name: "seat.pay"}

	BuySeat = saga.Define[Trip, Booked]("buy-seat",
		saga.Do("book", Book, saga.Value("input")),
		saga.Pivot("pay", Pay, saga.Value("input")),
		saga.Return(saga.Value("book")))
)

// Theatre is the service, here a fake of it: what is there in the end is what the test looks at.
type Theatre struct {
	mu       sync.Mutex
	booked   map[string]Booked // by the action's key
	gone     map[string]bool   // keys that were undone
	payments map[string]bool
}

func NewTheatre() *Theatre {
	return &Theatre{booked: map[string]Booked{}, gone: map[string]bool{}, payments: map[string]bool{}}
}

func (th *Theatre) Book(ctx context.Context, _ Trip) (Booked, error) {
	th.mu.Lock()
	defer th.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return Booked{}, err
	}
	key := saga.IdempotencyKey(ctx)
	if th.gone[key] {
		return Booked{}, saga.Reject("UNDONE", "its undo came first")
	}
	th.booked[key] = Booked{Number: 12}
	return th.booked[key], nil
}

func (th *Theatre) Unbook(ctx context.Context, u saga.Undo[Trip, Booked]) error {
	th.mu.Lock()
	defer th.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	th.gone[u.ActionKey] = true // an action that comes later finds it
	delete(th.booked, u.ActionKey)
	return nil
}

func (th *Theatre) Pay(ctx context.Context, _ Trip) (struct{}, error) {
	th.mu.Lock()
	defer th.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return struct{}{}, err
	}
	th.payments[saga.IdempotencyKey(ctx)] = true
	return struct{}{}, nil
}

// Register is what the worker in production calls too.
func (th *Theatre) Register(w *worker.Worker) {
	worker.Compensatable(w, Book, th.Book, th.Unbook)
	worker.Activity(w, Pay, th.Pay)
}

// world is a new theatre for each run, and the check of it.
func world(testing.TB) (func(*worker.Worker), func(testing.TB, *sagatest.Saga)) {
	th := NewTheatre()
	return th.Register, func(t testing.TB, s *sagatest.Saga) {
		want := 0
		if s.Status == sagatest.Completed {
			want = 1
		}
		if len(th.booked) != want || len(th.payments) != want {
			t.Errorf("%d bookings and %d payments, want %d", len(th.booked), len(th.payments), want)
		}
	}
}

// t is the test's.
var t testing.TB = exampleTB{}

func ExampleRun() {
	s := sagatest.Run(t, BuySeat, Trip{Seat: "A1"}, NewTheatre().Register, sagatest.Fail("pay", sagatest.Rejected("NO_MONEY")))
	fmt.Println(s.Status, s.Cause.Code, s.Effect("book"))
	for _, e := range s.History {
		fmt.Println(e.Text)
	}
	// Output:
	// COMPENSATED NO_MONEY undone
	// buy-seat version 1 started.
	// Attempt 1 of book was sent; it has until 2026-01-01 00:00:30.000Z.
	// Attempt 1 of book succeeded.
	// Attempt 1 of pay was sent; it has until 2026-01-01 00:00:30.000Z.
	// attempt 1 of pay: it is answered with a business no, and nothing was done
	// Attempt 1 of pay was rejected: NO_MONEY: injected by the test.
	// The saga turned back: pay was rejected on attempt 1: NO_MONEY: injected by the test.
	// Attempt 1 of the compensation of book was sent; it has until 2026-01-01 00:00:30.000Z.
	// Attempt 1 of the compensation of book succeeded.
	// The saga is compensated: nothing of it stands.
}

func ExampleUnwind() {
	sagatest.Unwind(t, BuySeat, Trip{Seat: "A1"}, world)
	fmt.Println("nothing found")
	// Output: nothing found
}

func ExampleRepeat() {
	sagatest.Repeat(t, BuySeat, Trip{Seat: "A1"}, world)
	sagatest.Repeat(t, BuySeat, Trip{Seat: "A1"}, world, sagatest.Concurrently())
	fmt.Println("nothing found")
	// Output: nothing found
}

func ExampleSteady() {
	sagatest.Steady(t, func() *saga.Definition[Trip, Booked] {
		return saga.Define[Trip, Booked]("buy-seat",
			saga.Do("book", Book, saga.Value("input")),
			saga.Pivot("pay", Pay, saga.Value("input")),
			saga.Return(saga.Value("book")))
	})
	fmt.Println("the same each time")
	// Output: the same each time
}

// exampleTB is what an example has of a test.
type exampleTB struct{ testing.TB }

func (exampleTB) Helper()                           {}
func (exampleTB) Logf(string, ...any)               {}
func (exampleTB) Errorf(format string, args ...any) { fmt.Printf(format+"\n", args...) }
func (exampleTB) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (exampleTB) Context() context.Context          { return context.Background() }
