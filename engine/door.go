package engine

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	peerv1 "github.com/sagad/sagad/proto/gen/sagad/peer/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// door is the one way to change the sagas of a shard. It is synchronous and not safe for concurrent use; it knows no
// clock, goroutine or I/O. Whoever drives it
//
//  1. submits events and gives it what it asked to be loaded,
//  2. calls step while no batch is under way: what can be decided is decided and becomes the batch,
//  3. commits the batch, and says how that went with committed,
//  4. after each of these, takes what is to leave: tasks, answers, lookups. Nothing in there is ahead of what is durable.
//
// After fail the door is of no use any more.
type door struct {
	grant store.Grant
	// seq of the last batch that is durable.
	seq int64
	cfg doorConfig

	sagas map[sagaKey]*saga
	// waiting are events of sagas that are being looked up.
	waiting map[sagaKey][]*event
	found   []lookedUp
	queue   []*event
	// head is where the queue begins.
	head int
	// single counts events at the queue's head that are to be decided one saga a batch, since the database refused them
	// together.
	single int

	timers timers
	sends  sends
	ended  struct {
		oldest, newest *saga
		count, bytes   int
	}

	batch *batch
	// spare is a batch whose memory can be used again.
	spare *batch
	out   output
	// before is what left the last time.
	before output
	// now is the time of the present step. It doesn't go back, except if the clock jumps.
	now statemachine.Micros

	broken int
	stuck  int
	// lookUntil is until when starts are looked up before they are decided.
	lookUntil statemachine.Micros
}

type doorConfig struct {
	redispatchAfter time.Duration
	parkAfter       time.Duration
	// batchMax is how many transitions a batch has at most; 0 means as many as in production.
	batchMax int
	// chance is where random numbers come from.
	chance func() uint64
	// task makes what is sent of an attempt.
	task func(*saga, statemachine.Call, int32) (*workerv1.Task, error)
	// noWorker says that no worker listens for a call.
	noWorker func(*saga, statemachine.Call) bool
	// busHealthy says that what is published gets somewhere.
	busHealthy func() bool
	metrics    *metrics
	// quarantined is told of each saga that is put aside. Stack is empty unless it is a panic's.
	quarantined func(g *saga, stack string)
	// traced says that durable transitions of sagas that are traced are wanted.
	traced bool
}

// batch is what a step decided.
type batch struct {
	store.Batch
	bytes int
	// resent: its outcome was unknown. Some earlier sending may still hold its memory.
	resent bool
	// decisions of the events that changed something, and of those that changed nothing but saw what isn't durable yet.
	decisions []decision
	// arena holds the facts, one after the other.
	arena []byte
}

// decision is an event and what it led to.
type decision struct {
	event *event
	saga  *saga
	before,
	// after is the state that the answer reflects; it is before if nothing changes.
	after *statemachine.State
	// machine of the state after: a migration changes it.
	machine    *statemachine.Machine
	transition *historyv1.Transition
	size       int
	dispatch   []statemachine.Call
	stop       []statemachine.Call
	reply      statemachine.Reply
	err        error
	stray      string
}

// output is what is to leave the door.
type output struct {
	tasks   []*workerv1.Task
	stops   []stop
	answers []pending
	// changed are the sagas of the batch that has become durable.
	changed []*saga
	// lookups are sagas to be loaded.
	lookups []store.Key
	traces  []traced
	// notes are for other sagas.
	notes []*peerv1.Note
}

// traced is a durable transition of a saga that is traced.
type traced struct {
	saga       *saga
	before     *statemachine.State
	after      *statemachine.State
	transition *historyv1.Transition
}

// lookedUp is what the store knows of a saga.
type lookedUp struct {
	key sagaKey
	// exists: there is one. The rest is set unless err is.
	exists  bool
	run     uuid.UUID
	machine *statemachine.Machine
	state   *statemachine.State
	bytes   int
	// err: its history can't be applied.
	err error
	// failed: the store couldn't answer.
	failed error
}

func newDoor(grant store.Grant, cfg doorConfig) *door {
	if cfg.batchMax == 0 {
		cfg.batchMax = batchTransitionsMax
	}
	return &door{
		grant:   grant,
		seq:     grant.LastSeq,
		cfg:     cfg,
		sagas:   map[sagaKey]*saga{},
		waiting: map[sagaKey][]*event{},
	}
}

