package worker

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/internal/wire"
)

const (
	pullExpires   = 30 * time.Second
	pullHeartbeat = 5 * time.Second
	// pullSilence is how long without a message or heartbeat means that the request is lost.
	pullSilence  = 12 * time.Second
	pullBatchMax = 256
	// announceEvery renews the announcement, for the clock's sake.
	announceEvery = 5 * time.Minute
)

// puller asks for the messages of one queue: for as many as there is room for, and no more, so that what one worker
// can't take goes to others.
type puller struct {
	w        *Worker
	h        *handler
	next     string // where messages are asked for
	announce string // where the consumer is asked for
	asked    string // reply subjects: of pull requests,
	greeted  string // of announcements
	sub      *nats.Subscription
	drained  chan struct{}
	pokes    chan struct{}

	mu          sync.Mutex
	pending     int       // messages that are asked for and haven't come
	heard       time.Time // when the server last said something about them
	retryAt     time.Time // no asking before
	failures    int
	announcedAt time.Time
	perMessage  float64 // tasks, on average
}

func newPuller(w *Worker, h *handler) (*puller, error) {
	p := &puller{w: w, h: h, drained: make(chan struct{}), pokes: make(chan struct{}, 1), perMessage: 4}
	var err error
	if p.next, err = h.queue.NextSubject(); err != nil {
		return nil, err
	}
	if p.announce, err = h.queue.AnnounceSubject(); err != nil {
		return nil, err
	}
	inbox := w.nc.NewInbox()
	p.asked, p.greeted = inbox+".pull", inbox+".hello"
	if p.sub, err = w.nc.Subscribe(inbox+".*", p.message); err != nil {
		return nil, err
	}
	p.sub.SetClosedHandler(func(string) { close(p.drained) })
	return p, p.sub.SetPendingLimits(64*pullBatchMax, 256<<20)
}

func (p *puller) poke() {
	select {
	case p.pokes <- struct{}{}:
	default:
	}
}

// run keeps asking until the worker's end.
func (p *puller) run() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	p.hello(nil)
	p.pull()
	for {
		retry := p.retryIn()
		var timer <-chan time.Time
		if retry > 0 && retry < time.Second {
			timer = time.After(retry)
		}
		select {
		case <-p.w.alive.Done():
			return
		case <-p.pokes:
		case <-timer:
		case now := <-tick.C:
			p.mu.Lock()
			silent := p.pending > 0 && now.Sub(p.heard) > pullSilence
			renew := now.Sub(p.announcedAt) > announceEvery
			p.mu.Unlock()
			if silent && p.w.nc.IsConnected() {
				p.w.log.Warn("no sign of the consumer; asking again", "activity", p.h.queue.Activity)
				p.lost()
			}
			if renew {
				p.hello(nil)
			}
		}
		p.pull()
	}
}

func (p *puller) retryIn() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Until(p.retryAt)
}

// pull asks for messages if there is room.
func (p *puller) pull() {
	room := p.w.desk.room()
	if room <= 0 || !p.w.nc.IsConnected() {
		return
	}
	p.mu.Lock()
	want := min(max(1, int(float64(room)/p.perMessage)/min(len(p.w.pullers), 4)), pullBatchMax)
	// Asking costs a message, so it is done for a part of the room at least.
	if time.Now().Before(p.retryAt) || p.pending > want/2 {
		p.mu.Unlock()
		return
	}
	n := want - p.pending
	p.pending = want
	p.heard = time.Now()
	p.mu.Unlock()
	body := fmt.Appendf(nil, `{"batch":%d,"expires":%d,"idle_heartbeat":%d}`, n, pullExpires, pullHeartbeat)
	if err := p.w.nc.PublishRequest(p.next, p.asked, body); err != nil {
		p.lost()
	}
}

// hello asks the engine to see to it that the consumer is there. The body "missing" says that it isn't, as far as the worker
// can tell.
func (p *puller) hello(body []byte) {
	p.mu.Lock()
	p.announcedAt = time.Now()
	p.mu.Unlock()
	_ = p.w.nc.PublishRequest(p.announce, p.greeted, body) // while disconnected it is done again later
}

// lost forgets what was asked for and asks again after a while.
func (p *puller) lost() {
	p.mu.Lock()
	p.pending = 0
	p.failures++
	p.retryAt = time.Now().Add(backOff(p.failures, 50*time.Millisecond, 2*time.Second))
	p.mu.Unlock()
	p.hello([]byte("missing"))
	p.poke()
}

func (p *puller) reconnected() {
	p.mu.Lock()
	p.pending, p.failures, p.retryAt = 0, 0, time.Time{}
	p.mu.Unlock()
	p.hello(nil)
	p.poke()
}

