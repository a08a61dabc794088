package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/sdk/client"
	"github.com/sagad/sagad/sdk/outbox"
	"github.com/sagad/sagad/sdk/saga"
)

func TestCommitStartsOneAndRollbackNone(t *testing.T) {
	onEach(t, func(t *testing.T, db *database) {
		n := startNode(t)
		r := outbox.NewRelay(n.client(t, nil), db.DB, outbox.Config{})
		db.do(t, func(x tx) {
			start(t, x, "order-1", order{"tea", 9007199254740993}, outbox.WithLabel("city", "Rome"), outbox.WithVersion(1))
		})
		x := db.begin()
		start(t, x, "order-2", order{"tea", 2})
		x.rollback()
		if got := round(t, r); got != 1 {
			t.Errorf("%d rows were taken", got)
		}
		// Digits stay, beyond what a double holds.
		if diff := cmp.Diff(map[string]string{"order-1": `{"item":"tea","qty":9007199254740993}`}, n.all(t)); diff != "" {
			t.Error(diff)
		}
		res, err := n.sagas.GetSaga(t.Context(), &sagadv1.GetSagaRequest{Id: "order-1"})
		if err != nil || res.Saga.Summary.Labels["city"] != "Rome" || res.Saga.Summary.Version != 1 {
			t.Errorf("%v %v", res, err)
		}
		if left := db.rows(t, "true"); left != 0 {
			t.Errorf("%d rows are left", left)
		}
		// The same start again is the same saga.
		db.do(t, func(x tx) {
			start(t, x, "order-1", order{"tea", 9007199254740993}, outbox.WithLabel("city", "Rome"), outbox.WithVersion(1))
		})
		round(t, r)
		if got := n.ids(t); len(got) != 1 || db.rows(t, "true") != 0 {
			t.Errorf("sagas are %q, %d rows are left", got, db.rows(t, "true"))
		}
	})
}

func TestOrderIsThatOfInsertion(t *testing.T) {
	onEach(t, func(t *testing.T, db *database) {
		l := &link{}
		r := outbox.NewRelay(startNode(t).client(t, l), db.DB, outbox.Config{Batch: 7})
		var want []string
		for i := range 30 {
			id := fmt.Sprintf("order-%d", i)
			want = append(want, id)
			db.place(t, id)
		}
		for round(t, r) > 0 {
		}
		if diff := cmp.Diff(want, l.starts); diff != "" {
			t.Error(diff)
		}
	})
}

// Rows that are committed in another order than they were inserted are all delivered.
func TestLateCommitIsNotPassedOver(t *testing.T) {
	for _, name := range []string{"postgres", "pgx"} { // SQLite has one writer at a time
		db, n := databases[name](t), startNode(t)
		r := outbox.NewRelay(n.client(t, nil), db.DB, outbox.Config{})
		late := db.begin()
		start(t, late, "late", order{"tea", 1})
		db.place(t, "early")
		round(t, r)
		if diff := cmp.Diff([]string{"early"}, n.ids(t)); diff != "" {
			t.Error(diff)
		}
		if err := late.commit(); err != nil {
			t.Fatal(err)
		}
		round(t, r)
		if diff := cmp.Diff([]string{"early", "late"}, n.ids(t)); diff != "" {
			t.Error(diff)
		}
	}
}

