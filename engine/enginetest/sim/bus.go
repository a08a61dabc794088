package sim

import (
	"bytes"
	"fmt"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
)

const (
	// duplicateWindow is how long the bus remembers message ids.
	duplicateWindow = 2 * time.Minute
	// ackWait is when it delivers again what no worker has confirmed.
	ackWait = 10 * time.Second
	// retryAfterMax is the longest time that a worker asks to be left in peace.
	retryAfterMax = 30 * time.Second
)

// publish takes a task: it must follow from what is durable, and say what that says.
func (s *sim) publish(p *process, t *workerv1.Task) {
	s.note("task", t.GetIdempotencyKey(), int64(t.GetAttempt())<<32|int64(t.GetDispatch()))
	s.checkTask(p, t)
	if t.GetDispatch() > 1 {
		s.sometimes("a task is sent again")
	}
	id := fmt.Sprintf("%s#%d#%d", t.GetIdempotencyKey(), t.GetAttempt(), t.GetDispatch())
	if s.busDown > s.now {
		// It waits in the process's memory.
		s.after(time.Duration(s.busDown-s.now)*time.Microsecond, "bus is back", p.number, func() {
			if p.dead {
				s.sometimes("tasks that waited for the bus die with their process")
				return
			}
			s.arrive(id, t)
		})
		return
	}
	s.arrive(id, t)
	if !s.calm && s.of(s.taskAgain) {
		// Its confirmation is lost, so the publisher sends the very same message again.
		s.fault("task published twice")
		s.after(s.between(time.Millisecond, 4*time.Minute), "published again", p.number, func() { s.arrive(id, t) })
	}
}

// arrive: the bus has a task.
func (s *sim) arrive(id string, t *workerv1.Task) {
	if since, known := s.sent[id]; known && s.now-since < duplicateWindow.Microseconds() {
		s.sometimes("the bus swallows a repeated message")
		return
	}
	s.sent[id] = s.now
	if !s.calm && s.of(s.taskLost) {
		s.fault("task lost")
		return
	}
	t = proto.CloneOf(t)
	d := s.between(200*time.Microsecond, 20*time.Millisecond)
	switch {
	case s.calm:
	case s.of(s.taskHours):
		s.fault("task hours late")
		d = time.Duration(1+s.upTo(180)) * time.Minute
	case s.of(s.taskSlow):
		s.fault("task slow")
		d = s.between(10*time.Millisecond, time.Minute)
	}
	s.send(t, d)
	if !s.calm && s.of(s.taskAgain) {
		s.fault("task delivered twice")
		s.sometimes("a task is delivered twice")
		s.send(t, s.between(time.Millisecond, time.Minute))
	}
}

// send brings a task to a worker, unless the bus loses everything before.
func (s *sim) send(t *workerv1.Task, d time.Duration) {
	wipes := s.wipes
	s.tasksOut++
	s.after(d, "deliver", 0, func() {
		if s.workersDown > s.now {
			s.tasksOut--
			s.send(t, time.Duration(s.workersDown-s.now)*time.Microsecond)
			return
		}
		s.tasksOut--
		if wipes == s.wipes {
			if d > 30*time.Minute {
				s.sometimes("a task arrives hours late")
			}
			s.toWorker(t)
		}
	})
}

// checkTask holds a task to the history.
func (s *sim) checkTask(p *process, t *workerv1.Task) {
	run, err := uuid.Parse(t.GetRunId())
	m := s.models[run]
	if err != nil || m == nil || m.id != t.GetSagaId() || t.GetNamespace() != namespace {
		s.fail("I3: a task is published of a saga that isn't durable: %v", t)
	}
	dir := historyv1.Direction(t.GetDirection())
	st := m.stepsOf[t.GetStep()]
	if st == nil {
		s.fail("I3: a task is published of a step that isn't there: %v", t)
	}
	c := st.of(dir)
	deadline, scheduled := c.deadlines[t.GetAttempt()]
	if t.GetGeneration() != c.generation || !scheduled {
		if t.GetGeneration() < c.generation && t.GetGeneration() > 0 {
			return // by a former owner
		}
		s.fail("I3: saga %s: a task is published of an attempt that isn't durable: %v", m.id, t)
	}
	m.published[publication{attemptKey{t.GetStep(), dir, t.GetGeneration(), t.GetAttempt()}, p.number}] = true
	if m.paused && s.holders[s.grants[m.shard].ID] == p.number {
		s.fail("saga %s is paused; a task of %s is published", m.id, t.GetStep())
	}
	word, input := "do", c.input
	if dir == undo {
		word, input = "undo", st.do.input
	}
	switch {
	case t.GetIdempotencyKey() != fmt.Sprintf("%s/%s/-/%s/%d", run, t.GetStep(), word, t.GetGeneration()):
		s.fail("rule 3: the key of a task is %q", t.GetIdempotencyKey())
	case dir == undo && t.GetActionKey() != actionKey(run, t.GetStep()):
		s.fail("rule 7: a compensation is given the action key %q", t.GetActionKey())
	case t.GetDeadlineUs() != deadline:
		s.fail("I13: a task's deadline is %d, the attempt's %d", t.GetDeadlineUs(), deadline)
	case t.GetActivity() != st.def.GetActivity():
		s.fail("a task of %s asks for %s", t.GetStep(), t.GetActivity())
	case !bytes.Equal(t.GetInput(), input):
		s.fail("saga %s: a task of %s has the input %s, the history says %s", m.id, t.GetStep(), t.GetInput(), input)
	case dir == undo && t.GetUndo().GetOutputKnown() != c.knewOutput && t.GetGeneration() == c.generation:
		s.fail("rule 7: saga %s: a compensation of %s is told that the output is known: %v, want %v", m.id, t.GetStep(), t.GetUndo().GetOutputKnown(), c.knewOutput)
	case dir == undo && c.knewOutput && !bytes.Equal(t.GetUndo().GetOutput(), st.output):
		s.fail("rule 7: saga %s: a compensation of %s is given the output %s, want %s", m.id, t.GetStep(), t.GetUndo().GetOutput(), st.output)
	}
}

