package natsbus

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/internal/wire"
)

// deafRig has a stream in files whose answers can be turned off: a server whose disk was full doesn't answer either.
func deafRig(t *testing.T, change func(*Config)) *rig {
	t.Helper()
	s, err := Embedded(t.TempDir(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return rigOn(t, s, func(c *Config) {
		c.tempo.deaf = 100 * time.Millisecond
		change(c)
	})
}

func (r *rig) deafen() {
	r.t.Helper()
	stream, err := r.js.Stream(r.ctx(), wire.Stream)
	if err != nil {
		r.t.Fatal(err)
	}
	c := stream.CachedInfo().Config
	c.NoAck = true
	if _, err := r.js.UpdateStream(r.ctx(), c); err != nil {
		r.t.Fatal(err)
	}
}

func TestDeafStreamIsMadeAnew(t *testing.T) {
	recreated := make(chan bool, 10)
	var r *rig
	r = deafRig(t, func(c *Config) { c.OnRecreated = func() { recreated <- r.bus.Healthy() } })
	r.deafen()
	r.bus.Publish(r.tasks("a", 10)) // wait in the outbox, since nothing says that they were taken
	r.until("a problem", func() bool {
		err := r.bus.Problem()
		return err != nil && strings.Contains(err.Error(), "takes no messages")
	})
	select {
	case healthy := <-recreated:
		if !healthy {
			t.Error("told before the stream can be used")
		}
	case <-r.ctx().Done():
		t.Fatal("the stream wasn't made anew", r.log)
	}
	if err := r.bus.Problem(); err != nil {
		t.Error(err)
	}
	r.consume("a", 10)
	if log := r.log.String(); !strings.Contains(log, "the stream takes no messages though its server answers") {
		t.Errorf("no warning:\n%s", log)
	}
}

// A stream that answers something is only slow, and isn't thrown away.
func TestSlowStreamStays(t *testing.T) {
	r := deafRig(t, func(c *Config) {})
	stream, err := r.js.Stream(r.ctx(), wire.Stream)
	if err != nil {
		t.Fatal(err)
	}
	r.deafen()
	top := r.bus.topology
	// The bus's own looks are stopped, so that these are the only ones.
	r.bus.stop()
	r.bus.done.Wait()
	top.deaf.Store(0)
	for range 3 * deafMax {
		answers := r.bus.outbox.answers.Load()
		r.bus.outbox.answers.Add(1) // of a task, meanwhile
		top.unanswered(r.ctx(), stream, answers)
	}
	if after, err := r.js.Stream(r.ctx(), wire.Stream); err != nil || !after.CachedInfo().Created.Equal(stream.CachedInfo().Created) {
		t.Fatalf("a slow stream was made anew: %v", err)
	}
	for range deafMax {
		top.unanswered(r.ctx(), stream, r.bus.outbox.answers.Load())
	}
	if _, err := r.js.Stream(r.ctx(), wire.Stream); err == nil {
		t.Error("a deaf stream was kept: this test shows nothing")
	}
}

// What nobody takes vanishes after its deadline, also from a stream that was made by an older version.
func TestMessagesExpire(t *testing.T) {
	s, err := Embedded(t.TempDir(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	r := rigOn(t, s, nil)
	config := func() jetstream.StreamConfig {
		stream, err := r.js.Stream(r.ctx(), wire.Stream)
		if err != nil {
			t.Fatal(err)
		}
		return stream.CachedInfo().Config
	}
	old := config()
	if !old.AllowMsgTTL {
		t.Error("the stream was created without TTLs")
	}
	r.bus.Close()
	if err := r.js.DeleteStream(r.ctx(), wire.Stream); err != nil {
		t.Fatal(err)
	}
	old.AllowMsgTTL = false
	if _, err := r.js.CreateStream(r.ctx(), old); err != nil {
		t.Fatal(err)
	}
	r = rigOn(t, s, func(c *Config) { c.tempo.ttlMargin = time.Second })
	if !config().AllowMsgTTL {
		t.Fatal("the old stream wasn't updated")
	}
	short, long := r.task("short", 1), r.task("long", 1)
	short.TimeoutUs = time.Millisecond.Microseconds() * 100
	r.bus.Publish(r.tasks("warm", 1)) // the consumers are there
	r.consume("warm", 1)
	r.bus.Publish([]*workerv1.Task{short, long})
	count := func(subject string) uint64 {
		stream, err := r.js.Stream(r.ctx(), wire.Stream)
		if err != nil {
			t.Fatal(err)
		}
		info, err := stream.Info(r.ctx(), jetstream.WithSubjectFilter(subject))
		if err != nil {
			t.Fatal(err)
		}
		return info.State.Subjects[subject]
	}
	r.until("both", func() bool { return r.bus.Stats().Acked >= 3 })
	r.until("the end of the short one", func() bool { return count("sagad.task.shop.do.short") == 0 })
	m := r.consume("long", 1)
	if got := m[0].Headers().Get(jetstream.MsgTTLHeader); got != "32" { // 30 s, a margin of 1 here, rounded up
		t.Errorf("TTL %q", got)
	}
}
