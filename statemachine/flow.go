package statemachine

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sagad/sagad/compensation"
	"github.com/sagad/sagad/internal/expr"
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// choose takes the arm of an if or a switch, and says whether it is taken.
func (d *decider) choose(n *node, w where) bool {
	if d.place(n.index, w.item).Arm != ArmOpen {
		return true
	}
	name := d.m.places[n.index].name
	taken := len(n.conditions) // the default
	for i, c := range n.conditions {
		holds, err := c.EvalBool(d.vars(c.Refs(), w))
		if err != nil {
			d.expressionFailed(Call{Step: name, Item: w.item, Dir: do}, w, err)
			return false
		}
		if holds {
			taken = i
			break
		}
	}
	if n.kind == ifNode {
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_BranchTaken{BranchTaken: &historyv1.BranchTaken{Name: name, Item: w.item, Condition: taken == 0}}})
	} else {
		if taken == len(n.conditions) {
			taken = -1
		}
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_CaseTaken{CaseTaken: &historyv1.CaseTaken{Name: name, Item: w.item, Index: int32(taken)}}})
	}
	d.passed(Call{Step: name, Item: w.item, Dir: do}, "the condition could be evaluated")
	return true
}

// sleep begins a sleep, and says whether it is over.
func (d *decider) sleep(i int, w where) bool {
	p, ps := &d.m.places[i], d.place(i, w.item)
	switch ps.Phase {
	case PlaceDone:
		return true
	case PlaceIdle:
	default:
		return false
	}
	at, err := d.sleepsUntil(p, w)
	if err != nil {
		d.expressionFailed(Call{Step: p.name, Item: w.item, Dir: do}, w, err)
		return false
	}
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_TimerStarted{TimerStarted: &historyv1.TimerStarted{Name: p.name, Item: w.item, AtUs: at}}})
	d.passed(Call{Step: p.name, Item: w.item, Dir: do}, "its time could be evaluated")
	if at > d.now {
		return false
	}
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_TimerFired{TimerFired: &historyv1.TimerFired{Name: p.name, Item: w.item}}})
	return true
}

func (d *decider) sleepsUntil(p *place, w where) (Micros, error) {
	if p.lasts == nil && p.until == nil {
		return d.now + p.duration, nil
	}
	program := p.until
	if p.lasts != nil {
		program = p.lasts
	}
	doc, err := program.Eval(d.vars(program.Refs(), w))
	if err != nil {
		return 0, err
	}
	var text string
	if err := json.Unmarshal(doc, &text); err != nil {
		return 0, fmt.Errorf("%s isn't a string", limitText(string(doc), clipBytes))
	}
	if p.lasts != nil {
		length, err := time.ParseDuration(text)
		if err != nil || length < 0 || length > deadlineMax {
			return 0, fmt.Errorf("%q is no duration from 0s to %s, written like 90m or 1h30m", limitText(text, clipBytes), period(deadlineMax))
		}
		return d.now + length.Microseconds(), nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || at.UnixMicro() > d.now+deadlineMax.Microseconds() {
		return 0, fmt.Errorf("%q is no time like 2026-01-31T09:00:00Z, at most %s from now", limitText(text, clipBytes), period(deadlineMax))
	}
	return max(at.UnixMicro(), 1), nil
}

// wait begins a wait, takes a signal that is there, and says whether it is over, one way or the other.
func (d *decider) wait(i int, w where) bool {
	p, ps := &d.m.places[i], d.place(i, w.item)
	call := Call{Step: p.name, Item: w.item, Dir: do}
	switch ps.Phase {
	case PlaceDone:
		return ps.Arm == ArmThen || p.otherwise
	case PlaceStopped:
		return false
	case PlaceIdle:
		title := ""
		if p.title != nil {
			doc, err := p.title.Eval(d.vars(p.title.Refs(), w))
			if err == nil {
				err = json.Unmarshal(doc, &title)
			}
			if err != nil {
				d.expressionFailed(call, w, err)
				return false
			}
		}
		f := &historyv1.WaitStarted{Name: p.name, Item: w.item}
		if p.timeout > 0 {
			f.DeadlineUs = d.now + p.timeout
		}
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_WaitStarted{WaitStarted: f}})
		d.passed(call, "the question could be evaluated")
		if p.title != nil {
			d.ask(call, limitText(title, 4096))
		}
	}
	if p.signal == "" {
		return false
	}
	for k := range d.s.Signals {
		if s := &d.s.Signals[k]; s.Name == p.signal {
			d.emit(&historyv1.Fact{Kind: &historyv1.Fact_SignalConsumed{SignalConsumed: &historyv1.SignalConsumed{
				Name: p.name, Item: w.item, Signal: s.Name, Key: s.Key,
			}}})
			return true
		}
	}
	return false
}

