package statemachine

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/sagad/sagad/internal/expr"
	"github.com/sagad/sagad/internal/retry"
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
)

// Decide says what an event leads to at the time now. s is nil for a [Start] and isn't changed. chance is uniform random
// bits. An error is a *[Refusal]: the event changes nothing.
func (m *Machine) Decide(s *State, e Event, now Micros, chance uint64) (Decision, error) {
	d := decider{m: m, now: now, chance: chance}
	if start, ok := e.(Start); ok {
		if s != nil {
			return Decision{State: s}, &Refusal{Code: RefusedNotAllowed, Message: "the saga has been started"}
		}
		d.s = m.empty()
		d.s.N = 1
		d.start(start)
		return d.decision(nil, historyv1.Trigger_TRIGGER_START, ""), nil
	}
	if s == nil {
		return Decision{}, &Refusal{Code: RefusedNotFound, Message: "there is no such saga"}
	}
	if act, ok := e.(Act); s.N >= transitionsMax && !(ok && act.Action == historyv1.OperatorAction_OPERATOR_ACTION_ABANDON) {
		return Decision{State: s}, &Refusal{Code: RefusedHistoryLimit, Message: fmt.Sprintf("the saga's history has reached its limit of %d transitions", transitionsMax)}
	}
	d.s = s.clone()
	d.s.N++
	var err error
	var trigger historyv1.Trigger
	var requestID string
	switch e := e.(type) {
	case Result:
		trigger = historyv1.Trigger_TRIGGER_RESULT
		d.result(e)
	case Tick:
		trigger = historyv1.Trigger_TRIGGER_TIMER
		d.tick(e)
	case Cancel:
		trigger, requestID = historyv1.Trigger_TRIGGER_CANCEL, e.RequestID
		d.cancel(e)
	case Act:
		trigger, requestID = historyv1.Trigger_TRIGGER_OPERATOR, e.RequestID
		err = d.act(e)
	case Signal:
		trigger = historyv1.Trigger_TRIGGER_SIGNAL
		err = d.signal(e)
	case Pause:
		trigger, requestID = historyv1.Trigger_TRIGGER_OPERATOR, e.RequestID
		err = d.pause(e)
	case Resume:
		trigger, requestID = historyv1.Trigger_TRIGGER_OPERATOR, e.RequestID
		err = d.resume(e)
	case Report:
		trigger = historyv1.Trigger_TRIGGER_REPORT
		d.report(e)
	case Migrate:
		trigger, requestID = historyv1.Trigger_TRIGGER_MIGRATION, e.RequestID
		err = d.migrate(e)
	case Unwind:
		trigger = historyv1.Trigger_TRIGGER_PARENT
		err = d.unwindChild()
	case ParentEnded:
		trigger = historyv1.Trigger_TRIGGER_PARENT
		d.parentEnded(e)
	default:
		err = &Refusal{Code: RefusedInvalid, Message: fmt.Sprintf("unknown event %T", e)}
	}
	if err != nil {
		return Decision{State: s, Reply: d.reply}, err
	}
	return d.decision(s, trigger, requestID), nil
}

// decider works on a state of its own, which each fact changes as it will when it is folded later.
type decider struct {
	m        *Machine
	s        *State
	now      Micros
	chance   uint64
	facts    []*historyv1.Fact
	dispatch []Call
	stop     []Call
	reply    Reply
}

func (d *decider) decision(before *State, trigger historyv1.Trigger, requestID string) Decision {
	if len(d.facts) == 0 {
		return Decision{State: before, Reply: d.reply}
	}
	if requestID != "" {
		d.s.requests = append(d.s.requests, requestID)
		if len(d.s.requests) > requestsMax {
			d.s.requests = append([]string(nil), d.s.requests[len(d.s.requests)-requestsMax:]...)
		}
	}
	return Decision{
		Transition: &historyv1.Transition{Facts: d.facts, AtUs: d.now, Trigger: trigger, RequestId: requestID},
		State:      d.s, Dispatch: d.dispatch, Stop: d.stop, Reply: d.reply,
	}
}

func (d *decider) emit(f *historyv1.Fact) {
	if d.facts == nil {
		d.facts = make([]*historyv1.Fact, 0, 2)
	}
	d.facts = append(d.facts, f)
	if err := d.m.evolve(d.s, f, d.now); err != nil {
		panic(fmt.Sprintf("decide wrote a fact that doesn't fold: %v", err)) // a bug here; the engine quarantines the saga
	}
}

// random gives a new number each time, all of them from the chance that was given (splitmix64, Steele et al. 2014).
func (d *decider) random() uint64 {
	d.chance += 0x9e3779b97f4a7c15
	z := d.chance
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (d *decider) start(e Start) {
	var deadline Micros
	if d.m.deadline != 0 {
		deadline = d.now + d.m.deadline
	}
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_Started{Started: &historyv1.Started{
		Namespace: e.Namespace, SagaId: e.SagaID, Definition: d.m.def.GetName(), Version: e.Version, DefinitionHash: d.m.Hash(),
		Input: orNull(e.Input), RequestDigest: e.Digest, DeadlineUs: deadline, Traceparent: e.Traceparent, Actor: e.Actor, Labels: e.Labels,
		Parent: e.Parent,
	}}})
	d.progress()
}

