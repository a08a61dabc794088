package statemachine

import (
	"fmt"
	"sort"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// hold gives a call to a person: its item is opened, or opened again.
func (d *decider) hold(call Call, kind historyv1.ItemKind, e *historyv1.Error) {
	for i := range d.s.Items {
		if it := &d.s.Items[i]; it.Open() && it.Blocking && it.Call == call {
			d.emit(&historyv1.Fact{Kind: &historyv1.Fact_ItemChanged{ItemChanged: &historyv1.ItemChanged{
				Item: it.Number, Status: historyv1.ItemStatus_ITEM_STATUS_OPEN, Error: e,
			}}})
			return
		}
	}
	d.open(call, kind, e, true)
}

func (d *decider) open(call Call, kind historyv1.ItemKind, e *historyv1.Error, blocking bool) {
	if !blocking && len(d.s.Items) >= itemsMax {
		return // the facts that led here stay in the history
	}
	f := &historyv1.ItemOpened{Item: int32(len(d.s.Items)) + 1, Kind: kind, Error: e, Blocking: blocking}
	if call.Step != "" {
		f.Call = call.proto()
	}
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_ItemOpened{ItemOpened: f}})
}

// openOnce opens an item that blocks nothing, unless such a one is open already.
func (d *decider) openOnce(call Call, kind historyv1.ItemKind, e *historyv1.Error) {
	for i := range d.s.Items {
		if it := &d.s.Items[i]; it.Open() && it.Kind == kind && it.Call == call {
			return
		}
	}
	d.open(call, kind, e, false)
}

// retrying says of the items that wait for a call that it is called again.
func (d *decider) retrying(call Call) {
	for i := range d.s.Items {
		if it := &d.s.Items[i]; it.Blocking && it.Status == historyv1.ItemStatus_ITEM_STATUS_OPEN && it.Call == call {
			d.emit(&historyv1.Fact{Kind: &historyv1.Fact_ItemChanged{ItemChanged: &historyv1.ItemChanged{
				Item: it.Number, Status: historyv1.ItemStatus_ITEM_STATUS_RETRYING,
			}}})
		}
	}
}

// passed closes the items that waited for a call.
func (d *decider) passed(call Call, how string) {
	d.closeItems(func(it *ItemState) bool { return it.Blocking && it.Call == call }, how)
}

func (d *decider) passedOn(call Call, attempt int32) {
	if len(d.s.Items) > 0 {
		d.passed(call, fmt.Sprintf("passed on attempt %d", attempt))
	}
}

func (d *decider) closeItems(match func(*ItemState) bool, how string) {
	for i := range d.s.Items {
		if it := &d.s.Items[i]; it.Open() && match(it) {
			d.emit(&historyv1.Fact{Kind: &historyv1.Fact_ItemClosed{ItemClosed: &historyv1.ItemClosed{Item: it.Number, How: how}}})
		}
	}
}

