package sim

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/sagad/sagad/engine"
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/memory"
)

var errPoison = errors.New("the database can't write this: an injected fault")

var errDown = errors.New("the database can't be reached: an injected fault")

// node is a place where processes run, one after the other; two at a time if one was replaced while it stood still.
type node struct {
	number        int
	name, address string
	process       *process
}

// process is a node's process. It is the store and the bus that its engine sees.
type process struct {
	*memory.Store
	s      *sim
	node   *node
	number int
	step   *engine.Stepper
	dead   bool
	// born is when it began, rate how fast its clock runs, frozen how long it stood still with its clock.
	born   int64
	rate   float64
	frozen int64
	// paused and dbDown are until when.
	paused, pausedAt, resumed, dbDown int64
	freeze                            bool
	inbox                             []func()
	next                              int64
	// asked are the questions that it has, and since when.
	asked     map[int]question
	questions int
	// draining: it stops cleanly. replaced: another process has its name.
	draining, replaced bool
}

// boot starts a node's process.
func (s *sim) boot(n *node) {
	p := &process{Store: s.st, s: s, node: n, number: len(s.processes), born: s.now, rate: 1, asked: map[int]question{}}
	if s.drift && !s.calm {
		p.rate = 0.9 + 0.2*s.Float64()
	}
	s.note("boot", n.name, int64(p.number))
	step, err := engine.NewStepper(context.Background(), engine.Config{
		Name: n.name, Address: n.address, LeaseTTL: s.ttl, RedispatchAfter: s.redispatch, SweepEvery: s.sweep, ParkAfter: s.park,
		RebalanceAfter: s.rebalance, MovesPerSecond: 2, Logger: slog.New(listener{s}), Fault: p.point,
	}, engine.Hand{Clock: p.mono, Chance: s.Uint64, Compile: s.compile, Page: s.page, Batch: s.batch}, p, p)
	if err != nil {
		s.later(time.Second, "boot again", n.number, func() {
			if n.process == nil {
				s.boot(n)
			}
		})
		return
	}
	p.step = step
	n.process = p
	s.processes = append(s.processes, p)
	p.poke(time.Duration(s.upTo(1000)) * time.Microsecond)
}

// mono is the process's monotonic clock.
func (p *process) mono() time.Time {
	run := p.s.now - p.born - p.frozen
	if p.paused > p.s.now && p.freeze {
		run -= p.s.now - p.pausedAt
	}
	return time.UnixMicro(p.s.base).Add(time.Duration(float64(run) * p.rate * 1000))
}

// poke lets the process run soon.
func (p *process) poke(d time.Duration) {
	at := p.s.now + d.Microseconds()
	if p.dead || p.next != 0 && p.next <= at {
		return
	}
	p.next = at
	p.s.later(d, "step", p.number, func() {
		if p.next == at {
			p.next = 0
			p.run()
		}
	})
}

func (p *process) run() {
	s := p.s
	if p.dead {
		return
	}
	if p.paused > s.now {
		p.poke(time.Duration(p.paused-s.now) * time.Microsecond)
		return
	}
	commits := p.step.Step()
	if p.dead {
		return
	}
	if len(commits) > 1 && s.oneIn(2) {
		s.sometimes("several shards in one commit")
		p.commit(commits, false)
	} else {
		for _, c := range commits {
			if !p.dead {
				p.commit([]*engine.Commit{c}, false)
			}
		}
	}
	if p.dead {
		return
	}
	if p.draining && p.step.Stopped() {
		s.note("drained", p.node.name, int64(p.number))
		p.die()
		return
	}
	wait := p.step.Wake().Sub(p.mono())
	p.poke(time.Duration(float64(max(wait, 0))/p.rate) + time.Microsecond)
}

// receive gives the process something that arrives from outside: now, or once it goes on.
func (p *process) receive(f func()) {
	switch {
	case p.dead:
	case p.paused > p.s.now:
		p.inbox = append(p.inbox, f)
	default:
		f()
		p.poke(time.Duration(p.s.upTo(2000)) * time.Microsecond)
	}
}

// question is one that a process was asked.
type question struct {
	what  string
	since int64
}

