package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// shard is the goroutine that drives a door while this node owns the shard.
type shard struct {
	e     *Engine
	grant store.Grant
	mail  mailbox
	// waiting counts events that have no answer yet.
	waiting atomic.Int64
	// frozen: a commit's outcome isn't known. Nobody is let in.
	frozen atomic.Bool

	// stopping is closed to stop cleanly, lost to stop at once. done is closed when the goroutine has ended.
	stopping, lost chan struct{}
	stopOnce       sync.Once
	loseOnce       sync.Once
	done           chan struct{}
	// gaveUp: ended by itself, though the lease may still be there.
	gaveUp atomic.Bool

	// For gauges.
	hot, stuck, broken, oldest atomic.Int64
	quarantined                atomic.Pointer[[]Quarantine]
}

func newShard(e *Engine, grant store.Grant) *shard {
	s := &shard{
		e: e, grant: grant,
		stopping: make(chan struct{}), lost: make(chan struct{}), done: make(chan struct{}),
	}
	s.mail.wake = make(chan struct{}, 1)
	return s
}

// stop ends the shard cleanly: nobody is let in, the batch under way is settled.
func (s *shard) stop() { s.stopOnce.Do(func() { close(s.stopping) }) }

// lose ends the shard at once: it belongs to somebody else, or may.
func (s *shard) lose() { s.loseOnce.Do(func() { close(s.lost) }) }

// submit puts events into the mailbox. It says no if too many wait, if the shard is frozen, or if it has ended.
func (s *shard) submit(limit int64, events ...*event) bool {
	n := int64(len(events))
	if s.frozen.Load() {
		return false
	}
	if s.waiting.Add(n) > limit {
		s.waiting.Add(-n)
		s.e.metrics.refusedFull.Add(float64(n))
		return false
	}
	if !s.mail.put(events) {
		s.waiting.Add(-n)
		return false
	}
	return true
}

// mailbox is where a shard's events arrive. It isn't a channel, so that the shard takes all there is at once.
type mailbox struct {
	mu     sync.Mutex
	events []*event
	found  []lookedUp
	swept  [][]sagaKey
	resend bool
	closed bool
	wake   chan struct{}
}

func (m *mailbox) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *mailbox) put(events []*event) bool {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return false
	}
	first := len(m.events) == 0
	m.events = append(m.events, events...)
	m.mu.Unlock()
	if first {
		m.signal()
	}
	return true
}

func (m *mailbox) loaded(found []lookedUp) {
	m.mu.Lock()
	if !m.closed {
		m.found = append(m.found, found...)
	}
	m.mu.Unlock()
	m.signal()
}

func (m *mailbox) sweep(unfinished []sagaKey) {
	m.mu.Lock()
	if !m.closed {
		m.swept = append(m.swept, unfinished)
	}
	m.mu.Unlock()
	m.signal()
}

// redispatch asks for all attempts that are out to be sent again.
func (m *mailbox) redispatch() {
	m.mu.Lock()
	m.resend = true
	m.mu.Unlock()
	m.signal()
}

// take hands over what there is. spare is a slice to gather the next events in.
func (m *mailbox) take(spare []*event) (events []*event, found []lookedUp, swept [][]sagaKey, resend bool) {
	m.mu.Lock()
	events, found, swept, resend = m.events, m.found, m.swept, m.resend
	m.events, m.found, m.swept, m.resend = spare[:0], nil, nil, false
	m.mu.Unlock()
	return events, found, swept, resend
}

func (m *mailbox) isClosed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closed
}

// close lets nobody in any more and returns who was.
func (m *mailbox) close() []*event {
	m.mu.Lock()
	defer m.mu.Unlock()
	events := m.events
	m.closed, m.events, m.found, m.swept = true, nil, nil, nil
	return events
}

// loop is what serves a shard: it decides what is sent to the store and when, what follows from the answers, and when the
// shard is given up. It is synchronous; a goroutine drives it, or a [Stepper].
type loop struct {
	*shard
	door *door
	// flight is the batch under way, resent as it is while its outcome isn't known.
	flight      *commit
	done        chan committed
	unknownFrom time.Time
	backoff     time.Duration
	resendAt    time.Time
	spare       []*event
	served      func()
	refreshAt   time.Time
	closing     bool
	// Recovery: the last run that was loaded, and how many sagas were.
	after uuid.UUID
	count int
}

