package sagatest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sagad/sagad/sagatest"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

// order runs the sample order in a world without bugs.
func order(t *testing.T, input orderIn, opts ...sagatest.Option) *sagatest.Saga {
	t.Helper()
	register, check := orderWorld("")(t)
	s := sagatest.Run(t, placeOrder, input, register, opts...)
	if s.Status == sagatest.Completed || s.Status == sagatest.Compensated {
		check(t, s)
	}
	return s
}

func TestRun(t *testing.T) {
	s := order(t, oneOrder)
	var out refOut
	if err := s.Decode(&out); err != nil || out.Ref != "reservation of tea" || s.Status != sagatest.Completed || s.Cause != nil || len(s.Items) > 0 {
		t.Errorf("%v %v %v\n%s", err, out, s.Status, s)
	}
	if len(s.Calls) != 4 || s.Called("hold", false) != 1 || s.Called("hold", true) != 0 || s.Effect("mail") != sagatest.Stands || s.Took != 0 {
		t.Errorf("%+v %+v %v", s.Calls, s.Effects, s.Took)
	}
}

func TestRunOutcomes(t *testing.T) {
	for _, c := range []struct {
		name   string
		opts   []sagatest.Option
		status sagatest.Status
		// calls are the handlers' calls, in order: "-" before an undo.
		calls string
		cause string
	}{
		{"rejected", []sagatest.Option{sagatest.Fail("hold", sagatest.Rejected("NO"))}, sagatest.Compensated, "reserve -reserve", "NO"},
		{"error", []sagatest.Option{sagatest.Fail("hold", sagatest.Errored())}, sagatest.Completed, "reserve hold take mail", ""},
		{"error, always", []sagatest.Option{sagatest.Fail("hold", sagatest.Errored().Always())}, sagatest.Compensated, "reserve -hold -reserve", "INJECTED"},
		{"error, second", []sagatest.Option{sagatest.Fail("hold", sagatest.UnknownNotDone()), sagatest.Fail("hold", sagatest.Errored().On(2))}, sagatest.Completed, "reserve hold take mail", ""},
		{"error after", []sagatest.Option{sagatest.Fail("hold", sagatest.ErroredAfter())}, sagatest.Completed, "reserve hold hold take mail", ""},
		{"unknown, done", []sagatest.Option{sagatest.Fail("hold", sagatest.UnknownDone())}, sagatest.Completed, "reserve hold hold take mail", ""},
		{"unknown, not done", []sagatest.Option{sagatest.Fail("hold", sagatest.UnknownNotDone().Always())}, sagatest.Compensated, "reserve -hold -reserve", "TIMEOUT"},
		{"late", []sagatest.Option{sagatest.Fail("hold", sagatest.Late().Always())}, sagatest.Compensated, "reserve -hold hold hold hold -reserve", "TIMEOUT"},
		{"late, at the end", []sagatest.Option{sagatest.Fail("hold", sagatest.Late().Always().AtEnd())}, sagatest.Compensated, "reserve -hold -reserve hold hold hold", "TIMEOUT"},
		{"late answer", []sagatest.Option{sagatest.Fail("hold", sagatest.LateAnswer().Always())}, sagatest.Compensated, "reserve hold hold hold -hold -reserve", "TIMEOUT"},
		{"duplicate", []sagatest.Option{sagatest.Fail("hold", sagatest.Duplicate())}, sagatest.Completed, "reserve hold hold take mail", ""},
		{"crash before", []sagatest.Option{sagatest.Fail("hold", sagatest.CrashBefore())}, sagatest.Completed, "reserve hold take mail", ""},
		{"crash after", []sagatest.Option{sagatest.Fail("hold", sagatest.CrashAfter())}, sagatest.Completed, "reserve hold hold take mail", ""},
		{"interrupted", []sagatest.Option{sagatest.Fail("hold", sagatest.Interrupted(1).Always())}, sagatest.Compensated, "reserve hold hold hold -hold -reserve", "ERROR"},
		{"undo", []sagatest.Option{sagatest.Fail("take", sagatest.Rejected("NO")), sagatest.FailUndo("hold", sagatest.Duplicate()), sagatest.FailUndo("reserve", sagatest.ErroredAfter())},
			sagatest.Compensated, "reserve hold -hold -hold -reserve -reserve", "NO"},
		{"cancel", []sagatest.Option{sagatest.CancelBefore("hold")}, sagatest.Compensated, "reserve hold -hold -reserve", "CANCELLED"},
		{"stuck", []sagatest.Option{sagatest.Fail("take", sagatest.UnknownDone().Always())}, sagatest.Stuck, "reserve hold take take take", ""},
		{"stuck, retried", []sagatest.Option{sagatest.Fail("take", sagatest.UnknownDone()), sagatest.Fail("take", sagatest.UnknownDone().On(2)),
			sagatest.Fail("take", sagatest.UnknownDone().On(3)), sagatest.RetriedByHand(1)}, sagatest.Completed, "reserve hold take take take take mail", ""},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			s := order(t, oneOrder, c.opts...)
			var calls []string
			for _, x := range s.Calls {
				if x.Handled {
					calls = append(calls, map[bool]string{true: "-"}[x.Undo]+x.Step)
				}
			}
			cause := ""
			if s.Cause != nil {
				cause = s.Cause.Code
			}
			if s.Status != c.status || strings.Join(calls, " ") != c.calls || cause != c.cause {
				t.Errorf("%s, %s, cause %s\n%s", s.Status, strings.Join(calls, " "), cause, s)
			}
			if (s.Status == sagatest.Stuck) != (s.WaitsFor != "") {
				t.Errorf("waits for %q", s.WaitsFor)
			}
		})
	}
}

