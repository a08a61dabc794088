package mutant

// Mutant is a planted bug.
type Mutant struct {
	Name string
	// Why says what is broken.
	Why string
	// File is from the root of the project. Old must occur in it exactly once; New stands there instead.
	File     string
	Old, New string
}

// Files that mutants are planted in.
const (
	door      = "engine/door.go"
	shard     = "engine/shard.go"
	loader    = "engine/loader.go"
	result    = "engine/result.go"
	task      = "engine/task.go"
	saga      = "engine/saga.go"
	decide    = "statemachine/decide.go"
	evolve    = "statemachine/evolve.go"
	flow      = "statemachine/flow.go"
	state     = "statemachine/state.go"
	operate   = "statemachine/operations.go"
	control   = "statemachine/control.go"
	machine   = "statemachine/task.go"
	planner   = "compensation/plan.go"
	committer = "store/memory/commit.go"
)

// Mutants are all planted bugs.
var Mutants = []Mutant{
	{"fence", "a commit of an earlier owner is taken", committer,
		"	case have.epoch > g.Epoch || have.grant != g.ID:\n		return store.Fenced\n", ""},
	{"epoch-only", "an older epoch's commit is taken if the numbers fit", committer,
		"have.epoch > g.Epoch || have.grant != g.ID", "have.epoch > g.Epoch+1"},
	{"applied-twice", "a batch that was resent is written again", committer,
		"	case have.lastSeq >= seq:\n		return store.Already\n", "	case have.lastSeq >= seq:\n		return store.Committed\n"},
	{"half-batch", "the second half of a batch isn't written", committer,
		"	have.lastSeq = b.Seq\n	for i := range b.Transitions {", "	have.lastSeq = b.Seq\n	for i := range b.Transitions[:(len(b.Transitions)+1)/2] {"},
	{"row-not-written", "a saga's row stays as it was when the saga ends", committer,
		"		have.sagas[k] = saga\n", "		if !saga.Status.Terminal() {\n			have.sagas[k] = saga\n		}\n"},

	{"unknown-is-failed", "a commit of unknown outcome is taken for refused", shard,
		"	switch c.result {\n	case store.Committed, store.Already, store.Refused:", "	if c.result == store.Unknown {\n		c.result = store.Refused\n	}\n	switch c.result {\n	case store.Committed, store.Already, store.Refused:"},
	{"unknown-is-committed", "a commit of unknown outcome is taken for committed", shard,
		"	switch c.result {\n	case store.Committed, store.Already, store.Refused:", "	if c.result == store.Unknown {\n		c.result = store.Committed\n	}\n	switch c.result {\n	case store.Committed, store.Already, store.Refused:"},
	{"fenced-goes-on", "an owner that is fenced takes its commit for good", shard,
		"	switch c.result {\n	case store.Committed, store.Already, store.Refused:", "	if c.result == store.Fenced {\n		c.result = store.Committed\n	}\n	switch c.result {\n	case store.Committed, store.Already, store.Refused:"},
	{"recovery-page", "recovery stops after its first page", shard,
		"	if len(page) == l.e.page {\n", "	if false {\n"},
	{"unresent", "a batch of unknown outcome isn't sent again", shard,
		"		l.resendAt = time.Time{}\n		l.send()\n", "		l.resendAt = time.Time{}\n"},

	{"answer-first", "callers are answered before the commit", door,
		"	if x.saga.next != nil {\n		d.batch.decisions = append(d.batch.decisions, x)\n		return\n	}\n", ""},
	{"task-first", "tasks are sent before the commit", door,
		"	b.decisions = append(b.decisions, x)\n}\n\n// decideSafely", "	b.decisions = append(b.decisions, x)\n	if g.state = dec.State; true {\n		for _, c := range dec.Dispatch {\n			d.send(g, c, 1)\n		}\n	}\n}\n\n// decideSafely"},
	{"other-content", "a start with other content under the same id is taken for a repeat", door,
		"if !bytes.Equal(state.Digest, what.Digest) {", "if len(what.Digest) == 0 && !bytes.Equal(state.Digest, what.Digest) {"},
	{"not-sent-after-crash", "what is out isn't sent again by the next owner", door,
		"			d.send(g, c, resumedDispatch(d.grant.Epoch)+g.resumed)\n", ""},
	{"timer-lost", "the next owner doesn't set the timers of what it loads", door,
		"	d.settle(g)\n	if g.state.Status.Terminal() {\n		return g\n	}", "	d.settle(g)\n	d.timers.remove(g)\n	if g.state.Status.Terminal() {\n		return g\n	}"},
	{"seq-skipped", "a shard counts a batch that was refused", door,
		"	case store.Refused:\n		d.refused(b, cause)", "	case store.Refused:\n		d.seq++\n		d.refused(b, cause)"},
	{"refused-forgotten", "what was decided in a refused batch stays", door,
		"		b.decisions[i].saga.next = nil\n", "		if b.decisions[i].saga.state == nil {\n			b.decisions[i].saga.next = nil\n		}\n"},

	{"key-with-attempt", "the idempotency key has the attempt", task,
		"name, c.Item, t.Direction, t.Generation)", "name, c.Item, t.Direction, t.Generation*1000+t.Attempt)"},
	{"action-key", "a compensation is given a wrong key of its action", task,
		"name, c.Item, workerv1.Direction_DIRECTION_DO, generation)", "name, c.Item, workerv1.Direction_DIRECTION_DO, generation+1)"},
	{"token-attempt", "a result counts for whatever attempt is out", result,
		"Generation: token.GetGeneration(), Attempt: token.GetAttempt(),", "Generation: token.GetGeneration(), Attempt: 1,"},
	{"verdict-lost", "a worker is told that its result counts, though it isn't known whether it does", result,
		"	p.set(i, a.verdict())", "	p.set(i, workerv1.Verdict_VERDICT_ACCEPTED)"},

	{"order", "compensations that run side by side begin with the step that started first", planner,
		"cmp.Compare(tree[b].StartNo, tree[a].StartNo)", "cmp.Compare(tree[a].StartNo, tree[b].StartNo)"},
	{"all-at-once", "a step is undone before what came after it", planner,
		"			o.after += waves[i]\n", ""},
	{"unlimited", "more compensations run at once than the definition lets", decide,
		"t.planner.Next(t.nodes, d.m.undoMax)", "t.planner.Next(t.nodes, 1<<20)"},
	{"rejected-undone", "a step of which every attempt was rejected is undone", state,
		"	case Rejected:\n		return !c.InDoubt", "	case Rejected:\n		return false"},
	{"unknown-is-rejected", "a step that may have happened isn't undone if it was rejected later", state,
		"	return n == c.Attempt\n", "	return n > 0\n"},
	{"unknown-not-undone", "a step that is given up isn't undone", flow,
		"	case st.Do.Attempt == 0 &&", "	case st.Do.Phase == GivenUp:\n		return compensation.Clean\n	case st.Do.Attempt == 0 &&"},
	{"never-sent-undone", "a step that never left the engine is undone", flow,
		"	case Idle:\n		return compensation.NeverRan\n", "	case Idle:\n		if s := st.StartNo; s == 0 && m.steps[i].kind == sagadv1.Kind_KIND_COMPENSATABLE {\n			return compensation.NeedsUndo\n		}\n		return compensation.NeverRan\n"},
	{"not-awaited", "a step is undone while its action is in flight", flow,
		"	case InFlight, BackingOff, Held:\n		return compensation.InFlight\n	}", "	case BackingOff, Held:\n		return compensation.InFlight\n	}"},
	{"held-passes", "what comes before a held compensation goes on", flow,
		"		if m.steps[i].letPass {\n			return compensation.HeldLetPass\n		}\n		return compensation.Held", "		return compensation.HeldLetPass"},
	{"retry-backward", "what waits for its next attempt isn't given up when the saga turns back", flow,
		"			case BackingOff, Held:\n				waiting = append(waiting, call)", "			case Held:\n				waiting = append(waiting, call)"},
	{"starts-stuck", "steps start while the saga waits for a person", decide,
		"return d.s.Status == Running && !d.s.Paused && !d.s.Provisional", "return (d.s.Status == Running || d.s.Status == Stuck) && !d.s.Paused && !d.s.Provisional"},
	{"pivot-unwound", "a pivot in doubt turns the saga back", decide,
		"		d.hold(call, historyv1.ItemKind_ITEM_KIND_PIVOT_IN_DOUBT, e)\n		return\n	case st.kind", "		d.turnBack(&historyv1.Cause{Kind: kind, Step: st.name, Attempt: attempt, Error: e})\n		return\n	case st.kind"},
	{"repeat-counts", "a repeated result is recorded again", decide,
		"	if rec != nil && rec.known(digest) {", "	if false {"},
	{"old-attempt", "a success of an earlier attempt doesn't count", decide,
		"		current && conclusive(e.Outcome) && (c.Phase == InFlight || c.Phase == BackingOff || c.Phase == Held):", "		current && false:"},
	{"late-ignored", "a success that comes after its step was given up is forgotten", decide,
		"	if !effect(st, e) || d.m.steps[i].kind == sagadv1.Kind_KIND_READ_ONLY {", "	if true {"},
	{"tries-too-often", "a call is tried once more than its policy says", decide,
		"	case !policy.Exhausted(used, ", "	case !policy.Exhausted(used-1, "},
	{"budget-shared", "a compensation's attempts are counted by the action's policy", decide,
		"	if dir == do {\n		return &st.retry\n	}\n	return &st.undoRetry", "	return &st.retry"},
	{"retry-early", "the next attempt comes before its time", evolve,
		"c.Phase, c.RetryAt = BackingOff, f.RetryPlanned.GetAtUs()", "c.Phase, c.RetryAt = BackingOff, f.RetryPlanned.GetAtUs()-200_000"},
	{"deadline-early", "attempts are given up before their deadline", decide,
		"	return c.Deadline != 0 && c.Deadline <= now ||", "	return c.Deadline != 0 && c.Deadline <= now+500_000 ||"},
	{"deadline-past-pivot", "the saga's deadline turns it back past its pivot", decide,
		"		case d.pivotStarted():\n			d.open(Call{}, historyv1.ItemKind_ITEM_KIND_DEADLINE_AFTER_PIVOT, err, false)\n", ""},
	{"cancel-past-pivot", "a cancel turns the saga back past its pivot", decide,
		"	case d.pivotStarted():\n		d.reply.Cancel = sagadv1.CancelAnswer_CANCEL_ANSWER_TOO_LATE_PAST_PIVOT\n", ""},
	{"cancel-forgotten", "a cancel is answered and does nothing", decide,
		"		d.turnBack(&historyv1.Cause{\n			Kind: historyv1.CauseKind_CAUSE_KIND_CANCELLED,", "		_ = (&historyv1.Cause{\n			Kind: historyv1.CauseKind_CAUSE_KIND_CANCELLED,"},
	{"ends-early", "a saga is compensated while something is in flight", decide,
		"	if d.compensate(&d.s.Frame) && d.s.live == 0 {", "	if d.compensate(&d.s.Frame) || d.s.live == 0 {"},
	{"cause-overwritten", "a later cause replaces the first one", evolve,
		"		if s.Cause == nil {\n			s.Cause = f.UnwindStarted.GetCause()\n		}", "		s.Cause = nil"},
	{"stale-version", "a person's act on an item that has changed is taken", operate,
		"	if e.Version != 0 && e.Version != it.Version {", "	if false {"},
	{"act-twice", "a person's act is done again when its request is repeated", operate,
		"	if d.s.answered(e.RequestID) {\n		d.reply.Duplicate = true\n		return nil\n	}\n	if e.Version", "	if e.Version"},
	{"item-stays", "an item stays open after the saga passed the point", operate,
		"	if len(d.s.Items) > 0 {\n		d.passed(call, fmt.Sprintf(", "	if false {\n		d.passed(call, fmt.Sprintf("},
	{"resolve-goes-on", "a compensation that a person settled counts as open", evolve,
		"		case e.GetCall().GetDirection() == undo:\n			c.Phase = Succeeded\n", "		case e.GetCall().GetDirection() == undo:\n			c.Phase = GivenUp\n"},
	{"output-lost", "a compensation isn't given the output that is known", machine,
		"			t.Undo.Output = st.Do.Output\n", "			t.Undo.Output = nil\n"},
	{"signal-twice", "a signal with a key that was used is taken in again", control,
		"		d.reply.Duplicate = true\n		return nil\n	}\n	if bad := checkOutput(e.Payload, schema)", "	}\n	if bad := checkOutput(e.Payload, schema)"},
	{"signal-kept", "a signal is taken by two waits", evolve,
		"		s.Signals = slices.Concat(s.Signals[:i:i], s.Signals[i+1:])\n", ""},
	{"sleep-early", "a sleep is over before its time", evolve,
		"x.place.Phase, x.place.At, x.place.StartedAt = PlaceActive, e.GetAtUs(), at\n\n	case *historyv1.Fact_TimerFired:", "x.place.Phase, x.place.At, x.place.StartedAt = PlaceActive, e.GetAtUs()-1_500_000, at\n\n	case *historyv1.Fact_TimerFired:"},
	{"pause-leaks", "a paused saga goes forward", decide,
		"	if d.s.Status.Terminal() || d.s.Paused || d.s.Provisional {", "	if d.s.Status.Terminal() || d.s.Provisional {"},
}
