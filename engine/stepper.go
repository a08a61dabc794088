package engine

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/sagad/sagad/internal/wire"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// Stepper is a node that is driven by hand: the engine with its doors, leases, timers and recovery, and without any
// goroutine, clock or chance of its own. Whoever drives it decides what happens when, so the same run can be had again.
//
//  1. [Stepper.Step] does all that can be done now, and returns the batches that are to be committed.
//  2. Each of these is committed, at any later time, and how that went is told to [Stepper.Settle], once.
//  3. Step is called again after anything was given to the node, after Settle, and at [Stepper.Wake].
//
// Tasks and the like leave through the bus that it is given, answers through the functions that were given with the
// questions; both during Step, Settle and Stop, which those functions must not call. It isn't safe for concurrent use.
type Stepper struct {
	e    *Engine
	hand Hand
	// serving are the shards that this node has, by number.
	serving []*served
	out     []*Commit

	leaseAt, clockAt, sweepAt time.Time
	stopping, stopped         bool
}

// Hand is what a [Stepper] has instead of a process's clock and chance.
type Hand struct {
	// Clock is the process's monotonic clock. Only differences count.
	Clock func() time.Time
	// Chance gives uniform random bits.
	Chance func() uint64
	// Compile makes machines; nil means [statemachine.Compile]. Who drives many nodes shares what it made.
	Compile func(*sagadv1.Definition) (*statemachine.Machine, []*sagadv1.Problem)
	// Page is how many sagas are recovered at a time, Batch how many transitions a shard commits at a time; 0 means as many
	// as in production.
	Page, Batch int
}

// Commit is a batch on its way to the store.
type Commit struct {
	// Batch must not be changed, and be committed as it is.
	Batch  *store.Batch
	loop   *loop
	flight *commit
}

// served is a shard that a stepper has.
type served struct {
	loop       *loop
	recovering bool
	// retryAt is when recovery goes on, after a wait that grows.
	retryAt  time.Time
	wait     time.Duration
	handOver bool
}

// chanceReader makes bytes of random bits.
type chanceReader func() uint64

func (r chanceReader) Read(b []byte) (int, error) {
	for i := 0; i < len(b); i += 8 {
		bits := r()
		for j := i; j < min(i+8, len(b)); j++ {
			b[j] = byte(bits)
			bits >>= 8
		}
	}
	return len(b), nil
}

// NewStepper makes a node, which takes shards from its first Step on. Config's Fault is called as in production.
func NewStepper(ctx context.Context, cfg Config, hand Hand, st store.Store, bus Bus) (*Stepper, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	e, err := newEngine(cfg, st, bus, chanceReader(hand.Chance), straysByHand)
	if err != nil {
		return nil, err
	}
	s := &Stepper{e: e, hand: hand}
	e.hand, e.chance, e.clock.hand = s, hand.Chance, hand.Clock
	e.placement.began = hand.Clock()
	e.loader.pause = func(context.Context, time.Duration) bool { return false }
	if hand.Compile != nil {
		e.definitions.compile = hand.Compile
	}
	if hand.Page > 0 {
		e.page = hand.Page
	}
	e.batchMax = hand.Batch
	if err := e.open(ctx); err != nil {
		return nil, err
	}
	e.state = running
	s.serving = make([]*served, len(e.shards))
	s.clockAt, s.sweepAt = hand.Clock().Add(clockEvery), hand.Clock().Add(e.cfg.SweepEvery)
	e.reclaim(ctx)
	return s, nil
}

// straysByHand is how many stray results wait to be recorded at most, between two steps.
const straysByHand = 64

