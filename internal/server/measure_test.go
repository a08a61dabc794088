package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectinprocess"
	"connectrpc.com/otelconnect"
	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/proto/gen/sagad/v1/sagadv1connect"
)

// failing is a service whose answer is what the id says.
type failing struct {
	sagadv1connect.SagaServiceHandler
	traces []string
}

func (f *failing) GetSaga(ctx context.Context, req *sagadv1.GetSagaRequest) (*sagadv1.GetSagaResponse, error) {
	f.traces = append(f.traces, trace.SpanContextFromContext(ctx).TraceID().String())
	switch req.Id {
	case "missing":
		return nil, connect.NewError(connect.CodeNotFound, "no")
	case "odd":
		return nil, errors.New("odd")
	case "late":
		return nil, fmt.Errorf("wrapped: %w", connect.NewError(connect.CodeDeadlineExceeded, "late"))
	}
	return &sagadv1.GetSagaResponse{}, nil
}

// Without spans to export, calls are measured as otelconnect measures them, and traces go on as there.
func TestMeasureIsOtelconnects(t *testing.T) {
	propagator := propagation.TraceContext{}
	run := func(make func(metric.MeterProvider) (connect.ServerInterceptor, error)) (seen []string) {
		reader := sdkmetric.NewManualReader()
		intercept, err := make(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
		if err != nil {
			t.Fatal(err)
		}
		srv := connect.NewServer(intercept)
		service := &failing{}
		sagadv1connect.RegisterSagaServiceHandler(srv, service)
		client := sagadv1connect.NewSagaServiceClient(connect.NewClient(connectinprocess.New(srv)))
		for _, id := range []string{"there", "there", "missing", "odd", "late"} {
			ctx, info := connect.NewClientContext(context.Background())
			if id != "odd" {
				info.RequestHeader().Set("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
			}
			_, _ = client.GetSaga(ctx, &sagadv1.GetSagaRequest{Id: id})
		}
		var all metricdata.ResourceMetrics
		if err := reader.Collect(context.Background(), &all); err != nil {
			t.Fatal(err)
		}
		for _, scope := range all.ScopeMetrics {
			for _, m := range scope.Metrics {
				for _, p := range m.Data.(metricdata.Histogram[float64]).DataPoints {
					seen = append(seen, fmt.Sprint(scope.Scope.Name, " ", m.Name, " ", m.Unit, " ", m.Description, " ", p.Bounds, " ", p.Count, " ", p.Attributes.Encoded(attribute.DefaultEncoder())))
				}
			}
		}
		slices.Sort(seen)
		return append(seen, service.traces...)
	}
	ours := run(func(p metric.MeterProvider) (connect.ServerInterceptor, error) {
		return telemetry(&Config{Tracer: tracenoop.NewTracerProvider(), Meter: p, Propagator: propagator})
	})
	theirs := run(func(p metric.MeterProvider) (connect.ServerInterceptor, error) {
		return otelconnect.NewServerInterceptor(otelconnect.WithTracerProvider(tracenoop.NewTracerProvider()), otelconnect.WithMeterProvider(p),
			otelconnect.WithPropagator(propagator))
	})
	if diff := cmp.Diff(theirs, ours); diff != "" {
		t.Error(diff)
	}
	if len(ours) != 4+5 {
		t.Errorf("%d lines: %q", len(ours), ours)
	}
}
