package acceptance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sagad/sagad/internal/pgtest"
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

var binaries Binaries

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "sagad-acceptance-")
	code := 1
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		if binaries, err = Build(ctx, dir); err == nil {
			code = pgtest.Main(m)
		}
		cancel()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// plan is one run's size.
type plan struct {
	orders, stock string // paths
	n             int
	// kills of the engine, and as many of a worker.
	kills int
	seed  uint64
	// completed is the smallest share of completed orders that is believable.
	completed float64
}

func planOf(t *testing.T) plan {
	t.Helper()
	p := plan{kills: 2, seed: 1, n: 60, completed: 0.5}
	number := func(name string, to *int) {
		if text := os.Getenv(name); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil || n < 0 {
				t.Fatalf("%s=%q is no number", name, text)
			}
			*to = n
		}
	}
	number("SAGAD_KILLS", &p.kills)
	number("SAGAD_COUNT", &p.n)
	seed := int(p.seed)
	number("SAGAD_SEED", &seed)
	p.seed = uint64(seed)
	p.orders, p.stock = os.Getenv("SAGAD_ORDERS"), os.Getenv("SAGAD_STOCK")
	if (p.orders == "") != (p.stock == "") {
		t.Fatal("SAGAD_ORDERS and SAGAD_STOCK go together")
	}
	if p.orders != "" {
		// Real orders may ask for far more than the stock has.
		p.completed, p.n = 0.05, 0
		data, err := os.ReadFile(p.orders)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			if strings.TrimSpace(line) != "" {
				p.n++
			}
		}
		return p
	}
	var err error
	if p.orders, p.stock, err = Orders(t.TempDir(), p.n, p.seed); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestOrdersOutliveCrashes(t *testing.T) {
	stores := map[string]func(t *testing.T, dir string) string{
		"sqlite":   func(t *testing.T, dir string) string { return "sqlite:" + filepath.Join(dir, "store") },
		"postgres": func(t *testing.T, _ string) string { return pgtest.Start(t) },
	}
	for _, name := range []string{"sqlite", "postgres"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			outliveCrashes(t, planOf(t), dir, stores[name](t, dir))
		})
	}
}

// newRig makes a rig that is ended with the test, and tells its processes' last words if the test fails.
func newRig(t *testing.T, dir, store string) *Rig {
	t.Helper()
	r, err := NewRig(binaries, dir, store)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(r.Tails())
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := r.StartEngine(); err != nil {
		t.Fatal(err)
	}
	return r
}

