package worker

import (
	"context"
	"sync"
	"time"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
)

// unansweredMax bounds the tasks whose results wait for their answer: beyond, the worker takes no more.
const unansweredMax = 16_384

// desk is where tasks lie from their arrival until their message is acknowledged.
type desk struct {
	w *Worker

	mu      sync.Mutex
	closing bool
	running int
	// alone is on trial: nothing else begins. nil: nothing is.
	alone *job
	// hands takes a job if a hand is free.
	hands chan *job
	// queue are jobs that wait for a free hand, from head on.
	queue []*job
	head  int
	// jobs by attempt: what is waiting or running here.
	jobs map[attempt]*job
	held map[*held]struct{}
	// here are the held messages by their ids.
	here map[string]*held
	// open are tasks whose message isn't acknowledged yet.
	open int
	// starved: pullers found no room.
	starved bool
	idle    chan struct{} // closed when nothing is held any more; nil if nobody waits
}

// attempt names an attempt of a call.
type attempt struct {
	key string
	n   int32
}

// job is a task that is to be run.
type job struct {
	h        *handler
	task     *workerv1.Task
	deadline time.Time
	for_     place
	// others are further deliveries of the same attempt, which get the same result.
	others []place
	// dropped: it was handed back before it began.
	dropped bool
	// end ends the handler's context; nil before it runs. stopped: it isn't wanted any more.
	end     context.CancelCauseFunc
	stopped bool
}

// place is where a result belongs: a held message and its task.
type place struct {
	held  *held
	token []byte
}

// held is a message that came and isn't acknowledged yet.
type held struct {
	d *desk
	delivery
	subject  string // where results go, if tokens don't say
	received time.Time
	// until is the last deadline of its tasks.
	until time.Time

	mu sync.Mutex
	// begun: a handler was called for one of its tasks.
	begun   bool
	left    int // tasks without a result
	tasks   []*workerv1.Task
	ready   []*outbound // results to be sent
	timer   *time.Timer
	sending int
	over    bool // acknowledged or handed back
	beat    time.Time
}

func (d *desk) init(w *Worker) {
	d.w = w
	d.hands = make(chan *job)
	d.jobs = map[attempt]*job{}
	d.held, d.here = map[*held]struct{}{}, map[string]*held{}
}

// room is how many tasks more may be taken.
func (d *desk) room() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing {
		return 0
	}
	if d.alone != nil {
		d.starved = true
		return 0
	}
	room := min(d.w.cfg.Concurrency-d.running-d.waiting(), unansweredMax-d.open)
	if room <= 0 {
		d.starved = true
	}
	return room
}

// waiting is how many jobs wait. The lock is held.
func (d *desk) waiting() int { return len(d.queue) - d.head }

// take puts the tasks of a message on the desk.
//
// A message that was delivered before may have killed a worker. Of a pack nobody knows by which of its tasks, so they go back to the engine, which
// sends each alone; what did it alone too often isn't run any more. It isn't so if the message, or one of its attempts, is
// still here: then its acknowledgement is slow.
func (d *desk) take(h *handler, x delivery, subject string, tasks []*workerv1.Task, received time.Time) {
	m := &held{d: d, delivery: x, subject: subject, received: received, beat: received, left: len(tasks), tasks: tasks}
	expired := 0
	var back []*outbound
	jobs := make([]job, len(tasks)) // in one piece
	var start []*job
	d.mu.Lock()
	if d.closing {
		d.mu.Unlock()
		d.w.counters.handedBack.Add(1)
		d.w.handBack(x.reply, 0)
		return
	}
	suspect := x.n > 1
	if suspect {
		if d.here[x.id].wanted(received) {
			d.mu.Unlock()
			d.w.counters.joined.Add(int64(len(tasks)))
			return
		}
		for _, t := range tasks {
			suspect = suspect && d.jobs[attempt{t.IdempotencyKey, t.Attempt}] == nil
		}
	}
	d.held[m] = struct{}{}
	if x.id != "" {
		d.here[x.id] = m
	}
	d.open += len(tasks)
	for i, t := range tasks {
		deadline, ok := d.w.deadline(t, received)
		if !ok {
			expired++
			continue
		}
		if deadline.After(m.until) {
			m.until = deadline
		}
		trial := suspect && x.n > 1 && x.n == d.w.cfg.MaxDeaths && !t.Claimed
		if suspect && len(tasks) > 1 || trial && d.alone != nil {
			back = append(back, outboundFor(d.w.handedBack(), t.Token, deadline))
			continue
		}
		// No two workers ever run a claimed attempt, so it kills one at most.
		if limit := d.w.cfg.MaxDeaths; suspect && x.n > limit && limit > 0 && !t.Claimed {
			r := d.w.poisoned(x.n)
			d.w.count(r)
			d.w.counters.poisoned.Add(1)
			d.w.log.Error("a task is given up: its workers died", "saga", t.SagaId, "step", t.Step, "activity", t.Activity, "attempt", t.Attempt, "deliveries", x.n)
			back = append(back, outboundFor(r, t.Token, deadline))
			continue
		}
		where := place{m, t.Token}
		id := attempt{t.IdempotencyKey, t.Attempt}
		if twin := d.jobs[id]; twin != nil {
			twin.others = append(twin.others, where)
			d.w.counters.joined.Add(1)
			continue
		}
		j := &jobs[i]
		*j = job{h: h, task: t, deadline: deadline, for_: where}
		d.jobs[id] = j
		if trial {
			d.try(j)
		} else if d.running < d.w.cfg.Concurrency && d.alone == nil {
			d.running++
			m.begun = true // nobody else knows m yet
			start = append(start, j)
		} else {
			d.queue = append(d.queue, j)
		}
	}
	d.mu.Unlock()
	d.start(start)
	if len(back) > 0 && len(tasks) > 1 {
		d.w.counters.returned.Add(int64(len(back)))
		d.w.log.Warn("a pack was delivered again, so its worker may have died of one of its tasks: they are handed back to be sent again one by one",
			"activity", h.queue.Activity, "tasks", len(back), "deliveries", x.n)
	}
	for _, r := range back {
		m.done(r, false)
	}
	if expired > 0 {
		d.expired(expired)
		for range expired {
			m.done(nil, false)
		}
	}
}