// TestDay: a saga that backs off for a day between attempts takes no time.
func TestDay(t *testing.T) {
	ask := saga.ReadOnly[none, none]{Name: "ask"}
	def := saga.Define[none, any]("patient", saga.Deadline(2000*time.Hour),
		saga.Read("ask", ask, saga.Value("input"), saga.Timeout(time.Hour), saga.Retry{MaxAttempts: 30, Initial: 24 * time.Hour, Factor: 1, Max: 24 * time.Hour}))
	began := time.Now()
	n := 0
	s := sagatest.Run(t, def, none{}, func(w *worker.Worker) {
		worker.ReadOnly(w, ask, func(context.Context, none) (none, error) {
			if n++; n < 30 {
				return none{}, saga.RetryAfter(24*time.Hour, errors.New("not yet"))
			}
			return none{}, nil
		})
	})
	if s.Status != sagatest.Completed || s.Took < 29*24*time.Hour || n != 30 {
		t.Errorf("%s after %v, %d calls", s.Status, s.Took, n)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	// The deadline passes in no time either.
	s = sagatest.Run(t, def, none{}, func(w *worker.Worker) {
		worker.ReadOnly(w, ask, func(context.Context, none) (none, error) {
			return none{}, saga.RetryAfter(700*time.Hour, errors.New("never"))
		})
	})
	if s.Status != sagatest.Compensated || s.Cause.Code != "DEADLINE" || s.Took < 2000*time.Hour || s.Took > 2001*time.Hour {
		t.Errorf("%s after %v", s.Status, s.Took)
	}
}

// TestMisuse: what can't be run says what to do.
func TestMisuse(t *testing.T) {
	register, _ := orderWorld("")(t)
	for _, c := range []struct {
		name string
		want string
		f    func(t testing.TB)
	}{
		{"refused", "return-missing", func(t testing.TB) {
			sagatest.Run(t, saga.Define[none, none]("bad"), none{}, register)
		}},
		{"handler missing", "no handler is registered for mail.send (its action), money.hold (its action), money.hold (its compensation)", func(t testing.TB) {
			sagatest.Run(t, placeOrder, oneOrder, func(w *worker.Worker) {
				worker.Compensatable(w, reserveStock, func(context.Context, itemIn) (refOut, error) { return refOut{}, nil }, func(context.Context, saga.Undo[itemIn, refOut]) error { return nil })
				worker.Activity(w, takeMoney, func(context.Context, moneyIn) (none, error) { return none{}, nil })
			})
		}},
		{"registered wrongly", "its compensation is nil", func(t testing.TB) {
			sagatest.Run(t, placeOrder, oneOrder, func(w *worker.Worker) {
				worker.Compensatable(w, reserveStock, func(context.Context, itemIn) (refOut, error) { return refOut{}, nil }, nil)
			})
		}},
		{"no such step", `Fail("holt", rejected) struck nothing`, func(t testing.TB) {
			sagatest.Run(t, placeOrder, oneOrder, register, sagatest.Fail("holt", sagatest.Rejected("NO")))
		}},
		{"world can't be made", "no database today", func(t testing.TB) {
			sagatest.Unwind(t, placeOrder, oneOrder, func(t testing.TB) (func(*worker.Worker), func(testing.TB, *sagatest.Saga)) {
				t.Fatal("no database today")
				return nil, nil
			})
		}},
		{"hangs", "doesn't come back within 20ms", func(t testing.TB) {
			def := saga.Define[none, any]("hanging", saga.Read("ask", saga.ReadOnly[none, none]{Name: "ask"}, saga.Value("input")))
			sagatest.Run(t, def, none{}, func(w *worker.Worker) {
				worker.ReadOnly(w, saga.ReadOnly[none, none]{Name: "ask"}, func(context.Context, none) (none, error) { select {} })
			}, sagatest.Patience(20*time.Millisecond))
		}},
		{"panics", "the action of ask panics", func(t testing.TB) {
			def := saga.Define[none, any]("panicking", saga.Read("ask", saga.ReadOnly[none, none]{Name: "ask"}, saga.Value("input")))
			sagatest.Unwind(t, def, none{}, func(testing.TB) (func(*worker.Worker), func(testing.TB, *sagatest.Saga)) {
				return func(w *worker.Worker) {
					worker.ReadOnly(w, saga.ReadOnly[none, none]{Name: "ask"}, func(context.Context, none) (none, error) { panic("no") })
				}, nil
			})
		}},
		{"fatal in a handler", "ended its goroutine", func(t testing.TB) {
			def := saga.Define[none, any]("fatal", saga.Read("ask", saga.ReadOnly[none, none]{Name: "ask"}, saga.Value("input")))
			sagatest.Unwind(t, def, none{}, func(t testing.TB) (func(*worker.Worker), func(testing.TB, *sagatest.Saga)) {
				return func(w *worker.Worker) {
					worker.ReadOnly(w, saga.ReadOnly[none, none]{Name: "ask"}, func(context.Context, none) (none, error) { t.Fatal("no"); return none{}, nil })
				}, nil
			})
		}},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			if rec := sagatest.Record(t, c.f); !rec.Failed || !strings.Contains(rec.Text, c.want) {
				t.Errorf("want %q, got\n%s", c.want, rec.Text)
			}
		})
	}
}

