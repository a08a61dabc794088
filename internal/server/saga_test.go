package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

func TestStartToEnd(t *testing.T) {
	r := newRig(t)
	r.register()
	started := r.start("order-1", orderInput{Note: "fragile"})
	if !started.Created || started.Version != 1 || started.RunId == "" {
		t.Errorf("start answered %v", started)
	}
	saga := r.end("order-1")
	if again := r.start("order-1", orderInput{Note: "fragile"}); again.Created || again.RunId != started.RunId {
		t.Errorf("the second start answered %v, the first %v", again, started)
	}
	if got, want := saga.Output, `{"shipped":"ship"}`; got != want {
		t.Errorf("output is %s, want %s", got, want)
	}
	if got, want := saga.Input, `{"Reject":"","CantUndo":"","Hang":"","Note":"fragile"}`; got != want {
		t.Errorf("input is %s, want %s", got, want)
	}
	run := started.RunId
	call := func(step string, output string) *sagadv1.SagaCall {
		return &sagadv1.SagaCall{
			Generation: 1, Attempts: 1, LastOutcome: historyv1.Outcome_OUTCOME_SUCCEEDED, Output: output,
			IdempotencyKey: run + "/" + step + "/-/do/1",
		}
	}
	want := []*sagadv1.SagaStep{
		{Name: "reserve", Activity: "t.reserve", Status: sagadv1.StepStatus_STEP_STATUS_SUCCEEDED, Action: call("reserve", `{"by":"reserve","note":"fragile"}`)},
		{Name: "charge", Activity: "t.charge", Status: sagadv1.StepStatus_STEP_STATUS_SUCCEEDED, Action: call("charge", `{"by":"charge","note":"fragile"}`)},
		{Name: "ship", Activity: "t.ship", Status: sagadv1.StepStatus_STEP_STATUS_SUCCEEDED, Action: call("ship", `{"by":"ship","note":"fragile"}`)},
	}
	if diff := cmp.Diff(want, saga.Steps, protocmp.Transform(),
		protocmp.IgnoreFields(&sagadv1.SagaCall{}, "started_at", "ended_at")); diff != "" {
		t.Errorf("steps differ (-want +got):\n%s", diff)
	}
}

func TestRejectedSagaIsUndoneAndSaysWhy(t *testing.T) {
	r := newRig(t)
	r.register()
	r.start("order-1", orderInput{Reject: "charge"})
	saga := r.end("order-1")
	if got := saga.Summary.Status; got != sagadv1.SagaStatus_SAGA_STATUS_COMPENSATED {
		t.Fatalf("status is %v", got)
	}
	var got []string
	for _, s := range saga.Steps {
		got = append(got, s.Name+" "+strings.TrimPrefix(s.Status.String(), "STEP_STATUS_"))
	}
	if diff := cmp.Diff([]string{"reserve COMPENSATED", "charge REJECTED", "ship SKIPPED"}, got); diff != "" {
		t.Error(diff)
	}
	c := saga.Summary.Cause
	if c.GetStep() != "charge" || c.GetError().GetCode() != "NO_FUNDS" || c.GetError().GetMessage() != "card declined" {
		t.Errorf("cause is %v", c)
	}
}

