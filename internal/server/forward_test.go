package server

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/sagad/sagad/engine"
	"github.com/sagad/sagad/internal/server/servertest"
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/proto/gen/sagad/v1/sagadv1connect"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// A node that owns nothing answers for the owner: starts, cancels and acts hop, reads come from the store.
func TestAnyNodeAnswers(t *testing.T) {
	owner := newRig(t)
	other := newRigOn(t, owner.store, "node-b")
	servertest.Join(owner.bus, other.bus)
	if n := len(owner.engine.Owned()); n != 8 {
		t.Fatalf("the first node owns %d shards of 8", n)
	}
	other.register()
	started := other.start("order-1", orderInput{Reject: "charge", CantUndo: "reserve"})
	if !started.Created {
		t.Errorf("the start answered %v", started)
	}
	if again := owner.start("order-1", orderInput{Reject: "charge", CantUndo: "reserve"}); again.RunId != started.RunId || again.Created {
		t.Errorf("at the owner it is another saga: %v", again)
	}
	other.until("order-1", sagadv1.SagaStatus_SAGA_STATUS_STUCK)
	ctx := t.Context()

	// The owner's refusals come through as they are.
	_, err := other.sagas.StartSaga(ctx, &sagadv1.StartSagaRequest{Id: "order-1", Definition: "order", Input: "{}"})
	wantError(t, err, connect.CodeAlreadyExists, codeIDTaken, "other content")
	act := &sagadv1.ActOnItemRequest{
		SagaId: "order-1", Number: 1, Version: 1, Action: historyv1.OperatorAction_OPERATOR_ACTION_ABANDON, Reason: "enough",
	}
	_, err = other.operations.ActOnItem(ctx, act)
	wantError(t, err, connect.CodeAborted, codeStaleVersion, "look at it again")

	cancelled, err := other.sagas.CancelSaga(ctx, &sagadv1.CancelSagaRequest{Id: "order-1"})
	if err != nil || cancelled.Answer != sagadv1.CancelAnswer_CANCEL_ANSWER_ALREADY_UNWINDING {
		t.Errorf("cancel: %v %v", cancelled, err)
	}
	act.Version = 0
	out, info := connect.NewClientContext(ctx)
	info.RequestHeader().Set(HeaderActor, "ann")
	acted, err := other.operations.ActOnItem(out, act)
	if err != nil || acted.Status != sagadv1.SagaStatus_SAGA_STATUS_ABANDONED {
		t.Errorf("act: %v %v", acted, err)
	}
	other.end("order-1")
	history, err := other.sagas.GetHistory(ctx, &sagadv1.GetHistoryRequest{Id: "order-1"})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(fmt.Sprint(history), "ann") {
		t.Error("the actor got lost on the hop")
	}
}

// elsewhere is an engine that owns nothing.
type elsewhere struct {
	Engine
	address string
}

func (e elsewhere) Cancel(context.Context, string, string, statemachine.Cancel) (sagadv1.CancelAnswer, statemachine.Status, error) {
	return 0, 0, &engine.NotOwnerError{Shard: 3, Address: e.address}
}

func (elsewhere) Changes(string, string) (<-chan engine.Change, func()) { return nil, func() {} }

func TestForwardingHopsOnceAndFailsSoftly(t *testing.T) {
	var st store.Store = newStore(t)
	var logs bytes.Buffer
	serve := func(address func() string) *httptest.Server {
		e := &elsewhere{}
		s, err := New(t.Context(), Config{Logger: slog.New(slog.NewTextHandler(&logs, nil))}, e, st)
		if err != nil {
			t.Fatal(err)
		}
		hs := httptest.NewUnstartedServer(s.Handler())
		hs.Config.Protocols = new(http.Protocols)
		hs.Config.Protocols.SetHTTP1(true)
		hs.Config.Protocols.SetUnencryptedHTTP2(true)
		hs.Start()
		t.Cleanup(hs.Close)
		t.Cleanup(s.Stop)
		e.address = address()
		if e.address == "self" {
			e.address = hs.URL
		}
		return hs
	}
	cancel := func(url string) (time.Duration, error) {
		start := time.Now()
		c := sagadv1connect.NewSagaServiceClient(connect.NewClient(connecthttp.NewTransport(http.DefaultClient, url)))
		_, err := c.CancelSaga(t.Context(), &sagadv1.CancelSagaRequest{Id: "order-1"})
		return time.Since(start), err
	}
	// A lease that points at its reader, or two nodes that point at each other, don't make a loop.
	loop := serve(func() string { return "self" })
	took, err := cancel(loop.URL)
	wantError(t, err, connect.CodeUnavailable, codeNoOwner, "ask again")
	if took > 3*time.Second {
		t.Errorf("it took %v", took)
	}
	// Nobody answers there.
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	orphan := serve(func() string { return gone.URL })
	for range 3 {
		_, err = cancel(orphan.URL)
		wantError(t, err, connect.CodeUnavailable, codeOwnerUnreachable, "ask again")
	}
	if n := strings.Count(logs.String(), "the owner of a shard can't be reached"); n != 1 {
		t.Errorf("logged %d times for 3 requests", n)
	}
	if strings.Contains(err.Error(), gone.URL) {
		t.Errorf("the error shows an inner address: %v", err)
	}
	// No address at all.
	_, err = cancel(serve(func() string { return "" }).URL)
	wantError(t, err, connect.CodeUnavailable, codeNoOwner, "ask again")
}

func TestWarnsOncePerShardAndMinute(t *testing.T) {
	p, now := newPeers(slog.New(slog.DiscardHandler)), time.Now()
	for i, tt := range []struct {
		shard int
		after time.Duration
		want  bool
	}{{1, 0, true}, {1, 59 * time.Second, false}, {2, 59 * time.Second, true}, {1, 60 * time.Second, true}, {1, 61 * time.Second, false}} {
		if got := p.warns(tt.shard, now.Add(tt.after)); got != tt.want {
			t.Errorf("%d: %v", i, got)
		}
	}
}
