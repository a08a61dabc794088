package server

import (
	"context"
	"strings"

	"connectrpc.com/connect/v2"

	"github.com/sagad/sagad/engine"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/statemachine"
)

// SignalSaga implements the service.
func (s *sagaService) SignalSaga(ctx context.Context, req *sagadv1.SignalSagaRequest) (*sagadv1.SignalSagaResponse, error) {
	return owner(ctx, s.peers, req,
		func(ctx context.Context, req *sagadv1.SignalSagaRequest) (*sagadv1.SignalSagaResponse, error) {
			fresh, err := s.engine.Signal(ctx, req.Namespace, req.Id, statemachine.Signal{
				Name: req.Signal, Key: req.Key, Payload: []byte(req.Payload), Actor: actor(ctx),
			})
			if err != nil {
				return nil, err
			}
			return &sagadv1.SignalSagaResponse{Fresh: fresh}, nil
		},
		func(p *peer, ctx context.Context, req *sagadv1.SignalSagaRequest) (*sagadv1.SignalSagaResponse, error) {
			return p.sagas.SignalSaga(ctx, req)
		})
}

// PauseSaga implements the service.
func (s *sagaService) PauseSaga(ctx context.Context, req *sagadv1.PauseSagaRequest) (*sagadv1.PauseSagaResponse, error) {
	return owner(ctx, s.peers, req,
		func(ctx context.Context, req *sagadv1.PauseSagaRequest) (*sagadv1.PauseSagaResponse, error) {
			status, err := s.engine.Pause(ctx, req.Namespace, req.Id, statemachine.Pause{
				Actor: actor(ctx), Reason: req.Reason, RequestID: req.RequestId,
			})
			if err != nil {
				return nil, err
			}
			return &sagadv1.PauseSagaResponse{Status: sagadv1.SagaStatus(status)}, nil
		},
		func(p *peer, ctx context.Context, req *sagadv1.PauseSagaRequest) (*sagadv1.PauseSagaResponse, error) {
			return p.sagas.PauseSaga(ctx, req)
		})
}

// ResumeSaga implements the service.
func (s *sagaService) ResumeSaga(ctx context.Context, req *sagadv1.ResumeSagaRequest) (*sagadv1.ResumeSagaResponse, error) {
	return owner(ctx, s.peers, req,
		func(ctx context.Context, req *sagadv1.ResumeSagaRequest) (*sagadv1.ResumeSagaResponse, error) {
			status, err := s.engine.Resume(ctx, req.Namespace, req.Id, statemachine.Resume{
				Actor: actor(ctx), Reason: req.Reason, RequestID: req.RequestId,
			})
			if err != nil {
				return nil, err
			}
			return &sagadv1.ResumeSagaResponse{Status: sagadv1.SagaStatus(status)}, nil
		},
		func(p *peer, ctx context.Context, req *sagadv1.ResumeSagaRequest) (*sagadv1.ResumeSagaResponse, error) {
			return p.sagas.ResumeSaga(ctx, req)
		})
}

// MigrateSaga implements the service.
func (s *sagaService) MigrateSaga(ctx context.Context, req *sagadv1.MigrateSagaRequest) (*sagadv1.MigrateSagaResponse, error) {
	return owner(ctx, s.peers, req,
		func(ctx context.Context, req *sagadv1.MigrateSagaRequest) (*sagadv1.MigrateSagaResponse, error) {
			reply, err := s.engine.Migrate(ctx, req.Namespace, req.Id, engine.MigrateRequest{
				Version: req.Version, Names: req.Names, DryRun: req.DryRun, Actor: actor(ctx), Reason: req.Reason, RequestID: req.RequestId,
			})
			if err != nil {
				return nil, err
			}
			if len(reply.Obstacles) > 0 && !req.DryRun {
				return nil, fail(connect.CodeFailedPrecondition, codeMigrationRefused, "the saga stays at version %d: %s",
					reply.Version, obstacles(reply.Obstacles))
			}
			return &sagadv1.MigrateSagaResponse{Obstacles: reply.Obstacles, Migrated: reply.Migrated, Version: reply.Version}, nil
		},
		func(p *peer, ctx context.Context, req *sagadv1.MigrateSagaRequest) (*sagadv1.MigrateSagaResponse, error) {
			return p.sagas.MigrateSaga(ctx, req)
		})
}

// obstaclesMax bounds the obstacles that an error tells: a dry run lists all.
const obstaclesMax = 20

func obstacles(list []string) string {
	text := strings.Join(list[:min(len(list), obstaclesMax)], "; ")
	if n := len(list) - obstaclesMax; n > 0 {
		text += "; and " + count(n, "more obstacle") + " that a dry run lists"
	}
	return text
}
