package main

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	"golang.org/x/sync/errgroup"
)

// The modes: what a saga does.
const (
	modeCommit = "commit3" // reserve, charge, ship
	modeUnwind = "unwind"  // reserve, charge, ship refused; refund, release
)

// order is the saga's input and every step's: about 100 bytes of JSON.
type order struct {
	ID       string `json:"id"`
	Customer string `json:"customer"`
	Item     string `json:"item"`
	Quantity int    `json:"quantity"`
	Cents    int64  `json:"cents"`
}

// receipt is the output of a step or a compensation.
type receipt struct {
	Order string `json:"order"`
	Step  string `json:"step"`
}

// outcome is the saga's output: what was done, then what was undone, in the
// order in which it happened.
type outcome struct {
	Done   []string `json:"done"`
	Undone []string `json:"undone,omitempty"`
	Cause  string   `json:"cause,omitempty"`
}

// refusal is a business answer: nothing was done, and asking again won't help.
type refusal struct{ Code string }

func (r *refusal) Error() string { return "refused: " + r.Code }

// The peer stores errors by gob. A type it doesn't know costs it a failed
// encoding each time and is read back as a mere string.
func init() { gob.Register(&refusal{}) }

const refusalCode = "OUT_OF_STOCK"

// call is a durable step and its compensation. They do nothing but check their
// input and count: what is measured is the executor.
type call struct {
	action, compensation string
	acted, compensated   atomic.Int64
}

// workload is the saga of one mode, with the counts that prove it was done.
type workload struct {
	mode  string
	calls [3]call
	begun atomic.Int64
	ended atomic.Int64
	want  outcome
}

func newWorkload(mode string) *workload {
	w := &workload{mode: mode}
	for i, names := range [3][2]string{{"reserve", "release"}, {"charge", "refund"}, {"ship", ""}} {
		w.calls[i].action, w.calls[i].compensation = names[0], names[1]
	}
	w.want = outcome{Done: []string{"reserve", "charge", "ship"}}
	if mode == modeUnwind {
		w.want = outcome{Done: []string{"reserve", "charge"}, Undone: []string{"refund", "release"}, Cause: refusalCode}
	}
	return w
}

func (w *workload) register(d dbos.Context) {
	dbos.RegisterWorkflow(d, w.workflow, dbos.WithWorkflowName("order"))
}

// workflow is the saga as the peer runs it: every call is a durable step, and a
// refusal undoes the done ones in reverse.
func (w *workload) workflow(ctx dbos.Context, in order) (outcome, error) {
	var out outcome
	for i := range w.calls {
		c := &w.calls[i]
		_, err := dbos.RunAsStep(ctx, func(context.Context) (receipt, error) {
			return w.act(c, in)
		}, dbos.WithStepName(c.action))
		if err == nil {
			out.Done = append(out.Done, c.action)
			continue
		}
		var refused *refusal
		if !errors.As(err, &refused) {
			return out, err
		}
		out.Cause = refused.Code
		for j := i - 1; j >= 0; j-- {
			u := &w.calls[j]
			if _, err := dbos.RunAsStep(ctx, func(context.Context) (receipt, error) {
				return w.compensate(u, in)
			}, dbos.WithStepName(u.compensation)); err != nil {
				return out, err
			}
			out.Undone = append(out.Undone, u.compensation)
		}
		return out, nil
	}
	return out, nil
}

func (w *workload) act(c *call, in order) (receipt, error) {
	if in.ID == "" || in.Quantity != 1 {
		return receipt{}, fmt.Errorf("step %s got a broken order: %+v", c.action, in)
	}
	c.acted.Add(1)
	if w.mode == modeUnwind && c == &w.calls[len(w.calls)-1] {
		return receipt{}, &refusal{Code: refusalCode}
	}
	return receipt{Order: in.ID, Step: c.action}, nil
}

func (w *workload) compensate(c *call, in order) (receipt, error) {
	if in.ID == "" || in.Quantity != 1 {
		return receipt{}, fmt.Errorf("compensation %s got a broken order: %+v", c.compensation, in)
	}
	c.compensated.Add(1)
	return receipt{Order: in.ID, Step: c.compensation}, nil
}

// saga runs one saga to its result and checks the result.
func (w *workload) saga(d dbos.Context) error {
	n := w.begun.Add(1)
	in := order{
		ID: fmt.Sprintf("order-%010d", n), Customer: fmt.Sprintf("customer-%06d", n%1_000_000),
		Item: "blue-teapot-0042", Quantity: 1, Cents: 4_999,
	}
	h, err := dbos.RunWorkflow(d, w.workflow, in)
	if err != nil {
		return fmt.Errorf("saga %s did not start: %w", in.ID, err)
	}
	got, err := h.GetResult()
	if err != nil {
		return fmt.Errorf("saga %s failed: %w", in.ID, err)
	}
	if !slices.Equal(got.Done, w.want.Done) || !slices.Equal(got.Undone, w.want.Undone) || got.Cause != w.want.Cause {
		return fmt.Errorf("saga %s ended as %+v, should be %+v", in.ID, got, w.want)
	}
	w.ended.Add(1)
	return nil
}

// steps is the number of actions executed, refused ones included.
func (w *workload) steps() (n int64) {
	for i := range w.calls {
		n += w.calls[i].acted.Load()
	}
	return n
}

// compensations is the number of compensations executed.
func (w *workload) compensations() (n int64) {
	for i := range w.calls {
		n += w.calls[i].compensated.Load()
	}
	return n
}

