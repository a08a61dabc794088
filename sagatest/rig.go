package sagatest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/sagad/sagad/engine"
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/memory"
)

const (
	namespace = "default"
	// forever is longer than any test's saga lasts.
	forever = 100 * 365 * 24 * time.Hour
	// redelivery is after what time another worker gets the task of one that died, or after half of what is left.
	redelivery = 30 * time.Second
	// turnsMax bounds what is done of one saga.
	turnsMax = 200_000
)

// began is when all sagas of tests start.
var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// definition is a verified definition with its input.
type definition struct {
	name  string
	proto *sagadv1.Definition
	steps map[string]*sagadv1.Step
	input json.RawMessage

	mu       sync.Mutex
	machines map[string]*statemachine.Machine
}

func define[In, Out any](def *saga.Definition[In, Out], input In) (*definition, error) {
	if def == nil {
		return nil, errors.New("the definition is nil")
	}
	if err := def.Verify(); err != nil {
		return nil, err
	}
	doc, err := saga.Encode(input)
	if err != nil {
		return nil, fmt.Errorf("definition %s: the input can't be written as JSON: %w", def.Name(), err)
	}
	d := &definition{name: def.Name(), proto: def.Proto(), steps: map[string]*sagadv1.Step{}, input: doc, machines: map[string]*statemachine.Machine{}}
	walk(d.proto.GetBody(), func(n *sagadv1.Node) {
		if s := n.GetStep(); s != nil {
			d.steps[s.GetName()] = s
		}
	})
	return d, nil
}