// A saga of stuck status is settled by a person: what the queue shows, stale acts, and what an act leads to.
func TestOperations(t *testing.T) {
	r := newRig(t)
	r.register()
	r.start("order-1", orderInput{Reject: "charge", CantUndo: "reserve"})
	r.until("order-1", sagadv1.SagaStatus_SAGA_STATUS_STUCK)
	ctx := t.Context()

	got, err := r.sagas.GetSaga(ctx, &sagadv1.GetSagaRequest{Id: "order-1"})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Saga.Items) != 1 || got.Saga.Steps[0].Status != sagadv1.StepStatus_STEP_STATUS_HELD {
		t.Errorf("a stuck saga shows items %v, steps %v", got.Saga.Items, got.Saga.Steps)
	}
	list, err := r.operations.ListItems(ctx, &sagadv1.ListItemsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 {
		t.Fatalf("%d items", len(list.Items))
	}
	item := list.Items[0]
	if item.SagaId != "order-1" || item.Kind != historyv1.ItemKind_ITEM_KIND_COMPENSATION_REFUSED || !item.Blocking ||
		item.Step != "reserve" || item.Error.GetCode() != "WAREHOUSE_CLOSED" || item.Version == 0 || item.Attempts != 1 {
		t.Errorf("item is %v", item)
	}
	shown, err := r.operations.GetItem(ctx, &sagadv1.GetItemRequest{SagaId: "order-1", Number: 1})
	if err != nil {
		t.Fatal(err)
	}
	if len(shown.Actions) != 5 || shown.Cause.GetStep() != "charge" {
		t.Errorf("actions %v, cause %v", shown.Actions, shown.Cause)
	}
	if len(shown.Effects) != 1 || shown.Effects[0].Step != "reserve" || shown.Effects[0].IdempotencyKey != item.RunId+"/reserve/-/do/1" {
		t.Errorf("effects are %v", shown.Effects)
	}

	act := &sagadv1.ActOnItemRequest{
		SagaId: "order-1", Number: 1, Version: item.Version + 100, Action: historyv1.OperatorAction_OPERATOR_ACTION_RESOLVE,
		Reason: "called the warehouse", Evidence: "ticket 7",
	}
	_, err = r.operations.ActOnItem(ctx, act)
	wantError(t, err, connect.CodeAborted, codeStaleVersion, "look at it again")
	act.Version = item.Version
	act.Action = historyv1.OperatorAction_OPERATOR_ACTION_ACKNOWLEDGE
	_, err = r.operations.ActOnItem(ctx, act)
	wantError(t, err, connect.CodeFailedPrecondition, codeNotAllowed, "")
	act.Action = historyv1.OperatorAction_OPERATOR_ACTION_RESOLVE
	act.Evidence = ""
	_, err = r.operations.ActOnItem(ctx, act)
	wantError(t, err, connect.CodeInvalidArgument, codeInvalidRequest, "evidence is needed")
	act.Evidence = "ticket 7"
	act.Number = 2
	_, err = r.operations.ActOnItem(ctx, act)
	wantError(t, err, connect.CodeNotFound, codeItemNotFound, "no operations item 2")
	act.Number = 1
	out, info := connect.NewClientContext(ctx)
	info.RequestHeader().Set(HeaderActor, "ann\x01 of  ops")
	res, err := r.operations.ActOnItem(out, act)
	if err != nil {
		t.Fatal(err)
	}
	if res.Item.Status != historyv1.ItemStatus_ITEM_STATUS_CLOSED {
		t.Errorf("the act led to item %v", res.Item)
	}
	saga := r.end("order-1")
	if saga.Summary.Status != sagadv1.SagaStatus_SAGA_STATUS_COMPENSATED || saga.Summary.SettledByHand != 1 {
		t.Errorf("the act led to %v", saga.Summary)
	}
	if list, err := r.operations.ListItems(ctx, &sagadv1.ListItemsRequest{}); err != nil || len(list.Items) != 0 {
		t.Errorf("still open: %v %v", list, err)
	}
	if list, err := r.operations.ListItems(ctx, &sagadv1.ListItemsRequest{IncludeClosed: true, SagaId: "order-1"}); err != nil || len(list.Items) != 1 {
		t.Errorf("closed: %v %v", list, err)
	}
	history, err := r.sagas.GetHistory(ctx, &sagadv1.GetHistoryRequest{Id: "order-1"})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(fmt.Sprint(history), "ann of  ops") {
		t.Error("the history doesn't name the actor")
	}
}

