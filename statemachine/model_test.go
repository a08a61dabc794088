package statemachine

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// model knows the rules of sagas a second time, written from what they mean and not from the code. It reads facts as they are
// stored, one by one, and refuses one that breaks a rule.
type model struct {
	steps  map[string]*modelStep
	order  []string
	before map[[2]string]bool
	limit  int

	n                  int64
	startNo            int32
	startNos           map[string]int32
	started            bool
	backward           bool
	cause              *historyv1.Cause
	end                string
	items              []modelItem
	settledByHand      int
	deadline, deadPast int64
}

type modelStep struct {
	def      *sagadv1.Step
	do, undo modelCall
	// What is known of the world, by attempt of the action.
	sent     map[int32]*modelSent
	by       string // "done" or "undone", by hand
	happened bool   // some result said that it succeeded
	// hidden: the compensation found nothing, and then it came to light that the action succeeded.
	hidden bool
	// undoneBy: a person said that it is undone. unseen: only then did it come to light that it had happened.
	undoneBy, unseen bool
}

type modelSent struct{ answers []historyv1.Outcome }

type modelCall struct {
	phase               string // "", out, wait, ok, no, up, held
	generation, attempt int32
	budget              int32 // attempts since the budget began
	due                 int64 // deadline, or time of the retry
	empty, knew         bool
}

type modelItem struct {
	kind     historyv1.ItemKind
	status   historyv1.ItemStatus
	blocking bool
	call     Call
}

func newModel(def *sagadv1.Definition) *model {
	m := &model{steps: map[string]*modelStep{}, startNos: map[string]int32{}, before: ordered(def), limit: int(def.GetMaxParallelCompensations())}
	if m.limit == 0 {
		m.limit = 16
	}
	for _, s := range stepsOf(def.GetBody()) {
		m.steps[s.GetName()] = &modelStep{def: s, sent: map[int32]*modelSent{}}
		m.order = append(m.order, s.GetName())
	}
	return m
}

func (m *model) status() Status {
	switch m.end {
	case "completed":
		return Completed
	case "compensated":
		return Compensated
	case "abandoned":
		return Abandoned
	}
	if m.blocked() {
		return Stuck
	}
	if m.backward {
		return Compensating
	}
	return Running
}

func (m *model) blocked() bool {
	return slices.ContainsFunc(m.items, func(it modelItem) bool {
		return it.blocking && it.status == historyv1.ItemStatus_ITEM_STATUS_OPEN
	})
}

// effect says whether something of the step's action may have been done, as far as anyone can know.
func (s *modelStep) effect() bool {
	if s.def.GetKind() == sagadv1.Kind_KIND_READ_ONLY {
		return false
	}
	if s.happened || s.by != "" {
		return s.happened
	}
	for _, a := range s.sent {
		rejected := slices.Contains(a.answers, historyv1.Outcome_OUTCOME_REJECTED)
		for _, o := range a.answers {
			// What the engine called unknown is known once it is answered.
			if o != historyv1.Outcome_OUTCOME_REJECTED && o != historyv1.Outcome_OUTCOME_UNKNOWN {
				rejected = false
			}
		}
		if !rejected {
			return true
		}
	}
	return false
}

// open says whether the step keeps those before it from being undone.
func (s *modelStep) open() bool {
	switch s.do.phase {
	case "out", "wait", "held":
		return true
	}
	if s.def.GetKind() != sagadv1.Kind_KIND_COMPENSATABLE || !s.effect() {
		return false
	}
	return s.undo.phase != "ok" && !(s.undo.phase == "held" && s.def.GetCompensation().GetLetPass())
}

func (m *model) pivotDone() bool {
	for _, s := range m.steps {
		if s.def.GetKind() == sagadv1.Kind_KIND_PIVOT && s.do.phase == "ok" {
			return true
		}
	}
	return false
}

