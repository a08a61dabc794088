package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/statemachine"
)

type opsCommand struct {
	List     opsList     `cmd:"" help:"List what waits for a person, oldest first."`
	Show     opsShow     `cmd:"" help:"What broke, what stands in the world, and what each action would do."`
	Retry    opsRetry    `cmd:"" help:"Try again."`
	Resolve  opsResolve  `cmd:"" help:"State that it was undone by hand, or never happened."`
	Complete opsComplete `cmd:"" help:"State that it was done by hand."`
	Answer   opsAnswer   `cmd:"" help:"Answer what a saga asks."`
	Abandon  opsAbandon  `cmd:"" help:"Give the saga up, leaving its effects behind."`
	Ack      opsAck      `cmd:"" help:"Close an item that blocks nothing: seen."`
}

type opsList struct {
	Closed     bool   `help:"Closed ones too."`
	Definition string `help:"Only of this definition." placeholder:"NAME"`
	Saga       string `help:"Only this saga's." placeholder:"ID"`
}

func (c *opsList) Run(ctx context.Context, g *globals) error {
	a, err := g.api()
	if err != nil {
		return err
	}
	all := &sagadv1.ListItemsResponse{}
	req := &sagadv1.ListItemsRequest{Namespace: g.Namespace, IncludeClosed: c.Closed, Definition: c.Definition, SagaId: c.Saga, PageSize: 1000}
	for {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		res, err := a.operations.ListItems(call, req)
		cancel()
		if err != nil {
			return a.failed(err)
		}
		all.Items = append(all.Items, res.Items...)
		if res.NextPageToken == "" {
			break
		}
		req.PageToken = res.NextPageToken
	}
	if g.Format == "json" {
		return g.json(all)
	}
	if len(all.Items) == 0 {
		fmt.Fprintln(g.stdout, "nothing waits for a person")
		return nil
	}
	t := newTable(g.stdout, "SAGA", "ITEM", "STATUS", "BLOCKS", "WHAT", "STEP", "OPEN FOR", "ATTEMPTS", "ERROR")
	for _, it := range all.Items {
		t.row(itemRow(it)...)
	}
	return t.end()
}

// itemRow is an item's line in a list.
func itemRow(it *sagadv1.OperationsItem) []string {
	blocks := "no"
	if it.Blocking {
		blocks = "yes"
	}
	open := ago(it.OpenedAt)
	if it.Status == historyv1.ItemStatus_ITEM_STATUS_CLOSED && it.OpenedAt != nil && it.ChangedAt != nil {
		open = span(it.ChangedAt.AsTime().Sub(it.OpenedAt.AsTime()))
	}
	return []string{it.SagaId, fmt.Sprint(it.Number), word(it.Status, "ITEM_STATUS_"), blocks, statemachine.KindWords(it.Kind),
		callName(it), open, number(it.Attempts), cell(errorText(it.Error))}
}

// callName is empty if the item is about the saga as a whole.
func callName(it *sagadv1.OperationsItem) string {
	if it.Step != "" && it.Direction == historyv1.Direction_DIRECTION_UNDO {
		return "undo " + it.Step
	}
	return it.Step
}

// itemArgs name an item.
type itemArgs struct {
	Saga   string `arg:"" help:"The saga's id."`
	Number int32  `arg:"" help:"The item's number."`
}

type opsShow struct{ itemArgs }

func (c *opsShow) Run(ctx context.Context, g *globals) error {
	a, err := g.api()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := a.operations.GetItem(ctx, &sagadv1.GetItemRequest{Namespace: g.Namespace, SagaId: c.Saga, Number: c.Number})
	if err != nil {
		return a.failed(err)
	}
	if g.Format == "json" {
		return g.json(res)
	}
	return printItem(g, res)
}

