package natsbus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/internal/wire"
)

const (
	// queuesMax bounds the consumers that this bus creates.
	queuesMax = 10_000
	// unackedMax bounds the messages of a queue that are with workers.
	unackedMax = 10_000
	// waitingMax bounds the pull requests of a queue.
	waitingMax = 4096
	// apiTimeout bounds one call of JetStream's API.
	apiTimeout = 5 * time.Second
	// busyFor is for how long a queue whose messages are with workers, while none asks for more, is held to be listened to.
	busyFor = 5 * time.Minute
	// deafMax: a stream that is there, but took nothing at so many looks in a row, is made anew. A server that found its disk full
	// answers no publish any more until it is restarted, also when there is room again.
	deafMax = 3
)

// topology keeps the stream and its consumers there, and knows which queues are listened to.
type topology struct {
	bus       *Bus
	kicks     chan struct{}
	announced chan announced
	// ready: the stream was there when last looked at.
	ready atomic.Bool
	// deaf: the stream is there but takes nothing; for how many looks already. Only run adds to it.
	deaf atomic.Int32
	// mute: no message was taken since a look at which the stream was deaf, be it another stream by now. For Problem.
	mute atomic.Bool
	// ttl: the stream lets messages say how long they live.
	ttl atomic.Bool
	// remade: the stream is another one, and nobody was told yet; of run alone.
	remade bool
	// fixed: the stream's settings can't be changed; of run alone.
	fixed bool
	// answers is what the outbox had counted at the first of the deaf looks; of run alone.
	answers int64

	mu      sync.Mutex
	giveUp  context.CancelFunc // of the look that is under way
	changed chan struct{}
	queues  map[wire.Queue]*queueState
	created time.Time // when the stream that was seen last was made
	full    bool      // queuesMax was reached and reported
	discard bool      // a wrong discard policy was reported
}

// queueState is what is known of a queue's consumer.
type queueState struct {
	// there: the consumer was there when last looked at. seen: it has been there before.
	there, seen bool
	// looked: listening is known.
	looked, listening bool
}

func newTopology(b *Bus) *topology {
	return &topology{bus: b, kicks: make(chan struct{}, 1), announced: make(chan announced, 256), changed: make(chan struct{}), queues: map[wire.Queue]*queueState{}}
}

// kick asks for a look at stream and consumers now.
func (t *topology) kick() {
	select {
	case t.kicks <- struct{}{}:
	default:
	}
}

// changes is closed after the next look.
func (t *topology) changes() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}

// want makes sure that q has a consumer, soon. known says that it had one when last looked at.
func (t *topology) want(q wire.Queue) (known bool) {
	t.mu.Lock()
	s := t.queues[q]
	if s == nil && len(t.queues) < queuesMax {
		t.queues[q] = &queueState{}
	}
	known = s != nil && s.there
	full := s == nil && len(t.queues) >= queuesMax && !t.full
	t.full = t.full || full
	t.mu.Unlock()
	if full {
		t.bus.log.Error("there are too many activities; new ones get no consumer", "limit", queuesMax)
	}
	if s == nil {
		t.kick()
	}
	return known
}

func (t *topology) run(ctx context.Context) {
	tick := time.NewTicker(t.bus.cfg.tempo.check)
	defer tick.Stop()
	failed := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-t.kicks:
		}
		if !t.bus.nc.IsConnected() {
			t.deaf.Store(0)
			t.look(false)
			continue
		}
		err := t.ensureUntilReconnect(ctx)
		if ctx.Err() != nil {
			return
		}
		t.look(err == nil)
		if err == nil && t.remade {
			t.remade = false
			if t.bus.cfg.OnRecreated != nil {
				t.bus.cfg.OnRecreated()
			}
		}
		if err != nil && !failed {
			t.bus.log.Warn("stream and consumers can't be looked after; trying again", "error", err)
		}
		failed = err != nil
		if failed { // not at the rate at which others kick
			select {
			case <-ctx.Done():
			case <-time.After(t.bus.cfg.tempo.retryMax / 10):
				t.kick()
			}
		}
	}
}

// ensureUntilReconnect is ensure, given up when the connection is made anew: answers to what was asked before don't come any more.
func (t *topology) ensureUntilReconnect(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t.mu.Lock()
	t.giveUp = cancel
	t.mu.Unlock()
	return t.ensure(ctx)
}

// reconnected looks at stream and consumers anew.
func (t *topology) reconnected() {
	t.mu.Lock()
	giveUp := t.giveUp
	t.mu.Unlock()
	if giveUp != nil {
		giveUp()
	}
	t.kick()
}

