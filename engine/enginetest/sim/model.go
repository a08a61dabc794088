package sim

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/store"
)

const (
	do   = historyv1.Direction_DIRECTION_DO
	undo = historyv1.Direction_DIRECTION_UNDO
)

// plan is what the model reads off a definition.
type plan struct {
	def   *sagadv1.Definition
	steps map[string]*sagadv1.Step
	order []string
	// before says for each pair of steps whether the first is over before the second starts.
	before map[[2]string]bool
	// places are names that aren't steps.
	places map[string]*place
	names  []string
	limit  int
}

func newPlan(def *sagadv1.Definition) *plan {
	p := &plan{def: def, steps: map[string]*sagadv1.Step{}, before: map[[2]string]bool{}, places: map[string]*place{}, limit: int(def.GetMaxParallelCompensations())}
	if p.limit == 0 {
		p.limit = 16
	}
	p.walk(def.GetBody())
	return p
}

// walk reads the order of steps off the tree: what stands earlier in a sequence comes before what stands later in it. A new
// kind of node that has steps inside says here how they are ordered.
func (p *plan) walk(nodes []*sagadv1.Node) []string {
	var earlier []string
	for _, n := range nodes {
		var here []string
		switch k := n.GetKind().(type) {
		case *sagadv1.Node_Step:
			here = []string{k.Step.GetName()}
			p.steps[k.Step.GetName()] = k.Step
			p.order = append(p.order, k.Step.GetName())
		case *sagadv1.Node_Parallel:
			for _, b := range k.Parallel.GetBranches() {
				here = append(here, p.walk(b.GetBody())...)
			}
		case *sagadv1.Node_If:
			p.place(k.If.GetName(), place{})
			here = append(p.walk(k.If.GetThen()), p.walk(k.If.GetElse())...)
		case *sagadv1.Node_Switch:
			p.place(k.Switch.GetName(), place{isSwitch: true, cases: int32(len(k.Switch.GetCases()))})
			for _, c := range k.Switch.GetCases() {
				here = append(here, p.walk(c.GetBody())...)
			}
			here = append(here, p.walk(k.Switch.GetDefault().GetBody())...)
		case *sagadv1.Node_Sleep:
			p.place(k.Sleep.GetName(), place{waits: true, sleeps: true, lasts: k.Sleep.GetDuration().AsDuration()})
			here = []string{k.Sleep.GetName()}
		case *sagadv1.Node_Wait:
			p.place(k.Wait.GetName(), place{waits: true, signal: k.Wait.GetSignal(), lasts: k.Wait.GetTimeout().AsDuration(), otherwise: k.Wait.GetHasOtherwise()})
			arms := append(p.walk(k.Wait.GetReceived()), p.walk(k.Wait.GetOtherwise())...)
			for _, name := range arms {
				p.before[[2]string{k.Wait.GetName(), name}] = true
			}
			here = append([]string{k.Wait.GetName()}, arms...)
		}
		for _, a := range earlier {
			for _, b := range here {
				p.before[[2]string{a, b}] = true
			}
		}
		earlier = append(earlier, here...)
	}
	return earlier
}

// place is a node that isn't a step and has a name.
type place struct {
	isSwitch      bool
	cases         int32
	waits, sleeps bool
	lasts         time.Duration
	signal        string
	otherwise     bool
}

func (p *plan) place(name string, x place) {
	p.places[name] = &x
	p.names = append(p.names, name)
}

func (p *plan) readOnly(step string) bool {
	return p.steps[step].GetKind() == sagadv1.Kind_KIND_READ_ONLY
}

// phase is where a call stands.
type phase string

const (
	idle    phase = ""
	out     phase = "out"     // an attempt is out
	waiting phase = "waiting" // for its retry
	fine    phase = "fine"    // succeeded
	refused phase = "refused" // rejected
	givenUp phase = "given up"
	held    phase = "held" // for a person
)

// model is a saga as its history tells it. It reads facts as they are stored, one by one, and refuses one that breaks a rule.
type model struct {
	*plan
	// sometimes is told of rare situations.
	sometimes func(string)
	// acting is asked whether a person's act on an item may take effect now.
	acting func(m *model, request string, number int32, it *modelItem, e *historyv1.OperatorActed) error

	namespace, id string
	run           uuid.UUID
	shard         int
	version       int32
	n             int64
	input         string
	startNo       int32
	stepsOf       map[string]*modelStep
	started       bool
	startedAt     int64
	backward      bool
	cause         *historyv1.Cause
	end           store.Status
	items         []modelItem
	byHand        int32
	deadline      int64
	deadlinePast  bool
	cancelled     bool
	// waitsAt are the places that it waits at, and until when; 0: for ever.
	waitsAt map[string]int64
	// signals lie there, oldest first; signalled are all that ever came.
	signals            []signal
	signalled          map[signal]bool
	paused, everPaused bool
	created            int
	// everPivot: the pivot was sent at some time.
	everPivot bool
	// answers are digests of the results that the history has, by attempt; requests those of people.
	answers  map[attemptKey][][]byte
	requests map[string]int
	// published are the attempts that were given to the bus, by process; owner is the process whose transition is being read.
	published map[publication]bool
	owner     int
	// status is what the saga's row must say.
	status store.Status
	// sum is of all facts as they were stored.
	sum uint64
	// settled are by-hand settlements of the transition being read, for the world.
	settled []*historyv1.SettledByHand
	trigger historyv1.Trigger
	// byPerson: a person caused the transition being read.
	byPerson bool
	left     []*historyv1.Call
	lagMax   int64
}

type signal struct{ name, key string }

type attemptKey struct {
	step                string
	dir                 historyv1.Direction
	generation, attempt int32
}

type publication struct {
	attemptKey
	process int
}

type modelStep struct {
	def      *sagadv1.Step
	startNo  int32
	do, undo modelCall
	// What is known of the world, by attempt of the action.
	sent     map[int32]*modelSent
	by       string // "done" or "undone", by hand
	happened bool   // some result said that it succeeded
	// hidden: the compensation found nothing, and then it came to light that the action succeeded.
	hidden bool
	// undoneBy: a person said that it is undone. unseen: only then did it come to light that it had happened.
	undoneBy, unseen bool
	output           []byte
	known            bool
}

