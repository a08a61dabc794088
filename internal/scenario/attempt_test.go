package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

// TestRetriesPassTheDuplicateWindow: NATS remembers message ids for two minutes; attempts that follow each other within
// milliseconds, and the compensation of the same step, come through all the same.
func TestRetriesPassTheDuplicateWindow(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	b := newBank(map[string]int64{"A": 100, "B": 0})
	b.before = func(_ context.Context, c call) error {
		if c.attempt < 3 && c.what != "notify" {
			return io.ErrUnexpectedEOF
		}
		if c.what == "notify" && c.saga == "t-2" {
			return saga.Reject("NOBODY_THERE", "")
		}
		return nil
	}
	r.serve(b.register)
	def := transferSaga(quick)
	register(r, def)
	start(r, def, "t-1", transfer{30})
	start(r, def, "t-2", transfer{30})
	r.ended("t-1", completed)
	r.ended("t-2", compensated)
	three := func(what string) []string { return []string{what + " 1", what + " 2", what + " 3"} }
	if d := cmp.Diff(slices.Concat(three("debit"), three("credit"), []string{"notify 1"}), b.story("t-1")); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(slices.Concat(three("debit"), three("credit"), []string{"notify 1"}, three("undo credit"), three("undo debit")), b.story("t-2")); d != "" {
		t.Error(d)
	}
	b.holds(t, map[string]int64{"A": 70, "B": 30})
	if n := r.metric("sagad_bus_messages_duplicate_total"); n != 0 {
		t.Errorf("NATS took %v messages for duplicates", n)
	}
}

// TestSuccessAfterTheTimeout: the worker does what it was asked for, but answers when the engine has given the attempt up.
func TestSuccessAfterTheTimeout(t *testing.T) {
	t.Parallel()
	const timeout = 250 * time.Millisecond
	for _, c := range []struct {
		name     string
		attempts int
		// until is what must have happened before the late answer is given.
		until func(r *rig, b *bank)
		end   sagadv1.SagaStatus
		story []string
		money map[string]int64
	}{
		{"while the next attempt is out", 2, func(r *rig, b *bank) { b.wait(r.T, "t", "credit", 2) }, completed,
			[]string{"debit 1", "credit 1", "credit 2", "notify 1"}, map[string]int64{"A": 70, "B": 30}},
		{"while it is undone", 1, func(r *rig, b *bank) { b.wait(r.T, "t", "undo debit", 1) }, compensated,
			[]string{"debit 1", "credit 1", "undo credit 1", "undo debit 1"}, map[string]int64{"A": 100, "B": 0}},
		{"after the end", 1, func(r *rig, _ *bank) { r.until("t", compensated) }, compensated,
			[]string{"debit 1", "credit 1", "undo credit 1", "undo debit 1"}, map[string]int64{"A": 100, "B": 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, nil)
			b := newBank(map[string]int64{"A": 100, "B": 0})
			answered := make(chan struct{})
			b.after = func(_ context.Context, call call) error {
				switch {
				case call.what == "credit" && call.attempt == 1:
					c.until(r, b) // the money has moved; the answer comes now
					close(answered)
				case call.what == "credit" || call.what == "undo debit" && c.name == "while it is undone":
					<-answered
					r.eventually("the late answer", func() bool {
						return step(r.saga("t"), "credit").Action.GetLastOutcome() == historyv1.Outcome_OUTCOME_SUCCEEDED || r.lates("t") > 0
					})
				}
				return nil
			}
			w := r.serve(b.register)
			def := transferSaga(saga.Retry{MaxAttempts: c.attempts, Initial: 10 * time.Millisecond}, saga.Timeout(timeout))
			register(r, def)
			start(r, def, "t", transfer{30})
			r.ended("t", c.end)
			<-answered
			r.eventually("the late result in the history", func() bool { return r.lates("t") == 1 })
			// The worker was told, and lets it rest.
			r.eventually("the worker's rest", func() bool { s := w.Stats(); return s.Held == 0 && s.Stale == 1 })
			r.ended("t", c.end)
			if d := cmp.Diff(c.story, b.story("t")); d != "" {
				t.Error(d)
			}
			b.holds(t, c.money)
			if items := r.saga("t").Items; len(items) != 0 {
				t.Errorf("a person is asked: %v", items)
			}
		})
	}
}

