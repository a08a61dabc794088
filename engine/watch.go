package engine

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sagad/sagad/statemachine"
)

// watchers are told that a saga has changed.
type watchers struct {
	// any tells how many there are, so that nobody takes the lock for nothing.
	any atomic.Int64
	mu  sync.Mutex
	of  map[sagaKey][]chan Change
}

// Change tells that a saga has changed.
type Change struct {
	// N is the number of its last transition, Status its status after that.
	N      int64
	Status statemachine.Status
}

func (w *watchers) tell(key sagaKey, c Change) {
	if w.any.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ch := range w.of[key] {
		select {
		case <-ch: // what hasn't been read is older
		default:
		}
		ch <- c // there is room: nobody else sends, under the lock
	}
}

// Changes tells of the commits of a saga on this node: ch has the last one that wasn't read. Changes on other nodes aren't
// told; whoever waits for long looks now and then. stop ends it.
func (e *Engine) Changes(namespace, id string) (ch <-chan Change, stop func()) {
	key, c := sagaKey{namespace, id}, make(chan Change, 1)
	w := &e.watchers
	w.mu.Lock()
	if w.of == nil {
		w.of = map[sagaKey][]chan Change{}
	}
	w.of[key] = append(w.of[key], c)
	w.any.Add(1)
	w.mu.Unlock()
	return c, sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.any.Add(-1)
		rest := slices.DeleteFunc(w.of[key], func(x chan Change) bool { return x == c })
		if len(rest) == 0 {
			delete(w.of, key)
		} else {
			w.of[key] = rest
		}
	})
}