// compile makes each machine once for all runs.
func (d *definition) compile(def *sagadv1.Definition) (*statemachine.Machine, []*sagadv1.Problem) {
	key, err := proto.MarshalOptions{Deterministic: true}.Marshal(def)
	if err != nil {
		return statemachine.Compile(def)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if m := d.machines[string(key)]; m != nil {
		return m, nil
	}
	m, problems := statemachine.Compile(def)
	if m != nil {
		d.machines[string(key)] = m
	}
	return m, problems
}

// rig is where one saga runs: a node, a store, a worker, and the clock. It is the node's bus too.
type rig struct {
	ctx     context.Context
	def     *definition
	o       options
	now     time.Time
	st      *memory.Store
	node    *engine.Stepper
	w       *worker.Worker
	run     uuid.UUID
	state   *statemachine.State
	machine *statemachine.Machine

	queue []*delivery
	limbo []*delivery
	seq   int
	// sent are the signals that were sent, and taken the retries by hand.
	sent, taken int
	delivered   int
	waits       int
	exhausted   bool
	struck      map[string]int // faults that found their call
	calls       []Call
	notes       []note
	events      chan event
	// hung is set if a handler doesn't come back: nothing can be said of what follows.
	hung bool
}

// delivery is a task, or a result, on its way.
type delivery struct {
	at    time.Time
	seq   int
	task  *workerv1.Task
	again bool
	// late: the fault struck, and only its handler is still to be called; or, with a result, that is to be told.
	late   bool
	atEnd  bool
	result *workerv1.Result
}

// newRig makes a rig and starts its saga. An error is the caller's mistake.
func newRig(ctx context.Context, def *definition, o options, register func(*worker.Worker)) (*rig, error) {
	r := &rig{ctx: ctx, def: def, o: o, now: began, struck: map[string]int{}, events: make(chan event)}
	w, err := worker.New(worker.Config{URL: "nats://127.0.0.1:4222", Namespace: namespace, Name: "sagatest", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	register(w)
	r.w = w
	if err := r.served(); err != nil {
		return nil, err
	}
	chance := rand.New(rand.NewPCG(1, 2))
	clock := func() time.Time { return r.now }
	r.st = memory.New(1, memory.Clock(clock), memory.Random(randomReader{chance}))
	r.node, err = engine.NewStepper(ctx, engine.Config{
		Name: "sagatest", LeaseTTL: forever, RedispatchAfter: forever, SweepEvery: forever, ParkAfter: forever, RebalanceAfter: forever,
		Logger: slog.New(slog.DiscardHandler),
	}, engine.Hand{Clock: clock, Chance: chance.Uint64, Compile: def.compile}, r.st, bus{r})
	if err != nil {
		return nil, err
	}
	for _, d := range append(slices.Clone(o.others), def.proto) {
		if _, _, err := r.node.Register(ctx, namespace, d); err != nil {
			return nil, err
		}
	}
	r.commit()
	var reply engine.StartReply
	err = errors.New("no answer")
	r.node.Start(engine.StartRequest{Namespace: namespace, ID: o.id, Definition: def.name, Input: def.input}, func(a engine.StartReply, e error) { reply, err = a, e })
	r.commit()
	if err != nil {
		return nil, fmt.Errorf("the saga can't be started: %w", err)
	}
	r.run = reply.Run
	return r, r.look()
}

// served says what handlers are missing.
func (r *rig) served() error {
	probes := map[string]bool{}
	for _, d := range append(slices.Clone(r.o.others), r.def.proto) {
		for _, a := range d.GetActivities() {
			probes[a.GetName()] = a.GetProbe()
		}
	}
	var missing []string
	need := func(activity string, dir workerv1.Direction, how string) error {
		ok, err := r.w.Serves(activity, dir)
		if !ok && err == nil {
			missing = append(missing, fmt.Sprintf("%s (%s)", activity, how))
		}
		return err
	}
	for _, d := range append(slices.Clone(r.o.others), r.def.proto) {
		var failed error
		walk(d.GetBody(), func(n *sagadv1.Node) {
			s := n.GetStep()
			if s == nil || failed != nil {
				return
			}
			failed = need(s.GetActivity(), workerv1.Direction_DIRECTION_DO, "its action")
			if s.GetKind() == sagadv1.Kind_KIND_COMPENSATABLE && failed == nil {
				failed = need(s.GetActivity(), workerv1.Direction_DIRECTION_UNDO, "its compensation")
			}
			if probes[s.GetActivity()] && failed == nil {
				failed = need(s.GetActivity(), workerv1.Direction_DIRECTION_PROBE, "its probe")
			}
		})
		if failed != nil {
			return failed
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return fmt.Errorf("no handler is registered for %s: register it in the function that the test is given", strings.Join(slices.Compact(missing), ", "))
	}
	return nil
}

type randomReader struct{ r *rand.Rand }

func (r randomReader) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(r.r.Uint64())
	}
	return len(b), nil
}

var _ io.Reader = randomReader{}

// bus takes what the node sends.
type bus struct{ r *rig }

func (b bus) Publish(tasks []*workerv1.Task) {
	for _, t := range tasks {
		b.r.enqueue(&delivery{at: b.r.now, task: t})
	}
}

// Stop isn't needed: handlers come back before anything else happens.
func (b bus) Stop(string, string, []*workerv1.Stop) {}

func (b bus) Serve(int, func(*workerv1.ResultPack, func(*workerv1.ResultReply))) (func(), error) {
	return func() {}, nil
}
func (b bus) Listening(string, string, workerv1.Direction) bool { return true }
func (b bus) Healthy() bool                                     { return true }

func (r *rig) enqueue(d *delivery) {
	r.seq++
	d.seq = r.seq
	if r.o.reversed {
		d.seq = -d.seq
	}
	r.queue = append(r.queue, d)
	slices.SortFunc(r.queue, func(a, b *delivery) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.seq, b.seq)) })
}

// commit lets the node do all that it can do now.
func (r *rig) commit() {
	for range turnsMax {
		commits := r.node.Step()
		if len(commits) == 0 {
			return
		}
		for _, c := range commits {
			results, err := r.st.Commit(r.ctx, []store.Batch{*c.Batch})
			r.node.Settle(c, results[0], err)
		}
	}
	panic("sagatest: the engine doesn't come to rest")
}

