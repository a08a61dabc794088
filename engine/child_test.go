package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// The id o6 is such that, on two nodes, the order and its children are on both.
//
// Family: order runs two child sagas, one after the other, and then a step; hotel books a room and takes a deposit.
func order() *sagadv1.Definition {
	return &sagadv1.Definition{
		Name:       "order",
		Activities: []*sagadv1.Activity{{Name: "shop.ship"}},
		Body: []*sagadv1.Node{
			{Kind: &sagadv1.Node_Child{Child: &sagadv1.Child{Name: "first", Definition: "hotel", Kind: sagadv1.Kind_KIND_COMPENSATABLE, Input: &sagadv1.Mapping{Value: "input"}}}},
			{Kind: &sagadv1.Node_Child{Child: &sagadv1.Child{Name: "second", Definition: "hotel", Kind: sagadv1.Kind_KIND_COMPENSATABLE, Input: &sagadv1.Mapping{Value: "first"}}}},
			comp("ship", "shop.ship"),
		},
	}
}

func hotel() *sagadv1.Definition {
	return &sagadv1.Definition{
		Name:       "hotel",
		Activities: []*sagadv1.Activity{{Name: "hotel.deposit"}, {Name: "hotel.room"}},
		Body: []*sagadv1.Node{comp("room", "hotel.room"), comp("deposit", "hotel.deposit"),
			{Kind: &sagadv1.Node_Return{Return: &sagadv1.Return{Output: &sagadv1.Mapping{Value: "room"}}}}},
	}
}

func comp(name, activity string) *sagadv1.Node {
	return &sagadv1.Node{Kind: &sagadv1.Node_Step{Step: &sagadv1.Step{
		Name: name, Activity: activity, Kind: sagadv1.Kind_KIND_COMPENSATABLE, Timeout: durationpb.New(5 * time.Second),
		Retry: &sagadv1.RetryPolicy{MaxAttempts: 2, Initial: durationpb.New(100 * time.Millisecond)},
	}}}
}

func (w *world) family(n *node) {
	w.Helper()
	for _, def := range []*sagadv1.Definition{hotel(), order()} {
		if _, _, err := n.Register(context.Background(), "default", def); err != nil {
			w.Fatal(err)
		}
	}
}

func (w *world) status(id string) store.Status {
	s, _ := w.saga(id)
	return s.Status
}

// start order starts the order at the node that has its shard.
func (w *world) order(id string) {
	w.Helper()
	for range 100 {
		for _, n := range w.engines {
			if n.dead() {
				continue
			}
			_, err := n.StartSaga(context.Background(), StartRequest{Namespace: "default", ID: id, Definition: "order", Input: []byte(`{"n":1}`)})
			if err == nil {
				return
			}
			var elsewhere *NotOwnerError
			var unavailable *UnavailableError
			if !errors.As(err, &elsewhere) && !errors.As(err, &unavailable) {
				w.Fatal(err)
			}
		}
		time.Sleep(time.Second)
	}
	w.Fatal("the saga can't be started")
}

// rejects refuses the given steps of the given sagas.
func rejects(steps ...string) func(*workerv1.Task) *workerv1.Result {
	return func(t *workerv1.Task) *workerv1.Result {
		for _, s := range steps {
			id, step, _ := strings.Cut(s, " ")
			if t.Step == step && t.SagaId == id && t.Direction == doing {
				return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_REJECTED, Code: "NO"}
			}
		}
		return nil
	}
}

// effects counts what stands of a saga, by its ledger.
func (w *world) stands(id string) int {
	s, ok := w.saga(id)
	if !ok {
		return 0
	}
	done, undone := w.ledger.Effects(s.Run.String())
	return done - undone
}

func TestChildSagas(t *testing.T) {
	for _, tt := range []struct {
		name, rejects             string
		order, first, second      store.Status
		standsFirst, standsSecond int
		cause                     string
	}{
		{"all is well", "", store.Completed, store.Completed, store.Completed, 2, 2, ""},
		{"the parent fails after both", "o6 ship", store.Compensated, store.Compensated, store.Compensated, 0, 0, "NO"},
		{"the second child fails", "o6/second deposit", store.Compensated, store.Compensated, store.Compensated, 0, 0, "NO"},
		{"the first child fails", "o6/first room", store.Compensated, store.Compensated, 0, 0, 0, "NO"},
	} {
		for _, nodes := range []int{1, 2} {
			t.Run(fmt.Sprint(tt.name, " ", nodes), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, 16, rejects(tt.rejects))
					w.family(w.start("e1"))
					if nodes == 2 {
						w.start("e2")
						time.Sleep(2 * time.Minute) // the shards move
					}
					w.order("o6")
					if s := w.wait("o6"); s.Status != tt.order {
						t.Fatalf("the order is %d", s.Status)
					}
					for _, c := range []struct {
						id     string
						want   store.Status
						stands int
					}{{"o6/first", tt.first, tt.standsFirst}, {"o6/second", tt.second, tt.standsSecond}} {
						if c.want != 0 {
							w.wait(c.id)
						}
						if got := w.status(c.id); got != c.want || w.stands(c.id) != c.stands {
							t.Errorf("%s is %d with %d effects, want %d with %d", c.id, got, w.stands(c.id), c.want, c.stands)
						}
					}
					if nodes == 2 && w.bus.Noted() == 0 {
						t.Error("no note went between nodes: nothing is tested")
					}
					w.bus.Close()
					for _, n := range w.engines {
						n.halt()
					}
				})
			})
		}
	}
}

