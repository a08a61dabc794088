package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/statemachine"
)

type sagaCommand struct {
	Start   sagaStart   `cmd:"" help:"Start a saga. The same id with the same content is the same saga."`
	Get     sagaGet     `cmd:"" help:"Show a saga with its steps."`
	List    sagaList    `cmd:"" help:"List sagas, newest first."`
	Watch   sagaWatch   `cmd:"" help:"Print what happens to a saga, from the start until it ends."`
	Wait    sagaWait    `cmd:"" help:"Wait until a saga ends. Exit code 5 unless it completed."`
	History sagaHistory `cmd:"" help:"Print what has happened to a saga."`
	Cancel  sagaCancel  `cmd:"" help:"Unwind a saga, if it isn't past its pivot."`
	Signal  sagaSignal  `cmd:"" help:"Tell a running saga something that its definition waits for."`
	Pause   sagaPause   `cmd:"" help:"Send nothing more out for a saga until it is resumed."`
	Resume  sagaResume  `cmd:"" help:"Let a paused saga go on."`
	Explain sagaExplain `cmd:"" help:"Say what a saga waits for, and what would help."`
	Migrate sagaMigrate `cmd:"" help:"Move running sagas to another version of their definition."`
}

type sagaStart struct {
	Definition string            `arg:"" help:"The definition's name."`
	ID         string            `arg:"" help:"The saga's id: yours to choose, for example an order's number."`
	Input      string            `help:"The input: JSON text, @FILE, or - for standard input." placeholder:"JSON"`
	Label      map[string]string `short:"l" help:"A label, key=value; may be repeated." mapsep:"none" placeholder:"K=V"`
	Version    int32             `help:"The definition's version. Default: the latest." placeholder:"N"`
	Wait       bool              `short:"w" help:"Wait until it ends, and show it."`
	Timeout    time.Duration     `help:"How long --wait waits." default:"1h"`
}

// payloadBytesMax is the API's limit.
const payloadBytesMax = 256 << 10

// document reads JSON text from where a flag says.
func (g *globals) document(flag, value string) (string, error) {
	var r io.Reader
	switch {
	case value == "-":
		r = g.stdin
	case strings.HasPrefix(value, "@"):
		f, err := os.Open(value[1:])
		if err != nil {
			return "", &exitError{exitUsage, fmt.Errorf("--%s: %w", flag, err)}
		}
		defer func() { _ = f.Close() }()
		r = f
	default:
		return value, nil
	}
	data, err := io.ReadAll(io.LimitReader(r, payloadBytesMax+1))
	if err != nil {
		return "", fmt.Errorf("--%s: %w", flag, err)
	}
	if len(data) > payloadBytesMax {
		return "", &exitError{exitUsage, fmt.Errorf("--%s: larger than %d bytes; pass a reference instead", flag, payloadBytesMax)}
	}
	return string(data), nil
}

func (c *sagaStart) Run(ctx context.Context, g *globals) error {
	a, err := g.api()
	if err != nil {
		return err
	}
	input, err := g.document("input", c.Input)
	if err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := retrying(call, func() (*sagadv1.StartSagaResponse, error) {
		return a.sagas.StartSaga(call, &sagadv1.StartSagaRequest{
			Namespace: g.Namespace, Id: c.ID, Definition: c.Definition, Version: c.Version, Input: input, Labels: c.Label,
		})
	})
	if err != nil {
		return a.failed(err)
	}
	if c.Wait {
		if g.Format == "text" {
			fmt.Fprintln(g.stderr, started(c.ID, c.Definition, res))
		}
		return waitFor(ctx, g, a, c.ID, c.Timeout)
	}
	if g.Format == "json" {
		return g.json(res)
	}
	fmt.Fprintln(g.stdout, started(c.ID, c.Definition, res))
	return nil
}

func started(id, definition string, res *sagadv1.StartSagaResponse) string {
	if !res.Created {
		return fmt.Sprintf("saga %s had been started before (%s version %d, run %s); nothing new was started", oneLine(id), definition, res.Version, res.RunId)
	}
	return fmt.Sprintf("saga %s started (%s version %d, run %s)", oneLine(id), definition, res.Version, res.RunId)
}

// retrying asks again while the server says that it can't answer just now. Only for calls that may be repeated.
func retrying[T any](ctx context.Context, call func() (T, error)) (T, error) {
	for delay := 100 * time.Millisecond; ; delay = min(2*delay, 2*time.Second) {
		res, err := call()
		var cerr *connect.Error
		if err == nil || !errors.As(err, &cerr) || !cerr.IsRemote() || cerr.Code() != connect.CodeUnavailable {
			return res, err
		}
		select {
		case <-ctx.Done():
			return res, err
		case <-time.After(delay):
		}
	}
}