// Step does all that can be done now and returns what is to be committed.
func (s *Stepper) Step() []*Commit {
	ctx := s.e.background
	now := s.hand.Clock()
	select {
	case <-s.e.placement.kick:
		if soon := now.Add(20 * time.Millisecond); soon.Before(s.leaseAt) {
			s.leaseAt = soon
		}
	default:
	}
	if !s.stopping && !now.Before(s.leaseAt) {
		s.e.placement.round(ctx)
		s.leaseAt = now.Add(s.e.placement.wait())
	}
	if !now.Before(s.clockAt) {
		if err := s.e.clock.measure(ctx, s.e.st); err != nil {
			s.e.log.Warn("the database's clock can't be read", "error", err)
		}
		s.clockAt = now.Add(clockEvery)
	}
	if !now.Before(s.sweepAt) {
		s.e.sweepOnce(ctx)
		s.sweepAt = now.Add(s.e.cfg.SweepEvery)
	}
	for again, rounds := true, 0; again; rounds++ {
		if rounds > 1_000_000 {
			panic("the engine doesn't come to rest")
		}
		again = false
		for _, x := range s.serving {
			again = x != nil && s.advance(x) || again
		}
		for more := true; more; {
			var asked []lookup
			if asked, more = s.e.loader.take(); len(asked) > 0 {
				s.e.loader.load(ctx, asked)
				again = true
			}
		}
		s.keepStrays()
	}
	if s.stopping && !s.stopped && !slices.ContainsFunc(s.serving, func(x *served) bool { return x != nil }) {
		s.stopped = true
		s.release()
	}
	out := s.out
	s.out = nil
	return out
}

// advance does what a shard's goroutine would do now, and says whether it did something.
func (s *Stepper) advance(x *served) bool {
	l := x.loop
	stopped := false
	select {
	case <-l.lost:
		l.gone()
		s.end(x)
		return true
	default:
	}
	select {
	case <-l.stopping:
		stopped = true
	default:
	}
	if x.recovering {
		now := s.hand.Clock()
		switch {
		case stopped:
			s.end(x)
			return true
		case now.Before(x.retryAt):
			return false
		}
		n, err := l.page(s.e.background)
		switch {
		case err != nil:
			x.wait = min(max(2*x.wait, recoverMin), recoverMax)
			x.retryAt = now.Add(x.wait)
		case n == ends:
			s.end(x)
		case n == goesOn:
			x.retryAt = now // with the next step
		default:
			x.recovering = false
			return true
		}
		return false
	}
	if stopped && !l.closing {
		l.close()
	}
	l.resend()
	switch l.advance() {
	case goesOn:
		return true
	case ends:
		s.end(x)
		return true
	}
	return false
}

func (s *Stepper) launch(sh *shard) {
	x := &served{loop: newLoop(sh), recovering: true}
	s.serving[sh.grant.Shard] = x
	x.loop.serve()
}

// send takes a loop's batch out.
func (s *Stepper) send(l *loop) {
	s.out = append(s.out, &Commit{Batch: l.flight.batch, loop: l, flight: l.flight})
}

func (s *Stepper) handOver(sh *shard) {
	if x := s.serving[sh.grant.Shard]; x != nil && x.loop.shard == sh {
		x.handOver = true
	}
}

func (s *Stepper) end(x *served) {
	id := x.loop.grant.Shard
	x.loop.end()
	close(x.loop.shard.done)
	s.serving[id] = nil
	if x.handOver {
		s.e.placement.released(x.loop.shard)
	}
}

// Settle tells how the commit of a batch went. cause is the store's error, if there was one.
func (s *Stepper) Settle(c *Commit, r store.Result, cause error) {
	x := s.serving[c.Batch.Grant.Shard]
	if x == nil || x.loop != c.loop || x.loop.flight != c.flight {
		return // the shard has ended in the meantime
	}
	s.e.metrics.commits[r].Inc()
	if !x.loop.settled(committed{result: r, cause: cause}) {
		s.end(x)
	}
}

