package worker

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/internal/wire"
)

// teller asks the engine what running attempts need to know: whether a claim holds, a checkpoint is kept, an attempt is still
// wanted. What is there at the same moment goes out together, each shard's in one request; a lone one isn't held back.
type teller struct {
	w    *Worker
	wake chan struct{}

	mu      sync.Mutex
	waiting []*told
}

// told is a report on its way.
type told struct {
	result  *workerv1.Result
	to      string
	verdict workerv1.Verdict
	err     error
	done    chan struct{}
}

func (t *teller) init(w *Worker) { t.w, t.wake = w, make(chan struct{}, 1) }

// tell reports r for an attempt that isn't over, again and again until there is a definite verdict. The error is ctx's cause. subject is where
// results go if the token doesn't say.
func (w *Worker) tell(ctx context.Context, r *workerv1.Result, subject string) (workerv1.Verdict, error) {
	if shard, ok := wire.TokenShard(r.Token); ok {
		subject = wire.ResultSubject(shard)
	}
	w.counters.reports.Add(1)
	for round := 0; ; round++ {
		switch v, err := w.teller.ask(ctx, r, subject); {
		case ctx.Err() != nil:
			return 0, context.Cause(ctx)
		case err != nil:
		case v != workerv1.Verdict_VERDICT_NOT_OWNER && v != workerv1.Verdict_VERDICT_UNAVAILABLE && v != workerv1.Verdict_VERDICT_UNSPECIFIED:
			return v, nil
		}
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(backOff(round, 20*time.Millisecond, 2*time.Second)):
		}
	}
}

func (t *teller) ask(ctx context.Context, r *workerv1.Result, to string) (workerv1.Verdict, error) {
	x := &told{result: r, to: to, done: make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, x)
	t.mu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default:
	}
	select {
	case <-x.done:
		return x.verdict, x.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// run sends what waits until the worker's end.
func (t *teller) run() {
	for {
		select {
		case <-t.w.alive.Done():
			return
		case <-t.wake:
		}
		t.mu.Lock()
		waiting := t.waiting
		t.waiting = nil
		t.mu.Unlock()
		for len(waiting) > 0 {
			var pack, rest []*told
			bytes := 0
			for _, x := range waiting {
				size := proto.Size(x.result) + 8
				if x.to != waiting[0].to || len(pack) >= wire.PackResultsMax || len(pack) > 0 && bytes+size > wire.ResultPackBytesMax {
					rest = append(rest, x)
					continue
				}
				pack = append(pack, x)
				bytes += size
			}
			t.w.background.Go(func() { t.send(pack) })
			waiting = rest
		}
	}
}

func (t *teller) send(pack []*told) {
	results := make([]*workerv1.Result, len(pack))
	for i, x := range pack {
		results[i] = x.result
	}
	verdicts, err := t.w.request(t.w.alive, pack[0].to, results)
	if err == nil && len(verdicts) != len(pack) {
		err = errors.New("the answer has another number of verdicts")
	}
	for i, x := range pack {
		if x.err = err; err == nil {
			x.verdict = verdicts[i]
		}
		close(x.done)
	}
}
