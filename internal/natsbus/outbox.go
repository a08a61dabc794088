package natsbus

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/internal/wire"
)

const (
	// flyingMax bounds the messages that wait for their PubAck, below what a server takes in before it refuses.
	flyingMax = 4096
	// backlogTasksMax bounds the tasks of the backlog, however small.
	backlogTasksMax = 200_000
	// packTimeoutMax: a task that may take longer gets a message of its own, so that it doesn't wait behind others of
	// its pack in one worker while other workers are idle.
	packTimeoutMax = time.Minute
	// payloadBytesMax is a NATS server's default, assumed while none is connected.
	payloadBytesMax = 1 << 20
	headerBytes     = 512
)

// Publish sends tasks at least once, packed: tasks that are published at the same moment and have namespace, activity and
// direction in common go out in messages of up to 16, but what was sent before goes alone. What NATS doesn't acknowledge is sent again under the same message id until the
// last of its tasks is past its deadline. It doesn't block, and takes tasks over. Tasks beyond the backlog's bound are dropped and
// counted; so are tasks with illegal names. A long attempt that is sent again is left alone while the stream still has its message.
func (b *Bus) Publish(tasks []*workerv1.Task) {
	b.counters.tasks.Add(int64(len(tasks)))
	send, doubtful := b.kept.doubt(tasks)
	if len(doubtful) > 0 {
		select {
		case b.kept.questions <- doubtful:
		default:
			send = append(send, doubtful...)
		}
	}
	if b.cfg.tempo.apart {
		b.publish(send)
	} else {
		b.gather.put(send)
	}
}

func (b *Bus) publish(tasks []*workerv1.Task) {
	now := time.Now()
	var packs []*pack // open ones, of different queues
	var out []*outgoing
	closePack := func(p *pack) {
		if o := b.outbox.message(p, now); o != nil {
			out = append(out, o)
		}
		p.tasks, p.bytes = nil, 0
	}
	for _, t := range tasks {
		q := wire.Queue{Namespace: t.Namespace, Activity: t.Activity, Direction: t.Direction}
		size := proto.Size(t) + 8
		var p *pack
		for _, open := range packs {
			if open.queue == q {
				p = open
				break
			}
		}
		if p == nil {
			p = &pack{queue: q}
			packs = append(packs, p)
		}
		// What is sent again may have killed a worker, or have come with what did.
		alone := time.Duration(t.TimeoutUs)*time.Microsecond > packTimeoutMax || t.Dispatch > 1
		if len(p.tasks) > 0 && (alone || len(p.tasks) >= wire.PackTasksMax || p.bytes+size > wire.PackBytesMax) {
			closePack(p)
		}
		p.tasks = append(p.tasks, t)
		p.bytes += size
		if alone {
			closePack(p)
		}
	}
	for _, p := range packs {
		if len(p.tasks) > 0 {
			closePack(p)
		}
	}
	b.outbox.put(out)
}

type pack struct {
	queue wire.Queue
	tasks []*workerv1.Task
	bytes int
}

// outgoing is a message on its way into the stream.
type outgoing struct {
	id       uint64
	msg      *nats.Msg
	bytes    int
	tasks    int
	deadline time.Time
	// long are the attempts in it that may still run when they are sent again.
	long []attempt
	// sendings so far.
	sendings int
	// sentAt is when it was last sent; retryAt when it is to be sent again, if it waits for that.
	sentAt, retryAt time.Time
}

// outbox holds what the stream hasn't taken yet. A message is in exactly one of ready, flying and retry.
type outbox struct {
	bus      *Bus
	inbox    string
	acks     *nats.Subscription
	wake     chan struct{}
	warnedAt time.Time
	// answers counts what the stream has answered, be it a refusal.
	answers atomic.Int64

	mu     sync.Mutex
	lastID uint64
	ready  []*outgoing
	flying map[uint64]*outgoing
	retry  map[uint64]*outgoing
	bytes  int
	tasks  int
}

func newOutbox(b *Bus) *outbox {
	return &outbox{bus: b, wake: make(chan struct{}, 1), flying: map[uint64]*outgoing{}, retry: map[uint64]*outgoing{}}
}

// listen subscribes to PubAcks.
func (o *outbox) listen() error {
	o.inbox = o.bus.nc.NewInbox() + "."
	sub, err := o.bus.nc.Subscribe(o.inbox+"*", o.acknowledged)
	if err != nil {
		return err
	}
	o.acks = sub
	return sub.SetPendingLimits(4*flyingMax, 16<<20)
}

