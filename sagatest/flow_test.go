package sagatest_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sagad/sagad/sagatest"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

// parcels are sent, each to be packed and labelled.
type (
	parcelsIn struct {
		Parcels []string `json:"parcels"`
	}
	parcelIn struct {
		Name string `json:"name"`
	}
	decision struct {
		Yes bool `json:"yes"`
	}
)

var (
	pack     = saga.Compensatable[parcelIn, refOut]{Name: "parcel.pack"}
	label    = saga.Compensatable[parcelIn, refOut]{Name: "parcel.label"}
	handOver = saga.Activity[none, none]{Name: "parcel.hand-over"}
	paid     = saga.Signal[moneyIn]{Name: "paid"}
)

// parcelWorld counts packed and labelled parcels, and those handed over.
func parcelWorld(after map[string]int, bug string) sagatest.World {
	return func(testing.TB) (func(*worker.Worker), func(testing.TB, *sagatest.Saga)) {
		b := newBooks(nil)
		act := func(what string) func(context.Context, parcelIn) (refOut, error) {
			return func(ctx context.Context, in parcelIn) (refOut, error) {
				key := saga.IdempotencyKey(ctx)
				if bug == "elements share a key" {
					key = saga.SagaID(ctx) + saga.StepName(ctx)
				}
				return once(ctx, b, key, func() (refOut, error) {
					if in.Name == "bomb" {
						return refOut{}, saga.Reject("BOMB", "not this one")
					}
					b.numbers[what]++
					return refOut{in.Name}, nil
				})
			}
		}
		back := func(what string) func(context.Context, saga.Undo[parcelIn, refOut]) error {
			return func(ctx context.Context, u saga.Undo[parcelIn, refOut]) error {
				if bug == "undo missing" && what == "packed" {
					return nil
				}
				return undo(ctx, b, u.ActionKey, func(refOut) { b.numbers[what]-- })
			}
		}
		return func(w *worker.Worker) {
			worker.Compensatable(w, pack, act("packed"), back("packed"))
			worker.Compensatable(w, label, act("labelled"), back("labelled"))
			worker.Activity(w, handOver, func(ctx context.Context, _ none) (none, error) {
				return once(ctx, b, saga.IdempotencyKey(ctx), func() (none, error) { b.numbers["handed over"]++; return none{}, nil })
			})
		}, b.keep(nil, after)
	}
}

func clean(t *testing.T, what string, f func(testing.TB)) {
	t.Helper()
	if rec := sagatest.Record(t, f); rec.Failed {
		t.Errorf("%s: %s", what, rec.Text)
	}
}

// TestTime: a saga sleeps for weeks, waits for a payment and asks a person, in no time.
func TestTime(t *testing.T) {
	def := saga.Define[parcelIn, any]("slow-parcel",
		saga.Do("pack", pack, saga.Value("input")),
		saga.Sleep("rest", 14*24*time.Hour),
		saga.Wait("payment", paid, saga.Timeout(72*time.Hour)),
		saga.Approve[decision]("ok", saga.Title("'Send ' + input.name + '?'"), saga.Timeout(24*time.Hour)),
		saga.If("ok.yes && payment.cents > 0",
			saga.Do("label", label, saga.Value("input"))),
		saga.Pivot("hand_over", handOver, saga.Fields{}))
	after := map[string]int{"packed": 1, "labelled": 1, "handed over": 1}
	yes := []sagatest.Option{sagatest.Signal("paid", "p1", moneyIn{"ann", 5}), sagatest.Answer("ok", decision{true})}
	register, _ := parcelWorld(after, "")(t)
	s := sagatest.Run(t, def, parcelIn{"tea"}, register, yes...)
	if s.Status != sagatest.Completed || s.Took != 14*24*time.Hour || s.Called("label", false) != 1 {
		t.Errorf("%s after %v\n%s", s.Status, s.Took, s)
	}
	// What isn't given times out, and the saga unwinds.
	register, _ = parcelWorld(after, "")(t)
	s = sagatest.Run(t, def, parcelIn{"tea"}, register, yes[1])
	if s.Status != sagatest.Compensated || s.Took != 17*24*time.Hour || s.Cause.Code != "SIGNAL_TIMEOUT" {
		t.Errorf("%s after %v: %+v\n%s", s.Status, s.Took, s.Cause, s)
	}
	clean(t, "unwind", func(t testing.TB) { sagatest.Unwind(t, def, parcelIn{"tea"}, parcelWorld(after, ""), yes...) })
}

// TestWaits: a saga that waits for ever says for what.
func TestWaits(t *testing.T) {
	def := saga.Define[parcelIn, any]("waiting-parcel", saga.Deadline(1000*time.Hour),
		saga.Do("pack", pack, saga.Value("input")),
		saga.Wait("payment", paid),
		saga.Pivot("hand_over", handOver, saga.Fields{}))
	register, _ := parcelWorld(nil, "")(t)
	s := sagatest.Run(t, def, parcelIn{"tea"}, register)
	if s.Status != sagatest.Compensated || s.Took != 1000*time.Hour {
		t.Errorf("%s after %v\n%s", s.Status, s.Took, s)
	}
}

