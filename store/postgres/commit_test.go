package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagad/sagad/internal/faultproxy"
	"github.com/sagad/sagad/internal/pgtest"
	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/storetest"
)

func TestClassify(t *testing.T) {
	for _, c := range []struct {
		err  error
		want outcome
	}{
		{&pgconn.PgError{Code: "23505"}, outcomeRefused},
		{&pgconn.PgError{Code: "23514"}, outcomeRefused},
		{&pgconn.PgError{Code: "22003"}, outcomeRefused},
		{&pgconn.PgError{Code: "42501"}, outcomeRefused},
		{fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: "23505"}), outcomeRefused},
		{&pgconn.PgError{Code: "40001"}, outcomeAgain},
		{&pgconn.PgError{Code: "40P01"}, outcomeAgain},
		{&pgconn.PgError{Code: "55P03"}, outcomeAgain},
		{&pgconn.PgError{Code: "53100"}, outcomeAgain},
		{&pgconn.PgError{Code: "54000"}, outcomeAgain},
		{&pgconn.PgError{Code: "42P05"}, outcomeAgain},
		{&pgconn.PgError{Code: "25006"}, outcomeReadOnly},
		{&pgconn.PgError{Code: "40003"}, outcomeUnknown},
		{&pgconn.PgError{Code: "57014"}, outcomeUnknown},
		{&pgconn.PgError{Code: "57P01"}, outcomeUnknown},
		{&pgconn.PgError{Code: "58030"}, outcomeUnknown},
		{&pgconn.PgError{Code: "XX000"}, outcomeUnknown},
		{&pgconn.PgError{Code: "08006"}, outcomeUnknown},
		{&pgconn.PgError{Code: "0A000"}, outcomeUnknown},
		{io.ErrUnexpectedEOF, outcomeUnknown},
		{context.DeadlineExceeded, outcomeUnknown},
		{errors.New("anything"), outcomeUnknown},
	} {
		if got := classify(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}

// through opens a store whose connections run through a proxy.
func through(t *testing.T, dsn string) (*Store, *faultproxy.Proxy) {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	p, err := faultproxy.Listen(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	u.Host = p.Addr()
	return open(t, u.String()), p
}

func started(shard int, id string) (store.Saga, store.Transition) {
	now := time.Now().UTC().Truncate(time.Microsecond)
	s := store.Saga{
		Shard: shard, Namespace: "default", ID: id, Run: uuid.Must(uuid.NewV7()), Definition: "order", Version: 1,
		Status: store.Running, Digest: []byte("digest"), StartedAt: now, ChangedAt: now, N: 1,
	}
	return s, store.Transition{Run: s.Run, N: 1, At: now, Facts: []byte("started"), Saga: &s}
}

// TestUnknownOutcomes cuts the connection somewhere in the commit, sends the very same batch until the outcome is known, and counts
// what was written.
func TestUnknownOutcomes(t *testing.T) {
	dsn := pgtest.Start(t)
	s, proxy := through(t, dsn)
	grants, err := s.Acquire(t.Context(), store.Node{Name: "a", Boot: uuid.New()}, []int{0, 1}, time.Hour)
	if err != nil || len(grants) != 2 {
		t.Fatal(grants, err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	const wanted = 120
	unknown, had, hadNot, seq := 0, 0, 0, int64(0)
	var sagas [2]store.Saga
	for ; unknown < wanted; seq++ {
		if seq == 20*wanted {
			t.Fatalf("only %d unknown outcomes in %d commits", unknown, seq)
		}
		batches := make([]store.Batch, 2)
		for i := range batches {
			tr := store.Transition{Run: sagas[i].Run, N: seq + 1, At: time.Now(), Facts: fmt.Append(nil, "facts ", seq)}
			if seq == 0 {
				sagas[i], tr = started(i, fmt.Sprint("saga ", i))
			}
			batches[i] = store.Batch{Grant: grants[i], Seq: seq + 1, Transitions: []store.Transition{tr}}
		}
		if random.IntN(3) > 0 {
			proxy.CutAfter(faultproxy.Up, random.Int64N(3500))
		} else {
			proxy.CutAfter(faultproxy.Down, random.Int64N(150))
		}
		got, err := s.Commit(t.Context(), batches)
		first := got[0]
		for tries := 0; got[0] == store.Unknown; tries++ {
			if err == nil || got[1] != store.Unknown || tries > 20 {
				t.Fatalf("results %v, error %v, after %d resendings", got, err, tries)
			}
			got, err = s.Commit(t.Context(), batches)
		}
		proxy.CutAfter(faultproxy.Up, -1)
		proxy.CutAfter(faultproxy.Down, -1)
		if err != nil || got[0] != got[1] || got[0] != store.Committed && got[0] != store.Already {
			t.Fatalf("batch %d: %v, %v", seq+1, got, err)
		}
		if first == store.Unknown {
			unknown++
			if got[0] == store.Already {
				had++
			} else {
				hadNot++
			}
		}
	}
	t.Logf("%d commits, %d cuts, %d unknown outcomes: %d had been committed, %d had not", seq, proxy.Cuts(), unknown, had, hadNot)
	if had < 10 || hadNot < 10 {
		t.Errorf("%d of the unknown outcomes had been committed, %d had not: both should be common", had, hadNot)
	}
	for i := range sagas {
		loaded, err := s.Load(t.Context(), []store.Key{{Shard: i, Namespace: "default", ID: sagas[i].ID}})
		if err != nil {
			t.Fatal(err)
		}
		var got []int64
		for _, r := range loaded[0].History {
			if r.N != r.Seq {
				t.Errorf("transition %d is in batch %d", r.N, r.Seq)
			}
			got = append(got, r.N)
		}
		want := make([]int64, seq)
		for n := range want {
			want[n] = int64(n + 1)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("saga %d: history (-want +got):\n%s", i, d)
		}
	}
}

// TestPausedOwner stops an owner's traffic anywhere in its commits. Another must get the shard at once.
func TestPausedOwner(t *testing.T) {
	dsn := pgtest.Start(t)
	old, proxy := through(t, dsn)
	other := open(t, dsn)
	saga, start := started(0, "saga")
	grants, err := old.Acquire(t.Context(), store.Node{Name: "node 0", Boot: uuid.New()}, []int{0}, time.Microsecond)
	if err != nil || len(grants) != 1 {
		t.Fatal(grants, err)
	}
	grant := grants[0]
	if got, err := other.Commit(t.Context(), []store.Batch{{Grant: grant, Seq: 1, Transitions: []store.Transition{start}}}); err != nil {
		t.Fatal(got, err)
	}
	grant.LastSeq = 1
	random := rand.New(rand.NewPCG(3, 4))
	var longest time.Duration
	for round := range 20 {
		committing, ended := make(chan struct{}), make(chan int64)
		go func() {
			seq, last := grant.LastSeq, store.Committed
			for last == store.Committed || last == store.Already || last == store.Unknown {
				b := store.Batch{Grant: grant, Seq: seq + 1, Transitions: []store.Transition{{
					Run: saga.Run, N: seq + 1, At: time.Now(), Facts: make([]byte, 2000),
				}}}
				got, _ := old.Commit(context.Background(), []store.Batch{b})
				if last = got[0]; last == store.Committed || last == store.Already {
					if seq++; seq == grant.LastSeq+2 {
						close(committing)
					}
				}
			}
			if last != store.Fenced {
				t.Errorf("round %d: %v, want fenced", round, last)
			}
			ended <- seq
		}()
		<-committing
		time.Sleep(time.Duration(random.Int64N(int64(3 * time.Millisecond)))) // anywhere in a commit
		proxy.Blackhole(true)
		began := time.Now()
		taken, err := other.Acquire(t.Context(), store.Node{Name: fmt.Sprint("node ", round+1), Boot: uuid.New()}, []int{0}, time.Microsecond)
		longest = max(longest, time.Since(began))
		proxy.Blackhole(false)
		if err != nil || len(taken) != 1 {
			t.Fatalf("round %d: acquired %v, %v", round, taken, err)
		}
		if last := <-ended; last != taken[0].LastSeq {
			t.Fatalf("round %d: the old owner knows of %d, the new one was told %d", round, last, taken[0].LastSeq)
		}
		grant = taken[0]
	}
	t.Logf("the longest take-over took %v", longest)
	if longest > time.Second {
		t.Errorf("a take-over took %v", longest)
	}
}

// watcher tells of each error that a commit meets.
type watcher struct{ errs chan string }

func (w watcher) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, watcher{}, strings.Contains(d.SQL, "sagad_commit"))
}

func (w watcher) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryEndData) {
	if commit, _ := ctx.Value(watcher{}).(bool); commit && d.Err != nil {
		var pg *pgconn.PgError
		if errors.As(d.Err, &pg) {
			w.errs <- pg.Code
		}
	}
}

// TestDefiniteFailuresAreResent: what surely didn't commit and may pass is sent again by the store itself.
func TestDefiniteFailuresAreResent(t *testing.T) {
	for _, c := range []struct {
		code, setting string
		// interfere begins with shard 1 locked by tx, and a commit of shards 0 and 1 waiting for it.
		interfere func(ctx context.Context, tx pgx.Tx, failed <-chan string) (string, error)
	}{
		{"55P03", "lock_timeout=50", func(ctx context.Context, tx pgx.Tx, failed <-chan string) (string, error) {
			code := <-failed
			return code, tx.Rollback(ctx)
		}},
		{"40P01", "deadlock_timeout=50", func(ctx context.Context, tx pgx.Tx, failed <-chan string) (string, error) {
			if _, err := tx.Exec(ctx, "SELECT FROM shard WHERE id = 0 FOR UPDATE"); err != nil {
				return "", err
			}
			code := <-failed
			return code, tx.Rollback(ctx)
		}},
		{"40001", "default_transaction_isolation=serializable", func(ctx context.Context, tx pgx.Tx, failed <-chan string) (string, error) {
			if _, err := tx.Exec(ctx, "UPDATE shard SET epoch = epoch WHERE id = 1"); err != nil {
				return "", err
			}
			if err := tx.Commit(ctx); err != nil {
				return "", err
			}
			return <-failed, nil
		}},
	} {
		t.Run(c.code, func(t *testing.T) {
			ctx := t.Context()
			dsn := pgtest.Start(t)
			w := watcher{make(chan string, 100)}
			s, err := Open(ctx, Config{DSN: dsn + "&" + c.setting, Tracer: w, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			grants, err := s.Acquire(ctx, store.Node{Name: "a"}, []int{0, 1}, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			conn, err := pgx.Connect(ctx, dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close(ctx) }()
			tx, err := conn.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			var pid int
			if err := tx.QueryRow(ctx, "SELECT pg_backend_pid() FROM shard WHERE id = 1 FOR UPDATE").Scan(&pid); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			wg.Go(func() {
				got, err := s.Commit(ctx, []store.Batch{{Grant: grants[0], Seq: 1}, {Grant: grants[1], Seq: 1}})
				if d := cmp.Diff([]store.Result{store.Committed, store.Committed}, got); d != "" || err != nil {
					t.Errorf("results %v, %v", got, err)
				}
			})
			for waiting := false; !waiting; {
				err := s.leases.QueryRow(ctx, "SELECT count(*) > 0 FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))", pid).Scan(&waiting)
				if err != nil {
					t.Fatal(err)
				}
				if len(w.errs) > 0 {
					break // it has come and gone
				}
			}
			code, err := c.interfere(ctx, tx, w.errs)
			if err != nil || code != c.code {
				t.Errorf("the commit met %q, %v; want %s", code, err, c.code)
			}
			wg.Wait()
		})
	}
}

func TestCommitIsDurable(t *testing.T) {
	s := open(t, pgtest.Start(t))
	for _, c := range []struct{ set, want string }{{"off", "on"}, {"on", "on"}, {"remote_apply", "remote_apply"}, {"local", "local"}} {
		err := pgx.BeginFunc(t.Context(), s.main, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), "SET LOCAL synchronous_commit = "+c.set); err != nil {
				return err
			}
			if _, err := s.q.Commit(t.Context(), tx, commitParams(nil)); err != nil {
				return err
			}
			var got string
			if err := tx.QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&got); err != nil {
				return err
			}
			if got != c.want {
				t.Errorf("synchronous_commit was %s and became %s, want %s", c.set, got, c.want)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestLogPerSaga holds the log that a saga of 4 transitions writes, which is what a busy Postgres runs out of first.
func TestLogPerSaga(t *testing.T) {
	const bytesMax = 3000
	s := open(t, pgtest.Start(t))
	lsn := func() (n int64) {
		if err := s.leases.QueryRow(t.Context(), "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := lsn()
	sagas, _, err := storetest.Work(t.Context(), s, 128, 2, 100)
	if err != nil {
		t.Fatal(err)
	}
	got := (lsn() - before) / int64(sagas)
	t.Logf("%d bytes of log per saga, %d sagas", got, sagas)
	if got > bytesMax {
		t.Errorf("%d bytes of log per saga, want at most %d", got, bytesMax)
	}
}
