package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/sagad/sagad/sdk/client"
)

// Defaults and limits of [Config].
const (
	DefaultBatch   = 100
	DefaultPoll    = 500 * time.Millisecond
	DefaultTimeout = 10 * time.Second
	DefaultLease   = 30 * time.Second

	BatchMax    = 1000
	ParallelMax = 256
)

const (
	// quickPoll is how soon a relay looks again after a start in its process, whose transaction isn't committed yet; then twice as
	// late each time.
	quickPoll = time.Millisecond
	// Delays of a row that failed, and of a relay that can't reach the database or the server.
	rowDelayMin, rowDelayMax     = 100 * time.Millisecond, time.Minute
	pauseDelayMin, pauseDelayMax = 50 * time.Millisecond, 5 * time.Second
	// failuresMax is how many deliveries of a batch may fail one after the other until the rest is left for later.
	failuresMax = 3
	// settleTimeout bounds a statement that is made although the relay stops.
	settleTimeout = 5 * time.Second
	// warnEvery is how often an outage is logged.
	warnEvery = time.Minute
)

// Config of a relay. The zero value is good.
type Config struct {
	// Batch is how many rows are taken at a time: [DefaultBatch] if 0, [BatchMax] at most.
	Batch int
	// Parallel is how many sagas are started at the same time. 0 means 1: one after the other, in order. More is faster, and gives up
	// the order within a batch. [ParallelMax] at most.
	Parallel int
	// Poll is how often the relay looks for rows that other processes wrote: [DefaultPoll] if 0.
	Poll time.Duration
	// Timeout bounds one start: [DefaultTimeout] if 0. Within it the client retries as it is told by client.WithRetryFor.
	Timeout time.Duration
	// Lease is for how long others leave rows alone that this relay has taken, and so how late rows may be delivered whose relay died:
	// [DefaultLease] if 0, and 2 Timeouts at least.
	Lease time.Duration
	// Logger gets what the relay has to say; by default slog's.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Batch <= 0 {
		c.Batch = DefaultBatch
	}
	if c.Poll <= 0 {
		c.Poll = DefaultPoll
	}
	if c.Timeout <= 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Lease <= 0 {
		c.Lease = DefaultLease
	}
	c.Batch = min(c.Batch, BatchMax)
	c.Parallel = min(max(c.Parallel, 1), ParallelMax)
	c.Lease = max(c.Lease, 2*c.Timeout)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Relay delivers what [Start] wrote. It may be used by many goroutines.
type Relay struct {
	client *client.Client
	db     DB
	cfg    Config
	pokes  chan struct{}
	// crash, in tests, says whether the process dies at a point.
	crash func(point string) bool
}

// NewRelay makes a relay that reads rows of db and starts sagas with c, in c's namespace. It does nothing before [Relay.Run].
func NewRelay(c *client.Client, db DB, cfg Config) *Relay {
	return &Relay{client: c, db: db, cfg: cfg.withDefaults(), pokes: make(chan struct{}, 1)}
}

// Wake lets the relay look for rows at once. Starts in the same process do so by themselves.
func (r *Relay) Wake() {
	select {
	case r.pokes <- struct{}{}:
	default:
	}
}

// running are the relays of this process.
var running struct {
	sync.Mutex
	relays map[*Relay]int
}

func wakeAll() {
	running.Lock()
	defer running.Unlock()
	for r := range running.relays {
		r.Wake()
	}
}

func (r *Relay) enter() (leave func()) {
	running.Lock()
	defer running.Unlock()
	if running.relays == nil {
		running.relays = map[*Relay]int{}
	}
	running.relays[r]++
	return func() {
		running.Lock()
		defer running.Unlock()
		if running.relays[r]--; running.relays[r] == 0 {
			delete(running.relays, r)
		}
	}
}

// errCrash: a test lets the process die here.
var errCrash = errors.New("crash")

// errOutage: deliveries failed one after the other.
var errOutage = errors.New("sagad doesn't take starts")

