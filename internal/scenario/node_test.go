package scenario

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/sagad/sagad/internal/node"
	"github.com/sagad/sagad/internal/pgtest"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/store"
)

func getSaga(id string) *sagadv1.GetSagaRequest { return &sagadv1.GetSagaRequest{Id: id} }

// cluster are nodes on one Postgres and one NATS.
func cluster(t *testing.T, n int) []*rig {
	t.Helper()
	dsn := pgtest.Start(t)
	dir := t.TempDir()
	rigs := []*rig{newRig(t, func(c *node.Config) {
		c.Store, c.Name, c.NATSEmbedded = dsn, "n0", filepath.Join(dir, "nats")
	})}
	for i := 1; i < n; i++ {
		rigs = append(rigs, newRig(t, func(c *node.Config) {
			c.Store, c.Name, c.NATS = dsn, fmt.Sprint("n", i), rigs[0].nats
		}))
	}
	return rigs
}

// TestFiftyStartsOverThreeNodes: one saga, one answer, one creator, and nobody hears of the database.
func TestFiftyStartsOverThreeNodes(t *testing.T) {
	t.Parallel()
	rigs := cluster(t, 3)
	r := rigs[0]
	b := newBank(map[string]int64{"A": 10_000, "B": 0})
	r.serve(b.register)
	def := transferSaga()
	register(r, def)
	const rounds, clients = 20, 50
	for round := range rounds {
		id := fmt.Sprint("order-", 1001+round)
		gate := make(chan struct{})
		var mu sync.Mutex
		created, runs := 0, map[string]int{}
		var wg sync.WaitGroup
		for i := range clients {
			wg.Go(func() {
				<-gate
				res, err := rigs[i%3].sagas.StartSaga(r.Context(), &sagadv1.StartSagaRequest{Id: id, Definition: "transfer", Input: `{"amount":30}`})
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Errorf("%s: %v", id, err)
					return
				}
				runs[res.RunId]++
				if res.Created {
					created++
				}
			})
		}
		close(gate)
		wg.Wait()
		if len(runs) != 1 || created != 1 {
			t.Fatalf("%s: runs %v, created by %d", id, runs, created)
		}
		r.ended(id, completed)
		if d := cmp.Diff([]string{"debit 1", "credit 1", "notify 1"}, b.story(id)); d != "" {
			t.Error(d)
		}
	}
	list, err := rigs[2].sagas.ListSagas(r.ctx(), &sagadv1.ListSagasRequest{PageSize: 1000})
	if err != nil || len(list.Sagas) != rounds {
		t.Errorf("%d sagas, %v", len(list.GetSagas()), err)
	}
	b.holds(t, map[string]int64{"A": 10_000 - 30*rounds, "B": 30 * rounds})
}

// TestCancelAtOneNodeRacesTheResultAtAnother: the saga is finished or undone, never both, and the cancel was answered accordingly.
func TestCancelAtOneNodeRacesTheResultAtAnother(t *testing.T) {
	t.Parallel()
	rigs := cluster(t, 2)
	r := rigs[0]
	const sagas = 100
	b := newBank(map[string]int64{"A": 10_000, "B": 0})
	gates := map[string]chan struct{}{}
	for i := range sagas {
		gates[fmt.Sprint("t-", i)] = make(chan struct{})
	}
	b.before = func(_ context.Context, c call) error {
		if c.what == "notify" {
			<-gates[c.saga]
		}
		return nil
	}
	r.serve(b.register)
	r.serve(b.register)
	def := transferSaga()
	register(r, def)
	for i := range sagas {
		start(r, def, fmt.Sprint("t-", i), transfer{30})
	}
	answers := make([]sagadv1.CancelAnswer, sagas)
	var wg sync.WaitGroup
	for i := range sagas {
		id := fmt.Sprint("t-", i)
		b.wait(t, id, "notify", 1)
		// Now the one, now the other is ahead: by little in the middle, by much at the ends. A cancel has a longer way.
		ahead := time.Duration(i-sagas/3) * 40 * time.Microsecond
		if i < 5 || i >= sagas-5 {
			ahead *= 100
		}
		wg.Go(func() {
			time.Sleep(ahead)
			close(gates[id])
		})
		wg.Go(func() {
			time.Sleep(-ahead)
			res, err := rigs[1].sagas.CancelSaga(r.Context(), &sagadv1.CancelSagaRequest{Id: id, Reason: "race", RequestId: id})
			if err != nil {
				t.Error(err)
				return
			}
			answers[i] = res.Answer
		})
	}
	wg.Wait()
	want := map[string]int64{"A": 10_000, "B": 0}
	won := 0
	for i := range sagas {
		id := fmt.Sprint("t-", i)
		end := compensated
		if answers[i] == sagadv1.CancelAnswer_CANCEL_ANSWER_TOO_LATE_COMPLETED {
			end = completed
			want["A"], want["B"] = want["A"]-30, want["B"]+30
		} else if won++; answers[i] != sagadv1.CancelAnswer_CANCEL_ANSWER_WILL_UNWIND {
			t.Errorf("%s: the cancel was answered %v", id, answers[i])
		}
		r.ended(id, end)
	}
	t.Logf("%d of %d cancels came in time", won, sagas)
	if won == 0 || won == sagas {
		t.Errorf("%d of %d cancels came in time: the race isn't one", won, sagas)
	}
	b.holds(t, want)
}

