package worker

import "sync/atomic"

type counters struct {
	messages, tasks, redelivered, joined, expired, strange, handedBack atomic.Int64
	succeeded, rejected, failed, panicked, unstorable                  atomic.Int64
	sent, resent, accepted, duplicate, stale, unknown, refused, unsent atomic.Int64
	reports, stopped, unheard, busy, poisoned, returned                atomic.Int64
}

// Stats are counts since the worker was made, and gauges where said. Meant for metrics.
type Stats struct {
	// Tasks came in Messages. Of these messages Redelivered had been delivered before. Joined tasks were running here already and shared
	// the result. Expired ones came, or got their turn, after their deadline. Strange messages weren't understood. HandedBack
	// messages were given back when the worker stopped.
	Messages, Tasks, Redelivered, Joined, Expired, Strange, HandedBack int64
	// How handlers ended: Succeeded includes "nothing to undo", Rejected includes "can't undo". Panicked are among Failed, Unstorable (their output
	// can't be stored) among Succeeded.
	Succeeded, Rejected, Failed, Panicked, Unstorable int64
	// Sent results were answered as Accepted, Duplicate, Stale, UnknownSaga or Refused. Resent counts sendings after the first.
	// Unsent ones found no answer by their deadline.
	Sent, Resent, Accepted, Duplicate, Stale, UnknownSaga, Refused, Unsent int64
	// Reports were told of running attempts: claims, checkpoints, progress and heartbeats. Stopped attempts weren't wanted any more, Unheard ones
	// were stopped since the engine couldn't be reached. Busy deliveries lost the claim to another one. Poisoned tasks were given up since their
	// workers died. Returned tasks came in packs that may have killed a worker, and went back to the engine.
	Reports, Stopped, Unheard, Busy, Poisoned, Returned int64
	// Running handlers, Waiting tasks and Held messages (gauges).
	Running, Waiting, Held int64
}

// Stats reads the counters.
func (w *Worker) Stats() Stats {
	c := &w.counters
	s := Stats{
		Messages: c.messages.Load(), Tasks: c.tasks.Load(), Redelivered: c.redelivered.Load(), Joined: c.joined.Load(), Expired: c.expired.Load(),
		Strange: c.strange.Load(), HandedBack: c.handedBack.Load(),
		Succeeded: c.succeeded.Load(), Rejected: c.rejected.Load(), Failed: c.failed.Load(), Panicked: c.panicked.Load(), Unstorable: c.unstorable.Load(),
		Sent: c.sent.Load(), Resent: c.resent.Load(), Accepted: c.accepted.Load(), Duplicate: c.duplicate.Load(), Stale: c.stale.Load(),
		UnknownSaga: c.unknown.Load(), Refused: c.refused.Load(), Unsent: c.unsent.Load(),
		Reports: c.reports.Load(), Stopped: c.stopped.Load(), Unheard: c.unheard.Load(), Busy: c.busy.Load(), Poisoned: c.poisoned.Load(), Returned: c.returned.Load(),
	}
	d := &w.desk
	d.mu.Lock()
	defer d.mu.Unlock()
	s.Running, s.Waiting, s.Held = int64(d.running), int64(d.waiting()), int64(len(d.held))
	return s
}