type modelSent struct{ answers []historyv1.Outcome }

type modelCall struct {
	phase               phase
	generation, attempt int32
	// budget are the attempts since the budget began, at from.
	budget int32
	from   int64
	// due is the attempt's deadline, or the time of the retry.
	due int64
	// deadlines of all attempts by number, in the present generation.
	deadlines   map[int32]int64
	input       []byte
	empty, knew bool
	knewOutput  bool
	byPerson    bool // a person asked for the retry
}

type modelItem struct {
	kind     historyv1.ItemKind
	status   historyv1.ItemStatus
	blocking bool
	step     string
	dir      historyv1.Direction
	version  int64
}

func (m *model) call(c *historyv1.Call) (*modelStep, *modelCall, error) {
	s := m.stepsOf[c.GetStep()]
	if s == nil {
		return nil, nil, fmt.Errorf("there is no step %q", c.GetStep())
	}
	if c.GetItem() != "" {
		return nil, nil, fmt.Errorf("step %q has no item %q", c.GetStep(), c.GetItem())
	}
	switch c.GetDirection() {
	case undo:
		return s, &s.undo, nil
	case do:
		return s, &s.do, nil
	}
	return nil, nil, fmt.Errorf("a call of %q has no direction", c.GetStep())
}

func (m *model) statusNow() store.Status {
	switch {
	case m.end != 0:
		return m.end
	case m.blocked():
		return store.Stuck
	case m.backward:
		return store.Compensating
	}
	return store.Running
}

func (m *model) blocked() bool {
	for i := range m.items {
		if it := &m.items[i]; it.blocking && it.status == historyv1.ItemStatus_ITEM_STATUS_OPEN {
			return true
		}
	}
	return false
}

// due is when the next timer is.
func (m *model) due() int64 {
	due := int64(math.MaxInt64)
	if m.deadline != 0 && !m.deadlinePast {
		due = m.deadline
	}
	for _, s := range m.stepsOf {
		for _, c := range [...]*modelCall{&s.do, &s.undo} {
			if c.phase == out || c.phase == waiting {
				due = min(due, c.due)
			}
		}
	}
	for _, at := range m.waitsAt {
		if at != 0 {
			due = min(due, at)
		}
	}
	return due
}

// effect says whether something of the step's action may have been done, as far as anyone can know: rule 3. It needs undoing
// unless every attempt of it was rejected, or it never left the engine; a person's word counts for what came before it.
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
	case out, waiting, held:
		return true
	}
	if s.def.GetKind() != sagadv1.Kind_KIND_COMPENSATABLE || !s.effect() {
		return false
	}
	return s.undo.phase != fine && !(s.undo.phase == held && s.def.GetCompensation().GetLetPass())
}

func (m *model) pivotDone() bool {
	for _, s := range m.stepsOf {
		if s.def.GetKind() == sagadv1.Kind_KIND_PIVOT && s.do.phase == fine {
			return true
		}
	}
	return false
}

// pivotSent: the point of no return may have been passed.
func (m *model) pivotSent() bool {
	for _, s := range m.stepsOf {
		if s.def.GetKind() == sagadv1.Kind_KIND_PIVOT && len(s.sent) > 0 && (s.do.phase != refused || s.effect()) {
			return true
		}
	}
	return false
}

func policyOf(s *sagadv1.Step, dir historyv1.Direction) *sagadv1.RetryPolicy {
	if dir == undo {
		return s.GetCompensation().GetRetry()
	}
	return s.GetRetry()
}

func attemptsOf(s *sagadv1.Step, dir historyv1.Direction) int32 {
	if n := policyOf(s, dir).GetMaxAttempts(); n != 0 {
		return n
	}
	if dir == undo || s.GetKind() == sagadv1.Kind_KIND_RETRIABLE || s.GetKind() == sagadv1.Kind_KIND_READ_ONLY {
		return 10 // a read-only step before the pivot has fewer, which isn't looked at here
	}
	return 3
}

func timeoutOf(s *sagadv1.Step, dir historyv1.Direction) int64 {
	d := s.GetTimeout()
	if dir == undo {
		d = s.GetCompensation().GetTimeout()
	}
	if d == nil {
		return (30 * time.Second).Microseconds()
	}
	return d.AsDuration().Microseconds()
}

// delayMax is the longest time that a policy waits after so many attempts.
func delayMax(p *sagadv1.RetryPolicy, used int32) int64 {
	initial, factor := time.Second, p.GetFactor()
	if p.GetInitial() != nil {
		initial = p.GetInitial().AsDuration()
	}
	if factor == 0 {
		factor = 2
	}
	limit := max(time.Hour, initial)
	if p.GetMax() != nil {
		limit = p.GetMax().AsDuration()
	}
	d := float64(initial)
	for range used - 1 {
		if d *= factor; d > float64(limit) {
			break
		}
	}
	return max(min(time.Duration(d), limit), 10*time.Millisecond).Microseconds() + 1
}

