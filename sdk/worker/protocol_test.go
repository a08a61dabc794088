package worker_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sagad/sagad/internal/wire"
)

var comment = regexp.MustCompile(`(?m)//.*$`)

// statements are a proto file's statements, without comments and white space.
func statements(text string) []string {
	var out []string
	for line := range strings.SplitSeq(comment.ReplaceAllString(text, ""), "\n") {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			out = append(out, line)
		}
	}
	return out
}

// What worker-protocol.md says is what is so.
func TestProtocolPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/worker-protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	schema, err := os.ReadFile("../../proto/sagad/worker/v1/worker.proto")
	if err != nil {
		t.Fatal(err)
	}
	_, block, ok := strings.Cut(string(page), "```proto\n")
	block, _, ok2 := strings.Cut(block, "```")
	if !ok || !ok2 {
		t.Fatal("the page has no proto block")
	}
	if diff := cmp.Diff(statements(string(schema)), statements(block)); diff != "" {
		t.Errorf("the page's proto block isn't the schema: copy proto/sagad/worker/v1/worker.proto into it\n%s", diff)
	}
	q := wire.Queue{Namespace: "shop", Activity: "inventory.reserve", Direction: undo}
	consumer, _ := q.Consumer()
	next, _ := q.NextSubject()
	announce, _ := q.AnnounceSubject()
	text := strings.Join(strings.Fields(string(page)), " ")
	for _, want := range []string{
		consumer, next, announce, wire.Stream, wire.TaskSubjects, wire.HeaderProtocol, jetstream.MsgTTLHeader, wire.HeaderResultSubject, wire.HeaderTime, wire.HeaderTraceparent, wire.InboxPrefix, wire.CodeNotStorable,
		fmt.Sprintf("| input, output | %d KiB each |", wire.PayloadBytesMax>>10),
		fmt.Sprintf("| tasks of a message | %d, %d KiB in all", wire.PackTasksMax, wire.PackBytesMax>>10),
		fmt.Sprintf("| results of a request | %d;", wire.PackResultsMax),
		fmt.Sprintf("keep below %d KiB", wire.ResultPackBytesMax>>10),
		fmt.Sprintf("| token | %d KiB |", wire.TokenBytesMax>>10),
		fmt.Sprintf("| `code` | %d bytes |", wire.ResultCodeBytesMax),
		fmt.Sprintf("| `message` | %d KiB |", wire.ResultMessageBytesMax>>10),
		fmt.Sprintf("| `detail` | %d KiB |", wire.ResultDetailBytesMax>>10),
		fmt.Sprintf("| `worker` | %d bytes |", wire.ResultWorkerBytesMax),
		fmt.Sprintf("| ack wait | %d s,", wire.DefaultAckWait/time.Second),
		fmt.Sprintf("duplicate window %d min", wire.DuplicateWindow/time.Minute),
		fmt.Sprintf("until %d hours after the attempt's deadline", wire.TokenGrace/time.Hour),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page doesn't say %q", want)
		}
	}
}