// look reads the saga's state.
func (r *rig) look() error {
	err := errors.New("the engine doesn't answer")
	r.node.Look(namespace, r.o.id, func(st *statemachine.State, m *statemachine.Machine, e error) {
		if err = e; e == nil {
			r.state, r.machine = st, m
		}
	})
	r.commit()
	if err != nil {
		return fmt.Errorf("the saga can't be read: %w", err)
	}
	return nil
}

func (r *rig) note(format string, args ...any) {
	n := int64(0)
	if r.state != nil {
		n = r.state.N
	}
	r.notes = append(r.notes, note{n, r.now.Sub(began), fmt.Sprintf(format, args...)})
}

// play lets the saga run to its end, or until it waits for what doesn't come.
func (r *rig) play() (*Saga, error) {
	for turns := 0; !r.hung; turns++ {
		if turns >= turnsMax {
			r.exhausted = true
			break
		}
		r.commit()
		if err := r.look(); err != nil {
			return nil, err
		}
		if r.release(false) {
			continue
		}
		if len(r.queue) > 0 && !r.queue[0].at.After(r.now) {
			d := r.queue[0]
			if r.disturb(d) {
				continue
			}
			r.queue = slices.DeleteFunc(r.queue, func(x *delivery) bool { return x == d })
			r.deliver(d)
			continue
		}
		if !r.state.Status.Terminal() && r.idle() {
			continue
		}
		if next, ok := r.next(); ok {
			r.now = next
			continue
		}
		if r.release(true) || r.retry() {
			continue
		}
		break
	}
	if err := r.look(); err != nil {
		return nil, err
	}
	return r.saga(), nil
}

// next is when something happens.
func (r *rig) next() (time.Time, bool) {
	var next time.Time
	consider := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	if len(r.queue) > 0 {
		consider(r.queue[0].at)
	}
	if !r.state.Status.Terminal() {
		if at, ok := r.state.NextWake(); ok {
			consider(time.UnixMicro(at).UTC())
		}
		if r.machine.HasChildren() && r.state.Waits() && r.state.Status != Stuck && r.now.Sub(began) < forever/2 {
			// What its children wait for isn't known here.
			consider(r.node.Wake())
		}
	}
	if next.IsZero() {
		return next, false
	}
	if !next.After(r.now) {
		next = r.now.Add(time.Microsecond)
	}
	return next, true
}

// idle gives the saga what it waits for.
func (r *rig) idle() bool {
	if r.waits++; r.o.cancelOnWait && len(r.struck) > 0 || r.waits == r.o.cancelAtWait {
		r.o.cancelOnWait = false
		r.note("the saga is cancelled, while it waits")
		r.cancel()
		return true
	}
	if len(r.o.signals) == r.sent && len(r.o.answers) == 0 {
		return false
	}
	for _, w := range r.open() {
		if w[1] == "" {
			if r.answer(w[0]) {
				return true
			}
			continue
		}
		for i := r.sent; i < len(r.o.signals); i++ {
			x := r.o.signals[i]
			if x.name != w[1] {
				continue
			}
			// Those that were sent stand first.
			copy(r.o.signals[r.sent+1:i+1], r.o.signals[r.sent:i])
			r.o.signals[r.sent] = x
			r.sent++
			r.signal(x)
			return true
		}
	}
	return false
}

func (r *rig) cancel() {
	r.node.Cancel(namespace, r.o.id, statemachine.Cancel{Actor: "sagatest", Reason: "a test", RequestID: fmt.Sprint("cancel-", len(r.notes))},
		func(sagadv1.CancelAnswer, statemachine.Status, error) {})
	r.commit()
}