func actionKey(run uuid.UUID, step string) string { return fmt.Sprintf("%s/%s/-/do/1", run, step) }

// wipe: the bus loses everything it has.
func (s *sim) wipe() {
	s.wipes++
	clear(s.sent)
	if s.tasksOut > 0 {
		s.sometimes("a wipe of the bus with tasks outstanding")
	}
	if s.oneIn(2) {
		for _, p := range s.processes {
			if !p.dead {
				p.receive(p.step.Redispatch)
				s.sometimes("everything is sent again after a wipe")
			}
		}
	}
}

// toWorker lets a worker do a task.
func (s *sim) toWorker(t *workerv1.Task) {
	a := s.account(t)
	a.working++
	if a.working > 1 {
		s.sometimes("two workers on one call")
		if a.attempts[t.GetAttempt()] > 0 {
			s.sometimes("two workers on one attempt")
		}
	}
	a.attempts[t.GetAttempt()]++
	done := func() {
		a.working--
		a.attempts[t.GetAttempt()]--
	}
	again := func() {
		if s.oneIn(3) {
			return // it isn't delivered again: its broker lost it, too
		}
		s.send(t, ackWait)
	}
	if s.database() > t.GetDeadlineUs() && !s.oneIn(4) {
		// Nobody waits for it any more.
		s.sometimes("a worker drops a task past its deadline")
		done()
		return
	}
	if !s.calm && s.of(s.workerDiesBefore) {
		s.fault("worker dies before the effect")
		s.sometimes("a worker dies before the effect")
		done()
		again()
		return
	}
	d := s.between(500*time.Microsecond, 200*time.Millisecond)
	if !s.calm && s.of(s.slow) {
		s.fault("worker slow")
		d = s.between(100*time.Millisecond, 3*time.Duration(t.GetTimeoutUs())*time.Microsecond)
	}
	s.after(d, "work", 0, func() {
		done()
		if s.database() > t.GetDeadlineUs() {
			s.sometimes("a worker does what nobody waits for any more")
		}
		r := s.serve(t)
		if r == nil {
			return
		}
		if !s.calm && s.of(s.workerDiesAfter) {
			s.fault("worker dies after the effect")
			s.sometimes("a worker dies after the effect")
			again()
			return
		}
		r.Token, r.Worker = t.GetToken(), fmt.Sprint("w", s.upTo(3))
		s.report(t, r, 0)
		if !s.calm && r.GetOutcome() == workerv1.Outcome_OUTCOME_SUCCEEDED && s.of(s.conflicts) {
			// A worker that answers twice, differently; both are true.
			s.fault("worker answers twice")
			other := proto.CloneOf(r)
			other.Output = fmt.Appendf(nil, `{"ok":false,"v":%d}`, s.upTo(1000))
			s.after(s.between(time.Millisecond, 10*time.Second), "another answer", 0, func() { s.report(t, other, 0) })
		}
	})
}