// message encodes a pack. nil if it can't be sent.
func (o *outbox) message(p *pack, now time.Time) *outgoing {
	drop := func(why string, err error) *outgoing {
		o.bus.counters.droppedBad.Add(int64(len(p.tasks)))
		o.bus.log.Error("tasks can't be sent", "why", why, "error", err, "tasks", len(p.tasks), "saga", p.tasks[0].SagaId, "step", p.tasks[0].Step)
		return nil
	}
	subject, err := p.queue.TaskSubject()
	if err != nil {
		return drop("illegal name", err)
	}
	o.bus.topology.want(p.queue)
	body := &workerv1.TaskPack{Tasks: p.tasks}
	size := proto.Size(body)
	if limit := o.payloadMax() - headerBytes; size > limit {
		return drop("larger than the NATS server's max_payload", nil)
	}
	data, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(make([]byte, 0, size), body)
	if err != nil {
		return drop("can't be encoded", err)
	}
	first := p.tasks[0]
	header := nats.Header{
		wire.HeaderMsgID:    {wire.MessageID(first.IdempotencyKey, first.Attempt, first.Dispatch, len(p.tasks))},
		wire.HeaderProtocol: {strconv.Itoa(wire.Protocol)},
	}
	if shard, ok := wire.TokenShard(first.Token); ok {
		header[wire.HeaderResultSubject] = []string{wire.ResultSubject(shard)}
	}
	if len(p.tasks) == 1 && first.Traceparent != "" && !strings.ContainsAny(first.Traceparent, "\r\n") {
		header[wire.HeaderTraceparent] = []string{first.Traceparent}
	}
	g := &outgoing{msg: &nats.Msg{Subject: subject, Header: header, Data: data}, bytes: size + headerBytes, tasks: len(p.tasks)}
	for _, t := range p.tasks {
		// By this process's own clock from now on; the worker drops what comes too late.
		d := now.Add(time.Duration(t.TimeoutUs) * time.Microsecond)
		if t.TimeoutUs <= 0 {
			d = time.UnixMicro(t.DeadlineUs)
		}
		if d.After(g.deadline) {
			g.deadline = d
		}
		if o.bus.kept.long(t) {
			g.long = append(g.long, attempt{t.IdempotencyKey, t.Attempt})
		}
	}
	if o.bus.topology.ttl.Load() {
		// Whole seconds: the server knows no less.
		header[jetstream.MsgTTLHeader] = []string{strconv.FormatInt(int64((max(g.deadline.Sub(now), 0)+o.bus.cfg.tempo.ttlMargin).Seconds())+1, 10)}
	}
	return g
}

func (o *outbox) payloadMax() int {
	if n := o.bus.nc.MaxPayload(); n > 0 {
		return int(n)
	}
	return payloadBytesMax
}

func (o *outbox) put(out []*outgoing) {
	full, put := 0, 0
	o.mu.Lock()
	for _, g := range out {
		if o.bytes+g.bytes > o.bus.cfg.BacklogBytesMax || o.tasks+g.tasks > backlogTasksMax {
			full += g.tasks
			continue
		}
		o.lastID++
		g.id = o.lastID
		g.msg.Reply = o.inbox + strconv.FormatUint(g.id, 36)
		o.bytes += g.bytes
		o.tasks += g.tasks
		o.ready = append(o.ready, g)
		o.bus.kept.put(g)
		put++
	}
	warn := full > 0 && time.Since(o.warnedAt) > 10*time.Second
	if warn {
		o.warnedAt = time.Now()
	}
	o.mu.Unlock()
	o.bus.counters.messages.Add(int64(put))
	o.bus.counters.droppedFull.Add(int64(full))
	if warn {
		o.bus.log.Warn("the backlog of tasks for NATS is full; dropped tasks are sent again later", "dropped", full, "limit_bytes", o.bus.cfg.BacklogBytesMax)
	}
	o.poke()
}

func (o *outbox) poke() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// run sends until ctx ends.
func (o *outbox) run(ctx context.Context) {
	tick := time.NewTicker(o.bus.cfg.tempo.sweep)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.wake:
		case <-tick.C:
			o.sweep(time.Now())
		}
		o.send(ctx)
	}
}

// send sends what is ready, as far as the window goes.
func (o *outbox) send(ctx context.Context) {
	const batchMax = 256
	var batch [batchMax]*outgoing
	for ctx.Err() == nil && o.bus.nc.IsConnected() {
		o.mu.Lock()
		n := min(len(o.ready), batchMax, flyingMax-len(o.flying))
		now := time.Now()
		for i, g := range o.ready[:n] {
			g.sentAt = now
			g.sendings++
			o.flying[g.id] = g
			batch[i] = g
		}
		clear(o.ready[:n])
		o.ready = o.ready[n:]
		if len(o.ready) == 0 {
			o.ready = nil
		}
		o.mu.Unlock()
		if n == 0 {
			return
		}
		for i, g := range batch[:n] {
			if g.sendings > 1 {
				o.bus.counters.retried.Add(1)
			}
			if err := o.bus.nc.PublishMsg(g.msg); err != nil {
				o.failed(g.id)
			}
			batch[i] = nil
		}
	}
}