// act does what a person decided about an item.
func (d *decider) act(e Act) error {
	it := d.s.Item(e.Item)
	if it == nil {
		return &Refusal{Code: RefusedNotFound, Message: fmt.Sprintf("the saga has no operations item %d", e.Item)}
	}
	if d.s.answered(e.RequestID) {
		d.reply.Duplicate = true
		return nil
	}
	if e.Version != 0 && e.Version != it.Version {
		return &Refusal{Code: RefusedStale, Message: fmt.Sprintf("item %d has changed since version %d: it is now version %d, %s; look at it again", e.Item, e.Version, it.Version, statusWord(it.Status))}
	}
	if e.Reason == "" {
		return &Refusal{Code: RefusedInvalid, Message: "a reason is needed: it stands in the history for good"}
	}
	if why := d.m.forbidden(d.s, it, e.Action); why != "" {
		return &Refusal{Code: RefusedNotAllowed, Message: why}
	}
	call := it.Call
	i, isStep := d.m.byName[call.Step]
	at, isPlace := d.m.placeOf[call.Step]
	output := e.Output
	switch e.Action {
	case historyv1.OperatorAction_OPERATOR_ACTION_COMPLETE:
		if e.Evidence == "" {
			return &Refusal{Code: RefusedInvalid, Message: "evidence is needed: where can it be seen that this was done?"}
		}
		switch {
		case isPlace:
			if err := d.m.checkPlaceOutput(at, output); err != nil {
				return &Refusal{Code: RefusedOutput, Message: err.Error()}
			}
		default:
			schema := d.m.output
			if isStep {
				schema = d.m.steps[i].outSchema
			}
			if err := checkOutput(output, schema); err != nil {
				return &Refusal{Code: RefusedOutput, Message: err.GetMessage()}
			}
		}
	case historyv1.OperatorAction_OPERATOR_ACTION_ANSWER:
		if err := d.m.checkPlaceOutput(at, output); err != nil {
			return &Refusal{Code: RefusedOutput, Message: err.Error()}
		}
	case historyv1.OperatorAction_OPERATOR_ACTION_RESOLVE:
		if e.Evidence == "" {
			return &Refusal{Code: RefusedInvalid, Message: "evidence is needed: where can it be seen that nothing of it stands?"}
		}
	}
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_OperatorActed{OperatorActed: &historyv1.OperatorActed{
		Item: e.Item, Action: e.Action, Actor: e.Actor, Reason: e.Reason, Evidence: e.Evidence,
	}}})
	closeIt := func(how string) {
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_ItemClosed{ItemClosed: &historyv1.ItemClosed{Item: e.Item, How: how}}})
	}
	byHand := func(settlement historyv1.Settlement, output []byte) {
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_SettledByHand{SettledByHand: &historyv1.SettledByHand{
			Call: call.proto(), Settlement: settlement, Output: output,
		}}})
	}
	switch e.Action {
	case historyv1.OperatorAction_OPERATOR_ACTION_RETRY:
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_ItemChanged{ItemChanged: &historyv1.ItemChanged{
			Item: e.Item, Status: historyv1.ItemStatus_ITEM_STATUS_RETRYING,
		}}})
		if isStep {
			st := d.step(i, call.Item)
			if c := st.call(call.Dir); c.Attempt > 0 && d.m.steps[i].child && call.Dir == do {
				d.attempt(i, call.Item, do, c.Generation+1, c.Input) // the child saga before has ended: this is another one
			} else if c.Attempt > 0 {
				d.again(i, call.Item, call.Dir, c.Generation)
			}
		}
	case historyv1.OperatorAction_OPERATOR_ACTION_COMPLETE:
		byHand(historyv1.Settlement_SETTLEMENT_DONE, orNull(output))
		closeIt("completed by hand")
		switch {
		case isStep:
		case call.Step == returnStep:
			d.complete(output)
		default:
			d.settlePlace(at, call.Item, output)
		}
	case historyv1.OperatorAction_OPERATOR_ACTION_ANSWER:
		d.settlePlace(at, call.Item, output)
		closeIt("answered")
	case historyv1.OperatorAction_OPERATOR_ACTION_RESOLVE:
		byHand(historyv1.Settlement_SETTLEMENT_UNDONE, nil)
		closeIt("resolved by hand")
		if call.Dir == do {
			d.turnBack(&historyv1.Cause{
				Kind: historyv1.CauseKind_CAUSE_KIND_OPERATOR, Step: call.Step, Attempt: d.step(i, call.Item).Do.Attempt, Error: it.Error, Actor: e.Actor,
			})
			return nil
		}
	case historyv1.OperatorAction_OPERATOR_ACTION_ABANDON:
		d.stop = d.s.InFlight()
		var left []*historyv1.Call
		for _, f := range d.m.Effects(d.s) {
			if f.GetState() != sagadv1.EffectState_EFFECT_STATE_UNDONE {
				left = append(left, &historyv1.Call{Step: f.GetStep(), Item: f.GetItem(), Direction: do})
			}
		}
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_Abandoned{Abandoned: &historyv1.Abandoned{Actor: e.Actor, Reason: e.Reason, Effects: left}}})
		d.closeItems(func(*ItemState) bool { return true }, "the saga was abandoned")
	case historyv1.OperatorAction_OPERATOR_ACTION_ACKNOWLEDGE:
		closeIt("acknowledged")
	}
	d.progress()
	return nil
}