func newLoop(s *shard) *loop {
	return &loop{shard: s, door: newDoor(s.grant, s.e.doorConfig()), done: make(chan committed, 1)}
}

// errMoving is what everybody is told who waits for a shard that isn't served here any more.
var errMoving error = unavailable("the shard is moving")

// next says what a loop does next.
type next uint8

const (
	// waits for something to happen: see [loop.wait].
	waits next = iota
	// goesOn at once.
	goesOn
	// ends.
	ends
)

// run serves the shard until it is stopped or lost.
func (s *shard) run() {
	defer close(s.done)
	l := newLoop(s)
	defer l.end()
	if !l.recover() {
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	stopping := s.stopping
	for {
		switch l.advance() {
		case goesOn:
			continue
		case ends:
			return
		}
		wake := s.mail.wake
		if l.flight != nil {
			wake = nil // what comes stays in the mailbox until the batch is settled
		}
		if wait, ok := l.wait(); ok {
			timer.Reset(wait)
		} else {
			timer.Stop()
		}
		select {
		case <-wake:
		case c := <-l.done:
			if !l.settled(c) {
				return
			}
		case <-timer.C:
			l.resend()
		case <-stopping:
			stopping = nil
			l.close()
		case <-s.lost:
			l.gone()
			return
		}
	}
}

// advance does what can be done now. While a batch is under way that is nothing.
func (l *loop) advance() next {
	switch {
	case l.flight != nil:
		return waits
	case l.closing:
		l.e.log.Debug("shard is handed over", "shard", l.grant.Shard, "epoch", l.grant.Epoch)
		return ends
	case !l.e.placement.valid():
		l.e.log.Warn("shard is given up: its lease couldn't be renewed in time", "shard", l.grant.Shard, "epoch", l.grant.Epoch)
		l.gaveUp.Store(true)
		return ends
	case l.turn():
		return goesOn
	}
	return waits
}

// gone says that the lease is another's.
func (l *loop) gone() {
	l.e.log.Info("shard is lost", "shard", l.grant.Shard, "epoch", l.grant.Epoch)
}

// close lets nobody in any more. The batch under way is still settled.
func (l *loop) close() {
	l.closing = true
	for _, ev := range l.mail.close() {
		l.door.answer(ev, answer{err: errMoving})
	}
	l.flush()
}

// turn takes what has arrived and decides it. It says whether there is more to do at once.
func (l *loop) turn() (more bool) {
	now := l.e.clock.now()
	events, found, swept, resend := l.mail.take(l.spare)
	l.door.submit(events)
	clear(events)
	l.spare = events
	l.door.loaded(found)
	for _, keys := range swept {
		if n := l.door.sweep(keys, now); n > 0 {
			l.e.metrics.repaired.Add(float64(n))
			l.e.log.Warn("sagas that nothing would have woken were repaired", "shard", l.grant.Shard, "sagas", n)
		}
	}
	if resend {
		l.door.resend(now)
	}
	batch := l.door.step(now)
	l.flush()
	l.refresh(now)
	if batch == nil {
		return !l.door.idle(now)
	}
	l.flight = &commit{batch: batch, bytes: l.door.batch.bytes, transitions: len(batch.Transitions), done: l.done}
	l.send()
	return false
}

// send sends the batch under way, for the first time or again.
func (l *loop) send() {
	if l.e.hand != nil {
		l.e.hand.send(l)
		return
	}
	l.e.commits <- l.flight
}

// resend sends the batch under way again if that is due.
func (l *loop) resend() {
	if !l.resendAt.IsZero() && !l.e.clock.local().Before(l.resendAt) {
		l.resendAt = time.Time{}
		l.send()
	}
}

// settled takes in what is known of the batch under way. It says whether the shard goes on.
func (l *loop) settled(c committed) bool {
	if c.result == store.Committed && l.backoff == 0 {
		l.flight = nil
		l.door.committed(store.Committed, l.e.clock.now(), nil)
		l.flush()
		return true
	}
	log := l.e.log.With("shard", l.grant.Shard, "epoch", l.grant.Epoch, "seq", l.flight.batch.Seq)
	if c.result == store.Refused && l.door.batch.resent {
		// That this sending is refused doesn't say that an earlier one won't land yet, in place of what would be decided
		// instead: the next batch would then be taken for written already. Only a new epoch keeps it out.
		log.Error("the database refuses a batch whose outcome wasn't known before; the shard is given up, its next owner's epoch settles it",
			"transitions", l.flight.transitions, "error", c.cause)
		l.gaveUp.Store(true)
		return false
	}
	switch c.result {
	case store.Committed, store.Already, store.Refused:
		if c.result == store.Refused && !l.door.batch.hasFresh() {
			log.Error("the database refuses a batch; it is tried one saga at a time", "transitions", l.flight.transitions, "error", c.cause)
		}
		if l.backoff > 0 {
			log.Info("the unknown commit is settled", "result", c.result.String(), "took", l.e.clock.since(l.unknownFrom))
		}
		l.flight, l.backoff, l.resendAt = nil, 0, time.Time{}
		l.frozen.Store(false)
		l.door.committed(c.result, l.e.clock.now(), c.cause)
		l.flush()
		return true
	case store.Fenced:
		log.Warn("the shard has another owner; this node's memory of it is dropped")
		l.gaveUp.Store(true)
		return false
	case store.Regressed:
		log.Error("INCIDENT: the database lost commits that this node knows of, perhaps in a failover; sagas may have been set back")
		l.gaveUp.Store(true)
		return false
	default:
		if l.backoff == 0 {
			l.unknownFrom = l.e.clock.local()
			l.backoff = resendMin
			log.Warn("the outcome of a commit isn't known; the shard is frozen and the same batch is sent again", "error", c.cause)
		} else {
			l.backoff = min(2*l.backoff, resendMax)
		}
		l.frozen.Store(true)
		l.door.batch.resent = true
		l.resendAt = l.e.clock.local().Add(l.backoff)
		if l.e.clock.since(l.unknownFrom) > l.e.cfg.LeaseTTL {
			log.Error("the outcome of a commit stays unknown; the shard is given up, its next owner settles it", "error", c.cause)
			l.gaveUp.Store(true)
			return false
		}
		return true
	}
}

// flush lets out what may leave.
func (l *loop) flush() {
	out := l.door.take()
	if len(out.tasks) > 0 {
		l.e.fault(BeforePublish)
		l.e.bus.Publish(out.tasks)
		l.e.fault(AfterPublish)
	}
	sendStops(l.e.bus, out.stops)
	if len(out.notes) > 0 {
		l.e.tell(out.notes...)
	}
	if len(out.lookups) > 0 {
		l.e.loader.ask(l.shard, out.lookups)
	}
	for _, g := range out.changed {
		l.e.watchers.tell(g.key, Change{N: g.state.N, Status: g.state.Status})
	}
	for i := range out.traces {
		l.e.traces.transition(&out.traces[i])
	}
	if len(out.answers) > 0 {
		l.e.fault(BeforeReply)
		l.shard.waiting.Add(-int64(len(out.answers)))
		for i := range out.answers {
			p := &out.answers[i]
			p.to.answer(p.index, p.answer)
		}
	}
}

// wait is how long it is to the next thing that is due; ok is false if nothing is. While a batch is under way that is sending it
// again, if it is unknown.
func (l *loop) wait() (wait time.Duration, ok bool) {
	if l.flight != nil {
		if l.resendAt.IsZero() {
			return 0, false
		}
		return max(-l.e.clock.since(l.resendAt), 0), true
	}
	wait = min(-l.e.clock.since(l.refreshAt), l.e.placement.left()+time.Millisecond)
	if at, ok := l.door.wake(); ok {
		// Rounded up: never early.
		wait = min(wait, time.Duration(at-l.e.clock.now())*time.Microsecond+time.Microsecond)
	}
	return max(wait, 0), true
}

// refresh brings the gauges up to date now and then.
func (l *loop) refresh(now statemachine.Micros) {
	d := l.door
	l.hot.Store(int64(d.hot()))
	l.stuck.Store(int64(d.stuck))
	if n := int64(d.broken); n != l.broken.Load() || n > 0 && l.e.clock.local().After(l.refreshAt) {
		l.broken.Store(n)
		q := d.quarantines()
		l.quarantined.Store(&q)
	}
	if l.e.clock.local().Before(l.refreshAt) {
		return
	}
	l.refreshAt = l.e.clock.local().Add(refreshEvery)
	l.oldest.Store(d.oldest())
	if l.served == nil {
		l.serve()
	}
}

// serve lets results in.
func (l *loop) serve() {
	stop, err := l.e.bus.Serve(l.grant.Shard, func(pack *workerv1.ResultPack, reply func(*workerv1.ResultReply)) {
		l.e.HandleResults(pack, reply)
	})
	if err != nil {
		l.e.log.Warn("results can't be received; it is tried again", "shard", l.grant.Shard, "error", err)
		return
	}
	if bus, ok := l.e.bus.(NoteBus); ok {
		stopNotes, err := bus.ServeNotes(l.grant.Shard, l.e.HandleNotes)
		if err != nil {
			l.e.log.Warn("messages from other nodes can't be received; it is tried again", "shard", l.grant.Shard, "error", err)
			stop()
			return
		}
		both := stop
		stop = func() { both(); stopNotes() }
	}
	l.served = stop
}

// recover loads the sagas that aren't terminal, and sends again what is out. It says whether the shard can be served.
func (l *loop) recover() bool {
	ctx, cancel := context.WithCancel(l.e.background)
	defer cancel()
	go func() {
		select {
		case <-l.stopping:
		case <-l.lost:
		case <-ctx.Done():
		}
		cancel()
	}()

	select {
	case l.e.recovering <- struct{}{}:
		defer func() { <-l.e.recovering }()
	case <-ctx.Done():
		return false
	}
	// Before anything is sent again: results wait in the mailbox until the sagas are there.
	l.serve()
	for wait := recoverMin; ; {
		n, err := l.page(ctx)
		switch {
		case ctx.Err() != nil:
			return false
		case err != nil:
			if !pause(ctx, wait) {
				return false
			}
			wait = min(2*wait, recoverMax)
		case n == ends:
			return false
		case n == waits:
			return true
		}
	}
}

// page takes in the next page of the sagas to be recovered. It goes on while there are more, waits after the last, and ends if
// the shard isn't this node's any more. After an error it is to be tried again.
func (l *loop) page(ctx context.Context) (next, error) {
	page, err := l.e.st.Unfinished(ctx, l.grant.Shard, l.after, l.e.page)
	var found []lookedUp
	if err == nil {
		for i := range page {
			r := l.e.loader.decode(ctx, &page[i])
			if r.failed != nil {
				err = r.failed
				break
			}
			found = append(found, r)
		}
	}
	if ctx.Err() != nil {
		return ends, nil
	}
	if err != nil {
		l.e.log.Warn("a shard's sagas can't be loaded; it is tried again", "shard", l.grant.Shard, "error", err)
		return waits, err
	}
	now := l.e.clock.now()
	for _, r := range found {
		l.door.restore(r, now)
	}
	if !l.e.placement.valid() {
		l.gaveUp.Store(true)
		return ends, nil
	}
	l.flush()
	l.count += len(page)
	if len(page) == l.e.page {
		l.after = page[len(page)-1].Saga.Run
		return goesOn, nil
	}
	l.e.log.Debug("shard is served", "shard", l.grant.Shard, "epoch", l.grant.Epoch, "sagas", l.count)
	return waits, nil
}

// end tells everybody who waits that the shard isn't served here any more.
func (l *loop) end() {
	if l.served != nil {
		l.served()
	}
	rest := l.mail.close()
	l.door.fail(errMoving)
	for _, ev := range rest {
		l.door.answer(ev, answer{err: errMoving})
	}
	out := l.door.take()
	for i := range out.answers {
		p := &out.answers[i]
		p.to.answer(p.index, p.answer)
	}
	l.waiting.Store(0)
	for _, g := range []*atomic.Int64{&l.hot, &l.stuck, &l.broken, &l.oldest} {
		g.Store(0)
	}
	l.quarantined.Store(nil)
	l.e.placement.ended(l.shard)
}
