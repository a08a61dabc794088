package natsbus

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/internal/wire"
)

const (
	// keptMax bounds the attempts that are remembered; of others a second sending goes out unasked.
	keptMax = 100_000
	// keptTimeout bounds the question whether the stream still has a message.
	keptTimeout = 2 * time.Second
	// keptSweep is how often what is past its deadline is forgotten.
	keptSweep = 10 * time.Second
)

// kept remembers where the tasks of long attempts lie. The engine sends an attempt again when no result has come for
// long, since NATS may have lost it. While the stream still has the message, that would be a second call for work that
// waits for a worker, or that one is busy with: then it isn't sent.
type kept struct {
	bus       *Bus
	questions chan []*workerv1.Task
	stream    jetstream.Stream // once it was looked up; of run alone

	mu     sync.Mutex
	places map[attempt]place
}

// attempt names an attempt, whatever the number of its sending.
type attempt struct {
	key string
	n   int32
}

// place is where an attempt's task is.
type place struct {
	// seq is 0 until the stream has it.
	seq   uint64
	msgID string
	until time.Time
}

func newKept(b *Bus) *kept {
	return &kept{bus: b, questions: make(chan []*workerv1.Task, 64), places: map[attempt]place{}}
}

// long says that an attempt may well run when the engine sends it again.
func (k *kept) long(t *workerv1.Task) bool {
	return time.Duration(t.TimeoutUs)*time.Microsecond > k.bus.cfg.AckWait
}

// put notes that a message waits to be taken by the stream.
func (k *kept) put(g *outgoing) {
	if len(g.long) == 0 {
		return
	}
	id := g.msg.Header.Get(wire.HeaderMsgID)
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, a := range g.long {
		if _, known := k.places[a]; known || len(k.places) < keptMax {
			k.places[a] = place{msgID: id, until: g.deadline}
		}
	}
}

// taken notes where in the stream a message is.
func (k *kept) taken(g *outgoing, seq uint64) {
	if len(g.long) == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, a := range g.long {
		if p, known := k.places[a]; known {
			p.seq = seq
			k.places[a] = p
		}
	}
}

// forget lets the next sending of an attempt go out unasked.
func (k *kept) forget(a attempt) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.places, a)
}

// doubt splits tasks into those that are to be sent, and those that the stream may have.
func (k *kept) doubt(tasks []*workerv1.Task) (send, doubtful []*workerv1.Task) {
	again := false
	for _, t := range tasks {
		again = again || t.Dispatch > 1 && k.long(t)
	}
	if !again {
		return tasks, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range tasks {
		if _, known := k.places[attempt{t.IdempotencyKey, t.Attempt}]; known && t.Dispatch > 1 {
			doubtful = append(doubtful, t)
		} else {
			send = append(send, t)
		}
	}
	return send, doubtful
}

// run finds out what became of doubtful tasks, and sends those that are lost, until ctx ends.
func (k *kept) run(ctx context.Context) {
	tick := time.NewTicker(keptSweep)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			k.mu.Lock()
			for a, p := range k.places {
				if now.After(p.until) {
					delete(k.places, a)
				}
			}
			k.mu.Unlock()
		case tasks := <-k.questions:
			var lost []*workerv1.Task
			for _, t := range tasks {
				if k.has(ctx, attempt{t.IdempotencyKey, t.Attempt}) {
					k.bus.counters.kept.Add(1)
				} else {
					lost = append(lost, t)
				}
			}
			k.bus.publish(lost)
		}
	}
}

// has says that the attempt's message waits here or in the stream. When in doubt it says no: twice is better than never.
func (k *kept) has(ctx context.Context, a attempt) bool {
	k.mu.Lock()
	p, known := k.places[a]
	k.mu.Unlock()
	if !known || p.seq == 0 {
		return known
	}
	ctx, cancel := context.WithTimeout(ctx, keptTimeout)
	defer cancel()
	if k.stream == nil {
		stream, err := k.bus.js.Stream(ctx, wire.Stream)
		if err != nil {
			return false
		}
		k.stream = stream
	}
	m, err := k.stream.GetMsg(ctx, p.seq)
	// A stream that was made anew counts from 1 again.
	if err == nil && m.Header.Get(wire.HeaderMsgID) == p.msgID {
		return true
	}
	if err == nil || errors.Is(err, jetstream.ErrMsgNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		k.mu.Lock()
		if k.places[a] == p {
			delete(k.places, a)
		}
		k.mu.Unlock()
	}
	return false
}