func printItem(g *globals, res *sagadv1.GetItemResponse) error {
	it := res.Item
	t := newTable(g.stdout)
	t.row("item", fmt.Sprintf("%d of saga %s (%s)", it.Number, it.SagaId, it.Definition))
	broke := statemachine.KindWords(it.Kind)
	if call := callName(it); call != "" {
		broke = call + ": " + broke
	}
	if it.Kind == historyv1.ItemKind_ITEM_KIND_APPROVAL {
		t.row("asks", it.Error.GetMessage())
		if it.FormSchema != "" {
			t.row("form", payload(it.FormSchema, 4000))
		}
	} else {
		t.row("what broke", broke)
	}
	state := word(it.Status, "ITEM_STATUS_")
	if it.Blocking && it.Status != historyv1.ItemStatus_ITEM_STATUS_CLOSED {
		state += ", the saga waits for it"
	}
	t.row("status", state)
	if it.How != "" {
		t.row("closed", it.How)
	}
	t.row("since", fmt.Sprintf("%s (%s)", when(it.OpenedAt), ago(it.OpenedAt)))
	t.row("attempts", number(it.Attempts))
	if e := errorText(it.Error); e != "" && it.Kind != historyv1.ItemKind_ITEM_KIND_APPROVAL {
		t.row("error", e)
	}
	if cause := causeText(res.Cause); cause != "" {
		t.row("turned back", cause)
	}
	t.row("version", fmt.Sprint(it.Version))
	if err := t.end(); err != nil {
		return err
	}
	if d := it.Error.GetDetail(); d != "" {
		fmt.Fprintln(g.stdout, "\nerror detail")
		for _, line := range strings.Split(payload(d, 4000), "\n") {
			fmt.Fprintln(g.stdout, "  "+line)
		}
	}
	fmt.Fprintln(g.stdout, "\neffects in the world")
	if err := printEffects(g, res.Effects); err != nil {
		return err
	}
	if len(res.Actions) == 0 {
		return nil
	}
	fmt.Fprintln(g.stdout, "\nwhat you can do")
	t = newTable(g.stdout)
	for _, a := range res.Actions {
		verb := verbs[a.Action]
		if !a.Allowed {
			t.row("  -", verb, "not now: "+a.Consequence)
			continue
		}
		t.row("  +", verb, a.Consequence)
	}
	if err := t.end(); err != nil {
		return err
	}
	if example := exampleAct(it, res.Actions); example != "" {
		fmt.Fprintln(g.stdout, "\nfor example: "+example)
	}
	return nil
}

// exampleAct is the command for what can be done first, or nothing. It is to abandon the saga only if nothing else is left.
func exampleAct(it *sagadv1.OperationsItem, actions []*sagadv1.AllowedAction) string {
	verb := ""
	for _, a := range actions {
		if a.Allowed && (verb == "" || verb == verbs[historyv1.OperatorAction_OPERATOR_ACTION_ABANDON]) {
			verb = verbs[a.Action]
		}
	}
	if verb == "" {
		return ""
	}
	command := fmt.Sprintf("sagad ops %s %s %d --reason '...'", verb, shellWord(it.SagaId), it.Number)
	switch verb {
	case "complete":
		command += " --evidence '...' --output '...'"
	case "resolve":
		command += " --evidence '...'"
	case "answer":
		command = fmt.Sprintf("sagad ops answer %s %d JSON --reason '...'", shellWord(it.SagaId), it.Number)
	}
	return command
}

func printEffects(g *globals, effects []*sagadv1.Effect) error {
	if len(effects) == 0 {
		fmt.Fprintln(g.stdout, "  none")
		return nil
	}
	t := newTable(g.stdout, "  STEP", "ACTIVITY", "STATE", "KEY")
	for _, e := range effects {
		state := map[sagadv1.EffectState]string{
			sagadv1.EffectState_EFFECT_STATE_STANDS:   "done, stands",
			sagadv1.EffectState_EFFECT_STATE_UNDONE:   "undone",
			sagadv1.EffectState_EFFECT_STATE_IN_DOUBT: "unknown",
		}[e.State]
		if e.ByHand {
			state += ", by hand"
		}
		step := e.Step
		if e.Item != "" {
			step += "[" + e.Item + "]"
		}
		t.row("  "+step, e.Activity, state, e.IdempotencyKey)
	}
	return t.end()
}