// report sends a result until it is answered.
func (s *sim) report(t *workerv1.Task, r *workerv1.Result, try int) {
	shard := int(t.GetToken()[1])<<8 | int(t.GetToken()[2])
	var to *process
	switch subs := s.subs[shard]; {
	case !s.calm && s.of(s.wrongNode):
		s.fault("result sent to the wrong node")
		to = s.anyone()
	case len(subs) > 1 && s.of(s.staleNode):
		s.fault("result sent to a former owner")
		to = subs[s.upTo(len(subs))]
	case len(subs) > 0:
		to = subs[len(subs)-1]
	}
	answered := false
	pack := &workerv1.ResultPack{Results: []*workerv1.Result{r}}
	if !s.calm && s.of(s.resultAgain) {
		s.fault("result twice in a pack")
		pack.Results = append(pack.Results, r)
	}
	if !s.calm && s.of(s.forged) {
		s.fault("forged token")
		f := proto.CloneOf(r)
		f.Token[s.upTo(len(f.Token)-3)+3] ^= byte(1 << s.upTo(8))
		pack.Results = append(pack.Results, f)
	}
	d := s.between(100*time.Microsecond, 10*time.Millisecond)
	if !s.calm && s.of(s.resultSlow) {
		s.fault("result slow")
		d = s.between(10*time.Millisecond, 2*time.Minute)
	}
	switch {
	case to == nil || to.dead:
	case !s.calm && s.of(s.resultLost):
		s.fault("result lost")
	default:
		s.after(d, "result", to.number, func() {
			to.receive(func() {
				s.deliver(to, t, pack, func(v workerv1.Verdict) {
					if s.note("verdict", v.String(), 0); v != workerv1.Verdict_VERDICT_NOT_OWNER && v != workerv1.Verdict_VERDICT_UNAVAILABLE {
						answered = true
					}
				})
			})
		})
	}
	if !s.calm && s.of(s.resultAgain) && to != nil {
		s.fault("result sent twice")
		s.after(s.between(time.Millisecond, time.Minute), "result again", to.number, func() {
			to.receive(func() { s.deliver(to, t, pack, func(workerv1.Verdict) {}) })
		})
	}
	if try > 8 && !s.calm {
		s.sometimes("a worker gives up reporting")
		return
	}
	s.after(d+time.Duration(300+s.upTo(2000)*(try+1))*time.Millisecond, "ask again", 0, func() {
		if !answered {
			s.report(t, r, try+1)
		}
	})
}

// deliver gives a pack to a node, and holds its answer to what is durable.
func (s *sim) deliver(p *process, t *workerv1.Task, pack *workerv1.ResultPack, then func(workerv1.Verdict)) {
	if p.dead {
		return
	}
	pack = proto.CloneOf(pack)
	answered := p.ask("result")
	frozen := p.step.Frozen()
	p.step.Results(pack, func(reply *workerv1.ResultReply) {
		answered()
		if p.dead {
			return
		}
		if len(reply.GetVerdicts()) != len(pack.GetResults()) {
			s.fail("%d verdicts on %d results", len(reply.GetVerdicts()), len(pack.GetResults()))
		}
		for i, v := range reply.GetVerdicts() {
			same := bytes.Equal(pack.GetResults()[i].GetToken(), t.GetToken())
			s.checkVerdict(t, v, same)
			if v == workerv1.Verdict_VERDICT_UNAVAILABLE && frozen {
				s.sometimes("a result meets a frozen shard")
			}
		}
		v := reply.GetVerdicts()[0]
		if !s.calm && s.of(s.replyLost) {
			s.fault("reply lost")
			return
		}
		s.after(s.between(100*time.Microsecond, 5*time.Millisecond), "reply", p.number, func() { then(v) })
	})
}

func (s *sim) checkVerdict(t *workerv1.Task, v workerv1.Verdict, genuine bool) {
	if !genuine {
		if v != workerv1.Verdict_VERDICT_REFUSED && v != workerv1.Verdict_VERDICT_UNAVAILABLE && v != workerv1.Verdict_VERDICT_NOT_OWNER {
			s.fail("a forged token is answered with %s", v)
		}
		if v == workerv1.Verdict_VERDICT_REFUSED {
			s.sometimes("a forged token is refused")
		}
		return
	}
	run, _ := uuid.Parse(t.GetRunId())
	m := s.models[run]
	switch v {
	case workerv1.Verdict_VERDICT_ACCEPTED, workerv1.Verdict_VERDICT_DUPLICATE, workerv1.Verdict_VERDICT_STALE:
		if len(m.answers[attemptKey{t.GetStep(), historyv1.Direction(t.GetDirection()), t.GetGeneration(), t.GetAttempt()}]) == 0 {
			s.fail("I3: saga %s: a result of attempt %d of %s is answered with %s and isn't durable", m.id, t.GetAttempt(), t.GetStep(), v)
		}
		switch v {
		case workerv1.Verdict_VERDICT_DUPLICATE:
			s.sometimes("a repeated result is told from a new one")
		case workerv1.Verdict_VERDICT_STALE:
			s.sometimes("a result is kept as evidence")
		}
	case workerv1.Verdict_VERDICT_NOT_OWNER:
		s.sometimes("a result meets a node that doesn't own its shard")
	case workerv1.Verdict_VERDICT_UNAVAILABLE:
	default:
		s.fail("saga %s: a good result is answered with %s", m.id, v)
	}
}