func (d *desk) expired(n int) {
	if total := d.w.counters.expired.Add(int64(n)); total%1000 < int64(n) || total == int64(n) {
		d.w.log.Warn("tasks came after their deadline and weren't run; if this goes on, there are too few workers, or the clock is wrong", "so_far", total)
	}
}

// work is a hand: it runs a job, then those that wait, and then stays for more, since a goroutine whose stack has grown is cheaper
// than a new one.
func (d *desk) work(j *job) {
	returned := false
	defer func() {
		if !returned { // the handler ended this goroutine: go on in another one
			r := &workerv1.Result{Worker: d.w.cfg.Name, Outcome: workerv1.Outcome_OUTCOME_FAILED, Code: codePanic, Message: "the handler ended its goroutine"}
			d.w.count(r)
			go func() { d.work(d.finish(j, r, false)) }()
		}
	}()
	for {
		for j != nil {
			r, handBack := d.w.attempt(j)
			j = d.finish(j, r, handBack)
		}
		select {
		case j = <-d.hands:
		case <-d.w.alive.Done():
			returned = true
			return
		}
	}
}

// finish puts a job's result where it belongs and takes the next job, if one waits.
func (d *desk) finish(j *job, r *workerv1.Result, handBack bool) (next *job) {
	d.mu.Lock()
	delete(d.jobs, attempt{j.task.IdempotencyKey, j.task.Attempt})
	others := j.others
	trial := d.alone == j
	next = d.next()
	wake := d.starved && d.w.cfg.Concurrency-d.running-d.waiting() > d.w.cfg.Concurrency/4
	if wake {
		d.starved = false
	}
	d.mu.Unlock()
	j.for_.held.done(outboundFor(r, j.for_.token, j.deadline), handBack)
	for _, o := range others {
		o.held.done(outboundFor(r, o.token, j.deadline), handBack)
	}
	if wake {
		d.wake()
	}
	if trial {
		d.endTrial(j)
	}
	return next
}

func (d *desk) wake() {
	for _, p := range d.w.pullers {
		p.poke()
	}
}

// next takes the next waiting job, or gives the hand back. The lock is held.
func (d *desk) next() *job {
	for d.waiting() > 0 && d.alone == nil {
		j := d.queue[d.head]
		d.queue[d.head] = nil
		d.head++
		if d.head == len(d.queue) {
			d.queue, d.head = d.queue[:0], 0
		} else if d.head > 1024 && d.head > len(d.queue)/2 {
			n := copy(d.queue, d.queue[d.head:])
			clear(d.queue[n:])
			d.queue, d.head = d.queue[:n], 0
		}
		if j.dropped {
			continue
		}
		j.begun()
		return j
	}
	d.running--
	return nil
}

func (m *held) begin() {
	m.mu.Lock()
	m.begun = true
	m.mu.Unlock()
}

// done takes the result of one of m's tasks; nil if there is none since it came too late. With handBack there is none since the worker
// stops: the message goes back.
func (m *held) done(r *outbound, handBack bool) {
	m.mu.Lock()
	if m.over {
		m.mu.Unlock()
		return
	}
	if handBack {
		m.mu.Unlock()
		m.giveBack()
		return
	}
	m.left--
	if r != nil {
		m.ready = append(m.ready, r)
	}
	switch {
	case m.left == 0:
		if m.timer != nil {
			m.timer.Stop()
		}
		m.flush()
	case len(m.ready) == 1:
		if m.timer == nil {
			m.timer = time.AfterFunc(linger, m.lingered)
		} else {
			m.timer.Reset(linger)
		}
	}
	over := m.finished()
	m.mu.Unlock()
	if over {
		m.acknowledge()
	}
}

func (m *held) lingered() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.over {
		m.flush()
	}
}

