package sim

import (
	"container/heap"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"runtime/debug"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/sagad/sagad/engine"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/memory"
)

const namespace = "default"

// Violation says which invariant a run broke, and when.
type Violation struct {
	Seed uint64
	At   time.Duration
	What string
	// Stack is that of a panic.
	Stack string
}

func (v *Violation) Error() string {
	return fmt.Sprintf("seed %d: after %v of virtual time: %s%s", v.Seed, v.At, v.What, v.Stack)
}

// Outcome is what a run came to.
type Outcome struct {
	Seed uint64
	// Hash is of everything that happened, in order.
	Hash      uint64
	Violation *Violation
	Sagas     int
	Events    int
	Commits   int
	// UnknownLanded and UnknownLost are commits whose outcome wasn't known at first, by the truth.
	UnknownLanded, UnknownLost int
	// Faults and Rare count by name.
	Faults map[string]int
	Rare   map[string]int
	Ends   map[store.Status]int
	// Virtual is how long the run took, by its own clock.
	Virtual time.Duration
}

func newOutcome(seed uint64) *Outcome {
	return &Outcome{Seed: seed, Faults: map[string]int{}, Rare: map[string]int{}, Ends: map[store.Status]int{}}
}

// Run lives through a seed. Every decision is written to trace, which may be nil.
func Run(seed uint64, trace io.Writer) (o *Outcome) {
	s := &sim{
		chance: newChance(seed), seed: seed, trace: trace, hash: fnv.New64a(),
		base: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro(), models: map[uuid.UUID]*model{}, byID: map[string]*model{},
		plans: map[versioned]*plan{}, latest: map[string]int32{}, compiled: map[[32]byte]*statemachine.Machine{}, ledger: map[string]*account{}, acts: map[string]*act{}, actedAt: map[itemKey]int64{}, poison: map[string]bool{}, subs: map[int][]*process{}, holders: map[uuid.UUID]int{}, sent: map[string]int64{},
		o: newOutcome(seed),
	}
	defer func() {
		switch r := recover().(type) {
		case nil:
		case violation:
			s.o.Violation = &Violation{Seed: seed, At: time.Duration(s.now) * time.Microsecond, What: string(r)}
		default:
			s.o.Violation = &Violation{Seed: seed, At: time.Duration(s.now) * time.Microsecond, What: fmt.Sprint("a panic: ", r), Stack: "\n" + string(debug.Stack())}
		}
		s.o.Hash, s.o.Virtual = s.hash.Sum64(), time.Duration(s.now)*time.Microsecond
		o = s.o
	}()
	s.settings = drawSettings(s.chance)
	s.live()
	return s.o
}

type violation string

// sim is a world.
type sim struct {
	*chance
	settings
	seed  uint64
	trace io.Writer
	hash  hash.Hash64
	o     *Outcome

	// now is the true time since the beginning, in microseconds. base and jump make the database's clock of it.
	now, base, jump int64
	queue           events
	numbers         uint64
	// work counts events that aren't merely the passing of time.
	work int
	// calm: the faults are over. over is when the run ends if nothing else happens; 0 while something does.
	calm bool
	over int64

	st        *memory.Store
	nodes     []*node
	processes []*process
	subs      map[int][]*process
	// grants and seqs are what the shards' fences should be.
	grants []store.Grant
	seqs   []int64
	// holders are the processes that grants were given to.
	holders map[uuid.UUID]int

	plans    map[versioned]*plan
	names    []string
	latest   map[string]int32
	compiled map[[32]byte]*statemachine.Machine
	models   map[uuid.UUID]*model
	order    []*model
	byID     map[string]*model
	open     int
	// poison are sagas that the database refuses to write.
	poison map[string]bool
	acts   map[string]*act
	// actedAt is when somebody took an item on.
	actedAt map[itemKey]int64
	asks    []*ask

	ledger map[string]*account
	// wipes counts how often the bus lost everything. sent are message ids that it knows, and since when.
	wipes                   int
	sent                    map[string]int64
	tasksOut                int
	busDown, workersDown    int64
	requestNumber, actCount int
}

type simEvent struct {
	at     int64
	number uint64
	what   string
	who    int
	idle   bool
	f      func()
}

type events []*simEvent

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].number < e[j].number
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(*simEvent)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	old[len(old)-1] = nil
	*e = old[:len(old)-1]
	return x
}

