package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sagad/sagad/engine"
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// ask is what a client asks until it has a definite answer.
type ask struct {
	what, id string
	tries    int
	// put puts it to a process; then is to be called with the error of the answer.
	put func(p *process, then func(error))
	// done is called with the definite answer.
	done     func(error)
	answered bool
	to       *process
}

// put asks some node, again and again.
func (s *sim) put(a *ask) {
	s.asks = append(s.asks, a)
	s.try(a)
}

func (s *sim) try(a *ask) {
	if a.answered {
		return
	}
	a.tries++
	p := a.to
	a.to = nil
	if p == nil || p.dead {
		p = s.anyone()
	}
	try := a.tries
	s.after(a.patience(s), "no answer", 0, func() {
		if a.tries == try {
			s.try(a)
		}
	})
	if p == nil {
		return
	}
	s.after(s.between(100*time.Microsecond, 20*time.Millisecond), a.what, p.number, func() {
		p.receive(func() {
			a.put(p, func(err error) {
				if p.dead || !s.calm && s.of(s.replyLost) {
					return
				}
				s.after(s.between(100*time.Microsecond, 5*time.Millisecond), "answer", p.number, func() { s.answered(a, err) })
			})
		})
	})
}

// patience is how long the client waits for an answer: longer each time, as it would else make a busy node busier.
func (a *ask) patience(s *sim) time.Duration {
	return time.Duration(500+s.upTo(2500)) * time.Millisecond << min(a.tries/2, 4)
}

// anyone is some process that lives, mostly; nil if there is none.
func (s *sim) anyone() *process {
	for range 8 {
		if n := len(s.processes); n == 0 {
			return nil
		} else if p := s.processes[n-1-s.upTo(min(n, 8))]; !p.dead || s.oneIn(6) {
			return p
		}
	}
	return nil
}

func (s *sim) answered(a *ask, err error) {
	if a.answered {
		return
	}
	if err != nil {
		s.note("error", err.Error(), 0)
	}
	if err != nil && !definite(err) {
		if not, ok := errors.AsType[*engine.NotOwnerError](err); ok {
			s.sometimes("a request is passed on to the owner")
			for _, n := range s.nodes {
				if n.address == not.Address {
					a.to = n.process
				}
			}
		}
		a.tries++
		try := a.tries
		s.after(a.patience(s)/5, "ask on", 0, func() {
			if a.tries == try {
				s.try(a)
			}
		})
		return
	}
	a.answered = true
	s.asks = slices.DeleteFunc(s.asks, func(x *ask) bool { return x == a })
	a.done(err)
}

// plan lays out what clients will ask for.
func (s *sim) plan() {
	for i := range s.sagas {
		id := fmt.Sprint("s-", i)
		def := s.names[s.upTo(len(s.names))]
		at := time.Duration(s.Int64N(int64(s.horizon)))
		if s.oneIn(3) {
			at = time.Duration(s.upTo(20)) * time.Second % s.horizon // many at a time
		}
		input := s.whole(inputWhole)
		if s.oneIn(3) {
			input = s.whole(inputPoor)
		}
		s.after(at, "client", 0, func() { s.startSaga(id, def, input) })
		if s.of(s.repeats) {
			s.after(at+s.between(time.Millisecond, s.horizon), "client again", 0, func() { s.startSaga(id, def, input) })
		}
		if s.of(s.repeats) && s.oneIn(2) {
			s.after(at, "client twice", 0, func() { s.startSaga(id, def, input) })
		}
		if s.of(s.otherContent) {
			other := fmt.Appendf(nil, `{"a":false,"b":true,"x":{"n":%d},"pad":%q}`, s.upTo(10), strings.Repeat("q", s.padding))
			d := time.Duration(0)
			if s.oneIn(2) {
				d = s.between(time.Millisecond, 10*time.Second)
			}
			s.after(at+d, "client with other content", 0, func() { s.startSaga(id, def, other) })
		}
		if s.of(s.cancels) {
			s.after(at+s.between(10*time.Millisecond, time.Minute), "cancels", 0, func() { s.cancel(id) })
		}
		if s.of(s.signals) {
			for k := range 1 + s.upTo(3) {
				name, key := fmt.Sprint("go", s.upTo(2)), fmt.Sprint("k", k)
				s.after(at+s.between(time.Millisecond, 2*time.Minute), "signals", 0, func() { s.signal(id, name, key) })
			}
		}
		if s.of(s.pauses) {
			begin := at + s.between(time.Millisecond, time.Minute)
			s.after(begin, "pauses", 0, func() { s.pause(id, true) })
			s.after(begin+s.between(10*time.Millisecond, 5*time.Minute), "resumes", 0, func() { s.pause(id, false) })
		}
		if s.of(s.looks) {
			s.after(at+s.between(time.Millisecond, time.Minute), "looks", 0, func() { s.look(id) })
		}
	}
	for range s.versions {
		name := s.names[s.upTo(len(s.names))]
		s.after(time.Duration(s.Int64N(int64(s.horizon))), "new version", 0, func() { s.newVersion(name) })
	}
}