func (m *model) call(c *historyv1.Call) (*modelStep, *modelCall, error) {
	s := m.steps[c.GetStep()]
	if s == nil {
		return nil, nil, fmt.Errorf("no step %q", c.GetStep())
	}
	if c.GetDirection() == undo {
		return s, &s.undo, nil
	}
	return s, &s.do, nil
}

func policyOf(s *sagadv1.Step, dir historyv1.Direction) (attempts int32) {
	if dir == undo {
		if attempts = s.GetCompensation().GetRetry().GetMaxAttempts(); attempts == 0 {
			attempts = 10
		}
		return attempts
	}
	if attempts = s.GetRetry().GetMaxAttempts(); attempts == 0 {
		attempts = 3
		if s.GetKind() == sagadv1.Kind_KIND_RETRIABLE {
			attempts = 10
		}
		if s.GetKind() == sagadv1.Kind_KIND_READ_ONLY {
			attempts = 10 // after the pivot; fewer before it, which isn't looked at here
		}
	}
	return attempts
}

// read takes in the facts of one transition. now is when they were decided on.
func (m *model) read(t *historyv1.Transition, now int64) error {
	m.n++
	if t.GetAtUs() != now {
		return fmt.Errorf("the transition is of %d, not of %d", t.GetAtUs(), now)
	}
	last := int32(0)
	for i, f := range t.GetFacts() {
		// Compensations that start together start by reverse start number.
		if a := f.GetAttemptScheduled(); a.GetCall().GetDirection() == undo && a.GetGeneration() == 1 && a.GetAttempt() == 1 {
			n := m.startNos[a.GetCall().GetStep()]
			if last != 0 && n > last {
				return fmt.Errorf("fact %d, %s comes after a step that started before it", i+1, Sentence(f))
			}
			last = n
		} else {
			last = 0
		}
		if err := m.fact(f, now, t); err != nil {
			return fmt.Errorf("fact %d, %s %w", i+1, Sentence(f), err)
		}
	}
	return nil
}

