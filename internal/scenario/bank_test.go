package scenario

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

// move is money that comes to an account, or goes from it if it is negative.
type move struct {
	Account string `json:"account"`
	Amount  int64  `json:"amount"`
}

type receipt struct {
	Key string `json:"key"`
}

type transfer struct {
	Amount int64 `json:"amount"`
}

var (
	debit  = saga.Compensatable[move, receipt]{Name: "bank.debit"}
	credit = saga.Compensatable[move, receipt]{Name: "bank.credit"}
	notify = saga.ReadOnly[move, receipt]{Name: "bank.notify"}
)

// quick is a retry policy of tests: as the usual one, twenty times as fast.
var quick = saga.Retry{MaxAttempts: 3, Initial: 50 * time.Millisecond, Factor: 2}

// transferSaga moves money from A to B and tells somebody. Options are the credit's.
func transferSaga(opts ...saga.StepOption) *saga.Definition[transfer, any] {
	return saga.Define[transfer, any]("transfer",
		saga.Do("debit", debit, saga.Fields{"account": "'A'", "amount": "-input.amount"}, quick, saga.Compensation(quick)),
		saga.Do("credit", credit, append([]saga.StepOption{saga.Fields{"account": "'B'", "amount": "input.amount"}, saga.Compensation(quick)}, opts...)...),
		saga.Read("notify", notify, saga.Fields{"account": "'B'", "amount": "input.amount"}, quick))
}

// call is one call of a handler.
type call struct {
	// what is the step, and "undo" before it for compensations.
	what    string
	saga    string
	key     string
	attempt int
	at      time.Time
}

// bank is a service as it should be: one row per key, in one transaction with the money. It counts calls and effects
// apart.
type bank struct {
	mu       sync.Mutex
	balances map[string]int64
	done     map[string]bool // by the action's key
	undone   map[string]bool // by the action's key, whether or not it was done
	calls    []call
	// changed is closed and made anew at every call.
	changed chan struct{}
	// before, if it is set, comes before a call's effect, after after it. An error is the answer.
	before, after func(context.Context, call) error
}

func newBank(balances map[string]int64) *bank {
	return &bank{balances: balances, done: map[string]bool{}, undone: map[string]bool{}, changed: make(chan struct{})}
}

func (b *bank) called(ctx context.Context) (call, error) {
	of, _ := saga.CallOf(ctx)
	c := call{what: of.Step, saga: of.SagaID, key: of.IdempotencyKey, attempt: of.Attempt, at: time.Now()}
	if of.Undo {
		c.what = "undo " + of.Step
	}
	b.mu.Lock()
	b.calls = append(b.calls, c)
	close(b.changed)
	b.changed = make(chan struct{})
	before := b.before
	b.mu.Unlock()
	if before != nil {
		return c, before(ctx, c)
	}
	return c, nil
}

func (b *bank) leave(ctx context.Context, c call) error {
	b.mu.Lock()
	after := b.after
	b.mu.Unlock()
	if after != nil {
		return after(ctx, c)
	}
	return nil
}

func (b *bank) do(ctx context.Context, m move) (receipt, error) {
	c, err := b.called(ctx)
	if err != nil {
		return receipt{}, err
	}
	b.mu.Lock()
	if b.undone[c.key] {
		b.mu.Unlock()
		return receipt{}, saga.Reject("UNDONE", "it was undone before it was done")
	}
	if !b.done[c.key] {
		b.done[c.key] = true
		b.balances[m.Account] += m.Amount
	}
	b.mu.Unlock()
	return receipt{c.key}, b.leave(ctx, c)
}

func (b *bank) undo(ctx context.Context, u saga.Undo[move, receipt]) error {
	c, err := b.called(ctx)
	if err != nil {
		return err
	}
	b.mu.Lock()
	first := !b.undone[u.ActionKey]
	b.undone[u.ActionKey] = true
	if !b.done[u.ActionKey] {
		b.mu.Unlock()
		return saga.NothingToUndo
	}
	if first {
		b.balances[u.Input.Account] -= u.Input.Amount
	}
	b.mu.Unlock()
	return b.leave(ctx, c)
}

// tell changes nothing.
func (b *bank) tell(ctx context.Context, _ move) (receipt, error) {
	c, err := b.called(ctx)
	if err != nil {
		return receipt{}, err
	}
	return receipt{c.key}, b.leave(ctx, c)
}

// register makes a worker serve the bank.
func (b *bank) register(w *worker.Worker) {
	worker.Compensatable(w, debit, b.do, b.undo)
	worker.Compensatable(w, credit, b.do, b.undo)
	worker.ReadOnly(w, notify, b.tell)
}

// of are the calls of a saga, all sagas if id is empty.
func (b *bank) of(id string) []call {
	b.mu.Lock()
	defer b.mu.Unlock()
	var calls []call
	for _, c := range b.calls {
		if id == "" || c.saga == id {
			calls = append(calls, c)
		}
	}
	return calls
}

// story are the calls of a saga, each with its attempt.
func (b *bank) story(id string) []string {
	var s []string
	for _, c := range b.of(id) {
		s = append(s, fmt.Sprintf("%s %d", c.what, c.attempt))
	}
	return s
}

// wait waits until a call was made.
func (b *bank) wait(t *testing.T, id, what string, attempt int) call {
	t.Helper()
	over := time.After(patience)
	for {
		b.mu.Lock()
		changed := b.changed
		i := slices.IndexFunc(b.calls, func(c call) bool { return c.saga == id && c.what == what && c.attempt == attempt })
		if i >= 0 {
			c := b.calls[i]
			b.mu.Unlock()
			return c
		}
		b.mu.Unlock()
		select {
		case <-changed:
		case <-over:
			t.Fatalf("saga %s: no call of %s, attempt %d; there were %v", id, what, attempt, b.story(id))
		}
	}
}

// holds compares the balances, and looks for keys of which a step had more than one.
func (b *bank) holds(t *testing.T, want map[string]int64) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !maps.Equal(want, b.balances) {
		t.Errorf("the accounts hold %v, want %v", b.balances, want)
	}
	keys := map[string]string{}
	for _, c := range b.calls {
		place := c.saga + "/" + c.what
		if other, ok := keys[place]; ok && other != c.key {
			t.Errorf("%s was called under two keys: %s and %s", place, other, c.key)
		}
		keys[place] = c.key
		if strings.Contains(c.what, "undo") == strings.Contains(c.key, "/do/") {
			t.Errorf("%s has the key %s", place, c.key)
		}
	}
}
