package server

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sagad/sagad/internal/server/servertest"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
)

// gate lets the tasks of a step wait until it is opened, and notes which steps ran.
type gate struct {
	step string
	// reached is closed when the first task is there, open by the test.
	reached, open chan struct{}

	once sync.Once
	mu   sync.Mutex
	ran  []string
}

func newGate(r *rig, step string) *gate {
	g := &gate{step: step, reached: make(chan struct{}), open: make(chan struct{})}
	r.bus.Work = func(t *workerv1.Task) *workerv1.Result {
		name := t.Step
		if t.Direction == workerv1.Direction_DIRECTION_UNDO {
			name = "undo " + name
		}
		g.mu.Lock()
		g.ran = append(g.ran, name)
		g.mu.Unlock()
		if name == g.step {
			g.once.Do(func() { close(g.reached) })
			<-g.open
		}
		return worker(t)
	}
	return g
}

func (g *gate) steps() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Join(g.ran, ", ")
}

// A paused saga takes results in and sends nothing out; any node takes the order.
func TestPauseAndResume(t *testing.T) {
	r := newRig(t)
	other := newRigOn(t, r.store, "node-b")
	servertest.Join(r.bus, other.bus)
	r.register()
	g := newGate(r, "charge")
	ctx := t.Context()
	r.start("order-1", orderInput{})
	<-g.reached
	pause := &sagadv1.PauseSagaRequest{Id: "order-1", Reason: "the bank asks us to", RequestId: "p1"}
	for range 2 {
		if res, err := other.sagas.PauseSaga(ctx, pause); err != nil || res.Status != sagadv1.SagaStatus_SAGA_STATUS_RUNNING {
			t.Fatalf("pause: %v %v", res, err)
		}
	}
	close(g.open)
	// The result is taken in.
	for {
		got, err := r.sagas.GetSaga(ctx, &sagadv1.GetSagaRequest{Id: "order-1"})
		if err != nil {
			t.Fatal(err)
		}
		if !got.Saga.Paused {
			t.Fatalf("not paused: %v", got)
		}
		if got.Saga.Steps[1].Status == sagadv1.StepStatus_STEP_STATUS_SUCCEEDED {
			break
		}
		time.Sleep(time.Millisecond)
	}
	explained, err := r.sagas.ExplainSaga(ctx, &sagadv1.ExplainSagaRequest{Id: "order-1"})
	if err != nil || explained.WaitsFor != sagadv1.WaitsFor_WAITS_FOR_RESUME || !strings.Contains(explained.Explanation, "the bank asks us to") ||
		explained.Help != "sagad saga resume order-1" || explained.Since == nil {
		t.Errorf("explained: %v %v", explained, err)
	}
	if got := g.steps(); got != "reserve, charge" {
		t.Errorf("ran while it was paused: %s", got)
	}
	resume := &sagadv1.ResumeSagaRequest{Id: "order-1", Reason: "go on", RequestId: "r1"}
	if res, err := other.sagas.ResumeSaga(ctx, resume); err != nil {
		t.Fatalf("resume: %v %v", res, err)
	}
	if saga := r.end("order-1"); saga.Paused || saga.Summary.Status != sagadv1.SagaStatus_SAGA_STATUS_COMPLETED {
		t.Errorf("after it: %v", saga)
	}
	// A repeat of what was answered is answered as it was, also after the end.
	if _, err := other.sagas.ResumeSaga(ctx, resume); err != nil {
		t.Errorf("resumed again: %v", err)
	}
	if got := g.steps(); got != "reserve, charge, ship" {
		t.Errorf("ran: %s", got)
	}
	_, err = r.sagas.PauseSaga(ctx, &sagadv1.PauseSagaRequest{Id: "order-1", Reason: "late"})
	wantError(t, err, connect.CodeFailedPrecondition, codeNotAllowed, "has ended as COMPLETED")
	_, err = r.sagas.ResumeSaga(ctx, &sagadv1.ResumeSagaRequest{Id: "order-1"})
	wantError(t, err, connect.CodeFailedPrecondition, codeNotAllowed, "has ended as COMPLETED")
}

