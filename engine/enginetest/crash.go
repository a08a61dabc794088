package enginetest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/store"
)

var errDead = errors.New("the process is dead")

// Process is what one engine sees of the world. After Kill nothing that the engine does gets out any more, as if its
// process had been killed at that moment; the world itself goes on.
type Process struct {
	store.Store
	bus  *Bus
	dead atomic.Bool
	mu   sync.Mutex
	// stops end what it serves on the bus, as a broken connection does.
	stops []func()
}

// NewProcess makes a process that uses st and bus.
func NewProcess(st store.Store, bus *Bus) *Process { return &Process{Store: st, bus: bus} }

// Kill ends it.
func (p *Process) Kill() {
	p.dead.Store(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, stop := range p.stops {
		stop()
	}
	p.stops = nil
}

func (p *Process) Commit(ctx context.Context, batches []store.Batch) ([]store.Result, error) {
	if p.dead.Load() {
		return make([]store.Result, len(batches)), errDead
	}
	return p.Store.Commit(ctx, batches)
}

func (p *Process) Acquire(ctx context.Context, n store.Node, shards []int, ttl time.Duration) ([]store.Grant, error) {
	if p.dead.Load() {
		return nil, errDead
	}
	return p.Store.Acquire(ctx, n, shards, ttl)
}

func (p *Process) Renew(ctx context.Context, n store.Node, ttl time.Duration) ([]int, error) {
	if p.dead.Load() {
		return nil, errDead
	}
	return p.Store.Renew(ctx, n, ttl)
}

func (p *Process) Release(ctx context.Context, n store.Node, shards []int) error {
	if p.dead.Load() {
		return errDead
	}
	return p.Store.Release(ctx, n, shards)
}

func (p *Process) Beat(ctx context.Context, n store.Node, ttl time.Duration) ([]store.Node, error) {
	if p.dead.Load() {
		return nil, errDead
	}
	return p.Store.Beat(ctx, n, ttl)
}

func (p *Process) KeepStray(ctx context.Context, s store.Stray) error {
	if p.dead.Load() {
		return errDead
	}
	return p.Store.KeepStray(ctx, s)
}

// Publish, Stop, Serve, Listening and Healthy make the process a bus.
func (p *Process) Publish(tasks []*workerv1.Task) {
	if !p.dead.Load() {
		p.bus.Publish(tasks)
	}
}

func (p *Process) Stop(namespace, activity string, stops []*workerv1.Stop) {
	if !p.dead.Load() {
		p.bus.Stop(namespace, activity, stops)
	}
}

func (p *Process) Serve(shard int, handle func(*workerv1.ResultPack, func(*workerv1.ResultReply))) (func(), error) {
	if p.dead.Load() {
		return nil, errDead
	}
	stop, err := p.bus.Serve(shard, func(pack *workerv1.ResultPack, reply func(*workerv1.ResultReply)) {
		if p.dead.Load() {
			return
		}
		handle(pack, func(r *workerv1.ResultReply) {
			if !p.dead.Load() {
				reply(r)
			}
		})
	})
	p.mu.Lock()
	p.stops = append(p.stops, stop)
	p.mu.Unlock()
	return stop, err
}

// Tell and ServeNotes let sagas on other nodes be told something.
func (p *Process) Tell(shard int, sealed []byte) {
	if !p.dead.Load() {
		p.bus.Tell(shard, sealed)
	}
}

func (p *Process) ServeNotes(shard int, handle func([]byte)) (func(), error) {
	if p.dead.Load() {
		return nil, errDead
	}
	stop, err := p.bus.ServeNotes(shard, func(sealed []byte) {
		if !p.dead.Load() {
			handle(sealed)
		}
	})
	p.mu.Lock()
	p.stops = append(p.stops, stop)
	p.mu.Unlock()
	return stop, err
}

func (p *Process) Listening(ns, activity string, dir workerv1.Direction) bool {
	return p.bus.Listening(ns, activity, dir)
}

func (p *Process) Healthy() bool { return !p.dead.Load() }