// ask notes that the process is asked something, and returns what is to be called when it answers: once, unless it died.
func (p *process) ask(what string) (answered func()) {
	p.questions++
	n := p.questions
	p.asked[n] = question{what, p.s.now}
	return func() {
		if _, ok := p.asked[n]; !ok && !p.dead {
			p.s.fail("node %s answers a %s twice", p.node.name, what)
		}
		delete(p.asked, n)
	}
}

// die ends the process at once: nothing that it does gets out any more.
func (p *process) die() {
	if p.dead {
		return
	}
	s := p.s
	p.dead, p.inbox = true, nil
	for shard, subs := range s.subs {
		s.subs[shard] = slices.DeleteFunc(subs, func(x *process) bool { return x == p })
	}
	s.note("dies", p.node.name, int64(p.number))
	if p.node.process == p {
		p.node.process = nil
		wait := s.between(100*time.Millisecond, 3*s.ttl)
		s.later(wait, "restart", p.node.number, func() {
			if p.node.process == nil {
				s.boot(p.node)
			}
		})
	}
}

func (p *process) pause(d time.Duration, freeze bool) {
	p.paused, p.pausedAt, p.freeze = p.s.now+d.Microseconds(), p.s.now, freeze
	p.s.note("pause", p.node.name, d.Microseconds())
	until := p.paused
	p.s.later(d, "resume", p.number, func() {
		if p.paused == until {
			p.resume()
		}
	})
}

func (p *process) resume() {
	if p.dead {
		return
	}
	if p.freeze {
		p.frozen += p.s.now - p.pausedAt
	}
	p.paused, p.resumed = 0, p.s.now
	in := p.inbox
	p.inbox = nil
	p.s.note("resume", p.node.name, int64(len(in)))
	if len(in) > 0 {
		p.s.sometimes("a paused node goes on with what came in the meantime")
	}
	for _, f := range in {
		if !p.dead {
			f()
		}
	}
	p.poke(time.Duration(p.s.upTo(5000)) * time.Microsecond)
}

// point is the engine's fault hook.
func (p *process) point(at string) {
	s := p.s
	if p.dead || s.calm {
		return
	}
	switch {
	case at == engine.BeforePublish && s.of(s.crashPublish):
		s.fault("process dies before its tasks are published")
		s.sometimes("crash before tasks are published")
		p.die()
	case at == engine.AfterPublish && s.of(s.crashPublish):
		s.fault("process dies after its tasks were published")
		p.die()
	case at == engine.BeforeReply && s.of(s.crashReply):
		s.fault("process dies before it answers")
		s.sometimes("crash before answers")
		p.die()
	}
}

// commit sends batches to the store.
func (p *process) commit(group []*engine.Commit, single bool) {
	s := p.s
	s.o.Commits++
	s.note("commit", p.node.name, group[0].Batch.Seq)
	travel := time.Duration(s.Int64N(int64(s.commits)) + 50_000)
	unknown := func(d time.Duration) {
		s.after(d, "unknown", p.number, func() {
			if s.calm && p.dead {
				return
			}
			p.receive(func() {
				for _, c := range group {
					p.settle(c, store.Unknown, errDown)
				}
			})
		})
	}
	down := p.dbDown > s.now
	switch {
	case s.calm && !down:
	case down && s.oneIn(2), s.of(s.commitLost):
		s.fault("commit lost")
		s.o.UnknownLost++
		unknown(travel)
		return
	case down, s.of(s.answerLost):
		s.fault("commit's answer lost")
		s.o.UnknownLanded++
		s.after(travel, "land unanswered", p.number, func() { s.land(group, "unanswered") })
		unknown(travel + time.Millisecond)
		return
	case s.of(s.commitLate):
		s.fault("commit lands late")
		s.o.UnknownLost++
		unknown(travel)
		s.after(travel+s.between(time.Millisecond, 4*s.ttl), "land late", p.number, func() { s.land(group, "late") })
		return
	case s.of(s.crashBefore):
		s.fault("process dies before its commit is sent")
		s.sometimes("crash before a commit was sent")
		p.die()
		return
	case s.of(s.crashAfter):
		s.fault("process dies after its commit landed")
		s.sometimes("crash after a commit landed and before anybody knew")
		s.after(travel, "land and die", p.number, func() {
			s.land(group, "orphan")
			p.die()
		})
		return
	}
	s.after(travel, "land", p.number, func() {
		results, err := s.land(group, "")
		back := time.Duration(s.upTo(2000)) * time.Microsecond
		s.after(back, "committed", p.number, func() {
			p.receive(func() {
				for i, c := range group {
					switch {
					case p.dead:
					case results[i] == store.Refused && len(group) > 1:
						// Perhaps because of another shard's batch: each by itself.
						s.sometimes("a refused group is sent shard by shard")
						p.commit([]*engine.Commit{c}, true)
					default:
						p.settle(c, results[i], err)
					}
				}
			})
		})
	})
}