// after lets something happen later.
func (s *sim) after(d time.Duration, what string, who int, f func()) {
	s.work++
	s.push(&simEvent{at: s.now + max(d.Microseconds(), 0), what: what, who: who, f: f})
}

// later is like after for what is only the passing of time: a run may end with such events still to come.
func (s *sim) later(d time.Duration, what string, who int, f func()) {
	s.push(&simEvent{at: s.now + max(d.Microseconds(), 0), what: what, who: who, idle: true, f: f})
}

func (s *sim) push(e *simEvent) {
	s.numbers++
	e.number = s.numbers
	heap.Push(&s.queue, e)
}

// note writes what happens to the trail.
func (s *sim) note(what string, a string, n int64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	io.WriteString(s.hash, what)
	io.WriteString(s.hash, a)
	s.hash.Write(b[:])
	if s.trace != nil {
		fmt.Fprintf(s.trace, "%12.6f %s %s %d\n", float64(s.now)/1e6, what, a, n)
	}
}

func (s *sim) fail(format string, args ...any) { panic(violation(fmt.Sprintf(format, args...))) }

func (s *sim) fault(name string) {
	s.o.Faults[name]++
	s.note("fault", name, 0)
}

func (s *sim) sometimes(name string) {
	if _, ok := rare[name]; !ok {
		panic("nobody registered the situation: " + name)
	}
	s.o.Rare[name]++
}

// database is the database's clock.
func (s *sim) database() int64 { return s.base + s.now + s.jump }

// live is the whole run: a time with faults, a time without in which everything must come to an end, and the last audit.
func (s *sim) live() {
	s.st = memory.New(s.shards, memory.Random(s.chance), memory.Clock(func() time.Time { return time.UnixMicro(s.database()) }))
	s.grants, s.seqs = make([]store.Grant, s.shards), make([]int64, s.shards)
	s.register()
	for i := range s.settings.nodes {
		n := &node{number: i, name: fmt.Sprint("n", i), address: fmt.Sprint("http://n", i)}
		s.nodes = append(s.nodes, n)
		s.boot(n)
	}
	s.plan()
	s.operator()
	s.injector()
	s.later(s.horizon, "calm", 0, s.calmDown)
	for len(s.queue) > 0 {
		e := heap.Pop(&s.queue).(*simEvent)
		s.now = e.at
		if !e.idle {
			s.work--
		}
		s.note(e.what, "", int64(e.who))
		s.o.Events++
		e.f()
		if s.calm && s.open == 0 && s.work == 0 && len(s.asks) == 0 {
			if s.over == 0 {
				s.over = s.now + time.Minute.Microseconds()
			}
			if s.now > s.over {
				break
			}
		} else {
			s.over = 0
		}
		if s.calm && s.now > (s.horizon+s.patience).Microseconds() {
			s.stuck()
		}
		if s.o.Events > 3_000_000 {
			s.stuck()
		}
	}
	s.audit()
}

// stuck fails for what hasn't ended.
func (s *sim) stuck() {
	for _, m := range s.order {
		if m.end == 0 {
			state := ""
			for _, name := range m.order {
				st := m.stepsOf[name]
				state += fmt.Sprintf(" %s: %s/%d %s/%d", name, st.do.phase, st.do.attempt, st.undo.phase, st.undo.attempt)
			}
			s.fail("I1: saga %s (run %s, shard %d) doesn't end: status %d after %d transitions:%s, items %+v", m.id, m.run, m.shard, m.status, m.n, state, m.items)
		}
	}
	for _, a := range s.asks {
		s.fail("a client gets no answer: %s of %s", a.what, a.id)
	}
	s.fail("the run doesn't end, though all sagas did: %d messages", s.work)
}

// register draws the definitions and stores them.
func (s *sim) register() {
	for i := range s.definitions {
		name := fmt.Sprint("def-", i)
		s.names = append(s.names, name)
		s.newVersion(name)
	}
}

// versioned names a version of a definition.
type versioned struct {
	name    string
	version int32
}

