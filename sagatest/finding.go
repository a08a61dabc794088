package sagatest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// finding is something that isn't right in one run.
type finding struct {
	sc    *scenario
	saga  *Saga
	wrong string
	mend  string
	// group: findings of one group have one cause, as far as can be told.
	group string
}

// findingsMax is how many are told in full.
const findingsMax = 5

// judge looks at what came of a run.
func (e *explorer) judge(tr *trial) {
	sc, s := tr.sc, tr.saga
	find := func(group, mend, wrong string, args ...any) {
		tr.found = append(tr.found, &finding{sc: sc, saga: s, wrong: fmt.Sprintf(wrong, args...), mend: mend, group: group})
	}
	if tr.rig.hung || s.expired {
		find("no end", "heed the context: pass it on to whatever the handler calls", "%s", noEnd(tr.rig))
		e.stopped = true
		return
	}
	for _, u := range s.unusable {
		find("unusable "+u[:strings.Index(u+":", ":")], "answer with an output that fits its type's schema and is 256 KiB at most; put what is large elsewhere, and pass a reference",
			"the output of step %s", u)
	}
	e.answers(tr, find)
	told := len(tr.found) > 0
	for _, it := range s.Items {
		switch it.kind {
		case historyv1.ItemKind_ITEM_KIND_CONFLICTING_RESULTS:
			if !told {
				what, mend := "the action", "keep the answer with the effect, under saga.IdempotencyKey(ctx), and give a repeat the same one"
				if it.Undo {
					what, mend = "the compensation", "give a repeat of the compensation the answer that the first one got: undone, or nothing to undo"
				}
				find("answers "+it.Step, mend, "%s of step %s answers one request twice, differently", what, it.Step)
			}
		case historyv1.ItemKind_ITEM_KIND_LATE_EFFECT:
			if tr.check == "" {
				find("late "+it.Step, mends[late], "the action of step %s takes effect although it was undone before: it answers that it succeeded", it.Step)
			}
		}
	}
	switch {
	case s.Status.Terminal():
	case s.Status == Stuck || s.Status == Compensating || s.Status == Running:
		e.unfinished(tr, find, told)
	}
	if tr.check == "" {
		if s.Status == Compensated {
			for _, ef := range s.Effects {
				if ef.State == Undone && sc.plain {
					e.undone[ef.Step] = true
				}
			}
		}
		return
	}
	step, mend := sc.step, mends[sc.kind]
	if sc.undo {
		mend = undoMends[sc.kind]
	}
	if sc.plain || mend == "" {
		step, mend = e.suspect(tr)
	}
	find(fmt.Sprintf("check %s %v %s", step, sc.undo, mend), mend, "the saga is %s, and the check says:\n%s", s.Status, indent(tr.check, "    "))
}

// suspect says what is probably wrong if the check fails although nothing special was injected.
func (e *explorer) suspect(tr *trial) (step, mend string) {
	s := tr.saga
	if s.Status == Completed {
		if tr.sc.name == "undisturbed" {
			return "", "the saga completes, and the world isn't as the check expects it: is an effect missing (handlers that share a key: saga.IdempotencyKey(ctx) differs for each step), or there twice? Or the check is wrong"
		}
		return tr.sc.step, "what the steps did isn't what the check expects"
	}
	var suspects, undone []string
	rejected := ""
	for _, ef := range s.Effects {
		if ef.State != Undone {
			continue
		}
		undone = append(undone, ef.Step)
		if !e.undone[ef.Step] {
			suspects = append(suspects, ef.Step)
		}
	}
	for i := range s.Calls {
		if c := &s.Calls[i]; c.Handled && !c.Undo && c.Outcome == "rejected" {
			rejected = c.Step
		}
	}
	if rejected != "" {
		return rejected, fmt.Sprintf("step %s was rejected by its own handler, so it isn't undone: a rejection says that nothing was done. Check everything before the effect, "+
			"or take the effect back before saga.Reject; an error that isn't a rejection is undone", rejected)
	}
	if len(suspects) == 0 {
		suspects = undone
	}
	suspects = slices.Compact(slices.Sorted(slices.Values(suspects)))
	if tr.sc.reversed && tr.sc.plain {
		return tr.sc.step, "in the usual order it comes out right: branches of a parallel run, and are undone, in any order. No action or compensation may count on what another branch has done or undone (here " +
			strings.Join(suspects, ", ") + ")"
	}
	if len(suspects) == 0 {
		return "", "no step was undone, and something is there: look at what the handlers do before they answer"
	}
	return suspects[0], fmt.Sprintf("look at the compensation of %s: it must take back all that the action did, and nothing else, from its input, the output (u.Output) and u.ActionKey",
		strings.Join(suspects, " or "))
}

