package worker

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
)

// codePoison is of attempts that are given up since the workers that ran them died.
const codePoison = "POISON"

// returnTimeout is for how long the engine may take to take back what a stopping worker returns.
const returnTimeout = time.Second

// delivery is one delivery of a message.
type delivery struct {
	// reply is where it is acknowledged.
	reply string
	// n is 1, 2, ...: how often it was delivered so far.
	n int
	// id names the message: its place in the stream, and when it got there.
	id string
}

// deliveryOf reads an acknowledgement's subject. What can't be read is a first delivery.
func deliveryOf(reply string) delivery {
	// $JS.ACK.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<time>.<pending>, or with domain and account
	// $JS.ACK.<domain>.<account>.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<time>.<pending>.<random>
	d := delivery{reply: reply, n: 1}
	parts := strings.Split(reply, ".")
	at := 6
	if len(parts) == 9 {
		at = 4
	}
	if len(parts) < at+4 || parts[0] != "$JS" || parts[1] != "ACK" {
		return d
	}
	if n, err := strconv.Atoi(parts[at]); err == nil {
		d.n, d.id = max(1, n), parts[at+1]+"."+parts[at+3]
	}
	return d
}

// poisoned is the result of an attempt whose workers died.
func (w *Worker) poisoned(n int) *workerv1.Result {
	return &workerv1.Result{
		Worker: w.cfg.Name, Outcome: workerv1.Outcome_OUTCOME_FAILED, Code: codePoison, GiveUp: true,
		Message: fmt.Sprintf("the task was delivered %d times, and every time its worker died or fell silent before it answered; it isn't run again", n-1),
	}
}

// giveToEngine returns the tasks of a message to the engine, which sends each again in a message of its own. ok is false if it
// couldn't be asked, or wouldn't.
func (w *Worker) giveToEngine(tasks []*workerv1.Task, subject string) (ok bool) {
	ctx, cancel := context.WithTimeout(context.Background(), returnTimeout)
	defer cancel()
	results := make([]*outbound, len(tasks))
	for i, t := range tasks {
		results[i] = outboundFor(w.handedBack(), t.Token, time.Time{})
	}
	for len(results) > 0 {
		batch, rest := choose(results, true, false)
		to := subject
		if batch[0].shard >= 0 {
			to = resultSubject(batch[0])
		}
		pack := make([]*workerv1.Result, len(batch))
		for i, o := range batch {
			pack[i] = o.result
		}
		verdicts, err := w.request(ctx, to, pack)
		if err != nil || len(verdicts) != len(batch) {
			return false
		}
		for _, v := range verdicts {
			switch v {
			case workerv1.Verdict_VERDICT_ACCEPTED, workerv1.Verdict_VERDICT_DUPLICATE, workerv1.Verdict_VERDICT_STALE, workerv1.Verdict_VERDICT_UNKNOWN_SAGA:
			default:
				return false
			}
		}
		results = rest
	}
	return true
}

func (w *Worker) handedBack() *workerv1.Result {
	return &workerv1.Result{Worker: w.cfg.Name, Outcome: workerv1.Outcome_OUTCOME_HANDED_BACK}
}