// signal tells a saga something.
func (s *sim) signal(id, name, key string) {
	sent := 0
	s.put(&ask{
		what: "signal", id: id,
		put: func(p *process, then func(error)) {
			if sent++; sent > 1 {
				s.sometimes("a signal is repeated")
			}
			answered := p.ask("signal")
			p.step.Signal(namespace, id, statemachine.Signal{Name: name, Key: key, Payload: []byte("true"), Actor: "carl"}, func(_ bool, err error) {
				answered()
				if p.dead {
					return
				}
				if m := s.byID[id]; err == nil && (m == nil || !m.signalled[signal{name, key}]) {
					s.fail("I3: signal %s %s to %s is answered and isn't durable", name, key, id)
				}
				then(err)
			})
		},
		done: func(err error) {
			var none *engine.NotFoundError
			var refusal *statemachine.Refusal
			if err != nil && !errors.As(err, &none) && !errors.As(err, &refusal) {
				s.fail("the signal to %s is answered with: %v", id, err)
			}
		},
	})
}

// pause stops a saga from sending anything, or lets it go on.
func (s *sim) pause(id string, stop bool) {
	s.requestNumber++
	request := fmt.Sprint("pause-", s.requestNumber)
	s.put(&ask{
		what: "pause", id: id,
		put: func(p *process, then func(error)) {
			answered := p.ask("pause")
			reply := func(_ statemachine.Status, err error) {
				answered()
				if p.dead {
					return
				}
				if err == nil && s.byID[id] == nil {
					s.fail("I3: a pause of %s is answered, and there is no such saga", id)
				}
				then(err)
			}
			if stop {
				p.step.Pause(namespace, id, statemachine.Pause{Actor: "dora", Reason: "because", RequestID: request}, reply)
			} else {
				p.step.Resume(namespace, id, statemachine.Resume{Actor: "dora", Reason: "because", RequestID: request}, reply)
			}
		},
		done: func(err error) {
			var none *engine.NotFoundError
			var refusal *statemachine.Refusal
			if err != nil && !errors.As(err, &none) && !errors.As(err, &refusal) {
				s.fail("the pause of %s is answered with: %v", id, err)
			}
		},
	})
}

// look reads a saga from its owner's memory: what it says must be durable.
func (s *sim) look(id string) {
	s.put(&ask{
		what: "look", id: id,
		put: func(p *process, then func(error)) {
			answered := p.ask("look")
			p.step.Look(namespace, id, func(st *statemachine.State, _ *statemachine.Machine, err error) {
				answered()
				if p.dead {
					return
				}
				if m := s.byID[id]; err == nil && (m == nil || st.N > m.n || st.N == m.n && store.Status(st.Status) != m.status) {
					s.fail("I3: saga %s is read at transition %d with status %s, which isn't durable", id, st.N, st.Status)
				} else if err == nil && st.N < m.n {
					s.sometimes("a read of what is no longer the latest")
				}
				then(err)
			})
		},
		done: func(err error) {
			var none *engine.NotFoundError
			if err != nil && !errors.As(err, &none) {
				s.fail("the read of %s is answered with: %v", id, err)
			}
		},
	})
}