// where is a run of a body: the definition's own, or at an item.
type where struct {
	body int
	item string
}

func (d *decider) frame(w where) *Frame { return d.m.frame(d.s, w.body, w.item) }

// step is a step's state at an item that exists.
func (d *decider) step(i int, item string) *StepState {
	st := &d.m.steps[i]
	return &d.m.frame(d.s, st.body, item).Steps[st.slot]
}

func (d *decider) place(i int, item string) *PlaceState {
	p := &d.m.places[i]
	return &d.m.frame(d.s, p.body, item).Places[p.slot]
}

func (d *decider) callOf(i int, item string, dir historyv1.Direction) Call {
	return Call{Step: d.m.steps[i].name, Item: item, Dir: dir}
}

// progress lets everything happen that the state allows.
func (d *decider) progress() {
	if d.s.Status.Terminal() || d.s.Paused || d.s.Provisional {
		return
	}
	if !d.s.Backward {
		// What is undone meanwhile, after the work was given up or lost a race, comes first: the end waits for it.
		if d.sequence(d.m.bodies[0].nodes, where{}) && !d.s.Status.Terminal() && d.forward() && d.s.live == 0 {
			d.complete(nil)
		}
	}
	if !d.s.Status.Terminal() && !d.s.Provisional {
		if d.s.Backward {
			d.unwind()
		} else {
			d.unwindScopes()
		}
	}
}

// forward says whether new steps may start: nothing starts while the saga turns back or waits for a person.
func (d *decider) forward() bool { return d.s.Status == Running && !d.s.Paused && !d.s.Provisional }

// backward says whether what stands in a body turned back.
func (d *decider) backward(w where) bool {
	if d.s.Backward {
		return true
	}
	for w.body != 0 {
		if p := d.frame(w).Phase; p == FrameUnwinding || p == FrameUndone {
			return true
		}
		w = d.m.out(w)
	}
	return false
}

// out is where the block stands that runs the body.
func (m *Machine) out(w where) where {
	return where{m.places[m.bodies[w.body].owner].body, m.outer(w.body, w.item)}
}

// sequence starts what can start and says whether all nodes are done.
func (d *decider) sequence(nodes []node, w where) bool {
	for i := range nodes {
		if !d.forward() || d.backward(w) {
			return false // perhaps by what was just done
		}
		n := &nodes[i]
		switch n.kind {
		case stepNode:
			c := &d.step(n.index, w.item).Do
			if c.Phase == Idle {
				d.begin(n.index, w)
				return false
			}
			if c.Phase != Succeeded {
				return false
			}
		case parallelNode:
			all := true
			for _, b := range n.branches {
				all = d.sequence(b, w) && all
			}
			if !all {
				return false
			}
		case ifNode, switchNode:
			if !d.choose(n, w) {
				return false
			}
			if !d.sequence(n.branches[d.place(n.index, w.item).Arm-ArmThen], w) {
				return false
			}
		case sleepNode:
			if !d.sleep(n.index, w) {
				return false
			}
		case waitNode:
			if !d.wait(n.index, w) {
				return false
			}
			if len(n.branches) > 0 && !d.sequence(n.branches[d.place(n.index, w.item).Arm-ArmThen], w) {
				return false
			}
		case returnNode:
			if d.s.live > 0 {
				return false // something is still being undone
			}
			output, err := d.build(&n.output, d.m.output, w)
			if err != nil {
				d.expressionFailed(Call{Step: returnStep, Dir: do}, w, err)
				return false
			}
			d.complete(output)
		default:
			if !d.block(n.index, w) {
				return false
			}
		}
	}
	return true
}

func (d *decider) complete(output []byte) {
	if d.s.Parent != nil && !d.s.ParentEnded {
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_Provisional{Provisional: &historyv1.Provisional{Output: orNull(output)}}})
	} else {
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_Completed{Completed: &historyv1.Completed{Output: output}}})
	}
	d.closeItems(func(it *ItemState) bool {
		return it.Blocking || it.Kind == historyv1.ItemKind_ITEM_KIND_DEADLINE_AFTER_PIVOT
	}, "the saga completed")
}

// vars are the documents that a condition refers to.
func (d *decider) vars(refs []string, w where) expr.Vars {
	vars := make(expr.Vars, len(refs))
	for _, name := range refs {
		if doc, _ := d.document(name, w); doc != nil {
			vars[name] = doc
		}
	}
	return vars
}

// document is what a variable stands for at a place. sure: it was held to its schema when it came in. nil: there is no such variable.
func (d *decider) document(name string, w where) (doc json.RawMessage, sure bool) {
	if name == "input" {
		return orNull(d.s.Input), true
	}
	if i, ok := d.m.byName[name]; ok {
		c := &d.step(i, d.itemAt(d.m.steps[i].body, w)).Do
		return orNull(c.Output), c.OutputKnown && c.Phase == Succeeded
	}
	if i, ok := d.m.placeOf[name]; ok {
		return d.blockDocument(i, w), d.m.places[i].kind == waitNode
	}
	return nil, false
}

// itemAt is the item of a body that w stands in.
func (d *decider) itemAt(body int, w where) string {
	for w.body != body {
		w = d.m.out(w)
	}
	return w.item
}

