package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/sdk/saga"
)

// errUnheard ends the handlers of claimed attempts that the engine takes for lost: another one may be about to start.
var errUnheard = fmt.Errorf("%w: the engine couldn't be reached for longer than the heartbeat", saga.ErrStopped)

// flushTimeout is for how long the result of a failed attempt waits for its last progress to be told.
const flushTimeout = time.Second

// pulse is what is told of an attempt while its handler runs: that it goes on, and what the handler says.
type pulse struct {
	w *Worker
	j *job
	// ctx is the handler's, end ends it.
	ctx context.Context
	end context.CancelCauseFunc
	// every is the time between heartbeats; 0: there are none. pace is the least time between statements of progress.
	every, pace time.Duration
	// watchdog ends the context of a claimed attempt when nothing is heard of the engine any more. nil: there is none.
	watchdog *time.Timer

	keeping sync.Mutex // of checkpoints: one after the other

	// Of the goroutine, once there is one.
	beating context.Context
	still   context.CancelFunc
	wake    chan struct{}

	mu   sync.Mutex
	said saga.Statement // and not told yet
	// over: nothing is told any more. ended is closed when the goroutine has; nil while there is none.
	over  bool
	ended chan struct{}
}

// newPulse begins the pulse of an attempt that was last heard of by the engine at heard.
func newPulse(w *Worker, j *job, ctx context.Context, end context.CancelCauseFunc, heard time.Time) *pulse {
	heartbeat := time.Duration(j.task.HeartbeatUs) * time.Microsecond
	p := &pulse{w: w, j: j, ctx: ctx, end: end, every: heartbeat / 3, pace: saga.ProgressEvery}
	if heartbeat <= 0 {
		return p
	}
	p.every = max(p.every, time.Millisecond)
	p.pace = min(p.pace, p.every)
	if j.task.Claimed {
		p.watchdog = time.AfterFunc(lease(heartbeat)-time.Since(heard), func() {
			w.counters.unheard.Add(1)
			w.log.Warn("an attempt is stopped: the engine couldn't be reached for longer than its heartbeat, so another one may start",
				"saga", j.task.SagaId, "step", j.task.Step, "attempt", j.task.Attempt)
			end(errUnheard)
		})
	}
	p.begin()
	return p
}

// lease is for how long a claimed attempt goes on without a word from the engine, which lets another one start after a heartbeat: the
// handler gets a sixth of that to end.
func lease(heartbeat time.Duration) time.Duration { return heartbeat * 5 / 6 }

// begin starts the goroutine. The lock is held, or nobody else knows p.
func (p *pulse) begin() {
	p.beating, p.still = context.WithCancel(p.ctx)
	p.ended, p.wake = make(chan struct{}), make(chan struct{}, 1)
	go p.run()
}

// statements is what the handler gets.
func (p *pulse) statements() *saga.Statements {
	return &saga.Statements{Checkpoint: p.checkpoint, Progress: p.say, Last: p.j.task.Progress}
}

func (p *pulse) result(outcome workerv1.Outcome, data []byte) *workerv1.Result {
	return &workerv1.Result{Token: p.j.for_.token, Outcome: outcome, Output: data, Worker: p.w.cfg.Name}
}

// say keeps the newest progress until it is its turn.
func (p *pulse) say(s saga.Statement) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	p.said = s
	if p.ended == nil {
		p.begin()
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *pulse) take() saga.Statement {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.said
	p.said = nil
	return s
}

// putBack keeps what couldn't be told, unless there is something newer.
func (p *pulse) putBack(s saga.Statement) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.said == nil {
		p.said = s
	}
}

func (p *pulse) run() {
	defer close(p.ended)
	beat := time.Now() // the last one; that the handler was begun is none
	var told time.Time
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		p.mu.Lock()
		said := p.said != nil
		p.mu.Unlock()
		var due <-chan time.Time
		wait := time.Duration(-1)
		if p.every > 0 {
			wait = time.Until(beat.Add(p.every))
		}
		if said {
			if w := time.Until(told.Add(p.pace)); wait < 0 && p.every == 0 || w < wait {
				wait = w
			}
		}
		if said || p.every > 0 {
			timer.Reset(max(wait, 0))
			due = timer.C
		}
		select {
		case <-p.beating.Done():
			return
		case <-p.wake:
			continue
		case <-due:
		}
		beat = time.Now()
		s := p.take()
		if s != nil {
			told = beat
		}
		if !p.beat(beat, s) {
			p.mu.Lock()
			p.over, p.said = true, nil
			p.mu.Unlock()
			return
		}
	}
}