func (s *sim) startSaga(id, def string, input []byte) {
	if m := s.byID[id]; m != nil && m.end != 0 {
		s.sometimes("a start is repeated after its saga ended")
	}
	s.put(&ask{
		what: "start", id: id,
		put: func(p *process, then func(error)) {
			answered := p.ask("start")
			p.step.Start(engine.StartRequest{Namespace: namespace, ID: id, Definition: def, Input: input, Actor: "client"}, func(r engine.StartReply, err error) {
				answered()
				if p.dead {
					return
				}
				s.checkStart(id, input, r, err)
				then(err)
			})
		},
		done: func(err error) {
			var conflict *engine.ConflictError
			if err != nil && !errors.As(err, &conflict) {
				s.fail("the start of %s is answered with: %v", id, err)
			}
		},
	})
}

// checkStart holds an answer to what is durable: I3 and I5.
func (s *sim) checkStart(id string, input []byte, r engine.StartReply, err error) {
	m := s.byID[id]
	conflict, isConflict := errors.AsType[*engine.ConflictError](err)
	switch {
	case err == nil && (m == nil || m.run != r.Run):
		s.fail("I3: the start of %s is answered with run %s, which isn't durable", id, r.Run)
	case err == nil && m.version != r.Version:
		s.fail("I3: the start of %s is answered with version %d; it has %d", id, r.Version, m.version)
	case err == nil && m.input != string(input):
		s.fail("I5: the start of %s is answered as if it were the saga that was started with other content", id)
	case err == nil && r.Created:
		if m.created++; m.created > 1 {
			s.fail("I5: saga %s is created twice", id)
		}
	case err == nil:
		s.sometimes("the same start twice is one saga")
	case isConflict:
		if m == nil || m.input == string(input) {
			s.fail("I5: the start of %s is refused and nothing else has its id", id)
		}
		if strings.Contains(conflict.Error(), "pad") {
			s.fail("I5: a refusal shows content: %v", conflict)
		}
		s.sometimes("the same id with other content is refused")
	}
}

func (s *sim) cancel(id string) {
	s.requestNumber++
	request := fmt.Sprint("cancel-", s.requestNumber)
	sent := 0
	s.put(&ask{
		what: "cancel", id: id,
		put: func(p *process, then func(error)) {
			if sent++; sent > 1 {
				s.sometimes("a cancel is repeated")
			}
			answered := p.ask("cancel")
			p.step.Cancel(namespace, id, statemachine.Cancel{Actor: "ann", Reason: "because", RequestID: request}, func(a sagadv1.CancelAnswer, _ statemachine.Status, err error) {
				answered()
				if p.dead {
					return
				}
				if err == nil {
					s.checkCancel(id, a)
				}
				then(err)
			})
		},
		done: func(err error) {
			var none *engine.NotFoundError
			if err != nil && !errors.As(err, &none) {
				s.fail("the cancel of %s is answered with: %v", id, err)
			}
		},
	})
}

