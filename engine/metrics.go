package engine

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// metrics are what a node counts. Children are resolved once, so that counting costs an atomic add. No label holds an
// id, a name that a user chose, or a shard.
type metrics struct {
	started     prometheus.Counter
	ended       map[statemachine.Status]prometheus.Counter
	transitions prometheus.Counter
	attempts    map[historyv1.Outcome]prometheus.Counter
	results     map[workerv1.Verdict]prometheus.Counter

	commits       map[store.Result]prometheus.Counter
	commitSeconds prometheus.Histogram
	batchSize     prometheus.Histogram
	loads         prometheus.Counter

	redispatched prometheus.Counter
	handedBack   prometheus.Counter
	repaired     prometheus.Counter
	quarantines  prometheus.Counter
	unsendable   prometheus.Counter
	stalled      prometheus.Counter
	notFresh     prometheus.Counter
	ahead        prometheus.Counter
	strays       prometheus.Counter
	refusedFull  prometheus.Counter
	lag          prometheus.Histogram
	leaseErrors  prometheus.Counter
}

// gauges are read when metrics are gathered.
type gauges struct {
	owned, depth, hot, stuck, quarantined, oldest func() float64
}

func newMetrics(reg prometheus.Registerer, g gauges) (*metrics, error) {
	var collectors []prometheus.Collector
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		collectors = append(collectors, c)
		return c
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
		collectors = append(collectors, c)
		return c
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
		collectors = append(collectors, h)
		return h
	}
	gauge := func(name, help string, f func() float64) {
		if f != nil {
			collectors = append(collectors, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f))
		}
	}

	m := &metrics{
		started:       counter("sagad_sagas_started_total", "Sagas started."),
		ended:         map[statemachine.Status]prometheus.Counter{},
		transitions:   counter("sagad_transitions_total", "Transitions made durable."),
		attempts:      map[historyv1.Outcome]prometheus.Counter{},
		results:       map[workerv1.Verdict]prometheus.Counter{},
		commits:       map[store.Result]prometheus.Counter{},
		commitSeconds: histogram("sagad_commit_seconds", "How long commits take, of however many shards.", prometheus.ExponentialBuckets(0.0002, 2, 16)),
		batchSize:     histogram("sagad_commit_transitions", "Transitions in a commit.", prometheus.ExponentialBuckets(1, 2, 13)),
		loads:         counter("sagad_loads_total", "Sagas looked up in the store because they weren't in memory."),
		handedBack:    counter("sagad_handed_back_total", "Attempts that a worker handed back, and that were sent again alone."),
		redispatched:  counter("sagad_redispatched_total", "Attempts sent again because no result came for long."),
		repaired:      counter("sagad_repaired_total", "Sagas that nothing would have woken, found by the sweep. Anything but 0 is a bug or a lost write."),
		quarantines:   counter("sagad_quarantines_total", "Times that a saga was put aside because its history can't be applied or written."),
		unsendable:    counter("sagad_unsendable_total", "Attempts whose task couldn't be made."),
		stalled:       counter("sagad_stalled_timers_total", "Timers that were due and changed nothing."),
		notFresh:      counter("sagad_repeated_start_batches_total", "Batches that were decided again because a start in them was of a saga that was there already."),
		ahead:         counter("sagad_ahead_results_total", "Results of attempts that this node doesn't know of yet: it is stale, or the database lost commits."),
		strays:        counter("sagad_stray_results_total", "Results for sagas, steps or attempts that don't exist."),
		refusedFull:   counter("sagad_refused_full_total", "Events refused because a shard has too many waiting."),
		lag:           histogram("sagad_timer_lag_seconds", "How late timers fire.", prometheus.ExponentialBuckets(0.001, 4, 10)),
		leaseErrors:   counter("sagad_lease_errors_total", "Failed calls to renew or take leases."),
	}
	ended := vec("sagad_sagas_ended_total", "Sagas that reached a terminal status.", "status")
	for _, s := range []statemachine.Status{statemachine.Completed, statemachine.Compensated, statemachine.Abandoned} {
		m.ended[s] = ended.WithLabelValues(s.String())
	}
	attempts := vec("sagad_attempts_total", "Attempts that ended.", "outcome")
	for _, o := range outcomes {
		m.attempts[o] = attempts.WithLabelValues(o.String()[len("OUTCOME_"):])
	}
	results := vec("sagad_results_total", "Results answered.", "verdict")
	for v, name := range workerv1.Verdict_name {
		m.results[workerv1.Verdict(v)] = results.WithLabelValues(name[len("VERDICT_"):])
	}
	commits := vec("sagad_commits_total", "Batches sent to the store, by what is known of them.", "result")
	for r := store.Unknown; r <= store.Refused; r++ {
		m.commits[r] = commits.WithLabelValues(r.String())
	}
	gauge("sagad_shards_owned", "Shards that this node owns.", g.owned)
	gauge("sagad_mailbox_events", "Events that wait for an answer.", g.depth)
	gauge("sagad_sagas_open", "Sagas of this node that haven't ended.", g.hot)
	gauge("sagad_sagas_stuck", "Sagas of this node that wait for a person.", g.stuck)
	gauge("sagad_sagas_quarantined", "Sagas of this node that are put aside.", g.quarantined)
	gauge("sagad_oldest_unsettled_effect_seconds", "Age of the oldest effect that is neither confirmed, nor undone, nor settled by a person.", g.oldest)

	if reg == nil {
		return m, nil
	}
	for i, c := range collectors {
		if err := reg.Register(c); err != nil {
			for _, c := range collectors[:i] {
				reg.Unregister(c)
			}
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) timerLag(us int64) { m.lag.Observe(float64(us) / 1e6) }

func (m *metrics) attempt(o historyv1.Outcome) {
	if c := m.attempts[o]; c != nil {
		c.Inc()
	}
}

func (m *metrics) result(v workerv1.Verdict) {
	if c := m.results[v]; c != nil {
		c.Inc()
	}
}

func (m *metrics) commit(took time.Duration, transitions int) {
	m.commitSeconds.Observe(took.Seconds())
	m.batchSize.Observe(float64(transitions))
}