// TestRejectionsSurviveWrapping: a business no stays one, however it is wrapped; other errors and panics are tried again.
func TestRejectionsSurviveWrapping(t *testing.T) {
	t.Parallel()
	no := saga.Reject("INSUFFICIENT_FUNDS", "10.00 EUR left")
	answers := map[string]struct {
		err   error
		calls int
		code  string
	}{
		"bare":            {no, 1, "INSUFFICIENT_FUNDS"},
		"twice":           {fmt.Errorf("a: %w", fmt.Errorf("b: %w", no)), 1, "INSUFFICIENT_FUNDS"},
		"joined":          {errors.Join(io.ErrUnexpectedEOF, no), 1, "INSUFFICIENT_FUNDS"},
		"as-a-cause":      {fmt.Errorf("%w: %w", io.ErrClosedPipe, fmt.Errorf("credit: %w", no)), 1, "INSUFFICIENT_FUNDS"},
		"as-a-value":      {saga.Rejection{Code: "INSUFFICIENT_FUNDS"}, 1, "INSUFFICIENT_FUNDS"},
		"as-a-pointer":    {&saga.Rejection{Code: "INSUFFICIENT_FUNDS"}, 1, "INSUFFICIENT_FUNDS"},
		"a-plain-error":   {io.ErrUnexpectedEOF, 3, "ERROR"},
		"a-wrapped-error": {fmt.Errorf("INSUFFICIENT_FUNDS: %w", io.ErrUnexpectedEOF), 3, "ERROR"},
		"a-panic":         {nil, 3, "PANIC"},
	}
	r := newRig(t, nil)
	b := newBank(map[string]int64{"A": 0, "B": 0})
	b.before = func(_ context.Context, c call) error {
		if c.what != "credit" {
			return nil
		}
		if err := answers[c.saga].err; err != nil {
			return err
		}
		panic("out of luck")
	}
	r.serve(b.register)
	def := transferSaga(quick)
	register(r, def)
	for id := range answers {
		start(r, def, id, transfer{30})
	}
	for id, want := range answers {
		s := r.ended(id, compensated)
		rejected := want.calls == 1
		story := []string{"debit 1"}
		for i := range want.calls {
			story = append(story, fmt.Sprint("credit ", i+1))
		}
		if !rejected { // something may have been done
			story = append(story, "undo credit 1")
		}
		if d := cmp.Diff(append(story, "undo debit 1"), b.story(id)); d != "" {
			t.Errorf("%s: %s", id, d)
		}
		cause := s.Summary.Cause
		if cause.GetStep() != "credit" || cause.GetError().GetCode() != want.code || cause.GetAttempt() != int32(want.calls) {
			t.Errorf("%s: cause %v", id, cause)
		}
		calls := b.of(id)
		if took := calls[len(calls)-1].at.Sub(calls[len(calls)-2].at); rejected && took > 10*time.Second {
			t.Errorf("%s: undone %v after the rejection", id, took)
		}
	}
	b.holds(t, map[string]int64{"A": 0, "B": 0})
}

