package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectinprocess"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/proto/gen/sagad/v1/sagadv1connect"
	"github.com/sagad/sagad/sdk/client"
)

func TestPauseExplainResume(t *testing.T) {
	c := newClient(t)
	ctx := t.Context()
	run, err := client.Start(ctx, c, placeOrder, "order-1", order{Mode: "hang"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := run.Explain(ctx); err != nil || got.WaitsFor != sagadv1.WaitsFor_WAITS_FOR_WORKER || got.Explanation == "" {
		t.Errorf("a saga under way: %v %v", got, err)
	}
	if err := run.Pause(ctx, "maintenance"); err != nil {
		t.Fatal(err)
	}
	if got, err := run.Explain(ctx); err != nil || got.WaitsFor != sagadv1.WaitsFor_WAITS_FOR_RESUME || !strings.Contains(got.Explanation, "maintenance") {
		t.Errorf("a paused saga: %v %v", got, err)
	}
	if err := run.Resume(ctx, ""); err != nil {
		t.Fatal(err)
	}
	if got, err := run.Get(ctx); err != nil || got.Paused {
		t.Errorf("a resumed saga: %v %v", got, err)
	}

	done, err := client.Start(ctx, c, placeOrder, "order-2", order{Mode: "good"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := done.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	var ce *client.Error
	if err := done.Pause(ctx, "too late"); !errors.Is(err, client.ErrNotAllowed) || !errors.As(err, &ce) || ce.Code != "NOT_ALLOWED" {
		t.Errorf("pausing an ended saga: %v", err)
	}
	if err := client.Attach(c, placeOrder, "nobody").Pause(ctx, "x"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("pausing nobody: %v", err)
	}
	if err := run.Pause(ctx, ""); !errors.Is(err, client.ErrInvalid) {
		t.Errorf("pausing without a reason: %v", err)
	}
}

// paid is a signal's contract.
type paid struct{}

func (paid) SignalName() string                      { return "paid" }
func (paid) SignalPayload(r receipt) ([]byte, error) { return json.Marshal(r) }

// signalled takes in one signal.
type signalled struct {
	sagadv1connect.UnimplementedSagaServiceHandler
	calls chan *sagadv1.SignalSagaRequest
	times int
}

func (s *signalled) SignalSaga(_ context.Context, req *sagadv1.SignalSagaRequest) (*sagadv1.SignalSagaResponse, error) {
	s.calls <- req
	switch s.times++; s.times {
	case 1:
		return nil, connect.NewError(connect.CodeUnavailable, "moving")
	case 5:
		return nil, connect.NewError(connect.CodeAlreadyExists, "taken")
	}
	return &sagadv1.SignalSagaResponse{Fresh: s.times == 2}, nil
}

func TestSignal(t *testing.T) {
	s := &signalled{calls: make(chan *sagadv1.SignalSagaRequest, 16)}
	srv := connect.NewServer()
	sagadv1connect.RegisterSagaServiceHandler(srv, s)
	c, err := client.New("", client.WithTransport(connectinprocess.New(srv)))
	if err != nil {
		t.Fatal(err)
	}
	run := client.Attach(c, placeOrder, "order-1")
	ctx := t.Context()
	// The same signal for all tries, told apart by the server.
	for _, want := range []bool{true, false} {
		if fresh, err := run.Signal(ctx, "paid", "payment-7", receipt{Account: 7, Text: "ok"}); err != nil || fresh != want {
			t.Errorf("fresh %v, %v; want %v", fresh, err, want)
		}
	}
	if fresh, err := client.Signal(ctx, run, paid{}, "payment-7", receipt{Account: 7, Text: "ok"}); err != nil || fresh {
		t.Errorf("by its contract: fresh %v, %v", fresh, err)
	}
	for range 4 {
		req := <-s.calls
		if req.Id != "order-1" || req.Signal != "paid" || req.Key != "payment-7" || req.Payload != `{"account":7,"text":"ok"}` {
			t.Errorf("sent: %v", req)
		}
	}
	if _, err := run.Signal(ctx, "paid", "payment-7", receipt{}); !errors.Is(err, client.ErrConflict) {
		t.Errorf("a taken key: %v", err)
	}
	if _, err := run.Signal(ctx, "paid", "payment-8", make(chan int)); err == nil || len(s.calls) != 1 {
		t.Errorf("what isn't JSON: %v", err)
	}
	// A real server refuses what the definition doesn't have.
	real, err := client.Start(ctx, newClient(t), placeOrder, "order-1", order{Mode: "hang"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := real.Signal(ctx, "paid", "1", nil); !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), "paid") {
		t.Errorf("no such signal: %v", err)
	}
}