// ask puts a question to people. The saga waits for the answer, but isn't stuck.
func (d *decider) ask(call Call, title string) {
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_ItemOpened{ItemOpened: &historyv1.ItemOpened{
		Item: int32(len(d.s.Items)) + 1, Kind: historyv1.ItemKind_ITEM_KIND_APPROVAL, Call: call.proto(),
		Error: &historyv1.Error{Code: "APPROVAL", Message: title},
	}}})
}

// timeUp ends a sleep, or a wait that nothing came for.
func (d *decider) timeUp(i int, w where) {
	p := &d.m.places[i]
	if p.kind == sleepNode {
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_TimerFired{TimerFired: &historyv1.TimerFired{Name: p.name, Item: w.item}}})
		return
	}
	call := Call{Step: p.name, Item: w.item, Dir: do}
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_WaitExpired{WaitExpired: &historyv1.WaitExpired{Name: p.name, Item: w.item}}})
	d.closeItems(func(it *ItemState) bool { return it.Kind == historyv1.ItemKind_ITEM_KIND_APPROVAL && it.Call == call }, "the time for an answer was up")
	if p.otherwise {
		return
	}
	what := "no signal " + p.signal
	if p.title != nil {
		what = "no answer"
	}
	d.fail(w, call, historyv1.ItemKind_ITEM_KIND_BLOCK_PAST_PIVOT, &historyv1.Cause{
		Kind: historyv1.CauseKind_CAUSE_KIND_BLOCK, Step: p.name,
		Error: &historyv1.Error{Code: CodeSignalTimeout, Message: fmt.Sprintf("%s came within %v", what, micros(p.timeout))},
	})
}

// block runs a map, a loop, a savepoint or a race as far as it goes, and says whether it is done.
func (d *decider) block(i int, w where) bool {
	switch d.place(i, w.item).Phase {
	case PlaceDone:
		return true
	case PlaceStopped:
		return false
	case PlaceIdle:
		if !d.openBlock(i, w) {
			return false
		}
	}
	for _, index := range d.place(i, w.item).active { // of a state that has passed already, perhaps: what began since is run where it began
		if !d.forward() || d.backward(w) {
			return false
		}
		d.runScope(i, w, index)
	}
	for d.forward() && !d.backward(w) {
		if d.place(i, w.item).Phase == PlaceDone {
			return true // what failed inside let the saga go on, up to here
		}
		more, done := d.turn(i, w)
		if done {
			return true
		}
		if !more {
			return false
		}
	}
	return false
}

// openBlock begins a block.
func (d *decider) openBlock(i int, w where) bool {
	p := &d.m.places[i]
	call := Call{Step: p.name, Item: w.item, Dir: do}
	f := &historyv1.BlockStarted{Name: p.name, Item: w.item}
	switch p.kind {
	case mapNode:
		doc, err := p.items.Eval(d.vars(p.items.Refs(), w))
		var list []json.RawMessage
		if err == nil && len(doc) > payloadBytesMax {
			err = fmt.Errorf("the list has %d bytes; the limit is %d", len(doc), payloadBytesMax)
		}
		if err == nil && json.Unmarshal(doc, &list) != nil {
			err = fmt.Errorf("%s is no list", limitText(string(doc), clipBytes))
		}
		if err == nil && len(list) > elementsMax {
			err = fmt.Errorf("the list has %d elements; the limit is %d", len(list), elementsMax)
		}
		if err != nil {
			d.expressionFailed(call, w, err)
			return false
		}
		f.Value, f.Count = doc, int32(len(list))
	case loopNode:
		f.Count = int32(p.rounds)
		value, err := d.build(&p.initial, expr.Any, w)
		if err != nil {
			d.expressionFailed(call, w, err)
			return false
		}
		f.Value = value
	default:
		f.Count = int32(len(p.bodies))
	}
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_BlockStarted{BlockStarted: f}})
	d.passed(call, "it could be evaluated")
	return true
}

