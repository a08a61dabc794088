package barrier

import (
	"context"
	"errors"
	"fmt"

	"github.com/sagad/sagad/sdk/saga"
)

// Probed is a probe's answer, which counts once the transaction is committed.
type Probed[Out any] struct{ answer saga.ProbeAnswer[Out] }

// After gives the answer, given what committing the transaction said. If the commit failed there is no answer, and the probe
// is to be tried again: that the action never happens is only so once the tombstone is there.
func (p Probed[Out]) After(commit error) (saga.ProbeAnswer[Out], error) {
	if commit != nil {
		return saga.ProbeAnswer[Out]{}, fmt.Errorf("barrier: the commit failed, so it isn't known whether the action can still happen: %w", commit)
	}
	return p.answer, nil
}

// Probe answers whether the action happened, from what its [Do] stored; ctx is the context of a probe's handler, see worker.Probe:
//
//	worker.Probe(func(ctx context.Context, in ReserveIn) (saga.ProbeAnswer[Reserved], error) {
//		tx, err := s.db.BeginTx(ctx, nil)
//		if err != nil {
//			return saga.ProbeAnswer[Reserved]{}, err
//		}
//		defer tx.Rollback()
//		answer, err := barrier.Probe[Reserved](ctx, barrier.Postgres(tx))
//		if err != nil {
//			return saga.ProbeAnswer[Reserved]{}, err
//		}
//		return answer.After(tx.Commit())
//	})
//
// If the action succeeded the answer is saga.Happened with its output, also if it was undone since. Else it is saga.DidNotHappen, and a tombstone under
// the action's key sees to it that it stays so: attempts that come later are refused with [ErrCompensated]. It waits for an attempt whose
// transaction is open.
//
// After an error nothing is stored: return the error and roll back.
func Probe[Out any](ctx context.Context, tx Tx) (Probed[Out], error) {
	call, ok := saga.CallOf(ctx)
	switch {
	case !ok || !call.Probe || call.ActionKey == "":
		return Probed[Out]{}, errors.New("barrier: this isn't a probe, or the context has no action key: pass on the context of a probe's handler; in tests make one with saga.WithCall")
	case len(call.ActionKey) > keyBytesMax:
		return Probed[Out]{}, fmt.Errorf("barrier: the idempotency key has more than %d bytes", keyBytesMax)
	}
	var p Probed[Out]
	err := tx.guard(ctx, func() error {
		fresh, err := tx.insert(ctx, call.ActionKey, "", nothing, 0, 1)
		if err != nil {
			return err
		}
		p.answer = saga.DidNotHappen[Out]()
		if fresh {
			return nil
		}
		action, err := tx.find(ctx, call.ActionKey)
		if err != nil {
			return err
		}
		switch action.outcome {
		case succeeded:
			var done Out
			if err := saga.Decode([]byte(action.result), &done); err != nil {
				return fmt.Errorf("barrier: the stored result of %s can't be read: %w", call.ActionKey, err)
			}
			p.answer = saga.Happened(done)
		case rejected:
			// A later attempt might be asked anew: not any more.
			if _, err := tx.exec(ctx, "UPDATE sagad_barrier SET undone = 1 WHERE idempotency_key = $1 AND undone = 0", call.ActionKey); err != nil {
				return fmt.Errorf("barrier: marking %s as not to be done: %w", call.ActionKey, err)
			}
		}
		return nil
	})
	if err != nil {
		return Probed[Out]{}, err
	}
	return p, nil
}
