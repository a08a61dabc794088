package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/sagad/sagad/sdk/saga"
)

// faults are what goes wrong on purpose: rates from 0 to 1, of all attempts that could. What happens to an attempt
// depends on the seed, the order, the step and the attempt alone, so a run can be repeated.
type faults struct {
	seed uint64
	// reject: the card's bank says no.
	reject float64
	// fail: an error, before anything was done.
	fail float64
	// timeout: the handler hangs until nobody waits for it any more; every other one then does its work all the same.
	timeout float64
	// loseReply: the effect is done, but the answer is lost: an error, or a handler that hangs.
	loseReply float64
	// breakUndo is a step whose compensation always fails.
	breakUndo string
}

type fault int

const (
	faultNone fault = iota
	faultFail
	faultHang
	faultLate
	faultLoseReply
	faultLoseReplyHang
)

var errInjected = errors.New("injected by the example's flags")

// dice is a number in [0, 1) for the words.
func (f *faults) dice(words ...string) float64 {
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, f.seed)
	for _, w := range words {
		_, _ = h.Write([]byte(w))
		_, _ = h.Write([]byte{0})
	}
	// FNV's high bits hardly change with the last bytes: mix them (the finalizer of MurmurHash3).
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	return float64(x>>11) / (1 << 53)
}

// rejects says that the order's card is to be declined, at any attempt.
func (f *faults) rejects(orderID string) bool { return f.dice("reject", orderID) < f.reject }

// choose is what happens to an attempt.
func (f *faults) choose(orderID, call string, attempt int) fault {
	at := fmt.Sprint(attempt)
	d, half := f.dice("fault", orderID, call, at), f.dice("half", orderID, call, at) < 0.5
	switch {
	case d < f.fail:
		return faultFail
	case d < f.fail+f.timeout && half:
		return faultHang
	case d < f.fail+f.timeout:
		return faultLate
	case d < f.fail+f.timeout+f.loseReply && half:
		return faultLoseReply
	case d < f.fail+f.timeout+f.loseReply:
		return faultLoseReplyHang
	}
	return faultNone
}

// attempt runs work, with the fault that is chosen for it. call names the step, and "undo" for compensations.
func attempt[Out any](ctx context.Context, f *faults, orderID, call string, work func(context.Context) (Out, error)) (Out, error) {
	var none Out
	switch f.choose(orderID, call, saga.Attempt(ctx)) {
	case faultFail:
		return none, fmt.Errorf("%s: an error: %w", call, errInjected)
	case faultHang:
		pastDeadline(ctx, f.dice("late", orderID, call))
		return none, fmt.Errorf("%s: hung: %w", call, errInjected)
	case faultLate:
		// The request was on its way for too long, and is carried out when nobody waits for it any more.
		pastDeadline(ctx, f.dice("late", orderID, call))
		return work(context.WithoutCancel(ctx))
	case faultLoseReply:
		if _, err := work(ctx); err != nil {
			return none, err
		}
		return none, fmt.Errorf("%s: done, but the answer was lost: %w", call, errInjected)
	case faultLoseReplyHang:
		if _, err := work(ctx); err != nil {
			return none, err
		}
		pastDeadline(ctx, 0)
		return none, fmt.Errorf("%s: done, but the answer was lost: %w", call, errInjected)
	}
	return work(ctx)
}

// pastDeadline waits until the attempt's deadline is over, and up to half a second more.
func pastDeadline(ctx context.Context, more float64) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return
	}
	time.Sleep(time.Until(deadline) + time.Duration(more*float64(500*time.Millisecond)) + 10*time.Millisecond)
}