// slowStore takes its time over commits, before and after.
type slowStore struct {
	store.Store
	by time.Duration
}

func (s slowStore) Commit(ctx context.Context, batches []store.Batch) ([]store.Result, error) {
	time.Sleep(s.by / 2)
	res, err := s.Store.Commit(ctx, batches)
	time.Sleep(s.by / 2)
	return res, err
}

// TestWorkersFasterThanCommits: a worker that answers at once never meets a saga that isn't there yet.
func TestWorkersFasterThanCommits(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *node.Config) {
		c.WrapStore = func(st store.Store) store.Store { return slowStore{st, 300 * time.Millisecond} }
	})
	const sagas = 100
	b := newBank(map[string]int64{"A": 10_000, "B": 0})
	r.serve(b.register)
	def := transferSaga()
	register(r, def)
	began := time.Now()
	var wg sync.WaitGroup
	for i := range sagas {
		wg.Go(func() {
			if _, err := r.sagas.StartSaga(r.Context(), &sagadv1.StartSagaRequest{Id: fmt.Sprint("t-", i), Definition: "transfer", Input: `{"amount":30}`}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i := range sagas {
		id := fmt.Sprint("t-", i)
		r.ended(id, completed)
		if d := cmp.Diff([]string{"debit 1", "credit 1", "notify 1"}, b.story(id)); d != "" {
			t.Errorf("%s: %s", id, d)
		}
	}
	t.Logf("took %v", time.Since(began))
	b.holds(t, map[string]int64{"A": 10_000 - 30*sagas, "B": 30 * sagas})
	for _, m := range []string{"sagad_stray_results_total", "sagad_ahead_results_total", `sagad_results_total{verdict="UNKNOWN_SAGA"}`, `sagad_results_total{verdict="UNAVAILABLE"}`} {
		if n := r.metric(m); n != 0 {
			t.Errorf("%s is %v", m, n)
		}
	}
}

// TestImpossibleWaits: what a worker asks for can't take a saga out of time.
func TestImpossibleWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	b := newBank(map[string]int64{"A": 100, "B": 0})
	waits := map[string]time.Duration{"past": -5 * time.Second, "long": 292 * 365 * 24 * time.Hour, "longest": 1<<63 - 1, "none": 0}
	b.before = func(_ context.Context, c call) error {
		if c.what == "debit" && c.attempt == 1 {
			return saga.RetryAfter(waits[c.saga], errors.New("busy"))
		}
		return nil
	}
	r.serve(b.register)
	def := transferSaga()
	register(r, def)
	for id := range waits {
		start(r, def, id, transfer{30})
	}
	for id, wait := range waits {
		if wait <= 0 { // as if none had been asked for
			r.ended(id, completed)
			continue
		}
		b.wait(t, id, "debit", 1)
		r.eventually("the next attempt's time", func() bool { return step(r.saga(id), "debit").Action.GetNextAttemptAt() != nil })
		at := step(r.saga(id), "debit").Action.NextAttemptAt.AsTime()
		if in := time.Until(at); in < 29*24*time.Hour || in > 30*24*time.Hour {
			t.Errorf("%s: the next attempt is in %v, want 30 days", id, in)
		}
		if _, err := r.sagas.CancelSaga(r.ctx(), &sagadv1.CancelSagaRequest{Id: id}); err != nil {
			t.Error(err)
		}
		r.ended(id, compensated)
	}
	// Definitions with times that can't be are refused, and so is a negative wait of a caller.
	for name, d := range map[string]time.Duration{"negative": -5 * time.Second, "292 years": 292 * 365 * 24 * time.Hour} {
		def := saga.Define[transfer, any]("times", saga.Do("debit", debit, saga.Fields{"account": "'A'", "amount": "1"}, saga.Timeout(d)))
		if _, err := r.defs.RegisterDefinition(r.ctx(), &sagadv1.RegisterDefinitionRequest{Definition: def.Proto()}); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("a timeout that is %s: %v", name, err)
		}
	}
}