// read takes in a transition that has become durable.
func (m *model) read(t *store.Transition) error {
	if t.N != m.n+1 {
		return fmt.Errorf("I2: transition %d follows %d", t.N, m.n)
	}
	m.n = t.N
	h := fnv.New64a()
	h.Write(t.Facts)
	m.sum = m.sum*1099511628211 ^ h.Sum64()
	var x historyv1.Transition
	if err := proto.Unmarshal(t.Facts, &x); err != nil {
		return fmt.Errorf("I2: its facts can't be read: %w", err)
	}
	if x.GetAtUs() != t.At.UnixMicro() {
		return fmt.Errorf("I2: the row is of %d, its facts of %d", t.At.UnixMicro(), x.GetAtUs())
	}
	if len(x.GetFacts()) == 0 {
		return fmt.Errorf("I14: a transition without facts")
	}
	if id := x.GetRequestId(); id != "" {
		if m.requests[id]++; m.requests[id] > 1 {
			return fmt.Errorf("I12: request %s took effect twice", id)
		}
	}
	m.byPerson = x.GetTrigger() == historyv1.Trigger_TRIGGER_OPERATOR
	m.settled, m.left, m.trigger = nil, nil, x.GetTrigger()
	last := int32(0)
	acted := false
	for i, f := range x.GetFacts() {
		// Compensations that start together start by reverse start number.
		if a := f.GetAttemptScheduled(); a.GetCall().GetDirection() == undo && a.GetGeneration() == 1 && a.GetAttempt() == 1 {
			if s := m.stepsOf[a.GetCall().GetStep()]; s != nil {
				if last != 0 && s.startNo > last {
					return fmt.Errorf("I7: fact %d: the compensation of %s comes after that of a step that started before it", i+1, s.def.GetName())
				}
				if last != 0 {
					m.sometimes("compensations in parallel")
				}
				last = s.startNo
			}
		} else {
			last = 0
		}
		acted = acted || f.GetOperatorActed() != nil || f.GetPaused() != nil || f.GetResumed() != nil
		if err := m.fact(f, x.GetAtUs(), &x); err != nil {
			return fmt.Errorf("transition %d, fact %d (%T): %w", t.N, i+1, f.GetKind(), err)
		}
	}
	if (x.GetTrigger() == historyv1.Trigger_TRIGGER_OPERATOR) != acted {
		return fmt.Errorf("I12: transition %d is by %s, a person acted: %v", t.N, x.GetTrigger(), acted)
	}
	return m.whole(t)
}

// whole checks what must be true after a transition.
func (m *model) whole(t *store.Transition) error {
	status := m.statusNow()
	switch {
	case t.Saga == nil && status != m.status:
		return fmt.Errorf("I2: the saga is %d by its history, its row says %d", status, m.status)
	case t.Saga != nil && t.Saga.Status != status:
		return fmt.Errorf("I2: the saga is %d by its history, its row says %d", status, t.Saga.Status)
	case t.Saga != nil && t.Saga.SettledByHand != m.byHand:
		return fmt.Errorf("I2: %d calls were settled by hand, the row says %d", m.byHand, t.Saga.SettledByHand)
	}
	if t.Saga != nil && m.cause != nil {
		var cause historyv1.Cause
		if err := proto.Unmarshal(t.Saga.Cause, &cause); err != nil || !proto.Equal(&cause, m.cause) {
			return fmt.Errorf("I2: the cause is %v, the row says %v", m.cause, &cause)
		}
	}
	m.status = status
	for i := range t.Items {
		row := &t.Items[i]
		if row.Number < 1 || int(row.Number) > len(m.items) {
			return fmt.Errorf("I2: there is a row of item %d of %d", row.Number, len(m.items))
		}
		it := &m.items[row.Number-1]
		if row.Version != it.version || row.Status != int16(it.status) || row.Kind != int16(it.kind) || row.Blocking != it.blocking || row.Step != it.step {
			return fmt.Errorf("I2: item %d is %+v, its row %+v", row.Number, *it, *row)
		}
	}
	for i := range m.items {
		if m.items[i].version == m.n && !slices.ContainsFunc(t.Items, func(row store.Item) bool { return int(row.Number) == i+1 }) {
			return fmt.Errorf("I2: item %d changed and its row didn't", i+1)
		}
	}
	if m.end != 0 {
		return nil
	}
	if status == store.Running && !m.paused {
		for name := range m.waitsAt {
			if want := m.places[name].signal; want != "" && slices.ContainsFunc(m.signals, func(x signal) bool { return x.name == want }) {
				return fmt.Errorf("%s waits for a signal that lies there", name)
			}
		}
	}
	if m.blocked() || m.paused {
		return nil
	}
	for _, s := range m.stepsOf {
		for _, c := range [...]*modelCall{&s.do, &s.undo} {
			if c.phase == out || c.phase == waiting {
				return nil
			}
		}
	}
	for _, due := range m.waitsAt {
		if due != 0 || m.deadline != 0 {
			return nil
		}
	}
	return fmt.Errorf("I1: nothing will wake the saga any more")
}