func (m *model) fact(fact *historyv1.Fact, now int64, t *historyv1.Transition) error {
	if !m.started && fact.GetStarted() == nil {
		return fmt.Errorf("comes before the start")
	}
	if m.end != "" {
		switch fact.GetKind().(type) {
		case *historyv1.Fact_LateResult, *historyv1.Fact_ConflictingResult, *historyv1.Fact_ItemOpened, *historyv1.Fact_ItemClosed, *historyv1.Fact_OperatorActed:
		default:
			return fmt.Errorf("comes after the end")
		}
	}
	switch f := fact.GetKind().(type) {
	case *historyv1.Fact_Started:
		if m.started {
			return fmt.Errorf("a second start")
		}
		m.started, m.deadline = true, f.Started.GetDeadlineUs()

	case *historyv1.Fact_AttemptScheduled:
		return m.scheduled(f.AttemptScheduled, now, t)

	case *historyv1.Fact_AttemptEnded:
		return m.ended(f.AttemptEnded, now)

	case *historyv1.Fact_RetryPlanned:
		e := f.RetryPlanned
		s, c, err := m.call(e.GetCall())
		if err != nil {
			return err
		}
		switch {
		case c.phase != "up":
			return fmt.Errorf("a retry of a call that is %q", c.phase)
		case e.GetCall().GetDirection() == do && m.backward:
			return fmt.Errorf("an action is planned while the saga unwinds")
		case e.GetAttempt() != c.attempt+1:
			return fmt.Errorf("planned attempt %d after %d", e.GetAttempt(), c.attempt)
		case e.GetAtUs() < now+10_000:
			return fmt.Errorf("a retry within %d us", e.GetAtUs()-now)
		case c.budget >= policyOf(s.def, e.GetCall().GetDirection()):
			return fmt.Errorf("a retry without budget")
		}
		c.phase, c.due = "wait", e.GetAtUs()

	case *historyv1.Fact_CallGivenUp:
		_, c, err := m.call(f.CallGivenUp.GetCall())
		if err != nil {
			return err
		}
		if c.phase == "out" {
			return fmt.Errorf("given up while an attempt is out")
		}
		c.phase = "up"

	case *historyv1.Fact_BranchTaken:
		if m.backward {
			return fmt.Errorf("a branch while the saga unwinds")
		}

	case *historyv1.Fact_DeadlinePassed:
		if m.deadline == 0 || now < m.deadline || m.deadPast != 0 {
			return fmt.Errorf("at %d, for %d", now, m.deadline)
		}
		m.deadPast = now

	case *historyv1.Fact_UnwindStarted:
		if m.backward || m.pivotDone() {
			return fmt.Errorf("backward %v, pivot done %v", m.backward, m.pivotDone())
		}
		m.backward, m.cause = true, proto.CloneOf(f.UnwindStarted.GetCause())
		if m.cause.GetKind() == historyv1.CauseKind_CAUSE_KIND_UNSPECIFIED {
			return fmt.Errorf("has no cause")
		}

	case *historyv1.Fact_LateResult:
		e := f.LateResult
		s, c, err := m.call(e.GetCall())
		if err != nil {
			return err
		}
		if c.generation == e.GetGeneration() && c.phase == "out" && c.attempt == e.GetAttempt() {
			return fmt.Errorf("the attempt is out: its result isn't late")
		}
		if e.GetCall().GetDirection() == do {
			if !conclusive(e.GetOutcome()) && (c.phase == "out" || c.phase == "wait" || c.phase == "held") {
				s.answered(e.GetAttempt(), historyv1.Outcome_OUTCOME_FAILED)
			}
			// Of results that come late only a success changes anything.
			if e.GetOutcome() == historyv1.Outcome_OUTCOME_SUCCEEDED {
				s.unseen = s.unseen || !s.happened && s.undo.phase == "ok" && s.undoneBy
				s.happened = true
				if c.phase != "ok" && s.undo.phase == "ok" && s.undo.empty {
					s.hidden = true
				}
			}
		}

	case *historyv1.Fact_ConflictingResult:
		e := f.ConflictingResult
		s, _, err := m.call(e.GetCall())
		if err != nil {
			return err
		}
		if e.GetCall().GetDirection() == do && e.GetOutcome() == historyv1.Outcome_OUTCOME_SUCCEEDED && (s.do.phase == "no" || s.do.phase == "up") {
			return fmt.Errorf("an effect is filed away as a conflict")
		}

	case *historyv1.Fact_ItemOpened:
		e := f.ItemOpened
		if int(e.GetItem()) != len(m.items)+1 {
			return fmt.Errorf("item %d of %d", e.GetItem(), len(m.items)+1)
		}
		it := modelItem{kind: e.GetKind(), status: historyv1.ItemStatus_ITEM_STATUS_OPEN, blocking: e.GetBlocking(), call: Call{Step: e.GetCall().GetStep(), Dir: e.GetCall().GetDirection()}}
		for _, other := range m.items {
			if other.status != historyv1.ItemStatus_ITEM_STATUS_CLOSED && other.call == it.call && other.kind == it.kind {
				return fmt.Errorf("there is such an item already")
			}
		}
		m.items = append(m.items, it)
		if s := m.steps[it.call.Step]; s != nil && it.blocking {
			c := &s.do
			if it.call.Dir == undo {
				c = &s.undo
			}
			if c.phase != "up" && c.phase != "no" {
				return fmt.Errorf("held from %q", c.phase)
			}
			c.phase = "held"
		}

	case *historyv1.Fact_ItemChanged:
		e := f.ItemChanged
		it := &m.items[e.GetItem()-1]
		if it.status == historyv1.ItemStatus_ITEM_STATUS_CLOSED {
			return fmt.Errorf("the item is closed")
		}
		it.status = e.GetStatus()
		if s := m.steps[it.call.Step]; s != nil && it.blocking {
			c := &s.do
			if it.call.Dir == undo {
				c = &s.undo
			}
			if it.status == historyv1.ItemStatus_ITEM_STATUS_OPEN {
				c.phase = "held"
			} else if c.budget, c.phase = 0, "up"; c.attempt == 0 {
				c.phase = ""
			}
		}

	case *historyv1.Fact_ItemClosed:
		it := &m.items[f.ItemClosed.GetItem()-1]
		if it.status == historyv1.ItemStatus_ITEM_STATUS_CLOSED {
			return fmt.Errorf("the item is closed already")
		}
		it.status = historyv1.ItemStatus_ITEM_STATUS_CLOSED

	case *historyv1.Fact_SettledByHand:
		e := f.SettledByHand
		m.settledByHand++
		s, c, err := m.call(e.GetCall())
		if err != nil {
			break // of an if or a return
		}
		if c.phase != "held" {
			return fmt.Errorf("a call that is %q", c.phase)
		}
		switch {
		case e.GetCall().GetDirection() == undo:
			c.phase, c.empty, s.hidden, s.undoneBy = "ok", false, false, true
		case e.GetSettlement() == historyv1.Settlement_SETTLEMENT_DONE:
			c.phase, s.by, s.happened = "ok", "done", true
		default:
			c.phase, s.by, s.happened = "no", "undone", false
		}

	case *historyv1.Fact_Completed:
		if m.backward || m.blocked() {
			return fmt.Errorf("backward %v, blocked %v", m.backward, m.blocked())
		}
		for _, s := range m.steps {
			if s.do.phase != "" && s.do.phase != "ok" {
				return fmt.Errorf("%s is %q", s.def.GetName(), s.do.phase)
			}
		}
		m.end = "completed"

	case *historyv1.Fact_Compensated:
		if !m.backward {
			return fmt.Errorf("the saga didn't unwind")
		}
		for _, s := range m.steps {
			if s.open() || s.do.phase != "" && slices.Contains([]string{"out", "wait", "held"}, s.undo.phase) {
				return fmt.Errorf("%s isn't settled: %+v %+v", s.def.GetName(), s.do, s.undo)
			}
			if s.hidden {
				return fmt.Errorf("%s happened after its compensation had found nothing", s.def.GetName())
			}
		}
		m.end = "compensated"

	case *historyv1.Fact_Abandoned:
		m.end = "abandoned"
		left := map[string]bool{}
		for _, c := range f.Abandoned.GetEffects() {
			left[c.GetStep()] = true
		}
		for _, s := range m.steps {
			if want := s.effect() && s.undo.phase != "ok"; left[s.def.GetName()] != want {
				return fmt.Errorf("%s left behind: %v, want %v", s.def.GetName(), left[s.def.GetName()], want)
			}
			for _, c := range []*modelCall{&s.do, &s.undo} {
				if slices.Contains([]string{"out", "wait", "held"}, c.phase) {
					c.phase = "up"
				}
			}
		}
	}
	return nil
}

