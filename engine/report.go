package engine

import (
	"slices"

	"github.com/sagad/sagad/internal/wire"
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/statemachine"
)

// What workers say of attempts that aren't over, and what they are told of them.

// reportKinds are the outcomes that don't end an attempt.
var reportKinds = map[workerv1.Outcome]statemachine.ReportKind{
	workerv1.Outcome_OUTCOME_CLAIM:      statemachine.ReportClaim,
	workerv1.Outcome_OUTCOME_CHECKPOINT: statemachine.ReportCheckpoint,
	workerv1.Outcome_OUTCOME_PROGRESS:   statemachine.ReportProgress,
}

// probeOutcomes are the answers to probes.
var probeOutcomes = map[workerv1.Outcome]historyv1.Outcome{
	workerv1.Outcome_OUTCOME_HAPPENED:       historyv1.Outcome_OUTCOME_HAPPENED,
	workerv1.Outcome_OUTCOME_DID_NOT_HAPPEN: historyv1.Outcome_OUTCOME_DID_NOT_HAPPEN,
	workerv1.Outcome_OUTCOME_CANT_TELL:      historyv1.Outcome_OUTCOME_CANT_TELL,
}

// report makes an event's meaning of a result that doesn't end its attempt. ok is false if it does end it.
func (ev *event) report(call statemachine.Call, t *workerv1.TaskToken, r *workerv1.Result) (ok bool) {
	if r.GetOutcome() == workerv1.Outcome_OUTCOME_HANDED_BACK {
		ev.back = &attempt{call, t.GetGeneration(), t.GetAttempt()}
		return true
	}
	kind, ok := reportKinds[r.GetOutcome()]
	if ok {
		ev.what = statemachine.Report{
			Call: call, Generation: t.GetGeneration(), Attempt: t.GetAttempt(), Kind: kind, Data: r.GetOutput(),
			Worker: wire.CleanText(r.GetWorker(), workerBytesMax),
		}
	}
	return ok
}

// attempt names an attempt of a saga's.
type attempt struct {
	call                statemachine.Call
	generation, attempt int32
}

// handedBack sends an attempt again at once, which a worker got and didn't run: the bus sends it alone, since its dispatch is
// above 1. Nothing of the saga changes. The attempt must be durable, or it couldn't have come back.
func (d *door) handedBack(g *saga, a *attempt) workerv1.Verdict {
	if g.state == nil || !inFlight(g.state, a.call, a.generation, a.attempt) {
		return workerv1.Verdict_VERDICT_STALE
	}
	for _, x := range g.sent {
		if x.call == a.call && x.generation == a.generation && x.attempt == a.attempt {
			x.dispatch++
			d.publish(x)
			d.cfg.metrics.handedBack.Inc()
			return workerv1.Verdict_VERDICT_ACCEPTED
		}
	}
	return workerv1.Verdict_VERDICT_UNAVAILABLE
}

// stop is what the workers of an activity are told of one attempt.
type stop struct {
	namespace, activity string
	stop                *workerv1.Stop
}

// stop lets workers know that an attempt isn't wanted any more. They may not hear of it; the attempt is awaited all the same.
func (d *door) stop(g *saga, c statemachine.Call) {
	cs := g.state.Call(c)
	if cs == nil || cs.Phase != statemachine.InFlight {
		return
	}
	d.out.stops = append(d.out.stops, stop{g.key.namespace, g.machine.Activity(c.Step), &workerv1.Stop{
		IdempotencyKey: wire.IdempotencyKey(g.run.String(), g.state.KeyName(c), c.Item, workerv1.Direction(c.Dir), cs.Generation), Attempt: cs.Attempt,
	}})
}

// sendStops gives stops to the bus, those of one activity together.
func sendStops(bus Bus, stops []stop) {
	for len(stops) > 0 {
		first := stops[0]
		var pack []*workerv1.Stop
		var others []stop
		for _, s := range stops {
			if s.namespace == first.namespace && s.activity == first.activity {
				pack = append(pack, s.stop)
			} else {
				others = append(others, s)
			}
		}
		bus.Stop(first.namespace, first.activity, slices.Clip(pack))
		stops = others
	}
}
