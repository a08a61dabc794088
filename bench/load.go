package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// The limits of a load.
const (
	inflightMax    = 4096  // closed loop
	outstandingMax = 2_000 // open loop: sagas begun and not ended
	lagMax         = time.Second
)

// load is what one run does: a closed loop of InFlight sagas, or an open one that begins Rate sagas per second.
type load struct {
	InFlight int
	Rate     float64
	Warmup   float64 // seconds
	Seconds  float64
}

// latencies of the measured time, sorted.
type latencies []time.Duration

// percentile is by nearest rank, in milliseconds; 0 if there are no latencies.
func (l latencies) percentile(p float64) float64 {
	if len(l) == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(len(l))))
	return float64(l[max(rank, 1)-1]) / float64(time.Millisecond)
}

// drive runs sagas through the warm-up and the measured time, and returns when none is in flight. The first error stops
// it. In a closed loop the sagas that ended within the measured time count, in an open loop those that began. mark is called
// when the measured time begins and ends.
func drive(ctx context.Context, l load, mark func(begin bool) error, saga func(context.Context) error) (latencies, error) {
	begin := time.Now()
	from := begin.Add(seconds(l.Warmup))
	until := from.Add(seconds(l.Seconds))
	var (
		mu  sync.Mutex
		all latencies
	)
	add := func(l ...time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, l...)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		for _, m := range []struct {
			at    time.Time
			begin bool
		}{{from, true}, {until, false}} {
			if err := wait(ctx, m.at); err != nil {
				return err
			}
			if err := mark(m.begin); err != nil {
				return err
			}
		}
		return nil
	})
	if l.Rate > 0 {
		g.Go(func() error { return open(ctx, g, l.Rate, begin, from, until, saga, add) })
	} else {
		for range l.InFlight {
			g.Go(func() error { return closed(ctx, from, until, saga, add) })
		}
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	slices.Sort(all)
	return all, nil
}

// closed runs one saga after the other.
func closed(ctx context.Context, from, until time.Time, saga func(context.Context) error, add func(...time.Duration)) error {
	var took []time.Duration
	for ctx.Err() == nil {
		start := time.Now()
		if !start.Before(until) {
			break
		}
		if err := saga(ctx); err != nil {
			return err
		}
		if end := time.Now(); !end.Before(from) && end.Before(until) {
			took = append(took, end.Sub(start))
		}
	}
	add(took...)
	return ctx.Err()
}

// open begins sagas at even intervals, whatever became of the earlier ones. It gives up rather than report a rate that
// wasn't held.
func open(ctx context.Context, g *errgroup.Group, rate float64, begin, from, until time.Time, saga func(context.Context) error, add func(...time.Duration)) error {
	var outstanding atomic.Int64
	for i := 0; ; i++ {
		due := begin.Add(seconds(float64(i) / rate))
		if !due.Before(until) {
			return nil
		}
		if err := wait(ctx, due); err != nil {
			return err
		}
		start := time.Now()
		if lag := start.Sub(due); lag > lagMax {
			return fmt.Errorf("sagas are begun %v late: this machine can't begin %v per second", lag, rate)
		}
		if outstanding.Add(1) > outstandingMax {
			return fmt.Errorf("more than %d sagas are in flight: %v per second can't be held", outstandingMax, rate)
		}
		measured := !due.Before(from)
		g.Go(func() error {
			defer outstanding.Add(-1)
			if err := saga(ctx); err != nil {
				return err
			}
			if measured {
				add(time.Since(start))
			}
			return nil
		})
	}
}

func wait(ctx context.Context, at time.Time) error {
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