// unfinished looks at a saga that came to no end.
func (e *explorer) unfinished(tr *trial, find func(group, mend, wrong string, args ...any), told bool) {
	sc, s := tr.sc, tr.saga
	own := false
	for _, it := range s.Items {
		if !it.Blocking {
			continue
		}
		c := s.lastOwn(it)
		if c == nil || !it.Undo {
			continue
		}
		own = true
		answer := c.Outcome
		if c.Code != "" {
			answer += " (" + c.Code + ": " + firstLine(c.Message) + ")"
		}
		switch {
		case !c.OutputKnown:
			find("needs output "+it.Step, "the answer of the action can be lost, so u.Output can be nil: find what was done by u.ActionKey, under which the action must keep it, or by u.Checkpoint; if nothing was done, answer saga.NothingToUndo",
				"the compensation of %s can't do without the action's output, which isn't known here: it answers %s", it.Step, answer)
		default:
			find("undo fails "+it.Step, "a compensation must in the end succeed: whatever the state of what it undoes, in whatever order, and however often it is called",
				"the compensation of %s doesn't get it done: it answers %s", it.Step, answer)
		}
	}
	if own || told || sc.stuck && s.Status == Stuck {
		return
	}
	find("unfinished "+s.WaitsFor, "give what it waits for with sagatest.Signal or sagatest.Answer; or see in the history why it doesn't go on",
		"the saga is %s, and waits for %s", s.Status, s.WaitsFor)
}

// lastOwn is the last call that an item is about, if its answer was the handler's own and nothing was injected into it.
func (s *Saga) lastOwn(it Item) *Call {
	for i := len(s.Calls) - 1; i >= 0; i-- {
		if c := &s.Calls[i]; c.SagaID == s.ID && c.where() == it.Step && c.Undo == it.Undo && !c.Probe {
			if c.Handled && c.fault == noFault && !c.disturbed && !c.late {
				return c
			}
			return nil
		}
	}
	return nil
}

func firstLine(s string) string {
	line, _, more := strings.Cut(s, "\n")
	if more {
		line += " ..."
	}
	return line
}