// scopeOf is where a block's scope runs.
func (m *Machine) scopeOf(i int, w where, index int32) where {
	p := &m.places[i]
	body := p.bodies[0]
	if p.kind == savepointNode || p.kind == raceNode {
		body = p.bodies[index]
	}
	return where{body, m.itemOf(p, w.item, int(index))}
}

// runScope runs a scope as far as it goes, and ends it if that is all the way.
func (d *decider) runScope(i int, w where, index int32) {
	in := d.m.scopeOf(i, w, index)
	if d.frame(in).Phase != FrameRunning || !d.sequence(d.m.bodies[in.body].nodes, in) || !d.forward() || d.backward(in) || d.frame(in).Phase != FrameRunning {
		return
	}
	p := &d.m.places[i]
	output, err := []byte(nil), error(nil)
	switch {
	case p.kind == mapNode && p.results, p.kind == raceNode:
		output, err = d.build(&d.m.bodies[in.body].output, expr.Any, in)
	case p.kind == loopNode && p.keep:
		output = d.frame(in).Value
	case p.kind == loopNode:
		output, err = d.build(&p.next, expr.Any, in)
	}
	if err != nil {
		d.expressionFailed(Call{Step: p.name, Item: w.item, Dir: do}, in, err)
		return
	}
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_ScopeEnded{ScopeEnded: &historyv1.ScopeEnded{Name: p.name, Item: w.item, Index: index, Output: output}}})
}

// startScope begins a scope and runs it as far as it goes.
func (d *decider) startScope(i int, w where, index int32, value []byte) {
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_ScopeStarted{ScopeStarted: &historyv1.ScopeStarted{
		Name: d.m.places[i].name, Item: w.item, Index: index, Value: value,
	}}})
	d.runScope(i, w, index)
}

// turn does the next thing that a block has to do, with scopes as they stand. more: there may be another one. done: the block is over.
func (d *decider) turn(i int, w where) (more, done bool) {
	p, ps := &d.m.places[i], d.place(i, w.item)
	begun := int32(len(ps.frames))
	switch p.kind {
	case mapNode:
		if begun < ps.Count && len(ps.active) < p.window {
			d.startScope(i, w, begun, ps.elements[begun])
			return true, false
		}
		if len(ps.active) > 0 {
			return false, false
		}
	case raceNode:
		if int(ps.Done) >= p.need {
			if d.stopLosers(i, w) {
				return false, false
			}
			break
		}
		if begun < ps.Count {
			d.startScope(i, w, begun, nil)
			return true, false
		}
		return false, false
	case loopNode:
		if len(ps.active) > 0 {
			return false, false
		}
		value := ps.Value
		if begun > 0 {
			last := d.m.scopeOf(i, w, begun-1)
			again, err := p.while.EvalBool(d.vars(p.while.Refs(), last))
			if err != nil {
				d.expressionFailed(Call{Step: p.name, Item: w.item, Dir: do}, w, err)
				return false, false
			}
			if !again {
				break
			}
			if begun >= ps.Count {
				d.fail(w, Call{Step: p.name, Item: w.item, Dir: do}, historyv1.ItemKind_ITEM_KIND_BLOCK_PAST_PIVOT, &historyv1.Cause{
					Kind: historyv1.CauseKind_CAUSE_KIND_BLOCK, Step: p.name,
					Error: &historyv1.Error{Code: CodeLoopLimit, Message: fmt.Sprintf("it wants another round after %s, which is its limit", plural(p.rounds, "round"))},
				})
				return false, false
			}
			value = d.frame(last).Output
		}
		d.startScope(i, w, begun, value)
		return true, false
	case savepointNode:
		if len(ps.active) > 0 {
			return false, false
		}
		if begun == 0 {
			d.startScope(i, w, 0, nil)
			return true, false
		}
		if last := ps.frames[begun-1]; last.Phase == FrameUndone {
			next, err := d.alternative(i, w, int(begun-1), last.Cause)
			if next < 0 { // it was there when the path before turned back, and nothing has changed since
				panic(fmt.Sprintf("savepoint %s has no way to go on: %v", p.name, err))
			}
			d.startScope(i, w, int32(next), wrong(last.Cause))
			return true, false
		}
	}
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_BlockEnded{BlockEnded: &historyv1.BlockEnded{Name: p.name, Item: w.item, Output: d.said(i, w)}}})
	d.passed(Call{Step: p.name, Item: w.item, Dir: do}, "it came to its end")
	return false, true
}

