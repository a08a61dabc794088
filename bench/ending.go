package main

import (
	"context"
	"sync"

	"github.com/sagad/sagad/store"
)

// endings is a store that tells when sagas have ended: as soon as the commit that ended them is durable. The load waits on this, in the
// engine's process, as the peer's load waits for results in the peer's process.
type endings struct {
	store.Store

	mu      sync.Mutex
	waiting map[string]chan<- store.Status // by saga id
}

// expect makes the end of a saga known to ch, which must have room.
func (e *endings) expect(id string, ch chan<- store.Status) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waiting == nil {
		e.waiting = map[string]chan<- store.Status{}
	}
	e.waiting[id] = ch
}

// Commit implements store.Store.
func (e *endings) Commit(ctx context.Context, batches []store.Batch) ([]store.Result, error) {
	results, err := e.Store.Commit(ctx, batches)
	if len(results) != len(batches) {
		return results, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, r := range results {
		if r != store.Committed && r != store.Already {
			continue
		}
		for j := range batches[i].Transitions {
			if s := batches[i].Transitions[j].Saga; s != nil && s.Status.Terminal() {
				if ch, ok := e.waiting[s.ID]; ok {
					delete(e.waiting, s.ID)
					ch <- s.Status
				}
			}
		}
	}
	return results, err
}