type sagaGet struct {
	ID string `arg:"" help:"The saga's id."`
}

func (c *sagaGet) Run(ctx context.Context, g *globals) error {
	a, err := g.api()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := a.sagas.GetSaga(ctx, &sagadv1.GetSagaRequest{Namespace: g.Namespace, Id: c.ID})
	if err != nil {
		return a.failed(err)
	}
	if g.Format == "json" {
		return g.json(res)
	}
	return printSaga(ctx, g, a, res.Saga)
}

func printSaga(ctx context.Context, g *globals, a *api, s *sagadv1.Saga) error {
	sum := s.Summary
	t := newTable(g.stdout)
	t.row("saga", sum.Id)
	t.row("status", statusText(sum)+flags(s))
	t.row("definition", fmt.Sprintf("%s version %d", sum.Definition, sum.Version))
	t.row("namespace", sum.Namespace)
	t.row("started", fmt.Sprintf("%s (%s ago)", when(sum.StartedAt), ago(sum.StartedAt)))
	if sum.Status >= sagadv1.SagaStatus_SAGA_STATUS_COMPLETED && sum.ChangedAt != nil && sum.StartedAt != nil {
		t.row("ended", fmt.Sprintf("%s (took %s)", when(sum.ChangedAt), span(sum.ChangedAt.AsTime().Sub(sum.StartedAt.AsTime()))))
	}
	if sum.Deadline != nil {
		t.row("deadline", when(sum.Deadline))
	}
	if p := s.Parent; p != nil {
		t.row("parent", fmt.Sprintf("saga %s, step %s", p.Id, at(p.Step, p.Item)))
	}
	if len(sum.Labels) > 0 {
		t.row("labels", labels(sum.Labels))
	}
	if cause := causeText(sum.Cause); cause != "" {
		t.row("cause", cause)
	}
	if s.Input != "" {
		t.row("input", payload(s.Input, 2000))
	}
	if s.Output != "" {
		t.row("output", payload(s.Output, 2000))
	}
	if err := t.end(); err != nil {
		return err
	}
	if len(s.Steps) > 0 {
		fmt.Fprintln(g.stdout)
		t = newTable(g.stdout, "STEP", "ACTIVITY", "STATUS", "ATTEMPTS", "UNDO ATTEMPTS", "LAST ERROR")
		for _, st := range s.Steps {
			lastError := errorText(st.Compensation.GetLastError())
			if lastError == "" {
				lastError = errorText(st.Action.GetLastError())
			}
			activity := st.Activity
			if st.ChildId != "" {
				activity = "saga " + st.ChildId
			}
			t.row(at(st.Name, st.Item), activity, word(st.Status, "STEP_STATUS_"), number(st.Action.GetAttempts()), number(st.Compensation.GetAttempts()), lastError)
		}
		if err := t.end(); err != nil {
			return err
		}
		if n := int(s.StepsTotal) - len(s.Steps); n > 0 {
			fmt.Fprintf(g.stdout, "and %s that aren't shown; the history has them\n", plural(n, "more step"))
		}
	}
	if sum.Status == sagadv1.SagaStatus_SAGA_STATUS_ABANDONED {
		if err := printLeft(ctx, g, a, sum); err != nil {
			return err
		}
	}
	for _, it := range s.Items {
		fmt.Fprintf(g.stdout, "\n%s, open since %s. See `sagad ops show %s %d`.\n", itemText(it), when(it.OpenedAt), shellWord(sum.Id), it.Number)
	}
	return nil
}

// itemText says what an open item asks for.
func itemText(it *sagadv1.OperationsItem) string {
	asks := "needs a person"
	switch {
	case it.Status == historyv1.ItemStatus_ITEM_STATUS_RETRYING:
		asks = "is being retried"
	case !it.Blocking:
		asks = "to be acknowledged"
	}
	text := fmt.Sprintf("%s: item %d, %s", asks, it.Number, statemachine.KindWords(it.Kind))
	if call := callName(it); call != "" {
		text += " (" + oneLine(call) + ")"
	}
	return text
}

// printLeft says what an abandoned saga left behind. A saga is abandoned by an item, so there is a first one.
func printLeft(ctx context.Context, g *globals, a *api, sum *sagadv1.SagaSummary) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := a.operations.GetItem(ctx, &sagadv1.GetItemRequest{Namespace: sum.Namespace, SagaId: sum.Id, Number: 1})
	if err != nil {
		return a.failed(err)
	}
	var left []*sagadv1.Effect
	for _, e := range res.Effects {
		if e.State != sagadv1.EffectState_EFFECT_STATE_UNDONE {
			left = append(left, e)
		}
	}
	fmt.Fprintln(g.stdout, "\nleft behind")
	return printEffects(g, left)
}

