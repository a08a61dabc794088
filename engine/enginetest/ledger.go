package enginetest

import (
	"fmt"
	"strings"
	"sync"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
)

// Ledger is what workers did: an effect is made at most once per idempotency key, as good handlers do it; calls are
// counted.
type Ledger struct {
	mu sync.Mutex
	// calls and effects by key.
	calls   map[string]int
	effects map[string]bool
	// blocked are actions that were undone before they were done.
	blocked map[string]bool
	// reply answers a task before the ledger does; nil answers are left to the ledger.
	reply func(*workerv1.Task) *workerv1.Result
}

// NewLedger makes a ledger. reply may be nil.
func NewLedger(reply func(*workerv1.Task) *workerv1.Result) *Ledger {
	return &Ledger{calls: map[string]int{}, effects: map[string]bool{}, blocked: map[string]bool{}, reply: reply}
}

// Handle is a [Handler].
func (l *Ledger) Handle(t *workerv1.Task) *workerv1.Result {
	if l.reply != nil {
		if r := l.reply(t); r != nil {
			l.mu.Lock()
			l.calls[t.IdempotencyKey]++
			l.mu.Unlock()
			return r
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls[t.IdempotencyKey]++
	if t.Direction == workerv1.Direction_DIRECTION_UNDO {
		l.blocked[t.ActionKey] = true
		if !l.effects[t.ActionKey] {
			return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_NOTHING_TO_UNDO, Worker: "ledger"}
		}
		l.effects[t.IdempotencyKey] = true
		return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_SUCCEEDED, Worker: "ledger"}
	}
	if l.blocked[t.IdempotencyKey] {
		return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_REJECTED, Code: "UNDONE", Worker: "ledger"}
	}
	l.effects[t.IdempotencyKey] = true
	return &workerv1.Result{Outcome: workerv1.Outcome_OUTCOME_SUCCEEDED, Output: fmt.Appendf(nil, `{"ref":%q}`, t.Step), Worker: "ledger"}
}

// Effects counts the actions of a run that were done, and those that were undone.
func (l *Ledger) Effects(run string) (done, undone int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range l.effects {
		switch {
		case !strings.HasPrefix(key, run+"/"):
		case strings.Contains(key, "/undo/"):
			undone++
		default:
			done++
		}
	}
	return done, undone
}

// Calls counts how often each key of a run was called.
func (l *Ledger) Calls(run string) map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	calls := map[string]int{}
	for key, n := range l.calls {
		if rest, ok := strings.CutPrefix(key, run+"/"); ok {
			calls[rest] = n
		}
	}
	return calls
}
