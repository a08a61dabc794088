package natsbus

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/internal/wire"
)

const do, undo = workerv1.Direction_DIRECTION_DO, workerv1.Direction_DIRECTION_UNDO

// quick periods, so that what waits for a period is seen soon.
var quick = tempo{ackSilence: 100 * time.Millisecond, sweep: 10 * time.Millisecond, check: 50 * time.Millisecond, retryMin: 10 * time.Millisecond, retryMax: 50 * time.Millisecond, apart: true}

type rig struct {
	t      *testing.T
	server *Server
	bus    *Bus
	log    *syncBuffer
	// admin is a plain connection to the same server.
	admin *nats.Conn
	js    jetstream.JetStream
	ring  *wire.Keyring
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func newRig(t *testing.T, change func(*Config)) *rig {
	t.Helper()
	s, err := Embedded("", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return rigOn(t, s, change)
}

func rigOn(t *testing.T, s *Server, change func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, server: s, log: &syncBuffer{}}
	cfg := Config{Server: s, Logger: slog.New(slog.NewTextHandler(r.log, nil)), tempo: quick}
	if change != nil {
		change(&cfg)
	}
	var err error
	if r.bus, err = Connect(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.bus.Close)
	if err := r.bus.Ready(r.ctx()); err != nil {
		t.Fatal(err, r.log)
	}
	if r.admin, err = nats.Connect("", s.InProcess(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.admin.Close)
	if r.js, err = jetstream.New(r.admin); err != nil {
		t.Fatal(err)
	}
	if r.ring, err = wire.NewKeyring(1, map[int32][]byte{1: bytes.Repeat([]byte{1}, 32)}); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	r.t.Cleanup(cancel)
	return ctx
}

func (r *rig) task(activity string, n int) *workerv1.Task {
	key := wire.IdempotencyKey(fmt.Sprintf("run-%s-%d", activity, n), "step", "", do, 1)
	return &workerv1.Task{Protocol: 1, Namespace: "shop", SagaId: fmt.Sprint("saga-", n), Step: "step", Direction: do, Generation: 1, Attempt: 1, Dispatch: 1,
		IdempotencyKey: key, Activity: activity, Input: []byte(`{}`), TimeoutUs: 30_000_000, DeadlineUs: time.Now().Add(30 * time.Second).UnixMicro(), Token: r.token(n)}
}

func (r *rig) token(n int) []byte {
	token, err := r.ring.Sign(&workerv1.TaskToken{Namespace: "shop", Shard: 7, SagaId: fmt.Sprint("saga-", n), ExpiresUs: 1 << 60})
	if err != nil {
		r.t.Fatal(err)
	}
	return token
}

func (r *rig) tasks(activity string, n int) []*workerv1.Task {
	out := make([]*workerv1.Task, n)
	for i := range out {
		out[i] = r.task(activity, i)
	}
	return out
}

// consume takes tasks of a queue until it has seen n distinct attempts, acks their messages, and gives the messages.
func (r *rig) consume(activity string, n int) []jetstream.Msg {
	r.t.Helper()
	ctx := r.ctx()
	q := wire.Queue{Namespace: "shop", Activity: activity, Direction: do}
	name, _ := q.Consumer()
	var cons jetstream.Consumer
	r.until("consumer "+name, func() bool {
		var err error
		cons, err = r.js.Consumer(ctx, wire.Stream, name)
		return err == nil
	})
	var out []jetstream.Msg
	seen := map[string]bool{}
	for len(seen) < n && ctx.Err() == nil {
		batch, err := cons.Fetch(100, jetstream.FetchMaxWait(200*time.Millisecond))
		if err != nil {
			continue
		}
		for m := range batch.Messages() {
			pack := new(workerv1.TaskPack)
			if err := proto.Unmarshal(m.Data(), pack); err != nil {
				r.t.Fatal(err)
			}
			for _, t := range pack.Tasks {
				seen[fmt.Sprint(t.IdempotencyKey, "#", t.Attempt)] = true
			}
			out = append(out, m)
			if err := m.DoubleAck(ctx); err != nil {
				r.t.Fatal(err)
			}
		}
	}
	if len(seen) != n {
		r.t.Fatalf("%s: %d tasks came, want %d\n%s\n%+v", activity, len(seen), n, r.log, r.bus.Stats())
	}
	return out
}

// until looks again until ok: for states of a server that signals nothing.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("%s didn't come about\n%s\n%+v", what, r.log, r.bus.Stats())
		}
	}
}