// TestChildSagasOverBadNews: notes are lost, and nodes killed, and yet the family ends as one.
func TestChildSagasOverBadNews(t *testing.T) {
	for _, every := range []int{2, 3} {
		for _, reject := range []string{"", "o6 ship", "o6/second deposit"} {
			t.Run(fmt.Sprint(every, reject), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, 16, rejects(reject))
					w.family(w.start("e1"))
					w.start("e2")
					time.Sleep(2 * time.Minute)
					w.bus.LoseNotes(func(n int) bool { return n%every == 1 })
					w.order("o6")
					time.Sleep(time.Second)
					w.engines[0].Kill()
					want := store.Compensated
					if reject == "" {
						want = store.Completed
					}
					for range 20 {
						if w.status("o6").Terminal() && w.status("o6/first").Terminal() && (w.status("o6/second").Terminal() || w.status("o6/second") == 0) {
							break
						}
						time.Sleep(time.Minute)
					}
					for _, id := range []string{"o6", "o6/first", "o6/second"} {
						if got := w.status(id); got != want {
							t.Errorf("%s is %d, want %d", id, got, want)
						}
					}
					w.bus.Close()
					for _, n := range w.engines {
						n.halt()
					}
				})
			})
		}
	}
}

// TestChildrenAreChecked: what can't run as a child saga is refused with the definition that names it.
func TestChildrenAreChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4, nil)
		n := w.start("e1")
		w.family(n)
		naming := func(name string, kids ...string) *sagadv1.Definition {
			def := &sagadv1.Definition{Name: name, Activities: []*sagadv1.Activity{{Name: "a.b"}}, Body: []*sagadv1.Node{comp("s", "a.b")}}
			for i, kid := range kids {
				def.Body = append(def.Body, &sagadv1.Node{Kind: &sagadv1.Node_Child{Child: &sagadv1.Child{
					Name: fmt.Sprint("k", i), Definition: kid, Kind: sagadv1.Kind_KIND_COMPENSATABLE,
				}}})
			}
			return def
		}
		final := naming("final")
		final.Body[0].GetStep().Kind = sagadv1.Kind_KIND_PIVOT
		for _, tt := range []struct {
			def  *sagadv1.Definition
			rule string
		}{
			{final, ""},
			{naming("a", "nothere"), "child-unknown"},
			{naming("a", "a"), "child-cycle"},
			{naming("a", "final"), "child-pivot"},
			{naming("b", "hotel"), ""},
			{naming("a", "b"), ""},
			{naming("b", "hotel", "a"), "child-cycle"},
			{naming("hotel", "a"), "child-cycle"},
		} {
			_, _, err := n.Register(context.Background(), "default", tt.def)
			var problems *ProblemsError
			if rule := ""; errors.As(err, &problems) {
				rule = problems.Problems[0].GetRule()
				if rule != tt.rule || problems.Problems[0].GetMend() == "" {
					t.Errorf("%s is refused by %q, want %q: %v", tt.def.GetName(), rule, tt.rule, err)
				}
			} else if err != nil || tt.rule != "" {
				t.Errorf("%s: %v, want %q", tt.def.GetName(), err, tt.rule)
			}
		}
		w.bus.Close()
		n.halt()
	})
}

// TestChildIsKept: a child that is done can't be cancelled while its parent counts on it, and is done for good once the parent is.
func TestChildIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		w := newWorld(t, 4, func(t *workerv1.Task) *workerv1.Result {
			if t.Step == "ship" {
				<-hold
			}
			return nil
		})
		n := w.start("e1")
		w.family(n)
		w.order("o6")
		for range 100 {
			synctest.Wait()
			if _, s, _, err := n.Get(context.Background(), "default", "o6/second"); err == nil && s.Provisional {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		answer, status, err := n.Cancel(context.Background(), "default", "o6/first", statemachine.Cancel{Reason: "r"})
		if err != nil || answer != sagadv1.CancelAnswer_CANCEL_ANSWER_TOO_LATE_COMPLETED || status != statemachine.Running {
			t.Errorf("%v %v %v", answer, status, err)
		}
		close(hold)
		for _, id := range []string{"o6", "o6/first", "o6/second"} {
			if s := w.wait(id); s.Status != store.Completed {
				t.Errorf("%s is %d", id, s.Status)
			}
		}
		w.bus.Close()
		n.halt()
	})
}