// flags say what else is to be known of a saga's status.
func flags(s *sagadv1.Saga) string {
	switch {
	case s.Paused:
		return ", paused"
	case s.Provisional:
		return ", provisional: done, until its parent is settled"
	}
	return ""
}

// at is a step's name with its place in maps and loops.
func at(step, item string) string {
	if item == "" {
		return step
	}
	return step + "[" + item + "]"
}

func statusText(s *sagadv1.SagaSummary) string {
	text := status(s.Status)
	if s.SettledByHand > 0 {
		text += fmt.Sprintf(" (settled by hand: %s)", plural(int(s.SettledByHand), "effect"))
	}
	return text
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func number(n int32) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func labels(m map[string]string) string {
	pairs := make([]string, 0, len(m))
	for k, v := range m {
		pairs = append(pairs, k+"="+v)
	}
	sort.Strings(pairs)
	return strings.Join(pairs, " ")
}

// shellWord is text that can be pasted into a shell.
func shellWord(s string) string {
	for _, r := range s {
		if !(r == '-' || r == '_' || r == '.' || r == '/' || r == ':' || r == '@' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z') {
			return "'" + strings.ReplaceAll(oneLine(s), "'", `'\''`) + "'"
		}
	}
	return s
}

type sagaList struct {
	Status      []string `help:"Only these: running, compensating, stuck, completed, compensated, abandoned." placeholder:"STATUS"`
	Definition  string   `help:"Only of this definition." placeholder:"NAME"`
	Version     int32    `help:"Only of this version of the definition." placeholder:"N"`
	IDPrefix    string   `help:"Only ids that begin so." name:"id-prefix" placeholder:"TEXT"`
	Limit       int      `help:"How many at most." default:"50"`
	All         bool     `help:"All of them, whatever --limit says."`
	OldestFirst bool     `help:"Oldest first."`
}

func (c *sagaList) Run(ctx context.Context, g *globals) error {
	a, err := g.api()
	if err != nil {
		return err
	}
	if c.Limit < 1 && !c.All {
		return &exitError{exitUsage, errors.New("--limit must be at least 1")}
	}
	if c.Version < 0 {
		return &exitError{exitUsage, errors.New("--version must be at least 1")}
	}
	filter := &sagadv1.SagaFilter{Definition: c.Definition, Version: c.Version, IdPrefix: c.IDPrefix}
	for _, name := range c.Status {
		v, ok := sagadv1.SagaStatus_value["SAGA_STATUS_"+strings.ToUpper(name)]
		if !ok || v == 0 {
			return &exitError{exitUsage, fmt.Errorf("--status %q: use running, compensating, stuck, completed, compensated or abandoned", name)}
		}
		filter.Statuses = append(filter.Statuses, sagadv1.SagaStatus(v))
	}
	all := &sagadv1.ListSagasResponse{}
	req := &sagadv1.ListSagasRequest{Namespace: g.Namespace, Filter: filter, OldestFirst: c.OldestFirst}
	for {
		req.PageSize = 1000
		if !c.All {
			req.PageSize = int32(min(1000, c.Limit-len(all.Sagas)))
		}
		call, cancel := context.WithTimeout(ctx, callTimeout)
		res, err := a.sagas.ListSagas(call, req)
		cancel()
		if err != nil {
			return a.failed(err)
		}
		all.Sagas = append(all.Sagas, res.Sagas...)
		all.NextPageToken = res.NextPageToken
		if res.NextPageToken == "" || !c.All && len(all.Sagas) >= c.Limit {
			break
		}
		req.PageToken = res.NextPageToken
	}
	if g.Format == "json" {
		return g.json(all)
	}
	if len(all.Sagas) == 0 {
		fmt.Fprintln(g.stdout, "no sagas")
		return nil
	}
	t := newTable(g.stdout, "ID", "STATUS", "DEFINITION", "STARTED", "FOR", "CAUSE")
	for _, s := range all.Sagas {
		t.row(sagaRow(s)...)
	}
	if err := t.end(); err != nil {
		return err
	}
	if all.NextPageToken != "" {
		fmt.Fprintf(g.stderr, "there are more: --limit %d or --all\n", c.Limit*2)
	}
	return nil
}

// sagaRow is a saga's line in a list.
func sagaRow(s *sagadv1.SagaSummary) []string {
	lasted := ago(s.StartedAt)
	if s.Status >= sagadv1.SagaStatus_SAGA_STATUS_COMPLETED && s.ChangedAt != nil && s.StartedAt != nil {
		lasted = span(s.ChangedAt.AsTime().Sub(s.StartedAt.AsTime()))
	}
	return []string{s.Id, statusText(s), fmt.Sprintf("%s/%d", s.Definition, s.Version), when(s.StartedAt), lasted, cell(causeText(s.Cause))}
}

type sagaWatch struct {
	ID   string `arg:"" help:"The saga's id."`
	From int64  `help:"The first transition to show." default:"1"`
}

func (c *sagaWatch) Run(ctx context.Context, g *globals) error {
	a, err := g.api()
	if err != nil {
		return err
	}
	from := max(c.From, 1)
	last := sagadv1.SagaStatus_SAGA_STATUS_UNSPECIFIED
	var day string
	told := false // that the connection broke, once until it is back
	for delay := 100 * time.Millisecond; ; delay = min(2*delay, 2*time.Second) {
		err := func() error {
			stream, err := a.sagas.WatchSaga(ctx, &sagadv1.WatchSagaRequest{Namespace: g.Namespace, Id: c.ID, From: from})
			if err != nil {
				return err
			}
			defer func() { _ = stream.Close() }()
			for {
				res, err := stream.Receive()
				if err != nil {
					return err
				}
				from, last = res.Entry.Number+1, res.Status
				delay, told = 100*time.Millisecond, false
				if g.Format == "json" {
					if err := g.jsonLine(res); err != nil {
						return err
					}
				} else {
					printEntry(g, res.Entry, &day)
				}
			}
		}()
		switch {
		case errors.Is(err, io.EOF):
			if g.Format == "text" {
				fmt.Fprintln(g.stdout, status(last))
			}
			return nil
		case ctx.Err() != nil:
			return nil
		case from > max(c.From, 1) && passing(err):
			// It was there: go on where it broke off.
			if !told {
				told = true
				fmt.Fprintf(g.stderr, "the connection broke (%s): reconnecting until it is back, to go on from %d\n", oneLine(cell(err.Error())), from)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(delay):
			}
		default:
			return a.failed(err)
		}
	}
}

// passing says that an error of a watch may be over the next time: the server says so, or it went away amid the call. What
// else a server says is final, and so is what can't be printed.
func passing(err error) bool {
	var cerr *connect.Error
	if !errors.As(err, &cerr) {
		return false
	}
	switch cerr.Code() {
	case connect.CodeUnavailable, connect.CodeCanceled: // the user's own is known by the context
		return true
	case connect.CodeUnknown, connect.CodeInternal, connect.CodeInvalidArgument, connect.CodeDeadlineExceeded, connect.CodeAborted, connect.CodeDataLoss:
		return !cerr.IsRemote() // a stream that was cut: half a message, a reset connection
	}
	return false
}

// printEntry prints an entry, after a line with its date if that isn't day. All times of a history are UTC: it may be read
// elsewhere.
func printEntry(g *globals, e *sagadv1.HistoryEntry, day *string) {
	if d := e.At.AsTime().UTC().Format("2006-01-02"); e.At != nil && d != *day {
		*day = d
		fmt.Fprintf(g.stdout, "      %s (UTC)\n", d)
	}
	for i, sentence := range e.Sentences {
		head := fmt.Sprintf("%4d  %s", e.Number, clock(e.At))
		if i > 0 {
			head = strings.Repeat(" ", len(head))
		}
		fmt.Fprintf(g.stdout, "%s  %s\n", head, oneLine(sentence))
	}
}

type sagaWait struct {
	ID      string        `arg:"" help:"The saga's id."`
	Timeout time.Duration `help:"How long at most." default:"1h"`
}

func (c *sagaWait) Run(ctx context.Context, g *globals) error {
	a, err := g.api()
	if err != nil {
		return err
	}
	return waitFor(ctx, g, a, c.ID, c.Timeout)
}

func waitFor(ctx context.Context, g *globals, a *api, id string, timeout time.Duration) error {
	end := time.Now().Add(timeout)
	told := false
	// Stuck isn't an end, so the server doesn't answer at once. The first looks come soon.
	for most := time.Second; ; most = min(2*most, 10*time.Second) {
		portion := min(max(time.Until(end), 0), most)
		call, cancel := context.WithTimeout(ctx, portion+callTimeout)
		res, err := retrying(call, func() (*sagadv1.WaitSagaResponse, error) {
			return a.sagas.WaitSaga(call, &sagadv1.WaitSagaRequest{Namespace: g.Namespace, Id: id, Timeout: durationpb.New(portion)})
		})
		cancel()
		if err != nil {
			return a.failed(err)
		}
		if !res.Terminal && time.Now().Before(end) {
			if res.Saga.Summary.Status == sagadv1.SagaStatus_SAGA_STATUS_STUCK && !told {
				told = true
				fmt.Fprintf(g.stderr, "saga %s is STUCK: it waits for a person, see `sagad ops list --saga %s`. The wait goes on, until %s.\n",
					oneLine(id), shellWord(id), end.Local().Format("15:04:05"))
			}
			continue
		}
		if g.Format == "json" {
			err = g.json(res)
		} else {
			err = printSaga(ctx, g, a, res.Saga)
		}
		if err != nil {
			return err
		}
		switch {
		case !res.Terminal:
			return &exitError{exitNotCompleted, fmt.Errorf("saga %s is still %s after %s", oneLine(id), status(res.Saga.Summary.Status), timeout)}
		case res.Saga.Summary.Status != sagadv1.SagaStatus_SAGA_STATUS_COMPLETED:
			return &exitError{code: exitNotCompleted}
		}
		return nil
	}
}

type sagaHistory struct {
	ID string `arg:"" help:"The saga's id."`
}

func (c *sagaHistory) Run(ctx context.Context, g *globals) error {
	a, err := g.api()
	if err != nil {
		return err
	}
	all := &sagadv1.GetHistoryResponse{}
	var day string
	for from := int64(1); ; {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		res, err := a.sagas.GetHistory(call, &sagadv1.GetHistoryRequest{Namespace: g.Namespace, Id: c.ID, From: from, PageSize: 1000})
		cancel()
		if err != nil {
			return a.failed(err)
		}
		if g.Format == "json" {
			all.Entries = append(all.Entries, res.Entries...)
		} else {
			for _, e := range res.Entries {
				printEntry(g, e, &day)
			}
		}
		if res.Next == 0 {
			break
		}
		from = res.Next
	}
	if g.Format == "json" {
		return g.json(all)
	}
	return nil
}

type sagaCancel struct {
	ID     string `arg:"" help:"The saga's id."`
	Reason string `help:"Why; it stays in the history." required:"" placeholder:"TEXT"`
}

func (c *sagaCancel) Run(ctx context.Context, g *globals) error {
	a, err := g.api()
	if err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	// One id for all tries: a repeat is answered as the first.
	id := uuid.NewString()
	res, err := retrying(call, func() (*sagadv1.CancelSagaResponse, error) {
		return a.sagas.CancelSaga(call, &sagadv1.CancelSagaRequest{Namespace: g.Namespace, Id: c.ID, Reason: c.Reason, RequestId: id})
	})
	if err != nil {
		return a.failed(err)
	}
	if g.Format == "json" {
		if err := g.json(res); err != nil {
			return err
		}
	} else {
		fmt.Fprintln(g.stdout, cancelText(c.ID, res))
	}
	switch res.Answer {
	case sagadv1.CancelAnswer_CANCEL_ANSWER_WILL_UNWIND, sagadv1.CancelAnswer_CANCEL_ANSWER_ALREADY_UNWINDING:
		return nil
	}
	return &exitError{code: exitFailed}
}

func cancelText(id string, res *sagadv1.CancelSagaResponse) string {
	id = oneLine(id)
	switch res.Answer {
	case sagadv1.CancelAnswer_CANCEL_ANSWER_WILL_UNWIND:
		return fmt.Sprintf("saga %s unwinds: what it did will be undone. Follow it with `sagad saga watch %s`.", id, shellWord(id))
	case sagadv1.CancelAnswer_CANCEL_ANSWER_ALREADY_UNWINDING:
		return fmt.Sprintf("saga %s was unwinding already.", id)
	case sagadv1.CancelAnswer_CANCEL_ANSWER_TOO_LATE_COMPLETED:
		return fmt.Sprintf("too late: saga %s has completed.", id)
	case sagadv1.CancelAnswer_CANCEL_ANSWER_TOO_LATE_PAST_PIVOT:
		return fmt.Sprintf("too late: the pivot of saga %s was sent; %s finishes, unless the pivot turns out not to have happened.", id, id)
	case sagadv1.CancelAnswer_CANCEL_ANSWER_ALREADY_ENDED:
		return fmt.Sprintf("saga %s had ended already: %s.", id, status(res.Status))
	}
	return fmt.Sprintf("saga %s: %s, %s.", id, word(res.Answer, "CANCEL_ANSWER_"), status(res.Status))
}