// build makes the document that a mapping says and holds it to the schema that the mapping was compiled for.
func (d *decider) build(m *mapping, schema *expr.Schema, w where) ([]byte, error) {
	var room [4]json.RawMessage
	docs, sure := room[:0], m.fits
	for _, name := range m.refs() {
		doc, held := d.document(name, w)
		docs = append(docs, doc)
		sure = sure && held
	}
	doc, err := m.eval(docs)
	if err != nil {
		return nil, err
	}
	if sure && len(doc) <= payloadBytesMax {
		return doc, nil // the types leave nothing to be found
	}
	return doc, checkPayload(doc, schema)
}

// begin starts a step's action.
func (d *decider) begin(i int, w where) {
	st := &d.m.steps[i]
	input, err := d.build(&st.in, st.inSchema, w)
	if err != nil {
		d.expressionFailed(d.callOf(i, w.item, do), w, err)
		return
	}
	d.attempt(i, w.item, do, 1, input)
}

func checkPayload(doc []byte, schema *expr.Schema) error {
	if len(doc) > payloadBytesMax {
		return fmt.Errorf("the document has %d bytes; the limit is %d", len(doc), payloadBytesMax)
	}
	return schema.Validate(doc)
}

// scheduled and ended are the facts that each saga has most of, in one piece of memory.
type (
	scheduled struct {
		fact historyv1.Fact
		kind historyv1.Fact_AttemptScheduled
		body historyv1.AttemptScheduled
		call historyv1.Call
	}
	ended struct {
		fact historyv1.Fact
		kind historyv1.Fact_AttemptEnded
		body historyv1.AttemptEnded
		call historyv1.Call
	}
)

// attempt makes the next attempt of a call in the given generation.
func (d *decider) attempt(i int, item string, dir historyv1.Direction, generation int32, input []byte) {
	st, ss := &d.m.steps[i], d.step(i, item)
	c := ss.call(dir)
	x := new(scheduled)
	f := &x.body
	f.Call, f.Generation, f.Attempt = &x.call, generation, 1
	x.call.Step, x.call.Item, x.call.Direction = st.name, item, dir
	if timeout := st.patience(dir); timeout > 0 {
		f.DeadlineUs = d.now + timeout
	}
	if c.Generation == generation {
		f.Attempt = c.Attempt + 1
	} else if dir == do {
		f.Input = input
	}
	if dir == do && ss.StartNo == 0 {
		f.StartNo = d.s.startNo + 1
	}
	x.kind.AttemptScheduled, x.fact.Kind = f, &x.kind
	d.emit(&x.fact)
	d.dispatch = append(d.dispatch, Call{Step: st.name, Item: item, Dir: dir})
}

// patience is how long an attempt may take, in microseconds; 0: for ever.
func (st *step) patience(dir historyv1.Direction) int64 {
	switch {
	case st.child:
		return 0
	case dir == do:
		return st.timeout
	default:
		return st.undoTimeout
	}
}

// policy says how often a call is tried.
func (st *step) policy(dir historyv1.Direction) *retry.Policy {
	if dir == do {
		return &st.retry
	}
	return &st.undoRetry
}

// pivotStarted says that the point of no return may have been passed: the pivot was sent and isn't known to have done nothing.
func (d *decider) pivotStarted() bool {
	for _, i := range d.m.pivots {
		if c := &d.step(i, "").Do; (c.Attempt > 0 || c.ByHand) && !(c.Disproved && !c.happened) && (c.Phase != Rejected || c.InDoubt) {
			return true
		}
	}
	return false
}

// pivotPassed says that the pivot is done.
func (d *decider) pivotPassed() bool {
	for _, i := range d.m.pivots {
		if d.step(i, "").Do.Phase == Succeeded {
			return true
		}
	}
	return false
}

// expressionFailed: what can't be evaluated won't be the next time either.
func (d *decider) expressionFailed(call Call, w where, err error) {
	e := &historyv1.Error{Code: CodeExpression, Message: limitText(err.Error(), 4096)}
	if _, isStep := d.m.byName[call.Step]; isStep {
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_CallGivenUp{CallGivenUp: &historyv1.CallGivenUp{
			Call: call.proto(), Reason: historyv1.GiveUpReason_GIVE_UP_REASON_EXPRESSION, Error: e,
		}}})
	}
	d.fail(w, call, historyv1.ItemKind_ITEM_KIND_EXPRESSION, &historyv1.Cause{Kind: historyv1.CauseKind_CAUSE_KIND_EXPRESSION, Step: call.Step, Error: e})
}

