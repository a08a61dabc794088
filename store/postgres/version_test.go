package postgres

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/sagad/sagad/internal/pgtest"
	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/postgres/pgdb"
)

// TestUsagePlan: who needs a version is read from its index, however many sagas have ended.
func TestUsagePlan(t *testing.T) {
	ctx, dsn := t.Context(), pgtest.Start(t)
	s := open(t, dsn)
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	// 100,000 sagas of ten versions, of which one in a hundred is unfinished.
	if _, err := conn.Exec(ctx, `
		INSERT INTO saga (started_at, changed_at, run, shard, n, version, status, namespace, id, definition, digest)
		SELECT clock_timestamp(), clock_timestamp(), gen_random_uuid(), i % 64, 4, 1 + i % 10,
			CASE WHEN i % 100 < 1 THEN 1 ELSE 4 END, 'default', 'order-' || i, 'order', '\x00'
		FROM generate_series(1, 100000) i`); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, "VACUUM ANALYZE"); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		_, _, err := s.PutDefinition(ctx, store.Definition{Namespace: "default", Name: "order", Hash: fmt.Append(nil, i), RegisteredAt: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
	}
	plan := func(query string) string {
		t.Helper()
		rows, err := conn.Query(ctx, "EXPLAIN "+query)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(lines, "\n")
	}
	for _, query := range []string{
		"SELECT version, count(*) FROM saga WHERE namespace = 'default' AND definition = 'order' AND status < 4 AND (0 = 0 OR version = 0) GROUP BY version",
		"SELECT version, count(*) FROM saga WHERE namespace = 'default' AND definition = 'order' AND status < 4 AND (2 = 0 OR version = 2) GROUP BY version",
		"SELECT id FROM saga WHERE namespace = 'default' AND definition = 'order' AND version = 2 AND status < 4 LIMIT 10",
	} {
		if got := plan(query); !strings.Contains(got, "saga_unfinished_of") || strings.Contains(got, "Seq Scan") {
			t.Errorf("not by the index:\n%s\n%s", query, got)
		}
	}
	began := time.Now()
	got, err := s.Usage(ctx, "default", "order", 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("usage of 100,000 sagas took %v", time.Since(began))
	if len(got) != 3 || got[2].Version != 1 || got[2].Unfinished != 1000 || got[2].Sagas != 10000 || len(got[2].Examples) != store.UsageExamplesMax {
		t.Errorf("usage: %+v", got)
	}
}

// TestDeleteWaitsForCommits: a commit that is under way when its version is deleted is waited for, and counts.
func TestDeleteWaitsForCommits(t *testing.T) {
	ctx, dsn := t.Context(), pgtest.Start(t)
	s := open(t, dsn)
	d, _, err := s.PutDefinition(ctx, store.Definition{Namespace: "default", Name: "order", Hash: []byte("h"), RegisteredAt: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	grants, err := s.Acquire(ctx, store.Node{Name: "a", Boot: uuid.New()}, []int{0}, time.Minute)
	if err != nil || len(grants) != 1 {
		t.Fatal(grants, err)
	}
	_, tr := started(0, "order-1") // of version 1
	batch := store.Batch{Grant: grants[0], Seq: grants[0].LastSeq + 1, Transitions: []store.Transition{tr}}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if results, err := s.q.Commit(ctx, tx, commitParams([]*store.Batch{&batch})); err != nil || results[0] != int16(store.Committed) {
		t.Fatal(results, err)
	}
	answer := make(chan int64, 1)
	go func() {
		n, err := s.q.DeleteDefinition(ctx, s.main, pgdb.DeleteDefinitionParams{Namespace: "default", Name: "order", Version: d.Version})
		if err != nil {
			t.Error(err)
		}
		answer <- n
	}()
	// It waits for the commit, which holds the shard.
	for waiting, until := false, time.Now().Add(4*time.Second); !waiting; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the deletion doesn't wait")
		}
		err := s.main.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%sagad_delete_definition%'
			AND pid <> pg_backend_pid() AND datname = current_database())`).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
	}
	select {
	case n := <-answer:
		t.Fatalf("the deletion answers %d while the commit is under way", n)
	default:
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if n := <-answer; n != 1 {
		t.Errorf("the deletion answers %d, want 1 unfinished saga", n)
	}
}
