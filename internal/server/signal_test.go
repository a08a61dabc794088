package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sagad/sagad/internal/server/servertest"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// waiting is a definition that waits for two payments, one after the other.
func waiting() *sagadv1.Definition {
	wait := func(name string) *sagadv1.Node {
		return &sagadv1.Node{Kind: &sagadv1.Node_Wait{Wait: &sagadv1.Wait{Name: name, Signal: "paid", Timeout: durationpb.New(time.Hour)}}}
	}
	return &sagadv1.Definition{
		Name:       "waiting",
		Activities: []*sagadv1.Activity{{Name: "t.look"}},
		Signals:    []*sagadv1.Signal{{Name: "paid", Schema: `{"type":"object","properties":{"amount":{"type":"integer"}},"required":["amount"]}`}},
		Body: []*sagadv1.Node{
			{Kind: &sagadv1.Node_Step{Step: &sagadv1.Step{Name: "look", Activity: "t.look", Kind: sagadv1.Kind_KIND_READ_ONLY}}},
			wait("first"), wait("second"),
			{Kind: &sagadv1.Node_Return{Return: &sagadv1.Return{Output: &sagadv1.Mapping{Value: "first.amount + second.amount"}}}},
		},
	}
}

// A signal is taken in once for each key, at any node, and waits until it is wanted.
func TestSignals(t *testing.T) {
	r := newRig(t)
	other := newRigOn(t, r.store, "node-b")
	servertest.Join(r.bus, other.bus)
	ctx := t.Context()
	if _, err := r.definitions.RegisterDefinition(ctx, &sagadv1.RegisterDefinitionRequest{Definition: waiting()}); err != nil {
		t.Fatal(err)
	}
	start := func(id string) {
		t.Helper()
		if _, err := r.sagas.StartSaga(ctx, &sagadv1.StartSagaRequest{Id: id, Definition: "waiting"}); err != nil {
			t.Fatal(err)
		}
	}
	signal := func(id, key, payload string) (bool, error) {
		res, err := other.sagas.SignalSaga(ctx, &sagadv1.SignalSagaRequest{Id: id, Signal: "paid", Key: key, Payload: payload})
		return res.GetFresh(), err
	}
	start("order-1")
	var explained *sagadv1.ExplainSagaResponse
	var err error
	for explained.GetStep() != "first" { // until it is there
		if explained, err = r.sagas.ExplainSaga(ctx, &sagadv1.ExplainSagaRequest{Id: "order-1"}); err != nil {
			t.Fatal(err)
		}
	}
	if err != nil || explained.WaitsFor != sagadv1.WaitsFor_WAITS_FOR_SIGNAL || explained.What != "paid" || explained.Step != "first" ||
		!strings.HasPrefix(explained.Help, "sagad saga signal order-1 paid ") || explained.Until == nil {
		t.Errorf("explained: %v %v", explained, err)
	}
	for i, want := range []bool{true, false} {
		if fresh, err := signal("order-1", "p1", `{"amount": 40}`); err != nil || fresh != want {
			t.Errorf("signal %d: fresh %v, %v", i, fresh, err)
		}
	}
	_, err = signal("order-1", "p1", `{"amount": 41}`)
	wantError(t, err, connect.CodeAlreadyExists, codeKeyTaken, "with another payload")
	_, err = signal("order-1", "p2", `{"amount": "two"}`)
	wantError(t, err, connect.CodeInvalidArgument, codeInvalidInput, "the payload doesn't fit")
	_, err = other.sagas.SignalSaga(ctx, &sagadv1.SignalSagaRequest{Id: "order-1", Signal: "refunded", Key: "1"})
	wantError(t, err, connect.CodeInvalidArgument, codeInvalidRequest, `no signal "refunded"`)
	if fresh, err := signal("order-1", "p2", `{"amount": 2}`); err != nil || !fresh {
		t.Errorf("the second: fresh %v, %v", fresh, err)
	}
	if saga := r.end("order-1"); saga.Output != "42" {
		t.Errorf("it ended as %v", saga)
	}
	// A repeat is one, also after the end; what is new comes too late.
	if fresh, err := signal("order-1", "p2", `{"amount": 2}`); err != nil || fresh {
		t.Errorf("a repeat after the end: fresh %v, %v", fresh, err)
	}
	_, err = signal("order-1", "p3", `{"amount": 2}`)
	wantError(t, err, connect.CodeFailedPrecondition, codeNotAllowed, "has ended")

	// So many may wait.
	start("order-2")
	if _, err := r.sagas.PauseSaga(ctx, &sagadv1.PauseSagaRequest{Id: "order-2", Reason: "let them gather"}); err != nil {
		t.Fatal(err)
	}
	for i := 0; err == nil || i < 2; i++ {
		if i > 1000 {
			t.Fatal("signals gather without bound")
		}
		_, err = signal("order-2", fmt.Sprint(i), `{"amount": 1}`)
	}
	wantError(t, err, connect.CodeResourceExhausted, codeTooManySignals, "which is the limit")
}
