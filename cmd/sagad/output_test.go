package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

func TestSpan(t *testing.T) {
	for _, c := range []struct {
		d    time.Duration
		want string
	}{
		{-time.Second, "0s"},
		{0, "0s"},
		{12345 * time.Microsecond, "12ms"},
		{1234 * time.Millisecond, "1.2s"},
		{10 * time.Second, "10s"},
		{59980 * time.Millisecond, "1m"},
		{time.Minute, "1m"},
		{100 * time.Second, "1m40s"},
		{4*time.Minute + 10*time.Second, "4m10s"},
		{10 * time.Minute, "10m"},
		{time.Hour, "1h"},
		{10*time.Hour + 30*time.Second, "10h0m30s"},
		{2*time.Hour + 20*time.Minute, "2h20m"},
		{50 * time.Hour, "2d2h"},
	} {
		if got := span(c.d); got != c.want {
			t.Errorf("%v is printed as %q, want %q", c.d, got, c.want)
		}
	}
}

func TestItemText(t *testing.T) {
	for _, c := range []struct {
		item *sagadv1.OperationsItem
		want string
	}{
		{&sagadv1.OperationsItem{Number: 1, Step: "reserve", Direction: historyv1.Direction_DIRECTION_UNDO, Blocking: true, Kind: historyv1.ItemKind_ITEM_KIND_COMPENSATION_EXHAUSTED, Status: historyv1.ItemStatus_ITEM_STATUS_OPEN},
			"needs a person: item 1, a compensation is out of attempts (undo reserve)"},
		{&sagadv1.OperationsItem{Number: 1, Step: "reserve", Direction: historyv1.Direction_DIRECTION_UNDO, Blocking: true, Kind: historyv1.ItemKind_ITEM_KIND_COMPENSATION_EXHAUSTED, Status: historyv1.ItemStatus_ITEM_STATUS_RETRYING},
			"is being retried: item 1, a compensation is out of attempts (undo reserve)"},
		{&sagadv1.OperationsItem{Number: 3, Kind: historyv1.ItemKind_ITEM_KIND_DEADLINE_AFTER_PIVOT, Status: historyv1.ItemStatus_ITEM_STATUS_OPEN},
			"to be acknowledged: item 3, the deadline passed after the pivot"},
	} {
		if got := itemText(c.item); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

func TestExampleAct(t *testing.T) {
	type actions []*sagadv1.AllowedAction
	can := func(a historyv1.OperatorAction) *sagadv1.AllowedAction {
		return &sagadv1.AllowedAction{Action: a, Allowed: true}
	}
	for _, c := range []struct {
		actions actions
		want    string
	}{
		{nil, ""},
		{actions{{Action: historyv1.OperatorAction_OPERATOR_ACTION_RETRY}}, ""},
		{actions{can(historyv1.OperatorAction_OPERATOR_ACTION_ABANDON), can(historyv1.OperatorAction_OPERATOR_ACTION_ACKNOWLEDGE)}, "sagad ops ack 'a b' 2 --reason '...'"},
		{actions{{Action: historyv1.OperatorAction_OPERATOR_ACTION_RETRY}, can(historyv1.OperatorAction_OPERATOR_ACTION_ABANDON)}, "sagad ops abandon 'a b' 2 --reason '...'"},
		{actions{can(historyv1.OperatorAction_OPERATOR_ACTION_RESOLVE)}, "sagad ops resolve 'a b' 2 --reason '...' --evidence '...'"},
		{actions{can(historyv1.OperatorAction_OPERATOR_ACTION_COMPLETE)}, "sagad ops complete 'a b' 2 --reason '...' --evidence '...' --output '...'"},
	} {
		if got := exampleAct(&sagadv1.OperationsItem{SagaId: "a b", Number: 2}, c.actions); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

func TestCancelText(t *testing.T) {
	got := cancelText("x", &sagadv1.CancelSagaResponse{Answer: sagadv1.CancelAnswer_CANCEL_ANSWER_TOO_LATE_PAST_PIVOT})
	if want := "too late: the pivot of saga x was sent; x finishes, unless the pivot turns out not to have happened."; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestCell(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "short": "short", strings.Repeat("x", 80): strings.Repeat("x", 80), strings.Repeat("ä", 80): strings.Repeat("ä", 80),
		strings.Repeat("x", 4096): strings.Repeat("x", 77) + "...", strings.Repeat("ä", 81): strings.Repeat("ä", 77) + "...",
	} {
		if got := cell(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

// Errors' texts may have 4 KiB; lists stay lists.
func TestListsCutTexts(t *testing.T) {
	long := &historyv1.Error{Code: "NO_SEAT", Message: strings.Repeat("no seat ", 500)}
	rows := [][]string{
		sagaRow(&sagadv1.SagaSummary{Id: "a", Cause: &historyv1.Cause{Kind: historyv1.CauseKind_CAUSE_KIND_REJECTED, Step: "seat", Attempt: 1, Error: long}}),
		itemRow(&sagadv1.OperationsItem{SagaId: "a", Number: 1, Error: long}),
	}
	for _, row := range rows {
		if last := row[len(row)-1]; len(last) > 80 || !strings.Contains(last, "NO_SEAT") || !strings.HasSuffix(last, "...") {
			t.Errorf("%q", last)
		}
	}
}

func TestBut(t *testing.T) {
	if got := but("") + but("NATS is away"); got != ", but NATS is away" {
		t.Error(got)
	}
}

func TestPassing(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{connect.NewError(connect.CodeUnavailable, "x"), true},
		{connect.NewError(connect.CodeCanceled, "x"), true},
		{connect.NewError(connect.CodeInvalidArgument, "protocol error: incomplete envelope: unexpected EOF"), true},
		{connect.NewError(connect.CodeInternal, "stream reset"), true},
		{connect.NewError(connect.CodeNotFound, "no such saga"), false},
		{connect.NewError(connect.CodeResourceExhausted, "too large"), false},
		{os.ErrClosed, false},
	} {
		if got := passing(tt.err); got != tt.want {
			t.Errorf("%v: %v", tt.err, got)
		}
	}
}