// submit queues events.
func (d *door) submit(events []*event) {
	if d.head == len(d.queue) {
		clear(d.queue)
		d.queue, d.head = d.queue[:0], 0
	}
	d.queue = append(d.queue, events...)
}

// loaded gives what was asked for in output.lookups.
func (d *door) loaded(found []lookedUp) { d.found = append(d.found, found...) }

// restore takes in a saga that isn't terminal, before the first step. What is out is sent again.
func (d *door) restore(l lookedUp, now statemachine.Micros) {
	d.clock(now)
	if d.sagas[l.key] == nil {
		d.install(l)
	}
}

// idle says that a step would do nothing now.
func (d *door) idle(now statemachine.Micros) bool {
	if d.head < len(d.queue) || len(d.found) > 0 {
		return false
	}
	wake, ok := d.wake()
	return !ok || wake > now
}

// wake is when a step is due though nothing comes in.
func (d *door) wake() (statemachine.Micros, bool) {
	var wake statemachine.Micros
	if len(d.timers) > 0 {
		wake = d.timers[0].wake
	}
	if x := d.sends.first(); x != nil && (wake == 0 || x.due < wake) {
		wake = x.due
	}
	return wake, wake != 0
}

func (d *door) clock(now statemachine.Micros) {
	// A measurement of the clock may set it back by some milliseconds; only a real jump is followed.
	if now > d.now || d.now-now > time.Second.Microseconds() {
		d.now = now
	}
}

// step decides what can be decided. No batch may be under way. The batch that it makes, if any, is to be committed; seq
// and grant are set.
func (d *door) step(now statemachine.Micros) *store.Batch {
	if d.batch != nil {
		panic("a batch is under way")
	}
	d.clock(now)
	b := d.spare
	if d.spare = nil; b == nil {
		b = new(batch)
	}
	d.batch = b
	for len(d.found) > 0 && !d.full() {
		l := d.found[0]
		d.found = d.found[1:]
		d.answerLookup(l)
	}
	if len(d.found) == 0 {
		d.found = nil
	}
	for n := 0; n < ticksMax && len(d.timers) > 0 && d.timers[0].wake <= d.now && !d.full(); n++ {
		g := d.timers[0]
		d.cfg.metrics.timerLag(d.now - g.wake)
		g.wake = 0
		d.timers.remove(g)
		d.handle(&event{key: g.key, what: d.tick(g)})
	}
	for d.head < len(d.queue) && !d.full() {
		ev := d.queue[d.head]
		d.queue[d.head] = nil
		d.head++
		single := d.single > 0
		if single {
			d.single--
		}
		d.handle(ev)
		if single && len(b.Transitions) > 0 {
			break
		}
	}
	d.redispatch()
	d.forget()

	if len(b.Transitions) == 0 {
		// Only answers, and they were given.
		d.batch = nil
		d.reuse(b)
		return nil
	}
	b.Grant, b.Seq = d.grant, d.seq+1
	return &b.Batch
}

// reuse keeps a batch's memory for the next one.
func (d *door) reuse(b *batch) {
	clear(b.Transitions)
	clear(b.decisions)
	*b = batch{Batch: store.Batch{Transitions: b.Transitions[:0]}, decisions: b.decisions[:0], arena: b.arena[:0]}
	if cap(b.arena) > batchArenaMax {
		b.arena = nil
	}
	d.spare = b
}

func (d *door) full() bool {
	return len(d.batch.Transitions) >= d.cfg.batchMax || d.batch.bytes >= batchBytesMax ||
		d.single > 0 && len(d.batch.Transitions) > 0
}

// handle decides an event, or puts it aside until its saga is there.
func (d *door) handle(ev *event) {
	g := d.sagas[ev.key]
	if g == nil && d.fresh(ev) {
		d.decide(ev, &saga{key: ev.key, place: -1})
		return
	}
	if g == nil || g.broken == nil && g.current() == nil {
		d.park(ev)
		return
	}
	d.decide(ev, g)
}

// fresh says that an event is the start of a saga that is taken for new without being looked up. If it isn't new, the
// database refuses the batch, and it is looked up then: most starts are new, and a lookup costs as much as half a commit.
func (d *door) fresh(ev *event) bool {
	if _, isStart := ev.what.(statemachine.Start); !isStart || ev.known || ev.invalid != nil || d.now < d.lookUntil {
		return false
	}
	_, asked := d.waiting[ev.key]
	return !asked
}

