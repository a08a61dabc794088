package scenario

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

type nothing struct{}

var (
	forkA = saga.Compensatable[nothing, nothing]{Name: "fork.a"}
	forkB = saga.Compensatable[nothing, nothing]{Name: "fork.b"}
	forkC = saga.Compensatable[nothing, string]{Name: "fork.c", Probe: true, Claimed: true}
)

// registerFork registers a saga of two steps side by side, and a claimed one with a probe after them. Each has a heartbeat of a second.
func registerFork(r *rig) {
	r.Helper()
	step := func(name string) *sagadv1.Node {
		return &sagadv1.Node{Kind: &sagadv1.Node_Step{Step: &sagadv1.Step{
			Name: name, Activity: "fork." + name, Kind: sagadv1.Kind_KIND_COMPENSATABLE, Timeout: durationpb.New(5 * time.Minute),
			Heartbeat: durationpb.New(time.Second), Input: &sagadv1.Mapping{Value: "{}"}, Retry: &sagadv1.RetryPolicy{MaxAttempts: 1},
		}}}
	}
	_, err := r.defs.RegisterDefinition(r.ctx(), &sagadv1.RegisterDefinitionRequest{Definition: &sagadv1.Definition{
		Name: "fork", InputSchema: `{"type":"object"}`,
		Activities: []*sagadv1.Activity{{Name: "fork.a"}, {Name: "fork.b"}, {Name: "fork.c", Probe: true, Claimed: true}},
		Body: []*sagadv1.Node{
			{Kind: &sagadv1.Node_Parallel{Parallel: &sagadv1.Parallel{Name: "both", Branches: []*sagadv1.Branch{
				{Body: []*sagadv1.Node{step("a")}}, {Body: []*sagadv1.Node{step("b")}},
			}}}},
			step("c"),
		},
	}})
	if err != nil {
		r.Fatal(err)
	}
	if _, err := r.sagas.StartSaga(r.ctx(), &sagadv1.StartSagaRequest{Id: "f", Definition: "fork", Input: "{}"}); err != nil {
		r.Fatal(err)
	}
}

// TestWorkersAreToldToStop: a step runs for minutes when the one beside it is rejected. It is told, ends, and is undone with what it had said before
// its effect.
func TestWorkersAreToldToStop(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	began, undone := make(chan struct{}), make(chan string, 1)
	r.serve(func(w *worker.Worker) {
		worker.Compensatable(w, forkA, func(ctx context.Context, _ nothing) (nothing, error) {
			if err := saga.Checkpoint(ctx, "hook 7"); err != nil {
				return nothing{}, err
			}
			close(began)
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), saga.ErrStopped) {
				t.Errorf("the context's cause is %v", context.Cause(ctx))
			}
			return nothing{}, context.Cause(ctx)
		}, func(_ context.Context, u saga.Undo[nothing, nothing]) error {
			var said string
			_, err := u.Checkpoint.Decode(&said)
			undone <- said
			return err
		})
		worker.Compensatable(w, forkB, func(context.Context, nothing) (nothing, error) {
			<-began
			return nothing{}, saga.Reject("NO", "")
		}, func(context.Context, saga.Undo[nothing, nothing]) error { return nil })
	})
	registerFork(r)
	r.ended("f", compensated)
	if got := <-undone; got != "hook 7" {
		t.Errorf("the compensation got %q", got)
	}
}

// TestClaimedWorkerDies: the worker that has claimed a step dies in it. Nobody else runs it; the engine notices the silence, asks whether it
// happened, and undoes it with the output that the probe found.
func TestClaimedWorkerDies(t *testing.T) {
	t.Parallel()
	r := newRig(t, quickAcks)
	var runs atomic.Int64
	undone := make(chan saga.Undo[nothing, string], 1)
	var kill func()
	serve := func(w *worker.Worker) {
		fine := func(context.Context, nothing) (nothing, error) { return nothing{}, nil }
		back := func(context.Context, saga.Undo[nothing, nothing]) error { return nil }
		worker.Compensatable(w, forkA, fine, back)
		worker.Compensatable(w, forkB, fine, back)
		worker.Compensatable(w, forkC, func(ctx context.Context, _ nothing) (string, error) {
			runs.Add(1)
			kill()
			<-ctx.Done()
			return "", ctx.Err()
		}, func(_ context.Context, u saga.Undo[nothing, string]) error {
			undone <- u
			return nil
		}, worker.Probe(func(context.Context, nothing) (saga.ProbeAnswer[string], error) { return saga.Happened("ref 9"), nil }))
	}
	_, kill = r.mortal(serve)
	registerFork(r)
	r.until("f", sagadv1.SagaStatus_SAGA_STATUS_RUNNING)
	for runs.Load() == 0 && r.ctx().Err() == nil {
		time.Sleep(time.Millisecond)
	}
	r.serve(serve)
	r.ended("f", compensated)
	u := <-undone
	if u.Output == nil || *u.Output != "ref 9" || runs.Load() != 1 {
		t.Errorf("%+v after %d runs", u, runs.Load())
	}
}
