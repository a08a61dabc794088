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
	// hand is this process's monotonic clock where it isn't the real one; nil: it is.
	hand func() time.Time
}

type clockSample struct {
	database statemachine.Micros
	local    time.Time
}

// measure asks the store. An answer that took long is used only if there is no other.
func (c *clock) measure(ctx context.Context, st store.Store) error {
	sent := c.local()
	now, err := st.Now(ctx)
	if err != nil {
		return err
	}
	local := c.local()
	if local.Sub(sent) > clockRoundTripMax && c.at.Load() != nil {
		return nil
	}
	c.at.Store(&clockSample{database: now.UnixMicro(), local: local})
	return nil
}

func (c *clock) now() statemachine.Micros {
	at := c.at.Load()
	return at.database + c.since(at.local).Microseconds()
}

// local is this process's monotonic clock.
func (c *clock) local() time.Time {
	if c.hand != nil {
		return c.hand()
	}
	return time.Now()
}

func (c *clock) since(t time.Time) time.Duration {
	if c.hand != nil {
		return c.hand().Sub(t)
	}
	return time.Since(t)
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
