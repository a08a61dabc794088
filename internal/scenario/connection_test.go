package scenario

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sagad/sagad/internal/faultproxy"
	"github.com/sagad/sagad/internal/natsbus"
	"github.com/sagad/sagad/internal/node"
	"github.com/sagad/sagad/internal/pgtest"
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/store"
)

// cutter cuts a connection somewhere within its next bytes, in one direction or the other, then again after a pause, until stop.
func cutter(p *faultproxy.Proxy, seed uint64, upBytesMax, downBytesMax int64, pause time.Duration) (stop func()) {
	random := rand.New(rand.NewPCG(seed, seed))
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			cuts := p.Cuts()
			d, within := faultproxy.Up, upBytesMax
			if random.IntN(2) == 0 {
				d, within = faultproxy.Down, downBytesMax
			}
			p.CutAfter(d, random.Int64N(within))
			for over := false; !over && p.Cuts() == cuts; {
				select {
				case <-ended:
					over = true
				case <-time.After(time.Millisecond):
				}
			}
			p.CutAfter(d, -1)
			select {
			case <-ended:
				return
			case <-time.After(pause):
			}
		}
	}()
	return func() {
		close(ended)
		<-done
	}
}

// TestTheLinkToNATSIsCut: the engine's connection breaks anywhere in its traffic, often when NATS has a task and the engine doesn't know. It
// sends again under the same message id, and no attempt is counted for it.
func TestTheLinkToNATSIsCut(t *testing.T) {
	t.Parallel()
	server, err := natsbus.Embedded("", "127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	p, err := faultproxy.Listen(strings.TrimPrefix(server.ClientURL(), "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	r := newRig(t, func(c *node.Config) { c.NATS = "nats://" + p.Addr() })
	r.nats = server.ClientURL() // workers have a good one
	b := newBank(map[string]int64{"A": 10_000, "B": 0})
	r.serve(b.register)
	def := transferSaga(saga.Timeout(time.Minute))
	register(r, def)
	random := rand.New(rand.NewPCG(5, 6))
	const wanted, most = 3, 100
	n, repeated := int64(0), 0.0
	for ; repeated < wanted && n < most; n++ {
		id := fmt.Sprint("t-", n)
		r.eventually("the connection", func() bool { return r.metric("sagad_bus_connected") == 1 })
		p.CutAfter(faultproxy.Down, random.Int64N(200)) // an acknowledgement has about as many bytes
		start(r, def, id, transfer{30})
		b.wait(t, id, "debit", 1) // one message after the other; what comes after goes on by itself
		repeated = r.metric("sagad_bus_messages_duplicate_total")
	}
	p.CutAfter(faultproxy.Down, -1)
	for i := range n {
		id := fmt.Sprint("t-", i)
		r.ended(id, completed)
		for _, c := range b.of(id) {
			if c.attempt != 1 {
				t.Errorf("%s: %v: a sending was counted as an attempt", id, b.story(id))
			}
		}
	}
	b.holds(t, map[string]int64{"A": 10_000 - 30*n, "B": 30 * n})
	t.Logf("%d sagas, %d cuts, %d calls for %d steps; %v sendings were repeated, NATS had had %v of them", n, p.Cuts(), len(b.of("")), 3*n,
		r.metric("sagad_bus_messages_retried_total"), repeated)
	if repeated < wanted {
		t.Errorf("only %v lost acknowledgements: the test isn't one", repeated)
	}
}

// TestTheLinkToPostgresIsCut: the connection breaks before a commit reaches the database, or before its answer comes back, while sagas start,
// results are recorded, undos are scheduled, and people decide. Nothing is lost, and nothing happens twice.
func TestTheLinkToPostgresIsCut(t *testing.T) {
	t.Parallel()
	dsn, err := url.Parse(pgtest.Start(t))
	if err != nil {
		t.Fatal(err)
	}
	p, err := faultproxy.Listen(dsn.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	dsn.Host = p.Addr()
	r := newRig(t, func(c *node.Config) { c.Store, c.Shards = dsn.String(), 4 })
	b := newBank(map[string]int64{"A": 10_000, "B": 0})
	var repaired sync.Map
	b.before = func(_ context.Context, c call) error {
		_, mended := repaired.Load(c.saga)
		switch {
		case strings.HasPrefix(c.saga, "good"):
			return nil
		case c.what == "notify":
			return saga.Reject("NOBODY_THERE", "")
		case strings.HasPrefix(c.saga, "stuck") && c.what == "undo credit" && !mended:
			return saga.CantUndo(io.ErrUnexpectedEOF) // a person is asked
		}
		return nil
	}
	r.serve(b.register)
	def := transferSaga(saga.Timeout(time.Minute))
	register(r, def)

	stop := cutter(p, 2, 6000, 600, 100*time.Millisecond)
	unknown := func() float64 { return r.metric(`sagad_commits_total{result="` + store.Unknown.String() + `"}`) }
	const wanted, most, each = 10, 30, 5
	runs := map[string]string{}
	created, round := 0, 0
	for ; unknown() < wanted && round < most; round++ {
		var ids []string
		for i := range each {
			for _, kind := range []string{"good", "bad", "stuck"} {
				id := fmt.Sprintf("%s-%d-%d", kind, round, i)
				ids = append(ids, id)
				first := start(r, def, id, transfer{30})
				again := start(r, def, id, transfer{30}) // a client that didn't hear the answer
				if runs[id] = first.RunID(); again.RunID() != runs[id] || again.Created() {
					t.Errorf("%s: the repeat got %s (created %v), the first %s", id, again.RunID(), again.Created(), first.RunID())
				}
				if first.Created() {
					created++
				}
			}
		}
		for _, id := range ids { // reads suffer from the cuts too
			r.eventually("the end of "+id, func() bool {
				res, err := r.sagas.GetSaga(context.Background(), getSaga(id))
				if err != nil {
					return false
				}
				switch res.Saga.Summary.Status {
				case completed, compensated:
					return true
				case stuck:
					repaired.Store(id, true)
					if len(res.Saga.Items) > 0 {
						_, _ = r.ops.ActOnItem(context.Background(), act(res.Saga, historyv1.OperatorAction_OPERATOR_ACTION_RETRY, "request-"+id))
					}
				}
				return false
			})
		}
	}
	stop()

	want := map[string]int64{"A": 10_000, "B": 0}
	for id, run := range runs {
		status, story := compensated, []string{"debit 1", "credit 1", "notify 1", "undo credit 1", "undo debit 1"}
		switch {
		case strings.HasPrefix(id, "good"):
			status, story = completed, story[:3]
			want["A"], want["B"] = want["A"]-30, want["B"]+30
		case strings.HasPrefix(id, "stuck"):
			story = []string{"debit 1", "credit 1", "notify 1", "undo credit 1", "undo credit 2", "undo debit 1"}
		}
		if s := r.ended(id, status); s.Summary.RunId != run {
			t.Errorf("%s has become another saga", id)
		}
		var once []string // a delivery may be repeated, an attempt isn't
		for i, c := range b.story(id) {
			if i == 0 || c != once[len(once)-1] {
				once = append(once, c)
			}
		}
		if d := cmp.Diff(story, once); d != "" {
			t.Errorf("%s: %s\n%s", id, d, r.story(id))
		}
	}
	b.holds(t, want)
	t.Logf("%d rounds of %d sagas, %d cuts, %v commits of unknown outcome; %d of %d starts were told that they were the first", round, 3*each, p.Cuts(), unknown(), created, len(runs))
	if unknown() < wanted {
		t.Errorf("%v unknown commits: the test isn't one", unknown())
	}
}
