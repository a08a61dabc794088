package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectinprocess"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sagad/sagad/engine"
	"github.com/sagad/sagad/internal/server/servertest"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/proto/gen/sagad/v1/sagadv1connect"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/memory"
)

// orderInput steers the test's worker.
type orderInput struct {
	// Reject names the step that is rejected, CantUndo the one whose compensation can't undo, Hang the one that never answers.
	Reject, CantUndo, Hang string
	Note                   string
}

func worker(t *workerv1.Task) *workerv1.Result {
	var in orderInput
	if err := json.Unmarshal(t.Input, &in); err != nil {
		panic(err)
	}
	switch {
	case t.Direction == workerv1.Direction_DIRECTION_UNDO && in.CantUndo == t.Step:
		return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_CANT_UNDO, Code: "WAREHOUSE_CLOSED", Message: "nobody there"}
	case t.Direction == workerv1.Direction_DIRECTION_UNDO:
		return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_SUCCEEDED}
	case in.Reject == t.Step:
		return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_REJECTED, Code: "NO_FUNDS", Message: "card declined"}
	case in.Hang == t.Step:
		return nil
	}
	return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_SUCCEEDED, Output: fmt.Appendf(nil, `{"by":%q,"note":%q}`, t.Step, in.Note)}
}

func orderDefinition() *sagadv1.Definition {
	step := func(name string, kind sagadv1.Kind) *sagadv1.Node {
		s := &sagadv1.Step{Name: name, Activity: "t." + name, Kind: kind, Input: &sagadv1.Mapping{Value: "input"}, Timeout: durationpb.New(time.Hour)}
		if kind == sagadv1.Kind_KIND_COMPENSATABLE {
			s.Compensation = &sagadv1.Compensation{}
		}
		return &sagadv1.Node{Kind: &sagadv1.Node_Step{Step: s}}
	}
	return &sagadv1.Definition{
		Name: "order",
		Activities: []*sagadv1.Activity{
			{Name: "t.charge"}, {Name: "t.reserve"}, {Name: "t.ship"},
		},
		Body: []*sagadv1.Node{
			step("reserve", sagadv1.Kind_KIND_COMPENSATABLE),
			step("charge", sagadv1.Kind_KIND_PIVOT),
			step("ship", sagadv1.Kind_KIND_RETRIABLE),
			{Kind: &sagadv1.Node_Return{Return: &sagadv1.Return{Output: &sagadv1.Mapping{Fields: map[string]string{"shipped": "ship.by"}}}}},
		},
	}
}

// rig is a node over a memory store.
type rig struct {
	t      *testing.T
	store  *memory.Store
	bus    *servertest.Bus
	engine *engine.Engine
	server *Server
	log    *lockedBuffer
	// clients within the process
	sagas       sagadv1connect.SagaServiceClient
	definitions sagadv1connect.DefinitionServiceClient
	operations  sagadv1connect.OperationsServiceClient
	// url of the port, once serving
	url string
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func newStore(t *testing.T) *memory.Store {
	t.Helper()
	return memory.New(8)
}

func newRig(t *testing.T, opts ...func(*Config)) *rig {
	return newRigOn(t, newStore(t), "node-a", opts...)
}

func newRigOn(t *testing.T, st *memory.Store, name string, opts ...func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, store: st, bus: servertest.NewBus(worker), log: &lockedBuffer{}}
	log := slog.New(slog.NewJSONHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.url = "http://" + ln.Addr().String()
	r.engine, err = engine.New(engine.Config{Name: name, Address: r.url, Logger: log}, st, r.bus)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Logger: log, Checks: []Check{{Name: "store", Run: st.Ping}}}
	for _, opt := range opts {
		opt(&cfg)
	}
	r.server, err = New(t.Context(), cfg, r.engine, st)
	if err != nil {
		t.Fatal(err)
	}
	r.server.pollInterval = 20 * time.Millisecond
	if err := r.engine.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	client := connect.NewClient(connectinprocess.New(r.server.RPC()))
	r.sagas = sagadv1connect.NewSagaServiceClient(client)
	r.definitions = sagadv1connect.NewDefinitionServiceClient(client)
	r.operations = sagadv1connect.NewOperationsServiceClient(client)

	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- r.server.Serve(ctx, ln) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		bounded, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := r.engine.Stop(bounded); err != nil {
			t.Errorf("Stop: %v", err)
		}
	})
	return r
}

func (r *rig) register() {
	r.t.Helper()
	if _, err := r.definitions.RegisterDefinition(r.t.Context(), &sagadv1.RegisterDefinitionRequest{Definition: orderDefinition()}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) start(id string, in orderInput) *sagadv1.StartSagaResponse {
	r.t.Helper()
	input, err := json.Marshal(in)
	if err != nil {
		r.t.Fatal(err)
	}
	res, err := r.sagas.StartSaga(r.t.Context(), &sagadv1.StartSagaRequest{Id: id, Definition: "order", Input: string(input)})
	if err != nil {
		r.t.Fatal(err)
	}
	return res
}

// end waits for a saga's end.
func (r *rig) end(id string) *sagadv1.Saga {
	r.t.Helper()
	res, err := r.sagas.WaitSaga(r.t.Context(), &sagadv1.WaitSagaRequest{Id: id, Timeout: durationpb.New(10 * time.Second)})
	if err != nil {
		r.t.Fatal(err)
	}
	if !res.Terminal {
		r.t.Fatalf("saga %s is %v after 10 s", id, res.Saga.Summary.Status)
	}
	return res.Saga
}

// until follows a saga until it has a status.
func (r *rig) until(id string, status sagadv1.SagaStatus) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
	defer cancel()
	stream, err := r.sagas.WatchSaga(ctx, &sagadv1.WatchSagaRequest{Id: id})
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = stream.Close() }()
	for {
		res, err := stream.Receive()
		if err != nil {
			r.t.Fatalf("saga %s doesn't become %v: %v", id, status, err)
		}
		if res.Status == status {
			return
		}
	}
}

func reasonOf(err error) string {
	var cerr *connect.Error
	if !errors.As(err, &cerr) {
		return ""
	}
	for _, d := range cerr.Details() {
		if m, err := connectproto.UnmarshalErrorDetail(d); err == nil {
			if info, ok := m.(*errdetails.ErrorInfo); ok {
				return info.Reason
			}
		}
	}
	return ""
}

// wantError checks code, stable code and a part of the text.
func wantError(t *testing.T, err error, code connect.Code, reason, text string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want %v %s", code, reason)
	}
	if got := connect.CodeOf(err); got != code {
		t.Errorf("code is %v, want %v: %v", got, code, err)
	}
	if got := reasonOf(err); got != reason {
		t.Errorf("stable code is %q, want %q: %v", got, reason, err)
	}
	if !strings.Contains(err.Error(), text) {
		t.Errorf("%q doesn't say %q", err, text)
	}
}

func newTestLog(w *lockedBuffer) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// panicking is an engine with a bug.
type panicking struct{ Engine }

func (panicking) Cancel(context.Context, string, string, statemachine.Cancel) (sagadv1.CancelAnswer, statemachine.Status, error) {
	panic("payload-in-panic")
}

// failingStore says more than callers should see.
type failingStore struct{ store.Store }

func (failingStore) Sagas(context.Context, store.SagaFilter) ([]store.Saga, error) {
	return nil, errors.New("connect to 10.0.0.7 as sagad with password hunter2: refused")
}
