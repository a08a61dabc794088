package engine

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sagad/sagad/engine/enginetest"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/store"
)

// TestVersionsDontTouchWhatRuns: fifty sagas wait for their first step while other contents are registered under their definition's name, and
// the node is replaced. They end by the version that they began with, compensations included; new ones get the new version.
func TestVersionsDontTouchWhatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const running = 50
		hold := make(chan struct{})
		var mu sync.Mutex
		undoTimeouts := map[string]time.Duration{}
		w := newWorld(t, 8, func(task *workerv1.Task) *workerv1.Result {
			if task.Step == "debit" && task.Direction == doing {
				<-hold
			}
			if task.Direction == undoing {
				mu.Lock()
				undoTimeouts[task.SagaId+" "+task.Step] = time.Duration(task.TimeoutUs) * time.Microsecond
				mu.Unlock()
			}
			if task.Step == "confirm" {
				return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_REJECTED, Code: "NO"}
			}
			return nil
		})
		e1 := w.start("e1")
		for i := range running {
			if r := e1.mustStart(w, request(fmt.Sprint("old-", i))); r.Version != 1 {
				t.Fatalf("version %d", r.Version)
			}
		}
		register := func(n *node, def *sagadv1.Definition, version int32, created bool) {
			t.Helper()
			d, isNew, err := n.Register(context.Background(), "default", def)
			if err != nil || d.Version != version || isNew != created {
				t.Errorf("registered as version %d (new: %v, %v), want %d (new: %v)", d.Version, isNew, err, version, created)
			}
		}
		v1 := enginetest.Transfer()
		register(e1, v1, 1, false)

		// A step in between.
		v2 := proto.CloneOf(v1)
		v2.Activities = append(v2.Activities, &sagadv1.Activity{Name: "bank.extra"})
		v2.Body = []*sagadv1.Node{v1.Body[0], {Kind: &sagadv1.Node_Step{Step: &sagadv1.Step{
			Name: "extra", Activity: "bank.extra", Kind: sagadv1.Kind_KIND_READ_ONLY,
		}}}, v1.Body[1], v1.Body[2]}
		register(e1, v2, 2, true)
		// The first step is undone in another way.
		v3 := proto.CloneOf(v2)
		v3.Body[0].GetStep().Compensation.Timeout = durationpb.New(9 * time.Second)
		register(e1, v3, 3, true)
		register(e1, v1, 1, false)
		register(e1, v2, 2, false)

		e1.halt()
		e2 := w.start("e2")
		time.Sleep(time.Minute) // past the first attempts
		close(hold)
		began := map[string]store.Saga{}
		for i := range running {
			began[fmt.Sprint("old-", i)] = w.wait(fmt.Sprint("old-", i))
		}
		if r := e2.mustStart(w, request("new")); r.Version != 3 {
			t.Errorf("a new saga gets version %d", r.Version)
		}
		pinned := request("pinned")
		pinned.Version = 1
		if r := e2.mustStart(w, pinned); r.Version != 1 {
			t.Errorf("a saga that asks for version 1 gets %d", r.Version)
		}
		began["pinned"], began["new"] = w.wait("pinned"), w.wait("new")

		for id, s := range began {
			if s.Status != store.Compensated {
				t.Errorf("%s: status %d", id, s.Status)
			}
			want, undoTimeout := map[string]bool{"debit/-/do/1": true, "credit/-/do/1": true, "confirm/-/do/1": true, "credit/-/undo/1": true, "debit/-/undo/1": true}, 5*time.Second
			if id == "new" {
				want["extra/-/do/1"], undoTimeout = true, 9*time.Second
			}
			got := map[string]bool{}
			for key := range w.ledger.Calls(s.Run.String()) {
				got[key] = true
			}
			if id == "new" || id == "pinned" {
				if d := cmp.Diff(want, got); d != "" {
					t.Errorf("%s: %s", id, d)
				}
			} else if got["extra/-/do/1"] || !got["debit/-/undo/1"] || s.Version != 1 {
				t.Errorf("%s (version %d): calls %v", id, s.Version, got)
			}
			if got := undoTimeouts[id+" debit"]; got != undoTimeout {
				t.Errorf("%s: the compensation of debit has %v, want %v", id, got, undoTimeout)
			}
		}
		w.bus.Close()
		e2.halt()
	})
}