func packed(m jetstream.Msg) int {
	pack := new(workerv1.TaskPack)
	_ = proto.Unmarshal(m.Data(), pack)
	return len(pack.Tasks)
}

func TestPacking(t *testing.T) {
	r := newRig(t, nil)
	r.bus.Publish(r.tasks("alone", 1))
	m := r.consume("alone", 1)
	if len(m) != 1 || packed(m[0]) != 1 {
		t.Errorf("%d messages", len(m))
	}
	want := r.task("alone", 0)
	h := m[0].Headers()
	if h.Get(wire.HeaderMsgID) != want.IdempotencyKey+"#1#1" || h.Get(wire.HeaderProtocol) != "1" || h.Get(wire.HeaderResultSubject) != "sagad.result.7" {
		t.Errorf("headers %v", h)
	}

	var tasks []*workerv1.Task // of two activities, mixed
	for i := range 40 {
		tasks = append(tasks, r.task("many", i), r.task("other.one", i))
	}
	tasks[0].Traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	r.bus.Publish(tasks)
	for _, activity := range []string{"many", "other.one"} {
		ms := r.consume(activity, 40)
		if len(ms) != 3 || packed(ms[0]) != 16 || packed(ms[1]) != 16 || packed(ms[2]) != 8 {
			t.Errorf("%s came in %d messages, want 16+16+8", activity, len(ms))
		}
		if got := ms[0].Headers().Get(wire.HeaderMsgID); !strings.HasSuffix(got, "#1#1+16") {
			t.Errorf("message id %s", got)
		}
	}

	big := r.tasks("big", 6)
	for _, task := range big {
		task.Input = bytes.Repeat([]byte(" "), 200<<10)
	}
	r.bus.Publish(big)
	if ms := r.consume("big", 6); len(ms) != 3 {
		t.Errorf("6 tasks of 200 KiB came in %d messages, want 3", len(ms))
	}

	slow := r.tasks("slow", 3)
	for _, task := range slow {
		task.TimeoutUs = int64(time.Hour / time.Microsecond)
	}
	r.bus.Publish(slow)
	if ms := r.consume("slow", 3); len(ms) != 3 {
		t.Errorf("3 tasks that may take an hour came in %d messages", len(ms))
	}

	again := r.tasks("again", 4)
	again[1].Dispatch, again[2].Dispatch = 2, 3
	r.bus.Publish(again)
	if ms := r.consume("again", 4); len(ms) != 4 {
		t.Errorf("4 tasks, of which 2 were sent before, came in %d messages: those two must be alone", len(ms))
	}
	if s := r.bus.Stats(); s.Backlog != 0 || s.BacklogTasks != 0 {
		t.Errorf("%+v", s)
	}
}

