package node

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectinprocess"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sagad/sagad/internal/pgtest"
	"github.com/sagad/sagad/internal/telemetry"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/proto/gen/sagad/v1/sagadv1connect"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func open(t *testing.T, cfg Config) *Node {
	t.Helper()
	tel, err := telemetry.New(t.Context(), telemetry.Config{Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Telemetry = tel
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	n, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- n.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-ran:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Error("the node doesn't stop")
		}
	})
	return n
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	res, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

func sagas(n *Node) (sagadv1connect.SagaServiceClient, sagadv1connect.DefinitionServiceClient) {
	c := connect.NewClient(connectinprocess.New(n.Server().RPC()))
	return sagadv1connect.NewSagaServiceClient(c), sagadv1connect.NewDefinitionServiceClient(c)
}

// skipper needs no worker: its only step is never reached.
func skipper() *sagadv1.Definition {
	step := &sagadv1.Step{Name: "lonely", Activity: "nobody.serves", Kind: sagadv1.Kind_KIND_READ_ONLY}
	return &sagadv1.Definition{
		Name:       "skipper",
		Activities: []*sagadv1.Activity{{Name: "nobody.serves"}},
		Body: []*sagadv1.Node{
			{Kind: &sagadv1.Node_If{If: &sagadv1.If{Name: "never", Condition: "false", Then: []*sagadv1.Node{{Kind: &sagadv1.Node_Step{Step: step}}}}}},
			{Kind: &sagadv1.Node_Return{Return: &sagadv1.Return{Output: &sagadv1.Mapping{Value: "input"}}}},
		},
	}
}