// TestFlow: control flow of all kinds is unwound.
func TestFlow(t *testing.T) {
	each := func(name string, extra ...saga.MapPart) saga.Node {
		return saga.Map(name, "input.parcels", append([]saga.MapPart{
			saga.Do("pack", pack, saga.Fields{"name": name + ".item"}), saga.Do("label", label, saga.Fields{"name": name + ".item"})}, extra...)...)
	}
	five := parcelsIn{[]string{"a", "b", "c", "d", "e"}}
	for _, c := range []struct {
		name  string
		def   *saga.Definition[parcelsIn, any]
		input parcelsIn
		after map[string]int
		opts  []sagatest.Option
	}{
		{"map", saga.Define[parcelsIn, any]("flow-map", each("all"), saga.Pivot("hand_over", handOver, saga.Fields{})), five, map[string]int{"packed": 5, "labelled": 5, "handed over": 1}, nil},
		{"loop", saga.Define[parcelsIn, any]("flow-loop",
			saga.Loop("again", 5, saga.Initial(saga.Value("0")), saga.Do("pack", pack, saga.Fields{"name": "'x'"}), saga.Next(saga.Value("again.value + 1")), saga.While("again.value < 2")),
			saga.Pivot("hand_over", handOver, saga.Fields{})), five, map[string]int{"packed": 3, "handed over": 1}, nil},
		{"switch", saga.Define[parcelsIn, any]("flow-switch",
			saga.Switch("many", saga.Case("size(input.parcels) > 3", saga.Do("pack", pack, saga.Fields{"name": "'x'"})), saga.Default(saga.Do("label", label, saga.Fields{"name": "'x'"}))),
			saga.Pivot("hand_over", handOver, saga.Fields{})), five, map[string]int{"packed": 1, "handed over": 1}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			clean(t, "unwind", func(t testing.TB) { sagatest.Unwind(t, c.def, c.input, parcelWorld(c.after, ""), c.opts...) })
			clean(t, "repeat", func(t testing.TB) {
				sagatest.Repeat(t, c.def, c.input, parcelWorld(c.after, ""), append(c.opts, sagatest.Concurrently())...)
			})
			rec := sagatest.Record(t, func(t testing.TB) {
				sagatest.Unwind(t, c.def, c.input, parcelWorld(c.after, "undo missing"), c.opts...)
			})
			if !rec.Failed || !strings.Contains(rec.Text, "look at the compensation of pack") {
				t.Errorf("a missing undo isn't found:\n%s", rec.Text)
			}
		})
	}
	def := saga.Define[parcelsIn, any]("flow-map", each("all"), saga.Pivot("hand_over", handOver, saga.Fields{}))
	rec := sagatest.Record(t, func(t testing.TB) {
		sagatest.Unwind(t, def, five, parcelWorld(map[string]int{"packed": 5, "labelled": 5, "handed over": 1}, "elements share a key"))
	})
	if !rec.Failed || !strings.Contains(rec.Text, `sagatest.Only("undisturbed")`) {
		t.Errorf("elements that share a key aren't found:\n%s", rec.Text)
	}
}

// TestSeveralEnds: where a saga can complete in more than one way, the check asks which way it went.
func TestSeveralEnds(t *testing.T) {
	same := func(want func(s *sagatest.Saga) map[string]int) sagatest.World {
		return func(tb testing.TB) (func(*worker.Worker), func(testing.TB, *sagatest.Saga)) {
			var check func(testing.TB, *sagatest.Saga)
			after := map[string]int{}
			register, check := parcelWorld(after, "")(tb)
			return register, func(t testing.TB, s *sagatest.Saga) {
				clear(after)
				for name, n := range want(s) {
					after[name] = n
				}
				check(t, s)
			}
		}
	}
	// stands counts what stands of a step, as the engine sees it.
	stands := func(s *sagatest.Saga) map[string]int {
		n := map[string]int{"handed over": 1}
		for _, e := range s.Effects {
			if e.State == sagatest.Stands {
				switch e.Step {
				case "pack", "pack2":
					n["packed"]++
				case "label", "label2":
					n["labelled"]++
				}
			}
		}
		return n
	}
	savepoint := saga.Define[parcelIn, any]("flow-savepoint",
		saga.Savepoint("try", saga.Body(saga.Do("pack", pack, saga.Value("input")), saga.Do("label", label, saga.Value("input"))),
			saga.Alternative(saga.Do("pack2", pack, saga.Value("input")))),
		saga.Pivot("hand_over", handOver, saga.Fields{}))
	clean(t, "savepoint", func(t testing.TB) { sagatest.Unwind(t, savepoint, parcelIn{"tea"}, same(stands)) })
	race := saga.Define[parcelIn, any]("flow-race",
		saga.Any("either", saga.Do("pack", pack, saga.Value("input")), saga.Do("label", label, saga.Value("input"))),
		saga.Pivot("hand_over", handOver, saga.Fields{}))
	clean(t, "race", func(t testing.TB) { sagatest.Unwind(t, race, parcelIn{"tea"}, same(stands)) })
	tolerant := saga.Define[parcelsIn, any]("flow-tolerant",
		saga.Map("each", "input.parcels", saga.Tolerate(2), saga.Do("pack", pack, saga.Fields{"name": "each.item"}), saga.Do("label", label, saga.Fields{"name": "each.item"})),
		saga.Pivot("hand_over", handOver, saga.Fields{}))
	clean(t, "tolerant", func(t testing.TB) { sagatest.Unwind(t, tolerant, parcelsIn{[]string{"a", "bomb", "c"}}, same(stands)) })
}