// answers looks at what the handlers themselves answered.
func (e *explorer) answers(tr *trial, find func(group, mend, wrong string, args ...any)) {
	s := tr.saga
	first := map[string]*Call{}
	undone := map[string]bool{}
	seen := map[string]bool{}
	once := func(group, mend, wrong string, args ...any) {
		if !seen[group] {
			seen[group] = true
			find(group, mend, wrong, args...)
		}
	}
	for i := range s.Calls {
		c := &s.Calls[i]
		if !c.Handled || c.Probe || c.hung {
			continue
		}
		what := "the action"
		if c.Undo {
			what = "the compensation"
			undone[c.ActionKey] = true
		}
		kind := sagadv1.Kind_KIND_UNSPECIFIED
		if c.SagaID == s.ID {
			kind = e.def.steps[c.Step].GetKind()
		}
		switch {
		case c.Outcome == "failed" && c.Code == "PANIC" && c.Undo && !c.OutputKnown:
			once("needs output "+c.where(), "the answer of the action can be lost, so u.Output can be nil: find what was done by u.ActionKey, under which the action must keep it, or by u.Checkpoint; if nothing was done, answer saga.NothingToUndo",
				"the compensation of %s panics if the action's output isn't known: %s", c.where(), firstLine(c.Message))
		case c.Outcome == "failed" && c.Code == "PANIC":
			once("panic "+c.where(), "handlers answer with an error instead", "%s of %s panics: %s", what, c.where(), firstLine(c.Message))
		case c.Outcome == "failed" && c.Code == "INPUT_NOT_READABLE":
			once("input "+c.where(), "use one contract in the definition and in the worker", "%s of %s isn't called: %s", what, c.where(), firstLine(c.Message))
		case c.Outcome == "rejected" && kind == sagadv1.Kind_KIND_RETRIABLE && !c.late:
			once("retriable "+c.where(), "past the pivot there is no way back: answer with an error that is tried again, or check it before the pivot",
				"step %s is retriable, and may not reject: it answers %s", c.where(), c.Code)
		}
		if c.Undo || c.disturbed || undone[c.IdempotencyKey] || kind == sagadv1.Kind_KIND_READ_ONLY {
			continue
		}
		before := first[c.IdempotencyKey]
		if before == nil {
			if c.Outcome == "succeeded" || c.Outcome == "rejected" {
				first[c.IdempotencyKey] = c
			}
			continue
		}
		mend := "keep the answer with the effect, under saga.IdempotencyKey(ctx), and give a repeat the same one: the key is the same for all attempts. Package sdk/barrier does it"
		switch {
		case before.Outcome != c.Outcome:
			once("answers "+c.where(), mend, "the action of %s answers one request (the same idempotency key) first with %s, then with %s", c.where(), said(before), said(c))
		case c.Outcome == "succeeded" && !bytes.Equal(before.Output, c.Output):
			once("answers "+c.where(), mend, "the action of %s answers one request (the same idempotency key) with two outputs: first %s, then %s", c.where(), clip(before.Output), clip(c.Output))
		case c.Outcome == "rejected" && before.Code != c.Code:
			once("answers "+c.where(), mend, "the action of %s answers one request (the same idempotency key) first with %s, then with %s", c.where(), said(before), said(c))
		}
	}
}

func said(c *Call) string {
	if c.Code == "" {
		return c.Outcome
	}
	return c.Outcome + " (" + c.Code + ": " + firstLine(c.Message) + ")"
}

func clip(b []byte) string {
	if len(b) > 200 {
		return string(b[:200]) + "..."
	}
	return string(b)
}

// mends say what to do if the check fails after an action was struck.
var mends = map[kind]string{
	errored:        "the next attempt is the same request: it must do the work once, and all of it",
	erroredAfter:   "the next attempt is the same request: make the effect once per saga.IdempotencyKey(ctx), which never holds the attempt; and let the compensation undo a failed step too, without the output: by u.ActionKey, or by what the action said with saga.Checkpoint before its effect. Package sdk/barrier does both",
	unknownDone:    "the answer was lost, and the work done: a further attempt must not do it again (one effect per saga.IdempotencyKey(ctx), which never holds the attempt), and the compensation must undo it without the output: by u.ActionKey, or by what the action said with saga.Checkpoint before its effect",
	unknownNotDone: "nothing was done: the compensation is called all the same, and must find that out by u.ActionKey, change nothing, and answer saga.NothingToUndo",
	late:           "the work was done after its undo, or once more after another attempt had done it: the compensation must leave a mark under u.ActionKey (a tombstone) that the action looks for, in one transaction with its effect; and so must a probe that answers that the action did not happen. Package sdk/barrier does it",
	lateAnswer:     "the work was done in time, and only its answer was late: the compensation must undo it without the output, by u.ActionKey",
	duplicate:      "the same request came twice: make the effect once per saga.IdempotencyKey(ctx), and give the repeat the same answer",
	atOnce:         "the same request came twice at the same time: look for the key and make the effect in one transaction, or under one lock",
	crashBefore:    "the task was delivered again: look at what the handler does before its effect",
	crashAfter:     "the worker died after the work, and another one got the same request: make the effect once per saga.IdempotencyKey(ctx)",
	interrupted: "the handler ended halfway: what it had done until then must be undone, or completed by the next attempt. Do it all in one transaction, or say before each effect with saga.Checkpoint what there will be to undo; " +
		"and never answer with success after an error",
}