func (m *model) fact(fact *historyv1.Fact, now int64, t *historyv1.Transition) error {
	if !m.started && fact.GetStarted() == nil {
		return fmt.Errorf("I2: it comes before the start")
	}
	if m.end != 0 {
		switch fact.GetKind().(type) {
		case *historyv1.Fact_LateResult, *historyv1.Fact_ConflictingResult, *historyv1.Fact_ItemOpened, *historyv1.Fact_ItemClosed, *historyv1.Fact_OperatorActed:
		default:
			return fmt.Errorf("I11: it comes after the end")
		}
	}
	switch f := fact.GetKind().(type) {
	case *historyv1.Fact_Started:
		return m.start(f.Started, now)
	case *historyv1.Fact_AttemptScheduled:
		return m.scheduled(f.AttemptScheduled, now, t)
	case *historyv1.Fact_AttemptEnded:
		return m.ended(f.AttemptEnded, now)
	case *historyv1.Fact_RetryPlanned:
		return m.retry(f.RetryPlanned, now)

	case *historyv1.Fact_CallGivenUp:
		_, c, err := m.call(f.CallGivenUp.GetCall())
		if err != nil {
			return err
		}
		if c.phase == out {
			return fmt.Errorf("it is given up while an attempt is out")
		}
		if f.CallGivenUp.GetReason() == historyv1.GiveUpReason_GIVE_UP_REASON_UNWINDING {
			if !m.backward {
				return fmt.Errorf("it is given up for the unwinding, and the saga goes forward")
			}
			if c.phase == waiting && m.cancelled {
				m.sometimes("cancel while backing off")
			}
		}
		c.phase = givenUp

	case *historyv1.Fact_BranchTaken:
		if m.backward {
			return fmt.Errorf("I8: a branch is taken while the saga unwinds")
		}
		if m.places[f.BranchTaken.GetName()] == nil {
			return fmt.Errorf("there is no branch %q", f.BranchTaken.GetName())
		}

	case *historyv1.Fact_CaseTaken:
		e := f.CaseTaken
		x := m.places[e.GetName()]
		switch {
		case x == nil || !x.isSwitch || e.GetIndex() < -1 || e.GetIndex() >= x.cases:
			return fmt.Errorf("there is no case %d of %q", e.GetIndex(), e.GetName())
		case m.backward:
			return fmt.Errorf("I8: a case is taken while the saga unwinds")
		}

	case *historyv1.Fact_TimerStarted:
		e := f.TimerStarted
		if err := m.begins(e.GetName(), true); err != nil {
			return err
		}
		if d := m.places[e.GetName()].lasts; d != 0 && e.GetAtUs() != now+d.Microseconds() {
			return fmt.Errorf("I13: a sleep of %v ends in %d us", d, e.GetAtUs()-now)
		}
		m.waitsAt[e.GetName()] = e.GetAtUs()

	case *historyv1.Fact_TimerFired:
		due, ok := m.waitsAt[f.TimerFired.GetName()]
		if !ok || now < due && !m.byPerson {
			return fmt.Errorf("I13: a sleep ends %d us early (waits: %v)", due-now, ok)
		}
		m.lag(now, due)
		delete(m.waitsAt, f.TimerFired.GetName())
		m.sometimes("a sleep ends")

	case *historyv1.Fact_WaitStarted:
		e := f.WaitStarted
		if err := m.begins(e.GetName(), false); err != nil {
			return err
		}
		want := int64(0)
		if d := m.places[e.GetName()].lasts; d != 0 {
			want = now + d.Microseconds()
		}
		if e.GetDeadlineUs() != want {
			return fmt.Errorf("I13: a wait ends at %d, want %d", e.GetDeadlineUs(), want)
		}
		m.waitsAt[e.GetName()] = want

	case *historyv1.Fact_SignalReceived:
		x := signal{f.SignalReceived.GetSignal(), f.SignalReceived.GetKey()}
		if m.signalled[x] {
			return fmt.Errorf("the same signal comes twice")
		}
		if m.backward {
			return fmt.Errorf("a signal is taken in while the saga unwinds")
		}
		m.signalled[x] = true
		m.signals = append(m.signals, x)

	case *historyv1.Fact_SignalConsumed:
		e := f.SignalConsumed
		if _, ok := m.waitsAt[e.GetName()]; !ok && !m.byPerson {
			return fmt.Errorf("nothing waits at %s", e.GetName())
		}
		delete(m.waitsAt, e.GetName())
		if e.GetSignal() == "" {
			if !m.byPerson {
				return fmt.Errorf("nobody gave the answer")
			}
			m.sometimes("a person answers what a saga asks")
			break
		}
		at := slices.IndexFunc(m.signals, func(x signal) bool { return x.name == e.GetSignal() })
		if at < 0 || m.signals[at].key != e.GetKey() || m.places[e.GetName()].signal != e.GetSignal() {
			return fmt.Errorf("%s takes signal %s %s, which isn't the oldest", e.GetName(), e.GetSignal(), e.GetKey())
		}
		m.signals = slices.Delete(m.signals, at, at+1)
		if t.GetTrigger() == historyv1.Trigger_TRIGGER_SIGNAL {
			m.sometimes("a signal is awaited")
		} else {
			m.sometimes("a signal came before it was awaited")
		}

	case *historyv1.Fact_WaitExpired:
		due, ok := m.waitsAt[f.WaitExpired.GetName()]
		if !ok || due == 0 || now < due {
			return fmt.Errorf("I13: a wait is over %d us early (waits: %v)", due-now, ok)
		}
		m.lag(now, due)
		delete(m.waitsAt, f.WaitExpired.GetName())
		if m.places[f.WaitExpired.GetName()].otherwise {
			m.sometimes("a wait's time is up, and the saga goes another way")
		} else {
			m.sometimes("a wait's time is up, and the saga turns back")
		}

	case *historyv1.Fact_Paused:
		if m.paused || f.Paused.GetActor() == "" || f.Paused.GetReason() == "" {
			return fmt.Errorf("I12: a pause; paused before: %v", m.paused)
		}
		m.paused, m.everPaused = true, true
		m.sometimes("a saga is paused")

	case *historyv1.Fact_Resumed:
		if !m.paused || f.Resumed.GetActor() == "" {
			return fmt.Errorf("I12: it is resumed; paused before: %v", m.paused)
		}
		m.paused = false
		if m.backward {
			m.sometimes("an unwinding saga is resumed")
		}

	case *historyv1.Fact_CancelRequested:
		if m.pivotSent() {
			return fmt.Errorf("I8: cancelled after the pivot was sent")
		}
		m.cancelled = true
		for _, name := range m.order {
			if m.stepsOf[name].do.phase == out {
				m.sometimes("cancel while a step is in flight")
			}
		}
		if m.blocked() {
			m.sometimes("cancel of a stuck saga")
		}

	case *historyv1.Fact_DeadlinePassed:
		if m.deadline == 0 || now < m.deadline || m.deadlinePast {
			return fmt.Errorf("I13: the deadline passes at %d, it is %d", now, m.deadline)
		}
		m.lag(now, m.deadline)
		m.deadlinePast = true
		switch {
		case m.backward:
			m.sometimes("deadline while unwinding")
		case m.pivotSent():
			m.sometimes("deadline after the pivot")
		default:
			m.sometimes("deadline turns the saga back")
		}

	case *historyv1.Fact_UnwindStarted:
		if m.backward || m.pivotDone() {
			return fmt.Errorf("I8: the saga turns back; backward %v, past its pivot %v", m.backward, m.pivotDone())
		}
		m.backward, m.cause = true, proto.CloneOf(f.UnwindStarted.GetCause())
		switch m.cause.GetKind() {
		case historyv1.CauseKind_CAUSE_KIND_UNSPECIFIED:
			return fmt.Errorf("the unwinding has no cause")
		case historyv1.CauseKind_CAUSE_KIND_EXPRESSION:
			m.sometimes("an expression fails and turns the saga back")
		}
		if len(m.waitsAt) > 0 {
			m.sometimes("a saga turns back while it sleeps or waits")
		}
		clear(m.waitsAt)
		outs := 0
		for _, s := range m.stepsOf {
			if s.do.phase == out {
				outs++
			}
		}
		if outs > 0 {
			m.sometimes("unwinding awaits steps in flight")
		}

	case *historyv1.Fact_LateResult:
		return m.late(f.LateResult)

	case *historyv1.Fact_ConflictingResult:
		e := f.ConflictingResult
		s, _, err := m.call(e.GetCall())
		if err != nil {
			return err
		}
		if e.GetCall().GetDirection() == do && e.GetOutcome() == historyv1.Outcome_OUTCOME_SUCCEEDED && (s.do.phase == refused || s.do.phase == givenUp) {
			return fmt.Errorf("an effect is filed away as a conflict")
		}
		if err := m.answered(e.GetCall(), e.GetGeneration(), e.GetAttempt(), e.GetDigest()); err != nil {
			return err
		}
		m.sometimes("two different results for one attempt")

	case *historyv1.Fact_ItemOpened:
		return m.opened(f.ItemOpened)

	case *historyv1.Fact_ItemChanged:
		e := f.ItemChanged
		it, err := m.item(e.GetItem())
		if err != nil {
			return err
		}
		if it.status == historyv1.ItemStatus_ITEM_STATUS_CLOSED {
			return fmt.Errorf("item %d is closed", e.GetItem())
		}
		if e.GetStatus() == historyv1.ItemStatus_ITEM_STATUS_OPEN && it.status == historyv1.ItemStatus_ITEM_STATUS_RETRYING {
			m.sometimes("an item is open again after a person's retry")
		}
		it.status, it.version = e.GetStatus(), m.n
		if s := m.stepsOf[it.step]; s != nil && it.blocking {
			c := s.of(it.dir)
			if it.status == historyv1.ItemStatus_ITEM_STATUS_OPEN {
				c.phase = held
			} else {
				c.phase, c.budget, c.from, c.byPerson = givenUp, 0, now, true
				if c.attempt == 0 {
					c.phase = idle
				}
			}
		}

	case *historyv1.Fact_ItemClosed:
		it, err := m.item(f.ItemClosed.GetItem())
		if err != nil {
			return err
		}
		if it.status == historyv1.ItemStatus_ITEM_STATUS_CLOSED {
			return fmt.Errorf("item %d is closed already", f.ItemClosed.GetItem())
		}
		if it.blocking && it.status == historyv1.ItemStatus_ITEM_STATUS_OPEN && t.GetTrigger() == historyv1.Trigger_TRIGGER_RESULT {
			m.sometimes("item closed by a late result")
		}
		if it.status == historyv1.ItemStatus_ITEM_STATUS_RETRYING && t.GetTrigger() == historyv1.Trigger_TRIGGER_RESULT {
			m.sometimes("a person's retry passes")
		}
		it.status, it.version = historyv1.ItemStatus_ITEM_STATUS_CLOSED, m.n

	case *historyv1.Fact_OperatorActed:
		e := f.OperatorActed
		it, err := m.item(e.GetItem())
		if err != nil {
			return err
		}
		if e.GetActor() == "" || e.GetReason() == "" {
			return fmt.Errorf("I12: an act without actor or reason")
		}
		if err := m.acting(m, t.GetRequestId(), e.GetItem(), it, e); err != nil {
			return err
		}

	case *historyv1.Fact_SettledByHand:
		return m.settle(f.SettledByHand)

	case *historyv1.Fact_Completed:
		if m.backward || m.blocked() {
			return fmt.Errorf("I8: it completes; backward %v, blocked %v", m.backward, m.blocked())
		}
		for _, s := range m.stepsOf {
			if s.do.phase != idle && s.do.phase != fine {
				return fmt.Errorf("I11: it completes and %s is %q", s.def.GetName(), s.do.phase)
			}
		}
		if len(m.waitsAt) > 0 || m.paused {
			return fmt.Errorf("I11: it completes and waits at %v, paused %v", m.waitsAt, m.paused)
		}
		m.end = store.Completed

	case *historyv1.Fact_Compensated:
		if !m.backward {
			return fmt.Errorf("it is compensated and didn't unwind")
		}
		for _, s := range m.stepsOf {
			if s.open() || s.do.phase != idle && (s.undo.phase == out || s.undo.phase == waiting || s.undo.phase == held) {
				return fmt.Errorf("I6: it is compensated and %s isn't settled: %+v %+v", s.def.GetName(), s.do, s.undo)
			}
			if s.hidden {
				return fmt.Errorf("I6: it is compensated and %s happened after its compensation had found nothing", s.def.GetName())
			}
		}
		m.end = store.Compensated

	case *historyv1.Fact_Abandoned:
		return m.abandon(f.Abandoned)

	default:
		return fmt.Errorf("the model doesn't know such facts: teach it")
	}
	return nil
}