// TestChild: a child saga is run, and unwound with its parent.
func TestChild(t *testing.T) {
	child := saga.Define[parcelIn, refOut]("flow-child",
		saga.Do("pack", pack, saga.Value("input")),
		saga.Sleep("rest", time.Hour),
		saga.Do("label", label, saga.Value("input")),
		saga.Return(saga.Value("label")))
	parent := saga.Define[parcelIn, any]("flow-parent",
		saga.Child("parcel", child, saga.Value("input")),
		saga.Do("label2", label, saga.Fields{"name": "parcel.ref"}),
		saga.Pivot("hand_over", handOver, saga.Fields{}))
	after := map[string]int{"packed": 1, "labelled": 2, "handed over": 1}
	register, check := parcelWorld(after, "")(t)
	s := sagatest.Run(t, parent, parcelIn{"tea"}, register, sagatest.With(child))
	if s.Status != sagatest.Completed || s.Took < time.Hour {
		t.Fatalf("%s, waits for %s after %v\n%s", s.Status, s.WaitsFor, s.Took, s)
	}
	check(t, s)
	register, check = parcelWorld(after, "")(t)
	s = sagatest.Run(t, parent, parcelIn{"tea"}, register, sagatest.With(child), sagatest.Fail("label2", sagatest.Rejected("NO")))
	if s.Status != sagatest.Compensated {
		t.Fatalf("%s, waits for %s after %v\n%s", s.Status, s.WaitsFor, s.Took, s)
	}
	check(t, s)
	clean(t, "unwind", func(t testing.TB) {
		sagatest.Unwind(t, parent, parcelIn{"tea"}, parcelWorld(after, ""), sagatest.With(child))
	})
}

// TestClaimed: activities that are claimed, and can be asked, are unwound like all others.
func TestClaimed(t *testing.T) {
	truck := saga.Compensatable[parcelIn, refOut]{Name: "truck.book", Probe: true, Claimed: true}
	def := saga.Define[parcelIn, any]("flow-claimed",
		saga.Do("truck", truck, saga.Value("input"), saga.Heartbeat(5*time.Second)),
		saga.Pivot("hand_over", handOver, saga.Fields{}))
	world := func(bug bool) sagatest.World {
		return func(testing.TB) (func(*worker.Worker), func(testing.TB, *sagatest.Saga)) {
			b := newBooks(nil)
			return func(w *worker.Worker) {
				worker.Compensatable(w, truck,
					func(ctx context.Context, in parcelIn) (refOut, error) {
						return once(ctx, b, saga.IdempotencyKey(ctx), func() (refOut, error) { b.numbers["trucks"]++; return refOut{"truck"}, nil })
					},
					func(ctx context.Context, u saga.Undo[parcelIn, refOut]) error {
						return undo(ctx, b, u.ActionKey, func(refOut) { b.numbers["trucks"]-- })
					},
					worker.Probe(func(ctx context.Context, in parcelIn) (found saga.ProbeAnswer[refOut], err error) {
						err = b.tx(ctx, func() error {
							found = saga.DidNotHappen[refOut]()
							if !bug && b.answers[saga.ActionKey(ctx)] != nil {
								found = saga.Happened(refOut{"truck"})
							}
							b.undone[saga.ActionKey(ctx)] = b.undone[saga.ActionKey(ctx)] || b.answers[saga.ActionKey(ctx)] == nil
							return nil
						})
						return found, err
					}))
				worker.Activity(w, handOver, func(ctx context.Context, _ none) (none, error) { return none{}, nil })
			}, b.keep(nil, map[string]int{"trucks": 1})
		}
	}
	clean(t, "unwind", func(t testing.TB) { sagatest.Unwind(t, def, parcelIn{"tea"}, world(false)) })
	clean(t, "repeat", func(t testing.TB) { sagatest.Repeat(t, def, parcelIn{"tea"}, world(false), sagatest.Concurrently()) })
	rec := sagatest.Record(t, func(t testing.TB) { sagatest.Unwind(t, def, parcelIn{"tea"}, world(true)) })
	if !rec.Failed || !strings.Contains(rec.Text, "trucks is 1, want 0") {
		t.Errorf("a probe that lies isn't found:\n%s", rec.Text)
	}
}
