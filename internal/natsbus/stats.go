package natsbus

import "sync/atomic"

type counters struct {
	tasks, messages, acked, duplicates, retried, kept atomic.Int64
	droppedFull, droppedLate, droppedBad              atomic.Int64
	results, requests, refused, unanswerable, shed    atomic.Int64
	disconnects, asyncErrors, recreated, announcement atomic.Int64
	stops, droppedStops                               atomic.Int64
}

// Stats are counts since the bus was made, and gauges where said. Meant for metrics.
type Stats struct {
	// Tasks and Messages were given to be sent; Acked messages were taken by the stream, of these Duplicates had been there
	// before. Retried counts sendings after the first. Kept tasks were to be sent again, but the stream still had them.
	Tasks, Messages, Acked, Duplicates, Retried, Kept int64
	// Tasks that were dropped: the backlog was full, their deadline passed, or they can't be sent at all.
	DroppedFull, DroppedLate, DroppedBad int64
	// Results came in Requests. Refused are malformed results or requests; Unanswerable requests had no allowed reply subject; Shed
	// ones came while too many waited.
	Results, Requests, Refused, Unanswerable, Shed int64
	// Stops were sent to workers, DroppedStops couldn't be.
	Stops, DroppedStops int64
	// Disconnects, AsyncErrors of the connection; Recreated streams and consumers; Announcements of workers.
	Disconnects, AsyncErrors, Recreated, Announcements int64
	// Backlog (a gauge) is how many bytes of messages wait for the stream to take them, BacklogTasks how many tasks.
	Backlog, BacklogTasks int64
	// Answering (a gauge) is how many result requests wait for their answer.
	Answering int64
	// Connected (a gauge) is 1 or 0.
	Connected int64
}

// Stats reads the counters.
func (b *Bus) Stats() Stats {
	c := &b.counters
	s := Stats{
		Tasks: c.tasks.Load(), Messages: c.messages.Load(), Acked: c.acked.Load(), Duplicates: c.duplicates.Load(), Retried: c.retried.Load(), Kept: c.kept.Load(),
		DroppedFull: c.droppedFull.Load(), DroppedLate: c.droppedLate.Load(), DroppedBad: c.droppedBad.Load(),
		Results: c.results.Load(), Requests: c.requests.Load(), Refused: c.refused.Load(), Unanswerable: c.unanswerable.Load(), Shed: c.shed.Load(),
		Disconnects: c.disconnects.Load(), AsyncErrors: c.asyncErrors.Load(), Recreated: c.recreated.Load(), Announcements: c.announcement.Load(),
		Answering: b.answering.Load(), Stops: c.stops.Load(), DroppedStops: c.droppedStops.Load(),
	}
	s.Backlog, s.BacklogTasks = b.outbox.backlog()
	if b.nc.IsConnected() {
		s.Connected = 1
	}
	return s
}