// stopLosers turns the branches back that lost a race, and says whether some of them aren't undone yet.
func (d *decider) stopLosers(i int, w where) bool {
	p := &d.m.places[i]
	for _, index := range d.place(i, w.item).active {
		if in := d.m.scopeOf(i, w, index); d.frame(in).Phase == FrameRunning {
			d.unwindScope(i, w, index, &historyv1.Cause{
				Kind: historyv1.CauseKind_CAUSE_KIND_BLOCK, Step: p.name, Error: &historyv1.Error{Code: CodeLostRace, Message: "enough other branches were done"},
			})
		}
	}
	return len(d.place(i, w.item).active) > 0
}

// unwindScope turns a scope back, while the saga goes on.
func (d *decider) unwindScope(i int, w where, index int32, cause *historyv1.Cause) {
	d.emit(&historyv1.Fact{Kind: &historyv1.Fact_ScopeUnwinding{ScopeUnwinding: &historyv1.ScopeUnwinding{
		Name: d.m.places[i].name, Item: w.item, Index: index, Cause: cause,
	}}})
	d.release(d.m.scopeOf(i, w, index), "what it belongs to unwinds")
}

// said is what is read by a block's name once it is done.
func (d *decider) said(i int, w where) []byte {
	p, ps := &d.m.places[i], d.place(i, w.item)
	b := []byte{}
	switch p.kind {
	case mapNode:
		b = fmt.Appendf(b, `{"done":%d,"failed":%d`, ps.Done, ps.Failed)
		if p.results {
			b = append(b, `,"results":[`...)
			for n, f := range ps.frames {
				if n > 0 {
					b = append(b, ',')
				}
				if f.Phase == FrameDone {
					b = append(append(append(b, `{"ok":true,"output":`...), orNull(f.Output)...), '}')
				} else {
					e := f.Cause.GetError()
					b = append(appendText(append(b, `{"ok":false,"code":`...), e.GetCode()), `,"message":`...)
					b = append(appendText(b, limitText(e.GetMessage(), 256)), '}')
				}
			}
			b = append(b, ']')
		}
		b = append(b, '}')
	case loopNode:
		value := ps.Value
		if n := len(ps.frames); n > 0 {
			value = ps.frames[n-1].Output
		}
		b = append(append(fmt.Appendf(b, `{"rounds":%d,"value":`, len(ps.frames)), orNull(value)...), '}')
	case savepointNode:
		b = fmt.Appendf(b, `{"path":%d}`, len(ps.frames)-1)
	case raceNode:
		b = append(b, '[')
		for n, index := range ps.order {
			if n > 0 {
				b = append(b, ',')
			}
			b = append(append(fmt.Appendf(b, `{"branch":%d,"output":`, index), orNull(ps.frames[index].Output)...), '}')
		}
		b = append(b, ']')
	}
	return b
}

func appendText(b []byte, text string) []byte {
	quoted, err := json.Marshal(strings.ToValidUTF8(text, "\uFFFD"))
	if err != nil {
		return append(b, `""`...)
	}
	return append(b, quoted...)
}

// wrong is what alternatives read of what went wrong.
func wrong(c *historyv1.Cause) []byte {
	b := appendText([]byte(`{"step":`), c.GetStep())
	b = appendText(append(b, `,"code":`...), c.GetError().GetCode())
	b = appendText(append(b, `,"message":`...), c.GetError().GetMessage())
	return append(b, '}')
}