// settle tells the process what became of a batch.
func (p *process) settle(c *engine.Commit, r store.Result, err error) {
	s := p.s
	s.note("settle", r.String(), c.Batch.Seq)
	if r == store.Fenced {
		if p.resumed != 0 && s.now-p.resumed < 5_000_000 {
			s.sometimes("a paused owner goes on and is fenced")
		}
	}
	p.step.Settle(c, r, err)
}

// land lets batches arrive at the store, and holds the store and the batches to what must be true of them.
func (s *sim) land(group []*engine.Commit, how string) ([]store.Result, error) {
	batches := make([]store.Batch, len(group))
	for i, c := range group {
		batches[i] = *c.Batch
	}
	results, err := s.write(batches)
	fenced, committed := false, false
	for i := range batches {
		b := &batches[i]
		now := s.grants[b.Grant.Shard]
		current := now.ID == b.Grant.ID && now.Epoch == b.Grant.Epoch
		seq := s.seqs[b.Grant.Shard]
		s.note("landed", results[i].String(), b.Seq)
		switch results[i] {
		case store.Committed:
			committed = true
			if !current || b.Seq != seq+1 {
				s.fail("I4: a batch of epoch %d seq %d is written to shard %d, whose epoch is %d and seq %d", b.Grant.Epoch, b.Seq, b.Grant.Shard, now.Epoch, seq)
			}
			s.seqs[b.Grant.Shard] = b.Seq
			if how == "late" {
				s.sometimes("an unknown commit lands late")
			}
			s.read(b)
		case store.Already:
			if !current || b.Seq > seq {
				s.fail("I4: a batch of epoch %d seq %d is taken for a repeat in shard %d, whose epoch is %d and seq %d", b.Grant.Epoch, b.Seq, b.Grant.Shard, now.Epoch, seq)
			}
			if how == "late" {
				s.sometimes("an unknown commit lands after it was sent again")
			} else {
				s.sometimes("an unknown commit had landed: already")
			}
		case store.Fenced:
			fenced = true
			if current {
				s.fail("I4: the owner of shard %d is fenced", b.Grant.Shard)
			}
			if how == "late" {
				s.sometimes("a late commit is fenced by a new owner")
			}
			s.sometimes("a former owner's commit is fenced")
		case store.Refused:
			if !errors.Is(err, errPoison) {
				s.refused(b)
			}
		default:
			s.fail("the store answers %s", results[i])
		}
	}
	if fenced && committed {
		s.sometimes("one shard of a commit is fenced and another isn't")
	}
	return results, err
}

// write commits, unless there is something that the database can't write: then it refuses all that is in the statement.
func (s *sim) write(batches []store.Batch) ([]store.Result, error) {
	for i := range batches {
		for j := range batches[i].Transitions {
			m := s.models[batches[i].Transitions[j].Run]
			if m == nil || !s.poison[m.id] || s.grants[batches[i].Grant.Shard].ID != batches[i].Grant.ID {
				continue
			}
			if s.seqs[batches[i].Grant.Shard] != batches[i].Seq-1 {
				continue // it is written already
			}
			results := make([]store.Result, len(batches))
			for k := range results {
				results[k] = store.Refused
			}
			if len(batches[i].Transitions) > 1 {
				s.sometimes("a saga that can't be written is in a batch with others")
			} else {
				s.sometimes("a saga that can't be written is put aside")
			}
			return results, errPoison
		}
	}
	return s.st.Commit(context.Background(), batches)
}