func (s *sim) checkCancel(id string, a sagadv1.CancelAnswer) {
	m := s.byID[id]
	if m == nil {
		s.fail("I3: a cancel of %s is answered with %s, and there is no such saga", id, a)
	}
	ok := true
	switch a {
	case sagadv1.CancelAnswer_CANCEL_ANSWER_WILL_UNWIND:
		ok = m.backward && m.cancelled
	case sagadv1.CancelAnswer_CANCEL_ANSWER_ALREADY_UNWINDING:
		ok = m.backward
		s.sometimes("cancel of a saga that unwinds")
	case sagadv1.CancelAnswer_CANCEL_ANSWER_TOO_LATE_COMPLETED:
		ok = m.end == store.Completed
		s.sometimes("cancel too late: completed")
	case sagadv1.CancelAnswer_CANCEL_ANSWER_TOO_LATE_PAST_PIVOT:
		ok = m.everPivot
		s.sometimes("cancel too late: past the pivot")
	case sagadv1.CancelAnswer_CANCEL_ANSWER_ALREADY_ENDED:
		ok = m.end != 0
		s.sometimes("cancel of an ended saga")
	default:
		ok = false
	}
	if !ok {
		s.fail("rule 9: saga %s: a cancel is answered with %s; status %d, backward %v", id, a, m.status, m.backward)
	}
}

type itemKey struct {
	id     string
	number int32
}

// act is what a person does.
type act struct {
	id         string
	item       int32
	version    int64
	action     historyv1.OperatorAction
	allRefused bool
}

// operator looks at the open items every so often, and does something about some of them.
func (s *sim) operator() {
	every := s.between(200*time.Millisecond, 10*time.Second)
	if s.calm {
		every = 2 * time.Second
	}
	s.later(every, "operator", 0, func() {
		if s.calm || s.operators > 0 && !s.oneIn(3) {
			items, err := s.st.Items(context.Background(), store.ItemFilter{Namespace: namespace, Limit: 50})
			if err != nil {
				s.fail("%v", err)
			}
			for i := range items {
				if s.calm || s.oneIn(3) {
					s.handle(&items[i])
				}
			}
			for _, m := range s.order {
				if key := (itemKey{m.id, 0}); s.calm && m.paused && m.end == 0 && s.now >= s.actedAt[key] {
					s.actedAt[key] = s.now + (20 * time.Second).Microseconds()
					s.pause(m.id, false)
				}
			}
		}
		s.operator()
	})
}

var actions = []historyv1.OperatorAction{
	historyv1.OperatorAction_OPERATOR_ACTION_RETRY, historyv1.OperatorAction_OPERATOR_ACTION_RESOLVE, historyv1.OperatorAction_OPERATOR_ACTION_COMPLETE,
	historyv1.OperatorAction_OPERATOR_ACTION_ABANDON, historyv1.OperatorAction_OPERATOR_ACTION_ACKNOWLEDGE,
	historyv1.OperatorAction_OPERATOR_ACTION_ANSWER,
}

