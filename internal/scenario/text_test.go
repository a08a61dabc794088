package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/sagad/sagad/internal/wire"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

// Some outputs that no store can keep, and error texts that must be mended before one can.
var (
	badOutputs = map[string]string{
		"nul": `{"memo":"a\u0000b"}`, "nul-key": `{"a":{"b\u0000":1}}`, "not-utf8": "\"caf\xe9\xff\"", "not-json": `{"memo":`,
		"large": `"` + strings.Repeat("x", wire.PayloadBytesMax) + `"`,
	}
	badTexts = map[string]struct{ text, want string }{
		"latin":     {"caf\xe9\xff", "caf\uFFFD"},
		"surrogate": {"half \xed\xa0\x80 a pair", "half \uFFFD a pair"},
		"zero":      {"a\x00b", "a\u2400b"},
		"endless":   {strings.Repeat("é", 100_000), strings.Repeat("é", (4096-3)/2) + "..."},
	}
)

// TestTextsThatStoresRefuse: a bad output fails its step once, as done; a bad error text is mended; neither harms the worker, or what
// comes after.
func TestTextsThatStoresRefuse(t *testing.T) {
	give := saga.Compensatable[string, json.RawMessage]{Name: "t.give"}
	def := saga.Define[string, json.RawMessage]("text",
		saga.Do("give", give, saga.Value("input"), saga.Retry{MaxAttempts: 3, Initial: quick.Initial}),
		saga.Return(saga.Value("give")))
	onStores(t, func(t *testing.T, r *rig) {
		b := newBank(nil)
		w := r.serve(func(w *worker.Worker) {
			worker.Compensatable(w, give, func(ctx context.Context, which string) (json.RawMessage, error) {
				if _, err := b.called(ctx); err != nil {
					return nil, err
				}
				if bad, ok := badTexts[which]; ok {
					return nil, saga.GiveUp(errors.New(bad.text))
				}
				if bad, ok := badOutputs[which]; ok {
					return json.RawMessage(bad), nil
				}
				return json.RawMessage(`"\\u0000"`), nil
			}, func(ctx context.Context, _ saga.Undo[string, json.RawMessage]) error {
				_, err := b.called(ctx)
				return err
			})
		})
		register(r, def)
		for id := range badOutputs {
			start(r, def, id, id)
		}
		for id := range badTexts {
			start(r, def, id, id)
		}
		for id := range badOutputs {
			cause := r.ended(id, compensated).Summary.Cause
			if cause.GetStep() != "give" || cause.GetError().GetCode() != wire.CodeNotStorable || cause.GetAttempt() != 1 {
				t.Errorf("%s: %v", id, cause)
			}
			if d := cmp.Diff([]string{"give 1", "undo give 1"}, b.story(id)); d != "" {
				t.Errorf("%s: %s", id, d)
			}
		}
		for id, text := range badTexts {
			got := r.ended(id, compensated).Summary.Cause.GetError().GetMessage()
			want := text.want
			if id != "endless" {
				want += " (given up)"
			}
			if !utf8.ValidString(got) || got != want {
				t.Errorf("%s: the error says %.60q in %d bytes, want %.60q in %d", id, got, len(got), want, len(want))
			}
		}
		// Six characters that look like a NUL are text, on the way in and out.
		start(r, def, "fine", `\u0000`)
		if s := r.ended("fine", completed); s.Output != `"\\u0000"` || s.Input != `"\\u0000"` {
			t.Errorf("input %s, output %s", s.Input, s.Output)
		}
		r.eventually("the worker's rest", func() bool { return w.Stats().Held == 0 })
		if s := w.Stats(); s.Refused != 0 || s.Unsent != 0 {
			t.Errorf("%+v", s)
		}
		// What can't be stored doesn't come in either; the answer says where it is.
		for input, path := range map[string]string{`{"memo":"a\u0000b"}`: "$.memo", `{"a":{"b\u0000":1}}`: "$.a"} {
			if answer := r.post("nul-in", "text", input); !strings.Contains(answer, "invalid_argument") || !strings.Contains(answer, "INVALID_INPUT") || !strings.Contains(answer, path) {
				t.Errorf("a start with %s: %s", input, answer)
			}
		}
	})
}

// TestForeignWorkersTexts: a worker that isn't the SDK sends what the SDK would have held back.
func TestForeignWorkersTexts(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	give := saga.Compensatable[string, json.RawMessage]{Name: "t.give"}
	def := saga.Define[string, json.RawMessage]("text", saga.Do("give", give, saga.Value("input")))
	b := newBank(nil)
	register(r, def)

	nc, err := nats.Connect(r.nats)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for id, output := range badOutputs {
		start(r, def, id, id)
		var cons jetstream.Consumer
		r.eventually("the consumer", func() bool {
			cons, err = js.Consumer(r.ctx(), wire.Stream, "default=do=t~give")
			return err == nil
		})
		m, err := cons.Next(jetstream.FetchMaxWait(patience))
		if err != nil {
			t.Fatal(err)
		}
		pack := new(workerv1.TaskPack)
		if err := proto.Unmarshal(m.Data(), pack); err != nil || len(pack.Tasks) != 1 {
			t.Fatal(err, pack)
		}
		body, err := proto.Marshal(&workerv1.ResultPack{Results: []*workerv1.Result{{
			Token: pack.Tasks[0].Token, Outcome: workerv1.Outcome_OUTCOME_SUCCEEDED, Output: []byte(output), Worker: "foreign",
		}}})
		if err != nil {
			t.Fatal(err)
		}
		answer, err := nc.RequestWithContext(r.ctx(), m.Headers().Get(wire.HeaderResultSubject), body)
		if err != nil {
			t.Fatal(err)
		}
		reply := new(workerv1.ResultReply)
		if err := proto.Unmarshal(answer.Data, reply); err != nil || len(reply.Verdicts) != 1 || reply.Verdicts[0] != workerv1.Verdict_VERDICT_ACCEPTED {
			t.Errorf("%s: %v %v", id, reply, err)
		}
		_ = m.Ack()
	}
	r.serve(func(w *worker.Worker) {
		worker.Compensatable(w, give, func(ctx context.Context, _ string) (json.RawMessage, error) {
			_, err := b.called(ctx)
			return nil, err
		}, func(ctx context.Context, u saga.Undo[string, json.RawMessage]) error {
			if u.Output != nil {
				t.Errorf("the compensation is given an output that can't be used: %.60q", *u.Output)
			}
			_, err := b.called(ctx)
			return err
		})
	})
	for id := range badOutputs {
		cause := r.ended(id, compensated).Summary.Cause
		want := wire.CodeNotStorable
		if id == "large" {
			want = "PAYLOAD_TOO_LARGE"
		}
		if cause.GetStep() != "give" || cause.GetError().GetCode() != want || cause.GetAttempt() != 1 {
			t.Errorf("%s: %v", id, cause)
		}
		if d := cmp.Diff([]string{"undo give 1"}, b.story(id)); d != "" {
			t.Errorf("%s: %s", id, d)
		}
	}
}
