package barrier_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/sagad/sagad/internal/pgtest"
	"github.com/sagad/sagad/sdk/barrier"
	"github.com/sagad/sagad/sdk/saga"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

type (
	debitIn struct {
		Account string `json:"account"`
		Cents   int64  `json:"cents"`
	}
	debited struct {
		ID string `json:"id"`
	}
)

// tx is a transaction of the test's, on any database.
type tx struct {
	barrier.Tx
	exec     func(query string) error
	sum      func(query string) int64
	commit   func() error
	rollback func()
}

// open gives a way to begin transactions, on a database with the barrier's table and one for effects.
type open func(t *testing.T) (begin func() tx)

// setUp makes the tables, for which the table of effects keeps nothing from standing twice.
func setUp(t *testing.T, begin func() tx) func() tx {
	t.Helper()
	x := begin()
	if err := barrier.CreateTable(t.Context(), x.Tx); err != nil {
		t.Fatal(err)
	}
	if err := barrier.CreateTable(t.Context(), x.Tx); err != nil {
		t.Fatalf("making the table again: %v", err)
	}
	if err := x.exec("CREATE TABLE effect (what TEXT NOT NULL, cents BIGINT NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	if err := x.commit(); err != nil {
		t.Fatal(err)
	}
	return begin
}

func standard(t *testing.T, db *sql.DB, of func(*sql.Tx) barrier.Tx) func() tx {
	t.Cleanup(func() { _ = db.Close() })
	ctx := context.Background()
	return setUp(t, func() tx {
		x, err := db.BeginTx(ctx, nil)
		if err != nil {
			t.Error(err)
			panic(err)
		}
		return tx{
			Tx: of(x), commit: x.Commit, rollback: func() { _ = x.Rollback() },
			exec: func(query string) error { _, err := x.ExecContext(ctx, query); return err },
			sum: func(query string) (n int64) {
				if err := x.QueryRowContext(ctx, query).Scan(&n); err != nil {
					t.Error(err)
				}
				return n
			},
		}
	})
}

