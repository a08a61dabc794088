package server

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/store"
)

// TestImpossibleTimes: a time that can't be is refused in a request, and shown as the nearest that can be in an answer.
func TestImpossibleTimes(t *testing.T) {
	r := newRig(t)
	r.register()
	r.start("order-1", orderInput{})
	r.end("order-1")
	ctx := t.Context()
	for name, at := range map[string]*timestamppb.Timestamp{
		"the year 0": {Seconds: -62135596801}, "the year 10000": {Seconds: 253402300800}, "the end of time": {Seconds: 1<<63 - 1},
		"its beginning": {Seconds: -1 << 63}, "too many nanoseconds": {Nanos: 1_000_000_000}, "negative nanoseconds": {Nanos: -1},
	} {
		for field, filter := range map[string]*sagadv1.SagaFilter{"started_after": {StartedAfter: at}, "started_before": {StartedBefore: at}} {
			_, err := r.sagas.ListSagas(ctx, &sagadv1.ListSagasRequest{Filter: filter})
			if connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), field) {
				t.Errorf("%s in %s: %v", name, field, err)
			}
		}
	}
	// The ends of the range, and the zero time, which means no bound.
	for name, filter := range map[string]*sagadv1.SagaFilter{
		"the last nanosecond":  {StartedBefore: timestamppb.New(time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC))},
		"the first nanosecond": {StartedAfter: timestamppb.New(time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC))},
		"zero times":           {StartedAfter: timestamppb.New(time.Time{}), StartedBefore: timestamppb.New(time.Time{})},
	} {
		if res, err := r.sagas.ListSagas(ctx, &sagadv1.ListSagasRequest{Filter: filter}); err != nil || len(res.Sagas) != 1 {
			t.Errorf("%s: %v %v", name, res, err)
		}
	}
	for name, d := range map[string]*durationpb.Duration{
		"negative": durationpb.New(-5 * time.Second), "292 years": durationpb.New(1<<63 - 1), "1e20 s": {Seconds: 1<<63 - 1}, "mixed signs": {Seconds: 1, Nanos: -1},
	} {
		if _, err := r.sagas.WaitSaga(ctx, &sagadv1.WaitSagaRequest{Id: "order-1", Timeout: d}); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("wait for %s: %v", name, err)
		}
		def := orderDefinition()
		def.Name = "times"
		def.Body[0].GetStep().Timeout = d
		if _, err := r.definitions.RegisterDefinition(ctx, &sagadv1.RegisterDefinitionRequest{Definition: def}); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("a timeout that is %s: %v", name, err)
		}
	}
	// As JSON, where a time is a text.
	for _, text := range []string{"0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "infinity", "", "1e20s"} {
		got := r.send(t, http.MethodPost, "/sagad.v1.SagaService/ListSagas", "application/json", `{"filter":{"startedAfter":"`+text+`"}}`)
		if got.status != http.StatusBadRequest {
			t.Errorf("%q: status %d %s", text, got.status, got.body)
		}
	}

	for _, at := range []time.Time{time.Date(-4713, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(294276, 1, 1, 0, 0, 0, 0, time.UTC), time.UnixMicro(1<<63 - 1), time.UnixMicro(-1 << 63)} {
		s := sagaSummary(store.Saga{StartedAt: at, ChangedAt: at, Deadline: at})
		if _, err := protojson.Marshal(s); err != nil {
			t.Errorf("a saga of %v can't be shown: %v", at, err)
		}
	}
	if s := sagaSummary(store.Saga{}); s.Deadline != nil {
		t.Errorf("no deadline is shown as %v", s.Deadline)
	}
}
