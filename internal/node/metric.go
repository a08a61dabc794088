package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sagad/sagad/internal/natsbus"
)

// busCollector turns the bus's counters into metrics when they are asked for.
type busCollector struct{ bus *natsbus.Bus }

type busMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(natsbus.Stats) int64
}

var busMetrics = []busMetric{
	busCounter("tasks_total", "Tasks given to the bus.", func(s natsbus.Stats) int64 { return s.Tasks }),
	busCounter("messages_total", "Messages of tasks.", func(s natsbus.Stats) int64 { return s.Messages }),
	busCounter("messages_acked_total", "Messages that the stream took.", func(s natsbus.Stats) int64 { return s.Acked }),
	busCounter("messages_duplicate_total", "Messages that the stream had before.", func(s natsbus.Stats) int64 { return s.Duplicates }),
	busCounter("messages_retried_total", "Sendings after the first.", func(s natsbus.Stats) int64 { return s.Retried }),
	busCounter("tasks_kept_total", "Tasks that were to be sent again while the stream still had them, so that they weren't.", func(s natsbus.Stats) int64 { return s.Kept }),
	busCounter("tasks_dropped_full_total", "Tasks dropped because too many wait; they are sent again later.", func(s natsbus.Stats) int64 { return s.DroppedFull }),
	busCounter("tasks_dropped_late_total", "Tasks dropped because their deadline passed.", func(s natsbus.Stats) int64 { return s.DroppedLate }),
	busCounter("tasks_dropped_bad_total", "Tasks that can't be sent at all.", func(s natsbus.Stats) int64 { return s.DroppedBad }),
	busCounter("results_total", "Results of workers.", func(s natsbus.Stats) int64 { return s.Results }),
	busCounter("result_requests_total", "Requests with results.", func(s natsbus.Stats) int64 { return s.Requests }),
	busCounter("results_refused_total", "Malformed results and requests.", func(s natsbus.Stats) int64 { return s.Refused }),
	busCounter("results_unanswerable_total", "Requests without a reply subject that is allowed.", func(s natsbus.Stats) int64 { return s.Unanswerable }),
	busCounter("results_shed_total", "Requests turned away because too many wait.", func(s natsbus.Stats) int64 { return s.Shed }),
	busCounter("disconnects_total", "Times that the connection was lost.", func(s natsbus.Stats) int64 { return s.Disconnects }),
	busCounter("errors_total", "Errors that NATS reported.", func(s natsbus.Stats) int64 { return s.AsyncErrors }),
	busCounter("recreated_total", "Streams and consumers made anew.", func(s natsbus.Stats) int64 { return s.Recreated }),
	busGauge("backlog_bytes", "Bytes that wait for the stream.", func(s natsbus.Stats) int64 { return s.Backlog }),
	busGauge("backlog_tasks", "Tasks that wait for the stream.", func(s natsbus.Stats) int64 { return s.BacklogTasks }),
	busGauge("results_unanswered", "Result requests that wait for their answer.", func(s natsbus.Stats) int64 { return s.Answering }),
	busGauge("connected", "1 if NATS is connected.", func(s natsbus.Stats) int64 { return s.Connected }),
}

func busCounter(name, help string, value func(natsbus.Stats) int64) busMetric {
	return busMetric{prometheus.NewDesc("sagad_bus_"+name, help, nil, nil), prometheus.CounterValue, value}
}

func busGauge(name, help string, value func(natsbus.Stats) int64) busMetric {
	return busMetric{prometheus.NewDesc("sagad_bus_"+name, help, nil, nil), prometheus.GaugeValue, value}
}

// Describe implements prometheus.Collector.
func (c busCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range busMetrics {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c busCollector) Collect(ch chan<- prometheus.Metric) {
	stats := c.bus.Stats()
	for _, m := range busMetrics {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, float64(m.value(stats)))
	}
}