// blockDocument is what a place's name stands for: inside of a block something else than after it.
func (d *decider) blockDocument(i int, w where) json.RawMessage {
	p := &d.m.places[i]
	for in := w; in.body != 0; in = d.m.out(in) {
		if d.m.bodies[in.body].owner != i {
			continue
		}
		f := d.frame(in)
		b := append([]byte(`{"index":`), strconv.Itoa(int(f.Index))...)
		switch p.kind {
		case mapNode:
			return append(append(append(b, `,"item":`...), orNull(f.Value)...), '}')
		case loopNode:
			return append(append(append(b, `,"value":`...), orNull(f.Value)...), '}')
		default:
			return orNull(f.Value)
		}
	}
	return orNull(d.place(i, d.itemAt(p.body, w)).Output)
}

// alternative is the path that a savepoint takes after another one failed; -1 if there is none, or if that can't be told.
func (d *decider) alternative(i int, w where, after int, cause *historyv1.Cause) (int, error) {
	p := &d.m.places[i]
	for next := after + 1; next < len(p.bodies); next++ {
		c := p.conditions[next-1]
		if c == nil {
			return next, nil
		}
		vars := d.vars(c.Refs(), w)
		vars[p.name] = wrong(cause)
		holds, err := c.EvalBool(vars)
		if err != nil {
			return -1, err
		}
		if holds {
			return next, nil
		}
	}
	return -1, nil
}

// unwinding counts the scopes of a block that are being undone.
func (p *PlaceState) unwinding() (n int) {
	for _, index := range p.active {
		if p.frames[index].Phase == FrameUnwinding {
			n++
		}
	}
	return n
}

// fail ends the forward path of what stands in w: the innermost block that can bear it turns the scope back; if none can, the saga
// turns back or, past its pivot, a person is asked about the call.
func (d *decider) fail(w where, call Call, kind historyv1.ItemKind, cause *historyv1.Cause) {
	if d.backward(w) {
		d.progress()
		return
	}
	for ; w.body != 0; w = d.m.out(w) {
		i, out := d.m.bodies[w.body].owner, d.m.out(w)
		p, ps, index := &d.m.places[i], d.place(i, out.item), d.frame(w).Index
		bears := false
		failed := int(ps.Failed) + ps.unwinding() + 1
		switch p.kind {
		case mapNode:
			if bears = failed <= p.tolerate; !bears && p.tolerate > 0 {
				cause = &historyv1.Cause{Kind: historyv1.CauseKind_CAUSE_KIND_BLOCK, Step: p.name, Error: &historyv1.Error{
					Code: CodeElements, Message: fmt.Sprintf("%s failed, and %d may; the last one: %s", plural(failed, "element"), p.tolerate, describeCause(cause)),
				}}
			}
		case raceNode:
			if bears = int(ps.Count)-failed >= p.need; !bears {
				cause = &historyv1.Cause{Kind: historyv1.CauseKind_CAUSE_KIND_BLOCK, Step: p.name, Error: &historyv1.Error{
					Code: CodeBranches, Message: fmt.Sprintf("%d of %d branches failed, so that %d can't be done any more; the last one: %s", failed, ps.Count, p.need, describeCause(cause)),
				}}
			}
		case savepointNode:
			next, err := d.alternative(i, out, int(index), cause)
			if err != nil {
				cause = &historyv1.Cause{Kind: historyv1.CauseKind_CAUSE_KIND_EXPRESSION, Step: p.name, Error: &historyv1.Error{
					Code: CodeExpression, Message: limitText(err.Error(), 4096),
				}}
			}
			bears = next >= 0
		}
		if bears {
			d.unwindScope(i, out, index, cause)
			d.progress()
			return
		}
	}
	if d.pivotStarted() {
		d.hold(call, kind, cause.GetError())
		return
	}
	d.turnBack(cause)
}

func describeCause(c *historyv1.Cause) string {
	if c.GetStep() == "" {
		return c.GetError().GetCode()
	}
	return c.GetStep() + " " + c.GetError().GetCode()
}

