package engine

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// sweep searches the store, shard after shard, for sagas that aren't terminal and that no door knows of, until ctx
// ends. It isn't how sagas normally go on; it is what makes sure that a mistake or a lost write doesn't leave one lying
// for ever.
func (e *Engine) sweep(ctx context.Context) {
	wait := e.cfg.SweepEvery
	for pause(ctx, wait) {
		began := time.Now()
		e.sweepOnce(ctx)
		// A tenth of the time at most.
		wait = max(e.cfg.SweepEvery, 10*time.Since(began))
	}
}

func (e *Engine) sweepOnce(ctx context.Context) {
	for i := range e.shards {
		s := e.shards[i].Load()
		if s == nil || ctx.Err() != nil {
			continue
		}
		keys, err := e.unfinished(ctx, i)
		if err != nil {
			e.log.Warn("the sweep can't read a shard's sagas; the next one will", "shard", i, "error", err)
			continue
		}
		s.mail.sweep(keys)
	}
}

func (e *Engine) unfinished(ctx context.Context, shard int) ([]sagaKey, error) {
	var keys []sagaKey
	var after uuid.UUID
	for {
		q, cancel := context.WithTimeout(ctx, 10*time.Second)
		page, err := e.st.Unfinished(q, shard, after, pageMax)
		cancel()
		if err != nil {
			return nil, err
		}
		for i := range page {
			keys = append(keys, sagaKey{page[i].Saga.Namespace, page[i].Saga.ID})
		}
		if len(page) < pageMax {
			return keys, nil
		}
		after = page[len(page)-1].Saga.Run
	}
}
