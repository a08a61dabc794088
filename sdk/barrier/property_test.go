package barrier_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/sagad/sagad/sdk/barrier"
	"github.com/sagad/sagad/sdk/saga"
)

// A call of a step: what its handler comes to, if it is run, and whether its process lives to commit.
type deed struct {
	Undo                bool
	Generation, Attempt int
	End                 string // ok, reject, fail, crash
}

var ends = []string{"ok", "ok", "ok", "reject", "fail", "crash"}

var (
	errBroken = errors.New("broken")
	errCrash  = errors.New("crash")
)

// account is what is known of one step from the answers.
type account struct {
	mu        sync.Mutex
	done      bool // an action was answered with success
	undone    bool // a compensation was answered
	empty     bool // one of them with nothing to undo
	result    string
	conflicts []string
}

// act does a deed, and notes the answer.
func (b *bank) act(step string, d deed, seen *account) {
	x := b.begin()
	defer x.rollback()
	end := func(what string) error {
		if err := x.exec(fmt.Sprintf("INSERT INTO effect VALUES ('%s', %d)", step, map[string]int{"do": 1, "undo": -1}[what])); err != nil {
			return err
		}
		switch {
		case d.End == "fail":
			return errBroken
		case d.End == "reject" && what == "do":
			return saga.Reject("NO", "no")
		case d.End == "reject":
			return saga.CantUndo(errBroken)
		}
		return nil
	}
	commit := func() error {
		if d.End == "crash" {
			x.rollback()
			return errCrash
		}
		return x.commit()
	}
	if d.Undo {
		answer, err := barrier.Undo(undo(step, d.Generation, d.Attempt), x.Tx, func(string) error { return end("undo") })
		if err == nil {
			err = answer.After(commit())
		}
		seen.mu.Lock()
		defer seen.mu.Unlock()
		seen.undone = seen.undone || err == nil || errors.Is(err, saga.NothingToUndo)
		seen.empty = seen.empty || errors.Is(err, saga.NothingToUndo)
		if !seen.undone && !errors.Is(err, errBroken) && !errors.Is(err, errCrash) {
			seen.conflicts = append(seen.conflicts, fmt.Sprintf("%+v: %v", d, err))
		}
		return
	}
	ctx := do(step, 1, d.Attempt)
	answer, err := barrier.Do(ctx, x.Tx, step, func() (string, error) {
		return fmt.Sprintf("by attempt %d, %d", d.Attempt, rand.Int64()), end("do")
	})
	var result string
	if err == nil {
		result, err = answer.After(commit())
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if err == nil {
		if seen.done && seen.result != result {
			seen.conflicts = append(seen.conflicts, fmt.Sprintf("%+v: results %q and %q", d, seen.result, result))
		}
		seen.done, seen.result = true, result
	} else if saga.MeaningOf(err, false).Kind != saga.Rejected && !errors.Is(err, errBroken) && !errors.Is(err, errCrash) {
		seen.conflicts = append(seen.conflicts, fmt.Sprintf("%+v: %v", d, err))
	}
}

// audit compares the effects with the answers.
func (b *bank) audit(step string, seen *account) error {
	x := b.begin()
	defer x.rollback()
	dos := x.sum(fmt.Sprintf("SELECT count(*) FROM effect WHERE what = '%s' AND cents = 1", step))
	undos := x.sum(fmt.Sprintf("SELECT count(*) FROM effect WHERE what = '%s' AND cents = -1", step))
	seen.mu.Lock()
	defer seen.mu.Unlock()
	// A compensation was answered, or not; each answer is committed, and so is what isn't answered because of a later failure of
	// the same call: there is none here, so effects and answers are the same.
	var wantDos, wantUndos int64
	if seen.done {
		wantDos = 1
		if seen.undone {
			wantUndos = 1
		}
	}
	switch {
	case len(seen.conflicts) > 0:
		return fmt.Errorf("%s: %q", step, seen.conflicts)
	case seen.done && seen.empty:
		return fmt.Errorf("%s was done, and its compensation said that there was nothing to undo", step)
	case dos != wantDos || undos != wantUndos:
		return fmt.Errorf("%s: %d effects and %d undone, want %d and %d", step, dos, undos, wantDos, wantUndos)
	}
	return nil
}

// Whatever the order of actions and compensations, their failures and crashes: what is answered is what stands.
func TestNetEffect(t *testing.T) {
	b := &bank{t: t, begin: databases["sqlite"](t)}
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		step, seen := fmt.Sprintf("s%d", n), new(account)
		deeds := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) deed {
			return deed{rapid.Bool().Draw(t, "undo"), rapid.IntRange(1, 2).Draw(t, "generation"), rapid.IntRange(1, 3).Draw(t, "attempt"), rapid.SampledFrom(ends).Draw(t, "end")}
		}), 1, 10).Draw(t, "deeds")
		for i, d := range deeds {
			b.act(step, d, seen)
			if err := b.audit(step, seen); err != nil {
				t.Fatalf("after %+v: %v", deeds[:i+1], err)
			}
		}
	})
}

// The same with all of a step's calls at once.
func TestNetEffectOfRacingCalls(t *testing.T) {
	onEach(t, func(t *testing.T, b *bank) {
		const steps, racers, deeds = 60, 5, 3
		rnd := rand.New(rand.NewPCG(1, 2))
		for s := range steps {
			step, seen := fmt.Sprintf("s%d", s), new(account)
			var all sync.WaitGroup
			for range racers {
				var mine []deed
				for range deeds {
					mine = append(mine, deed{rnd.IntN(3) == 0, 1 + rnd.IntN(2), 1 + rnd.IntN(4), ends[rnd.IntN(len(ends))]})
				}
				all.Go(func() {
					for _, d := range mine {
						b.act(step, d, seen)
					}
				})
			}
			all.Wait()
			if err := b.audit(step, seen); err != nil {
				t.Error(err)
			}
		}
	})
}