// drain begins to end the subscription: what has arrived is looked at first. drained is closed when that is done.
func (p *puller) drain() {
	if !p.w.nc.IsConnected() || p.sub.Drain() != nil {
		_ = p.sub.Unsubscribe() // it fails only if the connection is closed
	}
}

// message takes whatever arrives: tasks, the server's words about a pull request, the engine's greeting.
func (p *puller) message(m *nats.Msg) {
	if m.Subject == p.greeted {
		p.welcome(m)
		return
	}
	if len(m.Data) == 0 {
		if status := m.Header.Get("Status"); status != "" {
			p.status(status, m)
			return
		}
	}
	received := time.Now()
	p.mu.Lock()
	p.pending = max(0, p.pending-1)
	p.heard, p.failures = received, 0
	p.mu.Unlock()
	p.w.counters.messages.Add(1)
	if deliveryOf(m.Reply).n > 1 {
		p.w.counters.redelivered.Add(1)
	}
	p.take(m, received)
	p.pull()
}

func (p *puller) take(m *nats.Msg, received time.Time) {
	w := p.w
	pack := new(workerv1.TaskPack)
	if err := proto.Unmarshal(m.Data, pack); err != nil || len(pack.Tasks) == 0 {
		p.strange(m, "it isn't a task pack")
		return
	}
	for _, t := range pack.Tasks {
		if t.Protocol != wire.Protocol {
			p.strange(m, fmt.Sprintf("protocol version %d isn't known; upgrade the worker", t.Protocol))
			return
		}
		if t.Namespace != p.h.queue.Namespace || t.Activity != p.h.queue.Activity || t.Direction != p.h.queue.Direction {
			p.strange(m, "its task is of another activity")
			return
		}
	}
	p.mu.Lock()
	p.perMessage += (float64(len(pack.Tasks)) - p.perMessage) / 8
	p.mu.Unlock()
	w.counters.tasks.Add(int64(len(pack.Tasks)))
	w.desk.take(p.h, deliveryOf(m.Reply), m.Header.Get(wire.HeaderResultSubject), pack.Tasks, received)
}

// strange hands a message back, for a worker that understands it. A newer protocol that makes
// old workers do so must not judge such a message's deliveries as deaths.
func (p *puller) strange(m *nats.Msg, why string) {
	if p.w.counters.strange.Add(1)%100 == 1 {
		p.w.log.Warn("a message can't be served; it is handed back", "activity", p.h.queue.Activity, "why", why)
	}
	p.w.handBack(m.Reply, min(time.Duration(min(deliveryOf(m.Reply).n, 100))*strangeDelay, strangeDelayMax))
}

// status is what the server says in place of messages.
func (p *puller) status(status string, m *nats.Msg) {
	if m.Subject != p.asked {
		return
	}
	p.mu.Lock()
	p.heard = time.Now()
	p.mu.Unlock()
	switch status {
	case "100": // a heartbeat: the consumer is there
		p.mu.Lock()
		p.failures = 0
		p.mu.Unlock()
	case "404", "408": // nothing there, in the time that was given
		p.ended(m)
	case "409":
		switch m.Header.Get("Description") {
		case "Consumer Deleted":
			p.lost()
		case "Leadership Change", "Server Shutdown":
			p.mu.Lock()
			p.pending = 0
			p.mu.Unlock()
			p.poke()
		default: // a limit of the consumer
			p.ended(m)
			p.mu.Lock()
			p.failures++
			p.retryAt = time.Now().Add(backOff(p.failures, 50*time.Millisecond, 2*time.Second))
			p.mu.Unlock()
			p.poke()
		}
	default: // 503: no such consumer, or no JetStream
		p.lost()
	}
}

// ended takes off what a request that has ended still asked for.
func (p *puller) ended(m *nats.Msg) {
	left, err := strconv.Atoi(m.Header.Get("Nats-Pending-Messages"))
	p.mu.Lock()
	if p.pending -= left; err != nil || p.pending < 0 {
		p.pending = 0
	}
	p.mu.Unlock()
	p.poke()
}

// welcome is an engine's greeting. Its time tells how far off this machine's is.
func (p *puller) welcome(m *nats.Msg) {
	if m.Header.Get("Status") != "" { // no engine
		return
	}
	now := time.Now()
	p.mu.Lock()
	asked := p.announcedAt
	p.mu.Unlock()
	if at, err := strconv.ParseInt(m.Header.Get(wire.HeaderTime), 10, 64); err == nil {
		trip := now.Sub(asked)
		if trip < 2*time.Second { // else the answer is too old to tell the time by
			p.w.clock.Store(at - now.Add(-trip/2).UnixMicro())
		}
	}
}