func (d *door) park(ev *event) {
	ev.known = true
	events, asked := d.waiting[ev.key]
	d.waiting[ev.key] = append(events, ev)
	if !asked {
		d.lookup(ev.key)
	}
}

func (d *door) lookup(key sagaKey) {
	d.out.lookups = append(d.out.lookups, store.Key{Shard: d.grant.Shard, Namespace: key.namespace, ID: key.id})
}

// answerLookup takes in a saga that was looked up and decides the events that waited for it.
func (d *door) answerLookup(l lookedUp) {
	events := d.waiting[l.key]
	delete(d.waiting, l.key)
	g := d.sagas[l.key]
	if l.failed != nil {
		for _, ev := range events {
			d.answer(ev, answer{err: l.failed})
		}
		if g != nil && g.broken == nil && g.current() == nil {
			// A cold saga's timer may be among the events.
			g.wake = d.now + stalled.Microseconds()
			d.timers.set(g)
		}
		return
	}
	switch {
	case l.exists:
		g = d.install(l)
	case g == nil:
		// Its place, until a start takes it.
		g = &saga{key: l.key, place: -1}
	}
	for _, ev := range events {
		d.decide(ev, g)
	}
	if g.current() == nil && !l.exists {
		d.drop(g)
	}
}

// install takes in a saga as the store has it. It must not be changing: either it wasn't in memory, or cold, or broken.
func (d *door) install(l lookedUp) *saga {
	g := d.sagas[l.key]
	if g == nil {
		g = &saga{key: l.key, place: -1}
		d.sagas[l.key] = g
	}
	if g.broken != nil {
		d.broken--
	}
	if g.isEnded {
		d.unlink(g)
	}
	g.run, g.machine, g.state, g.bytes, g.broken = l.run, l.machine, l.state, l.bytes, nil
	g.touched = d.now
	if l.err != nil {
		g.state = nil
		d.quarantine(g, l.err, "")
		return g
	}
	d.settle(g)
	if g.state.Status.Terminal() {
		return g
	}
	for _, c := range g.state.InFlight() {
		cs := g.state.Call(c)
		if !g.hasSent(c, cs.Generation, cs.Attempt) {
			d.send(g, c, resumedDispatch(d.grant.Epoch)+g.resumed)
		}
	}
	g.resumed += 16
	return g
}

// drop forgets a saga that the store doesn't have.
func (d *door) drop(g *saga) {
	if g.broken != nil {
		d.broken--
	}
	if g.stuck {
		d.stuck--
	}
	if g.isEnded {
		d.unlink(g)
	}
	d.timers.remove(g)
	for len(g.sent) > 0 {
		d.unsend(g, 0)
	}
	delete(d.sagas, g.key)
}

func (g *saga) hasSent(c statemachine.Call, generation, attempt int32) bool {
	for _, x := range g.sent {
		if x.call == c && x.generation == generation && x.attempt == attempt {
			return true
		}
	}
	return false
}

// resumedDispatch is the number under which an owner sends an attempt that it didn't schedule itself. Earlier owners'
// numbers aren't known, and a message id that was used before might be swallowed as a duplicate; epochs rise with each
// owner, so they make up the high part. The first owner counts from 1.
func resumedDispatch(epoch int64) int32 {
	e := int32((epoch ^ epoch>>32) & 0x7fff)
	return e<<16 | 2
}