// answered notes what is said of an attempt. After a rejection only a success is news.
func (s *modelStep) answered(attempt int32, o historyv1.Outcome) {
	if a := s.sent[attempt]; a != nil && !slices.Contains(a.answers, historyv1.Outcome_OUTCOME_REJECTED) {
		a.answers = append(a.answers, o)
	}
}

func (m *model) scheduled(e *historyv1.AttemptScheduled, now int64, t *historyv1.Transition) error {
	s, c, err := m.call(e.GetCall())
	if err != nil {
		return err
	}
	dir := e.GetCall().GetDirection()
	first := e.GetGeneration() != c.generation
	// Each call has its own counters.
	switch {
	case first && (e.GetGeneration() != c.generation+1 || e.GetAttempt() != 1):
		return fmt.Errorf("generation %d attempt %d after generation %d attempt %d", e.GetGeneration(), e.GetAttempt(), c.generation, c.attempt)
	case !first && e.GetAttempt() != c.attempt+1:
		return fmt.Errorf("attempt %d after %d", e.GetAttempt(), c.attempt)
	case e.GetDeadlineUs() <= now:
		return fmt.Errorf("a deadline that has passed")
	case c.phase == "out":
		return fmt.Errorf("an attempt is out already")
	case c.phase == "wait" && now < c.due:
		return fmt.Errorf("%d us early", c.due-now)
	case dir == do && c.phase != "" && c.phase != "wait" && c.phase != "up":
		return fmt.Errorf("the action is %q", c.phase)
	case dir == do && m.backward:
		return fmt.Errorf("an action while the saga unwinds")
	case (e.GetStartNo() != 0) != (dir == do && s.do.attempt == 0):
		return fmt.Errorf("start number %d", e.GetStartNo())
	}
	if n := e.GetStartNo(); n != 0 {
		if m.status() != Running {
			return fmt.Errorf("a step starts while the saga is %s", m.status())
		}
		if n != m.startNo+1 {
			return fmt.Errorf("start number %d after %d", n, m.startNo)
		}
		m.startNo = n
		m.startNos[s.def.GetName()] = n
		for _, name := range m.order {
			if o := m.steps[name]; m.before[[2]string{name, s.def.GetName()}] && o.do.phase != "" && o.do.phase != "ok" {
				return fmt.Errorf("%s comes before it and is %q", name, o.do.phase)
			}
		}
	}
	if dir == undo {
		switch {
		case !m.backward:
			return fmt.Errorf("a compensation while the saga goes forward")
		case m.pivotDone():
			return fmt.Errorf("a compensation after the pivot")
		case s.def.GetKind() != sagadv1.Kind_KIND_COMPENSATABLE:
			return fmt.Errorf("it has no compensation")
		case !s.effect():
			return fmt.Errorf("there is nothing to undo")
		case slices.Contains([]string{"", "out", "wait", "held"}, s.do.phase):
			return fmt.Errorf("the action is %q", s.do.phase)
		}
		if first && e.GetGeneration() == 1 {
			running := 0
			for _, name := range m.order {
				o := m.steps[name]
				if m.before[[2]string{s.def.GetName(), name}] && o.open() {
					return fmt.Errorf("%s comes after it and isn't undone", name)
				}
				if o.undo.phase == "out" || o.undo.phase == "wait" {
					running++
				}
			}
			if running >= m.limit {
				return fmt.Errorf("%d compensations are under way, the limit is %d", running, m.limit)
			}
		}
		if first {
			c.empty, c.knew, s.hidden = false, s.happened, false
		}
	}
	if first {
		c.budget = 0
	}
	if c.budget++; c.budget > policyOf(s.def, dir) {
		return fmt.Errorf("attempt %d of the budget", c.budget)
	}
	c.phase, c.generation, c.attempt, c.due = "out", e.GetGeneration(), e.GetAttempt(), e.GetDeadlineUs()
	if dir == do {
		s.sent[e.GetAttempt()] = &modelSent{}
	}
	return nil
}

