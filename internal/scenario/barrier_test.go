package scenario

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/sagad/sagad/sdk/barrier"
	"github.com/sagad/sagad/sdk/client"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

// purse is a worker's own database: a balance, and the barrier's table beside it.
type purse struct {
	t  *testing.T
	db *sql.DB
}

func newPurse(t *testing.T) *purse {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "purse.db")+"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	p := &purse{t, db}
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if err := barrier.CreateTable(t.Context(), barrier.SQLite(tx)); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec("CREATE TABLE purse (cents INTEGER); INSERT INTO purse VALUES (100)"); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *purse) balance() (cents int) {
	if err := p.db.QueryRow("SELECT cents FROM purse").Scan(&cents); err != nil {
		p.t.Fatal(err)
	}
	return cents
}

func (p *purse) take(ctx context.Context, cents int) (string, error) {
	tx, err := p.db.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = tx.Rollback() }()
	answer, err := barrier.Do(context.WithoutCancel(ctx), barrier.SQLite(tx), cents, func() (string, error) {
		_, err := tx.Exec("UPDATE purse SET cents = cents - ?", cents)
		return "taken", err
	})
	if err != nil {
		return "", err
	}
	return answer.After(tx.Commit())
}

func (p *purse) giveBack(ctx context.Context, u saga.Undo[int, string]) error {
	tx, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	answer, err := barrier.Undo(ctx, barrier.SQLite(tx), func(string) error {
		_, err := tx.Exec("UPDATE purse SET cents = cents + ?", u.Input)
		return err
	})
	if err != nil {
		return err
	}
	return answer.After(tx.Commit())
}

var (
	takeMoney = saga.Compensatable[int, string]{Name: "purse.take"}
	spend     = saga.Define[int, string]("spend",
		saga.Do("take", takeMoney, saga.Value("input"), saga.Timeout(300*time.Millisecond), saga.Retry{MaxAttempts: 1}),
		saga.Return(saga.Value("take")))
)

// TestUndoOvertakesTheAction: an action is slow, its attempt times out, and its compensation is done before it has written anything. When it
// wants to write at last, the barrier refuses it in the very transaction of the write.
func TestUndoOvertakesTheAction(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := newPurse(t)
	undone, late := make(chan struct{}), make(chan error, 1)
	r.serve(func(w *worker.Worker) {
		worker.Compensatable(w, takeMoney, func(ctx context.Context, cents int) (string, error) {
			<-undone
			out, err := p.take(ctx, cents)
			late <- err
			return out, err
		}, func(ctx context.Context, u saga.Undo[int, string]) error {
			err := p.giveBack(ctx, u)
			if errors.Is(err, saga.NothingToUndo) {
				close(undone)
			}
			return err
		})
	})
	register(r, spend)
	if _, err := client.Start(r.ctx(), r.client, spend, "s", 30); err != nil {
		t.Fatal(err)
	}
	r.ended("s", compensated)
	select {
	case err := <-late:
		if !errors.Is(err, barrier.ErrCompensated) {
			t.Errorf("the late action was answered with %v", err)
		}
	case <-r.ctx().Done():
		t.Fatal("the action never came back")
	}
	if got := p.balance(); got != 100 {
		t.Errorf("the balance is %d", got)
	}
	if story := r.story("s"); !strings.Contains(story, "nothing to undo") {
		t.Errorf("the compensation found something:\n%s", story)
	}
}

// TestUndoWithoutAnAction: the action's task reaches no worker before its time is up. Its compensation gives nothing back that was never taken; and
// when the task comes after all, it is refused.
func TestUndoWithoutAnAction(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := newPurse(t)
	register(r, spend)
	if _, err := client.Start(r.ctx(), r.client, spend, "s", 30); err != nil {
		t.Fatal(err)
	}
	// Nobody is there; the attempt is given up, and the compensation waits for a worker.
	r.until("s", compensating)
	var calls []error
	r.serve(func(w *worker.Worker) {
		worker.Compensatable(w, takeMoney, func(ctx context.Context, cents int) (string, error) {
			out, err := p.take(ctx, cents)
			calls = append(calls, err)
			return out, err
		}, p.giveBack)
	})
	r.ended("s", compensated)
	if got := p.balance(); got != 100 {
		t.Errorf("the balance is %d, after %v", got, calls)
	}
}
