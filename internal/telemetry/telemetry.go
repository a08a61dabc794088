// Package telemetry wires logs, metrics and traces: slog, one Prometheus registry, and OpenTelemetry with an OTLP
// exporter when one is configured.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Config says what to set up. The zero value logs at info to stderr.
type Config struct {
	// Log is where logs go; nil means stderr.
	Log io.Writer
	// Level is debug, info, warn or error; empty means info.
	Level string
	// Format is text, json or auto: text on a terminal, JSON otherwise. Empty means auto.
	Format string
	// Service and Version name this process in traces.
	Service, Version string
	// Instance tells the processes of one service apart.
	Instance string
}

// Telemetry is what a process reports by.
type Telemetry struct {
	Logger *slog.Logger
	// Registry holds all metrics, those of RPCs too.
	Registry *prometheus.Registry
	Tracer   trace.TracerProvider
	Meter    metric.MeterProvider
	// Propagator reads and writes W3C trace context.
	Propagator propagation.TextMapPropagator
	// Exporting says that traces leave the process.
	Exporting bool

	stop []func(context.Context) error
}

// New sets up telemetry. Traces are exported over OTLP/HTTP if OTEL_EXPORTER_OTLP_ENDPOINT or
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set, and not made otherwise.
func New(ctx context.Context, cfg Config) (*Telemetry, error) {
	logger, err := NewLogger(cfg)
	if err != nil {
		return nil, err
	}
	t := &Telemetry{
		Logger:     logger,
		Registry:   prometheus.NewRegistry(),
		Propagator: propagation.TraceContext{},
		Tracer:     noop.NewTracerProvider(),
	}
	t.Registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)

	exporter, err := otelprom.New(
		otelprom.WithRegisterer(t.Registry),
		otelprom.WithoutScopeInfo(),
		otelprom.WithoutTargetInfo(),
	)
	if err != nil {
		return nil, fmt.Errorf("set up metrics: %w", err)
	}
	meter := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))
	t.Meter = meter
	t.stop = append(t.stop, meter.Shutdown)

	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "" {
		spans, err := otlptracehttp.New(ctx)
		if err != nil {
			return nil, fmt.Errorf("set up the trace exporter (check OTEL_EXPORTER_OTLP_ENDPOINT): %w", err)
		}
		tracer := sdktrace.NewTracerProvider(
			sdktrace.WithBatcher(spans),
			sdktrace.WithResource(resource.NewSchemaless(
				attribute.String("service.name", or(cfg.Service, "sagad")),
				attribute.String("service.version", cfg.Version),
				attribute.String("service.instance.id", cfg.Instance),
			)),
		)
		t.Tracer = tracer
		t.Exporting = true
		// Spans first: flushing them may still count something.
		t.stop = append([]func(context.Context) error{tracer.Shutdown}, t.stop...)
	}
	return t, nil
}

// MetricsHandler serves the registry.
func (t *Telemetry) MetricsHandler() http.Handler {
	return promhttp.HandlerFor(t.Registry, promhttp.HandlerOpts{
		Timeout:             10 * time.Second,
		MaxRequestsInFlight: 4,
		ErrorLog:            promLog{t.Logger},
	})
}

// Shutdown flushes and stops. It may be called twice.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	var errs []error
	for _, stop := range t.stop {
		errs = append(errs, stop(ctx))
	}
	t.stop = nil
	return errors.Join(errs...)
}

type promLog struct{ log *slog.Logger }

func (p promLog) Println(v ...any) {
	p.log.Error("metrics can't be gathered", "error", strings.TrimSpace(fmt.Sprintln(v...)))
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