// refused: the store refuses only a start of what is there.
func (s *sim) refused(b *store.Batch) {
	ids := map[string]bool{}
	for i := range b.Transitions {
		t := &b.Transitions[i]
		if t.N != 1 || t.Saga == nil {
			continue
		}
		if s.byID[t.Saga.ID] != nil || ids[t.Saga.ID] {
			s.sometimes("a start that was taken for new wasn't")
			return
		}
		ids[t.Saga.ID] = true
	}
	if len(ids) > 0 {
		return // perhaps because of another shard's batch
	}
	s.fail("a batch is refused that has no repeated start")
}

// read takes in a batch that has become durable.
func (s *sim) read(b *store.Batch) {
	var deadlines, results, cancels map[uuid.UUID]bool
	for i := range b.Transitions {
		t := &b.Transitions[i]
		m := s.models[t.Run]
		if m == nil {
			m = s.newModel(b.Grant.Shard, t)
		}
		if s.settings.trueClocks() && t.At.UnixMicro() > s.database() {
			s.fail("I13: a transition of %v is decided by the database's clock of %v", t.At, time.UnixMicro(s.database()))
		}
		// Nodes measure the database's clock twice a minute. After a while without faults none is far ahead any more.
		if ahead := t.At.UnixMicro() - s.database(); s.calm && s.now-s.horizon.Microseconds() > (90*time.Second).Microseconds() && ahead > 0 &&
			(!s.drift || ahead > (4*time.Second).Microseconds()) {
			s.fail("I13: a node's clock stays %v ahead of the database's", time.Duration(ahead)*time.Microsecond)
		}
		if t.At.UnixMicro() > s.database() {
			s.sometimes("a node's clock is ahead of the database's")
		}
		m.owner = s.holders[b.Grant.ID]
		if m.version < s.latest[m.def.GetName()] && t.N > 1 {
			s.sometimes("a saga goes on under the version that it was started with")
		}
		before, past := m.end, m.deadlinePast
		m.lagMax = 0
		err := m.read(t)
		s.note("transition", m.id, t.N)
		if err != nil {
			var x historyv1.Transition
			_ = proto.Unmarshal(t.Facts, &x) // what can be read of it
			s.fail("saga %s (run %s): %v\nthe facts: %v", m.id, m.run, err, prototext.Format(&x))
		}
		if s.quiet() && m.lagMax > 2_000_000 {
			s.fail("I13: saga %s: a timer is %v late and nothing is to blame", m.id, time.Duration(m.lagMax)*time.Microsecond)
		}
		if m.lagMax > 5_000_000 {
			s.sometimes("a timer is late by downtime")
		}
		if deadlines == nil {
			deadlines, results, cancels = map[uuid.UUID]bool{}, map[uuid.UUID]bool{}, map[uuid.UUID]bool{}
		}
		switch {
		case !past && m.deadlinePast:
			deadlines[m.run] = true
		case m.trigger == historyv1.Trigger_TRIGGER_CANCEL:
			cancels[m.run] = true
		case m.trigger == historyv1.Trigger_TRIGGER_RESULT:
			results[m.run] = true
		}
		if deadlines[m.run] && results[m.run] {
			s.sometimes("deadline and result of a saga in one batch")
		}
		if cancels[m.run] && results[m.run] {
			s.sometimes("cancel and result of a saga in one batch")
		}
		s.world(m, before)
	}
}

func (s *sim) newModel(shard int, t *store.Transition) *model {
	if t.Saga == nil {
		s.fail("I2: run %s begins without a row", t.Run)
	}
	id := t.Saga.ID
	if s.byID[id] != nil {
		s.fail("I5: saga %s is there twice: runs %s and %s", id, s.byID[id].run, t.Run)
	}
	if store.ShardOf(namespace, id, s.shards) != shard {
		s.fail("saga %s is written to shard %d", id, shard)
	}
	p := s.plans[versioned{t.Saga.Definition, t.Saga.Version}]
	if p == nil {
		s.fail("saga %s is started of %s version %d, which isn't registered", id, t.Saga.Definition, t.Saga.Version)
	}
	m := &model{
		plan: p, sometimes: s.sometimes, namespace: namespace, id: id, run: t.Run, shard: shard, version: t.Saga.Version, stepsOf: map[string]*modelStep{},
		answers: map[attemptKey][][]byte{}, requests: map[string]int{}, waitsAt: map[string]int64{}, signalled: map[signal]bool{}, published: map[publication]bool{}, acting: s.acting,
	}
	for _, name := range p.order {
		m.stepsOf[name] = &modelStep{def: p.steps[name], sent: map[int32]*modelSent{}}
	}
	s.models[t.Run], s.byID[id] = m, m
	s.order = append(s.order, m)
	s.open++
	return m
}

