package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/sagad/sagad/internal/wire"
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// pack is a pack of results on its way. It is answered once, when all of its results are.
type pack struct {
	e        *Engine
	results  []*workerv1.Result
	tokens   []*workerv1.TaskToken
	verdicts []workerv1.Verdict
	left     atomic.Int32
	reply    func(*workerv1.ResultReply)
}

// HandleResults takes results in and calls reply once, after what they lead to is durable. A result counts by its
// token, whatever subject it came on. It doesn't block.
func (e *Engine) HandleResults(in *workerv1.ResultPack, reply func(*workerv1.ResultReply)) {
	e.fault(ResultReceived)
	n := len(in.GetResults())
	p := &pack{e: e, results: in.GetResults(), verdicts: make([]workerv1.Verdict, n), tokens: make([]*workerv1.TaskToken, n), reply: reply}
	if n == 0 {
		reply(&workerv1.ResultReply{})
		return
	}
	p.left.Store(int32(n))
	now := e.clock.now()
	var to *shard
	var events []*event
	all := make([]event, n)
	flush := func() {
		if len(events) > 0 && !to.submit(mailboxResultMax, events...) {
			for _, ev := range events {
				p.set(ev.index, workerv1.Verdict_VERDICT_UNAVAILABLE)
			}
		}
		events = nil
	}
	for i, r := range p.results {
		ev, verdict := &all[i], workerv1.Verdict_VERDICT_UNSPECIFIED
		if i >= packMax {
			verdict = workerv1.Verdict_VERDICT_UNAVAILABLE
		} else {
			verdict = p.event(ev, i, r, now)
		}
		if verdict != 0 {
			p.set(i, verdict)
			continue
		}
		id := int(p.tokens[i].GetShard())
		var s *shard
		if id < len(e.shards) {
			s = e.shards[id].Load()
		}
		if s == nil {
			p.set(i, workerv1.Verdict_VERDICT_NOT_OWNER)
			continue
		}
		if s != to {
			flush()
			to = s
		}
		events = append(events, ev)
	}
	flush()
}

// event makes an event of a result; or says at once what becomes of it.
func (p *pack) event(ev *event, i int, r *workerv1.Result, now statemachine.Micros) workerv1.Verdict {
	token, err := p.e.keys.Open(r.GetToken(), now)
	if err != nil {
		why := "its token isn't accepted"
		if errors.Is(err, wire.ErrTokenExpired) {
			why = "its token is expired"
		}
		p.e.log.Warn("a result is refused: "+why, "error", err)
		return workerv1.Verdict_VERDICT_REFUSED
	}
	p.tokens[i] = token
	run, err := uuid.FromBytes(token.GetRun())
	if err != nil || int(token.GetShard()) != store.ShardOf(token.GetNamespace(), token.GetSagaId(), len(p.e.shards)) {
		return workerv1.Verdict_VERDICT_REFUSED
	}
	call := statemachine.Call{Step: token.GetStep(), Item: token.GetItem(), Dir: historyv1.Direction(token.GetDirection())}
	*ev = event{key: sagaKey{token.GetNamespace(), token.GetSagaId()}, run: run, to: p, index: i}
	if ev.report(call, token, r) {
		return workerv1.Verdict_VERDICT_UNSPECIFIED
	}
	what := statemachine.Result{
		Call:       call,
		Generation: token.GetGeneration(), Attempt: token.GetAttempt(),
		RetryAfter: max(r.GetRetryAfterUs(), 0), GiveUp: r.GetGiveUp(),
		Worker: wire.CleanText(r.GetWorker(), workerBytesMax),
	}
	undo := token.GetDirection() == workerv1.Direction_DIRECTION_UNDO
	switch outcome := r.GetOutcome(); outcome {
	case workerv1.Outcome_OUTCOME_SUCCEEDED:
		what.Outcome, what.Output = historyv1.Outcome_OUTCOME_SUCCEEDED, r.GetOutput()
	case workerv1.Outcome_OUTCOME_REJECTED:
		what.Outcome = historyv1.Outcome_OUTCOME_REJECTED
	case workerv1.Outcome_OUTCOME_FAILED:
		what.Outcome = historyv1.Outcome_OUTCOME_FAILED
	case workerv1.Outcome_OUTCOME_NOTHING_TO_UNDO:
		what.Outcome = historyv1.Outcome_OUTCOME_NOTHING_TO_UNDO
	case workerv1.Outcome_OUTCOME_CANT_UNDO:
		what.Outcome = historyv1.Outcome_OUTCOME_REJECTED
		if !undo {
			return workerv1.Verdict_VERDICT_REFUSED
		}
	case workerv1.Outcome_OUTCOME_HAPPENED, workerv1.Outcome_OUTCOME_DID_NOT_HAPPEN, workerv1.Outcome_OUTCOME_CANT_TELL:
		what.Outcome = probeOutcomes[outcome]
		if outcome == workerv1.Outcome_OUTCOME_HAPPENED {
			what.Output = r.GetOutput()
		}
		if token.GetDirection() != workerv1.Direction_DIRECTION_PROBE {
			return workerv1.Verdict_VERDICT_REFUSED
		}
	default:
		return workerv1.Verdict_VERDICT_REFUSED
	}
	if r.GetCode() != "" || r.GetMessage() != "" || r.GetDetail() != "" {
		what.Error = &historyv1.Error{
			Code:    wire.CleanText(r.GetCode(), errorCodeBytesMax),
			Message: wire.CleanText(r.GetMessage(), errorMessageBytesMax),
			Detail:  wire.CleanText(r.GetDetail(), errorDetailBytesMax),
		}
	}
	ev.what = what
	return workerv1.Verdict_VERDICT_UNSPECIFIED
}

