package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sagad/sagad/engine/enginetest"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// committedTasks lets the bus take only tasks whose attempts are durable, and tells of others.
func (w *world) committedTasks() {
	m, problems := statemachine.Compile(enginetest.Transfer())
	if problems != nil {
		w.Fatal(problems)
	}
	w.bus.Filter(func(t *workerv1.Task) bool {
		key := store.Key{Shard: store.ShardOf(t.Namespace, t.SagaId, w.shards), Namespace: t.Namespace, ID: t.SagaId}
		found, err := w.st.Load(context.Background(), []store.Key{key})
		if err != nil || len(found) != 1 {
			w.Errorf("a task of a saga that isn't there: %v %v", t, err)
			return false
		}
		state, _, err := foldSafely(m, &found[0])
		if err != nil {
			w.Error(err)
			return false
		}
		call := statemachine.Call{Step: t.Step, Dir: 1}
		if t.Direction == undoing {
			call.Dir = 2
		}
		if c := state.Call(call); c.Attempt < t.Attempt || c.Generation < t.Generation {
			w.Errorf("a task of an attempt that isn't durable: %v", t)
		}
		return true
	})
}

// TestTransfersOutliveKills: two hundred transfers, while the process is killed between commit and publish, and between publish and
// whatever comes next, and starts again by itself. Each account is debited and credited two hundred times.
func TestTransfersOutliveKills(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const transfers = 200
				w := newWorld(t, 8, nil)
				w.committedTasks()
				random := rand.New(rand.NewPCG(seed, 1))
				var mu sync.Mutex
				var current atomic.Pointer[node]
				kills := map[string]int{}
				up := func() {
					var self atomic.Pointer[node]
					self.Store(w.start("e1", func(c *Config) {
						c.Fault = func(at string) {
							if at != AfterCommit && at != AfterPublish {
								return
							}
							mu.Lock()
							defer mu.Unlock()
							if n := self.Load(); n != nil && !n.dead() && random.IntN(20) == 0 {
								kills[at]++
								n.Kill()
							}
						}
					}))
					current.Store(self.Load())
				}
				up()
				var wg sync.WaitGroup
				for i := range transfers {
					wg.Go(func() {
						time.Sleep(time.Duration(i) * 10 * time.Millisecond)
						for { // the client asks until it is answered
							ctx, cancel := context.WithTimeout(context.Background(), time.Second)
							_, err := current.Load().StartSaga(ctx, request(fmt.Sprint("t-", i)))
							cancel()
							if err == nil {
								return
							}
							time.Sleep(100 * time.Millisecond)
						}
					})
				}
				left := transfers
				for round := 0; left > 0; round++ {
					if round == 6000 {
						t.Fatalf("%d transfers haven't ended after 10 minutes", left)
					}
					synctest.Wait()
					if current.Load().dead() {
						up()
					}
					left = 0
					for i := range transfers {
						if s, ok := w.saga(fmt.Sprint("t-", i)); !ok || !s.Status.Terminal() {
							left++
						}
					}
					time.Sleep(100 * time.Millisecond)
				}
				wg.Wait()
				debits, credits, calls := 0, 0, 0
				for i := range transfers {
					s, _ := w.saga(fmt.Sprint("t-", i))
					if s.Status != store.Completed {
						t.Errorf("transfer %d: status %d", i, s.Status)
					}
					for key, n := range w.ledger.Calls(s.Run.String()) {
						calls += n
						switch key {
						case "debit/-/do/1":
							debits++
						case "credit/-/do/1":
							credits++
						case "confirm/-/do/1":
						default:
							t.Errorf("transfer %d: a call under the key %s", i, key)
						}
					}
					if done, undone := w.ledger.Effects(s.Run.String()); done != 3 || undone != 0 {
						t.Errorf("transfer %d: %d effects, %d undone", i, done, undone)
					}
				}
				if debits != transfers || credits != transfers {
					t.Errorf("%d debits, %d credits", debits, credits)
				}
				t.Logf("killed %v; %d calls for %d steps", kills, calls, 3*transfers)
				if kills[AfterCommit] == 0 || kills[AfterPublish] == 0 {
					t.Errorf("kills: %v", kills)
				}
				w.end()
			})
		})
	}
}

// TestKilledWhileUnwinding: the process dies at each point of an unwinding. The compensations come in their order all the same, each of them
// once in effect, and none before the one that precedes it was answered.
func TestKilledWhileUnwinding(t *testing.T) {
	for _, point := range []string{BeforeCommit, AfterCommit, BeforePublish, AfterPublish, ResultReceived} {
		for n := int32(3); n <= 6; n++ {
			if n == 6 && point != BeforeCommit && point != AfterCommit {
				continue // there are five tasks and five results
			}
			t.Run(fmt.Sprint(point, "/", n), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var mu sync.Mutex
					var order []string
					w := newWorld(t, 2, func(task *workerv1.Task) *workerv1.Result {
						mu.Lock()
						defer mu.Unlock()
						order = append(order, fmt.Sprint(task.Direction == undoing, " ", task.Step))
						if task.Step == "confirm" {
							return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_REJECTED, Code: "NO"}
						}
						return nil
					})
					w.committedTasks()
					var p atomic.Pointer[node]
					e1 := w.start("e1", killAt(point, n, &p))
					p.Store(e1)
					ctx, cancel := context.WithTimeout(context.Background(), time.Second)
					r, err := e1.StartSaga(ctx, request("t-1"))
					cancel()
					if err != nil {
						t.Fatal(err)
					}
					for range 100 {
						synctest.Wait()
						if e1.dead() {
							break
						}
						time.Sleep(10 * time.Millisecond)
					}
					if !e1.dead() {
						t.Fatal("the process wasn't killed: the point wasn't reached")
					}
					w.start("e1")
					s := w.wait("t-1")
					if s.Status != store.Compensated {
						t.Errorf("status %d", s.Status)
					}
					// Calls may be repeated after the crash; the order is that of the first ones.
					mu.Lock()
					var first []string
					for _, call := range order {
						if !slices.Contains(first, call) {
							first = append(first, call)
						}
					}
					last := slices.Index(order, "true debit")
					if again := slices.Index(order[last:], "true credit"); again >= 0 {
						t.Errorf("the credit was undone after the debit: %v", order)
					}
					mu.Unlock()
					want := []string{"false debit", "false credit", "false confirm", "true credit", "true debit"}
					if d := cmp.Diff(want, first); d != "" {
						t.Error(d)
					}
					if done, undone := w.ledger.Effects(r.Run.String()); done != 2 || undone != 2 {
						t.Errorf("%d effects, %d undone", done, undone)
					}
					w.end()
				})
			})
		}
	}
}

// TestRepeatedStartInOtherWords: the same document with its keys in another order, and other white space, is the same start.
func TestRepeatedStartInOtherWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, nil)
		e := w.start("e1")
		r := request("order-1002")
		r.Input = []byte(`{"amount":30,"from":"A","to":{"bank":"X","account":"B"}}`)
		first := e.mustStart(w, r)
		r.Input = []byte("{ \"to\": {\"account\": \"B\",\n\"bank\": \"X\"}, \"from\" : \"A\", \"amount\": 30 }")
		if again := e.mustStart(w, r); again.Run != first.Run || again.Created {
			t.Errorf("%+v, then %+v", first, again)
		}
		w.wait("order-1002")
		w.end()
	})
}