// forbidden says why an action isn't allowed on an item now, or "".
func (m *Machine) forbidden(s *State, it *ItemState, action historyv1.OperatorAction) string {
	if !it.Open() {
		return fmt.Sprintf("item %d is closed: %s", it.Number, it.How)
	}
	if it.Kind == historyv1.ItemKind_ITEM_KIND_APPROVAL {
		switch {
		case action == historyv1.OperatorAction_OPERATOR_ACTION_ANSWER && s.Backward:
			return "the saga unwinds: the answer isn't needed any more"
		case action == historyv1.OperatorAction_OPERATOR_ACTION_ANSWER:
			return ""
		case action != historyv1.OperatorAction_OPERATOR_ACTION_ABANDON:
			return "the saga waits for an answer: give it, or cancel the saga"
		}
	} else if action == historyv1.OperatorAction_OPERATOR_ACTION_ANSWER {
		return "there is no question to answer"
	}
	if action == historyv1.OperatorAction_OPERATOR_ACTION_ACKNOWLEDGE {
		if it.Blocking {
			return "the saga waits for this item: retry, resolve, complete or abandon it"
		}
		return ""
	}
	if s.Status.Terminal() {
		return fmt.Sprintf("the saga has ended as %s, which never changes: acknowledge the item once what it says is taken care of", s.Status)
	}
	if action == historyv1.OperatorAction_OPERATOR_ACTION_ABANDON {
		return ""
	}
	if !it.Blocking {
		return "the saga doesn't wait for this item: acknowledge it"
	}
	if it.Status == historyv1.ItemStatus_ITEM_STATUS_RETRYING {
		return "it is being retried: wait for the outcome"
	}
	i, isStep := m.byName[it.Call.Step]
	switch action {
	case historyv1.OperatorAction_OPERATOR_ACTION_RETRY:
		if isStep && m.steps[i].child && it.Call.Dir == do {
			switch c := s.Call(it.Call); {
			case c.InDoubt:
				return "the child saga was abandoned, and what it did stands: a second one might do it twice; complete the step by hand, or resolve it"
			case s.Paused:
				return "the saga is paused: resume it first"
			}
		}
		return ""
	case historyv1.OperatorAction_OPERATOR_ACTION_COMPLETE:
		if it.Call.Dir == undo {
			return "a compensation is resolved, not completed"
		}
		return ""
	case historyv1.OperatorAction_OPERATOR_ACTION_RESOLVE:
		switch {
		case it.Call.Dir == undo:
			return ""
		case !isStep:
			return "there is no effect to resolve: complete it with the value, or retry"
		case it.Kind == historyv1.ItemKind_ITEM_KIND_PIVOT_IN_DOUBT, it.Kind == historyv1.ItemKind_ITEM_KIND_STEP_HELD:
			return ""
		default:
			return "the saga is past its pivot and can't unwind any more: retry, or complete the step by hand"
		}
	}
	return "unknown action"
}

// Allowed lists for each action what it would do to the item, or why it isn't allowed.
func (m *Machine) Allowed(s *State, number int32) []*sagadv1.AllowedAction {
	it := s.Item(number)
	if it == nil {
		return nil
	}
	var out []*sagadv1.AllowedAction
	for _, a := range [...]historyv1.OperatorAction{
		historyv1.OperatorAction_OPERATOR_ACTION_RETRY, historyv1.OperatorAction_OPERATOR_ACTION_RESOLVE,
		historyv1.OperatorAction_OPERATOR_ACTION_COMPLETE, historyv1.OperatorAction_OPERATOR_ACTION_ABANDON,
		historyv1.OperatorAction_OPERATOR_ACTION_ACKNOWLEDGE, historyv1.OperatorAction_OPERATOR_ACTION_ANSWER,
	} {
		asked := it.Kind == historyv1.ItemKind_ITEM_KIND_APPROVAL
		if asked != (a == historyv1.OperatorAction_OPERATOR_ACTION_ANSWER) && (!asked || a != historyv1.OperatorAction_OPERATOR_ACTION_ABANDON) {
			continue // neither here nor there
		}
		if why := m.forbidden(s, it, a); why != "" {
			out = append(out, &sagadv1.AllowedAction{Action: a, Consequence: why})
		} else {
			out = append(out, &sagadv1.AllowedAction{Action: a, Allowed: true, Consequence: m.consequence(s, it, a)})
		}
	}
	return out
}