func TestLostPubAckIsRetriedUnderTheSameID(t *testing.T) {
	r := newRig(t, nil)
	if err := r.bus.outbox.acks.Unsubscribe(); err != nil { // from now on PubAcks get lost
		t.Fatal(err)
	}
	r.bus.Publish(r.tasks("a", 1))
	r.until("3 more sendings", func() bool { return r.bus.Stats().Retried >= 3 })
	if s := r.bus.Stats(); s.Acked != 0 || s.BacklogTasks != 1 {
		t.Errorf("%+v", s)
	}
	if err := r.bus.outbox.listen(); err != nil { // acknowledgements come through again, to another inbox
		t.Fatal(err)
	}
	r.bus.outbox.mu.Lock()
	for _, where := range []map[uint64]*outgoing{r.bus.outbox.flying, r.bus.outbox.retry} {
		for _, g := range where {
			g.msg = &nats.Msg{Subject: g.msg.Subject, Header: g.msg.Header, Data: g.msg.Data, Reply: r.bus.outbox.inbox + fmt.Sprint(g.id)}
		}
	}
	r.bus.outbox.mu.Unlock()
	r.until("the acknowledgement", func() bool { return r.bus.Stats().Acked > 0 })
	if s := r.bus.Stats(); s.Duplicates == 0 || s.BacklogTasks != 0 {
		t.Errorf("%+v", s)
	}
	if ms := r.consume("a", 1); len(ms) != 1 {
		t.Errorf("%d messages in the stream, want 1", len(ms))
	}
}

func TestDuplicateWindowLetsNewAttemptsThrough(t *testing.T) {
	r := newRig(t, nil)
	for attempt := int32(1); attempt <= 3; attempt++ {
		for dispatch := int32(1); dispatch <= 2; dispatch++ {
			task := r.task("a", 1)
			task.Attempt, task.Dispatch = attempt, dispatch
			r.bus.Publish([]*workerv1.Task{task})
			again := proto.Clone(task).(*workerv1.Task) // the very same: is swallowed
			r.bus.Publish([]*workerv1.Task{again})
		}
	}
	r.until("12 acknowledgements", func() bool { return r.bus.Stats().Acked == 12 })
	if ms := r.consume("a", 3); len(ms) != 6 {
		t.Errorf("%d messages, want 6", len(ms))
	}
	if s := r.bus.Stats(); s.Duplicates != 6 {
		t.Errorf("%d duplicates, want 6", s.Duplicates)
	}
}

func TestDeletedConsumerComesBack(t *testing.T) {
	r := newRig(t, nil)
	r.bus.Publish(r.tasks("a", 100))
	r.until("acknowledgements", func() bool { return r.bus.Stats().BacklogTasks == 0 })
	r.until("consumer", func() bool { _, err := r.js.Consumer(r.ctx(), wire.Stream, "shop=do=a"); return err == nil })
	r.until("consumer seen", func() bool {
		r.bus.topology.mu.Lock()
		defer r.bus.topology.mu.Unlock()
		s := r.bus.topology.queues[wire.Queue{Namespace: "shop", Activity: "a", Direction: do}]
		return s != nil && s.seen
	})
	if err := r.js.DeleteConsumer(r.ctx(), wire.Stream, "shop=do=a"); err != nil {
		t.Fatal(err)
	}
	r.consume("a", 100)
	if log := r.log.String(); !strings.Contains(log, "a consumer was gone") || !strings.Contains(log, "shop=do=a") {
		t.Errorf("no warning names the consumer:\n%s", log)
	}
}

func TestDeletedStreamComesBack(t *testing.T) {
	recreated := make(chan struct{}, 10)
	r := newRig(t, func(c *Config) { c.OnRecreated = func() { recreated <- struct{}{} } })
	r.bus.Publish(r.tasks("a", 10))
	r.until("consumer", func() bool { _, err := r.js.Consumer(r.ctx(), wire.Stream, "shop=do=a"); return err == nil })
	if err := r.js.DeleteStream(r.ctx(), wire.Stream); err != nil {
		t.Fatal(err)
	}
	// Published while it is away: kept until it is there. What was in it must be dispatched again by the engine, which is told.
	late := r.tasks("a", 30)[20:]
	r.bus.Publish(late)
	select {
	case <-recreated:
	case <-r.ctx().Done():
		t.Fatal("not told", r.log)
	}
	again := r.tasks("a", 10)
	for _, task := range again {
		task.Dispatch = 2
	}
	r.bus.Publish(again)
	r.consume("a", 20)
	if log := r.log.String(); !strings.Contains(log, "the stream was gone") {
		t.Errorf("no warning:\n%s", log)
	}
}