func outliveCrashes(t *testing.T, p plan, dir, store string) {
	began := time.Now()
	r := newRig(t, dir, store)
	files := []string{"-orders", p.orders, "-stock", p.stock, "-step-timeout", "2s", "-retry-initial", "20ms"}
	worker := append([]string{
		"-error-rate", "0.10", "-timeout-rate", "0.05", "-lose-reply-rate", "0.05", "-reject-rate", "0.02", "-seed", fmt.Sprint(p.seed),
		"-concurrency", "32",
	}, files...)
	for range 2 {
		if err := r.StartWorker(worker...); err != nil {
			t.Fatal(err)
		}
	}
	limit := 2*time.Minute + time.Duration(p.n)*500*time.Millisecond + time.Duration(p.kills)*time.Minute
	client, err := r.StartOrders(append([]string{"-concurrency", "16", "-wait", limit.String()}, files...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(client.Tail())
		}
		client.Kill()
	})

	// Each kill comes when a certain number of orders has ended, plus a moment: so all happen while orders run.
	rnd := rand.New(rand.NewPCG(p.seed, 2))
	type kill struct {
		after  int
		moment time.Duration
		engine bool
	}
	kills := make([]kill, 2*p.kills)
	for i := range kills {
		kills[i] = kill{
			after:  rnd.IntN(p.n * 8 / 10),
			moment: time.Duration(rnd.IntN(300)) * time.Millisecond,
			engine: i%2 == 0,
		}
	}
	slices.SortFunc(kills, func(a, b kill) int { return a.after - b.after })
	for i, k := range kills {
		if err := client.Await(fmt.Sprintf("%d orders have ended", k.after), limit, func(lines []string) bool { return ended(lines) >= k.after }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(k.moment) // by the seed: another moment of the orders' lives
		n := ended(strings.Split(client.Output(), "\n"))
		t.Logf("kill %d (engine: %v) at %v, %d of %d orders have ended", i+1, k.engine, time.Since(began).Round(time.Millisecond), n, p.n)
		if n == p.n {
			t.Errorf("kill %d comes when all orders have ended: it shows nothing", i+1)
		}
		if k.engine {
			r.KillEngine()
			if err := r.StartEngine(); err != nil {
				t.Fatalf("kill %d: %v", i+1, err)
			}
		} else {
			r.KillWorker(rnd.IntN(len(r.workers)))
			if err := r.StartWorker(worker...); err != nil {
				t.Fatalf("kill %d: %v", i+1, err)
			}
		}
	}
	t.Logf("%d kills done after %v", len(kills), time.Since(began).Round(time.Millisecond))
	if err := client.Wait(limit); err != nil {
		t.Fatal(err)
	}
	if err := r.StopWorkers(); err != nil {
		t.Error(err)
	}
	out, err := r.Run("check", files...)
	if err != nil {
		t.Error(err)
	}
	t.Logf("after %v:\n%s", time.Since(began).Round(time.Millisecond), out)

	counts := audit(t, r, p.n)
	if completed := counts[sagadv1.SagaStatus_SAGA_STATUS_COMPLETED]; float64(completed) < p.completed*float64(p.n) {
		t.Errorf("%d of %d orders completed, want at least %.0f %%", completed, p.n, 100*p.completed)
	}
}

// ended counts the orders whose end the client has printed.
func ended(lines []string) int {
	n := 0
	for _, l := range lines {
		if strings.HasPrefix(l, "order ") {
			n++
		}
	}
	return n
}

