package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectinprocess"

	"github.com/sagad/sagad/engine"
	"github.com/sagad/sagad/internal/server"
	"github.com/sagad/sagad/internal/server/servertest"
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/proto/gen/sagad/v1/sagadv1connect"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/sdk/client"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/store/memory"
)

type order struct {
	Account int64  `json:"account"`
	Mode    string `json:"mode"`
}

type receipt struct {
	Account int64  `json:"account"`
	Text    string `json:"text"`
}

var (
	reserve = saga.Compensatable[order, receipt]{Name: "t.reserve"}
	charge  = saga.Activity[order, receipt]{Name: "t.charge"}

	placeOrder = saga.Define[order, receipt]("place-order",
		saga.Do("reserve", reserve, saga.Fields{"account": "input.account", "mode": "input.mode"}, saga.Timeout(time.Hour)),
		saga.Pivot("charge", charge, saga.Fields{"account": "reserve.account", "mode": "input.mode"}, saga.Timeout(time.Hour)),
		saga.Return(saga.Fields{"account": "charge.account", "text": "charge.text"}))
)

// work does what the order's mode says.
func work(t *workerv1.Task) *workerv1.Result {
	var in order
	if err := json.Unmarshal(t.Input, &in); err != nil {
		panic(err)
	}
	if t.Direction == workerv1.Direction_DIRECTION_UNDO {
		if in.Mode == "stuck" {
			return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_CANT_UNDO, Code: "CLOSED", Message: "nobody there"}
		}
		return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_SUCCEEDED}
	}
	switch {
	case in.Mode == "hang":
		return nil
	case t.Step == "charge" && in.Mode != "good":
		return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_REJECTED, Code: "NO_FUNDS", Message: "card declined"}
	}
	return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_SUCCEEDED, Output: fmt.Appendf(nil, `{"account":%d,"text":"thanks"}`, in.Account)}
}

// start runs an engine and its API in this process.
func start(t *testing.T) *server.Server {
	t.Helper()
	st := memory.New(4)
	eng, err := engine.New(engine.Config{Name: "test"}, st, servertest.NewBus(work))
	if err != nil {
		t.Fatal(err)
	}
	srv, err := server.New(t.Context(), server.Config{}, eng, st)
	if err != nil {
		t.Fatal(err)
	}
	if err := eng.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		srv.Stop()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := eng.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return srv
}

func newClient(t *testing.T) *client.Client {
	t.Helper()
	return clientOf(t, start(t))
}

func clientOf(t *testing.T, srv *server.Server) *client.Client {
	t.Helper()
	c, err := client.New("", client.WithTransport(connectinprocess.New(srv.RPC())), client.WithActor("ann"))
	if err != nil {
		t.Fatal(err)
	}
	if v, err := client.Register(t.Context(), c, placeOrder); err != nil || v.Version != 1 || !v.Created || v.Name != "place-order" || len(v.Hash) != 64 {
		t.Fatalf("Register: %+v %v", v, err)
	}
	return c
}

func TestRunToItsEnd(t *testing.T) {
	c := newClient(t)
	ctx := t.Context()
	if v, err := client.Register(ctx, c, placeOrder); err != nil || v.Created || v.Version != 1 {
		t.Errorf("registered again: %+v %v", v, err)
	}
	// 2^53+1: a number that a double can't hold.
	in := order{Account: 9007199254740993, Mode: "good"}
	run, err := client.Start(ctx, c, placeOrder, "order-1", in, client.WithLabel("city", "Rome"))
	if err != nil {
		t.Fatal(err)
	}
	if !run.Created() || run.ID() != "order-1" || run.RunID() == "" || run.Version() != 1 {
		t.Errorf("run is %+v", run)
	}
	out, err := run.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if want := (receipt{9007199254740993, "thanks"}); out != want {
		t.Errorf("output is %+v, want %+v", out, want)
	}
	again, err := client.Start(ctx, c, placeOrder, "order-1", in, client.WithLabel("city", "Rome"))
	if err != nil || again.Created() || again.RunID() != run.RunID() {
		t.Errorf("started again: %+v %v", again, err)
	}
	out, err = client.Attach(c, placeOrder, "order-1").Wait(ctx)
	if err != nil || out.Text != "thanks" {
		t.Errorf("attached: %+v %v", out, err)
	}
	s, err := run.Get(ctx)
	if err != nil || s.Summary.Labels["city"] != "Rome" || s.Summary.Status != sagadv1.SagaStatus_SAGA_STATUS_COMPLETED {
		t.Errorf("Get: %v %v", s, err)
	}
	if err := run.Cancel(ctx, "too late"); !errors.Is(err, client.ErrTooLate) {
		t.Errorf("Cancel of a completed saga: %v", err)
	}
}

