// Package enginetest has what tests of the engine need around it: a bus in memory, workers that keep a ledger of what
// they did, and a store and a bus whose process dies at a given moment.
package enginetest

import (
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sagad/sagad/internal/wire"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
)

// Handler does what a task asks for. nil means that no result comes.
type Handler func(*workerv1.Task) *workerv1.Result

// Bus is an engine's bus in memory. Several engines may share it. Its workers each run in a goroutine; Close waits for
// them.
type Bus struct {
	mu      sync.Mutex
	serving map[int]*server
	handler Handler
	// Filter drops tasks for which it says no, as a broker that loses them.
	filter func(*workerv1.Task) bool
	tasks  []*workerv1.Task
	stops  []*workerv1.Stop
	// notes are who takes a shard's notes; lose drops the nth note, counted from 1.
	notes   map[int]*func([]byte)
	lose    func(n int) bool
	noted   int
	ids     map[string]int
	closed  chan struct{}
	workers sync.WaitGroup
}

type server struct {
	handle func(*workerv1.ResultPack, func(*workerv1.ResultReply))
}

// NewBus makes a bus. Without a handler tasks wait to be taken.
func NewBus(handler Handler) *Bus {
	return &Bus{serving: map[int]*server{}, notes: map[int]*func([]byte){}, ids: map[string]int{}, handler: handler, closed: make(chan struct{})}
}

// Filter sets which tasks arrive.
func (b *Bus) Filter(keep func(*workerv1.Task) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.filter = keep
}

// Publish takes tasks. A message id that was used before is swallowed, as a broker's duplicate window does.
func (b *Bus) Publish(tasks []*workerv1.Task) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range tasks {
		id := wire.MessageID(t.IdempotencyKey, t.Attempt, t.Dispatch, 1)
		b.ids[id]++
		if b.ids[id] > 1 || b.filter != nil && !b.filter(t) {
			continue
		}
		t = proto.CloneOf(t)
		b.tasks = append(b.tasks, t)
		if b.handler != nil {
			b.workers.Go(func() { b.work(t) })
		}
	}
}

func (b *Bus) work(t *workerv1.Task) {
	r := b.handler(t)
	if r == nil {
		return
	}
	if r.Token == nil {
		r.Token = t.Token
	}
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		switch b.Report(r) {
		case workerv1.Verdict_VERDICT_NOT_OWNER, workerv1.Verdict_VERDICT_UNAVAILABLE, workerv1.Verdict_VERDICT_UNSPECIFIED:
		default:
			return
		}
		select {
		case <-b.closed:
			return
		case <-time.After(wait):
		}
	}
}

// Report sends a result to its shard's owner and returns the verdict; VERDICT_UNSPECIFIED if nobody serves the shard or
// no answer comes within 5 s.
func (b *Bus) Report(r *workerv1.Result) workerv1.Verdict {
	shard, _ := wire.TokenShard(r.Token)
	return b.ReportTo(shard, r)[0]
}

// ReportTo sends results to a shard's owner, in one pack.
func (b *Bus) ReportTo(shard int, results ...*workerv1.Result) []workerv1.Verdict {
	none := make([]workerv1.Verdict, len(results))
	b.mu.Lock()
	s := b.serving[shard]
	b.mu.Unlock()
	if s == nil {
		return none
	}
	answer := make(chan []workerv1.Verdict, 1)
	s.handle(&workerv1.ResultPack{Results: results}, func(r *workerv1.ResultReply) { answer <- r.Verdicts })
	t := time.NewTimer(5 * time.Second)
	defer t.Stop()
	select {
	case v := <-answer:
		return v
	case <-t.C:
		return none
	}
}

// Serve lets an engine take a shard's results. The last one to serve gets them.
func (b *Bus) Serve(shard int, handle func(*workerv1.ResultPack, func(*workerv1.ResultReply))) (func(), error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &server{handle}
	b.serving[shard] = s
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.serving[shard] == s {
			delete(b.serving, shard)
		}
	}, nil
}

// Listening: somebody always is, if there is a handler.
func (b *Bus) Listening(string, string, workerv1.Direction) bool { return b.handler != nil }

// LoseNotes sets which notes between sagas are lost: the nth, counted from 1.
func (b *Bus) LoseNotes(lose func(n int) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lose = lose
}

// Tell carries a note to the engine that takes the shard's.
func (b *Bus) Tell(shard int, sealed []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.noted++
	if handle := b.notes[shard]; handle != nil && (b.lose == nil || !b.lose(b.noted)) {
		b.workers.Go(func() { (*handle)(sealed) })
	}
}

// Noted counts the notes that went over the bus.
func (b *Bus) Noted() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.noted
}

// ServeNotes lets an engine take a shard's notes. The last one to serve gets them.
func (b *Bus) ServeNotes(shard int, handle func([]byte)) (func(), error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := &handle
	b.notes[shard] = h
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.notes[shard] == h {
			delete(b.notes, shard)
		}
	}, nil
}

// Stop keeps the stops for [Bus.Stops].
func (b *Bus) Stop(_, _ string, stops []*workerv1.Stop) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stops = append(b.stops, stops...)
}

// Stops are all that were sent so far, in order.
func (b *Bus) Stops() []*workerv1.Stop {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*workerv1.Stop(nil), b.stops...)
}

// Healthy is true.
func (b *Bus) Healthy() bool { return true }

// Tasks are all that have arrived so far, in order.
func (b *Bus) Tasks() []*workerv1.Task {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*workerv1.Task(nil), b.tasks...)
}

// Published counts how often each message id was given to the bus.
func (b *Bus) Published() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	ids := make(map[string]int, len(b.ids))
	for id, n := range b.ids {
		ids[id] = n
	}
	return ids
}

// Close ends the workers' attempts to report and waits for them.
func (b *Bus) Close() {
	b.mu.Lock()
	select {
	case <-b.closed:
	default:
		close(b.closed)
	}
	b.mu.Unlock()
	b.workers.Wait()
}