func (t *topology) look(ready bool) {
	t.ready.Store(ready)
	t.mu.Lock()
	close(t.changed)
	t.changed = make(chan struct{})
	t.mu.Unlock()
}

// ensure creates what is missing and learns who listens.
func (t *topology) ensure(ctx context.Context) error {
	stream, err := t.stream(ctx)
	if err != nil {
		t.deaf.Store(0)
		return err
	}
	if err := t.placeholder(ctx, stream); err != nil {
		return err
	}
	// What a worker has announced while the list is on its way isn't in it, and isn't lost.
	t.mu.Lock()
	had := map[wire.Queue]bool{}
	for q, s := range t.queues {
		had[q] = s.seen
	}
	t.mu.Unlock()
	infos, err := t.consumers(ctx, stream)
	if err != nil {
		return err
	}
	now := time.Now()
	type missing struct {
		q    wire.Queue
		lost bool
	}
	var create []missing
	t.mu.Lock()
	for q, info := range infos {
		s := t.queues[q]
		if s == nil { // made by another node, or before this one started
			s = &queueState{}
			t.queues[q] = s
		}
		s.there, s.seen, s.looked = true, true, true
		s.listening = listening(info, now)
	}
	for q, s := range t.queues {
		if infos[q] == nil && (had[q] || !s.seen) {
			create = append(create, missing{q, had[q]})
			s.there, s.looked, s.listening = false, true, false
		}
	}
	t.mu.Unlock()
	for q, info := range infos {
		if info.Config.AckWait != t.bus.cfg.AckWait {
			if err := t.consumer(ctx, q); err != nil {
				return err
			}
		}
	}
	for _, m := range create {
		if err := t.consumer(ctx, m.q); err != nil {
			return err
		}
		if m.lost {
			t.bus.counters.recreated.Add(1)
			name, _ := m.q.Consumer()
			t.bus.log.Warn("a consumer was gone and has been created again", "consumer", name)
		}
	}
	return nil
}

// stream finds or creates the stream.
func (t *topology) stream(ctx context.Context) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	stream, err := t.bus.js.Stream(ctx, wire.Stream)
	if err == nil {
		if err := t.checkStream(stream.CachedInfo().Config); err != nil {
			return nil, err
		}
		t.seen(stream.CachedInfo())
		return t.expiring(ctx, stream), nil
	}
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("stream %s: %w", wire.Stream, err)
	}
	c := t.bus.cfg
	storage := jetstream.FileStorage
	if c.Server != nil && c.Server.memory {
		storage = jetstream.MemoryStorage
	}
	stream, err = t.bus.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: wire.Stream, Description: "tasks of sagad; can be made again from its database",
		Subjects: []string{wire.TaskSubjects}, Retention: jetstream.WorkQueuePolicy, Storage: storage, Replicas: c.Replicas,
		Discard: jetstream.DiscardNew, MaxBytes: c.MaxBytes, MaxAge: c.MaxAge, Duplicates: min(wire.DuplicateWindow, c.MaxAge), AllowMsgTTL: true,
	})
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another node was faster, with other limits
		stream, err = t.bus.js.Stream(ctx, wire.Stream)
	}
	if err != nil {
		return nil, fmt.Errorf("create stream %s: %w", wire.Stream, err)
	}
	t.ttl.Store(stream.CachedInfo().Config.AllowMsgTTL)
	if !t.seen(stream.CachedInfo()) {
		t.bus.log.Info("stream created", "stream", wire.Stream)
	}
	return stream, nil
}

// seen notes which stream is there, and tells if it is another one than before, whoever made it.
func (t *topology) seen(info *jetstream.StreamInfo) (lost bool) {
	t.mu.Lock()
	lost = !t.created.IsZero() && !t.created.Equal(info.Created)
	t.created = info.Created
	t.mu.Unlock()
	if lost {
		t.bus.counters.recreated.Add(1)
		t.bus.log.Warn("the stream was gone and has been created again; its tasks are sent again from the database", "stream", wire.Stream)
		t.remade = true
	}
	return lost
}