func (s *modelStep) of(dir historyv1.Direction) *modelCall {
	if dir == undo {
		return &s.undo
	}
	return &s.do
}

func (m *model) item(number int32) (*modelItem, error) {
	if number < 1 || int(number) > len(m.items) {
		return nil, fmt.Errorf("there is no item %d", number)
	}
	return &m.items[number-1], nil
}

// begins says whether a sleep or a wait may begin.
func (m *model) begins(name string, sleeps bool) error {
	x := m.places[name]
	_, waits := m.waitsAt[name]
	switch st := m.statusNow(); {
	case x == nil || !x.waits || x.sleeps != sleeps:
		return fmt.Errorf("there is no such place as %q", name)
	case waits:
		return fmt.Errorf("%s begins twice", name)
	case st != store.Running || m.paused:
		return fmt.Errorf("I8: %s begins while the saga is %d, paused %v", name, st, m.paused)
	}
	return m.free(name)
}

// free says whether all that comes before a place is done.
func (m *model) free(name string) error {
	for _, other := range m.order {
		if o := m.stepsOf[other]; m.before[[2]string{other, name}] && o.do.phase != idle && o.do.phase != fine {
			return fmt.Errorf("%s comes before it and is %q", other, o.do.phase)
		}
	}
	for other := range m.waitsAt {
		if m.before[[2]string{other, name}] {
			return fmt.Errorf("%s comes before it and isn't over", other)
		}
	}
	return nil
}

