package engine

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sagad/sagad/engine/enginetest"
	"github.com/sagad/sagad/internal/wire"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/store"
)

// fork is a saga of two steps side by side that can be undone, and a claimed one with a probe after them.
func fork() *sagadv1.Definition {
	step := func(name string) *sagadv1.Node {
		return &sagadv1.Node{Kind: &sagadv1.Node_Step{Step: &sagadv1.Step{
			Name: name, Activity: "fork." + name, Kind: sagadv1.Kind_KIND_COMPENSATABLE, Timeout: durationpb.New(time.Minute),
			Heartbeat: durationpb.New(10 * time.Second), Input: &sagadv1.Mapping{Value: "{}"}, Retry: &sagadv1.RetryPolicy{MaxAttempts: 1},
		}}}
	}
	return &sagadv1.Definition{
		Name: "fork", InputSchema: `{"type":"object"}`,
		Activities: []*sagadv1.Activity{{Name: "fork.a"}, {Name: "fork.b"}, {Name: "fork.c", Probe: true, Claimed: true}},
		Body: []*sagadv1.Node{
			{Kind: &sagadv1.Node_Parallel{Parallel: &sagadv1.Parallel{Name: "both", Branches: []*sagadv1.Branch{
				{Body: []*sagadv1.Node{step("a")}}, {Body: []*sagadv1.Node{step("b")}},
			}}}},
			step("c"),
		},
	}
}

func report(t *workerv1.Task, o workerv1.Outcome, data string) *workerv1.Result {
	r := &workerv1.Result{Token: t.Token, Outcome: o, Worker: "w"}
	if data != "" {
		r.Output = []byte(data)
	}
	return r
}

// forked starts a fork on a node whose results the test reports.
func forked(t *testing.T) (*world, *node, func(*workerv1.Result, workerv1.Verdict)) {
	w := newManualWorld(t, 2)
	e := w.start("e1")
	if _, _, err := e.Register(t.Context(), "default", fork()); err != nil {
		t.Fatal(err)
	}
	if _, err := e.StartSaga(t.Context(), StartRequest{Namespace: "default", ID: "f-1", Definition: "fork", Input: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	return w, e, func(r *workerv1.Result, want workerv1.Verdict) {
		t.Helper()
		if got := w.bus.Report(r); got != want {
			t.Errorf("%s: verdict %s, want %s", r.Outcome, got, want)
		}
	}
}

const (
	accepted = workerv1.Verdict_VERDICT_ACCEPTED
	stopIt   = workerv1.Verdict_VERDICT_STOP
)

// What is in flight when the saga turns back is told to stop, after the commit; its compensation gets what it said.
func TestReportsAndStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, verdict := forked(t)
		a, b := w.task("a", doing, 1, 1), w.task("b", doing, 1, 1)
		verdict(report(a, workerv1.Outcome_OUTCOME_CHECKPOINT, `{"hook":1}`), accepted)
		verdict(report(a, workerv1.Outcome_OUTCOME_CHECKPOINT, `{"hook":1}`), workerv1.Verdict_VERDICT_DUPLICATE)
		verdict(report(a, workerv1.Outcome_OUTCOME_PROGRESS, ""), accepted)
		verdict(report(a, workerv1.Outcome_OUTCOME_PROGRESS, `{"line":9}`), accepted)
		if stops := w.bus.Stops(); len(stops) != 0 {
			t.Errorf("stops %v", stops)
		}
		verdict(&workerv1.Result{Token: b.Token, Outcome: workerv1.Outcome_OUTCOME_REJECTED, Code: "NO"}, accepted)
		want := []*workerv1.Stop{{IdempotencyKey: a.IdempotencyKey, Attempt: 1}}
		if diff := cmp.Diff(want, w.bus.Stops(), protocmp.Transform()); diff != "" {
			t.Error(diff)
		}
		verdict(report(a, workerv1.Outcome_OUTCOME_PROGRESS, ""), stopIt)
		verdict(report(a, workerv1.Outcome_OUTCOME_CHECKPOINT, `{"hook":2}`), stopIt)
		verdict(&workerv1.Result{Token: a.Token, Outcome: workerv1.Outcome_OUTCOME_FAILED, Code: "STOPPED"}, accepted)
		undo := w.task("a", undoing, 1, 1)
		if string(undo.Undo.GetCheckpoint()) != `{"hook":1}` || undo.ActionKey != a.IdempotencyKey {
			t.Errorf("%v", undo)
		}
		verdict(success(undo), accepted)
		if s := w.wait("f-1"); s.Status != store.Compensated {
			t.Errorf("status %d", s.Status)
		}
	})
}