// handle does something about an item.
func (s *sim) handle(it *store.Item) {
	if at := s.actedAt[itemKey{it.SagaID, it.Number}]; at > 0 && s.now-at < (20*time.Second).Microseconds() {
		return // somebody is at it
	}
	s.actedAt[itemKey{it.SagaID, it.Number}] = s.now
	s.actCount++
	request := fmt.Sprint("act-", s.actCount)
	a := &act{id: it.SagaID, item: it.Number, version: it.Version}
	m := s.byID[it.SagaID]
	isStep := m.stepsOf[it.Step] != nil
	switch {
	case !s.calm && s.of(s.personErrs):
		a.action = actions[s.upTo(len(actions))]
		if s.oneIn(2) {
			a.version = max(1, it.Version-int64(1+s.upTo(3)))
		}
	case it.Kind == int16(historyv1.ItemKind_ITEM_KIND_APPROVAL):
		if s.oneIn(3) {
			return // nobody has the time
		}
		a.action = historyv1.OperatorAction_OPERATOR_ACTION_ANSWER
	case !it.Blocking:
		a.action = historyv1.OperatorAction_OPERATOR_ACTION_ACKNOWLEDGE
		if !s.calm && m.end == 0 && s.oneIn(20) {
			a.action = historyv1.OperatorAction_OPERATOR_ACTION_ABANDON
		}
	case it.Status == int16(historyv1.ItemStatus_ITEM_STATUS_RETRYING):
		if s.calm || !s.oneIn(20) {
			return
		}
		a.action = historyv1.OperatorAction_OPERATOR_ACTION_ABANDON
	case s.oneIn(12):
		a.action = historyv1.OperatorAction_OPERATOR_ACTION_ABANDON
	case s.oneIn(3) && it.Kind != int16(historyv1.ItemKind_ITEM_KIND_EXPRESSION):
		a.action = historyv1.OperatorAction_OPERATOR_ACTION_RETRY
	case it.Direction == int16(undo):
		a.action = historyv1.OperatorAction_OPERATOR_ACTION_RESOLVE
	case isStep && s.oneIn(2):
		a.action = historyv1.OperatorAction_OPERATOR_ACTION_RESOLVE
	default:
		a.action = historyv1.OperatorAction_OPERATOR_ACTION_COMPLETE
	}
	if !s.calm && s.oneIn(6) {
		a.version = 0
	}
	output := []byte("true")
	if isStep {
		output = s.whole(outputWhole)
	} else if x := m.places[it.Step]; x != nil && x.isSwitch {
		output = []byte("-1")
	}
	s.acts[request] = a
	what := statemachine.Act{
		Item: a.item, Version: a.version, Action: a.action, Actor: "bob", Reason: "because", Evidence: "ticket", RequestID: request, Output: output,
	}
	put := func() {
		s.put(&ask{
			what: "act", id: it.SagaID,
			put: func(p *process, then func(error)) {
				answered := p.ask("act")
				p.step.Act(namespace, a.id, what, func(st *statemachine.State, err error) {
					answered()
					if p.dead {
						return
					}
					s.checkAct(p, m, request, a, st, err)
					then(err)
				})
			},
			done: func(err error) {
				var refusal *statemachine.Refusal
				if err != nil && !errors.As(err, &refusal) {
					s.fail("act %s on %s is answered with: %v", request, a.id, err)
				}
				if err != nil && m.requests[request] == 0 {
					a.allRefused = true
				}
			},
		})
	}
	put()
	if !s.calm && s.oneIn(8) {
		s.sometimes("an act is sent twice under one request id")
		s.after(s.between(time.Millisecond, 5*time.Second), "act again", 0, put)
	}
}

func (s *sim) checkAct(p *process, m *model, request string, a *act, st *statemachine.State, err error) {
	if refusal, ok := errors.AsType[*statemachine.Refusal](err); ok {
		switch refusal.Code {
		case statemachine.RefusedStale:
			s.sometimes("a stale version is refused")
		case statemachine.RefusedNotAllowed:
			s.sometimes("an act that isn't allowed is refused")
		}
		if m.requests[request] > 0 && s.holders[s.grants[m.shard].ID] == p.number {
			s.fail("I12: act %s on %s took effect, and its repeat is refused: %v", request, m.id, refusal)
		}
		return
	}
	a.allRefused = false
	if err == nil && m.requests[request] == 0 {
		s.fail("I3: act %s on %s is answered and isn't durable", request, m.id)
	}
	if err == nil && st.N > m.n {
		s.fail("I3: an act on %s is answered with transition %d, %d are durable", m.id, st.N, m.n)
	}
}

// acting: an act takes effect only on the version that the person saw, and as they asked for it: I12.
func (s *sim) acting(m *model, request string, number int32, it *modelItem, e *historyv1.OperatorActed) error {
	a := s.acts[request]
	if a == nil || a.id != m.id || a.item != number || a.action != e.GetAction() || e.GetActor() != "bob" || e.GetReason() != "because" {
		return fmt.Errorf("I12: nobody asked for %v (request %q)", e, request)
	}
	if a.version == 0 {
		m.sometimes("an act takes effect whatever the version")
	} else if a.version != it.version {
		return fmt.Errorf("I12: an act on version %d of item %d takes effect on version %d", a.version, number, it.version)
	}
	return nil
}
