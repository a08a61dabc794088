package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/metric"
)

func TestMetricsOfBothKindsShareOneRegistry(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
	tel, err := New(context.Background(), Config{Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	if tel.Exporting {
		t.Error("traces are exported though no endpoint is set")
	}
	counter, err := tel.Meter.Meter("test").Int64Counter("calls", metric.WithUnit("{call}"))
	if err != nil {
		t.Fatal(err)
	}
	counter.Add(context.Background(), 3)
	rec := httptest.NewRecorder()
	tel.MetricsHandler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{"calls_total 3", "go_goroutines "} {
		if !strings.Contains(rec.Body.String(), want) {
			t.Errorf("metrics lack %q", want)
		}
	}
	for range 2 {
		if err := tel.Shutdown(context.Background()); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	}
}

func TestSpansGoToTheEndpoint(t *testing.T) {
	got := make(chan string, 16)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- r.URL.Path + " " + string(body)
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	tel, err := New(context.Background(), Config{Log: io.Discard, Service: "sagad", Instance: "node-7"})
	if err != nil {
		t.Fatal(err)
	}
	_, span := tel.Tracer.Tracer("test").Start(context.Background(), "a-span")
	span.End()
	if err := tel.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	req := <-got
	for _, want := range []string{"/v1/traces", "a-span", "node-7"} {
		if !strings.Contains(req, want) {
			t.Errorf("the export lacks %q", want)
		}
	}
}

func TestLogger(t *testing.T) {
	var out bytes.Buffer
	log, err := NewLogger(Config{Log: &out, Level: "warn"})
	if err != nil {
		t.Fatal(err)
	}
	log.Info("quiet")
	log.Warn("loud", "saga", "order-1")
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("not a terminal, so one JSON line: %v in %q", err, out.String())
	}
	if line["msg"] != "loud" || line["saga"] != "order-1" {
		t.Errorf("line is %v", line)
	}
	for _, cfg := range []Config{{Level: "loud"}, {Format: "xml"}} {
		if _, err := NewLogger(cfg); err == nil {
			t.Errorf("NewLogger(%+v) accepted", cfg)
		}
	}
}
