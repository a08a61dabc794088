package engine

import (
	"slices"
	"sync"
	"sync/atomic"
)

// watchers are told that a saga has changed.
type watchers struct {
	// any tells how many there are, so that nobody takes the lock for nothing.
	any atomic.Int64
	mu  sync.Mutex
	of  map[sagaKey][]chan struct{}
}

func (w *watchers) ping(key sagaKey) {
	if w.any.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ch := range w.of[key] {
		select {
		case ch <- struct{}{}:
		default: // it will look anyway
		}
	}
}

// Changes tells of each commit of a saga on this node: ch gets something, not more often than it is read, so whoever
// reads looks at the store for what is new. Changes on other nodes aren't told; whoever waits for long looks now and
// then. stop ends it.
func (e *Engine) Changes(namespace, id string) (ch <-chan struct{}, stop func()) {
	key, c := sagaKey{namespace, id}, make(chan struct{}, 1)
	w := &e.watchers
	w.mu.Lock()
	if w.of == nil {
		w.of = map[sagaKey][]chan struct{}{}
	}
	w.of[key] = append(w.of[key], c)
	w.any.Add(1)
	w.mu.Unlock()
	return c, sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.any.Add(-1)
		rest := slices.DeleteFunc(w.of[key], func(x chan struct{}) bool { return x == c })
		if len(rest) == 0 {
			delete(w.of, key)
		} else {
			w.of[key] = rest
		}
	})
}