// Run delivers rows until ctx ends, and then returns nil: what it was about to deliver is left for the next relay. Neither the
// server's nor the database's failures end it: it tries again, and logs.
func (r *Relay) Run(ctx context.Context) error {
	defer r.enter()()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var quick time.Duration // when to look again after a poke; 0: when the poll is due
	var warned time.Time
	for failures := 0; ; {
		n, err := r.round(ctx)
		if errors.Is(err, errCrash) {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		var wait time.Duration
		pokes := r.pokes
		switch {
		case err != nil:
			failures++
			wait, pokes = delay(failures, pauseDelayMin, pauseDelayMax), nil
			if now := time.Now(); now.Sub(warned) > warnEvery {
				warned = now
				r.cfg.Logger.Warn("outbox: rows can't be delivered; trying again, and saying so once a minute", "error", err)
			}
		case n == r.cfg.Batch:
			failures = 0
			continue // there may be more
		default:
			failures = 0
			wait = r.cfg.Poll - rand.N(r.cfg.Poll/4+1) // so that relays don't stay in step
			if quick > 0 && quick < wait {
				wait, quick = quick, 2*quick
			} else {
				quick = 0
			}
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-pokes:
			quick = quickPoll
		}
	}
}

// delay before try n+1: exponential, with jitter and a floor.
func delay(n int, least, most time.Duration) time.Duration {
	ceiling := most
	if n < 30 {
		ceiling = min(most, least<<n)
	}
	return least + rand.N(ceiling-least+1)
}

// round takes a batch and delivers it. It gives how many rows it took.
func (r *Relay) round(ctx context.Context) (int, error) {
	b := batch{r: r, claim: uuid.NewString(), until: time.Now().Add(r.cfg.Lease - r.cfg.Timeout)}
	if err := b.take(ctx); err != nil {
		return 0, err
	}
	if len(b.rows) == 0 {
		return 0, nil
	}
	if r.dies("claimed") {
		return 0, errCrash
	}
	var workers sync.WaitGroup
	for range min(r.cfg.Parallel, len(b.rows)) {
		workers.Go(func() { b.work(ctx) })
	}
	workers.Wait()
	return len(b.rows), b.settle(ctx)
}

func (r *Relay) dies(point string) bool { return r.crash != nil && r.crash(point) }

// batch is what a relay has taken.
type batch struct {
	r     *Relay
	claim string
	// until is when no delivery is begun any more, so that it ends within the lease.
	until time.Time
	rows  []row
	bad   map[int64]error // rows that can't be read

	mu       sync.Mutex
	next     int     // the row to be delivered next
	failures int     // one after the other
	done     []int64 // delivered
	left     []int64 // begun, and to be left for later
	err      error   // why no further row is begun
}

// take claims rows, in order.
func (b *batch) take(ctx context.Context) error {
	db := &b.r.db
	if db.d.peek != "" {
		some := false
		if err := db.query(ctx, func(func(...any) error) error { some = true; return nil }, db.d.peek); err != nil || !some {
			return wrap(err, "looking for rows")
		}
	}
	// A relay that stops doesn't leave rows leased that it hasn't seen.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	err := db.query(ctx, func(scan func(...any) error) error {
		var w row
		var version int64
		var sagaID, definition, input, labels string
		if err := scan(&w.id, &sagaID, &definition, &version, &input, &labels, &w.attempts); err != nil {
			return err
		}
		var bad error
		if w.order, bad = orderOf(sagaID, definition, version, input, labels); bad != nil {
			if b.bad == nil {
				b.bad = map[int64]error{}
			}
			b.bad[w.id] = bad
		}
		b.rows = append(b.rows, w)
		return nil
	}, db.d.claim, b.claim, b.r.cfg.Lease.Milliseconds(), b.r.cfg.Batch)
	slices.SortFunc(b.rows, func(x, y row) int { return cmp.Compare(x.id, y.id) })
	return wrap(err, "taking rows")
}