// consequence says in words what an allowed action would do next.
func (m *Machine) consequence(s *State, it *ItemState, action historyv1.OperatorAction) string {
	next := "the saga goes on"
	if s.Backward {
		next = "the unwinding goes on"
	}
	i, isStep := m.byName[it.Call.Step]
	switch action {
	case historyv1.OperatorAction_OPERATOR_ACTION_RETRY:
		if !isStep {
			return fmt.Sprintf("evaluates %s again", it.Call.Step)
		}
		c := s.Call(it.Call)
		if c.Attempt == 0 {
			return fmt.Sprintf("builds the input of %s again and calls %s", it.Call.Step, activityWords(it.Call.Dir, m.steps[i].activity))
		}
		policy := m.steps[i].policy(it.Call.Dir)
		return fmt.Sprintf("calls %s again as attempt %d, under the same idempotency key, up to %s; if it succeeds %s",
			activityWords(it.Call.Dir, m.steps[i].activity), c.Attempt+1, plural(policy.Attempts, "time"), next)
	case historyv1.OperatorAction_OPERATOR_ACTION_RESOLVE:
		if it.Call.Dir == undo {
			return fmt.Sprintf("states that %s is undone, without calling anything; %s", it.Call.Step, next)
		}
		return fmt.Sprintf("states that nothing of %s stands, without calling anything; the saga unwinds what came before it", it.Call.Step)
	case historyv1.OperatorAction_OPERATOR_ACTION_COMPLETE:
		return fmt.Sprintf("states that %s is done, with the output that you give, without calling anything; the saga goes on", it.Call.Step)
	case historyv1.OperatorAction_OPERATOR_ACTION_ABANDON:
		n := 0
		for _, e := range m.Effects(s) {
			if e.GetState() != sagadv1.EffectState_EFFECT_STATE_UNDONE {
				n++
			}
		}
		switch n {
		case 0:
			return "ends the saga as ABANDONED; no effect is left, and nothing more is called"
		case 1:
			return "ends the saga as ABANDONED and leaves 1 effect as it is; nothing more is called"
		}
		return fmt.Sprintf("ends the saga as ABANDONED and leaves %d effects as they are; nothing more is called", n)
	case historyv1.OperatorAction_OPERATOR_ACTION_ANSWER:
		return "gives the saga the answer, and it goes on"
	default:
		return "closes the item; nothing else changes"
	}
}

// Effects lists what the saga's steps did, or may have done, in the world, in the order of their start. The keys are left to
// the caller.
func (m *Machine) Effects(s *State) []*sagadv1.Effect {
	type ran struct {
		step int
		item string
		st   *StepState
	}
	var order []ran
	s.each(func(f *Frame) bool {
		for slot, i := range m.bodies[f.body].steps {
			st := &f.Steps[slot]
			did := st.Do.Attempt > 0 || st.Do.ByHand && st.Do.Phase == Succeeded
			if did && m.steps[i].kind != sagadv1.Kind_KIND_READ_ONLY && !st.Do.nothingDone() {
				order = append(order, ran{i, f.Item, st})
			}
		}
		return true
	})
	sort.SliceStable(order, func(a, b int) bool { return order[a].st.StartNo < order[b].st.StartNo })
	out := make([]*sagadv1.Effect, 0, len(order))
	for _, x := range order {
		st := x.st
		e := &sagadv1.Effect{
			Step: st.Name, Item: x.item, Activity: m.steps[x.step].activity, State: sagadv1.EffectState_EFFECT_STATE_IN_DOUBT, ByHand: st.Do.ByHand || st.Undo.ByHand,
		}
		switch {
		case st.Undo.Phase == Succeeded:
			e.State = sagadv1.EffectState_EFFECT_STATE_UNDONE
		case st.Do.Phase == Succeeded && st.Undo.Phase == Idle:
			e.State = sagadv1.EffectState_EFFECT_STATE_STANDS
		}
		out = append(out, e)
	}
	return out
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func statusWord(s historyv1.ItemStatus) string {
	switch s {
	case historyv1.ItemStatus_ITEM_STATUS_OPEN:
		return "open"
	case historyv1.ItemStatus_ITEM_STATUS_RETRYING:
		return "being retried"
	default:
		return "closed"
	}
}