func (m *model) lag(now, due int64) {
	if m.everPaused {
		return
	}
	m.lagMax = max(m.lagMax, now-due)
}

// answered notes a result that is kept. A repeat of one isn't news.
func (m *model) answered(c *historyv1.Call, generation, attempt int32, digest []byte) error {
	key := attemptKey{c.GetStep(), c.GetDirection(), generation, attempt}
	for _, d := range m.answers[key] {
		if bytes.Equal(d, digest) {
			return fmt.Errorf("rule 2: the repeat of a result is taken for news")
		}
	}
	if len(digest) == 0 {
		return fmt.Errorf("rule 2: a result without a digest can't be told from another")
	}
	m.answers[key] = append(m.answers[key], digest)
	return nil
}

func (m *model) start(e *historyv1.Started, now int64) error {
	if m.started {
		return fmt.Errorf("I5: the saga starts twice")
	}
	if e.GetNamespace() != m.namespace || e.GetSagaId() != m.id || e.GetDefinition() != m.def.GetName() || e.GetVersion() != m.version {
		return fmt.Errorf("I5: it starts as %s/%s of %s", e.GetNamespace(), e.GetSagaId(), e.GetDefinition())
	}
	m.started, m.startedAt, m.deadline, m.input = true, now, e.GetDeadlineUs(), string(e.GetInput())
	want := int64(0)
	if d := m.def.GetDeadline(); d != nil {
		want = now + d.AsDuration().Microseconds()
	}
	if m.deadline != want {
		return fmt.Errorf("I13: the deadline is %d, want %d", m.deadline, want)
	}
	return nil
}

func (m *model) retry(e *historyv1.RetryPlanned, now int64) error {
	s, c, err := m.call(e.GetCall())
	if err != nil {
		return err
	}
	dir := e.GetCall().GetDirection()
	p := policyOf(s.def, dir)
	switch {
	case c.phase != givenUp:
		return fmt.Errorf("a retry is planned of a call that is %q", c.phase)
	case dir == do && m.backward:
		return fmt.Errorf("I8: an action is planned while the saga unwinds")
	case e.GetAttempt() != c.attempt+1:
		return fmt.Errorf("I15: attempt %d is planned after %d", e.GetAttempt(), c.attempt)
	case e.GetAtUs() < now+10_000 && !(m.paused && m.byPerson):
		return fmt.Errorf("I15: a retry within %d us", e.GetAtUs()-now)
	case e.GetAtUs()-now > max(delayMax(p, c.budget), retryAfterMax.Microseconds()):
		return fmt.Errorf("I15: a retry after %v", time.Duration(e.GetAtUs()-now)*time.Microsecond)
	case c.budget >= attemptsOf(s.def, dir):
		return fmt.Errorf("I15: a retry after %d attempts", c.budget)
	case p.GetTotal() != nil && e.GetAtUs()-c.from > p.GetTotal().AsDuration().Microseconds():
		return fmt.Errorf("I15: a retry %d us after the first attempt", e.GetAtUs()-c.from)
	}
	c.phase, c.due = waiting, e.GetAtUs()
	return nil
}

func (m *model) late(e *historyv1.LateResult) error {
	s, c, err := m.call(e.GetCall())
	if err != nil {
		return err
	}
	if c.generation == e.GetGeneration() && c.phase == out && c.attempt == e.GetAttempt() {
		return fmt.Errorf("the attempt is out: its result isn't late")
	}
	if err := m.answered(e.GetCall(), e.GetGeneration(), e.GetAttempt(), e.GetDigest()); err != nil {
		return err
	}
	if e.GetCall().GetDirection() != do {
		m.sometimes("late result of a compensation")
		return nil
	}
	if !conclusive(e.GetOutcome()) && (c.phase == out || c.phase == waiting || c.phase == held) {
		s.answered(e.GetAttempt(), historyv1.Outcome_OUTCOME_FAILED)
	}
	// Of results that come late only a success changes anything.
	if e.GetOutcome() != historyv1.Outcome_OUTCOME_SUCCEEDED {
		return nil
	}
	if !s.known && len(e.GetOutput()) > 0 {
		s.output, s.known = e.GetOutput(), true
	}
	switch {
	case m.end != 0 && c.phase != fine:
		m.sometimes("late success after the saga ended")
	case s.undo.phase == out || s.undo.phase == waiting:
		m.sometimes("late success while its compensation is under way")
	case s.undo.phase == fine:
		m.sometimes("late success after its compensation")
	case m.backward && c.phase == givenUp:
		m.sometimes("late success before its compensation begins")
	}
	s.unseen = s.unseen || !s.happened && s.undo.phase == fine && s.undoneBy
	s.happened = true
	if c.phase != fine && s.undo.phase == fine && s.undo.empty {
		s.hidden = true
	}
	return nil
}

// answered notes what is said of an attempt. After a rejection only a success is news.
func (s *modelStep) answered(attempt int32, o historyv1.Outcome) {
	if a := s.sent[attempt]; a != nil && !slices.Contains(a.answers, historyv1.Outcome_OUTCOME_REJECTED) {
		a.answers = append(a.answers, o)
	}
}