func (m *model) ended(e *historyv1.AttemptEnded, now int64) error {
	s, c, err := m.call(e.GetCall())
	if err != nil {
		return err
	}
	current := c.phase == "out" && c.attempt == e.GetAttempt()
	switch {
	case e.GetGeneration() != c.generation:
		return fmt.Errorf("generation %d, not %d", e.GetGeneration(), c.generation)
	case !current && !conclusive(e.GetOutcome()):
		return fmt.Errorf("not conclusive, and not of the attempt that is out")
	case c.phase != "out" && c.phase != "wait" && c.phase != "held":
		return fmt.Errorf("the call is %q", c.phase)
	case e.GetDigest() == nil && now < c.due:
		return fmt.Errorf("timed out %d us early", c.due-now)
	}
	if e.GetCall().GetDirection() == do {
		o := e.GetOutcome()
		if o == historyv1.Outcome_OUTCOME_UNKNOWN && e.GetDigest() != nil {
			o = historyv1.Outcome_OUTCOME_FAILED // a worker that doesn't know is no better
		}
		s.answered(e.GetAttempt(), o)
	}
	switch e.GetOutcome() {
	case historyv1.Outcome_OUTCOME_SUCCEEDED:
		if c.phase = "ok"; e.GetUnusable() {
			c.phase = "up"
		}
		if e.GetCall().GetDirection() == do {
			s.happened = true
		}
	case historyv1.Outcome_OUTCOME_NOTHING_TO_UNDO:
		if e.GetCall().GetDirection() == do {
			return fmt.Errorf("an action has something to do")
		}
		c.phase, c.empty = "ok", true
		s.hidden = s.happened && !c.knew
	case historyv1.Outcome_OUTCOME_REJECTED:
		c.phase = "no"
	default:
		c.phase = "up"
	}
	return nil
}

