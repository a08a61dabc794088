package statemachine

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/sagad/sagad/compensation"
	"github.com/sagad/sagad/internal/expr"
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
	default:
		err = &Refusal{Code: RefusedInvalid, Message: fmt.Sprintf("unknown event %T", e)}
	}
	if err != nil {
		return Decision{State: s}, err
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
	}}})
	d.progress()
}

// progress lets everything happen that the state allows.
func (d *decider) progress() {
	if d.s.Status.Terminal() {
		return
	}
	if !d.s.Backward {
		if d.sequence(d.m.body) && !d.s.Status.Terminal() && d.forward() {
			d.complete(nil)
		}
	}
	if d.s.Backward && !d.s.Status.Terminal() {
		d.unwind()
	}
}

// forward says whether new steps may start: nothing starts while the saga turns back or waits for a person.
func (d *decider) forward() bool { return d.s.Status == Running }

// sequence starts what can start and says whether all nodes are done.
func (d *decider) sequence(nodes []node) bool {
	for i := range nodes {
		if !d.forward() {
			return false
		}
		n := &nodes[i]
		switch n.kind {
		case stepNode:
			c := &d.s.Steps[n.index].Do
			if c.Phase == Idle {
				d.begin(n.index)
				return false
			}
			if c.Phase != Succeeded {
				return false
			}
		case parallelNode:
			all := true
			for _, b := range n.branches {
				all = d.sequence(b) && all
			}
			if !all {
				return false
			}
		case ifNode:
			if d.s.Branches[n.index] == ArmOpen {
				name := d.m.ifs[n.index]
				holds, err := n.condition.EvalBool(d.vars(n.condition.Refs()))
				if err != nil {
					d.expressionFailed(Call{Step: name, Dir: do}, err)
					return false
				}
				d.emit(&historyv1.Fact{Kind: &historyv1.Fact_BranchTaken{BranchTaken: &historyv1.BranchTaken{Name: name, Condition: holds}}})
				d.passed(Call{Step: name, Dir: do}, "the condition could be evaluated")
			}
			if !d.sequence(n.branches[d.s.Branches[n.index]-ArmThen]) {
				return false
			}
		case returnNode:
			output, err := d.build(&n.output, d.m.output)
			if err != nil {
				d.expressionFailed(Call{Step: returnStep, Dir: do}, err)
				return false
			}
			d.complete(output)
		}
	}
	return true
}

func (d *decider) complete(output []byte) {
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_Completed{Completed: &historyv1.Completed{Output: output}}})
	d.closeItems(func(it *ItemState) bool {
		return it.Blocking || it.Kind == historyv1.ItemKind_ITEM_KIND_DEADLINE_AFTER_PIVOT
	}, "the saga completed")
}

// vars are the documents that a condition refers to.
func (d *decider) vars(refs []string) expr.Vars {
	vars := make(expr.Vars, len(refs))
	for _, name := range refs {
		if doc, _ := d.document(name); doc != nil {
			vars[name] = doc
		}
	}
	return vars
}

// document is what a variable stands for. sure: it was held to its schema when it came in. nil: there is no such variable.
func (d *decider) document(name string) (doc json.RawMessage, sure bool) {
	if name == "input" {
		return orNull(d.s.Input), true
	}
	i, ok := d.m.byName[name]
	if !ok {
		return nil, false
	}
	c := &d.s.Steps[i].Do
	return orNull(c.Output), c.OutputKnown && c.Phase == Succeeded
}

