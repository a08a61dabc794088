package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/otelconnect"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/semconv/v1.43.0/rpcconv"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// telemetry is the outermost interceptor: it continues the caller's trace and measures the call. With spans to export
// that is otelconnect's; without, it is [measure], which does the same for a fraction of the work.
func telemetry(cfg *Config) (connect.ServerInterceptor, error) {
	if _, none := cfg.Tracer.(tracenoop.TracerProvider); none {
		return newMeasure(cfg.Meter, cfg.Propagator)
	}
	return otelconnect.NewServerInterceptor(
		otelconnect.WithTracerProvider(cfg.Tracer),
		otelconnect.WithMeterProvider(cfg.Meter),
		otelconnect.WithPropagator(cfg.Propagator),
	)
}

// measure gives the metric that otelconnect gives, under the same name with the same labels.
type measure struct {
	propagator propagation.TextMapPropagator
	duration   metric.Float64Histogram

	mu     sync.RWMutex
	labels map[outcome][]metric.RecordOption
}

// outcome is what calls are counted by. There are few.
type outcome struct {
	protocol, procedure string
	ok, notModified     bool
	code                connect.Code
}

func newMeasure(provider metric.MeterProvider, propagator propagation.TextMapPropagator) (connect.ServerInterceptor, error) {
	d := rpcconv.ServerCallDuration{}
	duration, err := provider.Meter("connectrpc.com/otelconnect").Float64Histogram(d.Name(), metric.WithUnit(d.Unit()), metric.WithDescription(d.Description()),
		metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10))
	if err != nil {
		return nil, fmt.Errorf("measure calls: %w", err)
	}
	m := &measure{propagator: propagator, duration: duration, labels: map[outcome][]metric.RecordOption{}}
	return func(next connect.ServerFunc) connect.ServerFunc {
		return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
			start := time.Now()
			o := outcome{procedure: spec.Procedure}
			if info, ok := connect.CallInfoForServerContext(ctx); ok {
				o.protocol = info.Protocol
				if info.RequestHeader().Len() > 0 {
					ctx = m.propagator.Extract(ctx, carrier{info.RequestHeader()})
				}
			}
			err := next(ctx, spec, stream)
			var cerr *connect.Error
			switch {
			case err == nil:
				o.ok = true
			case connecthttp.IsNotModifiedError(err):
				o.ok, o.notModified = true, true
			case errors.As(err, &cerr):
				o.code = cerr.Code()
			default:
				o.code = connect.CodeUnknown
			}
			m.duration.Record(ctx, time.Since(start).Seconds(), m.by(o)...)
			return err
		}
	}, nil
}

// by is o's labels.
func (m *measure) by(o outcome) []metric.RecordOption {
	m.mu.RLock()
	labels := m.labels[o]
	m.mu.RUnlock()
	if labels != nil {
		return labels
	}
	system := o.protocol
	switch o.protocol {
	case connect.ProtocolNameGRPC, connect.ProtocolNameGRPCWeb:
		system = semconv.RPCSystemNameGRPC.Value.AsString()
	case connect.ProtocolNameConnect:
		system = semconv.RPCSystemNameConnectrpc.Value.AsString()
	}
	set := []attribute.KeyValue{semconv.RPCSystemNameKey.String(system), semconv.RPCMethodKey.String(strings.TrimLeft(o.procedure, "/"))}
	switch {
	case o.notModified:
		set = append(set, semconv.RPCResponseStatusCodeKey.String("OK"), semconv.HTTPResponseStatusCodeKey.Int(304))
	case o.ok:
		set = append(set, semconv.RPCResponseStatusCodeKey.String("OK"))
	default:
		code := strings.ToUpper(o.code.String())
		set = append(set, semconv.RPCResponseStatusCodeKey.String(code), semconv.ErrorTypeKey.String(code))
	}
	labels = []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(set...))}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.labels[o] = labels
	return labels
}

// carrier reads a trace context from headers.
type carrier struct{ h *connect.Header }

func (c carrier) Get(key string) string { return c.h.Get(key) }
func (c carrier) Set(key, value string) { c.h.Set(key, value) }
func (c carrier) Keys() []string {
	keys := make([]string, 0, c.h.Len())
	for k := range c.h.All() {
		keys = append(keys, k)
	}
	return keys
}
