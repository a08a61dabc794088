package main

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/sagad/sagad/sdk/saga"
)

func newServices(t *testing.T) *Services {
	t.Helper()
	s, err := openServices(t.Context(), t.TempDir(), []Product{
		{ProductID: 1, Product: "Tee", UnitsInStock: 10}, {ProductID: 2, Product: "Brot", UnitsInStock: 5, Discontinued: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func reserveOnce(ctx context.Context, s *Services, key string, units int64) (Reserved, error) {
	in := ReserveIn{OrderID: "o", Lines: []Line{{ProductID: 1, Quantity: units}}}
	return once(ctx, s, request{key: key, orderID: "o", step: "reserve"}, in, func(tx *sql.Tx) (Reserved, error) {
		id, err := reserve(ctx, tx, in.OrderID, in.Lines)
		return Reserved{ReservationID: id}, err
	})
}

func releaseOnce(ctx context.Context, s *Services, key, actionKey string) error {
	return undo(ctx, s, request{key: key, orderID: "o", step: "reserve"}, actionKey, func(tx *sql.Tx, done Reserved) error {
		return release(ctx, tx, done.ReservationID)
	})
}

func unitsLeft(t *testing.T, s *Services, product int64) int64 {
	t.Helper()
	var n int64
	if err := s.db.QueryRowContext(t.Context(), "SELECT units FROM product WHERE product_id = ?", product).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestARepeatGetsTheStoredResult(t *testing.T) {
	s, ctx := newServices(t), t.Context()
	first, err := reserveOnce(ctx, s, "do", 4)
	if err != nil {
		t.Fatal(err)
	}
	again, err := reserveOnce(ctx, s, "do", 4)
	if err != nil || again != first {
		t.Errorf("the repeat gives %v, %v; want %v", again, err, first)
	}
	if _, err := reserveOnce(ctx, s, "do", 5); err == nil {
		t.Error("the same key with another request was accepted")
	}
	if n := unitsLeft(t, s, 1); n != 6 {
		t.Errorf("%d units left, want 6", n)
	}
	for range 2 {
		if err := releaseOnce(ctx, s, "undo", "do"); err != nil {
			t.Error(err)
		}
	}
	if err := releaseOnce(ctx, s, "undo/2", "do"); err != nil {
		t.Error(err)
	}
	if n := unitsLeft(t, s, 1); n != 10 {
		t.Errorf("%d units left after the undo and its repeats, want 10", n)
	}
	b, err := s.read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if b.calls != 6 || b.effects != 2 || len(b.twice) != 0 {
		t.Errorf("%d calls, %d effects, twice %v; want 6, 2, none", b.calls, b.effects, b.twice)
	}
}

// A copy of a request that was refused must not succeed later, when there is stock again: the saga has been told no.
func TestARefusalStays(t *testing.T) {
	s, ctx := newServices(t), t.Context()
	if _, err := reserveOnce(ctx, s, "much", 8); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := reserveOnce(ctx, s, "more", 3); !rejected(err, "OUT_OF_STOCK") {
			t.Fatalf("%v, want OUT_OF_STOCK", err)
		}
		if err := releaseOnce(ctx, s, "undo", "much"); err != nil {
			t.Fatal(err)
		}
	}
	if err := releaseOnce(ctx, s, "undo more", "more"); !errors.Is(err, saga.NothingToUndo) {
		t.Errorf("the undo of what was refused gives %v, want nothing to undo", err)
	}
	if n := unitsLeft(t, s, 1); n != 10 {
		t.Errorf("%d units left, want 10", n)
	}
}

func TestAnActionAfterItsUndoIsRefused(t *testing.T) {
	s, ctx := newServices(t), t.Context()
	for range 2 {
		if err := releaseOnce(ctx, s, "undo", "do"); !errors.Is(err, saga.NothingToUndo) {
			t.Fatalf("the undo of what never happened gives %v, want nothing to undo", err)
		}
		if _, err := reserveOnce(ctx, s, "do", 4); !rejected(err, "UNDONE_BEFORE") {
			t.Errorf("the late action gives %v, want UNDONE_BEFORE", err)
		}
	}
	if n := unitsLeft(t, s, 1); n != 10 {
		t.Errorf("%d units left, want 10", n)
	}
}

func rejected(err error, code string) bool {
	var r saga.Rejection
	return errors.As(err, &r) && r.Code == code
}
