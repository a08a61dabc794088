package sagatest_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/sagad/sagad/sagatest"
	"github.com/sagad/sagad/sdk/barrier"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

// stock is a service with a database of its own, whose handlers stand behind the barrier.
type stock struct{ db *sql.DB }

func newStock(t testing.TB) *stock {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	if _, err := db.Exec(barrier.SQLiteTable + "; CREATE TABLE reservation (id INTEGER PRIMARY KEY, sku TEXT, qty INTEGER); CREATE TABLE parcel (sku TEXT)"); err != nil {
		t.Fatal(err)
	}
	return &stock{db}
}

func (s *stock) reserve(ctx context.Context, in itemIn) (refOut, error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return refOut{}, err
	}
	defer func() { _ = tx.Rollback() }()
	answer, err := barrier.Do(ctx, barrier.SQLite(tx), in, func() (refOut, error) {
		_, err := tx.ExecContext(ctx, "INSERT INTO reservation (sku, qty) VALUES ($1, $2)", in.SKU, in.Qty)
		return refOut{in.SKU}, err
	})
	if err != nil {
		return refOut{}, err
	}
	return answer.After(tx.Commit())
}

func (s *stock) release(ctx context.Context, u saga.Undo[itemIn, refOut]) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	answer, err := barrier.Undo(ctx, barrier.SQLite(tx), func(done refOut) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM reservation WHERE sku = $1", done.Ref)
		return err
	})
	if err != nil {
		return err
	}
	return answer.After(tx.Commit())
}

func (s *stock) send(ctx context.Context, in itemIn) (none, error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return none{}, err
	}
	defer func() { _ = tx.Rollback() }()
	answer, err := barrier.Do(ctx, barrier.SQLite(tx), in, func() (none, error) {
		_, err := tx.ExecContext(ctx, "INSERT INTO parcel (sku) VALUES ($1)", in.SKU)
		return none{}, err
	})
	if err != nil {
		return none{}, err
	}
	return answer.After(tx.Commit())
}

func (s *stock) check(t testing.TB, end *sagatest.Saga) {
	var reservations, parcels int
	err := s.db.QueryRow("SELECT count(*) FROM reservation").Scan(&reservations)
	if err = errors.Join(err, s.db.QueryRow("SELECT count(*) FROM parcel").Scan(&parcels)); err != nil {
		t.Fatal(err)
	}
	want := map[bool]int{true: 1}[end.Status == sagatest.Completed]
	if reservations != want || parcels != want {
		t.Errorf("%d reservations and %d parcels, want %d", reservations, parcels, want)
	}
}

// TestBarrier: handlers behind the barrier, over a real database, are right whatever happens.
func TestBarrier(t *testing.T) {
	send := saga.Activity[itemIn, none]{Name: "parcel.send"}
	def := saga.Define[itemIn, any]("sample-parcel",
		saga.Do("reserve", reserveStock, saga.Value("input")),
		saga.Pivot("send", send, saga.Value("input")))
	world := func(t testing.TB) (func(*worker.Worker), func(testing.TB, *sagatest.Saga)) {
		s := newStock(t)
		return func(w *worker.Worker) {
			worker.Compensatable(w, reserveStock, s.reserve, s.release)
			worker.Activity(w, send, s.send)
		}, s.check
	}
	sagatest.Unwind(t, def, itemIn{"tea", 2}, world)
	sagatest.Repeat(t, def, itemIn{"tea", 2}, world, sagatest.Concurrently())
}
