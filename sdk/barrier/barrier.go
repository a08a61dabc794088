package barrier

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/sagad/sagad/internal/wire"
	"github.com/sagad/sagad/sdk/saga"
)

// ErrCompensated refuses an action whose compensation, or probe, has been there before it. It is a rejection, as nothing was done and
// asking again won't help; find it with errors.Is.
var ErrCompensated error = saga.Reject("ALREADY_COMPENSATED", "the compensation of this action, or a probe that didn't find it, came before it, so it isn't done any more")

// ErrOtherInput refuses a call whose key was used for another request. It is answered as a failure that isn't tried
// again, and not as a rejection: under this key something may have been done.
var ErrOtherInput = errors.New("barrier: the idempotency key was used for another request")

// keyBytesMax bounds a key. The engine's are shorter.
const keyBytesMax = 512

// Answer is an action's answer, which counts once the transaction is committed.
type Answer[Out any] struct {
	out Out
	err error
}

// After gives the answer, given what committing the transaction said. If the commit failed there is no answer, and the
// attempt is to be tried again: if it was committed all the same, the next one gets what is stored.
func (a Answer[Out]) After(commit error) (Out, error) {
	if commit != nil {
		var none Out
		return none, fmt.Errorf("barrier: the commit failed, so the outcome isn't known: %w", commit)
	}
	return a.out, a.err
}

// Do runs effect once for the idempotency key in ctx, the context of an action's handler, and keeps its answer. effect must make
// all its writes with the transaction of tx. in is the handler's input; other members than before don't matter as long as they
// are null, zero or empty, so types may grow while sagas run.
//
// After an error nothing of effect stands: return the error and roll back. Without one, commit, and return
// [Answer.After]. Beside the database's errors and effect's own, it may be [ErrCompensated] or [ErrOtherInput]. A result of
// more than 256 KiB, or one that isn't JSON, is an error too, and nothing is done.
func Do[In, Out any](ctx context.Context, tx Tx, in In, effect func() (Out, error)) (Answer[Out], error) {
	var a Answer[Out]
	call, err := callOf(ctx, false)
	if err != nil {
		return a, err
	}
	asked, err := hashOf(in)
	if err != nil {
		return a, err
	}
	once := func(run func() (outcome string, result []byte, err error)) error {
		return tx.guard(ctx, func() error {
			before, err := tx.claim(ctx, call.IdempotencyKey, asked, call.Attempt)
			if err != nil {
				return err
			}
			if before != nil {
				a, err = answerOf[Out](before, call, asked)
				return err
			}
			outcome, result, err := run()
			if err != nil {
				return err
			}
			return tx.store(ctx, call.IdempotencyKey, outcome, result)
		})
	}
	var failed bool // effect did
	err = once(func() (string, []byte, error) {
		out, err := effect()
		if err != nil {
			failed = true
			return "", nil, err
		}
		a.out = out
		result, err := saga.Encode(out)
		if err != nil {
			return "", nil, saga.GiveUp(fmt.Errorf("barrier: the result can't be kept, so nothing was done: %w", err))
		}
		return succeeded, result, nil
	})
	if failed {
		if m := saga.MeaningOf(err, false); m.Kind == saga.Rejected {
			// What effect wrote, and the claim, are rolled back. Another attempt may have come in between: then that one's answer counts.
			no := saga.Rejection{Code: wire.CleanText(m.Code, wire.ResultCodeBytesMax), Message: wire.CleanText(m.Message, wire.ResultMessageBytesMax)}
			err = once(func() (string, []byte, error) {
				a = Answer[Out]{err: no}
				result, err := json.Marshal(no)
				return rejected, result, err
			})
		}
	}
	if err != nil {
		return Answer[Out]{}, err
	}
	return a, nil
}

// answerOf is the answer that is stored.
func answerOf[Out any](r *row, call *saga.Call, asked string) (a Answer[Out], err error) {
	switch {
	case r.outcome == nothing:
		return a, ErrCompensated
	case r.asked != asked:
		return a, otherInput(call)
	case r.outcome == succeeded:
		// Also if it is undone by now: it is what this call was answered.
		if err := saga.Decode([]byte(r.result), &a.out); err != nil {
			return a, fmt.Errorf("barrier: the stored result of %s can't be read: %w", call.IdempotencyKey, err)
		}
		return a, nil
	case r.undone && call.Attempt > r.attempt:
		return a, ErrCompensated
	}
	var no saga.Rejection
	if err := json.Unmarshal([]byte(r.result), &no); err != nil {
		return a, fmt.Errorf("barrier: the stored rejection of %s can't be read: %w", call.IdempotencyKey, err)
	}
	return Answer[Out]{err: no}, nil
}

func otherInput(call *saga.Call) error {
	return saga.GiveUp(fmt.Errorf("%w: %s", ErrOtherInput, call.IdempotencyKey))
}

// callOf is the call that ctx belongs to.
func callOf(ctx context.Context, undo bool) (*saga.Call, error) {
	call, ok := saga.CallOf(ctx)
	switch {
	case !ok || call.IdempotencyKey == "":
		return nil, errors.New("barrier: the context has no idempotency key: pass on the handler's context; in tests make one with saga.WithCall")
	case call.Probe:
		return nil, errors.New("barrier: this is a probe: call barrier.Probe, not Do or Undo")
	case call.Undo && !undo:
		return nil, errors.New("barrier: this is a compensation: call barrier.Undo, not Do")
	case undo && (!call.Undo || call.ActionKey == ""):
		return nil, errors.New("barrier: this isn't a compensation, or the context has no action key: call barrier.Do in actions")
	case len(call.IdempotencyKey) > keyBytesMax || len(call.ActionKey) > keyBytesMax:
		return nil, fmt.Errorf("barrier: the idempotency key has more than %d bytes", keyBytesMax)
	}
	return call, nil
}