// TestTheCauseStays: a compensation that fails twice and then works is a compensation that worked, and the saga still says what turned it
// back.
func TestTheCauseStays(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	b := newBank(map[string]int64{"A": 100, "B": 0})
	b.before = func(_ context.Context, c call) error {
		switch {
		case c.what == "notify" && c.attempt == 1:
			return io.ErrUnexpectedEOF
		case c.what == "notify":
			return saga.Reject("CARD_DECLINED", "no reason given")
		case c.what == "undo credit" && c.attempt < 3:
			return fmt.Errorf("the ledger is closed: %w", io.ErrClosedPipe)
		}
		return nil
	}
	r.serve(b.register)
	def := transferSaga(quick)
	register(r, def)
	start(r, def, "t", transfer{30})
	s := r.ended("t", compensated)
	list, err := r.sagas.ListSagas(r.ctx(), &sagadv1.ListSagasRequest{})
	if err != nil || len(list.Sagas) != 1 {
		t.Fatal(list, err)
	}
	for where, cause := range map[string]*historyv1.Cause{"detail": s.Summary.Cause, "list": list.Sagas[0].Cause} {
		if cause.GetStep() != "notify" || cause.GetError().GetCode() != "CARD_DECLINED" || cause.GetAttempt() != 2 {
			t.Errorf("cause in the %s: %v", where, cause)
		}
	}
	undo := step(s, "credit")
	if undo.Status != sagadv1.StepStatus_STEP_STATUS_COMPENSATED || undo.Compensation.Attempts != 3 || undo.Compensation.LastOutcome != historyv1.Outcome_OUTCOME_SUCCEEDED {
		t.Errorf("credit: %v", undo)
	}
	failures := 0
	for _, e := range r.history("t") {
		for _, f := range e.Facts {
			if a := f.GetAttemptEnded(); a.GetCall().GetDirection() == historyv1.Direction_DIRECTION_UNDO && a.GetOutcome() == historyv1.Outcome_OUTCOME_FAILED {
				failures++
			}
		}
	}
	if failures != 2 {
		t.Errorf("%d failures of the compensation in the history\n%s", failures, r.story("t"))
	}
	b.holds(t, map[string]int64{"A": 100, "B": 0})
}

// TestACompensationKeepsFailing: it is called as often as the policy says and no more, then a person is asked, and what comes before it
// waits for them.
func TestACompensationKeepsFailing(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		err   error
		calls int
		code  string
	}{
		"a-plain-error":    {io.ErrUnexpectedEOF, 3, "ERROR"},
		"an-expired-token": {errors.New("unauthenticated: the token given at the start has expired"), 3, "ERROR"},
		"it-cant-undo":     {saga.CantUndo(errors.New("the account is closed")), 1, "CANT_UNDO"},
		"a-business-no":    {saga.Reject("CLOSED", "the account is closed"), 1, "CLOSED"},
	}
	r := newRig(t, nil)
	b := newBank(map[string]int64{"A": 100, "B": 0})
	var repaired atomic.Bool
	b.before = func(_ context.Context, call call) error {
		switch {
		case call.what == "notify":
			return saga.Reject("NOBODY_THERE", "")
		case call.what == "undo credit" && !repaired.Load():
			return cases[call.saga].err
		}
		return nil
	}
	r.serve(b.register)
	def := transferSaga()
	register(r, def)
	for id := range cases {
		start(r, def, id, transfer{30})
	}
	stories := map[string][]string{}
	for id, c := range cases {
		r.until(id, stuck)
		items := r.saga(id).Items
		if len(items) != 1 || items[0].Step != "credit" || items[0].Direction != historyv1.Direction_DIRECTION_UNDO || items[0].Error.GetCode() != c.code || !items[0].Blocking {
			t.Fatalf("%s: items %v", id, items)
		}
		stories[id] = []string{"debit 1", "credit 1", "notify 1"}
		for i := range c.calls {
			stories[id] = append(stories[id], fmt.Sprint("undo credit ", i+1))
		}
	}
	// A busy loop, or the next compensation, would show in ten times the longest delay.
	time.Sleep(time.Second)
	for id := range cases {
		if d := cmp.Diff(stories[id], b.story(id)); d != "" {
			t.Errorf("%s: %s", id, d)
		}
	}
	repaired.Store(true)
	for id, c := range cases {
		r.operate(id, historyv1.OperatorAction_OPERATOR_ACTION_RETRY)
		s := r.ended(id, compensated)
		if d := cmp.Diff(append(stories[id], fmt.Sprint("undo credit ", c.calls+1), "undo debit 1"), b.story(id)); d != "" {
			t.Errorf("%s: %s", id, d)
		}
		if s.Summary.SettledByHand != 0 || len(s.Items) != 0 {
			t.Errorf("%v", s)
		}
	}
	b.holds(t, map[string]int64{"A": 100, "B": 0})
}

