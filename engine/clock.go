package engine

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// clock tells the database's time, by an offset to this process's monotonic clock. It is never ahead, so timers never
// fire early: a measurement takes the database's time to be that of the moment when the answer arrived.
type clock struct {
	at atomic.Pointer[clockSample]
}

type clockSample struct {
	database statemachine.Micros
	local    time.Time
}

// measure asks the store. An answer that took long is used only if there is no other.
func (c *clock) measure(ctx context.Context, st store.Store) error {
	sent := time.Now()
	now, err := st.Now(ctx)
	if err != nil {
		return err
	}
	local := time.Now()
	if local.Sub(sent) > clockRoundTripMax && c.at.Load() != nil {
		return nil
	}
	c.at.Store(&clockSample{database: now.UnixMicro(), local: local})
	return nil
}

func (c *clock) now() statemachine.Micros {
	at := c.at.Load()
	return at.database + time.Since(at.local).Microseconds()
}

// run measures until ctx ends.
func (c *clock) run(ctx context.Context, st store.Store, failed func(error)) {
	t := time.NewTicker(clockEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		m, cancel := context.WithTimeout(ctx, clockRoundTripMax*5)
		if err := c.measure(m, st); err != nil && ctx.Err() == nil {
			failed(err)
		}
		cancel()
	}
}