// undoMends say what to do if the check fails after a compensation was struck.
var undoMends = map[kind]string{
	errored:        "the next attempt is the same request: it must undo once, and everything",
	erroredAfter:   "the compensation did its work and is called again: undo once per u.ActionKey, and answer the repeat with success",
	unknownDone:    "the compensation did its work and its answer was lost, so it is called again: undo once per u.ActionKey, and answer the repeat with success",
	unknownNotDone: "the first call never came: a further attempt must undo everything",
	duplicate:      "the compensation was called twice: undo once per u.ActionKey, and answer the repeat like the first. If nothing was done, change nothing",
	atOnce:         "the compensation was called twice at the same time: look for the key and undo in one transaction, or under one lock",
	crashBefore:    "the task was delivered again: look at what the compensation does before its effect",
	crashAfter:     "the worker died after the undo, and another one got the same request: undo once per u.ActionKey",
	interrupted:    "the compensation ended halfway and is called again: what it has undone must not be undone again, and the rest must. Do it all in one transaction; and never answer with success after an error",
}

// report tells what was found.
func (e *explorer) report() {
	e.t.Helper()
	took := time.Since(e.start).Round(time.Millisecond)
	if e.left > 0 {
		e.t.Errorf("sagatest: %s: %d runs weren't made, since there are more than %d: test a smaller saga, or a part with sagatest.Only", e.def.name, e.left, e.o.runsMax)
	}
	if len(e.o.only) > 0 && e.runs <= 1 && len(e.findings) == 0 && !e.stopped {
		e.t.Errorf("sagatest: %s: no run's name begins with %s", e.def.name, strings.Join(e.o.only, " or "))
	}
	if len(e.findings) == 0 {
		e.t.Logf("sagatest: %s: %d runs in %v, nothing found", e.def.name, e.runs, took)
		return
	}
	var order []string
	groups := map[string][]*finding{}
	for _, f := range e.findings {
		if groups[f.group] == nil {
			order = append(order, f.group)
		}
		groups[f.group] = append(groups[f.group], f)
	}
	// The first finding of each step is told in full; the others may well have the same cause.
	told, steps, hidden := map[string]int{}, 0, 0
	for _, g := range order {
		f := groups[g][0]
		step, _, _ := strings.Cut(f.sc.step, "@")
		if told[step]++; told[step] == 1 {
			steps++
		}
		if steps > findingsMax || told[step] > findingsMax {
			hidden++
			continue
		}
		e.t.Errorf("%s", f.text(e.def.name, groups[g][1:], told[step] == 1))
	}
	if hidden > 0 {
		e.t.Errorf("sagatest: %s: and %d more findings, which may have the same causes", e.def.name, hidden)
	}
	e.t.Logf("sagatest: %s: %d runs in %v; after the first findings not all are made", e.def.name, e.runs, took)
}

// text tells a finding, and in what other runs it was found.
func (f *finding) text(name string, also []*finding, full bool) string {
	var b strings.Builder
	what := f.sc.words
	switch {
	case f.sc.undo:
		what = "the compensation of step " + f.sc.step + ": " + what
	case f.sc.step != "":
		what = "step " + f.sc.step + ": " + what
	}
	fmt.Fprintf(&b, "sagatest: %s: %s\n", name, what)
	fmt.Fprintf(&b, "  wrong:   %s\n", strings.ReplaceAll(f.wrong, "\n", "\n           "))
	fmt.Fprintf(&b, "  mend:    %s\n", f.mend)
	var names []string
	for _, x := range also {
		if x.sc.name != f.sc.name && !slices.Contains(names, x.sc.name) {
			names = append(names, x.sc.name)
		}
	}
	if n := len(names); n > 6 {
		names = append(names[:6], fmt.Sprintf("and %d more", n-6))
	}
	if len(names) > 0 {
		fmt.Fprintf(&b, "  also in: %s\n", strings.Join(names, ", "))
	}
	fmt.Fprintf(&b, "  again:   sagatest.Only(%q)\n", f.sc.name)
	if !full {
		return b.String()
	}
	fmt.Fprintf(&b, "  history (what is marked * was injected):\n%s", indent(f.saga.String(), "  "))
	return b.String()
}