// decide lets the machine decide an event of a saga that is in memory.
func (d *door) decide(ev *event, g *saga) {
	if g.broken != nil {
		d.answer(ev, answer{err: d.quarantineError(g)})
		return
	}
	state := g.current()
	machine := g.currentMachine()
	x := decision{event: ev, saga: g, before: state, after: state, machine: machine}
	if ev.back != nil {
		x.reply.Verdict = workerv1.Verdict_VERDICT_UNKNOWN_SAGA
		if state != nil && ev.run == g.run {
			x.reply.Verdict = d.handedBack(g, ev.back)
		}
		d.conclude(x)
		return
	}
	if ev.look {
		if state == nil {
			x.err = &NotFoundError{What: "saga", Namespace: g.key.namespace, Name: g.key.id}
		}
		d.conclude(x)
		return
	}
	g.touched = d.now
	switch what := ev.what.(type) {
	case statemachine.Start:
		if state != nil {
			if !bytes.Equal(state.Digest, what.Digest) {
				x.err = &ConflictError{Namespace: g.key.namespace, ID: g.key.id}
			} else {
				x.reply.Duplicate = true
			}
			d.conclude(x)
			return
		}
		if ev.invalid != nil {
			x.err = ev.invalid
			d.conclude(x)
			return
		}
		machine = ev.machine
	case statemachine.Result:
		if state == nil {
			x.reply.Verdict, x.stray = workerv1.Verdict_VERDICT_UNKNOWN_SAGA, "no such saga"
			d.conclude(x)
			return
		}
		if ev.run != g.run {
			x.reply.Verdict, x.stray = workerv1.Verdict_VERDICT_UNKNOWN_SAGA, "the saga has another run"
			d.conclude(x)
			return
		}
	case statemachine.Report:
		if state == nil || ev.run != g.run {
			x.reply.Verdict = workerv1.Verdict_VERDICT_UNKNOWN_SAGA
			d.conclude(x)
			return
		}
	case statemachine.Tick:
		if state == nil {
			return
		}
	default:
		if state == nil {
			x.err = &NotFoundError{What: "saga", Namespace: g.key.namespace, Name: g.key.id}
			d.conclude(x)
			return
		}
	}

	dec, stack, err := decideSafely(machine, state, ev.what, d.now, d.cfg.chance())
	if stack != "" {
		d.quarantine(g, err, stack)
		d.answer(ev, answer{err: d.quarantineError(g)})
		return
	}
	_, isTick := ev.what.(statemachine.Tick)
	if isTick && g.next == nil && dec.Transition == nil {
		d.rearm(g)
	}
	x.reply = dec.Reply
	if err != nil {
		x.err = err
		d.conclude(x)
		return
	}
	if dec.Reply.Stray {
		x.stray = "no such step or attempt"
	}
	if dec.Reply.Ahead {
		// An attempt that was never made as far as is known here: this memory is old, or the database lost commits.
		d.cfg.metrics.ahead.Inc()
		x.err = unavailable("the result is ahead of the saga's state")
		if g.next == nil {
			g.state = nil // cold: the next event looks it up
		}
	}
	if dec.Transition == nil {
		d.conclude(x)
		return
	}

	b := d.batch
	start := len(b.arena)
	arena, err := proto.MarshalOptions{}.MarshalAppend(b.arena, dec.Transition)
	if err != nil {
		// A machine that makes facts that can't be written is broken for this saga.
		d.quarantine(g, fmt.Errorf("encode facts: %w", err), "")
		d.answer(ev, answer{err: d.quarantineError(g)})
		return
	}
	b.arena = arena
	facts := arena[start:len(arena):len(arena)]
	if state == nil {
		g.run, g.machine = ev.run, ev.machine
		d.sagas[g.key] = g
	}
	if what, isMigration := ev.what.(statemachine.Migrate); isMigration {
		machine = what.To
	}
	x.after, x.machine, x.transition, x.dispatch, x.stop, x.size = dec.State, dec.State.Machine(), dec.Transition, dec.Dispatch, dec.Stop, len(facts)
	b.bytes += len(facts)
	b.Transitions = append(b.Transitions, store.Transition{
		Run:   g.run,
		N:     dec.State.N,
		At:    stamp(d.now),
		Facts: facts,
		Saga:  g.row(d.grant.Shard, state, dec.State),
		Items: g.items(dec.State),
	})
	g.next, g.nextMachine = dec.State, machine
	b.decisions = append(b.decisions, x)
}

// decideSafely doesn't let one saga's panic take the shard down. Stack is set if there was one.
func decideSafely(
	m *statemachine.Machine, s *statemachine.State, e statemachine.Event, now statemachine.Micros, chance uint64,
) (dec statemachine.Decision, stack string, err error) {
	defer func() {
		if r := recover(); r != nil {
			stack, err = string(debug.Stack()), fmt.Errorf("deciding panicked: %v", r)
		}
	}()
	dec, err = m.Decide(s, e, now, chance)
	return dec, "", err
}

// conclude answers an event that changes nothing: at once if what it saw is durable, else with the batch.
func (d *door) conclude(x decision) {
	if x.saga.next != nil {
		d.batch.decisions = append(d.batch.decisions, x)
		return
	}
	if x.event.to != nil {
		d.out.answers = append(d.out.answers, x.pending())
	}
}