// build makes the document that a mapping says and holds it to the schema that the mapping was compiled for.
func (d *decider) build(m *mapping, schema *expr.Schema) ([]byte, error) {
	var room [4]json.RawMessage
	docs, sure := room[:0], m.fits
	for _, name := range m.refs() {
		doc, held := d.document(name)
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
func (d *decider) begin(i int) {
	st := &d.m.steps[i]
	input, err := d.build(&st.in, st.inSchema)
	if err != nil {
		d.expressionFailed(Call{Step: st.name, Dir: do}, err)
		return
	}
	d.attempt(i, do, 1, input)
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
func (d *decider) attempt(i int, dir historyv1.Direction, generation int32, input []byte) {
	st, c := &d.m.steps[i], d.s.Steps[i].call(dir)
	x := new(scheduled)
	f := &x.body
	f.Call, f.Generation, f.Attempt, f.DeadlineUs = &x.call, generation, 1, d.now+st.timeout
	x.call.Step, x.call.Direction = st.name, dir
	if dir == undo {
		f.DeadlineUs = d.now + st.undoTimeout
	}
	if c.Generation == generation {
		f.Attempt = c.Attempt + 1
	} else if dir == do {
		f.Input = input
	}
	if dir == do && d.s.Steps[i].StartNo == 0 {
		f.StartNo = d.s.startNo + 1
	}
	x.kind.AttemptScheduled, x.fact.Kind = f, &x.kind
	d.emit(&x.fact)
	d.dispatch = append(d.dispatch, Call{Step: st.name, Dir: dir})
}

// pivotStarted says that the point of no return may have been passed: the pivot was sent and isn't known to have done nothing.
func (d *decider) pivotStarted() bool {
	for i := range d.m.steps {
		if d.m.steps[i].kind == sagadv1.Kind_KIND_PIVOT {
			if c := &d.s.Steps[i].Do; (c.Attempt > 0 || c.ByHand) && (c.Phase != Rejected || c.InDoubt) {
				return true
			}
		}
	}
	return false
}

// pivotPassed says that the pivot is done.
func (d *decider) pivotPassed() bool {
	for i := range d.m.steps {
		if d.m.steps[i].kind == sagadv1.Kind_KIND_PIVOT && d.s.Steps[i].Do.Phase == Succeeded {
			return true
		}
	}
	return false
}

// expressionFailed: what can't be evaluated won't be the next time either.
func (d *decider) expressionFailed(call Call, err error) {
	e := &historyv1.Error{Code: CodeExpression, Message: limitText(err.Error(), 4096)}
	if _, isStep := d.m.byName[call.Step]; isStep {
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_CallGivenUp{CallGivenUp: &historyv1.CallGivenUp{
			Call: call.proto(), Reason: historyv1.GiveUpReason_GIVE_UP_REASON_EXPRESSION, Error: e,
		}}})
	}
	if d.pivotStarted() {
		d.hold(call, historyv1.ItemKind_ITEM_KIND_EXPRESSION, e)
		return
	}
	d.turnBack(&historyv1.Cause{Kind: historyv1.CauseKind_CAUSE_KIND_EXPRESSION, Step: call.Step, Error: e})
}

// result takes in what a worker says.
func (d *decider) result(e Result) {
	d.reply.Verdict = workerv1.Verdict_VERDICT_ACCEPTED
	i, ok := d.m.byName[e.Call.Step]
	if !ok || e.Call.Item != "" || e.Call.Dir != do && e.Call.Dir != undo {
		d.reply = Reply{Verdict: workerv1.Verdict_VERDICT_STALE, Stray: true}
		return
	}
	c := d.s.Steps[i].call(e.Call.Dir)
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
	case e.Outcome < historyv1.Outcome_OUTCOME_SUCCEEDED || e.Outcome > historyv1.Outcome_OUTCOME_NOTHING_TO_UNDO:
		e.Outcome, e.Error = historyv1.Outcome_OUTCOME_FAILED, &historyv1.Error{
			Code: CodeBadOutcome, Message: "the worker gave an outcome that this version doesn't know",
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
	return o == historyv1.Outcome_OUTCOME_SUCCEEDED || o == historyv1.Outcome_OUTCOME_REJECTED || o == historyv1.Outcome_OUTCOME_NOTHING_TO_UNDO
}

// conclude ends an attempt.
func (d *decider) conclude(i int, e Result, digest []byte) {
	st, c := &d.m.steps[i], d.s.Steps[i].call(e.Call.Dir)
	x := new(ended)
	f := &x.body
	f.Call, f.Generation, f.Attempt, f.Outcome, f.Error = &x.call, e.Generation, e.Attempt, e.Outcome, e.Error
	f.GiveUp, f.Worker, f.Digest = e.GiveUp, e.Worker, digest
	x.call.Step, x.call.Item, x.call.Direction = e.Call.Step, e.Call.Item, e.Call.Dir
	if e.Outcome == historyv1.Outcome_OUTCOME_SUCCEEDED && e.Call.Dir == do {
		if e.Error == nil {
			f.Error = checkOutput(e.Output, st.outSchema)
		}
		if f.Unusable = f.Error != nil; !f.Unusable {
			f.Output = orNull(e.Output)
		}
	}
	x.kind.AttemptEnded, x.fact.Kind = f, &x.kind
	d.emit(&x.fact)
	switch {
	case e.Call.Dir == undo:
		d.undoEnded(i, e)
	case c.Phase == Succeeded:
		d.passedOn(e.Call, e.Attempt)
		d.progress()
	case c.Phase == Rejected:
		d.stepFailed(i, historyv1.CauseKind_CAUSE_KIND_REJECTED, e.Attempt, f.Error)
	default:
		d.tryAgain(i, e.Call, e.Attempt, f.Error, f.Unusable || e.GiveUp, e.RetryAfter)
	}
}

// undoEnded goes on after an attempt of a compensation has ended.
func (d *decider) undoEnded(i int, e Result) {
	c := &d.s.Steps[i].Undo
	switch c.Phase {
	case Succeeded:
		if c.Empty && !c.happened && d.s.Steps[i].Do.happened {
			// It found nothing, perhaps because the action came after it. By now the action is known to have happened.
			d.retrying(e.Call)
			d.attempt(i, undo, c.Generation+1, nil)
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

// tryAgain plans the next attempt of a call, or gives it up.
func (d *decider) tryAgain(i int, call Call, attempt int32, e *historyv1.Error, never bool, retryAfter int64) {
	st, c := &d.m.steps[i], d.s.Steps[i].call(call.Dir)
	policy := st.retry
	if call.Dir == undo {
		policy = st.undoRetry
	}
	used := int(c.Attempt - c.budgetFrom)
	delay := policy.Delay(max(used, 1), d.random()).Microseconds()
	delay = min(max(delay, retryAfter), retryAfterMax.Microseconds())
	unwinding := d.s.Backward && call.Dir == do
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
	if call.Dir == undo {
		d.hold(call, historyv1.ItemKind_ITEM_KIND_COMPENSATION_EXHAUSTED, e)
		d.progress()
		return
	}
	d.stepFailed(i, historyv1.CauseKind_CAUSE_KIND_GIVEN_UP, attempt, e)
}

// stepFailed goes on after a step was rejected or given up: the saga turns back, or a person is asked.
func (d *decider) stepFailed(i int, kind historyv1.CauseKind, attempt int32, e *historyv1.Error) {
	st, c := &d.m.steps[i], &d.s.Steps[i].Do
	call := Call{Step: st.name, Dir: do}
	switch {
	case d.s.Backward:
		d.progress()
		return
	case st.kind == sagadv1.Kind_KIND_PIVOT && (c.Phase != Rejected || c.InDoubt):
		d.hold(call, historyv1.ItemKind_ITEM_KIND_PIVOT_IN_DOUBT, e)
		return
	case st.kind != sagadv1.Kind_KIND_PIVOT && d.pivotPassed():
		d.hold(call, historyv1.ItemKind_ITEM_KIND_STEP_PAST_PIVOT, e)
		return
	case st.hold && c.Phase == GivenUp:
		d.hold(call, historyv1.ItemKind_ITEM_KIND_STEP_HELD, e)
		return
	}
	d.turnBack(&historyv1.Cause{Kind: kind, Step: st.name, Attempt: attempt, Error: e})
}

// turnBack ends the forward path: nothing new starts, what is in flight is told to stop and awaited, the rest is given up.
func (d *decider) turnBack(cause *historyv1.Cause) {
	if d.s.Backward {
		d.progress()
		return
	}
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_UnwindStarted{UnwindStarted: &historyv1.UnwindStarted{Cause: cause}}})
	for i := range d.s.Steps {
		call := Call{Step: d.s.Steps[i].Name, Dir: do}
		switch d.s.Steps[i].Do.Phase {
		case InFlight:
			d.stop = append(d.stop, call)
		case BackingOff, Held:
			d.emit(&historyv1.Fact{Kind: &historyv1.Fact_CallGivenUp{CallGivenUp: &historyv1.CallGivenUp{
				Call: call.proto(), Reason: historyv1.GiveUpReason_GIVE_UP_REASON_UNWINDING,
			}}})
		}
	}
	d.closeItems(func(it *ItemState) bool { return it.Blocking && it.Call.Dir == do }, "the saga unwinds")
	d.progress()
}

// unwind starts the compensations whose turn it is.
func (d *decider) unwind() {
	plan := compensation.Next(d.m.plan(d.s), d.m.undoMax)
	for _, i := range plan.Start {
		d.attempt(i, undo, d.s.Steps[i].Undo.Generation+1, nil)
	}
	if plan.Done {
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_Compensated{Compensated: &historyv1.Compensated{}}})
	}
}

// plan says for each step where it stands in the unwinding.
func (m *Machine) plan(s *State) []compensation.Step {
	steps := make([]compensation.Step, len(s.Steps))
	for i := range s.Steps {
		steps[i] = compensation.Step{StartNo: int(s.Steps[i].StartNo), Phase: m.phase(i, &s.Steps[i]), Before: m.steps[i].before}
	}
	return steps
}

func (m *Machine) phase(i int, st *StepState) compensation.Phase {
	switch st.Do.Phase {
	case Idle:
		return compensation.NeverRan
	case InFlight, BackingOff, Held:
		return compensation.InFlight
	}
	switch {
	case st.Do.Attempt == 0 && !(st.Do.ByHand && st.Do.Phase == Succeeded):
		return compensation.NeverRan
	case m.steps[i].kind != sagadv1.Kind_KIND_COMPENSATABLE,
		st.Do.nothingDone():
		return compensation.Clean
	}
	switch st.Undo.Phase {
	case Idle:
		return compensation.NeedsUndo
	case Succeeded:
		return compensation.Undone
	case Held:
		if m.steps[i].letPass {
			return compensation.HeldLetPass
		}
		return compensation.Held
	default:
		return compensation.Undoing
	}
}

// late takes in a result that comes after its call had ended, or its attempt was overtaken. It is evidence, and changes no
// direction taken; but an effect that it proves is undone if it can be, and else brought to a person.
func (d *decider) late(i int, e Result, digest []byte) {
	d.reply.Verdict = workerv1.Verdict_VERDICT_STALE
	st := &d.s.Steps[i]
	f := &historyv1.LateResult{
		Call: e.Call.proto(), Generation: e.Generation, Attempt: e.Attempt, Outcome: e.Outcome, Error: e.Error, Worker: e.Worker, Digest: digest,
	}
	if e.Outcome == historyv1.Outcome_OUTCOME_SUCCEEDED && e.Call.Dir == do && e.Error == nil && checkOutput(e.Output, d.m.steps[i].outSchema) == nil {
		f.Output = orNull(e.Output)
	}
	knew := st.Do.happened
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_LateResult{LateResult: f}})
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
		d.attempt(i, undo, st.Undo.Generation+1, nil)
	default:
		d.progress()
	}
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
	if effect(&d.s.Steps[i], e) {
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
	if d.s.Status.Terminal() {
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
	for i := range d.m.steps {
		for _, dir := range [...]historyv1.Direction{do, undo} {
			c, call := d.s.Steps[i].call(dir), Call{Step: d.m.steps[i].name, Dir: dir}
			switch {
			case d.s.Status.Terminal():
				return
			case c.Phase == InFlight && c.Deadline <= d.now:
				d.timeout(i, call, e)
			case c.Phase == BackingOff && c.RetryAt <= d.now:
				d.attempt(i, dir, c.Generation, nil)
			}
		}
	}
	d.progress()
}

// timeout ends an attempt that wasn't answered: something may have been done, or may still be.
func (d *decider) timeout(i int, call Call, e Tick) {
	c := d.s.Steps[i].call(call.Dir)
	attempt := c.Attempt
	err := &historyv1.Error{Code: CodeTimeout, Message: fmt.Sprintf("no answer within %v: whether anything was done is unknown", d.timeoutOf(i, call.Dir))}
	if e.NoWorker != nil && e.NoWorker(call) {
		err = &historyv1.Error{Code: CodeNoWorker, Message: fmt.Sprintf(
			"no worker for %s (%s) in namespace %s: start one, or see whether the one that runs serves this activity, in this namespace, and reaches the same NATS",
			d.m.steps[i].activity, sideWord(call.Dir), d.s.Namespace)}
	}
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_AttemptEnded{AttemptEnded: &historyv1.AttemptEnded{
		Call: call.proto(), Generation: c.Generation, Attempt: attempt, Outcome: historyv1.Outcome_OUTCOME_UNKNOWN, Error: err,
	}}})
	d.tryAgain(i, call, attempt, err, false, 0)
}

func (d *decider) timeoutOf(i int, dir historyv1.Direction) time.Duration {
	if dir == undo {
		return time.Duration(d.m.steps[i].undoTimeout) * time.Microsecond
	}
	return time.Duration(d.m.steps[i].timeout) * time.Microsecond
}

func sideWord(dir historyv1.Direction) string {
	if dir == undo {
		return "compensation"
	}
	return "action"
}

// activityWords names what is called.
func activityWords(dir historyv1.Direction, activity string) string {
	if dir == undo {
		return "the compensation of " + activity
	}
	return activity
}

// cancel unwinds the saga wherever it waits, unless the pivot has been sent.
func (d *decider) cancel(e Cancel) {
	switch {
	case d.s.Backward && d.s.answered(e.RequestID):
		d.reply = Reply{Cancel: sagadv1.CancelAnswer_CANCEL_ANSWER_WILL_UNWIND, Duplicate: true}
	case d.s.Status == Completed:
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
	if e.Call.Dir == do {
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
