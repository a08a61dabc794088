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

// committer puts the batches of many shards into one commit. While one is under way the next gather, so commits grow with
// the load by themselves and a lone batch isn't delayed. Further commits are begun beside it only for a backlog: many small
// ones would cost more than they gain.
type committer struct {
	st      store.Committer
	queue   <-chan *commit
	metrics *metrics
	log     *slog.Logger
	fault   func(string)
	// atOnce is how many commits are under way at most.
	atOnce int
}

// run commits until the queue is closed, and what was under way is settled.
func (c *committer) run() {
	done := make(chan struct{}, c.atOnce)
	queue := c.queue
	var waiting []*commit
	transitions, flying := 0, 0
	take := func(x *commit, ok bool) {
		if !ok {
			queue = nil
			return
		}
		waiting = append(waiting, x)
		transitions += x.transitions
	}
	for queue != nil || len(waiting) > 0 || flying > 0 {
		for more := queue != nil; more; {
			select {
			case x, ok := <-queue:
				take(x, ok)
				more = ok
			default:
				more = false
			}
		}
		if len(waiting) > 0 && (flying == 0 || flying < c.atOnce && transitions >= commitBesideMin) {
			group, n := c.gather(waiting)
			waiting = append([]*commit(nil), waiting[len(group):]...)
			transitions -= n
			flying++
			go func() {
				c.commit(group, n)
				done <- struct{}{}
			}()
			continue
		}
		if queue == nil && flying == 0 {
			continue
		}
		select {
		case x, ok := <-queue:
			take(x, ok)
		case <-done:
			flying--
		}
	}
}

// gather takes as many as go into one commit, one at least.
func (c *committer) gather(waiting []*commit) (group []*commit, transitions int) {
	n, bytes := 1, waiting[0].bytes
	transitions = waiting[0].transitions
	for ; n < len(waiting); n++ {
		x := waiting[n]
		if transitions+x.transitions > commitTransitionsMax || bytes+x.bytes > commitBytesMax {
			break
		}
		transitions += x.transitions
		bytes += x.bytes
	}
	return waiting[:n:n], transitions
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