// answer takes in what became of a result.
func (p *pack) answer(i int, a answer) {
	if a.stray != "" {
		// It is kept first: "recorded" must be true.
		select {
		case p.e.strays <- stray{pack: p, index: i, verdict: a.reply.Verdict, why: a.stray}:
		default:
			p.set(i, workerv1.Verdict_VERDICT_UNAVAILABLE)
		}
		return
	}
	p.set(i, a.verdict())
}

// set gives a result its verdict. The last one sends the reply.
func (p *pack) set(i int, v workerv1.Verdict) {
	p.verdicts[i] = v
	p.e.metrics.result(v)
	if p.left.Add(-1) == 0 {
		p.reply(&workerv1.ResultReply{Verdicts: p.verdicts})
	}
}

// stray is a result that fits nothing and is to be kept.
type stray struct {
	pack    *pack
	index   int
	verdict workerv1.Verdict
	why     string
}

// recordStrays keeps strays until ctx ends; what isn't kept is answered so that the worker sends it again.
func (e *Engine) recordStrays(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			for {
				select {
				case x := <-e.strays:
					x.pack.set(x.index, workerv1.Verdict_VERDICT_UNAVAILABLE)
				default:
					return
				}
			}
		case x := <-e.strays:
			r, t := x.pack.results[x.index], x.pack.tokens[x.index]
			run, _ := uuid.FromBytes(t.GetRun())
			put, cancel := context.WithTimeout(ctx, 5*time.Second)
			err := e.st.KeepStray(put, store.Stray{
				At: stamp(e.clock.now()), Namespace: t.GetNamespace(), SagaID: t.GetSagaId(), Run: run, Step: t.GetStep(), Attempt: t.GetAttempt(),
				Outcome: int16(r.GetOutcome()), Worker: wire.CleanText(r.GetWorker(), workerBytesMax), Why: x.why,
			})
			cancel()
			if err != nil {
				e.log.Warn("a stray result can't be kept", "error", err)
				x.pack.set(x.index, workerv1.Verdict_VERDICT_UNAVAILABLE)
				continue
			}
			e.metrics.strays.Inc()
			x.pack.set(x.index, x.verdict)
		}
	}
}
