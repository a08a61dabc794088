package sagatest

import (
	"context"
	"fmt"
	"sync"
	"time"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/sdk/saga"
)

// event is what a handler's goroutine tells the driver: its end, or something that it says while it runs.
type event struct {
	index  int
	result *workerv1.Result
	err    error
	// said is a report; answer gets the verdict.
	said   *workerv1.Result
	answer chan workerv1.Verdict
}

// handle calls the handlers of tasks, all at the same time, and waits for them. uses, if not 0, is at what use the contexts end.
func (r *rig) handle(first *workerv1.Task, injected kind, isLate bool, uses int, more ...*workerv1.Task) []*workerv1.Result {
	tasks := append([]*workerv1.Task{first}, more...)
	calls := make([]Call, len(tasks))
	results := make([]*workerv1.Result, len(tasks))
	running := 0
	events := r.events
	over := make(chan struct{}) // nobody listens any more
	defer close(over)
	var ends []context.CancelFunc
	contexts := make([]*interruptible, len(tasks))
	for i, t := range tasks {
		calls[i] = r.callOf(t, injected)
		calls[i].late, calls[i].Handled = isLate, true
		if t.Claimed && !isLate {
			r.seq++
			claim := &workerv1.Result{Token: t.Token, Outcome: workerv1.Outcome_OUTCOME_CLAIM, Output: fmt.Appendf(nil, `"claim-%d"`, r.seq), Worker: "sagatest"}
			if r.tell(claim) != workerv1.Verdict_VERDICT_ACCEPTED {
				calls[i].Handled = false
				continue
			}
		}
		limit := r.o.patience
		if timeout := time.Duration(t.TimeoutUs) * time.Microsecond; timeout > 0 && timeout < limit {
			limit = timeout
		}
		timed, end := context.WithTimeout(context.Background(), limit)
		ends = append(ends, end)
		ctx, cancel := context.WithCancel(timed)
		ends = append(ends, cancel)
		contexts[i] = &interruptible{Context: ctx, left: uses, end: cancel}
		running++
		go func() {
			e := event{index: i, err: errGone}
			defer func() {
				select {
				case events <- e:
				case <-over:
				}
			}()
			e.result, e.err = r.w.Handle(r.speaking(contexts[i], t, i, events, over), t)
		}()
	}
	defer func() {
		for _, end := range ends {
			end()
		}
	}()
	patience := time.NewTimer(2 * r.o.patience)
	defer patience.Stop()
	for running > 0 {
		select {
		case e := <-events:
			if e.said != nil {
				e.answer <- r.tell(e.said)
				continue
			}
			running--
			res := e.result
			if e.err != nil {
				res = &workerv1.Result{Token: tasks[e.index].Token, Outcome: workerv1.Outcome_OUTCOME_FAILED, Code: "PANIC", Message: e.err.Error(), Worker: "sagatest"}
			}
			results[e.index] = res
			c := &calls[e.index]
			c.uses, c.disturbed = contexts[e.index].used()
			c.Outcome, c.Code, c.Message, c.Output = outcomeWords[res.GetOutcome()], res.GetCode(), res.GetMessage(), res.GetOutput()
			if uses > 0 && !c.disturbed {
				c.Injected, c.fault = "", noFault
			}
		case <-patience.C:
			r.hung = true
			for i := range calls {
				if results[i] == nil && calls[i].Handled {
					calls[i].hung = true
				}
			}
			r.note("%s doesn't come back, although its context has ended", words(first))
			running = 0
		}
	}
	r.calls = append(r.calls, calls...)
	var out []*workerv1.Result
	for _, res := range results {
		if res != nil {
			out = append(out, res)
		}
	}
	return out
}

type goneError struct{}

func (goneError) Error() string {
	return "the handler ended its goroutine (a call of t.Fatal or t.FailNow in a handler does so)"
}

var errGone = goneError{}

var outcomeWords = map[workerv1.Outcome]string{
	workerv1.Outcome_OUTCOME_SUCCEEDED: "succeeded", workerv1.Outcome_OUTCOME_REJECTED: "rejected", workerv1.Outcome_OUTCOME_FAILED: "failed",
	workerv1.Outcome_OUTCOME_NOTHING_TO_UNDO: "nothing to undo", workerv1.Outcome_OUTCOME_CANT_UNDO: "can't undo",
	workerv1.Outcome_OUTCOME_HAPPENED: "happened", workerv1.Outcome_OUTCOME_DID_NOT_HAPPEN: "did not happen", workerv1.Outcome_OUTCOME_CANT_TELL: "can't tell",
}

func (r *rig) callOf(t *workerv1.Task, injected kind) Call {
	c := Call{
		Step: t.Step, Item: t.Item, Activity: t.Activity, SagaID: t.SagaId, Undo: t.Direction == workerv1.Direction_DIRECTION_UNDO, Probe: t.Direction == workerv1.Direction_DIRECTION_PROBE,
		Generation: int(t.Generation), Attempt: int(t.Attempt), IdempotencyKey: t.IdempotencyKey, ActionKey: t.ActionKey, Input: t.Input,
		OutputKnown: t.Undo.GetOutputKnown(), At: r.now.Sub(began), fault: injected,
	}
	if injected != noFault {
		c.Injected = Outcome{kind: injected}.words()
	}
	return c
}

// speaking gives a context in which a handler can say something while it runs.
func (r *rig) speaking(ctx *interruptible, t *workerv1.Task, index int, events chan event, over chan struct{}) context.Context {
	if t.Direction != workerv1.Direction_DIRECTION_DO {
		return ctx
	}
	report := func(o workerv1.Outcome, doc []byte) workerv1.Verdict {
		e := event{index: index, said: &workerv1.Result{Token: t.Token, Outcome: o, Output: doc, Worker: "sagatest"}, answer: make(chan workerv1.Verdict, 1)}
		select {
		case events <- e:
			return <-e.answer
		case <-over:
			return workerv1.Verdict_VERDICT_STOP
		}
	}
	return saga.WithStatements(ctx, &saga.Statements{
		Checkpoint: func(_ context.Context, doc saga.Statement) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			if v := report(workerv1.Outcome_OUTCOME_CHECKPOINT, doc); v != workerv1.Verdict_VERDICT_ACCEPTED && v != workerv1.Verdict_VERDICT_DUPLICATE {
				ctx.end()
				return saga.ErrStopped
			}
			return ctx.Err()
		},
		Progress: func(doc saga.Statement) { report(workerv1.Outcome_OUTCOME_PROGRESS, doc) },
		Last:     saga.Statement(t.Progress),
	})
}

// interruptible is a context that ends at a certain use.
type interruptible struct {
	context.Context
	end context.CancelFunc

	mu      sync.Mutex
	uses    int
	left    int
	reached bool
}

func (c *interruptible) use() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.uses++; c.left == 0 {
		return
	}
	if c.left--; c.left == 0 {
		c.reached = true
		c.end()
	}
}

func (c *interruptible) used() (uses int, reached bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.uses, c.reached
}

// Err is a use.
func (c *interruptible) Err() error {
	c.use()
	return c.Context.Err()
}

// Done is a use.
func (c *interruptible) Done() <-chan struct{} {
	c.use()
	return c.Context.Done()
}
