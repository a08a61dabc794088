package outbox_test

import (
	"context"
	"testing"
	"unicode/utf8"

	"connectrpc.com/connect/v2/connectinprocess"

	"github.com/sagad/sagad/sdk/client"
	"github.com/sagad/sagad/sdk/outbox"
)

// FuzzRow: whatever stands in a row, its saga is started, or the row is parked with an error that can be stored.
func FuzzRow(f *testing.F) {
	f.Add("order-1", "place-order", int64(0), `{"item":"tea","qty":1}`, `{"city":"Rome"}`)
	f.Add("order-2", "place-order", int64(1), `{"item":"tea","qty":9007199254740993}`, "null")
	f.Add("order-3", "unknown", int64(1<<40), `{`, `{"a":1}`)
	f.Add("", "No Name", int64(-1), "\xff", `{} {}`)
	f.Add("a\x00b", "place-order", int64(0), `"\u0000"`, `{"":""}`)
	n, err := newNode()
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = n.stop() })
	c, err := client.New("", client.WithTransport(connectinprocess.New(n.rpc)), client.WithRetryFor(0))
	if err != nil {
		f.Fatal(err)
	}
	if _, err := client.Register(context.Background(), c, placeOrder); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, sagaID, definition string, version int64, input, labels string) {
		code, message, final := outbox.Deliver(t.Context(), c, sagaID, definition, version, input, labels)
		if code != "" && !final {
			t.Errorf("%s: %s: it would be tried for ever", code, message)
		}
		if !utf8.ValidString(code+message) || len(message) > 2<<10 {
			t.Errorf("the error can't be stored: %q %q", code, message)
		}
		if code == "" {
			if again, message, _ := outbox.Deliver(t.Context(), c, sagaID, definition, version, input, labels); again != "" {
				t.Errorf("delivered once, and then %s: %s", again, message)
			}
		}
	})
}