// flush sends the results that are there. The lock is held.
func (m *held) flush() {
	if len(m.ready) == 0 {
		return
	}
	results := m.ready
	m.ready = nil
	m.sending++
	m.d.w.background.Go(func() {
		if !m.d.w.send(results, m.subject) {
			m.giveBack()
			return
		}
		m.mu.Lock()
		m.sending--
		over := m.finished()
		m.mu.Unlock()
		if over {
			m.acknowledge()
		}
	})
}

// finished says, once, that all results are answered. The lock is held.
func (m *held) finished() bool {
	if m.over || m.left > 0 || m.sending > 0 || len(m.ready) > 0 {
		return false
	}
	m.over = true
	return true
}

// acknowledge tells the server that the message is done with: after all its results were answered, never before.
func (m *held) acknowledge() {
	_ = m.d.w.nc.Publish(m.reply, []byte("+ACK")) // lost, it is delivered again, and answered as duplicate
	m.d.forget(m)
}

// giveBack hands the message to another worker. The first delivery goes back to the server, which is fast and needs no engine. Later ones
// go by the engine: its next message counts its deliveries anew, so that workers that stop aren't taken for workers that die.
func (m *held) giveBack() {
	m.mu.Lock()
	if m.over {
		m.mu.Unlock()
		return
	}
	m.over = true
	if m.timer != nil {
		m.timer.Stop()
	}
	m.mu.Unlock()
	m.d.w.counters.handedBack.Add(1)
	if m.n > 1 {
		m.d.w.background.Go(func() {
			if m.d.w.giveToEngine(m.tasks, m.subject) {
				_ = m.d.w.nc.Publish(m.reply, []byte("+ACK"))
			} else {
				m.d.w.handBack(m.reply, 0)
			}
		})
	} else {
		m.d.w.handBack(m.reply, 0)
	}
	m.d.forget(m)
}

// wanted says that a message is held and will be acknowledged. nil isn't.
func (m *held) wanted(now time.Time) bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.over && (m.until.After(now) || m.sending > 0)
}

func (d *desk) forget(m *held) {
	d.mu.Lock()
	delete(d.held, m)
	if d.here[m.id] == m {
		delete(d.here, m.id)
	}
	d.open -= len(m.tasks)
	wake := d.starved && d.open < unansweredMax
	if len(d.held) == 0 && d.idle != nil {
		close(d.idle)
		d.idle = nil
	}
	d.mu.Unlock()
	if wake {
		d.wake()
	}
}

// close takes nothing any more.
func (d *desk) close() {
	d.mu.Lock()
	d.closing = true
	d.mu.Unlock()
}

// handBackWaiting hands back the messages of which nothing has begun.
func (d *desk) handBackWaiting() {
	d.mu.Lock()
	var back []*held
	for m := range d.held {
		m.mu.Lock()
		if !m.begun && m.left > 0 {
			back = append(back, m)
		}
		m.mu.Unlock()
	}
	gone := map[*held]bool{}
	for _, m := range back {
		gone[m] = true
	}
	for _, j := range d.queue[d.head:] {
		// A job is needed as long as one of its messages stays.
		needed := !gone[j.for_.held]
		for _, o := range j.others {
			needed = needed || !gone[o.held]
		}
		if !needed {
			j.dropped = true
			delete(d.jobs, attempt{j.task.IdempotencyKey, j.task.Attempt})
		}
	}
	d.mu.Unlock()
	for _, m := range back {
		m.giveBack()
	}
}

// wait waits until nothing is held any more. It is false if ctx ended first.
func (d *desk) wait(ctx context.Context) bool {
	d.mu.Lock()
	if len(d.held) == 0 {
		d.mu.Unlock()
		return true
	}
	if d.idle == nil {
		d.idle = make(chan struct{})
	}
	idle := d.idle
	d.mu.Unlock()
	select {
	case <-idle:
		return true
	case <-ctx.Done():
		return false
	}
}

// abandon hands everything back that is left, and counts the handlers that still run.
func (d *desk) abandon() (running int) {
	d.mu.Lock()
	var back []*held
	for m := range d.held {
		back = append(back, m)
	}
	for _, j := range d.queue[d.head:] {
		j.dropped = true
	}
	running = d.running
	d.mu.Unlock()
	for _, m := range back {
		m.giveBack()
	}
	return running
}

// keepAlive tells the server, for what has been held for a while, that it is being worked at.
func (w *Worker) keepAlive() {
	every := max(w.cfg.AckWait/3, time.Millisecond)
	tick := time.NewTicker(every / 2)
	defer tick.Stop()
	for {
		select {
		case <-w.alive.Done():
			return
		case now := <-tick.C:
			var beats []string
			w.desk.mu.Lock()
			for m := range w.desk.held {
				m.mu.Lock()
				// A handler that overran its deadline isn't waited for: what is delivered again is dropped.
				if wanted := m.until.After(now) || m.sending > 0; wanted && !m.over && now.Sub(m.beat) >= every/2 {
					m.beat = now
					beats = append(beats, m.reply)
				}
				m.mu.Unlock()
			}
			w.desk.mu.Unlock()
			for _, reply := range beats {
				_ = w.nc.Publish(reply, []byte("+WPI"))
			}
		}
	}
}
