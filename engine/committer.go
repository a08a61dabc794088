package engine

import (
	"context"
	"log/slog"
	"time"

	"github.com/sagad/sagad/store"
)

// commit is a shard's batch on its way to the store.
type commit struct {
	batch       *store.Batch
	bytes       int
	transitions int
	// done gets the outcome; it has room for it.
	done chan<- committed
}

// committed is what is known of a commit. cause tells why it is unknown or refused.
type committed struct {
	result store.Result
	cause  error
}

// committer puts the batches of many shards into one commit. Several of them share a queue.
type committer struct {
	st      store.Committer
	queue   <-chan *commit
	metrics *metrics
	log     *slog.Logger
	fault   func(string)
}

// run commits until the queue is closed.
func (c *committer) run() {
	var held *commit // taken, but too much for the commit before
	for {
		first := held
		held = nil
		if first == nil {
			var ok bool
			if first, ok = <-c.queue; !ok {
				return
			}
		}
		group := []*commit{first}
		transitions, bytes := first.transitions, first.bytes
	gather:
		for {
			select {
			case next, ok := <-c.queue:
				if !ok {
					break gather
				}
				if transitions+next.transitions > commitTransitionsMax || bytes+next.bytes > commitBytesMax {
					held = next
					break gather
				}
				group = append(group, next)
				transitions += next.transitions
				bytes += next.bytes
			default:
				break gather
			}
		}
		c.commit(group, transitions)
	}
}

func (c *committer) commit(group []*commit, transitions int) {
	batches := make([]store.Batch, len(group))
	for i, x := range group {
		batches[i] = *x.batch
	}
	c.fault(BeforeCommit)
	began := time.Now()
	// Never a caller's context: a commit that has been sent isn't called back. The store bounds the time.
	results, err := c.st.Commit(context.Background(), batches)
	c.metrics.commit(time.Since(began), transitions)
	c.fault(AfterCommit)
	if len(results) != len(group) {
		// The store broke its contract: nothing is known.
		c.log.Error("the store answered another number of batches than it was given",
			"batches", len(group), "answers", len(results), "error", err)
		results = make([]store.Result, len(group))
	}
	for i, x := range group {
		r := results[i]
		c.metrics.commits[r].Inc()
		if r == store.Refused && len(group) > 1 {
			// Perhaps because of another shard's batch: each by itself.
			c.commit([]*commit{x}, x.transitions)
			continue
		}
		x.done <- committed{result: r, cause: err}
	}
}