// The store, as a process sees it.

func (p *process) down(permille int) error {
	switch {
	case p.dead, p.dbDown > p.s.now:
		return errDown
	case !p.s.calm && p.s.of(permille):
		p.s.fault("a read or a lease call fails")
		return errDown
	}
	return nil
}

func (p *process) Now(ctx context.Context) (time.Time, error) {
	if err := p.down(p.s.readFails); err != nil {
		return time.Time{}, err
	}
	return p.Store.Now(ctx)
}

func (p *process) Acquire(ctx context.Context, n store.Node, shards []int, ttl time.Duration) ([]store.Grant, error) {
	if err := p.down(p.s.leaseFails); err != nil {
		return nil, err
	}
	grants, err := p.Store.Acquire(ctx, n, shards, ttl)
	for _, g := range grants {
		p.s.acquired(g)
		p.s.holders[g.ID] = p.number
	}
	if len(grants) > 0 && !p.s.calm && p.s.of(p.s.acquireLost) {
		p.s.fault("an acquire's answer is lost")
		p.s.sometimes("an acquire's answer is lost")
		return nil, errDown
	}
	return grants, err
}

// acquired notes a shard's new fence.
func (s *sim) acquired(g store.Grant) {
	s.note("acquired", "", int64(g.Shard)<<32|g.Epoch)
	if g.LastSeq != s.seqs[g.Shard] {
		s.fail("I4: shard %d is granted at seq %d; it is at %d", g.Shard, g.LastSeq, s.seqs[g.Shard])
	}
	if g.Epoch <= s.grants[g.Shard].Epoch {
		s.fail("I4: shard %d has epoch %d after %d", g.Shard, g.Epoch, s.grants[g.Shard].Epoch)
	}
	first := s.grants[g.Shard].Epoch == 0
	s.grants[g.Shard] = g
	if first {
		return
	}
	for _, o := range s.processes {
		if !o.dead && o.step.Frozen() && slices.Contains(o.step.Owned(), g.Shard) {
			s.sometimes("take-over while a commit is in doubt")
		}
		if !o.dead && o.paused > s.now && slices.Contains(o.step.Owned(), g.Shard) {
			s.sometimes("take-over from a paused owner")
		}
	}
	for _, m := range s.order {
		if m.shard != g.Shard || m.end != 0 {
			continue
		}
		if m.blocked() {
			s.sometimes("take-over of a stuck saga")
		}
		if m.backward {
			s.sometimes("take-over of an unwinding saga")
		}
		for _, name := range m.order {
			st := m.stepsOf[name]
			if st.do.phase == out || st.undo.phase == out {
				s.sometimes("take-over with attempts in flight")
			}
			if st.do.phase == waiting || st.undo.phase == waiting {
				s.sometimes("take-over with a retry waiting")
			}
		}
	}
}

func (p *process) Renew(ctx context.Context, n store.Node, ttl time.Duration) ([]int, error) {
	if err := p.down(p.s.leaseFails); err != nil {
		return nil, err
	}
	return p.Store.Renew(ctx, n, ttl)
}

func (p *process) Release(ctx context.Context, n store.Node, shards []int) error {
	if err := p.down(p.s.leaseFails); err != nil {
		return err
	}
	return p.Store.Release(ctx, n, shards)
}

func (p *process) Leases(ctx context.Context) ([]store.Lease, error) {
	if err := p.down(p.s.leaseFails); err != nil {
		return nil, err
	}
	return p.Store.Leases(ctx)
}

func (p *process) Beat(ctx context.Context, n store.Node, ttl time.Duration) ([]store.Node, error) {
	if err := p.down(p.s.leaseFails); err != nil {
		return nil, err
	}
	return p.Store.Beat(ctx, n, ttl)
}