func (x *decision) pending() pending {
	_, isStart := x.event.what.(statemachine.Start)
	return pending{to: x.event.to, index: x.event.index, answer: answer{
		err: x.err, state: x.after, machine: x.machine, run: x.saga.run, created: isStart && x.transition != nil, reply: x.reply, stray: x.stray,
	}}
}

func (d *door) answer(ev *event, a answer) {
	if ev.to != nil {
		d.out.answers = append(d.out.answers, pending{to: ev.to, index: ev.index, answer: a})
	}
}

// committed says how the commit of the batch went: Committed, Already or Refused, with the cause. After Unknown the
// same batch is to be sent again; Fenced and Regressed end the door, see fail.
func (d *door) committed(r store.Result, now statemachine.Micros, cause error) {
	d.clock(now)
	b := d.batch
	d.batch = nil
	switch r {
	case store.Committed, store.Already:
		d.seq++
		d.adopt(b)
		if r == store.Committed && !b.resent {
			// Nobody else has it any more.
			d.reuse(b)
		}
	case store.Refused:
		d.refused(b, cause)
	default:
		panic("a commit that is " + r.String() + " can't be taken in")
	}
}

// adopt makes what was decided the present, and lets go what it leads to.
func (d *door) adopt(b *batch) {
	tasks := 0
	for i := range b.decisions {
		tasks += len(b.decisions[i].dispatch)
	}
	d.out.tasks = slices.Grow(d.out.tasks, tasks)
	for i := range b.decisions {
		x := &b.decisions[i]
		if x.transition != nil {
			g := x.saga
			g.state, g.machine = x.after, x.machine
			g.bytes += x.size
			if g.isEnded {
				d.ended.bytes += x.size
			}
			if g.next == x.after {
				g.next = nil
				g.touched = d.now
				d.settle(g)
				d.out.changed = append(d.out.changed, g)
			}
			if x.after.Parent != nil || x.after.Machine().HasChildren() {
				d.family(g, x.before, x.after)
			}
			d.count(x)
		}
		if x.event.to != nil {
			d.out.answers = append(d.out.answers, x.pending())
		}
	}
	for i := range b.decisions {
		x := &b.decisions[i]
		for _, c := range x.dispatch {
			cs := x.saga.state.Call(c)
			if cs != nil && cs.Phase == statemachine.InFlight && !x.saga.hasSent(c, cs.Generation, cs.Attempt) {
				d.send(x.saga, c, 1)
			}
		}
		for _, c := range x.stop {
			if x.after.Machine().HasChildren() {
				if n := noteOf(x.saga, c); n != nil {
					d.out.notes = append(d.out.notes, n)
					continue
				}
			}
			d.stop(x.saga, c)
		}
	}
	d.forget()
}

// settle brings all that follows from a saga's durable state up to date.
func (d *door) settle(g *saga) {
	s := g.state
	if stuck := s.Status == statemachine.Stuck; stuck != g.stuck {
		g.stuck = stuck
		if stuck {
			d.stuck++
		} else {
			d.stuck--
		}
	}
	for i := 0; i < len(g.sent); {
		x := g.sent[i]
		if inFlight(s, x.call, x.generation, x.attempt) {
			i++
			continue
		}
		d.unsend(g, i)
	}
	if g.paused && !s.Paused {
		for _, x := range g.sent {
			x.dispatch++
			d.publish(x) // what was to be sent meanwhile, or was lost
		}
	}
	g.paused = s.Paused
	wake, _ := s.NextWake()
	if s.Provisional {
		wake = d.now + askParentEvery.Microseconds()
	}
	g.wake = wake
	d.timers.set(g)
	if s.Status.Terminal() {
		g.oldest = 0
		d.remember(g)
		return
	}
	g.oldest, _ = g.machine.OldestUnsettled(s)
}

// rearm sets the timer after a tick that changed nothing.
func (d *door) rearm(g *saga) {
	wake, ok := g.state.NextWake()
	if g.state.Provisional {
		d.askParent(g)
		wake = d.now + askParentEvery.Microseconds()
	}
	if ok && wake <= d.now {
		// It is due and nothing happened. Don't spin.
		d.cfg.metrics.stalled.Inc()
		wake = d.now + stalled.Microseconds()
	}
	g.wake = wake
	d.timers.set(g)
}