// result takes in what a worker says.
func (d *decider) result(e Result) {
	d.reply.Verdict = workerv1.Verdict_VERDICT_ACCEPTED
	i, ok := d.m.byName[e.Call.Step]
	st, _ := d.s.step(e.Call.Step, e.Call.Item)
	if !ok || e.Call.Dir != do && e.Call.Dir != undo && e.Call.Dir != probe || d.m.steps[i].indexed != (e.Call.Item != "") {
		d.reply = Reply{Verdict: workerv1.Verdict_VERDICT_STALE, Stray: true}
		return
	}
	if st == nil {
		// An element or a round that never began, as far as this state knows.
		d.reply = Reply{Verdict: workerv1.Verdict_VERDICT_UNAVAILABLE, Ahead: true}
		return
	}
	c := st.call(e.Call.Dir)
	if d.m.steps[i].child && e.Attempt == 0 {
		e.Attempt = c.Attempt // what a child saga says holds for whichever attempt asked last
	}
	if e.Generation > c.Generation || e.Generation == c.Generation && e.Attempt > c.Attempt {
		d.reply = Reply{Verdict: workerv1.Verdict_VERDICT_UNAVAILABLE, Ahead: true}
		return
	}
	if e.Generation < 1 || e.Attempt < 1 {
		d.reply = Reply{Verdict: workerv1.Verdict_VERDICT_STALE, Stray: true}
		return
	}
	switch {
	case e.Call.Dir == do && e.Outcome == historyv1.Outcome_OUTCOME_NOTHING_TO_UNDO:
		e.Outcome, e.Error = historyv1.Outcome_OUTCOME_FAILED, &historyv1.Error{
			Code: CodeBadOutcome, Message: "the worker answered an action with nothing-to-undo, which only a compensation may answer",
		}
	case e.Outcome < historyv1.Outcome_OUTCOME_SUCCEEDED || e.Outcome > historyv1.Outcome_OUTCOME_CANT_TELL,
		e.Call.Dir == probe && e.Outcome < historyv1.Outcome_OUTCOME_FAILED,
		e.Call.Dir != probe && e.Outcome > historyv1.Outcome_OUTCOME_NOTHING_TO_UNDO,
		e.Call.Dir == probe && e.Outcome == historyv1.Outcome_OUTCOME_NOTHING_TO_UNDO:
		e.Outcome, e.Error = historyv1.Outcome_OUTCOME_FAILED, &historyv1.Error{
			Code: CodeBadOutcome, Message: "the worker gave an outcome that this kind of call doesn't have, or this version doesn't know",
		}
	}
	digest := resultDigest(&e)
	rec := c.find(e.Generation, e.Attempt)
	if rec != nil && rec.known(digest) {
		d.reply.Verdict = workerv1.Verdict_VERDICT_DUPLICATE
		return
	}
	current := e.Generation == c.Generation
	conflict := rec != nil && rec.digest != nil && conclusive(rec.outcome) && conclusive(e.Outcome)
	switch {
	case conflict:
	case current && c.Phase == InFlight && c.Attempt == e.Attempt,
		current && conclusive(e.Outcome) && (c.Phase == InFlight || c.Phase == BackingOff || c.Phase == Held):
		// The first conclusive result of the current generation wins, whichever attempt it comes from.
		d.conclude(i, e, digest)
		return
	}
	// The rest is evidence, of which there may be too much.
	if rec != nil && len(rec.others) >= latesMax || d.s.N > transitionsMax-transitionsReserve/2 {
		d.reply = Reply{Verdict: workerv1.Verdict_VERDICT_STALE, Stray: true}
		return
	}
	if conflict {
		d.conflict(i, e, digest)
	} else {
		d.late(i, e, digest)
	}
}

func conclusive(o historyv1.Outcome) bool {
	switch o {
	case historyv1.Outcome_OUTCOME_SUCCEEDED, historyv1.Outcome_OUTCOME_REJECTED, historyv1.Outcome_OUTCOME_NOTHING_TO_UNDO,
		historyv1.Outcome_OUTCOME_HAPPENED, historyv1.Outcome_OUTCOME_DID_NOT_HAPPEN:
		return true
	}
	return false
}

// conclude ends an attempt.
func (d *decider) conclude(i int, e Result, digest []byte) {
	st := &d.m.steps[i]
	x := new(ended)
	f := &x.body
	f.Call, f.Generation, f.Attempt, f.Outcome, f.Error = &x.call, e.Generation, e.Attempt, e.Outcome, e.Error
	f.GiveUp, f.Worker, f.Digest = e.GiveUp, e.Worker, digest
	x.call.Step, x.call.Item, x.call.Direction = e.Call.Step, e.Call.Item, e.Call.Dir
	switch {
	case e.Outcome == historyv1.Outcome_OUTCOME_SUCCEEDED && e.Call.Dir == do:
		if e.Error == nil {
			f.Error = checkOutput(e.Output, st.outSchema)
		}
		if f.Unusable = f.Error != nil; !f.Unusable {
			f.Output = orNull(e.Output)
		}
	case e.Outcome == historyv1.Outcome_OUTCOME_HAPPENED && len(e.Output) > 0 && checkOutput(e.Output, st.outSchema) == nil:
		f.Output = e.Output
	}
	x.kind.AttemptEnded, x.fact.Kind = f, &x.kind
	d.emit(&x.fact)
	c := d.step(i, e.Call.Item).call(e.Call.Dir)
	switch {
	case e.Call.Dir == undo:
		d.undoEnded(i, e)
	case e.Call.Dir == probe:
		d.probeEnded(i, e)
	case c.Phase == Succeeded:
		d.passedOn(e.Call, e.Attempt)
		d.progress()
	case c.Phase == Rejected:
		d.stepFailed(i, e.Call.Item, historyv1.CauseKind_CAUSE_KIND_REJECTED, e.Attempt, f.Error)
	default:
		d.tryAgain(i, e.Call, e.Attempt, f.Error, f.Unusable || e.GiveUp, e.RetryAfter)
	}
}

