package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"

	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

// workerConfig is what the worker's process is told first.
type workerConfig struct {
	NATS string
	// Refuse: the third step is answered with a business no.
	Refuse bool
}

// workerCommand asks for the counts. Profile, if there is one, begins a CPU profile of that name, or ends the one under way if it
// is empty.
type workerCommand struct{ Profile *string }

// workerAnswer is how often each handler was executed.
type workerAnswer struct{ Reserved, Charged, Shipped, Released, Refunded int64 }

// handlers do nothing but check their input and count: what is measured is the executor.
type handlers struct {
	refuse                                         bool
	reserved, charged, shipped, released, refunded atomic.Int64
}

func (h *handlers) counts() workerAnswer {
	return workerAnswer{h.reserved.Load(), h.charged.Load(), h.shipped.Load(), h.released.Load(), h.refunded.Load()}
}

func act(step string, count *atomic.Int64, in order) (receipt, error) {
	if in.ID == "" || in.Quantity != 1 {
		return receipt{}, saga.GiveUp(fmt.Errorf("step %s got a broken order: %+v", step, in))
	}
	count.Add(1)
	return receipt{Order: in.ID, Step: step}, nil
}

func undo(step string, count *atomic.Int64, u saga.Undo[order, receipt]) error {
	if u.Input.ID == "" || u.Output == nil || u.Output.Order != u.Input.ID || u.Output.Step != step {
		return saga.CantUndo(fmt.Errorf("the compensation of %s got a broken order: %+v", step, u))
	}
	count.Add(1)
	return nil
}

func (h *handlers) reserve(_ context.Context, in order) (receipt, error) {
	return act("reserve", &h.reserved, in)
}

func (h *handlers) release(_ context.Context, u saga.Undo[order, receipt]) error {
	return undo("reserve", &h.released, u)
}

func (h *handlers) charge(_ context.Context, in order) (receipt, error) {
	return act("charge", &h.charged, in)
}

func (h *handlers) refund(_ context.Context, u saga.Undo[order, receipt]) error {
	return undo("charge", &h.refunded, u)
}

func (h *handlers) ship(_ context.Context, in order) (receipt, error) {
	out, err := act("ship", &h.shipped, in)
	if err == nil && h.refuse {
		return receipt{}, saga.Reject(refusalCode, "nothing is left")
	}
	return out, err
}

// concurrency is how many handlers may run at a time: more than sagas are in flight, so that the worker is never what is waited
// for.
const concurrency = 8192

// workerRole is the worker's process: the SDK's worker with its defaults, but for concurrency.
func workerRole(ctx context.Context, c *conversation, stderr io.Writer) (err error) {
	var cfg workerConfig
	if err := c.next(&cfg); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	w, err := worker.New(worker.Config{URL: cfg.NATS, Namespace: namespace, Concurrency: concurrency, Logger: log})
	if err != nil {
		return err
	}
	h := &handlers{refuse: cfg.Refuse}
	worker.Compensatable(w, reserve, h.reserve, h.release)
	worker.Compensatable(w, charge, h.charge, h.refund)
	worker.Activity(w, ship, h.ship)
	if err := w.Start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop(context.WithoutCancel(ctx))) }()
	if err := c.say(h.counts()); err != nil {
		return err
	}
	stop := func() error { return nil }
	for {
		var cmd workerCommand
		if err := c.next(&cmd); err != nil {
			return err
		}
		if cmd.Profile != nil {
			if err := stop(); err != nil {
				return err
			}
			if stop, err = profile(*cmd.Profile); err != nil {
				return err
			}
		}
		if err := c.say(h.counts()); err != nil {
			return err
		}
	}
}