// TestWorldIsCleanedUp: each run has its own world, and its clean-ups are run before the next.
func TestWorldIsCleanedUp(t *testing.T) {
	open, made := 0, 0
	sagatest.Unwind(t, transferMoney, transferIn{"a", "b", 30}, func(t testing.TB) (func(*worker.Worker), func(testing.TB, *sagatest.Saga)) {
		made++
		if open++; open != 1 {
			t.Errorf("%d worlds at once", open)
		}
		t.Cleanup(func() { open-- })
		return transferWorld("")(t)
	})
	if open != 0 || made < 100 {
		t.Errorf("%d open, %d made", open, made)
	}
}

// TestOnly: a run that was found is made again by its name.
func TestOnly(t *testing.T) {
	made := 0
	world := func(t testing.TB) (func(*worker.Worker), func(testing.TB, *sagatest.Saga)) {
		made++
		return orderWorld("no tombstone")(t)
	}
	rec := sagatest.Record(t, func(t testing.TB) {
		sagatest.Unwind(t, placeOrder, oneOrder, world, sagatest.Only("reserve/late/always"))
	})
	if made != 2 || !strings.Contains(rec.Text, "a tombstone") {
		t.Errorf("%d runs\n%s", made, rec.Text)
	}
}

// TestFast: a saga of ten steps is unwound in every way in less than two seconds of CPU time.
func TestFast(t *testing.T) {
	act := saga.Compensatable[none, refOut]{Name: "act"}
	var parts []saga.Part
	for i := range 9 {
		parts = append(parts, saga.Do(fmt.Sprint("step", i), act, saga.Value("{}")))
	}
	parts = append(parts, saga.Pivot("pivot", saga.Activity[none, none]{Name: "pivot"}, saga.Value("{}")))
	def := saga.Define[none, any]("ten-steps", parts...)
	cpu := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	began, busy := time.Now(), cpu()
	made := 0
	sagatest.Unwind(t, def, none{}, func(testing.TB) (func(*worker.Worker), func(testing.TB, *sagatest.Saga)) {
		made++
		b := newBooks(nil)
		return func(w *worker.Worker) {
			worker.Compensatable(w, act,
				func(ctx context.Context, _ none) (refOut, error) {
					return once(ctx, b, saga.IdempotencyKey(ctx), func() (refOut, error) { b.numbers["acts"]++; return refOut{}, nil })
				},
				func(ctx context.Context, u saga.Undo[none, refOut]) error {
					return undo(ctx, b, u.ActionKey, func(refOut) { b.numbers["acts"]-- })
				})
			worker.Activity(w, saga.Activity[none, none]{Name: "pivot"}, func(context.Context, none) (none, error) { return none{}, nil })
		}, b.keep(nil, map[string]int{"acts": 9})
	})
	// The process's own time counts: the machine may have other things to do.
	used := cpu() - busy
	t.Logf("%d runs in %v, of which %v CPU time", made, time.Since(began), used)
	if used > 2*time.Second && !raceEnabled || made < 300 {
		t.Errorf("%d runs in %v of CPU time", made, used)
	}
}