// undoEnded goes on after an attempt of a compensation has ended.
func (d *decider) undoEnded(i int, e Result) {
	st := d.step(i, e.Call.Item)
	c := &st.Undo
	switch c.Phase {
	case Succeeded:
		if c.Empty && !c.happened && st.Do.happened {
			// It found nothing, perhaps because the action came after it. By now the action is known to have happened.
			if d.retrying(e.Call); d.s.Paused {
				return
			}
			d.again(i, e.Call.Item, undo, c.Generation+1)
			return
		}
		d.passedOn(e.Call, e.Attempt)
		d.progress()
	case Rejected:
		d.hold(e.Call, historyv1.ItemKind_ITEM_KIND_COMPENSATION_REFUSED, e.Error)
		d.progress()
	default:
		d.tryAgain(i, e.Call, e.Attempt, e.Error, e.GiveUp, e.RetryAfter)
	}
}

// again makes an attempt now, or once the saga is resumed.
func (d *decider) again(i int, item string, dir historyv1.Direction, generation int32) {
	c := d.step(i, item).call(dir)
	switch {
	case !d.s.Paused:
		d.attempt(i, item, dir, generation, nil)
	case generation == c.Generation:
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_RetryPlanned{RetryPlanned: &historyv1.RetryPlanned{
			Call: d.callOf(i, item, dir).proto(), Attempt: c.Attempt + 1, AtUs: d.now,
		}}})
	default:
		// The state says that it is needed: see takeUp.
	}
}

// takeUp does what was needed while the saga was paused, and isn't found by going forward or back.
func (d *decider) takeUp() {
	var left []where
	d.s.each(func(f *Frame) bool {
		if f.Phase == FrameUndone {
			left = append(left, where{f.body, f.Item})
		}
		return true
	})
	for _, w := range left {
		if d.s.Status.Terminal() || d.s.Backward {
			return
		}
		d.compensate(d.frame(w))
	}
	for _, i := range d.m.pivots {
		if c := &d.step(i, "").Do; c.Phase == GivenUp && c.Attempt > 0 && !d.s.Backward {
			d.stepFailed(i, "", historyv1.CauseKind_CAUSE_KIND_GIVEN_UP, c.Attempt, c.LastError)
		}
	}
}

// needsProbe says that it is to be asked whether a step's action happened, before anything else is done about it.
func (d *decider) needsProbe(i int, st *StepState) bool {
	return d.m.steps[i].probe && st.Probe == nil && st.Do.InDoubt && !st.Do.happened && !st.Do.ByHand && st.Do.Attempt > 0
}

// probeEnded goes on after an attempt of a probe has ended.
func (d *decider) probeEnded(i int, e Result) {
	st := d.step(i, e.Call.Item)
	if st.Probe.Phase != Succeeded {
		d.tryAgain(i, e.Call, e.Attempt, e.Error, e.GiveUp, e.RetryAfter)
		return
	}
	d.probed(i, e.Call.Item)
}

// probed goes on with what a probe said, or with that it said nothing.
func (d *decider) probed(i int, item string) {
	st := d.step(i, item)
	call := d.callOf(i, item, do)
	if d.m.steps[i].kind != sagadv1.Kind_KIND_PIVOT || d.s.Backward {
		d.progress()
		return
	}
	switch {
	case st.Do.happened && st.Do.OutputKnown, st.Do.happened && checkOutput(nil, d.m.steps[i].outSchema) == nil:
		x := Result{Call: call, Generation: st.Do.Generation, Attempt: st.Do.Attempt, Outcome: historyv1.Outcome_OUTCOME_SUCCEEDED, Output: st.Do.Output, Worker: "probe"}
		d.conclude(i, x, resultDigest(&x))
	case st.Do.happened:
		d.hold(call, historyv1.ItemKind_ITEM_KIND_PIVOT_IN_DOUBT, &historyv1.Error{
			Code: "OUTPUT_UNKNOWN", Message: "the probe says that it happened, but not with what output: complete it by hand with the output",
		})
	case st.Do.Disproved:
		d.turnBack(&historyv1.Cause{Kind: historyv1.CauseKind_CAUSE_KIND_GIVEN_UP, Step: call.Step, Attempt: st.Do.Attempt, Error: st.Do.LastError})
	default:
		d.hold(call, historyv1.ItemKind_ITEM_KIND_PIVOT_IN_DOUBT, st.Do.LastError)
	}
}

// tryAgain plans the next attempt of a call, or gives it up.
func (d *decider) tryAgain(i int, call Call, attempt int32, e *historyv1.Error, never bool, retryAfter int64) {
	st, c := &d.m.steps[i], d.step(i, call.Item).call(call.Dir)
	policy := st.policy(call.Dir)
	used := int(c.Attempt - c.budgetFrom)
	delay := policy.Delay(max(used, 1), d.random()).Microseconds()
	delay = min(max(delay, retryAfter), retryAfterMax.Microseconds())
	unwinding := call.Dir == do && d.backward(where{st.body, call.Item})
	reason := historyv1.GiveUpReason_GIVE_UP_REASON_EXHAUSTED
	switch {
	case never:
		reason = historyv1.GiveUpReason_GIVE_UP_REASON_NO_RETRY
	case unwinding:
		reason = historyv1.GiveUpReason_GIVE_UP_REASON_UNWINDING
	case d.s.N > transitionsMax-transitionsReserve:
		// The history nears its limit: the rest is kept for ending the saga.
	case !policy.Exhausted(used, time.Duration(d.now+delay-c.budgetFromAt)*time.Microsecond):
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_RetryPlanned{RetryPlanned: &historyv1.RetryPlanned{
			Call: call.proto(), Attempt: c.Attempt + 1, AtUs: d.now + delay,
		}}})
		return
	}
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_CallGivenUp{CallGivenUp: &historyv1.CallGivenUp{Call: call.proto(), Reason: reason}}})
	switch call.Dir {
	case undo:
		kind := historyv1.ItemKind_ITEM_KIND_COMPENSATION_EXHAUSTED
		if e.GetCode() == CodePoison {
			kind = historyv1.ItemKind_ITEM_KIND_POISON
		}
		d.hold(call, kind, e)
		d.progress()
		return
	case probe:
		d.probed(i, call.Item)
		return
	}
	d.stepFailed(i, call.Item, historyv1.CauseKind_CAUSE_KIND_GIVEN_UP, attempt, e)
}