// disturb does what is to be done before a delivery, and says whether it did something.
func (r *rig) disturb(d *delivery) bool {
	if d.late || d.again {
		return false
	}
	first := func(step string) bool {
		return step != "" && d.task.Step == step && d.task.Direction == workerv1.Direction_DIRECTION_DO
	}
	n := r.delivered + 1
	switch {
	case r.o.cancelAt == n || first(r.o.cancelBefore):
		r.o.cancelAt, r.o.cancelBefore = 0, ""
		r.note("the saga is cancelled, while %s is on its way", words(d.task))
		r.cancel()
		return true
	case r.o.deadlineAt == n || first(r.o.deadlineBefore):
		r.o.deadlineAt, r.o.deadlineBefore = 0, ""
		if r.state.Deadline == 0 || r.state.DeadlinePassed {
			return false
		}
		r.note("the saga's deadline passes, while %s is on its way", words(d.task))
		// All that is due before it happens before it.
		for at, ok := r.state.NextWake(); ok && at < r.state.Deadline; at, ok = r.state.NextWake() {
			r.now = time.UnixMicro(at).UTC()
			r.commit()
			if r.look() != nil {
				break
			}
		}
		r.now = time.UnixMicro(r.state.Deadline).UTC()
		return true
	}
	return false
}

// signal sends a signal to the saga.
func (r *rig) signal(x signal) {
	r.note("signal %s is sent", x.name)
	r.node.Signal(namespace, r.o.id, statemachine.Signal{Name: x.name, Key: x.key, Payload: x.payload, Actor: "sagatest"}, func(_ bool, err error) {
		if err != nil {
			r.note("that is refused: %v", err)
		}
	})
	r.commit()
}

func words(t *workerv1.Task) string {
	s := t.Step
	if t.Item != "" {
		s += "@" + t.Item
	}
	switch t.Direction {
	case workerv1.Direction_DIRECTION_UNDO:
		s = "the undo of " + s
	case workerv1.Direction_DIRECTION_PROBE:
		s = "the probe of " + s
	}
	return fmt.Sprintf("attempt %d of %s", t.Attempt, s)
}

// release lets something late happen if it is its time; rest says that nothing else happens any more.
func (r *rig) release(rest bool) bool {
	for i, d := range r.limbo {
		st := r.state.Call(statemachine.Call{Step: d.task.Step, Item: d.task.Item, Dir: historyv1.Direction_DIRECTION_UNDO})
		if d.task.Direction == workerv1.Direction_DIRECTION_UNDO {
			st = nil
		}
		undone := st != nil && st.Phase == statemachine.Succeeded
		if !(rest || r.state.Status.Terminal() || undone && !d.atEnd) {
			continue
		}
		r.limbo = slices.Delete(slices.Clone(r.limbo), i, i+1)
		if d.result != nil {
			r.note("the answer of %s comes", words(d.task))
			r.tell(d.result)
		} else {
			r.note("%s does its work only now", words(d.task))
			r.tell(r.handle(d.task, noFault, true, 0)...)
		}
		return true
	}
	return false
}

// retry lets a person retry what waits for one.
func (r *rig) retry() bool {
	if r.taken >= r.o.retries || r.state.Status.Terminal() {
		return false
	}
	for i := range r.state.Items {
		it := &r.state.Items[i]
		if !it.Open() || !it.Blocking || it.Status == historyv1.ItemStatus_ITEM_STATUS_RETRYING {
			continue
		}
		r.taken++
		r.note("a person retries item %d", it.Number)
		err := errors.New("no answer")
		r.node.Act(namespace, r.o.id, statemachine.Act{
			Item: it.Number, Action: historyv1.OperatorAction_OPERATOR_ACTION_RETRY, Actor: "sagatest", Reason: "a test", RequestID: fmt.Sprint("act-", r.taken),
		}, func(_ *statemachine.State, e error) { err = e })
		r.commit()
		if err != nil {
			r.note("that is refused: %v", err)
			continue
		}
		return true
	}
	return false
}

