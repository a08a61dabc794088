package natsbus

import (
	"log/slog"
	"testing"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/internal/wire"
)

// FuzzResultRequest: whatever bytes come as a request with results, the engine gets well-formed results with texts that can be
// stored, or nothing; and no request stays counted as unanswered.
func FuzzResultRequest(f *testing.F) {
	token := append([]byte{1, 0, 7}, make([]byte, 40)...)
	add := func(verdicts byte, results ...*workerv1.Result) {
		raw, err := proto.Marshal(&workerv1.ResultPack{Results: results})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, "_INBOX.a.b", verdicts)
	}
	add(1, &workerv1.Result{Token: token, Outcome: workerv1.Outcome_OUTCOME_SUCCEEDED, Output: []byte(`{"a":1}`), Worker: "w"})
	add(1, &workerv1.Result{Token: token, Outcome: workerv1.Outcome_OUTCOME_FAILED, Code: "X", Message: "m\x00", Detail: "d", RetryAfterUs: 5, GiveUp: true})
	add(0, &workerv1.Result{Token: token, Outcome: 99}, &workerv1.Result{Token: token, Outcome: workerv1.Outcome_OUTCOME_REJECTED, Code: "NO"}, &workerv1.Result{})
	add(3, &workerv1.Result{Token: token, Outcome: workerv1.Outcome_OUTCOME_CANT_UNDO, RetryAfterUs: -1})
	f.Add([]byte{}, "_INBOX.a", byte(0))
	f.Add([]byte{0x0a, 0x00}, "$JS.API.STREAM.DELETE.SAGAD_TASKS", byte(1))
	f.Add([]byte{0xff}, "", byte(1))
	// Without a connection: answers go nowhere.
	b := &Bus{log: slog.New(slog.DiscardHandler)}
	f.Fuzz(func(t *testing.T, data []byte, reply string, verdicts byte) {
		b.result(&nats.Msg{Data: data, Reply: reply}, func(pack *workerv1.ResultPack, answer func(*workerv1.ResultReply)) {
			if !wire.ReplyAllowed(reply) {
				t.Errorf("a request with the reply subject %q is handled", reply)
			}
			if len(pack.Results) == 0 || len(pack.Results) > wire.PackResultsMax {
				t.Errorf("a pack has %d results", len(pack.Results))
			}
			for _, r := range pack.Results {
				if !wellFormed(r) {
					t.Errorf("a result is malformed: %v", r)
				}
				for _, text := range []string{r.Code, r.Message, r.Detail, r.Worker} {
					if !utf8.ValidString(text) || len(text) > wire.ResultDetailBytesMax {
						t.Errorf("a text can't be stored: %q", text)
					}
				}
			}
			// Too few verdicts or too many, and twice.
			for range 2 {
				answer(&workerv1.ResultReply{Verdicts: make([]workerv1.Verdict, verdicts)})
			}
		})
		if n := b.answering.Load(); n != 0 {
			t.Fatalf("%d requests are counted as unanswered", n)
		}
	})
}
