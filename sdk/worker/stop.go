package worker

import (
	"context"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/internal/wire"
	"github.com/sagad/sagad/sdk/saga"
)

// listen subscribes to the stops of each activity that is served. A worker that may not gets none, and learns it from its heartbeats.
func (w *Worker) listen() ([]*nats.Subscription, error) {
	var subs []*nats.Subscription
	seen := map[string]bool{}
	for q := range w.handlers {
		if seen[q.Activity] {
			continue
		}
		seen[q.Activity] = true
		subject, err := wire.StopSubject(q.Namespace, q.Activity)
		if err != nil {
			return subs, err
		}
		sub, err := w.nc.Subscribe(subject, func(m *nats.Msg) { w.stops(q.Activity, m) })
		if err != nil {
			return subs, err
		}
		subs = append(subs, sub)
	}
	return subs, nil
}

// deafen ends the subscriptions to stops.
func (w *Worker) deafen() {
	for _, sub := range w.stopSubs {
		_ = sub.Unsubscribe() // it fails only if the connection is closed
	}
}

// stops takes a stop message.
func (w *Worker) stops(activity string, m *nats.Msg) {
	pack := new(workerv1.StopPack)
	if err := proto.Unmarshal(m.Data, pack); err != nil || len(pack.Stops) > wire.StopsMax {
		w.log.Warn("a stop message can't be read", "activity", activity)
		return
	}
	upTo := make(map[string]int32, len(pack.Stops))
	for _, s := range pack.Stops {
		upTo[s.IdempotencyKey] = max(s.Attempt, upTo[s.IdempotencyKey])
	}
	if n := w.desk.stop(activity, upTo); n > 0 {
		w.counters.stopped.Add(int64(n))
	}
}

// stop stops attempts of an activity that are here: those that run are told by their context, those that wait aren't begun.
func (d *desk) stop(activity string, upTo map[string]int32) (stopped int) {
	var ends []context.CancelCauseFunc
	d.mu.Lock()
	for id, j := range d.jobs {
		if n, named := upTo[id.key]; !named || id.n > n || j.stopped || j.h.queue.Activity != activity {
			continue
		}
		j.stopped = true
		stopped++
		if j.end != nil {
			ends = append(ends, j.end)
		}
	}
	d.mu.Unlock()
	for _, end := range ends {
		end(saga.ErrStopped)
	}
	return stopped
}

// begin notes how a job's handler is told to stop. It is false if it was stopped before.
func (d *desk) begin(j *job, end context.CancelCauseFunc) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	j.end = end
	return !j.stopped
}
