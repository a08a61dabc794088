package scenario

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sagad/sagad/internal/faultproxy"
	"github.com/sagad/sagad/internal/node"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

// ackWait is after what silence of a worker its task goes to another one.
const ackWait = 400 * time.Millisecond

func quickAcks(c *node.Config) { c.AckWait = ackWait }

// mortal starts a worker whose connection the test can end, as its death would.
func (r *rig) mortal(register func(*worker.Worker)) (w *worker.Worker, kill func()) {
	r.Helper()
	p, err := faultproxy.Listen(strings.TrimPrefix(r.nats, "nats://"))
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = p.Close() })
	w = r.serve(register, func(c *worker.Config) { c.URL, c.Grace = "nats://"+p.Addr(), time.Millisecond })
	return w, func() { _ = p.Close() }
}

// TestLongWorkAndDeadWorkers: a worker that works for long keeps its task; one that dies loses it after the ack wait, however long the
// step may take. Each step's own timeout is the handler's deadline.
func TestLongWorkAndDeadWorkers(t *testing.T) {
	t.Parallel()
	r := newRig(t, quickAcks)
	b := newBank(map[string]int64{"A": 100, "B": 0})
	var first *worker.Worker
	var kill func()
	b.before = func(ctx context.Context, c call) error {
		switch {
		case c.what == "debit": // much longer than the ack wait, and than the engine waits before it sends an attempt again
			select {
			case <-time.After(10 * ackWait):
			case <-ctx.Done():
			}
		case c.what == "credit" && len(b.of("t")) == 2:
			r.eventually("the end of the debit's message", func() bool { s := first.Stats(); return s.Accepted == 1 && s.Held == 1 })
			time.Sleep(ackWait / 2) // its acknowledgement is on its way, and isn't acknowledged
			kill()
			<-ctx.Done() // of the grace, when all is over
			return ctx.Err()
		case c.what == "credit":
			if at, ok := ctx.Deadline(); !ok || time.Until(at) > 5*time.Minute || time.Until(at) < 4*time.Minute {
				t.Errorf("the deadline of a step of 5 minutes is in %v", time.Until(at))
			}
		case c.what == "notify":
			if at, ok := ctx.Deadline(); !ok || time.Until(at) > 90*time.Second || time.Until(at) < 60*time.Second {
				t.Errorf("the deadline of a step of 90 seconds is in %v", time.Until(at))
			}
		}
		return ctx.Err()
	}
	// The first worker gets the debit; the second, which serves debits too, must not get it as well.
	first, kill = r.mortal(b.register)
	def := saga.Define[transfer, any]("long",
		saga.Do("debit", debit, saga.Fields{"account": "'A'", "amount": "-input.amount"}, saga.Timeout(5*time.Minute)),
		saga.Do("credit", credit, saga.Fields{"account": "'B'", "amount": "input.amount"}, saga.Timeout(5*time.Minute)),
		saga.Read("notify", notify, saga.Fields{"account": "'B'", "amount": "input.amount"}, saga.Timeout(90*time.Second)))
	register(r, def)
	start(r, def, "t", transfer{30})
	b.wait(t, "t", "debit", 1)
	r.serve(func(w *worker.Worker) { worker.Compensatable(w, debit, b.do, b.undo) })
	b.wait(t, "t", "credit", 1)
	r.serve(b.register)
	r.ended("t", completed)
	// Delivery to another worker isn't an attempt.
	if d := cmp.Diff([]string{"debit 1", "credit 1", "credit 1", "notify 1"}, b.story("t")); d != "" {
		t.Error(d)
	}
	calls := b.of("t")
	if took := calls[2].at.Sub(calls[1].at); took > 20*ackWait {
		t.Errorf("the dead worker's task was given to another one after %v", took)
	}
	b.holds(t, map[string]int64{"A": 70, "B": 30})
}

// TestAnswerOfAnUndoIsLost: a saga debits two accounts under one activity; the undo of the second is done, its worker dies before it can say
// so, and another one is asked again. All calls of one undo have one key, the two undos have two.
func TestAnswerOfAnUndoIsLost(t *testing.T) {
	t.Parallel()
	r := newRig(t, quickAcks)
	b := newBank(map[string]int64{"A": 100, "D": 50})
	var kill func()
	var died atomic.Bool
	b.before = func(_ context.Context, c call) error {
		if c.what == "notify" {
			return saga.Reject("NOBODY_THERE", "")
		}
		return nil
	}
	b.after = func(ctx context.Context, c call) error {
		if c.what == "undo second" && died.CompareAndSwap(false, true) {
			kill()
		}
		return nil
	}
	_, kill = r.mortal(b.register)
	def := saga.Define[transfer, any]("twice",
		saga.Do("first", debit, saga.Fields{"account": "'A'", "amount": "-input.amount"}),
		saga.Do("second", debit, saga.Fields{"account": "'D'", "amount": "-input.amount"}, saga.Compensation(saga.Timeout(time.Minute), quick)),
		saga.Read("notify", notify, saga.Fields{"account": "'A'", "amount": "input.amount"}))
	register(r, def)
	start(r, def, "t", transfer{15})
	b.wait(t, "t", "undo second", 1)
	r.serve(b.register)
	r.ended("t", compensated)
	calls := b.of("t")
	keys := map[string]bool{}
	undos := 0
	for _, c := range calls {
		keys[c.key] = true
		if c.what == "undo second" {
			undos++
		}
	}
	if undos < 2 || len(keys) != 5 {
		t.Errorf("%d calls of the undo, %d keys: %v", undos, len(keys), calls)
	}
	b.holds(t, map[string]int64{"A": 100, "D": 50})
}