// audit asks the engine itself: every saga terminal, or stuck with an operations item; histories without a gap; no effect
// that came to light too late.
func audit(t *testing.T, r *Rig, want int) map[sagadv1.SagaStatus]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	sagas, operations := r.Sagas, r.Operations
	counts := map[sagadv1.SagaStatus]int{}
	seen := map[string]bool{}
	for token := ""; ; {
		page, err := sagas.ListSagas(ctx, &sagadv1.ListSagasRequest{PageSize: 500, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range page.Sagas {
			if seen[s.Id] {
				t.Errorf("saga %s is listed twice", s.Id)
			}
			seen[s.Id] = true
			counts[s.Status]++
			auditSaga(ctx, t, r, s)
		}
		if token = page.NextPageToken; token == "" {
			break
		}
	}
	if len(seen) != want {
		t.Errorf("%d sagas are listed, want %d", len(seen), want)
	}
	kinds := map[historyv1.ItemKind]int{}
	for token := ""; ; {
		page, err := operations.ListItems(ctx, &sagadv1.ListItemsRequest{PageSize: 500, PageToken: token, IncludeClosed: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range page.Items {
			kinds[it.Kind]++
			t.Logf("operations item %d of %s: %v %v %s %s: %s", it.Number, it.SagaId, it.Kind, it.Status, it.Step, it.Direction, it.Error.GetMessage())
		}
		if token = page.NextPageToken; token == "" {
			break
		}
	}
	// The services refuse what comes too late, so nothing may come to light afterwards; and one attempt has one result.
	for _, k := range []historyv1.ItemKind{
		historyv1.ItemKind_ITEM_KIND_LATE_EFFECT, historyv1.ItemKind_ITEM_KIND_QUARANTINED, historyv1.ItemKind_ITEM_KIND_EXPRESSION,
		historyv1.ItemKind_ITEM_KIND_CONFLICTING_RESULTS,
	} {
		if kinds[k] > 0 {
			t.Errorf("%d operations items %v, want none", kinds[k], k)
		}
	}
	return counts
}

func auditSaga(ctx context.Context, t *testing.T, r *Rig, s *sagadv1.SagaSummary) {
	t.Helper()
	sagas := r.Sagas
	got, err := sagas.GetSaga(ctx, &sagadv1.GetSagaRequest{Id: s.Id})
	if err != nil {
		t.Errorf("saga %s: %v", s.Id, err)
		return
	}
	switch s.Status {
	case sagadv1.SagaStatus_SAGA_STATUS_COMPLETED, sagadv1.SagaStatus_SAGA_STATUS_COMPENSATED:
	case sagadv1.SagaStatus_SAGA_STATUS_STUCK:
		if !slices.ContainsFunc(got.Saga.Items, func(it *sagadv1.OperationsItem) bool {
			return it.Blocking && it.Status == historyv1.ItemStatus_ITEM_STATUS_OPEN
		}) {
			t.Errorf("saga %s is stuck, but no open operations item blocks it", s.Id)
		}
	default:
		t.Errorf("saga %s is %v, want it ended or stuck", s.Id, s.Status)
	}
	next, terminal := int64(1), 0
	for from := int64(1); from != 0; {
		page, err := sagas.GetHistory(ctx, &sagadv1.GetHistoryRequest{Id: s.Id, From: from, PageSize: 500})
		if err != nil {
			t.Errorf("saga %s: history: %v", s.Id, err)
			return
		}
		for _, e := range page.Entries {
			if e.Number != next {
				t.Errorf("saga %s: transition %d follows %d", s.Id, e.Number, next-1)
				return
			}
			next++
			for _, f := range e.Facts {
				switch f.Kind.(type) {
				case *historyv1.Fact_Completed, *historyv1.Fact_Compensated, *historyv1.Fact_Abandoned:
					terminal++
				}
			}
		}
		from = page.Next
	}
	if next-1 != got.Saga.LastTransition {
		t.Errorf("saga %s: the history has %d transitions, the saga says %d", s.Id, next-1, got.Saga.LastTransition)
	}
	want := 1
	if s.Status == sagadv1.SagaStatus_SAGA_STATUS_STUCK {
		want = 0
	}
	if terminal != want {
		t.Errorf("saga %s is %v with %d terminal facts, want %d", s.Id, s.Status, terminal, want)
	}
}

// A compensation that can't work makes its saga stuck: never silent, never over. A person retries it once it is repaired,
// or undoes it by hand and says so.
func TestStuckOrdersAreSettledByPeople(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, dir, "sqlite:"+filepath.Join(dir, "store"))
	orders, stock := filepath.Join(dir, "orders.jsonl"), filepath.Join(dir, "stock.jsonl")
	write(t, stock, `{"product_id": 1, "product": "Tee", "unit_price_cents": 500, "units_in_stock": 10}`)
	write(t, orders, `{"order_id": 1, "customer_id": "A", "card": "card-declined", "freight_cents": 500, "lines": [{"product_id": 1, "unit_price_cents": 500, "quantity": 3}]}
{"order_id": 2, "customer_id": "B", "card": "card-declined", "freight_cents": 500, "lines": [{"product_id": 1, "unit_price_cents": 500, "quantity": 4}]}`)
	files := []string{"-orders", orders, "-stock", stock, "-id-prefix", "s-", "-step-timeout", "5s", "-retry-initial", "10ms"}
	if err := r.StartWorker(append([]string{"-break-compensation", "reserve"}, files...)...); err != nil {
		t.Fatal(err)
	}
	out, err := r.Run("client", append([]string{"-wait", "60s"}, files...)...)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "order s-1") || strings.Count(out, "stuck") < 2 {
		t.Fatalf("the client says\n%swant both orders stuck", out)
	}
	// What they hold is accounted for, not lost.
	if out, err = r.Run("check", files...); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "0 completed, 0 compensated, 2 stuck") || !strings.Contains(out, "7 still held") {
		t.Errorf("the check says\n%s", out)
	}

	items := listItems(t, r)
	if len(items) != 2 {
		t.Fatalf("%d operations items, want 2: %v", len(items), items)
	}
	for _, it := range items {
		if it.Kind != historyv1.ItemKind_ITEM_KIND_COMPENSATION_EXHAUSTED || it.Step != "reserve" || !it.Blocking {
			t.Errorf("item %v, want reserve's exhausted compensation, blocking", it)
		}
	}
	if out, err = r.Sagad("ops", "show", "s-1", "1"); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "undo reserve") || !strings.Contains(out, "CARD_DECLINED") {
		t.Errorf("ops show doesn't tell what broke and why:\n%s", out)
	}
	// Nobody repaired anything: the retry fails, and the saga is stuck again.
	if _, err = r.Sagad("ops", "retry", "s-1", "1", "--reason", "hoping"); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, r, "s-1", func(s *sagadv1.Saga) bool {
		return s.Summary.Status == sagadv1.SagaStatus_SAGA_STATUS_STUCK && len(s.Items) == 1 && s.Items[0].Status == historyv1.ItemStatus_ITEM_STATUS_OPEN
	})

	// The repair: a worker whose compensation works.
	if err := r.StopWorkers(); err != nil {
		t.Fatal(err)
	}
	if err := r.StartWorker(files...); err != nil {
		t.Fatal(err)
	}
	if _, err = r.Sagad("ops", "retry", "s-1", "1", "--reason", "the stock service is repaired"); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, r, "s-1", func(s *sagadv1.Saga) bool { return s.Summary.Status == sagadv1.SagaStatus_SAGA_STATUS_COMPENSATED })

	// The other is undone by hand. Without evidence that is refused.
	if _, err = r.Run("release", append([]string{"-order", "s-2"}, files...)...); err != nil {
		t.Fatal(err)
	}
	if _, err = r.Sagad("ops", "resolve", "s-2", "1", "--reason", "units put back by hand"); err == nil {
		t.Error("resolve without evidence was accepted")
	}
	if _, err = r.Sagad("ops", "resolve", "s-2", "1", "--reason", "units put back by hand", "--evidence", "stock ledger, 7 March"); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, r, "s-2", func(s *sagadv1.Saga) bool {
		return s.Summary.Status == sagadv1.SagaStatus_SAGA_STATUS_COMPENSATED && s.Summary.SettledByHand == 1
	})
	if items := listItems(t, r); len(items) != 0 {
		t.Errorf("operations items are left: %v", items)
	}
	if out, err = r.Run("check", files...); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "0 completed, 2 compensated, 0 stuck, 1 settled by hand") || !strings.Contains(out, "0 still held") {
		t.Errorf("the check says\n%s", out)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func listItems(t *testing.T, r *Rig) []*sagadv1.OperationsItem {
	t.Helper()
	out, err := r.Sagad("ops", "list", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var res sagadv1.ListItemsResponse
	if err := protojson.Unmarshal([]byte(out), &res); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	return res.Items
}

// awaitStatus follows a saga until it is as wanted.
func awaitStatus(t *testing.T, r *Rig, id string, done func(*sagadv1.Saga) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	sagas := r.Sagas
	var last *sagadv1.Saga
	watch, err := sagas.WatchSaga(ctx, &sagadv1.WatchSagaRequest{Id: id})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = watch.Close() }()
	for {
		// Each transition is a reason to look again.
		_, more := watch.Receive()
		got, err := sagas.GetSaga(ctx, &sagadv1.GetSagaRequest{Id: id})
		if err != nil {
			t.Fatalf("saga %s: %v; last seen: %v", id, err, last)
		}
		if last = got.Saga; done(last) {
			return
		}
		if more != nil {
			t.Fatalf("saga %s: no more transitions (%v); last seen: %v", id, more, last)
		}
	}
}