func TestServerRestart(t *testing.T) {
	dir := t.TempDir()
	first, err := Embedded(dir, "127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	url := first.ClientURL()
	r := rigOn(t, first, func(c *Config) { c.Server, c.URL = nil, url })
	got := make(chan *workerv1.ResultPack, 10)
	r.serve(7, func(p *workerv1.ResultPack, reply func(*workerv1.ResultReply)) {
		got <- p
		reply(all(workerv1.Verdict_VERDICT_ACCEPTED, len(p.Results)))
	})
	r.bus.Publish(r.tasks("a", 5))
	r.until("acknowledgements", func() bool { return r.bus.Stats().BacklogTasks == 0 })
	first.Close()
	r.until("outage to show", func() bool { return !r.bus.Healthy() })
	r.bus.Publish(r.tasks("a", 20)[5:]) // during the outage
	if s := r.bus.Stats(); s.BacklogTasks != 15 || s.Connected != 0 {
		t.Errorf("%+v", s)
	}
	second, err := Embedded(dir, strings.TrimPrefix(url, "nats://"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(second.Close)
	if err := r.bus.Ready(r.ctx()); err != nil {
		t.Fatal(err, r.log)
	}
	admin, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(admin.Close)
	r.admin = admin
	r.js, _ = jetstream.New(admin)
	r.consume("a", 20)
	// The shard is still served.
	reply := r.request(t, "sagad.result.7", &workerv1.ResultPack{Results: []*workerv1.Result{r.result(1)}})
	if len(reply.Verdicts) != 1 || reply.Verdicts[0] != workerv1.Verdict_VERDICT_ACCEPTED {
		t.Error(reply)
	}
}

func TestStartsWithoutNATS(t *testing.T) {
	s, err := Embedded("", "127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	url := s.ClientURL()
	s.Close()
	bus, err := Connect(t.Context(), Config{URL: url, tempo: quick})
	if err != nil {
		t.Fatal(err)
	}
	defer bus.Close()
	stop, err := bus.Serve(1, func(*workerv1.ResultPack, func(*workerv1.ResultReply)) {})
	if err != nil || bus.Healthy() {
		t.Fatal(err, bus.Healthy())
	}
	stop()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if bus.Ready(ctx) == nil {
		t.Error("ready without a server")
	}
	r := &rig{t: t, bus: bus, log: &syncBuffer{}}
	r.ring, _ = wire.NewKeyring(1, map[int32][]byte{1: make([]byte, 32)})
	bus.Publish(r.tasks("a", 3))
	s2, err := Embedded("", strings.TrimPrefix(url, "nats://"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s2.Close()
	if err := bus.Ready(r.ctx()); err != nil {
		t.Fatal(err)
	}
	r.until("acknowledgements", func() bool { return bus.Stats().BacklogTasks == 0 })
}

func TestBacklogIsBounded(t *testing.T) {
	s, err := Embedded("", "127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	url := s.ClientURL()
	s.Close()
	bus, err := Connect(t.Context(), Config{URL: url, BacklogBytesMax: 10_000, tempo: quick})
	if err != nil {
		t.Fatal(err)
	}
	defer bus.Close()
	r := &rig{t: t, bus: bus, log: &syncBuffer{}}
	r.ring, _ = wire.NewKeyring(1, map[int32][]byte{1: make([]byte, 32)})
	for i := range 1000 {
		task := r.task("a", i)
		task.TimeoutUs = 200_000
		bus.Publish([]*workerv1.Task{task})
	}
	st := bus.Stats()
	if st.Backlog > 10_000 || st.DroppedFull == 0 || st.DroppedFull+st.BacklogTasks+st.DroppedLate != 1000 {
		t.Errorf("%+v", st)
	}
	// And what is past its deadline goes.
	r.until("deadlines", func() bool { return bus.Stats().BacklogTasks == 0 })
	if now := bus.Stats(); now.DroppedLate == 0 || now.DroppedLate+now.DroppedFull != 1000 || now.Backlog != 0 {
		t.Errorf("%+v", now)
	}
}

func TestFullStreamLosesNothing(t *testing.T) {
	r := newRig(t, func(c *Config) { c.MaxBytes = 20_000 })
	tasks := r.tasks("a", 300)
	for _, task := range tasks {
		r.bus.Publish([]*workerv1.Task{task})
	}
	r.until("refusals", func() bool { return r.bus.Stats().Retried > 10 })
	ms := r.consume("a", 300)
	if len(ms) < 300 {
		t.Errorf("%d messages", len(ms))
	}
	if !strings.Contains(r.log.String(), "NATS refuses tasks") {
		t.Errorf("no warning:\n%s", r.log)
	}
}

func TestChangedDiscardPolicyIsReportedOnce(t *testing.T) {
	r := newRig(t, nil)
	stream, err := r.js.Stream(r.ctx(), wire.Stream)
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	if cfg.Retention != jetstream.WorkQueuePolicy || cfg.Discard != jetstream.DiscardNew || cfg.MaxAge != 24*time.Hour || cfg.Duplicates != 2*time.Minute {
		t.Errorf("%+v", cfg)
	}
	cfg.Discard = jetstream.DiscardOld
	if _, err := r.js.UpdateStream(r.ctx(), cfg); err != nil {
		t.Fatal(err)
	}
	r.until("warning", func() bool { return strings.Contains(r.log.String(), "discard policy") })
	for range 3 {
		changed := r.bus.topology.changes()
		r.bus.topology.kick()
		<-changed
	}
	if n := strings.Count(r.log.String(), "discard policy"); n != 1 {
		t.Errorf("%d warnings", n)
	}
}

func TestStreamOfAnotherKindIsRefused(t *testing.T) {
	s, err := Embedded("", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	nc, err := nats.Connect("", s.InProcess())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, _ := jetstream.New(nc)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: wire.Stream, Subjects: []string{wire.TaskSubjects}, Storage: jetstream.MemoryStorage}); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, log: &syncBuffer{}}
	if r.bus, err = Connect(t.Context(), Config{Server: s, Logger: slog.New(slog.NewTextHandler(r.log, nil)), tempo: quick}); err != nil {
		t.Fatal(err)
	}
	defer r.bus.Close()
	r.until("complaint", func() bool { return strings.Contains(r.log.String(), "not work-queue") })
	if r.bus.Healthy() {
		t.Error("healthy")
	}
}

func TestHostileNamesReachNobody(t *testing.T) {
	r := newRig(t, nil)
	var seen sync.Map
	if _, err := r.admin.Subscribe("sagad.>", func(m *nats.Msg) { seen.Store(m.Subject, true) }); err != nil {
		t.Fatal(err)
	}
	names := []string{"a b", "*", ">", "x\r\nPUB x 0\r\n", "", "$SYS.x", "ünï", strings.Repeat("x", 300), "a..b", "A"}
	for i, name := range names {
		a, b := r.task(name, i), r.task("a", i)
		b.Namespace = name
		r.bus.Publish([]*workerv1.Task{a, b})
	}
	r.bus.Publish(r.tasks("a", 1))
	r.consume("a", 1)
	if s := r.bus.Stats(); s.DroppedBad != int64(2*len(names)) || s.Disconnects != 0 || s.AsyncErrors != 0 {
		t.Errorf("%+v", s)
	}
	_ = r.admin.Flush()
	seen.Range(func(k, _ any) bool {
		if k != "sagad.task.shop.do.a" {
			t.Errorf("a message to %q", k)
		}
		return true
	})
}

func TestTooLargeTaskIsCounted(t *testing.T) {
	r := newRig(t, nil)
	task := r.task("a", 1)
	task.Input = make([]byte, 1<<20)
	r.bus.Publish([]*workerv1.Task{task, r.task("a", 2)})
	r.consume("a", 1)
	if s := r.bus.Stats(); s.DroppedBad != 1 {
		t.Errorf("%+v", s)
	}
}

func TestListeningAndAnnouncement(t *testing.T) {
	r := newRig(t, nil)
	if !r.bus.Listening("shop", "a.b", do) {
		t.Error("what isn't known is said to be unheard")
	}
	// A worker finds no consumer and asks for it.
	q := wire.Queue{Namespace: "shop", Activity: "a.b", Direction: do}
	subject, _ := q.AnnounceSubject()
	m, err := r.admin.RequestWithContext(r.ctx(), subject, nil)
	if err != nil {
		t.Fatal(err)
	}
	if m.Header.Get(wire.HeaderTime) == "" || len(m.Data) != 0 {
		t.Errorf("%v %q", m.Header, m.Data)
	}
	cons, err := r.js.Consumer(r.ctx(), wire.Stream, "shop=do=a~b")
	if err != nil {
		t.Fatal(err)
	}
	cfg := cons.CachedInfo().Config
	if cfg.AckWait != 30*time.Second || cfg.MaxDeliver != -1 || cfg.AckPolicy != jetstream.AckExplicitPolicy || cfg.FilterSubject != "sagad.task.shop.do.a.b" {
		t.Errorf("%+v", cfg)
	}
	r.until("nobody listens", func() bool { return !r.bus.Listening("shop", "a.b", do) })
	it, err := cons.Consume(func(jetstream.Msg) {}, jetstream.PullMaxMessages(1))
	if err != nil {
		t.Fatal(err)
	}
	r.until("somebody listens", func() bool { return r.bus.Listening("shop", "a.b", do) })
	if r.bus.Listening("shop", "a", do) != true || r.bus.Listening("shop", "a.b", undo) != true {
		t.Error("other queues aren't unknown")
	}
	it.Stop()
	r.until("nobody listens any more", func() bool { return !r.bus.Listening("shop", "a.b", do) })

	// Announcements that can't be, or that would make the engine publish elsewhere, get nothing.
	elsewhere := make(chan *nats.Msg, 1)
	if _, err := r.admin.ChanSubscribe("elsewhere", elsewhere); err != nil {
		t.Fatal(err)
	}
	before := r.bus.Stats().Unanswerable
	for _, s := range []string{"sagad.announce.shop.do.A", "sagad.announce.shop.it.a", "sagad.announce.x"} {
		if err := r.admin.PublishRequest(s, r.admin.NewInbox(), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.admin.PublishRequest(subject, "elsewhere", nil); err != nil {
		t.Fatal(err)
	}
	r.until("refusals", func() bool { return r.bus.Stats().Unanswerable == before+4 })
	if len(elsewhere) != 0 {
		t.Error("published elsewhere")
	}
}

func TestConfigIsChecked(t *testing.T) {
	for name, c := range map[string]Config{
		"nothing": {}, "both": {URL: "nats://127.0.0.1:1", Server: &Server{}}, "negative": {URL: "nats://127.0.0.1:1", AckWait: -1},
		"two credentials": {URL: "nats://127.0.0.1:1", User: "a", Token: "b"}, "no such file": {URL: "nats://127.0.0.1:1", NKeyFile: "/nonexistent"},
	} {
		if b, err := Connect(t.Context(), c); err == nil {
			b.Close()
			t.Errorf("%s: accepted", name)
		}
	}
	for _, listen := range []string{"0.0.0.0:0", "192.0.2.1:4222", ":4222", "x", "127.0.0.1:99999", "127.0.0.1:x"} {
		if s, err := Embedded("", listen, nil); err == nil {
			s.Close()
			t.Errorf("listens on %s", listen)
		}
	}
	if !olderThan("2.13.9", serverVersionMin) || olderThan("2.14.0", serverVersionMin) || olderThan("3.0.0-beta", serverVersionMin) || olderThan("x", serverVersionMin) {
		t.Error("versions are compared wrongly")
	}
}