// TestNobodyServesACompensation: the item says that no worker serves it; once one does, a retry brings the saga home.
func TestNobodyServesACompensation(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	b := newBank(map[string]int64{"A": 100, "B": 0})
	b.before = func(_ context.Context, c call) error {
		if c.what == "notify" {
			return saga.Reject("NOBODY_THERE", "")
		}
		return nil
	}
	r.serve(func(w *worker.Worker) {
		worker.Compensatable(w, debit, b.do, b.undo)
		// The action alone.
		worker.Activity(w, saga.Activity[move, receipt](credit), b.do)
		worker.ReadOnly(w, notify, b.tell)
	})
	// Long enough for the engine to find out that nobody listens.
	def := transferSaga(saga.Compensation(saga.Timeout(2500*time.Millisecond), saga.Retry{MaxAttempts: 3, Initial: 10 * time.Millisecond}))
	register(r, def)
	start(r, def, "t", transfer{30})
	r.until("t", stuck)
	items := r.saga("t").Items
	if len(items) != 1 || items[0].Step != "credit" || items[0].Error.GetCode() != "NO_WORKER" || items[0].Attempts != 3 {
		t.Fatalf("items %v", items)
	}
	if m := items[0].Error.GetMessage(); !strings.Contains(m, "no worker for") || !strings.Contains(m, "bank.credit") {
		t.Errorf("the item says %q", m)
	}
	if d := cmp.Diff([]string{"debit 1", "credit 1", "notify 1"}, b.story("t")); d != "" {
		t.Error(d)
	}
	r.serve(func(w *worker.Worker) { worker.Compensatable(w, credit, b.do, b.undo) })
	r.operate("t", historyv1.OperatorAction_OPERATOR_ACTION_RETRY)
	r.ended("t", compensated)
	if d := cmp.Diff([]string{"debit 1", "credit 1", "notify 1", "undo credit 4", "undo debit 1"}, b.story("t")); d != "" {
		t.Error(d)
	}
	b.holds(t, map[string]int64{"A": 100, "B": 0})
}

// TestUndoingOutlivesDeadlineAndCancel: what ends the saga doesn't end its compensations; each has its own time, and a context that lives.
func TestUndoingOutlivesDeadlineAndCancel(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"deadline", "cancel"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			b := newBank(map[string]int64{"A": 100, "B": 0})
			b.after = func(ctx context.Context, c call) error {
				switch c.what {
				case "credit": // hangs, having done it
					<-ctx.Done()
					return ctx.Err()
				case "undo credit", "undo debit":
					// Longer than the saga's whole deadline.
					select {
					case <-time.After(1200 * time.Millisecond):
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				return nil
			}
			r.serve(b.register)
			parts := []saga.Part{
				saga.Do("debit", debit, saga.Fields{"account": "'A'", "amount": "-input.amount"}),
				saga.Do("credit", credit, saga.Fields{"account": "'B'", "amount": "input.amount"}, saga.Timeout(1500*time.Millisecond)),
			}
			if by == "deadline" {
				parts = append(parts, saga.Deadline(time.Second))
			}
			def := saga.Define[transfer, any]("slow", parts...)
			register(r, def)
			run := start(r, def, "t", transfer{30})
			b.wait(t, "t", "credit", 1)
			kind := historyv1.CauseKind_CAUSE_KIND_DEADLINE
			if by == "cancel" {
				kind = historyv1.CauseKind_CAUSE_KIND_CANCELLED
				if err := run.Cancel(r.ctx(), "changed my mind"); err != nil {
					t.Fatal(err)
				}
			}
			s := r.ended("t", compensated)
			if s.Summary.Cause.GetKind() != kind {
				t.Errorf("cause %v", s.Summary.Cause)
			}
			if d := cmp.Diff([]string{"debit 1", "credit 1", "undo credit 1", "undo debit 1"}, b.story("t")); d != "" {
				t.Errorf("%s\n%s", d, r.story("t"))
			}
			calls := b.of("t")
			if gap := calls[3].at.Sub(calls[2].at); gap < 1200*time.Millisecond {
				t.Errorf("the second compensation began %v after the first: it didn't wait for its end", gap)
			}
			b.holds(t, map[string]int64{"A": 100, "B": 0})
		})
	}
}
