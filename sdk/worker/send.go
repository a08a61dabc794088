package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/internal/wire"
)

// outbound is a result on its way to the engine.
type outbound struct {
	result   *workerv1.Result
	deadline time.Time
	shard    int // -1 if the token doesn't say
	tries    int
}

// outboundFor gives a result the token of the task that it answers, whose deadline is given. nil stays nil.
func outboundFor(r *workerv1.Result, token []byte, deadline time.Time) *outbound {
	if r == nil {
		return nil
	}
	if r.Token == nil {
		r.Token = token
	} else { // another delivery of the attempt
		r = proto.Clone(r).(*workerv1.Result)
		r.Token = token
	}
	o := &outbound{result: r, deadline: deadline, shard: -1}
	if shard, ok := wire.TokenShard(token); ok {
		o.shard = shard
	}
	return o
}

// send reports results until each has a definite answer, or its deadline has passed and it was tried at least once. It
// sends all to the node that sent the tasks, and only what that doesn't own to its own shard. It is false if the worker's end
// came first.
func (w *Worker) send(results []*outbound, subject string) bool {
	w.counters.sent.Add(int64(len(results)))
	apart := false // by shard
	one := false   // one by one
	for round := 0; len(results) > 0; {
		batch, rest := choose(results, apart, one)
		to := subject
		if batch[0].shard >= 0 {
			to = resultSubject(batch[0])
		}
		verdicts, err := w.report(to, batch)
		again := batch[:0]
		wait := err != nil
		switch {
		case err != nil:
			again = batch
		case len(batch) > 1 && len(verdicts) == 1 && verdicts[0] == workerv1.Verdict_VERDICT_REFUSED: // the pack as a whole can't be read: find out which one it is
			again, one = batch, true
		default:
			for i, o := range batch {
				v := workerv1.Verdict_VERDICT_UNAVAILABLE
				if i < len(verdicts) {
					v = verdicts[i]
				}
				switch {
				case w.settled(v):
				case v == workerv1.Verdict_VERDICT_NOT_OWNER:
					again = append(again, o)
					wait = wait || apart // its own shard's owner says so too: ownership is changing
				default:
					again, wait = append(again, o), true
				}
			}
			apart = true
		}
		results = append(rest, w.stillWanted(again)...)
		if len(results) == 0 {
			return true
		}
		w.counters.resent.Add(int64(len(again)))
		if w.nc.IsClosed() {
			return false
		}
		if wait {
			select {
			case <-w.alive.Done():
				return false
			case <-time.After(backOff(round, 20*time.Millisecond, 2*time.Second)):
			}
			round++
		}
	}
	return true
}

// choose splits off what goes into the next request.
func choose(results []*outbound, apart, one bool) (batch, rest []*outbound) {
	bytes := 0
	for i, o := range results {
		size := proto.Size(o.result) + 8
		switch {
		case len(batch) > 0 && (one || len(batch) >= wire.PackResultsMax || bytes+size > wire.ResultPackBytesMax):
			return batch, append(rest, results[i:]...)
		case len(batch) > 0 && apart && o.shard != batch[0].shard:
			rest = append(rest, o)
		default:
			batch = append(batch, o)
			bytes += size
		}
	}
	return batch, rest
}

func resultSubject(o *outbound) string { return wire.ResultSubject(o.shard) }

// report makes one request of results that end their attempts.
func (w *Worker) report(to string, batch []*outbound) ([]workerv1.Verdict, error) {
	results := make([]*workerv1.Result, len(batch))
	for i, o := range batch {
		o.tries++
		results[i] = o.result
	}
	return w.request(w.alive, to, results)
}

// request makes one request.
func (w *Worker) request(ctx context.Context, to string, results []*workerv1.Result) ([]workerv1.Verdict, error) {
	if to == "" {
		return nil, errors.New("neither the token nor the message says where to send results")
	}
	data, err := proto.Marshal(&workerv1.ResultPack{Results: results})
	if err != nil {
		return nil, fmt.Errorf("encode results: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	m, err := w.nc.RequestMsgWithContext(ctx, &nats.Msg{Subject: to, Data: data})
	if err != nil {
		return nil, err
	}
	reply := new(workerv1.ResultReply)
	if err := proto.Unmarshal(m.Data, reply); err != nil {
		return nil, fmt.Errorf("the answer can't be read: %w", err)
	}
	return reply.Verdicts, nil
}

// settled says whether a verdict is the last word.
func (w *Worker) settled(v workerv1.Verdict) bool {
	c := &w.counters
	switch v {
	case workerv1.Verdict_VERDICT_ACCEPTED:
		c.accepted.Add(1)
	case workerv1.Verdict_VERDICT_DUPLICATE:
		c.duplicate.Add(1)
	case workerv1.Verdict_VERDICT_STALE, workerv1.Verdict_VERDICT_STOP, workerv1.Verdict_VERDICT_BUSY: // the latter two aren't for results
		c.stale.Add(1)
	case workerv1.Verdict_VERDICT_UNKNOWN_SAGA:
		c.unknown.Add(1)
		w.log.Warn("the engine knows no such saga")
	case workerv1.Verdict_VERDICT_REFUSED:
		c.refused.Add(1)
		w.log.Error("the engine refused a result: its token isn't the engine's, or it is malformed")
	default:
		return false
	}
	return true
}

// stillWanted lets go what is past its deadline: the engine holds it for unknown by now.
func (w *Worker) stillWanted(results []*outbound) []*outbound {
	now := time.Now()
	kept := results[:0]
	for _, o := range results {
		if o.tries > 0 && now.After(o.deadline) {
			w.counters.unsent.Add(1)
			w.log.Warn("a result found no answer by its deadline", "outcome", o.result.Outcome.String())
			continue
		}
		kept = append(kept, o)
	}
	return kept
}

// handBack gives a message to another worker, after a delay.
func (w *Worker) handBack(reply string, delay time.Duration) {
	if !strings.HasPrefix(reply, "$JS.ACK.") { // not from the stream
		return
	}
	body := "-NAK"
	if delay > 0 {
		body = fmt.Sprintf(`-NAK {"delay":%d}`, delay)
	}
	_ = w.nc.Publish(reply, []byte(body))
}