func (m *model) opened(e *historyv1.ItemOpened) error {
	if int(e.GetItem()) != len(m.items)+1 {
		return fmt.Errorf("item %d follows %d", e.GetItem(), len(m.items))
	}
	it := modelItem{
		kind: e.GetKind(), status: historyv1.ItemStatus_ITEM_STATUS_OPEN, blocking: e.GetBlocking(), step: e.GetCall().GetStep(),
		dir: e.GetCall().GetDirection(), version: m.n,
	}
	for i := range m.items {
		if o := &m.items[i]; o.status != historyv1.ItemStatus_ITEM_STATUS_CLOSED && o.step == it.step && o.dir == it.dir && o.kind == it.kind {
			return fmt.Errorf("there is such an item already: %d", i+1)
		}
	}
	m.items = append(m.items, it)
	if s := m.stepsOf[it.step]; s != nil && it.blocking {
		c := s.of(it.dir)
		if c.phase != givenUp && c.phase != refused {
			return fmt.Errorf("the call is held from %q", c.phase)
		}
		c.phase = held
	}
	switch it.kind {
	case historyv1.ItemKind_ITEM_KIND_COMPENSATION_EXHAUSTED:
		m.sometimes("a compensation is out of retries")
	case historyv1.ItemKind_ITEM_KIND_COMPENSATION_REFUSED:
		m.sometimes("a compensation can't undo")
	case historyv1.ItemKind_ITEM_KIND_STEP_PAST_PIVOT:
		m.sometimes("a step past the pivot is held")
	case historyv1.ItemKind_ITEM_KIND_PIVOT_IN_DOUBT:
		m.sometimes("a pivot is in doubt")
	case historyv1.ItemKind_ITEM_KIND_STEP_HELD:
		m.sometimes("a step is held before the pivot")
	case historyv1.ItemKind_ITEM_KIND_EXPRESSION:
		m.sometimes("an expression fails past the pivot")
	case historyv1.ItemKind_ITEM_KIND_LATE_EFFECT:
		m.sometimes("an effect comes to light too late")
	}
	return nil
}

func (m *model) settle(e *historyv1.SettledByHand) error {
	m.byHand++
	m.settled = append(m.settled, e)
	if s := e.GetCall().GetStep(); m.stepsOf[s] == nil {
		if m.places[s] == nil && s != "return" {
			return fmt.Errorf("there is no step %q", s)
		}
		m.sometimes("a person decides a branch or an output")
		return nil
	}
	s, c, err := m.call(e.GetCall())
	if err != nil {
		return err
	}
	if c.phase != held {
		return fmt.Errorf("a call is settled by hand that is %q", c.phase)
	}
	switch {
	case e.GetCall().GetDirection() == undo:
		c.phase, c.empty, s.hidden, s.undoneBy = fine, false, false, true
		m.sometimes("a compensation is resolved by hand")
	case e.GetSettlement() == historyv1.Settlement_SETTLEMENT_DONE:
		c.phase, s.by, s.happened = fine, "done", true
		s.output, s.known = e.GetOutput(), true
		m.sometimes("a step is completed by hand")
	default:
		c.phase, s.by, s.happened = refused, "undone", false
		m.sometimes("a step is resolved by hand")
	}
	return nil
}

func (m *model) abandon(e *historyv1.Abandoned) error {
	m.end = store.Abandoned
	if e.GetActor() == "" || e.GetReason() == "" {
		return fmt.Errorf("I12: abandoned without actor or reason")
	}
	left := map[string]bool{}
	for _, c := range e.GetEffects() {
		left[c.GetStep()] = true
	}
	m.left = e.GetEffects()
	if len(left) > 0 {
		m.sometimes("abandoned with effects left in the world")
	}
	for _, name := range m.order {
		s := m.stepsOf[name]
		if want := s.effect() && s.undo.phase != fine; left[name] != want {
			return fmt.Errorf("%s is listed as left behind: %v, want %v", name, left[name], want)
		}
		for _, c := range [...]*modelCall{&s.do, &s.undo} {
			switch c.phase {
			case out:
				m.sometimes("abandoned with calls in flight")
				c.phase = givenUp
			case waiting, held:
				c.phase = givenUp
			}
		}
	}
	return nil
}

func (m *model) scheduled(e *historyv1.AttemptScheduled, now int64, t *historyv1.Transition) error {
	s, c, err := m.call(e.GetCall())
	if err != nil {
		return err
	}
	dir, name := e.GetCall().GetDirection(), s.def.GetName()
	first := e.GetGeneration() != c.generation
	// Each call has its own counters.
	switch {
	case first && (e.GetGeneration() != c.generation+1 || e.GetAttempt() != 1):
		return fmt.Errorf("I15: generation %d attempt %d follows generation %d attempt %d", e.GetGeneration(), e.GetAttempt(), c.generation, c.attempt)
	case !first && e.GetAttempt() != c.attempt+1:
		return fmt.Errorf("I15: attempt %d follows %d", e.GetAttempt(), c.attempt)
	case e.GetDeadlineUs() != now+timeoutOf(s.def, dir):
		return fmt.Errorf("I13: the attempt's deadline is %d us away", e.GetDeadlineUs()-now)
	case c.phase == out:
		return fmt.Errorf("an attempt is out already")
	case c.phase == waiting && now < c.due:
		return fmt.Errorf("I13: %d us early", c.due-now)
	case dir == do && c.phase != idle && c.phase != waiting && c.phase != givenUp:
		return fmt.Errorf("the action is %q", c.phase)
	case dir == do && m.backward:
		return fmt.Errorf("I8: an action while the saga unwinds")
	case (e.GetStartNo() != 0) != (dir == do && s.do.attempt == 0):
		return fmt.Errorf("start number %d", e.GetStartNo())
	}
	if c.phase == waiting {
		m.lag(now, c.due)
	}
	if n := e.GetStartNo(); n != 0 {
		if st := m.statusNow(); st != store.Running {
			return fmt.Errorf("I8: a step starts while the saga is %d", st)
		}
		if n != m.startNo+1 {
			return fmt.Errorf("start number %d follows %d", n, m.startNo)
		}
		m.startNo, s.startNo = n, n
		if err := m.free(name); err != nil {
			return err
		}
	}
	if m.paused && !(dir == undo && e.GetGeneration() > 1 && first) {
		return fmt.Errorf("an attempt is scheduled while the saga is paused")
	}
	if dir == undo {
		if err := m.undoScheduled(s, e, first); err != nil {
			return err
		}
	}
	if first {
		c.budget, c.from, c.deadlines = 0, now, map[int32]int64{}
		if dir == undo {
			c.empty, c.knew, s.hidden = false, s.happened, false
			c.knewOutput = s.known
		} else {
			c.input = e.GetInput()
		}
	}
	if c.from == 0 {
		c.from = now
	}
	if c.budget++; c.budget > attemptsOf(s.def, dir) {
		return fmt.Errorf("I15: attempt %d of %d", c.budget, attemptsOf(s.def, dir))
	}
	c.phase, c.generation, c.attempt, c.due = out, e.GetGeneration(), e.GetAttempt(), e.GetDeadlineUs()
	c.deadlines[e.GetAttempt()] = e.GetDeadlineUs()
	if dir == do {
		s.sent[e.GetAttempt()] = &modelSent{}
		m.everPivot = m.everPivot || s.def.GetKind() == sagadv1.Kind_KIND_PIVOT
	}
	return nil
}

