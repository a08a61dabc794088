package natsbus

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/internal/wire"
)

// TestLongAttemptsArentSentTwice: the engine sends an attempt again because no result came for long. While the stream has its message,
// that is one call too many; once the stream has lost it, it is the only one.
func TestLongAttemptsArentSentTwice(t *testing.T) {
	r := newRig(t, nil)
	stream, err := r.js.Stream(r.ctx(), wire.Stream)
	if err != nil {
		t.Fatal(err)
	}
	stored := func() uint64 {
		info, err := stream.Info(r.ctx())
		if err != nil {
			t.Fatal(err)
		}
		return info.State.Msgs
	}
	send := func(dispatch int32) {
		task := r.task("a", 1)
		task.TimeoutUs, task.Dispatch = (5 * time.Minute).Microseconds(), dispatch
		r.bus.Publish(r.tasks("other", 1)) // what else goes out is not affected
		task2 := r.task("b", int(dispatch))
		task2.Dispatch = 2 // a short one, sent again
		r.bus.Publish([]*workerv1.Task{task, task2})
		r.until("acknowledgements", func() bool { return r.bus.Stats().BacklogTasks == 0 && len(r.bus.kept.questions) == 0 })
	}
	send(1)
	send(2)
	send(3)
	r.until("the questions' answers", func() bool { return r.bus.Stats().Kept == 2 })
	r.consume("b", 3)
	r.consume("other", 1)
	if n := stored(); n != 1 {
		t.Errorf("%d messages of one attempt", n)
	}
	// A worker took it and is gone without a word.
	r.consume("a", 1)
	send(4)
	r.consume("b", 1)
	r.until("the fourth sending", func() bool { return stored() == 1 })
	// The stream loses all it has.
	if err := stream.Purge(r.ctx()); err != nil {
		t.Fatal(err)
	}
	send(5)
	r.consume("a", 1)
	if s := r.bus.Stats(); s.Kept != 2 || s.BacklogTasks != 0 {
		t.Errorf("%+v", s)
	}
	// The stream was made anew, and has other messages under the old numbers.
	send(6)
	r.until("the sixth sending", func() bool { return stored() >= 1 })
	if err := r.js.DeleteStream(r.ctx(), wire.Stream); err != nil {
		t.Fatal(err)
	}
	r.until("the new stream", func() bool {
		stream, err = r.js.Stream(r.ctx(), wire.Stream)
		return err == nil
	})
	for i := range 20 {
		r.bus.Publish(r.tasks("c", i+1)[i:])
	}
	r.consume("c", 20)
	send(7)
	r.consume("a", 1)
}

// An attempt that is handed back is sent again, though its message still lies in the stream.
func TestHandedBackIsSentAgain(t *testing.T) {
	r := newRig(t, nil)
	if _, err := r.bus.Serve(7, func(p *workerv1.ResultPack, reply func(*workerv1.ResultReply)) {
		reply(all(workerv1.Verdict_VERDICT_ACCEPTED, len(p.Results)))
	}); err != nil {
		t.Fatal(err)
	}
	run := make([]byte, 16)
	task := r.task("a", 1)
	task.TimeoutUs, task.IdempotencyKey = (5 * time.Minute).Microseconds(), wire.IdempotencyKey("00000000-0000-0000-0000-000000000000", "step", "", do, 1)
	var err error
	if task.Token, err = r.ring.Sign(&workerv1.TaskToken{Namespace: "shop", Shard: 7, Run: run, Step: "step", Direction: do, Generation: 1, Attempt: 1, ExpiresUs: 1 << 60}); err != nil {
		t.Fatal(err)
	}
	publish := func(dispatch int32) {
		task.Dispatch = dispatch
		r.bus.Publish([]*workerv1.Task{proto.CloneOf(task)})
		r.until("acknowledgements", func() bool { return r.bus.Stats().BacklogTasks == 0 && len(r.bus.kept.questions) == 0 })
	}
	publish(1)
	r.until("the first message", func() bool { return r.bus.Stats().Acked == 1 })
	publish(2)
	r.until("the question's answer", func() bool { return r.bus.Stats().Kept == 1 })
	body, _ := proto.Marshal(&workerv1.ResultPack{Results: []*workerv1.Result{{Token: task.Token, Outcome: workerv1.Outcome_OUTCOME_HANDED_BACK}}})
	if _, err := r.admin.RequestWithContext(r.ctx(), wire.ResultSubject(7), body); err != nil {
		t.Fatal(err)
	}
	publish(3)
	r.until("the next message", func() bool { return r.bus.Stats().Acked == 2 })
}