// stepFailed goes on after a step was rejected or given up: what it stands in turns back, or a person is asked.
func (d *decider) stepFailed(i int, item string, kind historyv1.CauseKind, attempt int32, e *historyv1.Error) {
	st, ss := &d.m.steps[i], d.step(i, item)
	call, w := d.callOf(i, item, do), where{st.body, item}
	switch {
	case d.backward(w):
		d.progress()
		return
	case st.kind == sagadv1.Kind_KIND_PIVOT && (ss.Do.Phase != Rejected || ss.Do.InDoubt):
		if d.needsProbe(i, ss) {
			d.again(i, item, probe, 1)
			return
		}
		d.hold(call, historyv1.ItemKind_ITEM_KIND_PIVOT_IN_DOUBT, e)
		return
	case st.kind != sagadv1.Kind_KIND_PIVOT && st.kind != sagadv1.Kind_KIND_READ_ONLY && d.pivotPassed():
		d.hold(call, historyv1.ItemKind_ITEM_KIND_STEP_PAST_PIVOT, e)
		return
	case st.hold && ss.Do.Phase == GivenUp:
		kind := historyv1.ItemKind_ITEM_KIND_STEP_HELD
		if st.kind != sagadv1.Kind_KIND_PIVOT && d.pivotPassed() {
			kind = historyv1.ItemKind_ITEM_KIND_STEP_PAST_PIVOT
		}
		d.hold(call, kind, e)
		return
	}
	d.fail(w, call, historyv1.ItemKind_ITEM_KIND_STEP_PAST_PIVOT, &historyv1.Cause{Kind: kind, Step: st.name, Attempt: attempt, Error: e})
}

// turnBack ends the forward path: nothing new starts, what is in flight is told to stop and awaited, the rest is given up.
func (d *decider) turnBack(cause *historyv1.Cause) {
	if d.s.Backward {
		d.progress()
		return
	}
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_UnwindStarted{UnwindStarted: &historyv1.UnwindStarted{Cause: cause}}})
	d.release(where{}, "the saga unwinds")
	d.progress()
}

// unwind starts the compensations whose turn it is.
func (d *decider) unwind() {
	if d.compensate(&d.s.Frame) && d.s.live == 0 {
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_Compensated{Compensated: &historyv1.Compensated{}}})
	}
}

// trees are used again: those of large maps are large.
var trees = sync.Pool{New: func() any { return new(tree) }}

// compensate starts the compensations of a frame whose turn it is, and says whether nothing of it is left to undo.
func (d *decider) compensate(f *Frame) bool {
	t := trees.Get().(*tree)
	defer trees.Put(t)
	t.nodes, t.refs = t.nodes[:0], t.refs[:0]
	t.body(d.m, f)
	defer func() { clear(t.refs) }() // it would hold states
	plan := t.planner.Next(t.nodes, d.m.undoMax)
	for _, n := range plan.Start {
		i, item := t.refs[t.nodes[n].Ref].step, t.refs[t.nodes[n].Ref].frame.Item
		st := d.step(i, item)
		if d.needsProbe(i, st) {
			d.attempt(i, item, probe, 1, nil)
		} else {
			d.attempt(i, item, undo, st.Undo.Generation+1, nil)
		}
	}
	return plan.Done
}

