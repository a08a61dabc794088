package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/sagad/sagad/internal/wire"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

// TestPayloadsAroundTheLimits: what is just small enough arrives whole, also many at once and in compensations, which carry two; what is
// larger is refused before it is sent. The connection stays, and nobody else notices.
func TestPayloadsAroundTheLimits(t *testing.T) {
	t.Parallel()
	type want struct {
		// Out is the size of the output, as JSON; Err that of the error's text.
		Out, Err int
		Text     string
	}
	fill := saga.Compensatable[want, string]{Name: "t.fill"}
	stop := saga.ReadOnly[bool, bool]{Name: "t.stop"}
	def := saga.Define[want, any]("fill", saga.Do("fill", fill, saga.Value("input"), saga.Retry{MaxAttempts: 1}), saga.Read("stop", stop, saga.Value("true")))

	r := newRig(t, nil)
	var lost atomic.Int32
	nc, err := nats.Connect(r.nats, nats.MaxReconnects(-1), nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
		if err != nil {
			lost.Add(1)
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	var undone atomic.Int32
	r.serve(func(w *worker.Worker) {
		worker.Compensatable(w, fill, func(_ context.Context, in want) (string, error) {
			if in.Err > 0 {
				return "", errors.New(strings.Repeat("e", in.Err))
			}
			return strings.Repeat("o", max(in.Out-2, 0)), nil
		}, func(_ context.Context, u saga.Undo[want, string]) error {
			if u.Output != nil && len(*u.Output) != max(u.Input.Out-2, 0) {
				t.Errorf("the compensation sees %d bytes of output, want %d", len(*u.Output), u.Input.Out-2)
			}
			undone.Add(1)
			return nil
		})
		worker.ReadOnly(w, stop, func(context.Context, bool) (bool, error) { return false, saga.Reject("ENOUGH", "") })
	}, func(c *worker.Config) { c.URL, c.Conn = "", nc })
	register(r, def)

	// textFor makes an input of exactly so many bytes.
	textFor := func(size, out, errBytes int) want {
		w := want{Out: out, Err: errBytes}
		w.Text = strings.Repeat("i", size-len(fmt.Sprintf(`{"Out":%d,"Err":%d,"Text":""}`, out, errBytes)))
		return w
	}
	const limit, broker = wire.PayloadBytesMax, 1 << 20
	for i := range 20 { // others on the same connections
		start(r, def, fmt.Sprint("other-", i), want{Out: 10})
	}
	// Inputs.
	for _, size := range []int{limit + 1, broker - 176, broker - 1, broker, broker + 1} {
		said := fmt.Sprint(size)
		if size > broker-176 {
			said = fmt.Sprint(broker) // with what is around it the request is larger than any may be, so that it isn't read to its end
		}
		input, err := json.Marshal(textFor(size, 10, 0))
		if err != nil || len(input) != size {
			t.Fatal(len(input), err)
		}
		answer := r.post(fmt.Sprint("in-", size), "fill", string(input))
		if !strings.Contains(answer, "PAYLOAD_TOO_LARGE") || !strings.Contains(answer, said) || !strings.Contains(answer, fmt.Sprint(limit)) {
			t.Errorf("an input of %d bytes: %s", size, answer)
		}
	}
	// The largest of all, many at once.
	const many = 12
	for i := range many {
		start(r, def, fmt.Sprint("many-", i), textFor(limit-i%2, limit-i%3, 0))
	}
	// Outputs, and texts of errors.
	outs := []int{limit + 1, broker - 176, broker - 1, broker, broker + 1}
	for _, size := range outs {
		start(r, def, fmt.Sprint("out-", size), want{Out: size})
		start(r, def, fmt.Sprint("err-", size), want{Err: size})
	}

	for i := range many {
		if c := r.ended(fmt.Sprint("many-", i), compensated).Summary.Cause; c.GetError().GetCode() != "ENOUGH" {
			t.Errorf("many %d: %v", i, c)
		}
	}
	for _, size := range outs {
		e := r.ended(fmt.Sprint("out-", size), compensated).Summary.Cause.GetError()
		if e.GetCode() != wire.CodeNotStorable || !strings.Contains(e.GetMessage(), fmt.Sprint(size)) || !strings.Contains(e.GetMessage(), fmt.Sprint(limit)) {
			t.Errorf("an output of %d bytes: %v", size, e)
		}
		e = r.ended(fmt.Sprint("err-", size), compensated).Summary.Cause.GetError()
		if e.GetCode() != "ERROR" || len(e.GetMessage()) != wire.ResultMessageBytesMax || len(e.GetDetail()) > wire.ResultDetailBytesMax {
			t.Errorf("an error of %d bytes: code %s, %d bytes, %d of detail", size, e.GetCode(), len(e.GetMessage()), len(e.GetDetail()))
		}
	}
	for i := range 20 {
		if c := r.ended(fmt.Sprint("other-", i), compensated).Summary.Cause; c.GetError().GetCode() != "ENOUGH" {
			t.Errorf("other %d: %v", i, c)
		}
	}
	if n := undone.Load(); n != int32(many+2*len(outs)+20) {
		t.Errorf("%d compensations", n)
	}
	if lost.Load() != 0 {
		t.Errorf("the worker lost its connection %d times", lost.Load())
	}
	for _, m := range []string{"sagad_bus_disconnects_total", "sagad_bus_errors_total", "sagad_bus_tasks_dropped_bad_total", "sagad_bus_messages_retried_total"} {
		if n := r.metric(m); n != 0 {
			t.Errorf("%s is %v", m, n)
		}
	}
}