func TestWatchGoesOnWithoutGapOrRepeat(t *testing.T) {
	r := newRig(t)
	r.register()
	r.start("order-1", orderInput{Reject: "charge", CantUndo: "reserve"})
	ctx := t.Context()
	var numbers []int64
	receive := func(from int64, n int) (last sagadv1.SagaStatus) {
		t.Helper()
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		stream, err := r.sagas.WatchSaga(ctx, &sagadv1.WatchSagaRequest{Id: "order-1", From: from})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = stream.Close() }()
		for i := 0; n < 0 || i < n; i++ {
			res, err := stream.Receive()
			if errors.Is(err, io.EOF) {
				return last
			}
			if err != nil {
				t.Fatal(err)
			}
			numbers = append(numbers, res.Entry.Number)
			if len(res.Entry.Facts) == 0 || len(res.Entry.Sentences) != len(res.Entry.Facts) {
				t.Errorf("entry %v", res.Entry)
			}
			last = res.Status
		}
		return last
	}
	receive(0, 2)
	receive(3, 1)
	r.until("order-1", sagadv1.SagaStatus_SAGA_STATUS_STUCK)
	done := make(chan sagadv1.SagaStatus)
	go func() { done <- receive(4, -1) }()
	if _, err := r.operations.ActOnItem(ctx, &sagadv1.ActOnItemRequest{
		SagaId: "order-1", Number: 1, Action: historyv1.OperatorAction_OPERATOR_ACTION_ABANDON, Reason: "enough",
	}); err != nil {
		t.Fatal(err)
	}
	if got := <-done; got != sagadv1.SagaStatus_SAGA_STATUS_ABANDONED {
		t.Errorf("the watch ended at %v", got)
	}
	for i, n := range numbers {
		if n != int64(i)+1 {
			t.Fatalf("numbers are %v", numbers)
		}
	}
	saga := r.end("order-1")
	if int64(len(numbers)) != saga.LastTransition {
		t.Errorf("%d entries of %d transitions", len(numbers), saga.LastTransition)
	}
	// A terminal saga's watch ends at once, also beyond its end.
	numbers = nil
	receive(saga.LastTransition+5, -1)
	if len(numbers) != 0 {
		t.Errorf("entries %v beyond the end", numbers)
	}
}