// expiring lets the messages of a stream that was made by an older version say how long they live. Without that they stay for the
// stream's max age.
func (t *topology) expiring(ctx context.Context, stream jetstream.Stream) jetstream.Stream {
	c := stream.CachedInfo().Config
	if !c.AllowMsgTTL && !t.fixed {
		c.AllowMsgTTL = true
		updated, err := t.bus.js.UpdateStream(ctx, c)
		if err == nil {
			stream = updated
		} else {
			var refused *jetstream.APIError
			t.fixed = errors.As(err, &refused)
			t.bus.log.Warn("the stream can't be told to let messages expire; tasks that no worker takes fill it for its max age", "stream", wire.Stream, "error", err)
		}
	}
	t.ttl.Store(stream.CachedInfo().Config.AllowMsgTTL)
	return stream
}

// placeholder keeps one message in the stream that nobody consumes. When the stream's last message is acked, the server
// deletes the file that held it and begins another, under the stream's lock: with little load that would happen at every task, and
// was a third of the server's work. A new placeholder takes the place of the last, so that it lies in the newest file.
func (t *topology) placeholder(ctx context.Context, stream jetstream.Stream) error {
	if stream.CachedInfo().Config.Storage == jetstream.MemoryStorage {
		return nil
	}
	answers := t.bus.outbox.answers.Load()
	pubCtx, cancel := context.WithTimeout(ctx, t.bus.cfg.tempo.deaf)
	defer cancel()
	if _, err := t.bus.js.Publish(pubCtx, wire.PlaceholderSubject, nil); err != nil {
		if _, refused := errors.AsType[*jetstream.APIError](err); refused {
			t.deaf.Store(0)
			t.mute.Store(false)
			return nil // the stream is full; tasks will tell
		}
		if ctx.Err() == nil && errors.Is(pubCtx.Err(), context.DeadlineExceeded) && t.bus.nc.IsConnected() {
			t.unanswered(ctx, stream, answers)
		} else {
			t.deaf.Store(0)
		}
		return fmt.Errorf("stream %s: %w", wire.Stream, err)
	}
	t.deaf.Store(0)
	t.mute.Store(false)
	ctx, cancelPurge := context.WithTimeout(ctx, apiTimeout)
	defer cancelPurge()
	if err := stream.Purge(ctx, jetstream.WithPurgeSubject(wire.PlaceholderSubject), jetstream.WithPurgeKeep(1)); err != nil {
		return fmt.Errorf("stream %s: %w", wire.Stream, err)
	}
	return nil
}

// unanswered is called when the stream didn't answer a publish; answers is how many others it had answered before. A stream that has
// answered nothing for long, while its server does, is deleted: the next look makes it anew, and what was in it is sent again from the
// database. A server that is merely slow answers something now and then, or doesn't answer questions about the stream
// either. A stream with copies on several servers isn't touched: it may only have lost its majority, and can be moved by hand.
func (t *topology) unanswered(ctx context.Context, stream jetstream.Stream, answers int64) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	was := stream.CachedInfo().Created
	info, err := stream.Info(ctx)
	if err != nil || !info.Created.Equal(was) { // or another node was faster
		t.deaf.Store(0)
		return
	}
	if t.deaf.Load() == 0 {
		t.answers = answers
	}
	if t.bus.outbox.answers.Load() != t.answers {
		t.deaf.Store(0)
		return
	}
	t.mute.Store(true)
	if t.deaf.Add(1) < deafMax {
		return
	}
	if info.Config.Replicas > 1 {
		if t.deaf.Load() == deafMax {
			t.bus.log.Error("the stream takes no messages though its servers answer, perhaps since a disk was full: look at the NATS servers, and restart the stream's leader",
				"stream", wire.Stream)
		}
		return
	}
	t.bus.log.Warn("the stream takes no messages though its server answers, perhaps since its disk was full; it is made anew, and its tasks are sent again from the database",
		"stream", wire.Stream)
	if err := t.bus.js.DeleteStream(ctx, wire.Stream); err != nil {
		t.bus.log.Warn("the stream can't be deleted; it is tried again: make room on the NATS server's disk, or restart the server", "stream", wire.Stream, "error", err)
		return
	}
	t.deaf.Store(0)
}

// checkStream looks for changes by an administrator that would hurt.
func (t *topology) checkStream(c jetstream.StreamConfig) error {
	if c.Retention != jetstream.WorkQueuePolicy {
		return fmt.Errorf("stream %s has retention %v, not work-queue: delete it, it is created again", wire.Stream, c.Retention)
	}
	if len(c.Subjects) != 1 || c.Subjects[0] != wire.TaskSubjects {
		return fmt.Errorf("stream %s takes %v, not %s: delete it, it is created again", wire.Stream, c.Subjects, wire.TaskSubjects)
	}
	t.mu.Lock()
	wrong := c.Discard != jetstream.DiscardNew
	report := wrong && !t.discard
	t.discard = wrong
	t.mu.Unlock()
	if report {
		t.bus.log.Warn("the stream's discard policy was changed: at its limit it throws waiting tasks away, and they come late, when they are sent again; set it back to new",
			"stream", wire.Stream, "discard", c.Discard.String())
	}
	return nil
}

