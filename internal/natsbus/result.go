package natsbus

import (
	"fmt"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/internal/wire"
)

// answeringMax bounds the result requests that wait for their answer; what comes beyond is told to come again.
const answeringMax = 16_384

// Serve answers result requests sent to a shard's subject until stop is called. handle gets packs that are well
// formed, with texts that can be stored; it must call reply once, later, from any goroutine, with one verdict per result.
// Packs that can't be decoded, and single results that are malformed, are answered VERDICT_REFUSED here. After stop has returned
// handle isn't called any more, save for a call that is under way.
func (b *Bus) Serve(shard int, handle func(pack *workerv1.ResultPack, reply func(*workerv1.ResultReply))) (stop func(), err error) {
	var stopped atomic.Bool
	sub, err := b.nc.Subscribe(wire.ResultSubject(shard), func(m *nats.Msg) {
		if !stopped.Load() {
			b.result(m, handle)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("NATS: serve shard %d: %w", shard, err)
	}
	if err := sub.SetPendingLimits(answeringMax, 64<<20); err != nil {
		return nil, fmt.Errorf("NATS: serve shard %d: %w", shard, err)
	}
	return func() {
		if !stopped.Swap(true) {
			_ = sub.Unsubscribe() // it fails only if the connection is closed
		}
	}, nil
}

func (b *Bus) result(m *nats.Msg, handle func(*workerv1.ResultPack, func(*workerv1.ResultReply))) {
	c := &b.counters
	c.requests.Add(1)
	if !wire.ReplyAllowed(m.Reply) {
		c.unanswerable.Add(1)
		return
	}
	pack := new(workerv1.ResultPack)
	if err := proto.Unmarshal(m.Data, pack); err != nil || len(pack.Results) == 0 || len(pack.Results) > wire.PackResultsMax {
		c.refused.Add(1)
		b.answer(m.Reply, &workerv1.ResultReply{Verdicts: []workerv1.Verdict{workerv1.Verdict_VERDICT_REFUSED}})
		return
	}
	n := len(pack.Results)
	c.results.Add(int64(n))
	bad := 0
	for _, r := range pack.Results {
		if !wellFormed(r) {
			bad++
		}
	}
	if bad == n {
		c.refused.Add(int64(n))
		b.answer(m.Reply, all(workerv1.Verdict_VERDICT_REFUSED, n))
		return
	}
	if b.answering.Add(1) > answeringMax {
		b.answering.Add(-1)
		c.shed.Add(1)
		b.answer(m.Reply, all(workerv1.Verdict_VERDICT_UNAVAILABLE, n))
		return
	}
	var good []int // the places of the good ones, if there are bad ones
	if bad > 0 {
		c.refused.Add(int64(bad))
		kept := make([]*workerv1.Result, 0, n-bad)
		for i, r := range pack.Results {
			if wellFormed(r) {
				good = append(good, i)
				kept = append(kept, r)
			}
		}
		pack.Results = kept
	}
	for _, r := range pack.Results {
		r.Code = wire.CleanText(r.Code, wire.ResultCodeBytesMax)
		r.Message = wire.CleanText(r.Message, wire.ResultMessageBytesMax)
		r.Detail = wire.CleanText(r.Detail, wire.ResultDetailBytesMax)
		r.Worker = wire.CleanText(r.Worker, wire.ResultWorkerBytesMax)
		if r.Outcome == workerv1.Outcome_OUTCOME_HANDED_BACK {
			// Its message is still there, and about to be acknowledged: the next sending mustn't be held back for it.
			if key, n, ok := wire.TokenAttempt(r.Token); ok {
				b.kept.forget(attempt{key, n})
			}
		}
	}
	var answered atomic.Bool
	to := m.Reply
	handle(pack, func(reply *workerv1.ResultReply) {
		if answered.Swap(true) {
			return
		}
		b.answering.Add(-1)
		if good != nil {
			merged := all(workerv1.Verdict_VERDICT_REFUSED, n)
			for j, i := range good {
				merged.Verdicts[i] = workerv1.Verdict_VERDICT_UNAVAILABLE
				if j < len(reply.Verdicts) {
					merged.Verdicts[i] = reply.Verdicts[j]
				}
			}
			reply = merged
		}
		b.answer(to, reply)
	})
}

// wellFormed says whether a result can be looked at at all.
func wellFormed(r *workerv1.Result) bool {
	_, ok := wire.TokenShard(r.Token)
	return ok && r.Outcome >= workerv1.Outcome_OUTCOME_SUCCEEDED && r.Outcome <= workerv1.Outcome_OUTCOME_HANDED_BACK && r.RetryAfterUs >= 0
}

func all(v workerv1.Verdict, n int) *workerv1.ResultReply {
	r := &workerv1.ResultReply{Verdicts: make([]workerv1.Verdict, n)}
	for i := range r.Verdicts {
		r.Verdicts[i] = v
	}
	return r
}

func (b *Bus) answer(to string, reply *workerv1.ResultReply) {
	data, err := proto.Marshal(reply)
	if err == nil {
		err = b.nc.Publish(to, data)
	}
	if err != nil && !b.closing.Load() { // the worker asks again
		b.log.Debug("a result's answer couldn't be sent", "error", err)
	}
}