// Wake is when Step has something to do though nothing comes in, by the process's clock. It may have passed.
func (s *Stepper) Wake() time.Time {
	now := s.hand.Clock()
	wake := s.clockAt
	sooner := func(t time.Time) {
		if t.Before(wake) {
			wake = t
		}
	}
	sooner(s.sweepAt)
	if !s.stopping {
		sooner(s.leaseAt)
	}
	if len(s.e.placement.kick) > 0 {
		sooner(now.Add(20 * time.Millisecond))
	}
	for _, x := range s.serving {
		if x == nil {
			continue
		}
		if x.recovering {
			sooner(x.retryAt)
		} else if wait, ok := x.loop.wait(); ok {
			sooner(now.Add(wait))
		}
	}
	return wake
}

// Stop begins to hand all shards over: it is done when Stopped says so, after some more steps.
func (s *Stepper) Stop() {
	if s.stopping {
		return
	}
	s.stopping = true
	p := s.e.placement
	p.stopped = true
	if _, err := p.st.Beat(s.e.background, s.e.node, time.Millisecond); err != nil {
		s.e.log.Warn("the node can't say that it stops", "error", err)
	}
	for _, x := range s.serving {
		if x != nil {
			x.loop.stop()
		}
	}
}

// Stopped says that everything has been handed over.
func (s *Stepper) Stopped() bool { return s.stopped }

func (s *Stepper) release() {
	all := make([]int, len(s.e.shards))
	for i := range all {
		all[i] = i
	}
	if err := s.e.st.Release(s.e.background, s.e.node, all); err != nil {
		s.e.log.Warn("the leases can't be given back; they will expire", "error", err)
	}
}

// Redispatch is the engine's.
func (s *Stepper) Redispatch() { s.e.Redispatch() }

// Sweep searches the store at once for sagas that nothing would wake.
func (s *Stepper) Sweep() { s.sweepAt = s.hand.Clock() }

// Owned is the engine's.
func (s *Stepper) Owned() []int { return s.e.Owned() }

// Recovering says that the node has taken a shard whose sagas it hasn't all loaded yet.
func (s *Stepper) Recovering() bool {
	return slices.ContainsFunc(s.serving, func(x *served) bool { return x != nil && x.recovering })
}

// Frozen says that the outcome of some commit isn't known.
func (s *Stepper) Frozen() bool {
	return slices.ContainsFunc(s.serving, func(x *served) bool { return x != nil && x.loop.frozen.Load() })
}

// Now is the engine's: the database's clock as this node estimates it.
func (s *Stepper) Now() time.Time { return s.e.Now() }

// Boot is the id of this process.
func (s *Stepper) Boot() uuid.UUID { return s.e.node.Boot }

// callback is a receiver for one event.
type callback func(*answer)

func (f callback) answer(_ int, a answer) { f(&a) }

// ask puts an event into its shard's mailbox; then is called once.
func (s *Stepper) ask(ev *event, err error, then callback) {
	if err == nil {
		ev.to = then
		err = s.e.submit(ev)
	}
	if err != nil {
		then(&answer{err: err})
	}
}

// Start is [Engine.StartSaga]. then is called once, now or in a later step; not at all if the stepper is dropped before.
func (s *Stepper) Start(r StartRequest, then func(StartReply, error)) {
	ev, err := s.e.startEvent(s.e.background, &r)
	s.ask(ev, err, func(a *answer) {
		if a.err != nil {
			then(StartReply{}, a.err)
			return
		}
		then(startReply(a), nil)
	})
}

// Cancel is [Engine.Cancel].
func (s *Stepper) Cancel(namespace, id string, what statemachine.Cancel, then func(sagadv1.CancelAnswer, statemachine.Status, error)) {
	ev, err := cancelEvent(namespace, id, what)
	s.ask(ev, err, func(a *answer) {
		if a.err != nil {
			then(0, 0, a.err)
			return
		}
		then(a.reply.Cancel, a.state.Status, nil)
	})
}

// Act is [Engine.Act].
func (s *Stepper) Act(namespace, id string, what statemachine.Act, then func(*statemachine.State, error)) {
	ev, err := actEvent(namespace, id, what)
	s.ask(ev, err, func(a *answer) {
		if a.err != nil {
			then(nil, a.err)
			return
		}
		then(a.state, nil)
	})
}

