package server

import (
	"context"
	"errors"
	"fmt"

	"github.com/sagad/sagad/engine"
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// ExplainSaga implements the service.
func (s *sagaService) ExplainSaga(ctx context.Context, req *sagadv1.ExplainSagaRequest) (*sagadv1.ExplainSagaResponse, error) {
	_, state, machine, err := s.engine.Get(ctx, req.Namespace, req.Id)
	var quarantined *engine.QuarantinedError
	if errors.As(err, &quarantined) {
		row, err := s.row(ctx, s.key(req.Namespace, req.Id))
		if err != nil {
			return nil, err
		}
		return explainQuarantined(row, quarantined), nil
	}
	if err != nil {
		return nil, err
	}
	e := machine.Explain(state, s.engine.Now().UnixMicro())
	res := &sagadv1.ExplainSagaResponse{
		WaitsFor: e.For, Explanation: e.Text, Help: e.Help, Step: e.Call.Step, Item: e.Call.Item, What: e.What,
		Since: micros(e.Since), Until: micros(e.Until), Status: sagadv1.SagaStatus(state.Status),
	}
	s.addNode(req, res, &e)
	return res, nil
}

// addNode adds what only nodes know: who listens, and whether somebody works on the saga at all.
func (s *Server) addNode(req *sagadv1.ExplainSagaRequest, res *sagadv1.ExplainSagaResponse, e *statemachine.Explanation) {
	if res.WaitsFor == sagadv1.WaitsFor_WAITS_FOR_NOTHING {
		return
	}
	if !s.engine.HasOwner(req.Namespace, req.Id) {
		res.Explanation = "no node serves its shard at the moment, so nothing of it moves; another node takes over when the last owner's lease has ended; then: " + res.Explanation
		res.Help = "see that a sagad node runs and reaches the database"
		return
	}
	if res.WaitsFor == sagadv1.WaitsFor_WAITS_FOR_WORKER && e.Activity != "" && !s.engine.Listening(req.Namespace, e.Activity, workerv1.Direction(e.Call.Dir)) {
		res.WaitsFor = sagadv1.WaitsFor_WAITS_FOR_NO_WORKER
		res.Explanation += fmt.Sprintf("; no worker listens for %s of %s", directionWord(e.Call.Dir), e.Activity)
		res.Help = fmt.Sprintf("start a worker that serves %s of %s", directionWord(e.Call.Dir), e.Activity)
	}
}

func directionWord(dir historyv1.Direction) string {
	switch dir {
	case historyv1.Direction_DIRECTION_UNDO:
		return "the undo"
	case historyv1.Direction_DIRECTION_PROBE:
		return "the probe"
	}
	return "the action"
}

// explainQuarantined tells of a saga that can't be worked on.
func explainQuarantined(row store.Saga, err *engine.QuarantinedError) *sagadv1.ExplainSagaResponse {
	res := &sagadv1.ExplainSagaResponse{
		WaitsFor: sagadv1.WaitsFor_WAITS_FOR_PERSON, Status: sagadv1.SagaStatus(row.Status), What: "quarantine", Since: timestamp(row.ChangedAt),
		Explanation: "it is quarantined, and tried again each minute: " + err.Why,
		Help:        "mend what the error names, or run the release that wrote its history",
	}
	if row.Status.Terminal() {
		res.WaitsFor, res.What, res.Help = sagadv1.WaitsFor_WAITS_FOR_NOTHING, "", ""
		res.Explanation = fmt.Sprintf("it has ended as %s; its history can't be read by this release: %s", statemachine.Status(row.Status), err.Why)
	}
	return res
}