func TestEndsThatAreErrors(t *testing.T) {
	srv := start(t)
	c := clientOf(t, srv)
	ctx := t.Context()
	wait := func(id, mode string, opts ...client.WaitOption) error {
		t.Helper()
		run, err := client.Start(ctx, c, placeOrder, id, order{Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		_, err = run.Wait(ctx, opts...)
		return err
	}
	var compensated *client.CompensatedError
	if err := wait("order-1", "reject"); !errors.As(err, &compensated) {
		t.Fatalf("a rejected saga: %v", err)
	}
	want := client.Cause{Kind: historyv1.CauseKind_CAUSE_KIND_REJECTED, Step: "charge", Code: "NO_FUNDS", Message: "card declined"}
	if compensated.Cause != want || compensated.ID != "order-1" {
		t.Errorf("cause is %+v, want %+v", compensated.Cause, want)
	}
	if got := compensated.Error(); !strings.Contains(got, "charge was rejected: NO_FUNDS: card declined") {
		t.Errorf("the error says %q", got)
	}
	var stuck *client.StuckError
	if err := wait("order-2", "stuck", client.StopWhenStuck()); !errors.As(err, &stuck) || len(stuck.Items) != 1 ||
		!strings.Contains(err.Error(), "1 open operations item, see `sagad ops list --saga order-2`") {
		t.Fatalf("a stuck saga: %v", err)
	}
	operations := sagadv1connect.NewOperationsServiceClient(connect.NewClient(connectinprocess.New(srv.RPC())))
	if _, err := operations.ActOnItem(ctx, &sagadv1.ActOnItemRequest{
		SagaId: "order-2", Number: 1, Action: historyv1.OperatorAction_OPERATOR_ACTION_ABANDON, Reason: "enough",
	}); err != nil {
		t.Fatal(err)
	}
	var abandoned *client.AbandonedError
	if _, err := client.Attach(c, placeOrder, "order-2").Wait(ctx); !errors.As(err, &abandoned) || abandoned.Cause.Step != "charge" {
		t.Errorf("an abandoned saga: %v", err)
	}

	run, err := client.Start(ctx, c, placeOrder, "order-3", order{Mode: "hang"})
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := run.Wait(short); !errors.Is(err, context.DeadlineExceeded) || strings.Count(err.Error(), "deadline exceeded") != 1 {
		t.Errorf("Wait beyond its context: %v", err)
	}
	if err := run.Cancel(ctx, "changed my mind"); err != nil {
		t.Errorf("Cancel: %v", err)
	}
	s, err := run.Get(ctx)
	if err != nil || s.Summary.Cause.GetActor() != "ann" {
		t.Errorf("after a cancel: %v %v", s, err)
	}
}

func TestErrorsSayWhich(t *testing.T) {
	c := newClient(t)
	ctx := t.Context()
	if _, err := client.Start(ctx, c, placeOrder, "order-1", order{Mode: "good"}); err != nil {
		t.Fatal(err)
	}
	_, err := client.Start(ctx, c, placeOrder, "order-1", order{Mode: "reject"})
	var ce *client.Error
	if !errors.Is(err, client.ErrConflict) || !errors.As(err, &ce) || ce.Code != "ID_TAKEN" {
		t.Errorf("a taken id: %v", err)
	}
	if _, err := client.Start(ctx, c, placeOrder, "", order{}); !errors.Is(err, client.ErrInvalid) {
		t.Errorf("no id: %v", err)
	}
	if _, err := client.Start(ctx, c, placeOrder, "order-2", order{}, client.WithVersion(9)); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("no such version: %v", err)
	}
	if _, err := client.Attach(c, placeOrder, "nobody").Wait(ctx); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("no such saga: %v", err)
	}
	if _, err := client.New("ftp://x"); err == nil {
		t.Error("a bad address is taken")
	}
	// Nobody listens; with one try only, the answer comes at once.
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	off, err := client.New(gone.URL, client.WithRetryFor(0))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Start(ctx, off, placeOrder, "order-1", order{}); !errors.Is(err, client.ErrUnavailable) ||
		!strings.Contains(err.Error(), "no sagad answers at "+gone.URL+"; is it running?") {
		t.Errorf("no server: %v", err)
	}
	// All problems of a definition, each once.
	_, err = client.Register(ctx, c, saga.Define[order, receipt]("bad",
		saga.Do("reserve", reserve, saga.Value("inputt")), saga.Pivot("charge", charge, saga.Value("inputt"))))
	if !errors.As(err, &ce) || len(ce.Problems) < 2 {
		t.Fatalf("a bad definition: %v", err)
	}
	text := err.Error()
	if !strings.Contains(text, fmt.Sprintf("the definition has %d problems:\n  bad.", len(ce.Problems))) || strings.Contains(text, "more, in") {
		t.Errorf("a bad definition is told as\n%s", text)
	}
	for _, p := range ce.Problems {
		if n := strings.Count(text, p.Step+"."+p.Field+": "+p.Message); n != 1 {
			t.Errorf("problem %v is told %d times:\n%s", p, n, text)
		}
	}
}

