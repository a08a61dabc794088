// Package servertest has what tests of the API and its clients need in place of a message broker and workers.
package servertest

import (
	"sync"
	"sync/atomic"

	"github.com/sagad/sagad/internal/wire"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
)

// Bus is an engine's bus that gives each task to a function at once, as a worker would do it, and takes the result back.
// It isn't for production: what it can't deliver is gone.
type Bus struct {
	// Work does a task. No result: the worker never answers.
	Work func(*workerv1.Task) *workerv1.Result

	deaf atomic.Bool

	mu    sync.Mutex
	serve map[int]func(*workerv1.ResultPack, func(*workerv1.ResultReply))
	peers []*Bus
}

// NewBus makes a bus.
func NewBus(work func(*workerv1.Task) *workerv1.Result) *Bus {
	return &Bus{Work: work, serve: map[int]func(*workerv1.ResultPack, func(*workerv1.ResultReply)){}}
}

// Join makes buses of several nodes one.
func Join(buses ...*Bus) {
	for _, b := range buses {
		b.mu.Lock()
		b.peers = buses
		b.mu.Unlock()
	}
}

// Publish implements the engine's bus.
func (b *Bus) Publish(tasks []*workerv1.Task) {
	for _, t := range tasks {
		go func() {
			result := b.Work(t)
			if result == nil {
				return
			}
			result.Token = t.Token
			b.deliver(result)
		}()
	}
}

func (b *Bus) deliver(result *workerv1.Result) {
	shard, _ := wire.TokenShard(result.Token)
	b.mu.Lock()
	peers := b.peers
	b.mu.Unlock()
	for _, p := range append([]*Bus{b}, peers...) {
		p.mu.Lock()
		handle := p.serve[shard]
		p.mu.Unlock()
		if handle != nil {
			handle(&workerv1.ResultPack{Results: []*workerv1.Result{result}}, func(*workerv1.ResultReply) {})
			return
		}
	}
}

// Stop implements the engine's bus: work isn't told.
func (b *Bus) Stop(string, string, []*workerv1.Stop) {}

// Serve implements the engine's bus.
func (b *Bus) Serve(shard int, handle func(*workerv1.ResultPack, func(*workerv1.ResultReply))) (func(), error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.serve[shard] = handle
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.serve, shard)
	}, nil
}

// Listening implements the engine's bus.
func (b *Bus) Listening(string, string, workerv1.Direction) bool { return !b.deaf.Load() }

// Deaf says whether no worker listens. Tasks are given to the function all the same.
func (b *Bus) Deaf(deaf bool) { b.deaf.Store(deaf) }

// Healthy implements the engine's bus.
func (*Bus) Healthy() bool { return true }