// Signal is [Engine.Signal].
func (s *Stepper) Signal(namespace, id string, what statemachine.Signal, then func(fresh bool, _ error)) {
	ev, err := signalEvent(namespace, id, what)
	s.ask(ev, err, func(a *answer) { then(a.err == nil && !a.reply.Duplicate, a.err) })
}

// Pause is [Engine.Pause].
func (s *Stepper) Pause(namespace, id string, what statemachine.Pause, then func(statemachine.Status, error)) {
	ev, err := controlEvent(namespace, id, what, what.Actor, what.Reason, what.RequestID)
	s.ask(ev, err, func(a *answer) { then(statusOf(a.state), a.err) })
}

// Resume is [Engine.Resume].
func (s *Stepper) Resume(namespace, id string, what statemachine.Resume, then func(statemachine.Status, error)) {
	ev, err := controlEvent(namespace, id, what, what.Actor, what.Reason, what.RequestID)
	s.ask(ev, err, func(a *answer) { then(statusOf(a.state), a.err) })
}

// Look answers with the saga as it is committed, if this node owns it.
func (s *Stepper) Look(namespace, id string, then func(*statemachine.State, *statemachine.Machine, error)) {
	s.ask(&event{key: sagaKey{namespace, id}, look: true}, checkKey(namespace, id), func(a *answer) { then(a.state, a.machine, a.err) })
}

// Results is [Engine.HandleResults].
func (s *Stepper) Results(pack *workerv1.ResultPack, reply func(*workerv1.ResultReply)) {
	s.e.HandleResults(pack, reply)
}

// Register is [Engine.Register].
func (s *Stepper) Register(ctx context.Context, namespace string, def *sagadv1.Definition) (store.Definition, bool, error) {
	return s.e.Register(ctx, namespace, def)
}

// Token opens a task's token, as the engine does.
func (s *Stepper) Token(token []byte) (*workerv1.TaskToken, error) {
	return s.e.keys.Open(token, s.e.clock.now())
}

// keepStrays records what has fitted nothing.
func (s *Stepper) keepStrays() {
	for {
		select {
		case x := <-s.e.strays:
			t := x.pack.tokens[x.index]
			run, _ := uuid.FromBytes(t.GetRun())
			err := s.e.st.KeepStray(s.e.background, store.Stray{
				At: stamp(s.e.clock.now()), Namespace: t.GetNamespace(), SagaID: t.GetSagaId(), Run: run, Step: t.GetStep(), Attempt: t.GetAttempt(),
				Outcome: int16(x.pack.results[x.index].GetOutcome()), Worker: wire.CleanText(x.pack.results[x.index].GetWorker(), workerBytesMax), Why: x.why,
			})
			if err != nil {
				x.pack.set(x.index, workerv1.Verdict_VERDICT_UNAVAILABLE)
				continue
			}
			s.e.metrics.strays.Inc()
			x.pack.set(x.index, x.verdict)
		default:
			return
		}
	}
}

// Counts are what a node has counted since it was made.
type Counts struct {
	// Repaired, Unsendable, Stalled and Quarantines are 0 unless something is wrong.
	Repaired, Unsendable, Stalled, Quarantines int
	Ahead, NotFresh, Redispatched, Strays      int
}

// Counts reads the metrics.
func (s *Stepper) Counts() Counts {
	m := s.e.metrics
	read := func(c prometheus.Counter) int {
		var v dto.Metric
		if err := c.Write(&v); err != nil {
			panic(fmt.Errorf("read a counter: %w", err)) // it can't fail
		}
		return int(v.GetCounter().GetValue())
	}
	return Counts{
		Repaired: read(m.repaired), Unsendable: read(m.unsendable), Stalled: read(m.stalled), Quarantines: read(m.quarantines),
		Ahead: read(m.ahead), NotFresh: read(m.notFresh), Redispatched: read(m.redispatched), Strays: read(m.strays),
	}
}