// A saga moves to a version that keeps the undo of what it did, and to no other.
func TestMigrate(t *testing.T) {
	r := newRig(t)
	other := newRigOn(t, r.store, "node-b")
	servertest.Join(r.bus, other.bus)
	r.register()
	g := newGate(r, "charge")
	ctx := t.Context()
	// Version 2 does more at the end, version 3 forgets the first step, version 4 will be deleted.
	more := orderDefinition()
	more.Activities = append(more.Activities, &sagadv1.Activity{Name: "t.tell"})
	tell := &sagadv1.Node{Kind: &sagadv1.Node_Step{Step: &sagadv1.Step{
		Name: "tell", Activity: "t.tell", Kind: sagadv1.Kind_KIND_RETRIABLE, Input: &sagadv1.Mapping{Value: "input"}, Timeout: durationpb.New(time.Hour),
	}}}
	last := more.Body[len(more.Body)-1]
	more.Body = append(more.Body[:len(more.Body)-1:len(more.Body)-1], tell, last)
	less := orderDefinition()
	less.Body = less.Body[1:]
	less.Activities = []*sagadv1.Activity{{Name: "t.charge"}, {Name: "t.ship"}}
	gone := orderDefinition()
	gone.Description = "gone"
	for _, def := range []*sagadv1.Definition{more, less, gone} {
		if _, err := r.definitions.RegisterDefinition(ctx, &sagadv1.RegisterDefinitionRequest{Definition: def}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.definitions.DeleteDefinition(ctx, &sagadv1.DeleteDefinitionRequest{Name: "order", Version: 4}); err != nil {
		t.Fatal(err)
	}
	input, err := json.Marshal(orderInput{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.sagas.StartSaga(ctx, &sagadv1.StartSagaRequest{Id: "order-1", Definition: "order", Version: 1, Input: string(input)}); err != nil {
		t.Fatal(err)
	}
	<-g.reached
	migrate := func(version int32, change func(*sagadv1.MigrateSagaRequest)) (*sagadv1.MigrateSagaResponse, error) {
		req := &sagadv1.MigrateSagaRequest{Id: "order-1", Version: version, Reason: "say so at the end"}
		change(req)
		return other.sagas.MigrateSaga(ctx, req)
	}
	dry := func(req *sagadv1.MigrateSagaRequest) { req.DryRun, req.Reason = true, "" }
	asIs := func(*sagadv1.MigrateSagaRequest) {}
	want := func(what string, res *sagadv1.MigrateSagaResponse, err error, want *sagadv1.MigrateSagaResponse) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if d := cmp.Diff(want, res, protocmp.Transform()); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
	}

	res, err := migrate(3, dry)
	if err != nil || len(res.Obstacles) == 0 || res.Migrated || res.Version != 1 || !strings.Contains(res.Obstacles[0], "reserve has run") {
		t.Errorf("a dry run to version 3: %v %v", res, err)
	}
	_, err = migrate(3, asIs)
	wantError(t, err, connect.CodeFailedPrecondition, codeMigrationRefused, "stays at version 1: step reserve has run")
	_, err = migrate(4, asIs)
	wantError(t, err, connect.CodeNotFound, codeDefinitionNotFound, "version 4 of definition \"order\" in namespace \"default\" was deleted")
	_, err = migrate(9, dry)
	wantError(t, err, connect.CodeNotFound, codeDefinitionNotFound, "version 9")
	res, err = migrate(2, func(req *sagadv1.MigrateSagaRequest) { dry(req); req.Names = map[string]string{"nothing": "something"} })
	if err != nil || len(res.Obstacles) != 1 || !strings.Contains(res.Obstacles[0], "nothing that is called nothing") {
		t.Errorf("a name that isn't there: %v %v", res, err)
	}
	res, err = migrate(1, asIs)
	want("to its own version", res, err, &sagadv1.MigrateSagaResponse{Migrated: true, Version: 1})

	res, err = migrate(2, dry)
	want("a dry run to version 2", res, err, &sagadv1.MigrateSagaResponse{Version: 1})
	if got, err := r.sagas.GetSaga(ctx, &sagadv1.GetSagaRequest{Id: "order-1"}); err != nil || got.Saga.Summary.Version != 1 || got.Saga.LastTransition != 2 {
		t.Errorf("dry runs changed it: %v %v", got, err)
	}
	for range 2 {
		res, err = migrate(2, func(req *sagadv1.MigrateSagaRequest) { req.RequestId = "m1" })
		want("to version 2", res, err, &sagadv1.MigrateSagaResponse{Migrated: true, Version: 2})
	}
	// Rows, lists and both nodes know it.
	for _, n := range []*rig{r, other} {
		got, err := n.sagas.GetSaga(ctx, &sagadv1.GetSagaRequest{Id: "order-1"})
		if err != nil || got.Saga.Summary.Version != 2 || len(got.Saga.Steps) != 4 || got.Saga.Steps[1].Status != sagadv1.StepStatus_STEP_STATUS_RUNNING {
			t.Errorf("at one node: %v %v", got, err)
		}
		list, err := n.sagas.ListSagas(ctx, &sagadv1.ListSagasRequest{Filter: &sagadv1.SagaFilter{Definition: "order", Version: 2}})
		if err != nil || len(list.Sagas) != 1 {
			t.Errorf("listed by version 2: %v %v", list, err)
		}
	}
	for _, u := range r.usage(0) {
		if want := map[int32]int64{2: 1}[u.Version]; u.Unfinished != want {
			t.Errorf("%d sagas need version %d, want %d", u.Unfinished, u.Version, want)
		}
	}
	if _, err := r.definitions.DeleteDefinition(ctx, &sagadv1.DeleteDefinitionRequest{Name: "order", Version: 1}); err != nil {
		t.Errorf("version 1 isn't needed any more: %v", err)
	}
	close(g.open)
	if saga := r.end("order-1"); saga.Summary.Status != sagadv1.SagaStatus_SAGA_STATUS_COMPLETED || saga.Output != `{"shipped":"ship"}` {
		t.Errorf("it ended as %v", saga)
	}
	if got := g.steps(); got != "reserve, charge, ship, tell" {
		t.Errorf("ran: %s", got)
	}
	// Its history begins under a version that is deleted, and is read all the same.
	got, err := other.sagas.GetSaga(ctx, &sagadv1.GetSagaRequest{Id: "order-1"})
	if err != nil || len(got.Saga.Steps) != 4 {
		t.Errorf("read at the other node: %v %v", got, err)
	}
	_, err = migrate(3, asIs)
	wantError(t, err, connect.CodeFailedPrecondition, codeMigrationRefused, "has ended as COMPLETED")
}

// A saga goes on under its new version at another node too.
func TestMigrateThenTakeOver(t *testing.T) {
	r := newRig(t)
	r.register()
	r.stuck("order-1")
	r.registerAs("second", 2)
	ctx := t.Context()
	if res, err := r.sagas.MigrateSaga(ctx, &sagadv1.MigrateSagaRequest{Id: "order-1", Version: 2, Reason: "why not"}); err != nil || !res.Migrated {
		t.Fatalf("migrate: %v %v", res, err)
	}
	if err := r.engine.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	next := newRigOn(t, r.store, "node-a") // which takes all at once
	if n := len(next.engine.Owned()); n != 8 {
		t.Fatalf("the next node owns %d shards", n)
	}
	next.abandon("order-1")
	if saga := next.end("order-1"); saga.Summary.Version != 2 || saga.Summary.Status != sagadv1.SagaStatus_SAGA_STATUS_ABANDONED {
		t.Errorf("it ended as %v", saga.Summary)
	}
}
