package postgres

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/sagad/sagad/internal/pgtest"
	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/storetest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func open(t *testing.T, dsn string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Config{DSN: dsn, Node: "test", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store { return open(t, pgtest.Start(t)) })
}

// TestConformancePooled is how the store runs behind a transaction pooler: nothing prepared, nothing set.
func TestConformancePooled(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		return open(t, pgtest.Start(t)+"&default_query_exec_mode=exec")
	})
}

func TestOpenAtOnce(t *testing.T) {
	for range 3 {
		dsn := pgtest.Start(t)
		var stores [5]*Store
		var wg sync.WaitGroup
		for i := range stores {
			wg.Go(func() {
				var err error
				if stores[i], err = Open(t.Context(), Config{DSN: dsn, Shards: 8 + i, Logger: slog.New(slog.DiscardHandler)}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
		want, _ := stores[0].Meta(t.Context())
		for _, s := range stores {
			got, _ := s.Meta(t.Context())
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("one database, two metas (-one +other):\n%s", d)
			}
			leases, err := s.Leases(t.Context())
			if err != nil || len(leases) != want.Shards {
				t.Errorf("%d leases (%v), want %d", len(leases), err, want.Shards)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestNewerSchema(t *testing.T) {
	dsn := pgtest.Start(t)
	s := open(t, dsn)
	_, err := s.main.Exec(t.Context(), "INSERT INTO "+versionTable+" (version_id, is_applied) VALUES (999, true)")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{DSN: dsn}); !errors.Is(err, store.ErrSchema) {
		t.Errorf("opening a newer schema: %v, want ErrSchema", err)
	}
}

func TestPasswordStaysHidden(t *testing.T) {
	const password = "s3cr3t-pa55"
	var logged bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	reachable := strings.Replace(pgtest.Start(t), "postgres@", "postgres:"+password+"@", 1)
	nobody := strings.Replace(reachable, "postgres:", "nobody:", 1)
	for _, dsn := range []string{
		"postgres://u:" + password + "@127.0.0.1:1/db?sslmode=disable",
		"postgres://u:" + password + "@127.0.0.1:x/db",
		"postgres://u:" + password + "%zz@127.0.0.1/db",
		"postgres://u:a " + password + "@[::1/db",
		"host=127.0.0.1 port=x password=" + password,
		"password='" + password,
		"pass word=" + password,
		nobody,
	} {
		_, err := Open(t.Context(), Config{DSN: dsn, Logger: logger})
		if err == nil {
			t.Errorf("%q opened", dsn)
		} else if strings.Contains(err.Error(), password) {
			t.Errorf("an error shows the password: %v", err)
		}
	}
	s, err := Open(t.Context(), Config{DSN: reachable, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if logged.Len() == 0 || strings.Contains(logged.String(), password) {
		t.Errorf("the log: %s", &logged)
	}
}

func TestReadOnly(t *testing.T) {
	dsn := pgtest.Start(t)
	s := open(t, dsn)
	grants, err := s.Acquire(t.Context(), store.Node{Name: "a"}, []int{0}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	var database string
	if err := s.main.QueryRow(t.Context(), "SELECT current_database()").Scan(&database); err != nil {
		t.Fatal(err)
	}
	set := func(value string) {
		t.Helper()
		if _, err := s.main.Exec(t.Context(), "SET default_transaction_read_only = off; ALTER DATABASE "+database+" SET default_transaction_read_only = "+value); err != nil {
			t.Fatal(err)
		}
		s.main.Reset()
		s.leases.Reset()
	}
	set("on")
	if err := s.Ping(t.Context()); err == nil {
		t.Error("a read-only database answers pings")
	}
	b := []store.Batch{{Grant: grants[0], Seq: 1}}
	if got, err := s.Commit(t.Context(), b); err == nil || got[0] != store.Unknown {
		t.Errorf("commit to a read-only database: %v, %v; want it unknown", got, err)
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), "SET default_transaction_read_only = off"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "ALTER DATABASE "+database+" RESET default_transaction_read_only"); err != nil {
		t.Fatal(err)
	}
	// The store's connections are to the read-only server still; it finds the new one by itself.
	if got, err := s.Commit(t.Context(), b); err != nil || got[0] != store.Committed {
		t.Errorf("commit after that: %v, %v", got, err)
	}
	if err := s.Ping(t.Context()); err != nil {
		if err = s.Ping(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestLeaseFromAnotherClock(t *testing.T) {
	s := open(t, pgtest.Start(t))
	a, b := store.Node{Name: "a", Boot: uuid.New()}, store.Node{Name: "b", Boot: uuid.New()}
	first, err := s.Acquire(t.Context(), a, []int{0, 1}, 10*time.Second)
	if err != nil || len(first) != 2 {
		t.Fatal(first, err)
	}
	// The epoch's high part is the server's timeline.
	if got := first[0].Epoch >> 32; got != 1 {
		t.Errorf("epoch %d: high part %d, want 1", first[0].Epoch, got)
	}
	if _, err := s.main.Exec(t.Context(), "UPDATE shard_lease SET until = until + interval '1 hour' WHERE shard = 0"); err != nil {
		t.Fatal(err)
	}
	leases, err := s.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if leases[0].Live || !leases[1].Live {
		t.Errorf("live: %v, %v; want false, true", leases[0].Live, leases[1].Live)
	}
	grants, err := s.Acquire(t.Context(), b, []int{0, 1}, 10*time.Second)
	if err != nil || len(grants) != 1 || grants[0].Shard != 0 || grants[0].Epoch != first[0].Epoch+1 {
		t.Errorf("%+v, %v; want shard 0 alone", grants, err)
	}
}

// TestAcquireLeavesOutWhatIsLocked: one shard that can't be had must not keep the others back.
func TestAcquireLeavesOutWhatIsLocked(t *testing.T) {
	s := open(t, pgtest.Start(t))
	tx, err := s.main.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "SELECT FROM shard WHERE id = 1 FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	node := store.Node{Name: "a", Boot: uuid.New()}
	var got []int
	for range 2 {
		grants, err := s.Acquire(t.Context(), node, []int{0, 1, 2}, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range grants {
			got = append(got, g.Shard)
		}
		if err := tx.Rollback(t.Context()); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff([]int{0, 2, 0, 1, 2}, got); d != "" {
		t.Errorf("shards acquired (-want +got):\n%s", d)
	}
}