// flaky is a server that loses the first answers.
type flaky struct {
	sagadv1connect.SagaServiceHandler
	starts, cancels atomic.Int32
	ids             chan string
}

func (f *flaky) StartSaga(_ context.Context, req *sagadv1.StartSagaRequest) (*sagadv1.StartSagaResponse, error) {
	f.ids <- req.Id
	if f.starts.Add(1) < 3 {
		return nil, connect.NewError(connect.CodeUnavailable, "moving")
	}
	return &sagadv1.StartSagaResponse{RunId: "r", Version: 1, Created: true}, nil
}

func (f *flaky) CancelSaga(_ context.Context, req *sagadv1.CancelSagaRequest) (*sagadv1.CancelSagaResponse, error) {
	f.ids <- req.RequestId
	if f.cancels.Add(1) < 2 {
		return nil, connect.NewError(connect.CodeUnavailable, "moving")
	}
	return &sagadv1.CancelSagaResponse{Answer: sagadv1.CancelAnswer_CANCEL_ANSWER_WILL_UNWIND}, nil
}

func (f *flaky) GetSaga(context.Context, *sagadv1.GetSagaRequest) (*sagadv1.GetSagaResponse, error) {
	f.starts.Add(1)
	return nil, connect.NewError(connect.CodeFailedPrecondition, "no")
}

func TestCallsAreRepeatedUnderOneID(t *testing.T) {
	f := &flaky{ids: make(chan string, 16)}
	srv := connect.NewServer()
	sagadv1connect.RegisterSagaServiceHandler(srv, f)
	c, err := client.New("", client.WithTransport(connectinprocess.New(srv)))
	if err != nil {
		t.Fatal(err)
	}
	run, err := client.Start(t.Context(), c, placeOrder, "order-1", order{})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if id := <-f.ids; id != "order-1" {
			t.Errorf("a try under id %q", id)
		}
	}
	if err := run.Cancel(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	if first, second := <-f.ids, <-f.ids; first != second || first == "" {
		t.Errorf("request ids of two tries: %q, %q", first, second)
	}
	// A verdict isn't asked for twice.
	before := f.starts.Load()
	if _, err := run.Get(t.Context()); err == nil {
		t.Error("no error")
	}
	if got := f.starts.Load() - before; got != 1 {
		t.Errorf("%d tries of what was refused", got)
	}
}