// release gives up what waits in a run of a body that turned back, and tells what is in flight to stop.
func (d *decider) release(w where, how string) {
	var waiting []Call
	d.frame(w).each(func(f *Frame) bool {
		if !f.isLive() && len(d.s.Items) == 0 && w.body != 0 {
			return false
		}
		for i := range f.Steps {
			call := Call{Step: f.Steps[i].Name, Item: f.Item, Dir: do}
			switch f.Steps[i].Do.Phase {
			case InFlight:
				d.stop = append(d.stop, call)
			case BackingOff, Held:
				waiting = append(waiting, call)
			}
		}
		return true
	})
	for _, call := range waiting {
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_CallGivenUp{CallGivenUp: &historyv1.CallGivenUp{
			Call: call.proto(), Reason: historyv1.GiveUpReason_GIVE_UP_REASON_UNWINDING,
		}}})
	}
	if len(d.s.Items) > 0 {
		d.closeItems(func(it *ItemState) bool {
			return (it.Blocking && it.Call.Dir == do || it.Kind == historyv1.ItemKind_ITEM_KIND_APPROVAL) && d.m.inside(w, it.Call)
		}, how)
	}
}

// inside says that a call, or a place, stands in a run of a body.
func (m *Machine) inside(w where, c Call) bool {
	if w.body == 0 {
		return true
	}
	at := where{item: c.Item}
	if i, ok := m.byName[c.Step]; ok {
		at.body = m.steps[i].body
	} else if i, ok := m.placeOf[c.Step]; ok {
		at.body = m.places[i].body
	}
	for ; at.body != 0; at = m.out(at) {
		if at == w {
			return true
		}
	}
	return false
}

// unwindScopes starts the compensations of scopes that turned back by themselves, and ends those that are undone.
func (d *decider) unwindScopes() {
	type scope struct {
		place int
		w     where
		index int32
	}
	var found []scope
	d.s.each(func(f *Frame) bool {
		if f.Phase != FrameRunning {
			return false
		}
		for slot, i := range d.m.bodies[f.body].places {
			p := &f.Places[slot]
			for _, index := range p.active {
				if p.frames[index].Phase == FrameUnwinding {
					found = append(found, scope{i, where{f.body, f.Item}, index})
				}
			}
		}
		return true
	})
	ended := false
	for _, x := range found {
		if d.s.Paused || d.s.Backward || d.s.Status.Terminal() {
			return
		}
		if d.compensate(d.frame(d.m.scopeOf(x.place, x.w, x.index))) {
			d.emit(&historyv1.Fact{Kind: &historyv1.Fact_ScopeEnded{ScopeEnded: &historyv1.ScopeEnded{
				Name: d.m.places[x.place].name, Item: x.w.item, Index: x.index, Undone: true,
			}}})
			ended = true
		}
	}
	if ended {
		d.progress()
	}
}

// tree is what ran of a frame and isn't settled, as the planner takes it.
type tree struct {
	nodes   []compensation.Node
	refs    []treeStep
	planner compensation.Planner
}

type treeStep struct {
	frame *Frame
	step  int
}

func (t *tree) open(kind compensation.Kind) int {
	t.nodes = append(t.nodes, compensation.Node{Kind: kind})
	return len(t.nodes) - 1
}

// close ends a node. One that holds nothing is left out.
func (t *tree) close(at int) {
	if n := len(t.nodes) - at; n > 1 {
		t.nodes[at].Size = int32(n)
	} else {
		t.nodes = t.nodes[:at]
	}
}

func (t *tree) body(m *Machine, f *Frame) { t.series(m, f, m.bodies[f.body].nodes) }

func (t *tree) series(m *Machine, f *Frame, nodes []node) {
	at := t.open(compensation.Series)
	for i := range nodes {
		n := &nodes[i]
		switch n.kind {
		case stepNode:
			st := &f.Steps[m.steps[n.index].slot]
			switch phase := m.phase(n.index, st); phase {
			case compensation.NeverRan, compensation.Clean, compensation.Undone:
			default:
				t.nodes = append(t.nodes, compensation.Node{
					Kind: compensation.Step, Size: 1, Phase: phase, StartNo: int(st.StartNo), Ref: int32(len(t.refs)),
				})
				t.refs = append(t.refs, treeStep{f, n.index})
			}
		case parallelNode:
			side := t.open(compensation.Parallel)
			for _, b := range n.branches {
				t.series(m, f, b)
			}
			t.close(side)
		case ifNode, switchNode, waitNode:
			if arm := f.Places[m.places[n.index].slot].Arm; arm != ArmOpen && len(n.branches) > 0 {
				t.series(m, f, n.branches[arm-ArmThen])
			}
		case mapNode, raceNode, loopNode, savepointNode:
			kind := compensation.Series
			if n.kind == mapNode || n.kind == raceNode {
				kind = compensation.Parallel
			}
			all := t.open(kind)
			for _, in := range f.Places[m.places[n.index].slot].frames {
				if in != nil {
					t.body(m, in)
				}
			}
			t.close(all)
		}
	}
	t.close(at)
}