func TestRefusedStartsAreParked(t *testing.T) {
	onEach(t, func(t *testing.T, db *database) {
		var logs bytes.Buffer
		n := startNode(t)
		c := n.client(t, nil)
		r := outbox.NewRelay(c, db.DB, outbox.Config{Logger: slog.New(slog.NewTextHandler(&logs, nil))})
		const secret = "4111111111111111"
		unknown := saga.Define[order, string]("unknown", saga.Pivot("pack", pack, saga.Value("input")), saga.Return(saga.Value("pack")))
		otherType := saga.Define[string, string]("place-order")
		db.place(t, "taken")
		round(t, r)
		db.do(t, func(x tx) {
			start(t, x, "taken", order{secret, 7})
			must(t, outbox.Start(t.Context(), x.Tx, unknown, "unknown", order{secret, 1}, outbox.WithLabel("k", "v")))
			must(t, outbox.Start(t.Context(), x.Tx, otherType, "other-type", secret))
			must(t, outbox.Start(t.Context(), x.Tx, placeOrder, "no-version", order{}, outbox.WithVersion(7)))
			start(t, x, "bad-row", order{secret, 1})
			must(t, x.exec("UPDATE sagad_outbox SET labels = '[]' WHERE saga_id = 'bad-row'"))
			start(t, x, "good", order{"tea", 1})
		})
		round(t, r)
		if diff := cmp.Diff([]string{"good", "taken"}, n.ids(t)); diff != "" {
			t.Error(diff)
		}
		got, err := r.Parked(t.Context(), 0, 100)
		if err != nil {
			t.Fatal(err)
		}
		want := []outbox.Parked{
			{SagaID: "taken", Definition: "place-order", Code: "ID_TAKEN"},
			{SagaID: "unknown", Definition: "unknown", Code: "DEFINITION_NOT_FOUND"},
			{SagaID: "other-type", Definition: "place-order", Code: "INVALID_INPUT"},
			{SagaID: "no-version", Definition: "place-order", Version: 7, Code: "DEFINITION_NOT_FOUND"},
			{SagaID: "bad-row", Definition: "place-order", Code: outbox.CodeBadRow},
		}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(outbox.Parked{}, "ID", "Message", "Attempts", "StoredAt")); diff != "" {
			t.Fatal(diff)
		}
		for _, p := range got {
			if p.Message == "" || p.Attempts != 1 || time.Since(p.StoredAt).Abs() > time.Minute {
				t.Errorf("parked: %+v", p)
			}
			if strings.Contains(p.Message, secret) {
				t.Errorf("the error shows an input: %s", p.Message)
			}
		}
		if b, err := r.Backlog(t.Context()); err != nil || b != (outbox.Backlog{Parked: 5}) {
			t.Errorf("%+v %v", b, err)
		}
		if page, err := r.Parked(t.Context(), got[1].ID, 1); err != nil || len(page) != 1 || page[0].SagaID != "other-type" {
			t.Errorf("the page is %+v, %v", page, err)
		}
		// What is parked is left alone.
		if n := round(t, r); n != 0 {
			t.Errorf("%d rows were taken", n)
		}
		if _, err := client.Register(t.Context(), c, unknown); err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{r.Retry(t.Context(), got[0].ID), r.Retry(t.Context(), got[1].ID), r.Discard(t.Context(), got[2].ID)} {
			if err != nil {
				t.Error(err)
			}
		}
		for _, err := range []error{r.Retry(t.Context(), got[1].ID), r.Discard(t.Context(), got[1].ID), r.Discard(t.Context(), got[2].ID), r.Retry(t.Context(), 999)} {
			if !errors.Is(err, outbox.ErrNotParked) {
				t.Errorf("%v, want ErrNotParked", err)
			}
		}
		round(t, r)
		if diff := cmp.Diff([]string{"good", "taken", "unknown"}, n.ids(t)); diff != "" {
			t.Error(diff)
		}
		if got, err = r.Parked(t.Context(), 0, 100); err != nil || len(got) != 3 || got[0].Code != "ID_TAKEN" {
			t.Errorf("%+v %v", got, err)
		}
		if !strings.Contains(logs.String(), "ID_TAKEN") || strings.Contains(logs.String(), secret) {
			t.Errorf("the log is %s", logs.String())
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The relay's process dies at each point: another one takes over when the lease is over.
func TestCrashes(t *testing.T) {
	onEach(t, func(t *testing.T, db *database) {
		n := startNode(t)
		var want []string
		for _, point := range []string{"claimed", "answered", "refused", "removed"} {
			for _, parallel := range []int{1, 3} {
				// One is taken by other content, so that there is something to refuse.
				x := fmt.Sprintf("%s-%d-", point, parallel)
				db.place(t, x+"a")
				cfg := outbox.Config{Timeout: 150 * time.Millisecond, Lease: time.Millisecond, Parallel: parallel, Logger: quiet} // which makes it 300 ms
				r := outbox.NewRelay(n.client(t, nil), db.DB, cfg)
				round(t, r)
				db.do(t, func(y tx) {
					start(t, y, x+"b", order{"b", 1})
					start(t, y, x+"a", order{"other", 2})
					start(t, y, x+"c", order{"c", 1})
				})
				want = append(want, x+"a", x+"b", x+"c")
				r.CrashAt(func(p string) bool { return p == point })
				if err := r.Run(t.Context()); !errors.Is(err, outbox.ErrCrash) {
					t.Fatalf("%s: Run: %v", x, err)
				}
				if point != "removed" && db.rows(t, "parked = 0") == 0 {
					t.Errorf("%s: there is nothing left to deliver", x)
				}
				heir := outbox.NewRelay(n.client(t, nil), db.DB, cfg)
				until(t, func() bool { round(t, heir); return db.rows(t, "parked = 0") == 0 })
				if parked := db.rows(t, "parked = 1"); parked != 1 {
					t.Errorf("%s: %d rows are parked", x, parked)
				}
				db.do(t, func(y tx) { must(t, y.exec("DELETE FROM sagad_outbox")) })
			}
		}
		slices.Sort(want)
		if diff := cmp.Diff(want, n.ids(t)); diff != "" {
			t.Error(diff)
		}
	})
}

func until(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it isn't done after 30 s")
		}
	}
}

// Four relays race, die anywhere and are started again, connections break on both ways, writers commit and roll back: there
// is one saga for each committed row, and no other.
func TestRacingRelays(t *testing.T) {
	onEach(t, func(t *testing.T, db *database) {
		n := startNode(t)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var calm atomic.Bool // no more faults
		var crashes, broken atomic.Int32
		var relays, writers sync.WaitGroup
		for i := range 4 {
			rnd := rand.New(rand.NewPCG(1, uint64(i)))
			var mu sync.Mutex
			chance := func(one int) bool {
				mu.Lock()
				defer mu.Unlock()
				return !calm.Load() && rnd.IntN(one) == 0
			}
			c := n.client(t, &link{breaks: func(string) (bool, bool) {
				before, after := chance(15), chance(15)
				if before || after {
					broken.Add(1)
				}
				return before, after
			}})
			relays.Go(func() {
				for ctx.Err() == nil {
					r := outbox.NewRelay(c, db.DB, outbox.Config{Batch: 5, Parallel: 1 + i%2, Poll: 20 * time.Millisecond,
						Timeout: 100 * time.Millisecond, Lease: time.Millisecond, Logger: quiet})
					r.CrashAt(func(string) bool { return chance(20) })
					if err := r.Run(ctx); errors.Is(err, outbox.ErrCrash) {
						crashes.Add(1)
					} else if err != nil {
						t.Errorf("Run: %v", err)
					}
				}
			})
		}
		var mu sync.Mutex
		var want []string
		for w := range 3 {
			rnd := rand.New(rand.NewPCG(2, uint64(w)))
			writers.Go(func() {
				// Until there were enough faults to prove something.
				for i := 0; i < 25 || i < 2000 && (crashes.Load() < 3 || broken.Load() < 3); i++ {
					// SQLite's lock isn't fair: give the relays a chance.
					until(t, func() bool { return db.rows(t, "true") < 20 })
					x := db.begin()
					var ids []string
					for j := range 1 + rnd.IntN(3) {
						id := fmt.Sprintf("order-%d-%d-%d", w, i, j)
						ids = append(ids, id)
						start(t, x, id, order{id, 1})
					}
					if rnd.IntN(4) == 0 {
						x.rollback()
						continue
					}
					if err := x.commit(); err != nil {
						t.Error(err)
					}
					mu.Lock()
					want = append(want, ids...)
					mu.Unlock()
				}
			})
		}
		writers.Wait()
		calm.Store(true)
		until(t, func() bool { return db.rows(t, "true") == 0 })
		stop()
		relays.Wait()
		slices.Sort(want)
		if diff := cmp.Diff(want, n.ids(t)); diff != "" {
			t.Error(diff)
		}
		if crashes.Load() < 3 || broken.Load() < 3 {
			t.Errorf("%d crashes and %d broken connections: the test proves nothing", crashes.Load(), broken.Load())
		}
	})
}

// While sagad is away nothing is lost or parked, and most of a batch isn't even tried.
func TestOutage(t *testing.T) {
	onEach(t, func(t *testing.T, db *database) {
		var away atomic.Bool
		away.Store(true)
		n := startNode(t)
		l := &link{breaks: func(string) (bool, bool) { return away.Load(), false }}
		r := outbox.NewRelay(n.client(t, l), db.DB, outbox.Config{Logger: quiet})
		var want []string
		for i := range 20 {
			want = append(want, fmt.Sprintf("order-%02d", i))
		}
		db.place(t, want...)
		if _, err := r.Round(t.Context()); err == nil {
			t.Error("no error while sagad is away")
		}
		if tried, waiting := db.rows(t, "attempts > 0 AND error_code = 'UNAVAILABLE'"), db.rows(t, "claim = '' AND parked = 0"); tried != 3 || len(l.starts) != 3 || waiting != 20 {
			t.Errorf("%d rows were tried with %d calls, %d wait", tried, len(l.starts), waiting)
		}
		if b, err := r.Backlog(t.Context()); err != nil || b.Waiting != 20 || b.Oldest > time.Minute {
			t.Errorf("%+v %v", b, err)
		}
		away.Store(false)
		until(t, func() bool { round(t, r); return db.rows(t, "true") == 0 })
		if diff := cmp.Diff(want, n.ids(t)); diff != "" {
			t.Error(diff)
		}
	})
}

// A start in the same process is seen at once, even if nobody would look for an hour.
func TestStartsWakeTheRelay(t *testing.T) {
	onEach(t, func(t *testing.T, db *database) {
		l := &link{sent: make(chan string, 10)}
		r := outbox.NewRelay(startNode(t).client(t, l), db.DB, outbox.Config{Poll: time.Hour})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		for _, id := range []string{"a", "b"} {
			db.place(t, id)
			select {
			case got := <-l.sent:
				if got != id {
					t.Errorf("%s was delivered, want %s", got, id)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("nothing was delivered within 10 s")
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// A relay that is told to stop leaves nothing to its lease.
func TestStopGivesRowsBack(t *testing.T) {
	onEach(t, func(t *testing.T, db *database) {
		n := startNode(t)
		l := &link{sent: make(chan string, 10), hold: make(chan struct{})}
		r := outbox.NewRelay(n.client(t, l), db.DB, outbox.Config{Lease: time.Hour})
		db.place(t, "a", "b")
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		<-l.sent
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		if free := db.rows(t, "claim = '' AND due_at = 0 AND attempts = 0"); free != 2 {
			t.Errorf("%d rows are free, want 2", free)
		}
		round(t, outbox.NewRelay(n.client(t, nil), db.DB, outbox.Config{}))
		if diff := cmp.Diff([]string{"a", "b"}, n.ids(t)); diff != "" {
			t.Error(diff)
		}
	})
}

// A row of another relay's is left alone, also by what a slow relay does after its lease.
func TestALeaseThatIsOver(t *testing.T) {
	onEach(t, func(t *testing.T, db *database) {
		n := startNode(t)
		slow := &link{sent: make(chan string, 10), hold: make(chan struct{})}
		r := outbox.NewRelay(n.client(t, slow), db.DB, outbox.Config{})
		db.place(t, "a")
		ended := make(chan error, 1)
		go func() { _, err := r.Round(t.Context()); ended <- err }()
		<-slow.sent
		other := outbox.NewRelay(n.client(t, nil), db.DB, outbox.Config{})
		if got := round(t, other); got != 0 {
			t.Errorf("%d rows were taken from another relay", got)
		}
		// Its lease ends, another relay takes the row, and dies after the answer.
		db.do(t, func(x tx) { must(t, x.exec("UPDATE sagad_outbox SET due_at = 0")) })
		other.CrashAt(func(point string) bool { return point == "answered" })
		if _, err := other.Round(t.Context()); !errors.Is(err, outbox.ErrCrash) {
			t.Fatal(err)
		}
		close(slow.hold)
		must(t, <-ended)
		if left := db.rows(t, "claim <> ''"); left != 1 {
			t.Errorf("%d rows are the other relay's, want 1: the slow one may not touch it", left)
		}
		db.do(t, func(x tx) { must(t, x.exec("UPDATE sagad_outbox SET due_at = 0")) })
		round(t, outbox.NewRelay(n.client(t, nil), db.DB, outbox.Config{}))
		if got := n.ids(t); len(got) != 1 || db.rows(t, "true") != 0 {
			t.Errorf("sagas are %q", got)
		}
	})
}

// What can't be started is refused at once, and the transaction goes on.
func TestInvalidStarts(t *testing.T) {
	onEach(t, func(t *testing.T, db *database) {
		db.do(t, func(x tx) {
			try := func(what, says string, err error) {
				t.Helper()
				if !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), says) || len(err.Error()) > 500 {
					t.Errorf("%s: %v, want one that says %q", what, err, says)
				}
			}
			ctx := t.Context()
			for _, id := range []string{"", "a\nb", "a\x00", "\xff", strings.Repeat("x", 256), strings.Repeat("x", 64<<10)} {
				try("id", "saga id", outbox.Start(ctx, x.Tx, placeOrder, id, order{}))
			}
			try("large input", "262144", outbox.Start(ctx, x.Tx, placeOrder, "a", order{Item: strings.Repeat("x", 256<<10)}))
			try("NUL", "NUL", outbox.Start(ctx, x.Tx, placeOrder, "a", order{Item: "\x00"}))
			try("channel", "unsupported type", outbox.Start(ctx, x.Tx, saga.Define[chan int, string]("x"), "a", nil))
			try("definition", "definition", outbox.Start(ctx, x.Tx, saga.Define[order, string]("No Name"), "a", order{}))
			try("version", "version -1", outbox.Start(ctx, x.Tx, placeOrder, "a", order{}, outbox.WithVersion(-1)))
			for _, label := range []string{"", "\xff", "a\x00", strings.Repeat("x", 64)} {
				try("label", "label", outbox.Start(ctx, x.Tx, placeOrder, "a", order{}, outbox.WithLabel(label, "")))
			}
			try("label's value", "label", outbox.Start(ctx, x.Tx, placeOrder, "a", order{}, outbox.WithLabel("k", strings.Repeat("x", 64))))
			var many []outbox.StartOption
			for i := range 17 {
				many = append(many, outbox.WithLabel(fmt.Sprint(i), ""))
			}
			try("labels", "17 labels", outbox.Start(ctx, x.Tx, placeOrder, "a", order{}, many...))
			start(t, x, strings.Repeat("x", 255), order{Item: strings.Repeat("x", 256<<10-20)}, many[1:]...)
		})
		n := startNode(t)
		round(t, outbox.NewRelay(n.client(t, nil), db.DB, outbox.Config{}))
		if got := n.ids(t); len(got) != 1 || db.rows(t, "true") != 0 {
			t.Errorf("%d sagas", len(got))
		}
	})
}

// Without the table the relay says what is wrong, and goes on when it is there.
func TestDatabaseFailures(t *testing.T) {
	onEach(t, func(t *testing.T, db *database) {
		db.do(t, func(x tx) { must(t, x.exec("ALTER TABLE sagad_outbox RENAME TO away")) })
		l := &link{sent: make(chan string, 10)}
		logs := &warning{seen: make(chan string, 100)}
		r := outbox.NewRelay(startNode(t).client(t, l), db.DB, outbox.Config{Logger: slog.New(slog.NewTextHandler(logs, nil))})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		if said := <-logs.seen; !strings.Contains(said, "sagad_outbox") {
			t.Errorf("it says %s", said)
		}
		db.do(t, func(x tx) { must(t, x.exec("ALTER TABLE away RENAME TO sagad_outbox")) })
		db.place(t, "a")
		if got := <-l.sent; got != "a" {
			t.Error(got)
		}
		stop()
		must(t, <-ended)
	})
}

type warning struct{ seen chan string }

func (w *warning) Write(p []byte) (int, error) {
	w.seen <- string(p)
	return len(p), nil
}
