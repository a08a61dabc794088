package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sagad/sagad/engine"
	"github.com/sagad/sagad/engine/enginetest"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/memory"
)

// commits counts what is changed in a store.
type commits struct {
	store.Store
	n atomic.Int64
}

func (c *commits) Commit(ctx context.Context, batches []store.Batch) ([]store.Result, error) {
	c.n.Add(1)
	return c.Store.Commit(ctx, batches)
}

func (c *commits) KeepStray(ctx context.Context, s store.Stray) error {
	c.n.Add(1)
	return c.Store.KeepStray(ctx, s)
}

// FuzzResults: whatever comes as a pack of results, each result gets one verdict, soon. Without a token of the engine's nothing is
// changed; with one the saga can be read afterwards.
func FuzzResults(f *testing.F) {
	for _, r := range []*workerv1.Result{
		{Outcome: workerv1.Outcome_OUTCOME_SUCCEEDED, Output: []byte(`{"id":1}`), Worker: "w"},
		{Outcome: workerv1.Outcome_OUTCOME_SUCCEEDED, Output: []byte("not JSON")},
		{Outcome: workerv1.Outcome_OUTCOME_REJECTED, Code: "NO_FUNDS", Message: "no"},
		{Outcome: workerv1.Outcome_OUTCOME_FAILED, Code: "X", Message: "\x00", Detail: "stack", RetryAfterUs: 1 << 62, GiveUp: true},
		{Outcome: workerv1.Outcome_OUTCOME_NOTHING_TO_UNDO}, {Outcome: workerv1.Outcome_OUTCOME_CANT_UNDO}, {Outcome: 77, Token: []byte{1, 0, 0}}, {},
	} {
		raw, err := proto.Marshal(&workerv1.ResultPack{Results: []*workerv1.Result{r, r}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, true)
		f.Add(raw, false)
	}
	f.Add([]byte{}, false)

	ctx := context.Background()
	def := enginetest.Transfer()
	for _, node := range def.Body {
		node.GetStep().Timeout = durationpb.New(time.Hour) // nothing happens by itself
	}
	var (
		st    *commits
		bus   *enginetest.Bus
		eng   *engine.Engine
		sagas int
		token []byte
	)
	stop := func() {
		if eng == nil {
			return
		}
		bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		if err := eng.Stop(bounded); err != nil {
			f.Error(err)
		}
	}
	f.Cleanup(stop)
	id := func() string { return fmt.Sprintf("saga-%d", sagas) }
	fresh := func(t *testing.T) {
		if sagas%200 == 0 {
			stop()
			st, bus = &commits{Store: memory.New(2)}, enginetest.NewBus(nil)
			var err error
			if eng, err = engine.New(engine.Config{Name: "fuzz", Logger: slog.New(slog.DiscardHandler)}, st, bus); err != nil {
				t.Fatal(err)
			}
			if err := eng.Start(ctx); err != nil {
				t.Fatal(err)
			}
			if _, _, err := eng.Register(ctx, "default", def); err != nil {
				t.Fatal(err)
			}
		}
		sagas++
		if _, err := eng.StartSaga(ctx, engine.StartRequest{Namespace: "default", ID: id(), Definition: "transfer", Input: []byte(`{"amount":1}`)}); err != nil {
			t.Fatal(err)
		}
		token = nil
		for deadline := time.Now().Add(10 * time.Second); token == nil; {
			tasks := bus.Tasks()
			for _, task := range tasks {
				if task.SagaId == id() {
					token = task.Token
				}
			}
			if time.Now().After(deadline) {
				t.Fatalf("no task of %s", id())
			}
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte, genuine bool) {
		pack := new(workerv1.ResultPack)
		if proto.Unmarshal(raw, pack) != nil {
			return
		}
		if token == nil {
			fresh(t)
		}
		if genuine {
			for _, r := range pack.Results {
				r.Token = token
			}
		}
		before := st.n.Load()
		answer := make(chan *workerv1.ResultReply, 2)
		eng.HandleResults(pack, func(r *workerv1.ResultReply) { answer <- r })
		var reply *workerv1.ResultReply
		select {
		case reply = <-answer:
		case <-time.After(5 * time.Second):
			t.Fatal("no answer within 5 s")
		}
		if len(answer) > 0 || len(reply.Verdicts) != len(pack.Results) {
			t.Fatalf("%d verdicts on %d results", len(reply.Verdicts), len(pack.Results))
		}
		if !genuine {
			for _, v := range reply.Verdicts {
				if v != workerv1.Verdict_VERDICT_REFUSED {
					t.Errorf("a result without a token of the engine's is answered %v", v)
				}
			}
			if n := st.n.Load(); n != before {
				t.Error("a result without a token of the engine's has changed something")
			}
			return
		}
		if _, _, _, err := eng.Get(ctx, "default", id()); err != nil {
			t.Errorf("the saga can't be read: %v", err)
		}
		if len(pack.Results) > 0 {
			token = nil
		}
	})
}