// refused takes back a batch that the database can't write: everything is decided again, one saga a batch, and the saga
// whose batch is refused then is put aside.
func (d *door) refused(b *batch, cause error) {
	for i := range b.decisions {
		b.decisions[i].saga.next = nil
	}
	if gone, deleted := errors.AsType[*store.DeletedError](cause); deleted && d.refusedDeleted(b, gone) {
		return
	}
	if again := d.notFresh(b); again != nil {
		d.requeue(again)
		return
	}
	if len(b.Transitions) == 1 {
		for i := range b.decisions {
			x := &b.decisions[i]
			g := x.saga
			if x.transition == nil {
				continue
			}
			if g.state == nil {
				// A start: there is nothing to put aside. Its row may be there already; the next start will see it.
				delete(d.sagas, g.key)
				d.answer(x.event, answer{err: fmt.Errorf("saga %q can't be written: %w", g.key.id, cause)})
				continue
			}
			d.quarantine(g, fmt.Errorf("the database refuses its next transition: %w", cause), "")
			d.answer(x.event, answer{err: d.quarantineError(g)})
		}
		// The others only looked.
		again := make([]*event, 0, len(b.decisions))
		for i := range b.decisions {
			if b.decisions[i].transition == nil {
				again = append(again, b.decisions[i].event)
			}
		}
		d.requeue(again)
		return
	}
	again := make([]*event, len(b.decisions))
	for i := range b.decisions {
		x := &b.decisions[i]
		again[i] = x.event
		if x.saga.state == nil {
			delete(d.sagas, x.saga.key)
		}
	}
	d.requeue(again)
	d.single += len(again)
}

// refusedDeleted takes back a batch in which sagas were to begin under a version that was deleted meanwhile, or to move to it: these
// are refused, and stay as they were; all others are decided again. It says whether there were any.
func (d *door) refusedDeleted(b *batch, gone *store.DeletedError) (found bool) {
	again := make([]*event, 0, len(b.decisions))
	for i := range b.decisions {
		x := &b.decisions[i]
		if x.saga.state == nil {
			delete(d.sagas, x.saga.key)
		}
		if x.begins(gone) {
			found = true
			d.answer(x.event, answer{err: gone})
			continue
		}
		again = append(again, x.event)
	}
	if found {
		d.requeue(again)
	}
	return found
}

// begins says that the decision lets a saga begin under the version, or move to it.
func (x *decision) begins(v *store.DeletedError) bool {
	return x.transition != nil && (x.before == nil || x.before.Version != x.after.Version) &&
		x.after.Version == v.Version && x.after.Definition == v.Name && x.saga.key.namespace == v.Namespace
}

// notFresh takes back a batch with starts that were taken for new: perhaps one isn't. The starts are looked up now, and so
// are all others of the shard for a while, since who repeats one start may repeat more. nil: there were none.
func (d *door) notFresh(b *batch) (again []*event) {
	if !b.hasFresh() {
		return nil
	}
	for i := range b.decisions {
		x := &b.decisions[i]
		again = append(again, x.event)
		if _, isStart := x.event.what.(statemachine.Start); isStart {
			x.event.known = true
		}
		if x.saga.state == nil {
			delete(d.sagas, x.saga.key)
		}
	}
	d.lookUntil = d.now + lookAfterRefusal.Microseconds()
	d.cfg.metrics.notFresh.Inc()
	return again
}

// hasFresh says that the batch has starts that were taken for new.
func (b *batch) hasFresh() bool {
	for i := range b.decisions {
		x := &b.decisions[i]
		if _, isStart := x.event.what.(statemachine.Start); isStart && x.before == nil && !x.event.known {
			return true
		}
	}
	return false
}

func (d *door) requeue(events []*event) {
	d.queue = append(events, d.queue[d.head:]...)
	d.head = 0
}

// quarantine puts a saga aside. Its history stays as it is.
func (d *door) quarantine(g *saga, why error, stack string) {
	if g.broken == nil {
		d.broken++
	}
	d.sagas[g.key] = g
	g.broken, g.brokenSince = why, d.now
	g.wake = 0
	d.timers.remove(g)
	for len(g.sent) > 0 {
		d.unsend(g, 0)
	}
	d.cfg.metrics.quarantines.Inc()
	if d.cfg.quarantined != nil {
		d.cfg.quarantined(g, stack)
	}
}

func (d *door) quarantineError(g *saga) error {
	return &QuarantinedError{Namespace: g.key.namespace, ID: g.key.id, Why: g.broken.Error()}
}