func TestGolden(t *testing.T) {
	sagatest.Golden(t, placeOrder)

	// A change shows, and so does a missing file.
	t.Chdir(t.TempDir())
	rec := sagatest.Record(t, func(t testing.TB) { sagatest.Golden(t, placeOrder) })
	if !rec.Failed || !strings.Contains(rec.Text, "-sagatest.update") {
		t.Errorf("no file: %s", rec.Text)
	}
	old := saga.Define[transferIn, any]("sample-transfer",
		saga.Do("withdraw", withdraw, saga.Value("input")),
		saga.Pivot("confirm", confirm, saga.Value("input"), saga.Timeout(time.Minute)))
	if err := os.Mkdir("testdata", 0o777); err != nil {
		t.Fatal(err)
	}
	text, err := sagatest.CanonicalText(old)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join("testdata", "sample-transfer.golden"), text, 0o666); err != nil {
		t.Fatal(err)
	}
	if rec := sagatest.Record(t, func(t testing.TB) { sagatest.Golden(t, old) }); rec.Failed {
		t.Errorf("the same: %s", rec.Text)
	}
	rec = sagatest.Record(t, func(t testing.TB) { sagatest.Golden(t, transferMoney) })
	for _, want := range []string{`+         "name": "deposit",`, `-         "timeout": `, "its next version"} {
		if !strings.Contains(rec.Text, want) {
			t.Errorf("want %q in\n%s", want, rec.Text)
		}
	}
}

func TestSteady(t *testing.T) {
	sagatest.Steady(t, func() *saga.Definition[tripIn, any] { return bookTrip })
	n := 0
	rec := sagatest.Record(t, func(t testing.TB) {
		sagatest.Steady(t, func() *saga.Definition[transferIn, any] {
			n++
			return saga.Define[transferIn, any]("unsteady", saga.Do(fmt.Sprint("step", n), withdraw, saga.Value("input")))
		})
	})
	if !rec.Failed || !strings.Contains(rec.Text, `+         "name": "step2"`) {
		t.Errorf("%s", rec.Text)
	}
}

// TestRepeat: what is right is right, at the same time too.
func TestRepeat(t *testing.T) {
	sagatest.Repeat(t, placeOrder, oneOrder, orderWorld(""), sagatest.Concurrently())
	sagatest.Repeat(t, bookTrip, tripIn{"oslo"}, bookingWorld(""), sagatest.Concurrently())
}

// TestConcurrently: a handler that looks first and acts later is found out.
func TestConcurrently(t *testing.T) {
	act := saga.Activity[none, none]{Name: "act"}
	def := saga.Define[none, any]("racing", saga.Pivot("act", act, saga.Value("{}")))
	worlds := 0
	rec := sagatest.Record(t, func(t testing.TB) {
		sagatest.Repeat(t, def, none{}, func(testing.TB) (func(*worker.Worker), func(testing.TB, *sagatest.Saga)) {
			worlds++
			b, disturbed := newBooks(nil), worlds > 1
			calls, both := 0, make(chan struct{})
			return func(w *worker.Worker) {
				worker.Activity(w, act, func(ctx context.Context, _ none) (none, error) {
					b.mu.Lock()
					done := b.undone[saga.IdempotencyKey(ctx)]
					if calls++; calls == 2 {
						close(both)
					}
					b.mu.Unlock()
					if done {
						return none{}, nil
					}
					if disturbed {
						<-both // have looked
					}
					b.mu.Lock()
					defer b.mu.Unlock()
					b.undone[saga.IdempotencyKey(ctx)] = true
					b.numbers["acts"]++
					return none{}, nil
				})
			}, b.keep(nil, map[string]int{"acts": 1})
		}, sagatest.Concurrently())
	})
	if !rec.Failed || !strings.Contains(rec.Text, "acts is 2, want 1") || !strings.Contains(rec.Text, "in one transaction, or under one lock") {
		t.Errorf("%s", rec.Text)
	}
}