var verbs = map[historyv1.OperatorAction]string{
	historyv1.OperatorAction_OPERATOR_ACTION_RETRY:       "retry",
	historyv1.OperatorAction_OPERATOR_ACTION_RESOLVE:     "resolve",
	historyv1.OperatorAction_OPERATOR_ACTION_COMPLETE:    "complete",
	historyv1.OperatorAction_OPERATOR_ACTION_ABANDON:     "abandon",
	historyv1.OperatorAction_OPERATOR_ACTION_ACKNOWLEDGE: "ack",
	historyv1.OperatorAction_OPERATOR_ACTION_ANSWER:      "answer",
}

// actArgs are those of all acts.
type actArgs struct {
	itemArgs
	Reason      string `help:"Why; it stays in the history." required:"" placeholder:"TEXT"`
	Evidence    string `help:"Where it can be seen, for example a ticket." placeholder:"TEXT"`
	ItemVersion int64  `help:"Act only if the item is still as it was seen at this version (ops show prints it)." placeholder:"N"`
}

type (
	opsRetry   struct{ actArgs }
	opsAbandon struct{ actArgs }
	opsAck     struct{ actArgs }
	opsResolve struct{ actArgs }
	opsAnswer  struct {
		actArgs
		Output string `arg:"" help:"The answer: JSON text, @FILE, or - for standard input. ops show prints the form that it must fit." placeholder:"JSON"`
	}
	opsComplete struct {
		actArgs
		Output string `help:"The step's output: JSON text, @FILE, or - for standard input." placeholder:"JSON"`
	}
)

func (c *opsRetry) Run(ctx context.Context, g *globals) error {
	return act(ctx, g, c.actArgs, historyv1.OperatorAction_OPERATOR_ACTION_RETRY, "")
}

func (c *opsResolve) Run(ctx context.Context, g *globals) error {
	return act(ctx, g, c.actArgs, historyv1.OperatorAction_OPERATOR_ACTION_RESOLVE, "")
}

func (c *opsComplete) Run(ctx context.Context, g *globals) error {
	output, err := g.document("output", c.Output)
	if err != nil {
		return err
	}
	return act(ctx, g, c.actArgs, historyv1.OperatorAction_OPERATOR_ACTION_COMPLETE, output)
}

func (c *opsAnswer) Run(ctx context.Context, g *globals) error {
	output, err := g.document("answer", c.Output)
	if err != nil {
		return err
	}
	return act(ctx, g, c.actArgs, historyv1.OperatorAction_OPERATOR_ACTION_ANSWER, output)
}

func (c *opsAbandon) Run(ctx context.Context, g *globals) error {
	return act(ctx, g, c.actArgs, historyv1.OperatorAction_OPERATOR_ACTION_ABANDON, "")
}

func (c *opsAck) Run(ctx context.Context, g *globals) error {
	return act(ctx, g, c.actArgs, historyv1.OperatorAction_OPERATOR_ACTION_ACKNOWLEDGE, "")
}

func act(ctx context.Context, g *globals, c actArgs, action historyv1.OperatorAction, output string) error {
	a, err := g.api()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req := &sagadv1.ActOnItemRequest{
		Namespace: g.Namespace, SagaId: c.Saga, Number: c.Number, Version: c.ItemVersion, Action: action,
		Reason: c.Reason, Evidence: c.Evidence, Output: output, RequestId: uuid.NewString(),
	}
	res, err := retrying(ctx, func() (*sagadv1.ActOnItemResponse, error) { return a.operations.ActOnItem(ctx, req) })
	if err != nil {
		return a.failed(err)
	}
	if g.Format == "json" {
		return g.json(res)
	}
	it := res.Item
	text := fmt.Sprintf("item %d is %s", it.Number, word(it.Status, "ITEM_STATUS_"))
	if it.How != "" {
		text += " (" + oneLine(it.How) + ")"
	}
	text += fmt.Sprintf("; saga %s is %s.", oneLine(it.SagaId), status(res.Status))
	if res.Status < sagadv1.SagaStatus_SAGA_STATUS_COMPLETED {
		text += fmt.Sprintf(" Follow it with `sagad saga watch %s`.", shellWord(it.SagaId))
	}
	fmt.Fprintln(g.stdout, text)
	return nil
}

// readAll reads up to max bytes, and refuses more.
func readAll(r io.Reader, max int) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, int64(max)+1))
	if err == nil && len(data) > max {
		err = fmt.Errorf("larger than %d bytes", max)
	}
	return data, err
}