// send makes a task of an attempt that is durable.
func (d *door) send(g *saga, c statemachine.Call, dispatch int32) {
	cs := g.state.Call(c)
	x := d.sends.alloc()
	*x = sent{saga: g, call: c, generation: cs.Generation, attempt: cs.Attempt, dispatch: dispatch}
	d.publish(x)
	x.due = d.now + d.cfg.redispatchAfter.Microseconds()
	g.sent = append(g.sent, x)
	d.sends.add(x)
}

func (d *door) publish(x *sent) {
	if x.saga.state.Paused {
		return // nothing is sent out; it is once the saga is resumed
	}
	if x.saga.machine.HasChildren() {
		if n := noteOf(x.saga, x.call); n != nil {
			d.out.notes = append(d.out.notes, n)
			return
		}
	}
	task, err := d.cfg.task(x.saga, x.call, x.dispatch)
	if err != nil {
		// The machine can't make the task of an attempt that it scheduled. The attempt's deadline will end it.
		d.cfg.metrics.unsendable.Inc()
		return
	}
	d.out.tasks = append(d.out.tasks, task)
}

func (d *door) unsend(g *saga, i int) {
	x := g.sent[i]
	last := len(g.sent) - 1
	g.sent[i] = g.sent[last]
	g.sent[last] = nil
	g.sent = g.sent[:last]
	d.sends.remove(x)
	d.sends.release(x)
}

// resend makes all attempts that are out due: the bus has lost what it had.
func (d *door) resend(now statemachine.Micros) {
	d.clock(now)
	for i := range d.sends.lists {
		for x := d.sends.lists[i].first; x != nil; x = x.next {
			x.due = min(x.due, d.now)
		}
	}
}

// redispatch sends attempts again that have had no result for long.
func (d *door) redispatch() {
	for n := 0; n < redispatchMax; n++ {
		x := d.sends.first()
		if x == nil || x.due > d.now {
			return
		}
		d.sends.remove(x)
		reachable := d.cfg.busHealthy()
		if reachable && x.again < redispatchDoublings {
			x.again++
		}
		x.due = d.now + d.cfg.redispatchAfter.Microseconds()<<x.again
		d.sends.add(x)
		if x.saga.state == nil || !reachable {
			continue // what was sent waits in the bus; repeats would only fill it
		}
		if cs := x.saga.state.Call(x.call); cs != nil && (cs.Deadline > d.now || cs.Deadline == 0) {
			x.dispatch++
			d.publish(x)
			d.cfg.metrics.redispatched.Inc()
		}
	}
}

// remember keeps an ended saga for a while.
func (d *door) remember(g *saga) {
	if g.isEnded {
		d.unlink(g)
	}
	g.isEnded = true
	g.older, g.newer = d.ended.newest, nil
	if g.older != nil {
		g.older.newer = g
	} else {
		d.ended.oldest = g
	}
	d.ended.newest = g
	d.ended.count++
	d.ended.bytes += g.bytes
}

func (d *door) unlink(g *saga) {
	if g.older != nil {
		g.older.newer = g.newer
	} else {
		d.ended.oldest = g.newer
	}
	if g.newer != nil {
		g.newer.older = g.older
	} else {
		d.ended.newest = g.older
	}
	g.older, g.newer, g.isEnded = nil, nil, false
	d.ended.count--
	d.ended.bytes -= g.bytes
}

// forget drops ended sagas above the limits.
func (d *door) forget() {
	for g := d.ended.oldest; g != nil && (d.ended.count > endedMax || d.ended.bytes > endedBytesMax); {
		newer := g.newer
		if g.next == nil && g.broken == nil {
			d.unlink(g)
			delete(d.sagas, g.key)
		}
		g = newer
	}
}

// fail ends the door: everybody who waits is told err. What is decided and not durable is forgotten.
func (d *door) fail(err error) {
	if d.batch != nil {
		for i := range d.batch.decisions {
			d.answer(d.batch.decisions[i].event, answer{err: err})
		}
		d.batch = nil
	}
	for _, ev := range d.queue[d.head:] {
		d.answer(ev, answer{err: err})
	}
	for _, key := range slices.SortedFunc(maps.Keys(d.waiting), sagaKey.compare) {
		for _, ev := range d.waiting[key] {
			d.answer(ev, answer{err: err})
		}
	}
	d.queue, d.head, d.waiting, d.found = nil, 0, nil, nil
	d.sagas, d.timers, d.sends = nil, nil, sends{}
	d.out.tasks, d.out.stops, d.out.lookups = nil, nil, nil
}