// acknowledged takes a PubAck, or what came in its place.
func (o *outbox) acknowledged(m *nats.Msg) {
	id, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, o.inbox), 36, 64)
	if err != nil {
		return
	}
	var ack struct {
		Stream    string `json:"stream"`
		Seq       uint64 `json:"seq"`
		Duplicate bool   `json:"duplicate"`
		Error     *struct {
			Code        int    `json:"code"`
			ErrCode     int    `json:"err_code"`
			Description string `json:"description"`
		} `json:"error"`
	}
	switch {
	case len(m.Data) == 0: // nobody listens: the stream is gone, or JetStream is
		o.failed(id)
		o.bus.topology.kick()
	case json.Unmarshal(m.Data, &ack) != nil, ack.Error == nil && ack.Stream == "":
		o.failed(id)
	case ack.Error != nil:
		const streamNotFound, ttlDisabled = 10059, 10166
		o.answers.Add(1)
		o.failed(id)
		if ack.Error.ErrCode == streamNotFound || ack.Error.ErrCode == ttlDisabled {
			o.bus.topology.kick()
		}
		o.refused(ack.Error.Description)
	default:
		o.answers.Add(1)
		o.mu.Lock()
		for _, where := range []map[uint64]*outgoing{o.flying, o.retry} { // a late one may find it waiting for its retry
			if g := where[id]; g != nil {
				delete(where, id)
				o.forget(g)
				o.bus.kept.taken(g, ack.Seq)
			}
		}
		more := len(o.ready) > 0
		o.mu.Unlock()
		o.bus.counters.acked.Add(1)
		if ack.Duplicate {
			o.bus.counters.duplicates.Add(1)
		}
		if more {
			o.poke()
		}
	}
}

// refused says at most every 10 s that the stream takes nothing: it is full, or its disk is.
func (o *outbox) refused(why string) {
	o.mu.Lock()
	warn := time.Since(o.warnedAt) > 10*time.Second
	if warn {
		o.warnedAt = time.Now()
	}
	o.mu.Unlock()
	if warn {
		o.bus.log.Warn("NATS refuses tasks; they are kept and sent again", "why", why)
	}
}

// forget takes g, which is in none of the collections any more, off the account. The lock is held.
func (o *outbox) forget(g *outgoing) {
	o.bytes -= g.bytes
	o.tasks -= g.tasks
}

// failed plans the next sending of a message in flight.
func (o *outbox) failed(id uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	g := o.flying[id]
	if g == nil {
		return
	}
	delete(o.flying, id)
	t := o.bus.cfg.tempo
	ceiling := min(t.retryMin<<min(g.sendings-1, 16), t.retryMax)
	g.retryAt = time.Now().Add(ceiling/2 + rand.N(ceiling/2+1))
	o.retry[g.id] = g
}

// sweep sends again what wasn't acknowledged in time, and lets go what is past its deadline.
func (o *outbox) sweep(now time.Time) {
	late := 0
	connected := o.bus.nc.IsConnected()
	o.mu.Lock()
	for id, g := range o.flying {
		if now.After(g.deadline) {
			delete(o.flying, id)
			o.forget(g)
			late += g.tasks
		} else if connected && now.Sub(g.sentAt) > o.bus.cfg.tempo.ackSilence {
			delete(o.flying, id)
			o.ready = append(o.ready, g)
		}
	}
	for id, g := range o.retry {
		if now.After(g.deadline) {
			delete(o.retry, id)
			o.forget(g)
			late += g.tasks
		} else if now.After(g.retryAt) {
			delete(o.retry, id)
			o.ready = append(o.ready, g)
		}
	}
	if !connected { // else they are about to be sent
		kept := o.ready[:0]
		for _, g := range o.ready {
			if now.After(g.deadline) {
				o.forget(g)
				late += g.tasks
			} else {
				kept = append(kept, g)
			}
		}
		clear(o.ready[len(kept):])
		o.ready = kept
	}
	o.mu.Unlock()
	o.bus.counters.droppedLate.Add(int64(late))
}

// reconnected sends all again whose PubAck the lost connection may have swallowed.
func (o *outbox) reconnected() {
	o.mu.Lock()
	for _, where := range []map[uint64]*outgoing{o.flying, o.retry} {
		for _, g := range where {
			o.ready = append(o.ready, g)
		}
		clear(where)
	}
	o.mu.Unlock()
	o.poke()
}

func (o *outbox) backlog() (bytes, tasks int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return int64(o.bytes), int64(o.tasks)
}