// check compares the state with what the model knows.
func (m *model) check(machine *Machine, s *State) error {
	if s.N != m.n {
		return fmt.Errorf("transition %d, want %d", s.N, m.n)
	}
	if s.Status != m.status() {
		return fmt.Errorf("status %s, want %s", s.Status, m.status())
	}
	if !proto.Equal(s.Cause, m.cause) {
		return fmt.Errorf("cause %v, want %v", s.Cause, m.cause)
	}
	if int(s.SettledByHand) != m.settledByHand {
		return fmt.Errorf("settled by hand %d, want %d", s.SettledByHand, m.settledByHand)
	}
	var out []string
	for _, name := range m.order {
		st := m.steps[name]
		for _, c := range []struct {
			call Call
			c    *modelCall
		}{{Call{Step: name, Dir: do}, &st.do}, {Call{Step: name, Dir: undo}, &st.undo}} {
			want := map[string]Phase{"": Idle, "out": InFlight, "wait": BackingOff, "ok": Succeeded, "no": Rejected, "up": GivenUp, "held": Held}[c.c.phase]
			got := s.Call(c.call)
			if got.Phase != want || got.Attempt != c.c.attempt || got.Generation != c.c.generation {
				return fmt.Errorf("%s is %s, generation %d attempt %d; want %+v", c.call, got.Phase, got.Generation, got.Attempt, *c.c)
			}
			if c.c.phase == "out" {
				out = append(out, c.call.String())
			}
		}
	}
	var inFlight []string
	for _, c := range s.InFlight() {
		inFlight = append(inFlight, c.String())
	}
	if !slices.Equal(out, inFlight) {
		return fmt.Errorf("in flight %v, want %v", inFlight, out)
	}
	if s.Status.Terminal() {
		if len(out) > 0 {
			return fmt.Errorf("the saga has ended, and %v are in flight", out)
		}
		if t, ok := s.NextWake(); ok {
			return fmt.Errorf("the saga has ended, and wakes at %d", t)
		}
	}
	listed := map[string]bool{}
	for _, e := range machine.Effects(s) {
		listed[e.GetStep()] = true
	}
	for _, name := range m.order {
		if st := m.steps[name]; listed[name] != (st.effect() && (len(st.sent) > 0 || st.by == "done")) {
			return fmt.Errorf("the effect of %s is listed: %v", name, listed[name])
		}
	}
	for _, name := range m.order {
		st := m.steps[name]
		if s.Status == Compensated || st.unseen {
			stands := st.unseen || st.hidden || st.effect() && st.undo.phase != "ok"
			told := slices.ContainsFunc(m.items, func(it modelItem) bool {
				return it.kind == historyv1.ItemKind_ITEM_KIND_LATE_EFFECT && it.call == Call{Step: name, Dir: do}
			})
			if stands && !told {
				return fmt.Errorf("what %s did stands, and nobody is told", name)
			}
		}
	}
	// Never lost: something is out, or due, or a person is asked.
	waits := s.Status.Terminal() || m.blocked()
	for _, st := range m.steps {
		for _, c := range []*modelCall{&st.do, &st.undo} {
			waits = waits || c.phase == "out" || c.phase == "wait"
		}
	}
	if !waits || !s.Waits() {
		return fmt.Errorf("the saga is lost (%v, %v)", waits, s.Waits())
	}
	return nil
}