// consumers lists the consumers that are ours.
func (t *topology) consumers(ctx context.Context, stream jetstream.Stream) (map[wire.Queue]*jetstream.ConsumerInfo, error) {
	t.mu.Lock()
	timeout := apiTimeout + time.Duration(len(t.queues))*time.Millisecond
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	infos := map[wire.Queue]*jetstream.ConsumerInfo{}
	list := stream.ListConsumers(ctx)
	for info := range list.Info() {
		if q, err := wire.ParseConsumer(info.Name); err == nil && len(infos) < queuesMax {
			infos[q] = info
		}
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("list consumers of %s: %w", wire.Stream, err)
	}
	return infos, nil
}

// consumer creates q's consumer, or sets its limits right.
func (t *topology) consumer(ctx context.Context, q wire.Queue) error {
	name, err := q.Consumer()
	if err != nil {
		return err
	}
	subject, _ := q.TaskSubject()
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	_, err = t.bus.js.CreateOrUpdateConsumer(ctx, wire.Stream, jetstream.ConsumerConfig{
		Durable: name, FilterSubject: subject, AckPolicy: jetstream.AckExplicitPolicy, AckWait: t.bus.cfg.AckWait,
		MaxDeliver: -1, MaxAckPending: unackedMax, MaxWaiting: waitingMax,
	})
	if err != nil {
		return fmt.Errorf("create consumer %s: %w", name, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.queues[q]; s != nil {
		s.there, s.seen = true, true
	}
	return nil
}

// listening judges by a consumer's state. Workers that are fully busy don't ask for more, so messages that are with
// workers count too, for a while.
func listening(info *jetstream.ConsumerInfo, now time.Time) bool {
	if info.NumWaiting > 0 {
		return true
	}
	return info.NumAckPending > 0 && info.Delivered.Last != nil && now.Sub(*info.Delivered.Last) < busyFor
}

// Listening says whether some worker waits for tasks of the activity. What it knows is some seconds old; while it
// knows nothing it says yes. It doesn't block.
func (b *Bus) Listening(namespace, activity string, dir workerv1.Direction) bool {
	b.topology.mu.Lock()
	defer b.topology.mu.Unlock()
	s := b.topology.queues[wire.Queue{Namespace: namespace, Activity: activity, Direction: dir}]
	return s == nil || !s.looked || s.listening
}

// listen serves the announcements of workers: a worker that finds no consumer asks for it, and is answered when it is
// there, with the time.
func (t *topology) listen() error {
	_, err := t.bus.nc.QueueSubscribe(wire.AnnounceSubjects, wire.AnnounceQueue, func(m *nats.Msg) {
		t.bus.counters.announcement.Add(1)
		q, err := wire.ParseAnnounceSubject(m.Subject)
		if err != nil || !wire.ReplyAllowed(m.Reply) {
			t.bus.counters.unanswerable.Add(1)
			return
		}
		known := t.want(q)
		switch {
		case known && len(m.Data) > 0: // but the worker can't find it
			t.kick()
			return
		case known:
			t.welcome(m.Reply)
			return
		}
		select {
		case t.announced <- announced{q, m.Reply}:
		default: // too many at once: it asks again, and run creates the consumer meanwhile
		}
	})
	return err
}

type announced struct {
	q     wire.Queue
	reply string
}

// greet creates the consumers of announced queues, apart from the subscription since that takes its time, until ctx ends.
func (t *topology) greet(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-t.announced:
			t.mu.Lock()
			s := t.queues[a.q]
			refused, there := s == nil, s != nil && s.there
			t.mu.Unlock()
			if refused {
				continue
			}
			if !there {
				if err := t.consumer(ctx, a.q); err != nil {
					t.bus.log.Debug("an announced consumer can't be created yet", "error", err)
					t.kick()
					continue
				}
			}
			t.welcome(a.reply)
		}
	}
}

func (t *topology) welcome(to string) {
	_ = t.bus.nc.PublishMsg(&nats.Msg{Subject: to, Header: nats.Header{
		wire.HeaderTime: {strconv.FormatInt(time.Now().UnixMicro(), 10)}}})
}
