package barrier

import (
	"context"
	"fmt"

	"github.com/sagad/sagad/sdk/saga"
)

// Undone is a compensation's answer, which counts once the transaction is committed.
type Undone struct{ err error }

// After gives the answer, nil or saga.NothingToUndo, given what committing the transaction said. If the commit failed there
// is no answer, and the attempt is to be tried again.
func (u Undone) After(commit error) error {
	if commit != nil {
		return fmt.Errorf("barrier: the commit failed, so the outcome isn't known: %w", commit)
	}
	return u.err
}

// Undo runs effect, which takes back what the action did, once for the action; ctx is the context of a compensation's
// handler. effect gets the result that the action's [Do] stored, and must make all its writes with the transaction of tx. If
// the action was never done, effect isn't run: it leaves a tombstone and the answer is saga.NothingToUndo, as it is if the
// action was rejected, or if effect says so (what it wrote stays then).
//
// After an error nothing of effect stands and nothing is stored, not even saga.CantUndo, since a person may mend the cause and
// try the same call again: return the error and roll back. Without one, commit, and return [Undone.After].
func Undo[Out any](ctx context.Context, tx Tx, effect func(done Out) error) (Undone, error) {
	call, err := callOf(ctx, true)
	if err != nil {
		return Undone{}, err
	}
	asked, err := hashOf(call.ActionKey)
	if err != nil {
		return Undone{}, err
	}
	outcome := succeeded
	err = tx.guard(ctx, func() error {
		before, err := tx.claim(ctx, call.IdempotencyKey, asked, call.Attempt)
		switch {
		case err != nil:
			return err
		case before != nil && before.asked != asked:
			return otherInput(call)
		case before != nil:
			outcome = before.outcome
			return nil
		}
		action, fresh, err := tx.bury(ctx, call.ActionKey)
		switch {
		case err != nil:
			return err
		case action.outcome != succeeded:
			outcome = nothing
		case fresh:
			var done Out
			if err := saga.Decode([]byte(action.result), &done); err != nil {
				return fmt.Errorf("barrier: the stored result of %s can't be read: %w", call.ActionKey, err)
			}
			if err := effect(done); err != nil {
				if saga.MeaningOf(err, true).Kind != saga.NothingUndone {
					return err
				}
				outcome = nothing
			}
		}
		return tx.store(ctx, call.IdempotencyKey, outcome, nil)
	})
	switch {
	case err != nil:
		return Undone{}, err
	case outcome == nothing:
		return Undone{err: saga.NothingToUndo}, nil
	}
	return Undone{}, nil
}