// beat tells that the attempt goes on. It is false if it shouldn't, or nobody wants to know.
func (p *pulse) beat(at time.Time, s saga.Statement) bool {
	patience := requestTimeout
	if p.every > 0 {
		patience = min(max(p.every, 50*time.Millisecond), requestTimeout)
	}
	ctx, cancel := context.WithTimeout(p.beating, patience)
	defer cancel()
	v, err := p.w.tell(ctx, p.result(workerv1.Outcome_OUTCOME_PROGRESS, s), p.j.for_.held.subject)
	switch {
	case err != nil:
		p.putBack(s)
		return true // or the context has ended, which is seen at once
	case v == workerv1.Verdict_VERDICT_ACCEPTED || v == workerv1.Verdict_VERDICT_DUPLICATE:
		if p.watchdog != nil && p.beating.Err() == nil {
			p.watchdog.Reset(lease(time.Duration(p.j.task.HeartbeatUs)*time.Microsecond) - time.Since(at))
		}
		return true
	case v == workerv1.Verdict_VERDICT_REFUSED && p.every == 0:
		p.w.log.Warn("the engine doesn't take the progress of an attempt: it is older than this worker, or the saga's history is too long", "activity", p.j.task.Activity)
		return false
	}
	p.stopped()
	return false
}

// stopped ends the handler's context, since the engine says that the attempt isn't wanted.
func (p *pulse) stopped() {
	p.w.counters.stopped.Add(1)
	p.end(saga.ErrStopped)
}

// checkpoint keeps a checkpoint, and returns when that is sure.
func (p *pulse) checkpoint(asked context.Context, s saga.Statement) error {
	p.keeping.Lock()
	defer p.keeping.Unlock()
	if p.ctx.Err() != nil {
		return context.Cause(p.ctx)
	}
	// The handler may have derived its context, or torn it off.
	ctx, cancel := context.WithCancelCause(asked)
	defer cancel(nil)
	defer context.AfterFunc(p.ctx, func() { cancel(context.Cause(p.ctx)) })()
	v, err := p.w.tell(ctx, p.result(workerv1.Outcome_OUTCOME_CHECKPOINT, s), p.j.for_.held.subject)
	switch {
	case err != nil:
		return fmt.Errorf("the checkpoint isn't known to be kept: %w", err)
	case v == workerv1.Verdict_VERDICT_ACCEPTED || v == workerv1.Verdict_VERDICT_DUPLICATE:
		return nil
	}
	p.stopped()
	if v == workerv1.Verdict_VERDICT_REFUSED {
		return fmt.Errorf("%w: the engine refuses the checkpoint: it is older than this worker, or the saga's history is too long", saga.ErrStopped)
	}
	return saga.ErrStopped
}

// stop ends the pulse, when the handler has ended.
func (p *pulse) stop() {
	if p.watchdog != nil {
		p.watchdog.Stop()
	}
	p.mu.Lock()
	p.over = true
	ended, still := p.ended, p.still
	p.mu.Unlock()
	if ended != nil {
		still()
		<-ended
	}
	if p.watchdog != nil {
		p.watchdog.Stop() // a beat may have set it again
	}
}

// flush tells what the handler said last, before the attempt is reported as failed. The pulse is stopped.
func (p *pulse) flush() {
	s := p.take()
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(p.w.alive, flushTimeout)
	defer cancel()
	_, _ = p.w.tell(ctx, p.result(workerv1.Outcome_OUTCOME_PROGRESS, s), p.j.for_.held.subject) // lost, the next attempt begins earlier
}

// claimed is what became of a claim.
type claimed uint8

const (
	// mine: this delivery runs the attempt.
	mine claimed = iota
	// others: it isn't this delivery's. Nothing is reported.
	others
	// unsure: the context has ended before there was an answer.
	unsure
)

// claim asks for an attempt that only one delivery may run.
func (w *Worker) claim(ctx context.Context, j *job) claimed {
	v, err := w.tell(ctx, &workerv1.Result{Token: j.for_.token, Outcome: workerv1.Outcome_OUTCOME_CLAIM, Output: []byte(`"` + rand.Text() + `"`), Worker: w.cfg.Name},
		j.for_.held.subject)
	switch {
	case err != nil:
		return unsure
	case v == workerv1.Verdict_VERDICT_ACCEPTED || v == workerv1.Verdict_VERDICT_DUPLICATE:
		return mine
	case v == workerv1.Verdict_VERDICT_BUSY:
		w.counters.busy.Add(1)
	case v == workerv1.Verdict_VERDICT_REFUSED:
		w.log.Error("the engine refuses the claim of an attempt, which isn't run", "saga", j.task.SagaId, "step", j.task.Step, "attempt", j.task.Attempt)
		w.counters.refused.Add(1)
	default:
		w.counters.stopped.Add(1)
	}
	return others
}

// isStopped says that a handler's error, or its context's end, means that its attempt was stopped.
func isStopped(ctx context.Context, err error) bool {
	return errors.Is(err, saga.ErrStopped) || errors.Is(context.Cause(ctx), saga.ErrStopped) && errors.Is(err, context.Canceled)
}