// answer answers what a person is asked at a wait.
func (r *rig) answer(wait string) bool {
	doc, ok := r.o.answers[wait]
	if !ok {
		return false
	}
	for i := range r.state.Items {
		it := &r.state.Items[i]
		if !it.Open() || it.Kind != historyv1.ItemKind_ITEM_KIND_APPROVAL || it.Call.Step != wait {
			continue
		}
		r.note("a person answers at %s", wait)
		err := errors.New("no answer")
		r.node.Act(namespace, r.o.id, statemachine.Act{
			Item: it.Number, Action: historyv1.OperatorAction_OPERATOR_ACTION_ANSWER, Actor: "sagatest", Reason: "a test", Evidence: "a test", Output: doc,
			RequestID: fmt.Sprint("answer-", it.Number),
		}, func(_ *statemachine.State, e error) { err = e })
		r.commit()
		if err != nil {
			r.note("that is refused: %v", err)
			return false
		}
		return true
	}
	return false
}

// deliver brings a task to the worker, or doesn't.
func (r *rig) deliver(d *delivery) {
	t := d.task
	if !d.again {
		r.delivered++
	}
	if t.DeadlineUs > 0 && r.now.UnixMicro() >= t.DeadlineUs {
		r.note("%s comes after its deadline, and isn't begun", words(t))
		return
	}
	var f *fault
	for i := range r.o.faults {
		if r.o.faults[i].hits(t) && !d.again && t.SagaId == r.o.id {
			f = &r.o.faults[i]
			r.struck[f.where()+" "+f.name()]++
			break
		}
	}
	if f == nil {
		r.tell(r.handle(t, noFault, false, 0)...)
		return
	}
	r.note("%s: %s", words(t), f.words())
	if !f.calls() {
		r.calls = append(r.calls, r.callOf(t, f.kind))
	}
	switch f.kind {
	case rejected:
		r.tell(&workerv1.Result{Token: t.Token, Outcome: outcomeOfNo(t), Code: orElse(f.code, "INJECTED"), Message: "injected by the test", Worker: "sagatest"})
	case errored:
		r.tell(failed(t))
	case erroredAfter:
		r.handle(t, f.kind, false, 0)
		r.tell(failed(t))
	case unknownDone:
		r.handle(t, f.kind, false, 0)
	case unknownNotDone:
	case late:
		r.limbo = append(r.limbo, &delivery{task: t, late: true, atEnd: f.atEnd})
	case lateAnswer:
		for _, res := range r.handle(t, f.kind, false, 0) {
			r.limbo = append(r.limbo, &delivery{task: t, result: res, late: true, atEnd: f.atEnd})
		}
	case duplicate:
		res := r.handle(t, f.kind, false, 0)
		if !r.hung {
			res = append(res, r.handle(t, f.kind, false, 0)...)
		}
		for _, x := range res {
			r.tell(x)
		}
	case atOnce:
		for _, x := range r.handle(t, f.kind, false, 0, t) {
			r.tell(x)
		}
	case crashBefore, crashAfter:
		if f.kind == crashAfter {
			r.handle(t, f.kind, false, 0)
		}
		wait := redelivery
		if left := time.UnixMicro(t.DeadlineUs).Sub(r.now); t.DeadlineUs > 0 && wait > left/2 {
			wait = left / 2
		}
		r.enqueue(&delivery{at: r.now.Add(wait), task: t, again: true})
	case interrupted:
		r.tell(r.handle(t, f.kind, false, f.uses)...)
	}
}

func outcomeOfNo(t *workerv1.Task) workerv1.Outcome {
	if t.Direction == workerv1.Direction_DIRECTION_UNDO {
		return workerv1.Outcome_OUTCOME_CANT_UNDO
	}
	return workerv1.Outcome_OUTCOME_REJECTED
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func failed(t *workerv1.Task) *workerv1.Result {
	return &workerv1.Result{Token: t.Token, Outcome: workerv1.Outcome_OUTCOME_FAILED, Code: "INJECTED", Message: "injected by the test", Worker: "sagatest"}
}

// tell brings results to the node.
func (r *rig) tell(results ...*workerv1.Result) (verdict workerv1.Verdict) {
	for _, res := range results {
		r.node.Results(&workerv1.ResultPack{Results: []*workerv1.Result{res}}, func(reply *workerv1.ResultReply) { verdict = reply.GetVerdicts()[0] })
		r.commit()
	}
	return verdict
}
