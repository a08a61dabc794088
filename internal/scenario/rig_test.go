package scenario

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectinprocess"

	"github.com/sagad/sagad/internal/node"
	"github.com/sagad/sagad/internal/pgtest"
	"github.com/sagad/sagad/internal/telemetry"
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/proto/gen/sagad/v1/sagadv1connect"
	"github.com/sagad/sagad/sdk/client"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// The tests wait most of the time: more of them than there are processors may run at once.
	if err := flag.Set("test.parallel", strconv.Itoa(max(6, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	os.Exit(pgtest.Main(m))
}

// patience is how long anything may take on a busy machine. Nothing waits for so long unless it fails.
const patience = 60 * time.Second

// rig is a node with its API, and workers beside it.
type rig struct {
	*testing.T
	node *node.Node
	// nats is where workers connect.
	nats    string
	ackWait time.Duration
	client  *client.Client
	sagas   sagadv1connect.SagaServiceClient
	defs    sagadv1connect.DefinitionServiceClient
	ops     sagadv1connect.OperationsServiceClient
	end     func()
}

// newRig makes a node over a new SQLite database and a NATS server of its own, unless change says otherwise.
func newRig(t *testing.T, change func(*node.Config)) *rig {
	t.Helper()
	dir := t.TempDir()
	tel, err := telemetry.New(t.Context(), telemetry.Config{Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	cfg := node.Config{
		Store: "sqlite:" + filepath.Join(dir, "store"), Shards: 8, NATSEmbedded: filepath.Join(dir, "nats"), NATSListen: "127.0.0.1:0",
		Listen: "127.0.0.1:0", Telemetry: tel,
	}
	if change != nil {
		change(&cfg)
	}
	if cfg.NATS != "" {
		cfg.NATSEmbedded, cfg.NATSListen = "", ""
	}
	n, err := node.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- n.Run(ctx) }()
	r := &rig{T: t, node: n, nats: n.NATSURL(), ackWait: cfg.AckWait}
	ended := false
	r.end = func() {
		if ended {
			return
		}
		ended = true
		stop()
		select {
		case err := <-ran:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			t.Error("the node doesn't stop")
		}
	}
	t.Cleanup(r.end)
	if r.client, err = client.New(n.URL()); err != nil {
		t.Fatal(err)
	}
	c := connect.NewClient(connectinprocess.New(n.Server().RPC()))
	r.sagas = sagadv1connect.NewSagaServiceClient(c)
	r.defs = sagadv1connect.NewDefinitionServiceClient(c)
	r.ops = sagadv1connect.NewOperationsServiceClient(c)
	return r
}

// ctx ends with the test, or when the patience does.
func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	r.Cleanup(cancel)
	return ctx
}

// serve starts a worker that the test ends.
func (r *rig) serve(register func(*worker.Worker), change ...func(*worker.Config)) *worker.Worker {
	r.Helper()
	cfg := worker.Config{URL: r.nats, AckWait: r.ackWait, Grace: time.Second}
	for _, c := range change {
		c(&cfg)
	}
	w, err := worker.New(cfg)
	if err != nil {
		r.Fatal(err)
	}
	register(w)
	if err := w.Start(r.ctx()); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = w.Stop(context.Background()) })
	return w
}

// register registers a definition.
func register[In, Out any](r *rig, def *saga.Definition[In, Out]) {
	r.Helper()
	if _, err := client.Register(r.ctx(), r.client, def); err != nil {
		r.Fatal(err)
	}
}

// start starts a saga, and asks again while a node says that it can't answer.
func start[In, Out any](r *rig, def *saga.Definition[In, Out], id string, in In) *client.Run[Out] {
	r.Helper()
	run, err := client.Start(r.ctx(), r.client, def, id, in)
	if err != nil {
		r.Fatal(err)
	}
	return run
}

// saga is a saga as the API shows it.
func (r *rig) saga(id string) *sagadv1.Saga {
	r.Helper()
	res, err := r.sagas.GetSaga(r.ctx(), &sagadv1.GetSagaRequest{Id: id})
	if err != nil {
		r.Fatal(err)
	}
	return res.Saga
}

// ended waits for a saga's end, and holds its history to what every history must be.
func (r *rig) ended(id string, want sagadv1.SagaStatus) *sagadv1.Saga {
	r.Helper()
	r.until(id, want)
	s := r.saga(id)
	terminal := 0
	for i, e := range r.history(id) {
		if e.Number != int64(i+1) {
			r.Errorf("saga %s: entry %d follows entry %d", id, e.Number, i)
		}
		for _, f := range e.Facts {
			if f.GetCompleted() != nil || f.GetCompensated() != nil || f.GetAbandoned() != nil {
				terminal++
			}
		}
	}
	if terminal != 1 {
		r.Errorf("saga %s: %d terminal facts", id, terminal)
	}
	return s
}