// late takes in a result that comes after its call had ended, or its attempt was overtaken. It is evidence, and changes no
// direction taken; but an effect that it proves is undone if it can be, and else brought to a person.
func (d *decider) late(i int, e Result, digest []byte) {
	d.reply.Verdict = workerv1.Verdict_VERDICT_STALE
	st := d.step(i, e.Call.Item)
	f := &historyv1.LateResult{
		Call: e.Call.proto(), Generation: e.Generation, Attempt: e.Attempt, Outcome: e.Outcome, Error: e.Error, Worker: e.Worker, Digest: digest,
	}
	if e.Outcome == historyv1.Outcome_OUTCOME_SUCCEEDED && e.Call.Dir == do && e.Error == nil && checkOutput(e.Output, d.m.steps[i].outSchema) == nil {
		f.Output = orNull(e.Output)
	}
	knew := st.Do.happened
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_LateResult{LateResult: f}})
	st = d.step(i, e.Call.Item)
	if !effect(st, e) || d.m.steps[i].kind == sagadv1.Kind_KIND_READ_ONLY {
		return
	}
	// A person who said that nothing of it stands may have looked before it came to stand.
	unseen := st.Undo.ByHand && !knew
	unsettled := st.Undo.Phase == Idle || st.Undo.Phase == Succeeded && (st.Undo.Empty || unseen)
	switch {
	case d.s.Status.Terminal() || d.m.steps[i].kind != sagadv1.Kind_KIND_COMPENSATABLE || unseen:
		if unsettled {
			d.openOnce(e.Call, historyv1.ItemKind_ITEM_KIND_LATE_EFFECT, &historyv1.Error{
				Code: "LATE_EFFECT", Message: "the step succeeded after it had been given up, and can't be undone by the saga: what it did stands",
			})
		}
	case st.Undo.Phase == Succeeded && st.Undo.Empty:
		// The compensation had found nothing: it is called again, as a new request.
		d.again(i, e.Call.Item, undo, st.Undo.Generation+1)
	case st.Undo.Phase == Idle && !d.s.Backward && d.undone(where{d.m.steps[i].body, e.Call.Item}):
		// What it stands in was undone and left behind, without this.
		d.again(i, e.Call.Item, undo, 1)
	default:
		d.progress()
	}
}

// undone says that what stands in a body was undone, while the saga went on.
func (d *decider) undone(w where) bool {
	for w.body != 0 {
		if d.frame(w).Phase == FrameUndone {
			return true
		}
		w = d.m.out(w)
	}
	return false
}

// effect says that a result which isn't used proves an effect that the saga doesn't count with.
func effect(st *StepState, e Result) bool {
	return e.Call.Dir == do && e.Outcome == historyv1.Outcome_OUTCOME_SUCCEEDED && (st.Do.Phase == GivenUp || st.Do.Phase == Rejected)
}

// conflict: two different results for one attempt are a worker's bug, which a person must know of.
func (d *decider) conflict(i int, e Result, digest []byte) {
	d.reply.Verdict = workerv1.Verdict_VERDICT_STALE
	defer d.openOnce(e.Call, historyv1.ItemKind_ITEM_KIND_CONFLICTING_RESULTS, &historyv1.Error{
		Code: "CONFLICTING_RESULTS", Message: fmt.Sprintf("attempt %d of %s was answered twice, differently: the worker isn't idempotent; the first answer counts", e.Attempt, e.Call),
	})
	if effect(d.step(i, e.Call.Item), e) {
		// The first answer said that nothing was done; what the second one proves is settled all the same.
		d.late(i, e, digest)
		return
	}
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_ConflictingResult{ConflictingResult: &historyv1.ConflictingResult{
		Call: e.Call.proto(), Generation: e.Generation, Attempt: e.Attempt, Outcome: e.Outcome, Error: e.Error, Worker: e.Worker, Digest: digest,
	}}})
}

// tick lets happen what is due.
func (d *decider) tick(e Tick) {
	if d.s.Status.Terminal() || d.s.Provisional {
		return
	}
	if d.s.Deadline != 0 && d.s.Deadline <= d.now && !d.s.DeadlinePassed {
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_DeadlinePassed{DeadlinePassed: &historyv1.DeadlinePassed{}}})
		err := &historyv1.Error{Code: "DEADLINE", Message: "the saga's deadline has passed"}
		switch {
		case d.s.Backward:
		case d.pivotStarted():
			d.open(Call{}, historyv1.ItemKind_ITEM_KIND_DEADLINE_AFTER_PIVOT, err, false)
		default:
			d.turnBack(&historyv1.Cause{Kind: historyv1.CauseKind_CAUSE_KIND_DEADLINE, Error: err})
		}
	}
	d.due(e)
	d.progress()
}

// due lets happen what is due, of calls, sleeps and waits.
func (d *decider) due(e Tick) {
	type timed struct {
		step, place int
		item        string
		dir         historyv1.Direction
	}
	var room [8]timed
	found := room[:0]
	d.s.each(func(f *Frame) bool {
		if !f.isLive() {
			return false
		}
		b := &d.m.bodies[f.body]
		for slot, i := range b.steps {
			for n, c := range f.Steps[slot].calls() {
				if c != nil && (c.Phase == InFlight && c.overdue(d.now) || c.Phase == BackingOff && c.RetryAt <= d.now && !d.s.Paused) {
					found = append(found, timed{step: i, place: -1, item: f.Item, dir: directions[n]})
				}
			}
		}
		for slot, i := range b.places {
			if p := &f.Places[slot]; p.Phase == PlaceActive && p.At != 0 && p.At <= d.now && !d.s.Paused {
				found = append(found, timed{place: i, item: f.Item})
			}
		}
		return true
	})
	for _, x := range found {
		if d.s.Status.Terminal() {
			return
		}
		// What happened before may have changed it.
		if x.place >= 0 {
			if p := d.place(x.place, x.item); p.Phase == PlaceActive && p.At != 0 && p.At <= d.now {
				d.timeUp(x.place, where{d.m.places[x.place].body, x.item})
			}
			continue
		}
		c := d.step(x.step, x.item).call(x.dir)
		switch {
		case c.Phase == InFlight && c.overdue(d.now):
			d.timeout(x.step, d.callOf(x.step, x.item, x.dir), e)
		case c.Phase == BackingOff && c.RetryAt <= d.now:
			d.attempt(x.step, x.item, x.dir, c.Generation, nil)
		}
	}
}

