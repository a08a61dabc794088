package sim

import "time"

// settings are drawn for each seed: how large the world is, which faults are on, and with what weight. Most seeds have some
// faults and not others, so that rare ones aren't drowned by common ones.
type settings struct {
	nodes, shards, definitions, sagas, operators int
	horizon, patience                            time.Duration
	ttl, redispatch, sweep, park, rebalance      time.Duration
	page, batch                                  int

	// In a thousand.
	commitLost, answerLost, commitLate       int
	crashBefore, crashAfter                  int
	crashPublish, crashReply, crashRecovery  int
	readFails, leaseFails, acquireLost       int
	taskLost, taskAgain, taskSlow, taskHours int
	workerDiesBefore, workerDiesAfter        int
	fails, rejects, badOutput, conflicts     int
	undoFails, undoRefuses, slow, retryAfter int
	resultLost, resultAgain, resultSlow      int
	replyLost, wrongNode, staleNode, forged  int
	repeats, otherContent, cancels           int
	personErrs, looks, versions              int
	signals, pauses                          int

	// injected are weights of what befalls nodes and the bus, every so often.
	injected []int
	every    time.Duration
	drift    bool
	barrier  bool
	// leisurely: most times are of minutes.
	leisurely bool
	padding   int
	commits   time.Duration // how long a commit takes at most
}

// What the injector does.
const (
	injectCrash = iota
	injectPause
	injectLongPause
	injectReplace
	injectDrain
	injectPartition
	injectOutage
	injectJump
	injectWipe
	injectBusDown
	injectWorkersDown
	injectPoison
	injectKinds
)

func drawSettings(c *chance) settings {
	var s settings
	s.nodes = 1 + c.upTo(4)
	s.shards = 1 + c.upTo(6)
	s.definitions = 1 + c.upTo(3)
	s.sagas = 35 + c.upTo(70)
	s.operators = c.upTo(4)
	s.horizon = c.between(20*time.Second, 10*time.Minute)
	s.ttl = []time.Duration{4 * time.Second, 10 * time.Second, 30 * time.Second}[c.upTo(3)]
	s.redispatch = []time.Duration{5 * time.Second, 20 * time.Second, time.Minute}[c.upTo(3)]
	s.sweep = []time.Duration{10 * time.Second, time.Minute}[c.upTo(2)]
	s.park = []time.Duration{10 * time.Second, time.Minute, 10 * time.Minute}[c.upTo(3)]
	s.rebalance = []time.Duration{time.Second, 30 * time.Second}[c.upTo(2)]
	s.page = 1 + c.upTo(20)
	if c.oneIn(2) {
		s.batch = 1 + c.upTo(10)
	}
	s.patience = 6 * time.Hour
	s.padding = []int{0, 0, 10, 200, 5000}[c.upTo(5)]
	s.commits = c.between(time.Millisecond, 2*time.Second)
	if s.batch > 0 {
		s.commits = min(s.commits, 50*time.Millisecond) // small batches that take long are no use to anyone
	}
	s.every = c.between(500*time.Millisecond, 20*time.Second)
	s.barrier = !c.oneIn(5)

	if s.leisurely = c.oneIn(6); s.leisurely {
		s.horizon, s.park, s.sweep = s.horizon+time.Duration(10+c.upTo(20))*time.Minute, 10*time.Second, 10*time.Second
	}
	// Each fault is on in half of the seeds.
	some := func(p *int, most int) {
		if c.oneIn(2) {
			*p = 1 + c.upTo(most)
		}
	}
	some(&s.commitLost, 60)
	some(&s.answerLost, 60)
	some(&s.commitLate, 60)
	some(&s.crashBefore, 8)
	some(&s.crashAfter, 8)
	some(&s.crashPublish, 6)
	some(&s.crashReply, 6)
	some(&s.crashRecovery, 60)
	some(&s.readFails, 200)
	some(&s.leaseFails, 100)
	some(&s.acquireLost, 200)
	some(&s.taskLost, 150)
	some(&s.taskAgain, 200)
	some(&s.taskSlow, 200)
	if c.oneIn(8) {
		s.taskHours = 1 + c.upTo(20)
	}
	some(&s.workerDiesBefore, 100)
	some(&s.workerDiesAfter, 100)
	some(&s.fails, 300)
	some(&s.rejects, 120)
	some(&s.badOutput, 60)
	some(&s.conflicts, 60)
	some(&s.undoFails, 400)
	some(&s.undoRefuses, 100)
	some(&s.slow, 120)
	some(&s.retryAfter, 200)
	some(&s.resultLost, 150)
	some(&s.resultAgain, 150)
	some(&s.resultSlow, 150)
	some(&s.replyLost, 200)
	some(&s.wrongNode, 150)
	some(&s.staleNode, 300)
	some(&s.forged, 40)
	some(&s.repeats, 400)
	some(&s.otherContent, 150)
	some(&s.cancels, 400)
	some(&s.personErrs, 300)
	some(&s.looks, 500)
	some(&s.signals, 900)
	some(&s.pauses, 200)
	some(&s.versions, 4)
	s.injected = make([]int, injectKinds)
	for i := range s.injected {
		some(&s.injected[i], 10)
	}
	if !c.oneIn(5) {
		s.injected[injectJump] = 0 // clocks that jump make everything late
	} else if s.injected[injectJump] > 0 {
		s.ttl = 30 * time.Second
	}
	if s.leisurely && c.oneIn(2) {
		// What a restart would mend stays as it is.
		clear(s.injected)
		s.crashBefore, s.crashAfter, s.crashPublish, s.crashReply, s.crashRecovery, s.leaseFails, s.acquireLost = 0, 0, 0, 0, 0, 0, 0
		s.readFails = 1 + c.upTo(500)
	}
	s.drift = c.oneIn(6)
	if s.taskHours > 0 || s.leisurely {
		s.ttl = 30 * time.Second
	}
	if c.oneIn(25) {
		// A calm world: what is late or lost here has no excuse.
		s = settings{
			nodes: s.nodes, shards: s.shards, definitions: s.definitions, sagas: s.sagas, operators: s.operators, horizon: s.horizon, patience: s.patience,
			ttl: s.ttl, redispatch: s.redispatch, sweep: s.sweep, park: s.park, rebalance: s.rebalance, page: s.page, batch: s.batch, every: s.every, barrier: true,
			fails: s.fails, rejects: s.rejects, cancels: s.cancels, undoFails: s.undoFails, undoRefuses: s.undoRefuses, commits: 10 * time.Millisecond,
			injected: make([]int, injectKinds),
		}
	}
	return s
}

// quiet says that nothing in this world delays a timer.
func (s *settings) quiet() bool {
	for _, w := range s.injected {
		if w > 0 {
			return false
		}
	}
	return s.commitLost+s.answerLost+s.commitLate+s.crashBefore+s.crashAfter+s.crashPublish+s.crashReply+s.crashRecovery+
		s.readFails+s.leaseFails+s.acquireLost == 0 && !s.drift && s.commits <= 100*time.Millisecond && s.nodes == 1
}

// trueClocks says that nodes know the database's time well.
func (s *settings) trueClocks() bool { return s.injected[injectJump] == 0 && !s.drift }