// undoneTooEarly says that a compensation found nothing to undo, and that the action is known by now to have happened.
func (st *StepState) undoneTooEarly() bool {
	return st.Undo.Phase == Succeeded && st.Undo.Empty && !st.Undo.ByHand && !st.Undo.happened && st.Do.happened
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
	case m.steps[i].kind != sagadv1.Kind_KIND_COMPENSATABLE:
		return compensation.Clean
	case st.Undo.Phase == Idle && st.Probe != nil && (st.Probe.Phase == InFlight || st.Probe.Phase == BackingOff):
		return compensation.Undoing
	case st.Do.nothingDone() && (st.Undo.Phase == Idle || st.Undo.Phase == Succeeded):
		return compensation.Clean
	}
	switch st.Undo.Phase {
	case Idle:
		return compensation.NeedsUndo
	case Succeeded:
		if st.undoneTooEarly() {
			return compensation.NeedsUndo
		}
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

// Order is the plan of the whole unwinding, before it runs: waves of calls that may be undone side by side. Steps in flight are taken for
// such as will need it.
func (m *Machine) Order(s *State) [][]Call {
	var t tree
	t.body(m, &s.Frame)
	var out [][]Call
	for _, wave := range compensation.Order(t.nodes) {
		calls := make([]Call, len(wave))
		for k, n := range wave {
			ref := t.refs[t.nodes[n].Ref]
			calls[k] = Call{Step: m.steps[ref.step].name, Item: ref.frame.Item, Dir: undo}
		}
		out = append(out, calls)
	}
	return out
}

// settlePlace lets a person say how a place that can't be evaluated, or failed, is to go on.
func (d *decider) settlePlace(i int, item string, output []byte) {
	p := &d.m.places[i]
	name := p.name
	switch p.kind {
	case ifNode:
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_BranchTaken{BranchTaken: &historyv1.BranchTaken{Name: name, Item: item, Condition: string(output) == "true"}}})
	case switchNode:
		n, _ := strconv.Atoi(string(output))
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_CaseTaken{CaseTaken: &historyv1.CaseTaken{Name: name, Item: item, Index: int32(n)}}})
	case sleepNode:
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_TimerFired{TimerFired: &historyv1.TimerFired{Name: name, Item: item}}})
	case waitNode:
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_SignalConsumed{SignalConsumed: &historyv1.SignalConsumed{Name: name, Item: item, Payload: orNull(output)}}})
	default:
		w := where{p.body, item}
		for _, index := range slices.Clone(d.place(i, item).active) {
			d.release(d.m.scopeOf(i, w, index), "a person completed what it belongs to")
		}
		d.emit(&historyv1.Fact{Kind: &historyv1.Fact_BlockEnded{BlockEnded: &historyv1.BlockEnded{Name: name, Item: item, Output: orNull(output)}}})
	}
}

// checkPlaceOutput says what a person must give to complete a place, or nil if they did.
func (m *Machine) checkPlaceOutput(i int, output []byte) error {
	p := &m.places[i]
	text := string(orNull(output))
	switch p.kind {
	case ifNode:
		if text != "true" && text != "false" {
			return fmt.Errorf("the output decides the branch: it must be true or false")
		}
	case switchNode:
		if n, err := strconv.Atoi(text); err != nil || n < -1 || n >= p.cases {
			return fmt.Errorf("the output decides the case: it must be -1 for the default, or 0 to %d", p.cases-1)
		}
	case waitNode:
		if e := checkOutput(output, p.schema); e != nil {
			return fmt.Errorf("%s", e.GetMessage())
		}
	case sleepNode:
	default:
		if e := checkOutput(output, expr.Any); e != nil {
			return fmt.Errorf("%s", e.GetMessage())
		}
	}
	return nil
}