// overdue says that an attempt in flight has lasted too long, or wasn't heard of for too long.
func (c *CallState) overdue(now Micros) bool {
	return c.Deadline != 0 && c.Deadline <= now || c.silent(now)
}

// silent says that an attempt wasn't heard of for too long.
func (c *CallState) silent(now Micros) bool {
	by := c.Reported().HeartbeatBy
	return by != 0 && by <= now
}

// timeout ends an attempt that wasn't answered: something may have been done, or may still be.
func (d *decider) timeout(i int, call Call, e Tick) {
	c := d.step(i, call.Item).call(call.Dir)
	st, attempt := &d.m.steps[i], c.Attempt
	err := &historyv1.Error{Code: CodeTimeout, Message: fmt.Sprintf("no answer within %v: whether anything was done is unknown", micros(st.patience(call.Dir)))}
	switch {
	case c.silent(d.now):
		err = &historyv1.Error{Code: CodeHeartbeat, Message: fmt.Sprintf("not heard of for %v: its worker is taken for lost, and whether anything was done is unknown", micros(st.heartbeat))}
	case e.NoWorker != nil && e.NoWorker(call):
		err = &historyv1.Error{Code: CodeNoWorker, Message: fmt.Sprintf(
			"no worker for %s (%s) in namespace %s: start one, or see whether the one that runs serves this activity, in this namespace, and reaches the same NATS",
			st.activity, sideWord(call.Dir), d.s.Namespace)}
	}
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_AttemptEnded{AttemptEnded: &historyv1.AttemptEnded{
		Call: call.proto(), Generation: c.Generation, Attempt: attempt, Outcome: historyv1.Outcome_OUTCOME_UNKNOWN, Error: err,
	}}})
	d.tryAgain(i, call, attempt, err, false, 0)
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

func sideWord(dir historyv1.Direction) string {
	switch dir {
	case undo:
		return "compensation"
	case probe:
		return "probe"
	}
	return "action"
}

// activityWords names what is called.
func activityWords(dir historyv1.Direction, activity string) string {
	switch dir {
	case undo:
		return "the compensation of " + activity
	case probe:
		return "the probe of " + activity
	}
	return activity
}

// cancel unwinds the saga wherever it waits, unless the pivot has been sent.
func (d *decider) cancel(e Cancel) {
	switch {
	case d.s.Backward && d.s.answered(e.RequestID):
		d.reply = Reply{Cancel: sagadv1.CancelAnswer_CANCEL_ANSWER_WILL_UNWIND, Duplicate: true}
	case d.s.Status == Completed, d.s.Provisional:
		d.reply.Cancel = sagadv1.CancelAnswer_CANCEL_ANSWER_TOO_LATE_COMPLETED
	case d.s.Status.Terminal():
		d.reply.Cancel = sagadv1.CancelAnswer_CANCEL_ANSWER_ALREADY_ENDED
	case d.s.Backward:
		d.reply.Cancel = sagadv1.CancelAnswer_CANCEL_ANSWER_ALREADY_UNWINDING
	case d.pivotStarted():
		d.reply.Cancel = sagadv1.CancelAnswer_CANCEL_ANSWER_TOO_LATE_PAST_PIVOT
	default:
		d.reply.Cancel = sagadv1.CancelAnswer_CANCEL_ANSWER_WILL_UNWIND
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_CancelRequested{CancelRequested: &historyv1.CancelRequested{Actor: e.Actor, Reason: e.Reason}}})
		d.turnBack(&historyv1.Cause{
			Kind: historyv1.CauseKind_CAUSE_KIND_CANCELLED, Actor: e.Actor, Error: &historyv1.Error{Code: "CANCELLED", Message: e.Reason},
		})
	}
}

// checkOutput says why an output can't be used, or nil.
func checkOutput(output []byte, schema *expr.Schema) *historyv1.Error {
	if len(output) > payloadBytesMax {
		return &historyv1.Error{Code: CodeTooLarge, Message: fmt.Sprintf("the output has %d bytes; the limit is %d", len(output), payloadBytesMax)}
	}
	output = orNull(output)
	if err := schema.Validate(output); err != nil { // which begins with CheckJSON
		if err := expr.CheckJSON(output); err != nil {
			return &historyv1.Error{Code: CodeNotStorable, Message: "output " + err.Error()}
		}
		return &historyv1.Error{Code: CodeResultInvalid, Message: "output " + limitText(err.Error(), 1024)}
	}
	return nil
}

// resultDigest tells a repeat of a result from another one.
func resultDigest(e *Result) []byte {
	var room [512]byte
	b := room[:0]
	part := func(n int) { b = binary.BigEndian.AppendUint64(b, uint64(n)) }
	part(1)
	b = append(b, byte(e.Outcome))
	if e.Call.Dir != undo {
		part(len(e.Output)) // a compensation's output means nothing
		b = append(b, e.Output...)
	}
	if e.Error != nil {
		part(len(e.Error.GetCode()))
		b = append(b, e.Error.GetCode()...)
		part(len(e.Error.GetMessage()))
		b = append(b, e.Error.GetMessage()...)
	}
	sum := sha256.Sum256(b)
	return bytes.Clone(sum[:8])
}

func limitText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}