var databases = map[string]open{
	"sqlite": func(t *testing.T) func() tx {
		db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "test.db")+
			"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)&_txlock=immediate")
		if err != nil {
			t.Fatal(err)
		}
		return standard(t, db, barrier.SQLite)
	},
	"postgres": func(t *testing.T) func() tx {
		db, err := sql.Open("pgx", pgtest.Start(t))
		if err != nil {
			t.Fatal(err)
		}
		return standard(t, db, barrier.Postgres)
	},
	"pgx": func(t *testing.T) func() tx {
		ctx := context.Background()
		pool, err := pgxpool.New(ctx, pgtest.Start(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		return setUp(t, func() tx {
			x, err := pool.Begin(ctx)
			if err != nil {
				t.Error(err)
				panic(err)
			}
			return ofPgx(t, ctx, x)
		})
	},
}

func ofPgx(t *testing.T, ctx context.Context, x pgx.Tx) tx {
	return tx{
		Tx: barrier.Pgx(x), commit: func() error { return x.Commit(ctx) }, rollback: func() { _ = x.Rollback(ctx) },
		exec: func(query string) error { _, err := x.Exec(ctx, query); return err },
		sum: func(query string) (n int64) {
			if err := x.QueryRow(ctx, query).Scan(&n); err != nil {
				t.Error(err)
			}
			return n
		},
	}
}

// onEach runs a test on each database.
func onEach(t *testing.T, test func(t *testing.T, b *bank)) {
	for name, open := range databases {
		t.Run(name, func(t *testing.T) { test(t, &bank{t: t, begin: open(t)}) })
	}
}

// bank is a service whose effects are rows.
type bank struct {
	t     *testing.T
	begin func() tx
}

func do(step string, generation, attempt int) context.Context {
	return saga.WithCall(context.Background(), &saga.Call{
		Step: step, Generation: generation, Attempt: attempt, IdempotencyKey: fmt.Sprintf("run/%s/-/do/%d", step, generation),
	})
}

// undo is of an action's first generation.
func undo(step string, generation, attempt int) context.Context {
	return saga.WithCall(context.Background(), &saga.Call{
		Step: step, Generation: generation, Attempt: attempt, Undo: true,
		IdempotencyKey: fmt.Sprintf("run/%s/-/undo/%d", step, generation), ActionKey: fmt.Sprintf("run/%s/-/do/1", step),
	})
}

// debit is an action's handler. before, if set, may refuse after the effect was written.
func (b *bank) debit(ctx context.Context, in debitIn, before func() error) (debited, error) {
	x := b.begin()
	defer x.rollback()
	a, err := debit(ctx, x, in, before)
	if err != nil {
		return debited{}, err
	}
	return a.After(x.commit())
}

func debit(ctx context.Context, x tx, in debitIn, before func() error) (barrier.Answer[debited], error) {
	return barrier.Do(ctx, x.Tx, in, func() (debited, error) {
		if err := x.exec(fmt.Sprintf("INSERT INTO effect VALUES ('do', %d)", in.Cents)); err != nil {
			return debited{}, err
		}
		if before != nil {
			if err := before(); err != nil {
				return debited{}, err
			}
		}
		return debited{ID: fmt.Sprintf("debit of %d by attempt %d", in.Cents, saga.Attempt(ctx))}, nil
	})
}

// refund is a compensation's handler. got gets what the action stored.
func (b *bank) refund(ctx context.Context, got func(debited) error) error {
	x := b.begin()
	defer x.rollback()
	u, err := barrier.Undo(ctx, x.Tx, func(done debited) error {
		var cents int64
		if _, err := fmt.Sscanf(done.ID, "debit of %d", &cents); err != nil {
			return err
		}
		if err := x.exec(fmt.Sprintf("INSERT INTO effect VALUES ('undo', %d)", -cents)); err != nil {
			return err
		}
		if got != nil {
			return got(done)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return u.After(x.commit())
}

// check compares the number of effects and what they come to.
func (b *bank) check(effects, cents int64) {
	b.t.Helper()
	x := b.begin()
	defer x.rollback()
	if n, sum := x.sum("SELECT count(*) FROM effect"), x.sum("SELECT CAST(coalesce(sum(cents), 0) AS BIGINT) FROM effect"); n != effects || sum != cents {
		b.t.Errorf("%d effects that come to %d, want %d and %d", n, sum, effects, cents)
	}
}

func (b *bank) want(what string, err, want error) {
	b.t.Helper()
	if want == nil && err != nil || !errors.Is(err, want) {
		b.t.Errorf("%s: %v, want %v", what, err, want)
	}
}

var in30 = debitIn{Account: "A", Cents: 30}

func TestARepeatGetsTheStoredResult(t *testing.T) {
	onEach(t, func(t *testing.T, b *bank) {
		for attempt := 1; attempt <= 3; attempt++ {
			got, err := b.debit(do("pay", 1, attempt), in30, nil)
			if want := (debited{ID: "debit of 30 by attempt 1"}); err != nil || got != want {
				t.Errorf("attempt %d: %v, %v; want %v", attempt, got, err, want)
			}
		}
		b.check(1, 30)
		// Another generation is another request.
		if got, err := b.debit(do("pay", 2, 1), debitIn{"A", 31}, nil); err != nil || got.ID != "debit of 31 by attempt 1" {
			t.Errorf("generation 2: %v, %v", got, err)
		}
		b.check(2, 61)
	})
}

func TestConcurrentRepeatsHaveOneEffect(t *testing.T) {
	onEach(t, func(t *testing.T, b *bank) {
		const n = 8
		var all sync.WaitGroup
		results := make(chan debited, n)
		for attempt := 1; attempt <= n; attempt++ {
			all.Go(func() {
				got, err := b.debit(do("pay", 1, attempt), in30, nil)
				b.want("one of many", err, nil)
				results <- got
			})
		}
		all.Wait()
		first := <-results
		for range n - 1 {
			if got := <-results; got != first {
				t.Errorf("results %v and %v", first, got)
			}
		}
		b.check(1, 30)
	})
}

// A repeat waits for one that is running; if that one comes to nothing, the repeat does it.
func TestARepeatWaitsForTheOneBefore(t *testing.T) {
	for name, commits := range map[string]bool{"commits": true, "crashes": false} {
		t.Run(name, func(t *testing.T) { waitsForTheOneBefore(t, commits) })
	}
}

func waitsForTheOneBefore(t *testing.T, commits bool) {
	onEach(t, func(t *testing.T, b *bank) {
		began, finish, repeated := make(chan struct{}), make(chan struct{}), make(chan debited)
		crash := errors.New("crash")
		var first sync.WaitGroup
		defer first.Wait()
		first.Go(func() {
			_, err := b.debit(do("pay", 1, 1), in30, func() error {
				close(began)
				<-finish
				if commits {
					return nil
				}
				return crash
			})
			if !commits {
				b.want("the first", err, crash)
			}
		})
		<-began
		go func() {
			got, err := b.debit(do("pay", 1, 2), in30, nil)
			b.want("the repeat", err, nil)
			repeated <- got
		}()
		close(finish)
		want := debited{ID: "debit of 30 by attempt 2"}
		if commits {
			want.ID = "debit of 30 by attempt 1"
		}
		if got := <-repeated; got != want {
			t.Errorf("the repeat got %v, want %v", got, want)
		}
		b.check(1, 30)
	})
}

func TestACrashBeforeTheCommitLeavesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, b *bank) {
		x := b.begin()
		if _, err := debit(do("pay", 1, 1), x, in30, nil); err != nil {
			t.Fatal(err)
		}
		x.rollback()
		b.check(0, 0)
		got, err := b.debit(do("pay", 1, 2), in30, nil)
		if err != nil || got.ID != "debit of 30 by attempt 2" {
			t.Errorf("after the crash: %v, %v", got, err)
		}
		b.check(1, 30)
	})
}

func TestAnUnknownCommitIsNoAnswer(t *testing.T) {
	lost := errors.New("connection lost")
	onEach(t, func(t *testing.T, b *bank) {
		for attempt, fails := range []bool{true, false} {
			x := b.begin()
			a, err := debit(do("pay", 1, attempt+1), x, in30, func() error { return saga.Reject("NO", "no") })
			if err != nil {
				t.Fatal(err)
			}
			commit := x.commit()
			if fails {
				commit = lost
			}
			_, err = a.After(commit)
			if m := saga.MeaningOf(err, false); errors.Is(err, lost) != fails || (m.Kind == saga.Rejected) == fails {
				t.Errorf("attempt %d: %v", attempt+1, err)
			}
		}
	})
}

func TestAFailureStoresNothing(t *testing.T) {
	onEach(t, func(t *testing.T, b *bank) {
		broken := errors.New("broken")
		x := b.begin()
		_, err := debit(do("pay", 1, 1), x, in30, func() error { return broken })
		b.want("a failing effect", err, broken)
		// Not even if the handler forgets to roll back. The transaction is of use for other things.
		if err := x.exec("INSERT INTO effect VALUES ('other', 1)"); err != nil {
			t.Error(err)
		}
		if err := x.commit(); err != nil {
			t.Error(err)
		}
		b.check(1, 1)
		// A statement that fails breaks a transaction of Postgres, but not what was there before the barrier.
		x = b.begin()
		_, err = debit(do("pay", 1, 2), x, in30, func() error { return x.exec("INSERT INTO nowhere VALUES (1)") })
		if err == nil {
			t.Error("no error")
		}
		if err := x.commit(); err != nil {
			t.Error(err)
		}
		// So does one that the effect doesn't tell of.
		x = b.begin()
		_, err = debit(do("pay", 1, 2), x, in30, func() error { _ = x.exec("ROLLBACK"); return nil })
		if err == nil {
			t.Error("the effect ended the transaction, and nobody noticed")
		}
		x.rollback()
		b.check(1, 1)
		if _, err := b.debit(do("pay", 1, 3), in30, nil); err != nil {
			t.Error(err)
		}
		b.check(2, 31)
	})
}

// An attempt that runs out of time leaves nothing, even if its handler commits.
func TestACancelledAttemptStoresNothing(t *testing.T) {
	onEach(t, func(t *testing.T, b *bank) {
		ctx, cancel := context.WithCancel(do("pay", 1, 1))
		x := b.begin()
		_, err := debit(ctx, x, in30, func() error { cancel(); return nil })
		b.want("a cancelled attempt", err, context.Canceled)
		if err := x.commit(); err != nil {
			t.Error(err)
		}
		b.check(0, 0)
		_, err = b.debit(do("pay", 1, 2), in30, nil)
		b.want("the next attempt", err, nil)
		b.check(1, 30)
	})
}

// What isn't rolled back for sure is no rejection, since that says that nothing was done.
func TestARejectionInATransactionThatIsOver(t *testing.T) {
	onEach(t, func(t *testing.T, b *bank) {
		ctx, cancel := context.WithCancel(do("pay", 1, 1))
		x := b.begin()
		_, err := debit(ctx, x, in30, func() error {
			cancel()
			if err := x.commit(); err != nil {
				t.Error(err)
			}
			return saga.Reject("NO", "no")
		})
		if m := saga.MeaningOf(err, false); m.Kind != saga.Failed || !errors.Is(err, context.Canceled) {
			t.Errorf("%v means %+v", err, m)
		}
	})
}

// Under a stricter isolation a repeat that can't see the one before fails, and the next attempt gets the stored result.
func TestStricterIsolation(t *testing.T) {
	b := &bank{t: t, begin: databases["pgx"](t)}
	for _, level := range []string{"REPEATABLE READ", "SERIALIZABLE"} {
		x := b.begin()
		if err := x.exec("SET TRANSACTION ISOLATION LEVEL " + level); err != nil {
			t.Fatal(err)
		}
		x.sum("SELECT count(*) FROM effect") // takes the snapshot
		first, err := b.debit(do(level, 1, 1), in30, nil)
		b.want("the first", err, nil)
		_, err = debit(do(level, 1, 2), x, in30, nil)
		if code := (*pgconn.PgError)(nil); !errors.As(err, &code) || code.Code != "40001" {
			t.Errorf("%s: %v, want a serialization failure", level, err)
		}
		x.rollback()
		if again, err := b.debit(do(level, 1, 3), in30, nil); err != nil || again != first {
			t.Errorf("%s: %v, %v; want %v", level, again, err, first)
		}
	}
	b.check(2, 60)
}

func TestOtherInputIsRefused(t *testing.T) {
	onEach(t, func(t *testing.T, b *bank) {
		_, err := b.debit(do("pay", 1, 1), in30, nil)
		b.want("the first", err, nil)
		_, err = b.debit(do("pay", 1, 2), debitIn{"A", 300}, nil)
		b.want("another amount", err, barrier.ErrOtherInput)
		if m := saga.MeaningOf(err, false); !m.GiveUp || m.Kind != saga.Failed {
			t.Errorf("it means %+v: want a failure that isn't tried again, since something was done", m)
		}
		if strings.Contains(err.Error(), "30") {
			t.Errorf("%q shows the request", err)
		}
		b.check(1, 30)
	})
}

func TestInputsThatAreTheSame(t *testing.T) {
	type grown struct {
		Note    string   `json:"note"`
		Cents   int64    `json:"cents"`
		Account string   `json:"account"`
		Tags    []string `json:"tags"`
	}
	b := &bank{t: t, begin: databases["sqlite"](t)}
	ask := func(in any) error {
		x := b.begin()
		defer x.rollback()
		a, err := barrier.Do(do("pay", 1, 1), x.Tx, in, func() (struct{}, error) { return struct{}{}, nil })
		if err != nil {
			return err
		}
		_, err = a.After(x.commit())
		return err
	}
	for _, same := range []any{in30, grown{Cents: 30, Account: "A"}, map[string]any{"cents": 30, "account": "A", "nested": map[string]any{"empty": 0}}} {
		b.want(fmt.Sprintf("%#v", same), ask(same), nil)
	}
	for _, other := range []any{grown{Cents: 30, Account: "A", Note: "x"}, grown{Cents: 30, Account: "A", Tags: []string{""}}, debitIn{"a", 30}, debitIn{"A", 0}, nil, []int{30}} {
		b.want(fmt.Sprintf("%#v", other), ask(other), barrier.ErrOtherInput)
	}
	// Numbers keep their digits.
	x := b.begin()
	defer x.rollback()
	for i, n := range []int64{9007199254740992, 9007199254740993} {
		_, err := barrier.Do(do("big", 1, 1), x.Tx, n, func() (int64, error) { return n, nil })
		b.want(fmt.Sprint(n), err, []error{nil, barrier.ErrOtherInput}[i])
	}
}

func TestARejectionIsStored(t *testing.T) {
	onEach(t, func(t *testing.T, b *bank) {
		no := func() error { return fmt.Errorf("debit: %w", saga.Reject("INSUFFICIENT_FUNDS", "12.50 left")) }
		rejected := func(err error) bool { return err == saga.Reject("INSUFFICIENT_FUNDS", "12.50 left") }
		if _, err := b.debit(do("pay", 1, 2), in30, no); !rejected(err) {
			t.Errorf("rejected: %v", err)
		}
		b.check(0, 0)
		for _, attempt := range []int{2, 1} {
			if _, err := b.debit(do("pay", 1, attempt), in30, nil); !rejected(err) {
				t.Errorf("a late copy of attempt %d: %v", attempt, err)
			}
		}
		_, err := b.debit(do("pay", 1, 3), debitIn{"A", 1}, nil)
		b.want("other input", err, barrier.ErrOtherInput)
		b.check(0, 0)
		// A later attempt asks anew; failing, it leaves the rejection as it was.
		if _, err := b.debit(do("pay", 1, 3), in30, func() error { return errors.New("broken") }); err == nil || rejected(err) {
			t.Error(err)
		}
		if _, err := b.debit(do("pay", 1, 2), in30, nil); !rejected(err) {
			t.Errorf("a late copy after a failure: %v", err)
		}
		_, err = b.debit(do("pay", 1, 4), in30, nil)
		b.want("a person's retry", err, nil)
		got, err := b.debit(do("pay", 1, 2), in30, nil)
		if err != nil || got.ID != "debit of 30 by attempt 4" {
			t.Errorf("after the retry: %v, %v", got, err)
		}
		b.check(1, 30)
	})
}

func TestUndoOfARejectedAction(t *testing.T) {
	onEach(t, func(t *testing.T, b *bank) {
		no := saga.Reject("NO", "no")
		_, err := b.debit(do("pay", 1, 1), in30, func() error { return no })
		b.want("rejected", err, no)
		b.want("undo", b.refund(undo("pay", 1, 1), nil), saga.NothingToUndo)
		_, err = b.debit(do("pay", 1, 1), in30, nil)
		b.want("a copy of the rejected attempt", err, no)
		_, err = b.debit(do("pay", 1, 2), in30, nil)
		b.want("a later attempt", err, barrier.ErrCompensated)
		b.check(0, 0)
	})
}

func TestUndoUsesTheStoredResultOnce(t *testing.T) {
	onEach(t, func(t *testing.T, b *bank) {
		_, err := b.debit(do("pay", 1, 3), in30, nil)
		b.want("do", err, nil)
		// Whatever fails can be tried again, a person's no included.
		for _, failure := range []error{errors.New("broken"), saga.CantUndo(errors.New("account closed"))} {
			b.want("a failing undo", b.refund(undo("pay", 1, 1), func(debited) error { return failure }), failure)
		}
		b.check(1, 30)
		b.want("undo", b.refund(undo("pay", 1, 2), func(got debited) error {
			if got.ID != "debit of 30 by attempt 3" {
				t.Errorf("undo gets %v", got)
			}
			return nil
		}), nil)
		b.want("undo again", b.refund(undo("pay", 1, 3), nil), nil)
		b.want("undo in the next generation", b.refund(undo("pay", 2, 1), nil), nil)
		got, err := b.debit(do("pay", 1, 4), in30, nil)
		if err != nil || got.ID != "debit of 30 by attempt 3" {
			t.Errorf("a late copy gets %v, %v", got, err)
		}
		b.check(2, 0)
	})
}

func TestTheUndoItselfFindsNothing(t *testing.T) {
	onEach(t, func(t *testing.T, b *bank) {
		_, err := b.debit(do("pay", 1, 1), debitIn{"A", 0}, nil)
		b.want("do", err, nil)
		b.want("undo", b.refund(undo("pay", 1, 1), func(debited) error { return saga.NothingToUndo }), saga.NothingToUndo)
		b.want("undo again", b.refund(undo("pay", 1, 2), nil), saga.NothingToUndo)
	})
}

func TestAnActionAfterItsUndoIsRefused(t *testing.T) {
	onEach(t, func(t *testing.T, b *bank) {
		for attempt := 1; attempt <= 2; attempt++ {
			b.want("undo of nothing", b.refund(undo("pay", 1, attempt), nil), saga.NothingToUndo)
		}
		b.want("the next generation's", b.refund(undo("pay", 2, 1), nil), saga.NothingToUndo)
		// What the handler wrote before stands or falls with the refusal, in one transaction.
		x := b.begin()
		if err := x.exec("INSERT INTO effect VALUES ('before', 30)"); err != nil {
			t.Fatal(err)
		}
		_, err := debit(do("pay", 1, 1), x, in30, nil)
		b.want("a late action", err, barrier.ErrCompensated)
		if m := saga.MeaningOf(err, false); m.Kind != saga.Rejected || m.Code != "ALREADY_COMPENSATED" {
			t.Errorf("it means %+v", m)
		}
		x.rollback()
		b.check(0, 0)
		// Another step, and another generation of this one, aren't concerned.
		_, err = b.debit(do("other", 1, 1), in30, nil)
		b.want("another step", err, nil)
		_, err = b.debit(do("pay", 2, 1), in30, nil)
		b.want("another generation", err, nil)
		b.check(2, 60)
	})
}

// The compensation comes while the action is still at work: it waits for it, and undoes it.
func TestUndoWaitsForARunningAction(t *testing.T) {
	onEach(t, func(t *testing.T, b *bank) {
		began, finish := make(chan struct{}), make(chan struct{})
		var both sync.WaitGroup
		both.Go(func() {
			_, err := b.debit(do("pay", 1, 1), in30, func() error { close(began); <-finish; return nil })
			b.want("do", err, nil)
		})
		<-began
		both.Go(func() { b.want("undo", b.refund(undo("pay", 1, 1), nil), nil) })
		close(finish)
		both.Wait()
		b.check(2, 0)
	})
}

func TestTwoCallsInOneTransaction(t *testing.T) {
	onEach(t, func(t *testing.T, b *bank) {
		x := b.begin()
		a1, err := debit(do("pay", 1, 1), x, in30, nil)
		b.want("the first", err, nil)
		_, err = debit(do("third", 1, 1), x, in30, func() error { return errors.New("broken") })
		if err == nil {
			t.Error("no error")
		}
		a2, err := debit(do("fee", 1, 1), x, debitIn{"D", 5}, func() error { return saga.Reject("NO", "no") })
		b.want("the second", err, nil)
		again, err := debit(do("pay", 1, 1), x, in30, nil)
		b.want("the first again", err, nil)
		commit := x.commit()
		got, err := a1.After(commit)
		if err != nil || got.ID != "debit of 30 by attempt 1" {
			t.Errorf("the first: %v, %v", got, err)
		}
		if same, err := again.After(commit); err != nil || same != got {
			t.Errorf("the first again: %v, %v", same, err)
		}
		_, err = a2.After(commit)
		b.want("the second", err, saga.Reject("NO", "no"))
		b.check(1, 30)
	})
}

func TestOneCallWithinItselfIsRefused(t *testing.T) {
	onEach(t, func(t *testing.T, b *bank) {
		x := b.begin()
		defer x.rollback()
		_, err := debit(do("pay", 1, 1), x, in30, func() error {
			_, err := debit(do("pay", 1, 1), x, in30, nil)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), "one call is one effect") {
			t.Error(err)
		}
	})
}

func TestLimits(t *testing.T) {
	onEach(t, func(t *testing.T, b *bank) {
		x := b.begin()
		_, err := barrier.Do(do("pay", 1, 1), x.Tx, in30, func() (string, error) {
			return strings.Repeat("x", 256<<10), x.exec("INSERT INTO effect VALUES ('do', 30)")
		})
		if m := saga.MeaningOf(err, false); !m.GiveUp || !strings.Contains(m.Message, "nothing was done") {
			t.Errorf("a result that is too large means %+v", m)
		}
		if err := x.commit(); err != nil {
			t.Error(err)
		}
		b.check(0, 0)
		long := saga.Reject(strings.Repeat("C", 1000), strings.Repeat("m", 10_000)+"\x00\xff")
		for range 2 {
			_, err = b.debit(do("pay", 1, 1), in30, func() error { return long })
			var no saga.Rejection
			if !errors.As(err, &no) || len(no.Code) > 128 || len(no.Message) > 4<<10 {
				t.Errorf("a long rejection: %d and %d bytes", len(no.Code), len(no.Message))
			}
		}
	})
}

func TestWrongContexts(t *testing.T) {
	b := &bank{t: t, begin: databases["sqlite"](t)}
	for name, ctx := range map[string]context.Context{
		"no call":        context.Background(),
		"a compensation": undo("pay", 1, 1),
		"a long key":     do(strings.Repeat("x", 512), 1, 1),
	} {
		if _, err := b.debit(ctx, in30, nil); err == nil {
			t.Errorf("Do with %s: no error", name)
		}
	}
	for name, ctx := range map[string]context.Context{
		"no call":   context.Background(),
		"an action": do("pay", 1, 1),
	} {
		if err := b.refund(ctx, nil); err == nil || errors.Is(err, saga.NothingToUndo) {
			t.Errorf("Undo with %s: %v", name, err)
		}
	}
	b.check(0, 0)
}

func TestPurge(t *testing.T) {
	onEach(t, func(t *testing.T, b *bank) {
		for _, step := range []string{"old", "young"} {
			if _, err := b.debit(do(step, 1, 1), in30, nil); err != nil {
				t.Fatal(err)
			}
		}
		x := b.begin()
		defer x.rollback()
		if err := x.exec("UPDATE sagad_barrier SET stored_at = stored_at - 30 * 86400 WHERE idempotency_key LIKE 'run/old/%'"); err != nil {
			t.Fatal(err)
		}
		day := 24 * time.Hour
		if _, err := barrier.Purge(t.Context(), x.Tx, barrier.RetentionMin-1); err == nil {
			t.Error("too short an age isn't refused")
		}
		for _, c := range []struct {
			age  time.Duration
			want int64
		}{{31 * day, 0}, {29 * day, 1}, {29 * day, 0}, {barrier.RetentionMin, 0}} {
			if n, err := barrier.Purge(t.Context(), x.Tx, c.age); n != c.want || err != nil {
				t.Errorf("purging %v: %d, %v; want %d", c.age, n, err, c.want)
			}
		}
		if n := x.sum("SELECT count(*) FROM sagad_barrier"); n != 1 {
			t.Errorf("%d rows are left, want the young one", n)
		}
	})
}