func TestWaitSaysWhenTheTimeIsUp(t *testing.T) {
	r := newRig(t)
	r.register()
	r.start("order-1", orderInput{Hang: "reserve"})
	res, err := r.sagas.WaitSaga(t.Context(), &sagadv1.WaitSagaRequest{Id: "order-1", Timeout: durationpb.New(time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	if res.Terminal || res.Saga.Summary.Status != sagadv1.SagaStatus_SAGA_STATUS_RUNNING {
		t.Errorf("answer is terminal=%v %v", res.Terminal, res.Saga.Summary.Status)
	}
	cancelled, err := r.sagas.CancelSaga(t.Context(), &sagadv1.CancelSagaRequest{Id: "order-1", Reason: "changed my mind", RequestId: "r1"})
	if err != nil {
		t.Fatal(err)
	}
	if cancelled.Answer != sagadv1.CancelAnswer_CANCEL_ANSWER_WILL_UNWIND {
		t.Errorf("cancel answered %v", cancelled)
	}
	again, err := r.sagas.CancelSaga(t.Context(), &sagadv1.CancelSagaRequest{Id: "order-1", Reason: "again", RequestId: "r2"})
	if err != nil || again.Answer != sagadv1.CancelAnswer_CANCEL_ANSWER_ALREADY_UNWINDING {
		t.Errorf("the second cancel answered %v %v", again, err)
	}
}

func TestListPages(t *testing.T) {
	r := newRig(t)
	r.register()
	for i := range 7 {
		r.start(fmt.Sprintf("order-%d", i), orderInput{})
		r.end(fmt.Sprintf("order-%d", i))
	}
	r.start("other", orderInput{})
	ctx := t.Context()
	var newest []string
	for _, oldest := range []bool{false, true} {
		var ids []string
		req := &sagadv1.ListSagasRequest{PageSize: 3, OldestFirst: oldest, Filter: &sagadv1.SagaFilter{IdPrefix: "order-"}}
		for pages := 0; ; pages++ {
			res, err := r.sagas.ListSagas(ctx, req)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range res.Sagas {
				ids = append(ids, s.Id)
			}
			if res.NextPageToken == "" {
				if pages != 2 {
					t.Errorf("%d pages", pages+1)
				}
				break
			}
			req.PageToken = res.NextPageToken
			req.PageSize = 2 + int32(pages) // another size is no other question
		}
		// Sagas of one millisecond are in any order, but always in the same.
		if oldest {
			slices.Reverse(ids)
			if diff := cmp.Diff(newest, ids); diff != "" {
				t.Errorf("oldest first isn't newest first backwards: %s", diff)
			}
		} else {
			newest = slices.Clone(ids)
		}
		slices.Sort(ids)
		if diff := cmp.Diff([]string{"order-0", "order-1", "order-2", "order-3", "order-4", "order-5", "order-6"}, ids); diff != "" {
			t.Error(diff)
		}
	}
	var last int64
	for from, n := int64(1), 0; from != 0; n++ {
		res, err := r.sagas.GetHistory(ctx, &sagadv1.GetHistoryRequest{Id: "order-0", From: from, PageSize: 2})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range res.Entries {
			if e.Number != last+1 {
				t.Errorf("entry %d follows %d", e.Number, last)
			}
			last = e.Number
		}
		if from = res.Next; n > 100 {
			t.Fatal("no end")
		}
	}
	if saga := r.end("order-0"); last != saga.LastTransition {
		t.Errorf("history ends at %d of %d", last, saga.LastTransition)
	}
}

func TestPageTokensAreChecked(t *testing.T) {
	r := newRig(t)
	r.register()
	for i := range 3 {
		r.start(fmt.Sprintf("order-%d", i), orderInput{})
	}
	ctx := t.Context()
	res, err := r.sagas.ListSagas(ctx, &sagadv1.ListSagasRequest{PageSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	token := res.NextPageToken
	if token == "" {
		t.Fatal("no token")
	}
	flip := func(i int) string {
		b := []byte(token)
		if b[i] == 'A' {
			b[i] = 'B'
		} else {
			b[i] = 'A'
		}
		return string(b)
	}
	bad := map[string]string{
		"not base64": "!!", "truncated": token[:len(token)-1], "half": token[:len(token)/2], "longer": token + "AAAA",
		"one byte": "AQ", "padding": token + "=",
	}
	for i := range token {
		bad[fmt.Sprintf("byte %d changed", i)] = flip(i)
	}
	for name, token := range bad {
		_, err := r.sagas.ListSagas(ctx, &sagadv1.ListSagasRequest{PageSize: 1, PageToken: token})
		if connect.CodeOf(err) != connect.CodeInvalidArgument || reasonOf(err) != codeInvalidPageToken {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = r.sagas.ListSagas(ctx, &sagadv1.ListSagasRequest{PageSize: 1, PageToken: token, OldestFirst: true})
	wantError(t, err, connect.CodeInvalidArgument, codeInvalidPageToken, "first page")
	_, err = r.sagas.ListSagas(ctx, &sagadv1.ListSagasRequest{PageSize: 1, PageToken: token, Namespace: "other"})
	wantError(t, err, connect.CodeInvalidArgument, codeInvalidPageToken, "first page")
	_, err = r.definitions.ListDefinitions(ctx, &sagadv1.ListDefinitionsRequest{PageToken: token})
	wantError(t, err, connect.CodeInvalidArgument, codeInvalidPageToken, "first page")
	// The same question in other words is the same question.
	if _, err := r.sagas.ListSagas(ctx, &sagadv1.ListSagasRequest{PageSize: 2, PageToken: token, Namespace: "default"}); err != nil {
		t.Errorf("a good token is refused: %v", err)
	}
}

func TestDefinitions(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	def := orderDefinition()
	first, err := r.definitions.RegisterDefinition(ctx, &sagadv1.RegisterDefinitionRequest{Definition: def})
	if err != nil {
		t.Fatal(err)
	}
	again, err := r.definitions.RegisterDefinition(ctx, &sagadv1.RegisterDefinitionRequest{Definition: def})
	if err != nil {
		t.Fatal(err)
	}
	if !first.Created || again.Created || first.Version.Version != 1 || again.Version.Version != 1 {
		t.Errorf("first %v, again %v", first, again)
	}
	def.Description = "second"
	if second, err := r.definitions.RegisterDefinition(ctx, &sagadv1.RegisterDefinitionRequest{Definition: def}); err != nil || second.Version.Version != 2 {
		t.Errorf("other content: %v %v", second, err)
	}
	other := orderDefinition()
	other.Name = "another"
	if _, err := r.definitions.RegisterDefinition(ctx, &sagadv1.RegisterDefinitionRequest{Definition: other}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "order"} {
		var got []string
		req := &sagadv1.ListDefinitionsRequest{Name: name, PageSize: 1}
		for {
			res, err := r.definitions.ListDefinitions(ctx, req)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range res.Definitions {
				got = append(got, fmt.Sprintf("%s %d", d.Name, d.Version))
			}
			if req.PageToken = res.NextPageToken; req.PageToken == "" {
				break
			}
		}
		want := []string{"another 1", "order 2"}
		if name != "" {
			want = []string{"order 2", "order 1"}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("list %q: %s", name, diff)
		}
	}
	got, err := r.definitions.GetDefinition(ctx, &sagadv1.GetDefinitionRequest{Name: "order", Version: 1})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(orderDefinition(), got.Version.Definition, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	graph, err := r.definitions.GetDefinitionGraph(ctx, &sagadv1.GetDefinitionGraphRequest{Name: "order"})
	if err != nil || !strings.Contains(graph.Mermaid, "reserve") {
		t.Errorf("graph %v %v", graph, err)
	}
	_, err = r.definitions.GetDefinition(ctx, &sagadv1.GetDefinitionRequest{Name: "nobody"})
	wantError(t, err, connect.CodeNotFound, codeDefinitionNotFound, "register it first")
}

func TestDefinitionProblemsAreDetails(t *testing.T) {
	r := newRig(t)
	def := orderDefinition()
	def.Body[0].GetStep().Kind = sagadv1.Kind_KIND_UNSPECIFIED
	def.Body[2].GetStep().Input = &sagadv1.Mapping{Value: "nowhere.x"}
	_, err := r.definitions.RegisterDefinition(t.Context(), &sagadv1.RegisterDefinitionRequest{Definition: def})
	wantError(t, err, connect.CodeInvalidArgument, codeInvalidDefinition, "order.")
	var cerr *connect.Error
	if !errors.As(err, &cerr) {
		t.Fatal(err)
	}
	problems := 0
	for _, d := range cerr.Details() {
		if d.Type == "sagad.v1.Problem" {
			problems++
		}
	}
	if problems < 2 {
		t.Errorf("%d problems in the details", problems)
	}
	verified, err := r.definitions.VerifyDefinition(t.Context(), &sagadv1.VerifyDefinitionRequest{Definition: def})
	if err != nil || len(verified.Problems) != problems || verified.Hash != "" {
		t.Errorf("verify: %v %v", verified, err)
	}
	if verified, err := r.definitions.VerifyDefinition(t.Context(), &sagadv1.VerifyDefinitionRequest{Definition: orderDefinition()}); err != nil || len(verified.Problems) != 0 || len(verified.Hash) != 64 {
		t.Errorf("verify of a good one: %v %v", verified, err)
	}
}

func TestRefusals(t *testing.T) {
	r := newRig(t)
	r.register()
	r.start("taken", orderInput{Note: "secret-of-the-first"})
	ctx := t.Context()
	start := func(change func(*sagadv1.StartSagaRequest)) error {
		req := &sagadv1.StartSagaRequest{Id: "order-1", Definition: "order", Input: "{}"}
		change(req)
		_, err := r.sagas.StartSaga(ctx, req)
		return err
	}
	for _, c := range []struct {
		name   string
		err    error
		code   connect.Code
		reason string
		text   string
	}{
		{"taken id", start(func(r *sagadv1.StartSagaRequest) { r.Id = "taken" }), connect.CodeAlreadyExists, codeIDTaken, "other content"},
		{"no such definition", start(func(r *sagadv1.StartSagaRequest) { r.Definition = "nobody" }), connect.CodeNotFound, codeDefinitionNotFound, "register it first"},
		{"no id", start(func(r *sagadv1.StartSagaRequest) { r.Id = "" }), connect.CodeInvalidArgument, codeInvalidID, "id is empty"},
		{"long id", start(func(r *sagadv1.StartSagaRequest) { r.Id = strings.Repeat("x", 256) }), connect.CodeInvalidArgument, codeInvalidID, "256 bytes, the limit is 255"},
		{"NUL in the id", start(func(r *sagadv1.StartSagaRequest) { r.Id = "a\x00b" }), connect.CodeInvalidArgument, codeInvalidID, "U+0000 at byte 1"},
		{"DEL in the id", start(func(r *sagadv1.StartSagaRequest) { r.Id = "a\u007f" }), connect.CodeInvalidArgument, codeInvalidID, "U+007F"},
		{"namespace", start(func(r *sagadv1.StartSagaRequest) { r.Namespace = "a.b" }), connect.CodeInvalidArgument, codeInvalidNamespace, "lower-case"},
		{"NUL in a label", start(func(r *sagadv1.StartSagaRequest) { r.Labels = map[string]string{"k": "\x00"} }), connect.CodeInvalidArgument, codeInvalidLabel, `label "k"`},
		{"NUL in a label's key", start(func(r *sagadv1.StartSagaRequest) { r.Labels = map[string]string{"k\x00": "v"} }), connect.CodeInvalidArgument, codeInvalidLabel, `label "k\x00"`},
		{"NUL in a value", start(func(r *sagadv1.StartSagaRequest) { r.Input = `{"memo":"a\u0000"}` }), connect.CodeInvalidArgument, codeInvalidInput, "input $.memo: "},
		{"NUL in a key", start(func(r *sagadv1.StartSagaRequest) { r.Input = `{"a":[{"b\u0000":1}]}` }), connect.CodeInvalidArgument, codeInvalidInput, "input $.a[0]"},
		{"half a surrogate pair", start(func(r *sagadv1.StartSagaRequest) { r.Input = `{"memo":"\ud800"}` }), connect.CodeInvalidArgument, codeInvalidInput, "input $.memo: "},
		{"no JSON", start(func(r *sagadv1.StartSagaRequest) { r.Input = `{"memo":"secret-of-the-second"` }), connect.CodeInvalidArgument, codeInvalidInput, "not JSON"},
		{"too large", start(func(r *sagadv1.StartSagaRequest) { r.Input = `"` + strings.Repeat("x", 256<<10) + `"` }), connect.CodeInvalidArgument, codePayloadTooLarge, "262146 bytes, the limit is 262144"},
		{"no saga", func() error { _, err := r.sagas.GetSaga(ctx, &sagadv1.GetSagaRequest{Id: "nobody"}); return err }(), connect.CodeNotFound, codeSagaNotFound, "check id and namespace"},
		{"no saga to watch", func() error {
			s, err := r.sagas.WatchSaga(ctx, &sagadv1.WatchSagaRequest{Id: "nobody"})
			if err != nil {
				return err
			}
			defer func() { _ = s.Close() }()
			_, err = s.Receive()
			return err
		}(), connect.CodeNotFound, codeSagaNotFound, "nobody"},
		{"no saga to wait for", func() error { _, err := r.sagas.WaitSaga(ctx, &sagadv1.WaitSagaRequest{Id: "nobody"}); return err }(), connect.CodeNotFound, codeSagaNotFound, "nobody"},
		{"no history", func() error {
			_, err := r.sagas.GetHistory(ctx, &sagadv1.GetHistoryRequest{Id: "nobody"})
			return err
		}(), connect.CodeNotFound, codeSagaNotFound, "nobody"},
		{"no saga to cancel", func() error {
			_, err := r.sagas.CancelSaga(ctx, &sagadv1.CancelSagaRequest{Id: "nobody"})
			return err
		}(), connect.CodeNotFound, codeSagaNotFound, "nobody"},
		{"no item", func() error {
			_, err := r.operations.GetItem(ctx, &sagadv1.GetItemRequest{SagaId: "taken", Number: 1})
			return err
		}(), connect.CodeNotFound, codeItemNotFound, "list what it has"},
		{"no reason", func() error {
			_, err := r.operations.ActOnItem(ctx, &sagadv1.ActOnItemRequest{SagaId: "taken", Number: 1, Action: 1, Reason: " "})
			return err
		}(), connect.CodeInvalidArgument, codeInvalidRequest, "say why"},
		{"long wait", func() error {
			_, err := r.sagas.WaitSaga(ctx, &sagadv1.WaitSagaRequest{Id: "taken", Timeout: durationpb.New(time.Hour)})
			return err
		}(), connect.CodeInvalidArgument, codeInvalidRequest, "ask again"},
		{"no such signal", func() error {
			_, err := r.sagas.SignalSaga(ctx, &sagadv1.SignalSagaRequest{Id: "taken", Signal: "paid", Key: "1"})
			return err
		}(), connect.CodeInvalidArgument, codeInvalidRequest, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			wantError(t, c.err, c.code, c.reason, c.text)
			if c.err != nil && strings.Contains(c.err.Error(), "secret-of") {
				t.Errorf("the error shows content: %v", c.err)
			}
		})
	}
	// What schemas say is refused by their interceptor.
	for name, err := range map[string]error{
		"page size": func() error {
			_, err := r.sagas.ListSagas(ctx, &sagadv1.ListSagasRequest{PageSize: 1001})
			return err
		}(),
		"negative version": start(func(r *sagadv1.StartSagaRequest) { r.Version = -1 }),
		"no action": func() error {
			_, err := r.operations.ActOnItem(ctx, &sagadv1.ActOnItemRequest{SagaId: "taken", Number: 1, Reason: "x"})
			return err
		}(),
		"no definition": func() error {
			_, err := r.definitions.RegisterDefinition(ctx, &sagadv1.RegisterDefinitionRequest{})
			return err
		}(),
	} {
		if connect.CodeOf(err) != connect.CodeInvalidArgument || reasonOf(err) == "" {
			t.Errorf("%s: %v %q", name, err, reasonOf(err))
		}
	}
	// The six characters backslash u 0 0 0 0 as text are text.
	if err := start(func(r *sagadv1.StartSagaRequest) { r.Id, r.Input = "fine", `{"Note":"\\u0000"}` }); err != nil {
		t.Errorf("an escaped backslash is refused: %v", err)
	}
	if list, err := r.sagas.ListSagas(ctx, &sagadv1.ListSagasRequest{}); err != nil || len(list.Sagas) != 2 {
		t.Errorf("refused starts left something behind: %v %v", list, err)
	}
}

func TestWatchesAreBounded(t *testing.T) {
	r := newRig(t, func(c *Config) { c.WatchesMax = 2 })
	r.register()
	r.start("order-1", orderInput{Hang: "charge"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 2 {
		stream, err := r.sagas.WatchSaga(ctx, &sagadv1.WatchSagaRequest{Id: "order-1"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Receive(); err != nil {
			t.Fatal(err)
		}
	}
	_, err := r.sagas.WaitSaga(t.Context(), &sagadv1.WaitSagaRequest{Id: "order-1"})
	wantError(t, err, connect.CodeResourceExhausted, codeTooManyWatches, "ask again later")
	cancel()
	// Given back once the handlers have noticed.
	for deadline := time.Now().Add(5 * time.Second); ; {
		_, err := r.sagas.WaitSaga(t.Context(), &sagadv1.WaitSagaRequest{Id: "order-1", Timeout: durationpb.New(0)})
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("watches aren't given back: %v", err)
		}
	}
}
