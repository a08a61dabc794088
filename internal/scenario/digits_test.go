package scenario

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sagad/sagad/internal/node"
	"github.com/sagad/sagad/internal/pgtest"
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

// onStores runs a test over SQLite and over Postgres.
func onStores(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) { test(t, newRig(t, nil)) })
	t.Run("postgres", func(t *testing.T) {
		test(t, newRig(t, func(c *node.Config) { c.Store = pgtest.Start(t) }))
	})
}

// TestDigitsSurviveTheWholeWay: from the caller through the store, expressions, NATS and the worker, and back.
func TestDigitsSurviveTheWholeWay(t *testing.T) {
	const input = `{"acct":9007199254740993,"big":123456789012345678901234567890,"amt":0.1,"cent":1999,"z":1.0,"neg":-0}`
	echo := saga.Compensatable[json.RawMessage, json.RawMessage]{Name: "t.echo"}
	arm := saga.ReadOnly[json.RawMessage, json.RawMessage]{Name: "t.arm"}
	digits := saga.Define[json.RawMessage, json.RawMessage]("digits",
		saga.Do("echo", echo, saga.Fields{
			"whole": "input", "acct": "input.acct", "big": "input.big", "amt": "input.amt", "cent": "input.cent", "z": "input.z",
			"same": "input.acct == 9007199254740993", "near": "input.acct == 9007199254740992.0",
			"sum": "input.cent + 1", "equal": "input.cent + 1 == 2000", "int": "type(input.cent + 1) == int",
		}),
		saga.If("input.acct == 9007199254740992.0", saga.Read("wrong", arm, saga.Value("input.acct"))).
			Else(saga.Read("right", arm, saga.Value("echo.whole.acct"))),
		saga.Return(saga.Fields{"echo": "echo", "big": "echo.big", "z": "echo.whole.z"}))
	sum := saga.Define[json.RawMessage, json.RawMessage]("sum",
		saga.Do("echo", echo, saga.Value("input")),
		saga.Read("add", arm, saga.Value("echo.big + 1")))

	onStores(t, func(t *testing.T, r *rig) {
		var mu sync.Mutex
		seen := map[string]string{}
		keep := func(ctx context.Context, in json.RawMessage) (json.RawMessage, error) {
			mu.Lock()
			defer mu.Unlock()
			seen[saga.SagaID(ctx)+" "+saga.StepName(ctx)] = string(in)
			return in, nil
		}
		r.serve(func(w *worker.Worker) {
			worker.Compensatable(w, echo, keep, func(ctx context.Context, u saga.Undo[json.RawMessage, json.RawMessage]) error {
				_, err := keep(ctx, *u.Output)
				return err
			})
			worker.ReadOnly(w, arm, keep)
		})
		register(r, digits)
		register(r, sum)
		start(r, digits, "d", json.RawMessage(input))
		start(r, sum, "s", json.RawMessage(input))

		compact := input
		echoed := `{"acct":9007199254740993,"amt":0.1,"big":123456789012345678901234567890,"cent":1999,"equal":true,"int":true,` +
			`"near":false,"same":true,"sum":2000,"whole":` + compact + `,"z":1.0}`
		s := r.ended("d", completed)
		if d := cmp.Diff(`{"big":123456789012345678901234567890,"echo":`+echoed+`,"z":1.0}`, string(raw(s))); d != "" {
			t.Errorf("output: %s", d)
		}
		if d := cmp.Diff(input, s.Input); d != "" {
			t.Errorf("input: %s", d)
		}
		if d := cmp.Diff(echoed, step(s, "echo").Action.Output); d != "" {
			t.Errorf("output of the step: %s", d)
		}

		// A sum that can't be exact is an error of its step, and what was done before is undone.
		s = r.ended("s", compensated)
		cause := s.Summary.Cause
		if cause.GetKind() != historyv1.CauseKind_CAUSE_KIND_EXPRESSION || cause.GetStep() != "add" || !strings.Contains(cause.GetError().GetMessage(), "can be passed on but not computed with") {
			t.Errorf("cause %v", cause)
		}
		mu.Lock()
		defer mu.Unlock()
		if d := cmp.Diff(map[string]string{"d echo": echoed, "d right": "9007199254740993", "s echo": compact}, seen); d != "" {
			t.Errorf("the worker saw: %s", d)
		}
	})
}