func runOne(t *testing.T, n *Node, id string) {
	t.Helper()
	s, d := sagas(n)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := d.RegisterDefinition(ctx, &sagadv1.RegisterDefinitionRequest{Definition: skipper()}); err != nil {
		t.Fatal(err)
	}
	for {
		_, err := s.StartSaga(ctx, &sagadv1.StartSagaRequest{Id: id, Definition: "skipper", Input: "[1]"})
		if err == nil {
			break
		}
		// Ownership may be settling: the API says so, and that asking again is right.
		if connect.CodeOf(err) != connect.CodeUnavailable || ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	res, err := s.WaitSaga(ctx, &sagadv1.WaitSagaRequest{Id: id, Timeout: durationpb.New(10 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	if res.Saga.Summary.Status != sagadv1.SagaStatus_SAGA_STATUS_COMPLETED || res.Saga.Output != "[1]" {
		t.Errorf("saga %s ended as %v", id, res.Saga)
	}
}

func TestOneNode(t *testing.T) {
	dir := t.TempDir()
	n := open(t, Config{
		Store: "sqlite:" + filepath.Join(dir, "store"), NATSEmbedded: filepath.Join(dir, "nats"), NATSListen: "127.0.0.1:0", Version: "v0",
	})
	runOne(t, n, "order-1")
	if code, body := get(t, n.URL()+"/readyz"); code != http.StatusOK {
		t.Errorf("readyz: %d %s", code, body)
	}
	_, metrics := get(t, n.URL()+"/metrics")
	for _, want := range []string{"sagad_shards_owned 64", "sagad_bus_connected 1", "sagad_sagas_started_total 1", "rpc_server_call_duration_seconds_count{"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %q", want)
		}
	}
	if waits := n.Waits(); waits != "" {
		t.Errorf("ready, but: %s", waits)
	}
	// Without the broker the node isn't ready, but starts are accepted all the same.
	n.nats.Close()
	deadline := time.Now().Add(10 * time.Second)
	for n.bus.Healthy() && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	if waits := n.Waits(); !strings.Contains(waits, "NATS") {
		t.Errorf("without NATS it is ready, but: %q", waits)
	}
	var state struct {
		Ready  bool
		Checks []struct {
			Name string
			OK   bool
		}
	}
	for {
		code, body := get(t, n.URL()+"/readyz")
		if err := json.Unmarshal([]byte(body), &state); err != nil {
			t.Fatal(err)
		}
		if code == http.StatusServiceUnavailable || time.Now().After(deadline) {
			break
		}
		time.Sleep(10 * time.Millisecond) // the last answer is kept for a second
	}
	if state.Ready || !state.Checks[0].OK || state.Checks[1].OK {
		t.Errorf("readyz without NATS: %+v", state)
	}
	runOne(t, n, "order-2")
}

func TestTwoNodesOnOneDatabase(t *testing.T) {
	dsn := pgtest.Start(t)
	dir := t.TempDir()
	a := open(t, Config{Store: dsn, NATSEmbedded: filepath.Join(dir, "nats"), NATSListen: "127.0.0.1:0", Name: "a", Shards: 8})
	b := open(t, Config{Store: dsn, NATS: a.NATSURL(), Name: "b"})
	for _, n := range []*Node{a, b} {
		if code, body := get(t, n.URL()+"/readyz"); code != http.StatusOK {
			t.Errorf("readyz of %s: %d %s", n.Name(), code, body)
		}
	}
	// Whoever owns a saga, both answer.
	for _, id := range []string{"order-1", "order-2", "order-3", "order-4", "order-5", "order-6", "order-7", "order-8"} {
		runOne(t, b, id)
		s, _ := sagas(a)
		if _, err := s.GetSaga(t.Context(), &sagadv1.GetSagaRequest{Id: id}); err != nil {
			t.Errorf("the other node doesn't know %s: %v", id, err)
		}
	}
}

// A node whose name another has taken isn't ready, and says why.
func TestSecondNodeOfOneName(t *testing.T) {
	dsn := pgtest.Start(t)
	a := open(t, Config{Store: dsn, NATSEmbedded: filepath.Join(t.TempDir(), "nats"), NATSListen: "127.0.0.1:0", Name: "twin", Shards: 8})
	b := open(t, Config{Store: dsn, NATS: a.NATSURL(), Name: "twin"})
	deadline := time.Now().Add(20 * time.Second) // a fifth of a lease's time, and the last answer is kept for a second
	for {
		code, body := get(t, a.URL()+"/readyz")
		if code == http.StatusServiceUnavailable && strings.Contains(body, "name of its own") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("readyz of the first: %d %s", code, body)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if code, body := get(t, b.URL()+"/readyz"); code != http.StatusOK {
		t.Errorf("readyz of the second: %d %s", code, body)
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	tel, err := telemetry.New(t.Context(), telemetry.Config{Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	sqlite := "sqlite:" + filepath.Join(dir, "store")
	nats := filepath.Join(dir, "nats")
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()
	for _, c := range []struct {
		name string
		cfg  Config
		says string
	}{
		{"no database", Config{Store: "mysql://u:hunter2@h", NATSEmbedded: nats}, "postgres://"},
		{"no folder", Config{Store: "sqlite:", NATSEmbedded: nats}, "sqlite:./data"},
		{"no broker", Config{Store: sqlite}, "--nats"},
		{"two brokers' port", Config{Store: sqlite, NATSEmbedded: nats, NATSListen: busy.Addr().String()}, "--nats-listen"},
		{"port in use", Config{Store: sqlite, NATSEmbedded: nats, Listen: busy.Addr().String()}, "--listen"},
		{"reachable", Config{Store: sqlite, NATSEmbedded: nats, Listen: "0.0.0.0:0"}, "--allow-unauthenticated"},
		{"nowhere to be reached", Config{Store: "postgres://u:hunter2@127.0.0.1:1/x", NATSEmbedded: nats, Listen: "0.0.0.0:0", AllowUnauthenticated: true}, "--advertise"},
		{"advertised nonsense", Config{Store: sqlite, NATSEmbedded: nats, Advertise: "10.0.0.3:7230"}, "http://10.0.0.3:7230"},
		{"no Postgres there", Config{Store: "postgres://u:hunter2@127.0.0.1:1/x?connect_timeout=1", NATSEmbedded: nats}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.cfg.Telemetry = tel
			if c.cfg.Listen == "" {
				c.cfg.Listen = "127.0.0.1:0"
			}
			if c.cfg.NATSListen == "" {
				c.cfg.NATSListen = "127.0.0.1:0"
			}
			n, err := Open(t.Context(), c.cfg)
			if err == nil {
				n.close(t.Context())
				t.Fatal("it opened")
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q doesn't say %q", err, c.says)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("a password is shown: %v", err)
			}
		})
	}
	// What was opened before the failure was closed: the folders are free.
	tel, err = telemetry.New(t.Context(), telemetry.Config{Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	n, err := Open(t.Context(), Config{Store: sqlite, NATSEmbedded: nats, NATSListen: "127.0.0.1:0", Listen: "127.0.0.1:0", Telemetry: tel})
	if err != nil {
		t.Fatalf("after failures: %v", err)
	}
	n.close(t.Context())
}

func TestRedacted(t *testing.T) {
	for in, want := range map[string]string{
		"nats://h:4222":                      "nats://h:4222",
		"nats://u:p@h:4222,tls://t@other":    "nats://h:4222,tls://other",
		"u:p@h":                              "h",
		"nats://u:p%40x@h:1,nats://u:p@q@h2": "nats://h:1,nats://h2",
	} {
		if got := redacted(in); got != want {
			t.Errorf("redacted(%q) is %q, want %q", in, got, want)
		}
	}
}