// verify holds three counts against each other: the results that the client
// saw, what the steps counted, and what the peer's tables hold. Call it when no
// saga is in flight.
func (w *workload) verify(d dbos.Context) error {
	total := w.ended.Load()
	if begun := w.begun.Load(); begun != total {
		return fmt.Errorf("%d sagas were begun, %d ended", begun, total)
	}
	wantRows := map[string]int64{"workflow SUCCESS": total}
	for i := range w.calls {
		c := &w.calls[i]
		status, undone := "SUCCESS", int64(0)
		if w.mode == modeUnwind {
			if i == len(w.calls)-1 {
				status = "ERROR"
			} else {
				undone = total
			}
		}
		if c.acted.Load() != total || c.compensated.Load() != undone {
			return fmt.Errorf("of %d sagas, %d executed %s and %d compensated it, should be %d and %d",
				total, c.acted.Load(), c.action, c.compensated.Load(), total, undone)
		}
		wantRows[c.action+" "+status] = total
		if undone > 0 {
			wantRows[c.compensation+" SUCCESS"] = undone
		}
	}

	workflows, err := dbos.GetWorkflowAggregates(d, dbos.GetWorkflowAggregatesInput{GroupByStatus: true, SelectCount: true})
	if err != nil {
		return fmt.Errorf("the workflows can't be counted: %w", err)
	}
	steps, err := dbos.GetStepAggregates(d, dbos.GetStepAggregatesInput{GroupByFunctionName: true, GroupByStatus: true, SelectCount: true})
	if err != nil {
		return fmt.Errorf("the steps can't be counted: %w", err)
	}
	rows := map[string]int64{}
	for _, a := range workflows {
		rows["workflow "+deref(a.Group["status"])] += deref(a.Count)
	}
	for _, a := range steps {
		rows[deref(a.Group["function_name"])+" "+deref(a.Group["status"])] += deref(a.Count)
	}
	for _, want := range []map[string]int64{wantRows, rows} {
		for name := range want {
			if rows[name] != wantRows[name] {
				return fmt.Errorf("the database holds %d of %q, should be %d", rows[name], name, wantRows[name])
			}
		}
	}
	return nil
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// measurement is what the measured time yielded.
type measurement struct {
	latencies []time.Duration // sorted
	cpu       time.Duration
}

// percentile is by nearest rank, in milliseconds. There must be latencies.
func (m measurement) percentile(p float64) float64 {
	rank := int(math.Ceil(p / 100 * float64(len(m.latencies))))
	return float64(m.latencies[max(rank, 1)-1]) / float64(time.Millisecond)
}

// drive runs sagas through the warm-up and the measured time, and returns when
// none is in flight. The first error stops it. In a closed loop the sagas that
// ended within the measured time count, in an open loop those that began. mark is
// told when the measured time begins and ends.
func drive(ctx context.Context, s settings, mark func(string), saga func() error) (measurement, error) {
	from := time.Now().Add(s.warmup)
	until := from.Add(s.duration)
	var (
		mu sync.Mutex
		m  measurement
	)
	add := func(l ...time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		m.latencies = append(m.latencies, l...)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := wait(ctx, from); err != nil {
			return err
		}
		before := cpuTime()
		mark("begin")
		if err := wait(ctx, until); err != nil {
			return err
		}
		m.cpu = cpuTime() - before
		mark("end")
		return nil
	})
	if s.rate > 0 {
		g.Go(func() error { return open(ctx, g, s.rate, from, until, saga, add) })
	} else {
		for range s.inflight {
			g.Go(func() error { return closed(ctx, from, until, saga, add) })
		}
	}
	if err := g.Wait(); err != nil {
		return measurement{}, err
	}
	slices.Sort(m.latencies)
	return m, nil
}

// closed runs one saga after the other.
func closed(ctx context.Context, from, until time.Time, saga func() error, add func(...time.Duration)) error {
	var latencies []time.Duration
	for ctx.Err() == nil {
		start := time.Now()
		if !start.Before(until) {
			break
		}
		if err := saga(); err != nil {
			return err
		}
		if end := time.Now(); !end.Before(from) && end.Before(until) {
			latencies = append(latencies, end.Sub(start))
		}
	}
	add(latencies...)
	return ctx.Err()
}

// open begins sagas at even intervals, whatever became of the earlier ones. It
// gives up rather than report a rate that wasn't held.
func open(ctx context.Context, g *errgroup.Group, rate float64, from, until time.Time, saga func() error, add func(...time.Duration)) error {
	var outstanding atomic.Int64
	begin := time.Now()
	for i := 0; ; i++ {
		due := begin.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		if !due.Before(until) {
			return nil
		}
		if err := wait(ctx, due); err != nil {
			return err
		}
		start := time.Now()
		if lag := start.Sub(due); lag > lagMax {
			return fmt.Errorf("sagas are begun %v late: this machine can't begin %v per second, lower -rate", lag, rate)
		}
		if outstanding.Add(1) > outstandingMax {
			return fmt.Errorf("more than %d sagas are in flight: the peer can't hold %v per second, lower -rate", outstandingMax, rate)
		}
		measured := !due.Before(from)
		g.Go(func() error {
			defer outstanding.Add(-1)
			if err := saga(); err != nil {
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

// cpuTime is the user and system time of this process so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0 // can't fail for RUSAGE_SELF
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func round(v float64) float64 { return math.Round(v*1000) / 1000 }