// newVersion draws a definition and stores it under its name's next version.
func (s *sim) newVersion(name string) {
	for tries := 0; ; tries++ {
		def := drawDefinition(s.chance, name, s.leisurely)
		m, problems := statemachine.Compile(def)
		if m == nil {
			if tries > 50 {
				s.fail("the drawn definitions don't pass the verifier: %v", problems)
			}
			continue
		}
		hash, err := statemachine.Hash(def)
		if err != nil {
			s.fail("%v", err)
		}
		body, err := proto.MarshalOptions{Deterministic: true}.Marshal(def)
		if err != nil {
			s.fail("%v", err)
		}
		d, _, err := s.st.PutDefinition(context.Background(), store.Definition{Namespace: namespace, Name: name, Hash: hash[:], Body: body})
		if err != nil {
			s.fail("%v", err)
		}
		s.plans[versioned{name, d.Version}] = newPlan(def)
		s.latest[name] = d.Version
		s.compiled[hash] = m
		s.note("definition", name, int64(d.Version))
		return
	}
}

// compile shares machines among nodes and restarts.
func (s *sim) compile(def *sagadv1.Definition) (*statemachine.Machine, []*sagadv1.Problem) {
	if hash, err := statemachine.Hash(def); err == nil && s.compiled[hash] != nil {
		return s.compiled[hash], nil
	}
	return statemachine.Compile(def)
}

// calmDown ends the faults.
func (s *sim) calmDown() {
	s.calm = true
	s.note("calm", "", 0)
	s.busDown, s.workersDown = 0, 0
	clear(s.poison)
	for _, p := range s.processes {
		p.dbDown = 0
		if p.replaced {
			p.die()
		}
		if !p.dead && p.paused > s.now {
			p.resume()
		}
	}
	for _, n := range s.nodes {
		if n.process == nil {
			s.boot(n)
		}
	}
}

// audit compares all that is stored with the model, and the ledger with both.
func (s *sim) audit() {
	stored, unfinished, _ := s.st.Sizes()
	if stored != len(s.order) || unfinished != s.open {
		s.fail("I2: %d sagas are stored, %d of them unfinished; want %d and %d", stored, unfinished, len(s.order), s.open)
	}
	for _, m := range s.order {
		s.auditSaga(m)
		s.o.Ends[m.end]++
	}
	for _, p := range s.processes {
		if p.dead {
			continue
		}
		for _, q := range p.asked {
			if s.now-q.since > (30 * time.Second).Microseconds() {
				s.fail("node %s has not answered a %s for %v", p.node.name, q.what, time.Duration(s.now-q.since)*time.Microsecond)
			}
		}
		c := p.step.Counts()
		// Who stood still may find sagas of the next owner, and take them for lost ones, before it learns that it is fenced.
		if c.Unsendable > 0 || c.Quarantines > 0 && s.injected[injectPoison] == 0 || c.Repaired > 0 && p.pausedAt == 0 {
			s.fail("I1: node %s needed repair: %+v", p.node.name, c)
		}
	}
	s.o.Sagas = len(s.order)
}

func (s *sim) auditSaga(m *model) {
	found, err := s.st.Load(context.Background(), []store.Key{{Shard: m.shard, Namespace: namespace, ID: m.id}})
	if err != nil || len(found) != 1 {
		s.fail("I2: saga %s is stored %d times (%v)", m.id, len(found), err)
	}
	x := &found[0]
	if x.Saga.Run != m.run || x.Saga.Status != m.status || int64(len(x.History)) != m.n {
		s.fail("I2: saga %s: run %s status %d, %d transitions; want run %s status %d, %d", m.id, x.Saga.Run, x.Saga.Status, len(x.History), m.run, m.status, m.n)
	}
	var sum uint64
	seq := int64(0)
	for i, row := range x.History {
		if row.N != int64(i+1) || row.Seq < seq {
			s.fail("I2: saga %s: row %d is number %d, seq %d after %d", m.id, i+1, row.N, row.Seq, seq)
		}
		seq = row.Seq
		h := fnv.New64a()
		h.Write(row.Facts)
		sum = sum*1099511628211 ^ h.Sum64()
	}
	if sum != m.sum {
		s.fail("I2: saga %s: the stored facts aren't those that were committed", m.id)
	}
	s.settled(m)
	for id, a := range s.acts {
		if a.id == m.id && a.allRefused && m.requests[id] > 0 {
			s.fail("I14: request %s was refused and took effect", id)
		}
	}
}

// definite says that an answer won't change by asking again.
func definite(err error) bool {
	var not *engine.NotOwnerError
	var unavailable *engine.UnavailableError
	var quarantined *engine.QuarantinedError
	return !errors.As(err, &not) && !errors.As(err, &unavailable) && !errors.As(err, &quarantined) && !errors.Is(err, errPoison)
}
