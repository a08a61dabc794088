package server

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	connectv1 "connectrpc.com/connect"
	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect/v2"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/proto/gen/sagad/v1/sagadv1connect"
)

// h2c is an HTTP client that speaks HTTP/2 without TLS.
func h2c(t *testing.T) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: protocols}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func h1(t *testing.T) *http.Client {
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func TestAllProtocolsOnOnePort(t *testing.T) {
	r := newRig(t)
	r.register()
	for name, transport := range map[string]connect.Transport{
		"connect":         connecthttp.NewTransport(h1(t), r.url),
		"connect json":    connecthttp.NewTransport(h1(t), r.url, connecthttp.WithProtoJSON()),
		"connect http2":   connecthttp.NewTransport(h2c(t), r.url),
		"connect gzip":    connecthttp.NewTransport(h1(t), r.url, connecthttp.WithSendGzip()),
		"connect get":     connecthttp.NewTransport(h1(t), r.url, connecthttp.WithHTTPGet()),
		"grpc":            connecthttp.NewTransport(h2c(t), r.url, connecthttp.WithGRPC()),
		"grpc gzip":       connecthttp.NewTransport(h2c(t), r.url, connecthttp.WithGRPC(), connecthttp.WithSendGzip()),
		"grpc-web":        connecthttp.NewTransport(h1(t), r.url, connecthttp.WithGRPCWeb()),
		"grpc-web http/2": connecthttp.NewTransport(h2c(t), r.url, connecthttp.WithGRPCWeb()),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			sagas := sagadv1connect.NewSagaServiceClient(connect.NewClient(transport))
			id := "order " + name
			if _, err := sagas.StartSaga(ctx, &sagadv1.StartSagaRequest{Id: id, Definition: "order", Input: "{}"}); err != nil {
				t.Fatal(err)
			}
			stream, err := sagas.WatchSaga(ctx, &sagadv1.WatchSagaRequest{Id: id})
			if err != nil {
				t.Fatal(err)
			}
			entries := 0
			for {
				res, err := stream.Receive()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if entries++; res.Entry.Number != int64(entries) {
					t.Fatalf("entry %d has number %d", entries, res.Entry.Number)
				}
			}
			got, err := sagas.GetSaga(ctx, &sagadv1.GetSagaRequest{Id: id})
			if err != nil {
				t.Fatal(err)
			}
			if got.Saga.LastTransition != int64(entries) || got.Saga.Output != `{"shipped":"ship"}` {
				t.Errorf("%d entries of %v", entries, got.Saga)
			}
			_, err = sagas.StartSaga(ctx, &sagadv1.StartSagaRequest{Id: id, Definition: "order", Input: `{"Note":"x"}`})
			wantError(t, err, connect.CodeAlreadyExists, codeIDTaken, "other content")
		})
	}
}

type answer struct {
	status int
	header http.Header
	body   string
}

func (r *rig) send(t *testing.T, method, path, contentType, body string, change ...func(*http.Request)) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, r.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	for _, c := range change {
		c(req)
	}
	res, err := h1(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(data)}
}

func TestPlainHTTP(t *testing.T) {
	r := newRig(t)
	r.register()
	got := r.send(t, "POST", "/sagad.v1.SagaService/StartSaga", "application/json",
		`{"id":"order-1","definition":"order","input":"{\"Note\":\"by hand\"}"}`)
	if got.status != 200 || !strings.Contains(got.body, `"created":true`) {
		t.Errorf("POST: %v", got)
	}
	if got.header.Get(HeaderRequestID) == "" {
		t.Error("no request id")
	}
	r.end("order-1")
	query := url.Values{"encoding": {"json"}, "message": {`{"id":"order-1"}`}, "connect": {"v1"}}
	got = r.send(t, "GET", "/sagad.v1.SagaService/GetSaga?"+query.Encode(), "", "")
	var answer struct {
		Saga struct {
			Input   string
			Summary struct{ Status string }
		}
	}
	if err := json.Unmarshal([]byte(got.body), &answer); err != nil || got.status != 200 {
		t.Fatalf("GET: %v %v", got, err)
	}
	if answer.Saga.Input != `{"Note":"by hand"}` || answer.Saga.Summary.Status != "SAGA_STATUS_COMPLETED" {
		t.Errorf("GET: %v", got.body)
	}
	// What changes something isn't to be had by GET: a link mustn't start sagas.
	for _, call := range []string{"SagaService/StartSaga", "SagaService/CancelSaga", "OperationsService/ActOnItem", "DefinitionService/RegisterDefinition"} {
		if got := r.send(t, "GET", "/sagad.v1."+call+"?"+query.Encode(), "", ""); got.status != http.StatusMethodNotAllowed {
			t.Errorf("GET %s: %v", call, got)
		}
	}
}

