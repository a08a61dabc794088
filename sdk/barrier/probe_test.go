package barrier_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sagad/sagad/sdk/barrier"
	"github.com/sagad/sagad/sdk/saga"
)

// ask is of an action's first generation.
func ask(step string, attempt int) context.Context {
	return saga.WithCall(context.Background(), &saga.Call{
		Step: step, Generation: 1, Attempt: attempt, Probe: true,
		IdempotencyKey: fmt.Sprintf("run/%s/-/probe/1", step), ActionKey: fmt.Sprintf("run/%s/-/do/1", step),
	})
}

// found is a probe's answer in words.
func (b *bank) found(step string) string {
	b.t.Helper()
	x := b.begin()
	defer x.rollback()
	p, err := barrier.Probe[debited](ask(step, 1), x.Tx)
	if err != nil {
		b.t.Fatal(err)
	}
	a, err := p.After(x.commit())
	if err != nil {
		b.t.Fatal(err)
	}
	switch finding, out, _ := a.Finding(); finding {
	case saga.Occurred:
		return "happened: " + out.ID
	case saga.Absent:
		return "did not happen"
	}
	return "can't tell"
}

func TestProbe(t *testing.T) {
	onEach(t, func(t *testing.T, b *bank) {
		// It happened.
		if _, err := b.debit(do("pay", 1, 1), in30, nil); err != nil {
			t.Fatal(err)
		}
		const happened, didNot = "happened: debit of 30 by attempt 1", "did not happen"
		for range 2 {
			if got := b.found("pay"); got != happened {
				t.Errorf("%s", got)
			}
		}
		b.want("the compensation of what was asked about", b.refund(undo("pay", 1, 1), nil), nil)
		b.check(2, 0)
		if got := b.found("pay"); got != happened {
			t.Errorf("after its compensation: %s", got)
		}

		// It didn't, and never will.
		for range 2 {
			if got := b.found("late"); got != didNot {
				t.Errorf("%s", got)
			}
		}
		_, err := b.debit(do("late", 1, 1), in30, nil)
		b.want("an action after the probe", err, barrier.ErrCompensated)
		b.want("its compensation", b.refund(undo("late", 1, 1), nil), saga.NothingToUndo)
		b.check(2, 0)

		// It was rejected, and no later attempt can do it.
		no := func() error { return saga.Reject("NO", "no money") }
		if _, err := b.debit(do("poor", 1, 1), in30, no); err == nil {
			t.Error("not rejected")
		}
		if got := b.found("poor"); got != didNot {
			t.Errorf("rejected: %s", got)
		}
		_, err = b.debit(do("poor", 1, 2), in30, nil)
		b.want("a later attempt", err, barrier.ErrCompensated)
		_, err = b.debit(do("poor", 1, 1), in30, nil)
		if m := saga.MeaningOf(err, false); m.Code != "NO" {
			t.Errorf("the rejected attempt again: %v", err)
		}
		b.check(2, 0)

		// Without a commit nothing is said.
		x := b.begin()
		p, err := barrier.Probe[debited](ask("open", 1), x.Tx)
		if err != nil {
			t.Fatal(err)
		}
		x.rollback()
		lost := errors.New("lost")
		if _, err := p.After(lost); !errors.Is(err, lost) {
			t.Errorf("%v", err)
		}
		if _, err := b.debit(do("open", 1, 1), in30, nil); err != nil {
			t.Errorf("after a probe that came to nothing: %v", err)
		}
		b.check(3, 30)
	})
}

// A probe waits for the attempt that is running, and its answer is true of how that ends.
func TestProbeWaitsForARunningAction(t *testing.T) {
	for name, commits := range map[string]bool{"commits": true, "crashes": false} {
		t.Run(name, func(t *testing.T) { probeWaits(t, commits) })
	}
}

func probeWaits(t *testing.T, commits bool) {
	onEach(t, func(t *testing.T, b *bank) {
		began, finish := make(chan struct{}), make(chan struct{})
		crash := errors.New("crash")
		var done sync.WaitGroup
		done.Go(func() {
			_, err := b.debit(do("pay", 1, 1), in30, func() error {
				close(began)
				<-finish
				if commits {
					return nil
				}
				return crash
			})
			if commits != (err == nil) {
				b.t.Errorf("the action: %v", err)
			}
		})
		<-began
		got := make(chan string)
		go func() { got <- b.found("pay") }()
		close(finish)
		want, effects, cents := "did not happen", int64(0), int64(0)
		if commits {
			want, effects, cents = "happened: debit of 30 by attempt 1", 1, 30
		}
		if diff := cmp.Diff(want, <-got); diff != "" {
			t.Error(diff)
		}
		done.Wait()
		b.check(effects, cents)
	})
}

func TestProbeMisused(t *testing.T) {
	db := databases["sqlite"](t)
	x := db()
	defer x.rollback()
	for name, err := range map[string]error{
		"a probe in an action": func() error { _, err := barrier.Probe[debited](do("pay", 1, 1), x.Tx); return err }(),
		"an action in a probe": func() error {
			_, err := barrier.Do(ask("pay", 1), x.Tx, in30, func() (debited, error) { return debited{}, nil })
			return err
		}(),
		"a compensation in a probe": func() error {
			_, err := barrier.Undo(ask("pay", 1), x.Tx, func(debited) error { return nil })
			return err
		}(),
		"outside of handlers": func() error { _, err := barrier.Probe[debited](context.Background(), x.Tx); return err }(),
	} {
		if err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
