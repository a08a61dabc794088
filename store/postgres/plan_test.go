package postgres

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/sagad/sagad/internal/pgtest"
	"github.com/sagad/sagad/store"
)

// TestPlansOfSmallTables: a plan that is made while a table is small is kept, so it must not be one that scans the table.
func TestPlansOfSmallTables(t *testing.T) {
	ctx, dsn := t.Context(), pgtest.Start(t)
	s := open(t, dsn)
	grants, err := s.Acquire(ctx, store.Node{Name: "a", Boot: uuid.New()}, []int{0}, time.Minute)
	if err != nil || len(grants) != 1 {
		t.Fatal(grants, err)
	}
	var transitions []store.Transition
	var keys []store.Key
	for i := range 40 {
		row, tr := started(0, fmt.Sprint("s-", i))
		transitions = append(transitions, tr)
		keys = append(keys, store.Key{Shard: 0, Namespace: row.Namespace, ID: row.ID})
	}
	if got, err := s.Commit(ctx, []store.Batch{{Grant: grants[0], Seq: grants[0].LastSeq + 1, Transitions: transitions}}); err != nil || got[0] != store.Committed {
		t.Fatal(got, err)
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "ANALYZE"); err != nil {
		t.Fatal(err)
	}
	count := func() (scans, indexed int64) {
		t.Helper()
		const counts = `SELECT sum(seq_scan), sum(idx_scan) FROM pg_stat_user_tables WHERE relname IN ('saga', 'history')`
		if err := conn.QueryRow(ctx, counts).Scan(&scans, &indexed); err != nil {
			t.Fatal(err)
		}
		return scans, indexed
	}
	const ofSchema = 5 // the building of the tables' indexes counts too
	for range 10 {     // a plan is kept from the sixth time on
		for _, ask := range []func() error{
			func() error { _, err := s.Load(ctx, keys); return err },
			func() error { _, err := s.Unfinished(ctx, 0, uuid.Nil, 10); return err },
			func() error { _, err := s.Saga(ctx, keys[0]); return err },
			func() error { _, err := s.History(ctx, 0, transitions[0].Run, 1, 10); return err },
		} {
			if err := ask(); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.main.Reset() // a session reports its counts when it ends, if not before
	scans, indexed := count()
	for deadline := time.Now().Add(10 * time.Second); scans+indexed < 400 && time.Now().Before(deadline); scans, indexed = count() {
		time.Sleep(20 * time.Millisecond)
	}
	if indexed+scans < 400 {
		t.Fatalf("the counts didn't arrive: %d and %d", scans, indexed)
	}
	if scans > ofSchema {
		t.Errorf("%d queries scanned a table", scans-ofSchema)
	}
}