func TestMalformedRequests(t *testing.T) {
	r := newRig(t)
	r.register()
	const start = "/sagad.v1.SagaService/StartSaga"
	good, err := proto.Marshal(&sagadv1.StartSagaRequest{Id: "bad", Definition: "order"})
	if err != nil {
		t.Fatal(err)
	}
	frame := func(flags byte, size int, body []byte) string {
		b := append([]byte{flags}, binary.BigEndian.AppendUint32(nil, uint32(size))...)
		return string(append(b, body...))
	}
	bomb := func(size int) string {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		if _, err := io.Copy(w, io.LimitReader(zeros{}, int64(size))); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	gzipped := func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip") }
	for _, c := range []struct {
		name, path, contentType, body string
		change                        func(*http.Request)
		status                        int
		says                          string
	}{
		{"broken JSON", start, "application/json", `{"id":`, nil, 400, "invalid_argument"},
		{"an array", start, "application/json", `[]`, nil, 400, "invalid_argument"},
		{"unknown field", start, "application/json", `{"id":"bad","definition":"order","nope":1}`, nil, 400, "unknown field"},
		{"misspelled filter", "/sagad.v1.SagaService/ListSagas", "application/json", `{"filter":{"idd_prefix":"x"}}`, nil, 400, "INVALID_REQUEST"},
		{"unknown field of a stream", "/sagad.v1.SagaService/WatchSaga", "application/connect+json", frame(0, len(`{"idd":"x"}`), []byte(`{"idd":"x"}`)), nil, 200, "unknown field"},
		{"wrong type", start, "application/json", `{"id":7}`, nil, 400, "invalid_argument"},
		{"deep JSON", start, "application/json", strings.Repeat(`{"labels":`, 20000), nil, 400, "invalid_argument"},
		{"empty JSON body", start, "application/json", ``, nil, 400, "invalid_argument"},
		{"truncated protobuf", start, "application/proto", string(good[:len(good)-1]), nil, 400, "invalid_argument"},
		{"noise", start, "application/proto", "\xff\xff\xff\xff", nil, 400, "invalid_argument"},
		{"invalid UTF-8 in protobuf", start, "application/proto", "\x12\x04bad\xff\x1a\x05order", nil, 400, "invalid_argument"},
		{"invalid UTF-8 in JSON", start, "application/json", "{\"id\":\"bad\xff\",\"definition\":\"order\"}", nil, 400, "invalid_argument"},
		{"lone surrogate in JSON", start, "application/json", `{"id":"bad\ud800","definition":"order"}`, nil, 400, "invalid_argument"},
		{"oversize", start, "application/json", `{"id":"bad","definition":"order","input":"` + strings.Repeat("x", 1<<20) + `"}`, nil, 429, "resource_exhausted"},
		{"oversize where all is small", "/sagad.v1.SagaService/GetSaga", "application/json", `{"id":"` + strings.Repeat("x", 64<<10) + `"}`, nil, 429, "this call needs no large one"},
		{"gzip bomb", start, "application/proto", bomb(32 << 20), gzipped, 429, "resource_exhausted"},
		{"not gzip", start, "application/proto", "plain", gzipped, 400, "invalid_argument"},
		{"unknown compression", start, "application/proto", string(good), func(r *http.Request) { r.Header.Set("Content-Encoding", "br") }, 501, "unimplemented"},
		{"wrong content type", start, "text/plain", `{}`, nil, 415, ""},
		{"form", start, "application/x-www-form-urlencoded", `id=bad`, nil, 415, ""},
		{"no content type", start, "", `{}`, nil, 415, ""},
		{"PUT", start, "application/json", `{}`, func(r *http.Request) { r.Method = "PUT" }, 405, ""},
		{"unknown method", "/sagad.v1.SagaService/Nope", "application/json", `{}`, nil, 501, "unimplemented"},
		{"unknown service", "/sagad.v1.Nope/Nope", "application/json", `{}`, nil, 404, ""},
		{"stream without frames", "/sagad.v1.SagaService/WatchSaga", "application/connect+json", `{}`, nil, 200, "error"},
		{"huge frame", "/sagad.v1.SagaService/WatchSaga", "application/connect+proto", frame(0, 1<<31-1, good), nil, 200, "resource_exhausted"},
		{"short frame", "/sagad.v1.SagaService/WatchSaga", "application/connect+proto", frame(0, 1000, good), nil, 200, "invalid_argument"},
		{"unknown flags", "/sagad.v1.SagaService/WatchSaga", "application/connect+proto", frame(0x40, len(good), good), nil, 200, "error"},
		{"long timeout", start, "application/json", `{"id":"","definition":"order"}`, func(r *http.Request) { r.Header.Set("Connect-Timeout-Ms", "99999999999999") }, 400, "invalid_argument"},
	} {
		t.Run(c.name, func(t *testing.T) {
			change := c.change
			if change == nil {
				change = func(*http.Request) {}
			}
			began := time.Now()
			got := r.send(t, "POST", c.path, c.contentType, c.body, change)
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
			if c.status != 0 && got.status != c.status {
				t.Errorf("status %d, want %d: %s", got.status, c.status, got.body)
			}
			if !strings.Contains(got.body, c.says) {
				t.Errorf("body %q doesn't say %q", got.body, c.says)
			}
			if strings.Contains(got.body, "goroutine") || strings.Contains(got.body, ".go:") {
				t.Errorf("the answer shows the inside: %s", got.body)
			}
		})
	}
	list, err := r.sagas.ListSagas(t.Context(), &sagadv1.ListSagasRequest{Filter: &sagadv1.SagaFilter{IdPrefix: "bad"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Sagas) > 0 {
		t.Errorf("malformed requests started %v", list.Sagas)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestReflectionAndHealth(t *testing.T) {
	var broken error
	r := newRig(t, func(c *Config) {
		c.Checks = append(c.Checks, Check{Name: "bus", Run: func(context.Context) error { return broken }})
	})
	r.server.ready.keep = 0
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	stream := grpcreflect.NewClient(connect.NewClient(connecthttp.NewTransport(h2c(t), r.url, connecthttp.WithGRPC()))).NewStream(ctx)
	defer func() { _ = stream.Close() }()
	services, err := stream.ListServices()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []protoreflect.FullName{
		sagadv1connect.SagaServiceName, sagadv1connect.DefinitionServiceName, sagadv1connect.OperationsServiceName, grpchealth.HealthV1ServiceName,
	} {
		if !slices.Contains(services, want) {
			t.Errorf("reflection doesn't list %s but %v", want, services)
		}
		if _, err := stream.FileContainingSymbol(want); err != nil {
			t.Errorf("reflection of %s: %v", want, err)
		}
	}

	health := grpchealth.NewClient(h2c(t), r.url, connectv1.WithGRPC())
	check := func(service string) string {
		res, err := health.Check(ctx, &grpchealth.CheckRequest{Service: service})
		if err != nil {
			return connectv1.CodeOf(err).String()
		}
		return res.Status.String()
	}
	for _, service := range []string{"", sagadv1connect.SagaServiceName} {
		if got := check(service); got != "serving" {
			t.Errorf("health of %q is %s", service, got)
		}
	}
	if got := check("nope"); got != "not_found" {
		t.Errorf("health of an unknown service is %s", got)
	}
	if got := r.send(t, "GET", "/readyz", "", ""); got.status != 200 || !strings.Contains(got.body, `"name": "bus"`) {
		t.Errorf("readyz: %v", got)
	}
	broken = errors.New("NATS isn't connected")
	if got := check(""); got != "not_serving" {
		t.Errorf("health is %s without a bus", got)
	}
	if got := r.send(t, "GET", "/readyz", "", ""); got.status != 503 || !strings.Contains(got.body, "NATS isn't connected") {
		t.Errorf("readyz without a bus: %v", got)
	}
	if got := r.send(t, "GET", "/healthz", "", ""); got.status != 200 || got.body != "ok\n" {
		t.Errorf("healthz: %v", got)
	}
}

func TestBrowsersAreKeptOut(t *testing.T) {
	r := newRig(t, func(c *Config) { c.AllowedHosts = []string{"sagad.example"} })
	r.register()
	const start = "/sagad.v1.SagaService/StartSaga"
	body := `{"id":"order-1","definition":"order"}`
	header := func(k, v string) func(*http.Request) { return func(r *http.Request) { r.Header.Set(k, v) } }
	host := func(h string) func(*http.Request) { return func(r *http.Request) { r.Host = h } }
	for _, c := range []struct {
		name   string
		change func(*http.Request)
		status int
	}{
		{"another site's page", header("Sec-Fetch-Site", "cross-site"), 403},
		{"another origin", header("Origin", "https://evil.example"), 403},
		{"a sandboxed frame", header("Origin", "null"), 403},
		{"its own page", header("Sec-Fetch-Site", "same-origin"), 200},
		{"no browser", func(*http.Request) {}, 200},
		{"a name made to point here", host("evil.example:7230"), 421},
		{"a name that looks alike", host("localhost.evil.example"), 421},
		{"localhost", host("localhost:7230"), 200},
		{"IPv6 loopback", host("[::1]:7230"), 200},
		{"a name of its own", host("sagad.example:7230"), 200},
	} {
		if got := r.send(t, "POST", start, "application/json", body, c.change); got.status != c.status {
			t.Errorf("%s: status %d, want %d: %s", c.name, got.status, c.status, got.body)
		}
	}
	if got := r.send(t, "GET", "/readyz", "", "", host("evil.example")); got.status != 421 {
		t.Errorf("a GET under a foreign name: %v", got)
	}
	got := r.send(t, "GET", "/healthz", "", "")
	for k, want := range map[string]string{
		"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
		"Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin", "Cache-Control": "no-store",
	} {
		if got.header.Get(k) != want {
			t.Errorf("%s is %q, want %q", k, got.header.Get(k), want)
		}
	}
	if p := got.header.Get("Content-Security-Policy"); !strings.Contains(p, "default-src 'none'") || strings.Contains(p, "unsafe") {
		t.Errorf("content policy %q", p)
	}
}

func TestListenRefusesToBeReachable(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0", "example.com:0"} {
		ln, err := Listen(t.Context(), address, false)
		if err == nil {
			_ = ln.Close()
			t.Errorf("listens on %s", address)
			continue
		}
		if !strings.Contains(err.Error(), "no authentication") || !strings.Contains(err.Error(), "--allow-unauthenticated") {
			t.Errorf("%s: the error doesn't say what to do: %v", address, err)
		}
	}
	for _, address := range []string{"127.0.0.1:0", "localhost:0"} {
		ln, err := Listen(t.Context(), address, false)
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		if _, err := Listen(t.Context(), ln.Addr().String(), false); err == nil || !strings.Contains(err.Error(), "in use") {
			t.Errorf("a port in use: %v", err)
		}
		_ = ln.Close()
	}
	ln, err := Listen(t.Context(), "0.0.0.0:0", true)
	if err != nil {
		t.Fatal(err)
	}
	_ = ln.Close()
	if _, err := Listen(t.Context(), "7230", false); err == nil || !strings.Contains(err.Error(), "host:port") {
		t.Errorf("no port: %v", err)
	}
}

// A request whose headers or body never end doesn't hold a connection for ever; large headers are refused.
func TestSlowAndLargeRequests(t *testing.T) {
	r := newRig(t)
	if got := r.send(t, "GET", "/healthz", "", "", func(r *http.Request) { r.Header.Set("X-Large", strings.Repeat("x", 64<<10)) }); got.status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("large headers: %d", got.status)
	}
	control := &deadlines{}
	body := &pacedBody{ReadCloser: io.NopCloser(strings.NewReader("abc")), control: http.NewResponseController(control)}
	if _, err := io.ReadAll(body); err != nil {
		t.Fatal(err)
	}
	if len(control.set) != 2 || time.Until(control.set[0]) > readBodyTimeout || !control.set[1].IsZero() {
		t.Errorf("read deadlines were %v: want one within %v while the body is read, and none after its end", control.set, readBodyTimeout)
	}
}

// An answer that nobody reads ends; one that waits for news doesn't.
func TestUnreadAnswersEnd(t *testing.T) {
	control := &deadlines{ResponseWriter: httptest.NewRecorder()}
	secure(&Config{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("x"))
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
	})).ServeHTTP(control, httptest.NewRequest("GET", "/", nil))
	if n := len(control.wrote); n != 3 || time.Until(control.wrote[0]) > writeTimeout || time.Until(control.wrote[2]) <= 0 {
		t.Errorf("write deadlines are %v: want one for the write, the flush and the rest", control.wrote)
	}
	control = &deadlines{ResponseWriter: httptest.NewRecorder()}
	req := httptest.NewRequest("GET", "/", nil)
	req.ProtoMajor = 2
	secure(&Config{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("x")) })).ServeHTTP(control, req)
	if len(control.wrote) != 0 {
		t.Errorf("write deadlines on HTTP/2 are %v: they would end idle watches", control.wrote)
	}
}