func wrap(err error, what string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("outbox: %s: %w", what, err)
}

// work delivers rows until there are no more, or no more should be begun.
func (b *batch) work(ctx context.Context) {
	for {
		b.mu.Lock()
		// What isn't begun when the lease nears its end is given back and taken anew.
		if b.err != nil || b.next == len(b.rows) || ctx.Err() != nil || time.Now().After(b.until) {
			b.mu.Unlock()
			return
		}
		w := &b.rows[b.next]
		b.next++
		b.mu.Unlock()
		b.deliver(ctx, w)
	}
}

func (b *batch) deliver(ctx context.Context, w *row) {
	try, cancel := context.WithTimeout(ctx, b.r.cfg.Timeout)
	no := deliver(try, b.r.client, w.order, b.bad[w.id])
	cancel()
	if b.r.dies("answered") {
		b.stop(errCrash)
		return
	}
	if no == nil {
		b.mu.Lock()
		b.done, b.failures = append(b.done, w.id), 0
		b.mu.Unlock()
		return
	}
	if !no.final && ctx.Err() != nil {
		b.mu.Lock()
		b.left = append(b.left, w.id)
		b.mu.Unlock()
		return
	}
	b.mu.Lock()
	if no.final {
		b.failures = 0
	} else if b.failures++; b.failures >= failuresMax && b.err == nil {
		b.err = fmt.Errorf("%w: %s", errOutage, no.code)
	}
	b.mu.Unlock()
	if err := b.refused(ctx, w, no); err != nil {
		b.stop(err)
	}
	if b.r.dies("refused") {
		b.stop(errCrash)
	}
}

// stop lets no further row begin.
func (b *batch) stop(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil || errors.Is(err, errCrash) {
		b.err = err
	}
}

// refused notes why a row wasn't delivered, and when it is tried again, if at all.
func (b *batch) refused(ctx context.Context, w *row, no *refusal) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	parked, wait := 0, delay(min(w.attempts, 1000), rowDelayMin, rowDelayMax)
	if no.final {
		parked, wait = 1, 0
		b.r.cfg.Logger.Warn("outbox: sagad refuses a start for good; it is parked until it is retried or discarded",
			"row", w.id, "saga", w.sagaID, "definition", w.definition, "code", no.code)
	}
	_, err := b.r.db.exec(ctx, `UPDATE sagad_outbox SET claim = '', parked = $1, due_at = `+b.r.db.d.now+` + $2, attempts = attempts + 1, error_code = $3, error_message = $4
		WHERE id = $5 AND claim = $6`, parked, wait.Milliseconds(), no.code, no.message, w.id, b.claim)
	return wrap(err, "noting a failure")
}

// settle removes what was delivered and gives back what wasn't begun. If it can't, the lease ends, and the rows are delivered
// again, which does no harm.
func (b *batch) settle(ctx context.Context) error {
	if errors.Is(b.err, errCrash) {
		return b.err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	for _, w := range b.rows[b.next:] {
		b.left = append(b.left, w.id)
	}
	_, removed := b.each(ctx, "DELETE FROM sagad_outbox", b.done)
	if b.r.dies("removed") {
		return errCrash
	}
	_, given := b.each(ctx, "UPDATE sagad_outbox SET claim = '', due_at = 0", b.left)
	return errors.Join(wrap(removed, "removing what is delivered"), wrap(given, "giving rows back"), b.err)
}

// each does what verb says with rows by their ids, if they are still this batch's.
func (b *batch) each(ctx context.Context, verb string, ids []int64) (int64, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	var q strings.Builder
	q.WriteString(verb + " WHERE claim = $1 AND id IN (")
	args := make([]any, 0, len(ids)+1)
	args = append(args, b.claim)
	for i, id := range ids {
		if i > 0 {
			q.WriteByte(',')
		}
		q.WriteString("$" + strconv.Itoa(i+2))
		args = append(args, id)
	}
	q.WriteByte(')')
	return b.r.db.exec(ctx, q.String(), args...)
}