// An attempt that a worker hands back is sent again at once under a new number, without a trace in the history.
func TestHandedBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e, verdict := forked(t)
		a, b := w.task("a", doing, 1, 1), w.task("b", doing, 1, 1)
		before, _, _, err := e.Get(t.Context(), "default", "f-1")
		if err != nil {
			t.Fatal(err)
		}
		shard := store.ShardOf("default", "f-1", 2)
		got := w.bus.ReportTo(shard, report(a, workerv1.Outcome_OUTCOME_HANDED_BACK, ""), report(b, workerv1.Outcome_OUTCOME_HANDED_BACK, ""))
		if diff := cmp.Diff([]workerv1.Verdict{accepted, accepted}, got); diff != "" {
			t.Error(diff)
		}
		synctest.Wait()
		var again *workerv1.Task
		for _, x := range w.bus.Tasks() {
			if x.Step == "a" && x.Dispatch == 2 {
				again = x
			}
		}
		if again == nil || again.IdempotencyKey != a.IdempotencyKey || again.Attempt != 1 || len(w.bus.Tasks()) != 4 {
			t.Fatalf("%v", w.bus.Tasks())
		}
		after, _, _, err := e.Get(t.Context(), "default", "f-1")
		if err != nil || after.N != before.N {
			t.Errorf("%d and %d transitions, %v", before.N, after.N, err)
		}
		verdict(success(again), accepted)
		verdict(report(a, workerv1.Outcome_OUTCOME_HANDED_BACK, ""), workerv1.Verdict_VERDICT_STALE)
		strange := report(a, workerv1.Outcome_OUTCOME_HANDED_BACK, "")
		strange.Token = append([]byte(nil), a.Token...)
		strange.Token[len(strange.Token)-1] ^= 1
		verdict(strange, workerv1.Verdict_VERDICT_REFUSED)
	})
}

// One delivery has the attempt; when it falls silent the outcome is unknown, and the probe is asked by the action's key.
func TestClaimAndProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, verdict := forked(t)
		verdict(success(w.task("a", doing, 1, 1)), accepted)
		verdict(success(w.task("b", doing, 1, 1)), accepted)
		c := w.task("c", doing, 1, 1)
		if !c.Claimed || c.HeartbeatUs != 10_000_000 {
			t.Errorf("%v", c)
		}
		verdict(report(c, workerv1.Outcome_OUTCOME_CLAIM, `"one"`), accepted)
		verdict(report(c, workerv1.Outcome_OUTCOME_CLAIM, `"one"`), workerv1.Verdict_VERDICT_DUPLICATE)
		verdict(report(c, workerv1.Outcome_OUTCOME_CLAIM, `"two"`), workerv1.Verdict_VERDICT_BUSY)
		verdict(&workerv1.Result{Token: c.Token, Outcome: workerv1.Outcome_OUTCOME_HAPPENED}, workerv1.Verdict_VERDICT_REFUSED)
		probe := w.task("c", workerv1.Direction_DIRECTION_PROBE, 1, 1)
		if want := wire.IdempotencyKey(c.RunId, "c", "", workerv1.Direction_DIRECTION_PROBE, 1); probe.IdempotencyKey != want || probe.ActionKey != c.IdempotencyKey ||
			!bytes.Equal(probe.Input, c.Input) || probe.Activity != c.Activity {
			t.Errorf("%v", probe)
		}
		verdict(report(probe, workerv1.Outcome_OUTCOME_HAPPENED, `{"ref":"x"}`), accepted)
		undo := w.task("c", undoing, 1, 1)
		if !undo.Undo.GetOutputKnown() || string(undo.Undo.GetOutput()) != `{"ref":"x"}` {
			t.Errorf("%v", undo)
		}
		for _, step := range []string{"c", "a", "b"} {
			verdict(success(w.task(step, undoing, 1, 1)), accepted)
		}
		if s := w.wait("f-1"); s.Status != store.Compensated {
			t.Errorf("status %d", s.Status)
		}
	})
}

var _ Bus = (*enginetest.Bus)(nil)