// until waits for a saga's status.
func (r *rig) until(id string, want sagadv1.SagaStatus) {
	r.Helper()
	ctx := r.ctx()
	var last sagadv1.SagaStatus
	for ctx.Err() == nil {
		stream, err := r.sagas.WatchSaga(ctx, &sagadv1.WatchSagaRequest{Id: id})
		if err != nil {
			break
		}
		for {
			res, err := stream.Receive()
			if err != nil {
				break
			}
			if last = res.Status; last == want {
				_ = stream.Close()
				return
			}
		}
		_ = stream.Close()
		if last != want && (last == sagadv1.SagaStatus_SAGA_STATUS_COMPLETED || last == sagadv1.SagaStatus_SAGA_STATUS_COMPENSATED) {
			break
		}
	}
	r.Fatalf("saga %s is %v, want %v\n%s", id, last, want, r.story(id))
}

// history is all of it.
func (r *rig) history(id string) []*sagadv1.HistoryEntry {
	r.Helper()
	var all []*sagadv1.HistoryEntry
	for from := int64(1); from != 0; {
		res, err := r.sagas.GetHistory(r.ctx(), &sagadv1.GetHistoryRequest{Id: id, From: from})
		if err != nil {
			r.Fatal(err)
		}
		all, from = append(all, res.Entries...), res.Next
	}
	return all
}

// story is a history in words.
func (r *rig) story(id string) string {
	res, err := r.sagas.GetHistory(context.Background(), &sagadv1.GetHistoryRequest{Id: id, PageSize: 1000})
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, e := range res.Entries {
		fmt.Fprintf(&b, "%s %s\n", e.At.AsTime().Format("05.000"), strings.Join(e.Sentences, " "))
	}
	return b.String()
}

// step is a step of a saga.
func step(s *sagadv1.Saga, name string) *sagadv1.SagaStep {
	for _, st := range s.Steps {
		if st.Name == name {
			return st
		}
	}
	return &sagadv1.SagaStep{}
}

// lates counts the results of a saga that came too late to count.
func (r *rig) lates(id string) (n int) {
	for _, e := range r.history(id) {
		for _, f := range e.Facts {
			if f.GetLateResult() != nil {
				n++
			}
		}
	}
	return n
}

// post starts a saga over HTTP as a caller without the SDK does, and returns the answer's body.
func (r *rig) post(id, definition, input string) string {
	r.Helper()
	body, err := json.Marshal(map[string]string{"id": id, "definition": definition, "input": input})
	if err != nil {
		r.Fatal(err)
	}
	req, err := http.NewRequestWithContext(r.ctx(), http.MethodPost, r.node.URL()+"/sagad.v1.SagaService/StartSaga", bytes.NewReader(body))
	if err != nil {
		r.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	res, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		r.Fatal(err)
	}
	return string(answer)
}

// metric reads one of the node's counters; labels as they are written, or none.
func (r *rig) metric(name string) float64 {
	r.Helper()
	req, err := http.NewRequestWithContext(r.ctx(), http.MethodGet, r.node.URL()+"/metrics", nil)
	if err != nil {
		r.Fatal(err)
	}
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	res, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			v, err := strconv.ParseFloat(rest, 64)
			if err != nil {
				r.Fatal(err)
			}
			return v
		}
	}
	r.Fatalf("there is no metric %s", name)
	return 0
}

// eventually looks again until ok, for what nothing signals.
func (r *rig) eventually(what string, ok func() bool) {
	r.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			r.Fatalf("%s doesn't come about", what)
		}
	}
}

// operate decides the saga's only open item.
func (r *rig) operate(id string, action historyv1.OperatorAction) {
	r.Helper()
	items := r.saga(id).Items
	if len(items) != 1 {
		r.Fatalf("saga %s has %d open items\n%s", id, len(items), r.story(id))
	}
	if _, err := r.ops.ActOnItem(r.ctx(), act(r.saga(id), action, "")); err != nil {
		r.Fatal(err)
	}
}

// raw is a saga's output, as it was written.
func raw(s *sagadv1.Saga) json.RawMessage { return json.RawMessage(s.Output) }

const (
	completed    = sagadv1.SagaStatus_SAGA_STATUS_COMPLETED
	compensated  = sagadv1.SagaStatus_SAGA_STATUS_COMPENSATED
	compensating = sagadv1.SagaStatus_SAGA_STATUS_COMPENSATING
	stuck        = sagadv1.SagaStatus_SAGA_STATUS_STUCK
)

// act is a decision on a saga's first open item.
func act(s *sagadv1.Saga, action historyv1.OperatorAction, request string) *sagadv1.ActOnItemRequest {
	return &sagadv1.ActOnItemRequest{
		SagaId: s.Summary.Id, Number: s.Items[0].Number, Version: s.Items[0].Version, Action: action, Reason: "repaired", Evidence: "T-1", RequestId: request,
	}
}