// take hands over what is to leave. The slices are the caller's until the next call, except for tasks, which are its
// for ever.
func (d *door) take() output {
	out := d.out
	d.out, d.before = d.before, out
	clear(d.out.answers)
	clear(d.out.traces)
	d.out = output{answers: d.out.answers[:0], changed: d.out.changed[:0], lookups: d.out.lookups[:0], traces: d.out.traces[:0]}
	return out
}

func (d *door) tick(g *saga) statemachine.Tick {
	return statemachine.Tick{NoWorker: func(c statemachine.Call) bool { return d.cfg.noWorker(g, c) }}
}

// sweep compares memory with the sagas that the store says aren't terminal, looks up what is missing, tries quarantined
// sagas again, wakes what nothing else would wake, and parks what waits for long. It returns how many sagas needed
// repair.
func (d *door) sweep(unfinished []sagaKey, now statemachine.Micros) (repaired int) {
	d.clock(now)
	for _, key := range unfinished {
		if _, known := d.sagas[key]; known {
			continue
		}
		if _, asked := d.waiting[key]; asked {
			continue
		}
		repaired++
		d.park(&event{key: key, what: statemachine.Tick{}})
	}
	var broken []sagaKey
	var lost []*event
	for _, g := range d.sagas {
		switch {
		case g.broken != nil:
			if _, asked := d.waiting[g.key]; !asked && g.next == nil {
				broken = append(broken, g.key)
			}
		case g.next != nil || g.state == nil || g.state.Status.Terminal():
		case !g.state.Waits():
			repaired++
			lost = append(lost, &event{key: g.key, what: d.tick(g)})
		case d.parkable(g):
			g.state, g.machine = nil, nil
			g.bytes = 0
		}
	}
	// What leaves the door doesn't depend on the order of a map.
	slices.SortFunc(broken, sagaKey.compare)
	for _, key := range broken {
		d.waiting[key] = nil
		d.lookup(key)
	}
	slices.SortFunc(lost, func(a, b *event) int { return a.key.compare(b.key) })
	d.submit(lost)
	return repaired
}

// parkable says that a saga has waited for long and will wait on, with nothing out.
func (d *door) parkable(g *saga) bool {
	after := d.cfg.parkAfter.Microseconds()
	return d.now-g.touched > after && len(g.sent) == 0 &&
		(g.wake == 0 || g.wake-d.now > time.Minute.Microseconds()) && len(g.state.InFlight()) == 0
}

// oldest is since when some effect of some saga isn't settled; 0: all are.
func (d *door) oldest() statemachine.Micros {
	var oldest statemachine.Micros
	for _, g := range d.sagas {
		if g.oldest != 0 && (oldest == 0 || g.oldest < oldest) {
			oldest = g.oldest
		}
	}
	return oldest
}

// quarantines lists the sagas that are put aside.
func (d *door) quarantines() []Quarantine {
	var list []Quarantine
	for _, g := range d.sagas {
		if g.broken != nil {
			list = append(list, Quarantine{
				Namespace: g.key.namespace, SagaID: g.key.id, Run: g.run, Why: g.broken.Error(), Since: stamp(g.brokenSince),
			})
		}
	}
	return list
}

// hot counts the sagas in memory that aren't terminal.
func (d *door) hot() int { return len(d.sagas) - d.ended.count }

func (d *door) count(x *decision) {
	m := d.cfg.metrics
	m.transitions.Inc()
	if x.before == nil {
		m.started.Inc()
	}
	if x.after.Status != statusOf(x.before) && x.after.Status.Terminal() {
		m.ended[x.after.Status].Inc()
	}
	for _, f := range x.transition.GetFacts() {
		if e := f.GetAttemptEnded(); e != nil {
			m.attempt(e.GetOutcome())
		}
	}
	if d.cfg.traced && x.after.Traceparent != "" {
		d.out.traces = append(d.out.traces, traced{saga: x.saga, before: x.before, after: x.after, transition: x.transition})
	}
}

func statusOf(s *statemachine.State) statemachine.Status {
	if s == nil {
		return 0
	}
	return s.Status
}

// fingerprint is equal for items of one cause.
func fingerprint(it *store.Item) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%d\x00%s\x00%d\x00%s", it.Definition, it.Kind, it.Step, it.Direction, it.Code)
	return hex.EncodeToString(h.Sum(nil))
}