type deadlines struct {
	http.ResponseWriter
	set, wrote []time.Time
}

func (d *deadlines) SetWriteDeadline(t time.Time) error {
	d.wrote = append(d.wrote, t)
	return nil
}

func (d *deadlines) FlushError() error { return nil }

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.set = append(d.set, t)
	return nil
}

func TestStoppingEndsWatchesAndWaits(t *testing.T) {
	r := newRig(t)
	r.register()
	r.start("order-1", orderInput{Hang: "reserve"})
	sagas := sagadv1connect.NewSagaServiceClient(connect.NewClient(connecthttp.NewTransport(h2c(t), r.url)))
	stream, err := sagas.WatchSaga(t.Context(), &sagadv1.WatchSagaRequest{Id: "order-1"})
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.Receive()
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() {
		res, err := sagas.WaitSaga(t.Context(), &sagadv1.WaitSagaRequest{Id: "order-1", Timeout: durationpb.New(time.Minute)})
		if err == nil && res.Terminal {
			err = errors.New("terminal")
		}
		waited <- err
	}()
	// The wait is there once two are counted.
	for len(r.server.watches) < 2 {
		select {
		case err := <-waited:
			t.Fatalf("the wait ended early: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	r.server.Stop()
	_, err = stream.Receive()
	wantError(t, err, connect.CodeUnavailable, codeStopping, fmt.Sprintf("again from %d", first.Entry.Number+1))
	if err := <-waited; err != nil {
		t.Errorf("the wait ended with %v", err)
	}
}

// Each RPC of each service is called over the network, so that a new one can't be forgotten here.
func TestEveryCall(t *testing.T) {
	r := newRig(t)
	r.register()
	r.start("order-1", orderInput{Reject: "charge", CantUndo: "reserve"})
	r.until("order-1", sagadv1.SagaStatus_SAGA_STATUS_STUCK)
	transport := connect.NewClient(connecthttp.NewTransport(h2c(t), r.url, connecthttp.WithGRPC()))
	sagas := sagadv1connect.NewSagaServiceClient(transport)
	definitions := sagadv1connect.NewDefinitionServiceClient(transport)
	operations := sagadv1connect.NewOperationsServiceClient(transport)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	calls := map[string]func() error{
		"DefinitionService/RegisterDefinition": func() error {
			_, err := definitions.RegisterDefinition(ctx, &sagadv1.RegisterDefinitionRequest{Definition: orderDefinition()})
			return err
		},
		"DefinitionService/VerifyDefinition": func() error {
			_, err := definitions.VerifyDefinition(ctx, &sagadv1.VerifyDefinitionRequest{Definition: orderDefinition()})
			return err
		},
		"DefinitionService/GetDefinition": func() error {
			_, err := definitions.GetDefinition(ctx, &sagadv1.GetDefinitionRequest{Name: "order"})
			return err
		},
		"DefinitionService/ListDefinitions": func() error {
			_, err := definitions.ListDefinitions(ctx, &sagadv1.ListDefinitionsRequest{})
			return err
		},
		"DefinitionService/GetDefinitionGraph": func() error {
			_, err := definitions.GetDefinitionGraph(ctx, &sagadv1.GetDefinitionGraphRequest{Name: "order"})
			return err
		},
		"SagaService/StartSaga": func() error {
			_, err := sagas.StartSaga(ctx, &sagadv1.StartSagaRequest{Id: "order-2", Definition: "order", Input: "{}"})
			return err
		},
		"SagaService/GetSaga": func() error {
			_, err := sagas.GetSaga(ctx, &sagadv1.GetSagaRequest{Id: "order-1"})
			return err
		},
		"SagaService/ListSagas": func() error {
			_, err := sagas.ListSagas(ctx, &sagadv1.ListSagasRequest{})
			return err
		},
		"SagaService/WatchSaga": func() error {
			s, err := sagas.WatchSaga(ctx, &sagadv1.WatchSagaRequest{Id: "order-1"})
			if err != nil {
				return err
			}
			defer func() { _ = s.Close() }()
			_, err = s.Receive()
			return err
		},
		"SagaService/WaitSaga": func() error {
			_, err := sagas.WaitSaga(ctx, &sagadv1.WaitSagaRequest{Id: "order-1", Timeout: durationpb.New(0)})
			return err
		},
		"SagaService/GetHistory": func() error {
			_, err := sagas.GetHistory(ctx, &sagadv1.GetHistoryRequest{Id: "order-1"})
			return err
		},
		"SagaService/CancelSaga": func() error {
			_, err := sagas.CancelSaga(ctx, &sagadv1.CancelSagaRequest{Id: "order-1"})
			return err
		},
		"SagaService/SignalSaga": func() error {
			_, err := sagas.SignalSaga(ctx, &sagadv1.SignalSagaRequest{Id: "order-1", Signal: "paid", Key: "1"})
			if reasonOf(err) == codeInvalidRequest {
				return nil // the definition has no such signal
			}
			return fmt.Errorf("not refused: %w", err)
		},
		"SagaService/PauseSaga": func() error {
			_, err := sagas.PauseSaga(ctx, &sagadv1.PauseSagaRequest{Id: "order-1", Reason: "wait"})
			return err
		},
		"SagaService/ResumeSaga": func() error {
			_, err := sagas.ResumeSaga(ctx, &sagadv1.ResumeSagaRequest{Id: "order-1"})
			return err
		},
		"SagaService/ExplainSaga": func() error {
			_, err := sagas.ExplainSaga(ctx, &sagadv1.ExplainSagaRequest{Id: "order-1"})
			return err
		},
		"SagaService/MigrateSaga": func() error {
			_, err := sagas.MigrateSaga(ctx, &sagadv1.MigrateSagaRequest{Id: "order-1", Version: 1, Reason: "stay"})
			return err
		},
		"DefinitionService/GetDefinitionUsage": func() error {
			_, err := definitions.GetDefinitionUsage(ctx, &sagadv1.GetDefinitionUsageRequest{Name: "order"})
			return err
		},
		"DefinitionService/DeleteDefinition": func() error {
			_, err := definitions.DeleteDefinition(ctx, &sagadv1.DeleteDefinitionRequest{Name: "order", Version: 1})
			if reasonOf(err) == codeDefinitionInUse {
				return nil
			}
			return fmt.Errorf("not refused: %w", err)
		},
		"OperationsService/ListItems": func() error {
			_, err := operations.ListItems(ctx, &sagadv1.ListItemsRequest{})
			return err
		},
		"OperationsService/GetItem": func() error {
			_, err := operations.GetItem(ctx, &sagadv1.GetItemRequest{SagaId: "order-1", Number: 1})
			return err
		},
		"OperationsService/ActOnItem": func() error {
			_, err := operations.ActOnItem(ctx, &sagadv1.ActOnItemRequest{
				SagaId: "order-1", Number: 1, Action: historyv1.OperatorAction_OPERATOR_ACTION_RETRY, Reason: "try",
			})
			return err
		},
	}
	var procedures []string
	for spec := range r.server.RPC().Specs() {
		if name, ok := strings.CutPrefix(spec.Procedure, "/sagad.v1."); ok {
			procedures = append(procedures, name)
		}
	}
	var called []string
	for name, call := range calls {
		called = append(called, name)
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	slices.Sort(procedures)
	slices.Sort(called)
	if diff := cmp.Diff(procedures, called); diff != "" {
		t.Errorf("procedures and calls differ:\n%s", diff)
	}
}

// Payloads, reasons and error texts pass through the API, and never into logs; even at debug, even when calls fail.
func TestLogsHoldNoPayload(t *testing.T) {
	const canary = "canary-4111111111111111"
	r := newRig(t)
	r.register()
	ctx := t.Context()
	post := func(service, body string) {
		r.send(t, "POST", "/sagad.v1."+service, "application/json", body)
	}
	r.start("order-1", orderInput{Reject: "charge", CantUndo: "reserve", Note: canary})
	r.until("order-1", sagadv1.SagaStatus_SAGA_STATUS_STUCK)
	r.start("order-2", orderInput{Note: canary})
	r.end("order-2")
	post("SagaService/StartSaga", `{"id":"order-1","definition":"order","input":"{\"Note\":\"`+canary+`\"}"}`)
	post("SagaService/StartSaga", `{"id":"order-9","definition":"order","input":"{\"Note\":\"`+canary+`\u0000\"}"}`)
	post("SagaService/StartSaga", `{"id":"order-9","definition":"order","input":"`+canary+`"}`)
	post("SagaService/StartSaga", `{"id":"order-9","definition":"order","input":`+canary)
	post("SagaService/StartSaga", `{"id":"order-9","definition":"order","labels":{"k":"`+canary+strings.Repeat("x", 99)+`"}}`)
	post("SagaService/CancelSaga", `{"id":"order-1","reason":"`+canary+`"}`)
	post("OperationsService/ActOnItem", `{"sagaId":"order-1","number":1,"action":"OPERATOR_ACTION_RESOLVE","reason":"`+canary+`","evidence":"`+canary+`"}`)
	if _, err := r.sagas.GetSaga(ctx, &sagadv1.GetSagaRequest{Id: "order-1"}); err != nil {
		t.Fatal(err)
	}
	logs := r.log.String()
	if !strings.Contains(logs, "StartSaga") {
		t.Fatal("the debug log lacks calls, so this test proves nothing")
	}
	if i := strings.Index(logs, canary); i >= 0 {
		t.Errorf("a payload is in the log: %s", logs[max(0, i-300):min(len(logs), i+100)])
	}
}

// What goes wrong inside stays inside: callers get an id that the log knows.
func TestInternalErrorsAreMasked(t *testing.T) {
	var logs lockedBuffer
	r := newRig(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	log := newTestLog(&logs)
	s, err := New(t.Context(), Config{Logger: log}, panicking{r.engine}, failingStore{r.store})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, ln) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	sagas := sagadv1connect.NewSagaServiceClient(connect.NewClient(connecthttp.NewTransport(h1(t), "http://"+ln.Addr().String())))
	for name, call := range map[string]func() error{
		"error": func() error { _, err := sagas.ListSagas(t.Context(), &sagadv1.ListSagasRequest{}); return err },
		"panic": func() error {
			_, err := sagas.CancelSaga(t.Context(), &sagadv1.CancelSagaRequest{Id: "x"})
			return err
		},
	} {
		err := call()
		wantError(t, err, connect.CodeInternal, codeInternal, "request id")
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the caller sees the inside: %v", name, err)
		}
		var cerr *connect.Error
		if !errors.As(err, &cerr) {
			t.Fatal(err)
		}
		id := cerr.Message()[strings.LastIndex(cerr.Message(), " ")+1:]
		if !strings.Contains(logs.String(), id) {
			t.Errorf("%s: the log doesn't know %q", name, id)
		}
	}
	if strings.Contains(logs.String(), "payload-in-panic") {
		t.Error("the log quotes what a panic said")
	}
}