// undoScheduled checks rule 5: who is compensated, and when.
func (m *model) undoScheduled(s *modelStep, e *historyv1.AttemptScheduled, first bool) error {
	switch {
	case !m.backward:
		return fmt.Errorf("I8: a compensation while the saga goes forward")
	case m.pivotDone():
		return fmt.Errorf("I8: a compensation after the pivot")
	case s.def.GetKind() != sagadv1.Kind_KIND_COMPENSATABLE:
		return fmt.Errorf("I7: it has no compensation")
	case !s.effect():
		return fmt.Errorf("I7: there is nothing to undo")
	case s.do.phase == idle || s.do.phase == out || s.do.phase == waiting || s.do.phase == held:
		return fmt.Errorf("I7: the action is %q", s.do.phase)
	}
	if !first {
		return nil
	}
	if e.GetGeneration() > 1 {
		m.sometimes("a compensation is called again under a new generation")
		return nil
	}
	running := 0
	for _, name := range m.order {
		o := m.stepsOf[name]
		if m.before[[2]string{s.def.GetName(), name}] && o.open() {
			return fmt.Errorf("I7: %s comes after it and isn't undone", name)
		}
		if m.before[[2]string{s.def.GetName(), name}] && o.undo.phase == held {
			m.sometimes("a held compensation lets others pass")
		}
		if o.undo.phase == out || o.undo.phase == waiting {
			running++
		}
	}
	if running >= m.limit {
		return fmt.Errorf("I7: %d compensations are under way, the limit is %d", running, m.limit)
	}
	if running == m.limit-1 && m.limit > 1 {
		m.sometimes("compensations at their limit")
	}
	return nil
}

func conclusive(o historyv1.Outcome) bool {
	return o == historyv1.Outcome_OUTCOME_SUCCEEDED || o == historyv1.Outcome_OUTCOME_REJECTED || o == historyv1.Outcome_OUTCOME_NOTHING_TO_UNDO
}

func (m *model) ended(e *historyv1.AttemptEnded, now int64) error {
	s, c, err := m.call(e.GetCall())
	if err != nil {
		return err
	}
	current := c.phase == out && c.attempt == e.GetAttempt()
	switch {
	case e.GetGeneration() != c.generation:
		return fmt.Errorf("generation %d ends in generation %d", e.GetGeneration(), c.generation)
	case e.GetAttempt() > c.attempt:
		return fmt.Errorf("attempt %d ends and was never made", e.GetAttempt())
	case !current && !conclusive(e.GetOutcome()):
		return fmt.Errorf("it isn't conclusive, and not of the attempt that is out")
	case c.phase != out && c.phase != waiting && c.phase != held:
		return fmt.Errorf("an attempt ends of a call that is %q", c.phase)
	case e.GetDigest() == nil && now < c.due:
		return fmt.Errorf("I13: it timed out %d us early", c.due-now)
	}
	if e.GetDigest() == nil {
		m.lag(now, c.due)
		if key := (attemptKey{e.GetCall().GetStep(), e.GetCall().GetDirection(), e.GetGeneration(), e.GetAttempt()}); !m.published[publication{key, m.owner}] && !m.everPaused {
			return fmt.Errorf("rule 4: an attempt timed out that its owner never sent")
		}
	} else {
		if err := m.answered(e.GetCall(), e.GetGeneration(), e.GetAttempt(), e.GetDigest()); err != nil {
			return err
		}
		if e.GetAttempt() < c.attempt {
			m.sometimes("the result of an earlier attempt wins")
		}
		if c.phase == waiting {
			m.sometimes("a result comes while its retry waits")
		}
	}
	dir := e.GetCall().GetDirection()
	if dir == do {
		o := e.GetOutcome()
		if o == historyv1.Outcome_OUTCOME_UNKNOWN && e.GetDigest() != nil {
			o = historyv1.Outcome_OUTCOME_FAILED // a worker that doesn't know is no better
		}
		s.answered(e.GetAttempt(), o)
	}
	switch e.GetOutcome() {
	case historyv1.Outcome_OUTCOME_SUCCEEDED:
		if c.phase = fine; e.GetUnusable() {
			c.phase = givenUp
			m.sometimes("an output can't be used")
		} else if dir == do {
			s.output, s.known = e.GetOutput(), true
		}
		if dir == do {
			s.happened = true
			if m.cancelled && m.backward {
				m.sometimes("a cancel is ordered before a step's success")
			}
		}
	case historyv1.Outcome_OUTCOME_NOTHING_TO_UNDO:
		if dir == do {
			return fmt.Errorf("an action has something to do")
		}
		c.phase, c.empty = fine, true
		s.hidden = s.happened && !c.knew
	case historyv1.Outcome_OUTCOME_REJECTED:
		c.phase = refused
	default:
		c.phase = givenUp
	}
	return nil
}