func (p *process) Unfinished(ctx context.Context, shard int, after uuid.UUID, limit int) ([]store.Loaded, error) {
	if err := p.down(p.s.readFails); err != nil {
		if p.step != nil && p.step.Recovering() {
			p.s.sometimes("recovery while the store can't be read")
		}
		return nil, err
	}
	if p.step != nil && p.step.Recovering() && !p.s.calm && p.s.of(p.s.crashRecovery) {
		p.s.fault("process dies while it recovers a shard")
		p.s.sometimes("crash during recovery")
		p.die()
		return nil, errDown
	}
	if after != uuid.Nil && limit == p.s.page {
		p.s.sometimes("recovery in several pages")
	}
	return p.Store.Unfinished(ctx, shard, after, limit)
}

func (p *process) Load(ctx context.Context, keys []store.Key) ([]store.Loaded, error) {
	if err := p.down(p.s.readFails); err != nil {
		p.s.sometimes("a lookup fails")
		for _, k := range keys {
			if m := p.s.byID[k.ID]; m != nil && m.end == 0 && m.due() <= p.s.database() {
				p.s.sometimes("a parked saga's timer meets a store that can't be read")
			}
		}
		return nil, err
	}
	for _, k := range keys {
		if m := p.s.byID[k.ID]; m != nil && m.end != 0 {
			p.s.sometimes("an ended saga is looked up")
		} else if m != nil {
			p.s.sometimes("a saga in flight is looked up")
			if m.blocked() {
				p.s.sometimes("a parked saga wakes")
			}
		}
	}
	return p.Store.Load(ctx, keys)
}

func (p *process) Definition(ctx context.Context, ns, name string, version int32) (store.Definition, error) {
	if err := p.down(p.s.readFails); err != nil {
		return store.Definition{}, err
	}
	return p.Store.Definition(ctx, ns, name, version)
}

func (p *process) KeepStray(ctx context.Context, x store.Stray) error {
	if err := p.down(p.s.readFails); err != nil {
		return err
	}
	return p.Store.KeepStray(ctx, x)
}

// The bus, as a process sees it.

func (p *process) Publish(tasks []*workerv1.Task) {
	for _, t := range tasks {
		if p.dead {
			return
		}
		if !p.s.calm && p.s.of(p.s.crashPublish) && len(tasks) > 1 {
			p.s.fault("process dies while its tasks are published")
			p.s.sometimes("crash between the tasks of one batch")
			p.die()
			return
		}
		p.s.publish(p, t)
	}
}

// Stop is a hint, which this world's workers don't get.
func (p *process) Stop(string, string, []*workerv1.Stop) {}

func (p *process) Serve(shard int, _ func(*workerv1.ResultPack, func(*workerv1.ResultReply))) (func(), error) {
	if p.dead || !p.s.calm && p.s.of(p.s.leaseFails) {
		return nil, errDown
	}
	p.s.subs[shard] = append(p.s.subs[shard], p)
	return func() {
		subs := p.s.subs[shard]
		if i := slices.Index(subs, p); i >= 0 {
			p.s.subs[shard] = slices.Delete(subs, i, i+1)
		}
	}, nil
}

func (p *process) Listening(string, string, workerv1.Direction) bool {
	return p.s.workersDown < p.s.now
}

func (p *process) Healthy() bool { return !p.dead && p.s.busDown < p.s.now }

// listener hears what the engine logs: it says what no one else can see.
type listener struct{ s *sim }

var heard = map[string]string{
	"shard is given up: its lease couldn't be renewed in time":                                                                 "a node gives its shard up by itself",
	"the outcome of a commit stays unknown; the shard is given up, its next owner settles it":                                  "a shard is given up over an unknown commit",
	"the database refuses a batch whose outcome wasn't known before; the shard is given up, its next owner's epoch settles it": "a batch is refused after its outcome wasn't known",
	"shard is lost":        "a lease is found to be another's",
	"shard is handed over": "a shard is handed over",
	"taking back the leases of this node's last run": "a restarted node takes its leases back",
	"another process runs under this node's name and has taken its shards: give each node a name of its own (--node-name), or stop one of the two": "two processes under one name",
}

func (l listener) Enabled(context.Context, slog.Level) bool { return true }
func (l listener) Handle(_ context.Context, r slog.Record) error {
	l.s.note("log", r.Message, 0)
	if name, ok := heard[r.Message]; ok {
		l.s.sometimes(name)
	}
	return nil
}
func (l listener) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l listener) WithGroup(string) slog.Handler      { return l }
