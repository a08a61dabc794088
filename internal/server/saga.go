package server

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sagad/sagad/engine"
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/proto/gen/sagad/v1/sagadv1connect"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

type sagaService struct {
	*Server
	sagadv1connect.UnimplementedSagaServiceHandler
}

var _ sagadv1connect.SagaServiceHandler = (*sagaService)(nil)

func (s *Server) key(namespace, id string) store.Key {
	return store.Key{Shard: store.ShardOf(namespace, id, s.shards), Namespace: namespace, ID: id}
}

// row is a saga's row, as committed.
func (s *Server) row(ctx context.Context, key store.Key) (store.Saga, error) {
	row, err := s.store.Saga(ctx, key)
	if errors.Is(err, store.ErrNotFound) {
		return row, &engine.NotFoundError{What: "saga", Namespace: key.Namespace, Name: key.ID}
	}
	return row, err
}

// saga is a saga with its steps and open items, as committed.
func (s *Server) saga(ctx context.Context, key store.Key) (*sagadv1.Saga, error) {
	row, state, machine, err := s.engine.Get(ctx, key.Namespace, key.ID)
	if err != nil {
		var quarantined *engine.QuarantinedError
		if !errors.As(err, &quarantined) {
			return nil, err
		}
		// It can't be folded; what the rows say is better than nothing.
		if row, err = s.row(ctx, key); err != nil {
			return nil, err
		}
		state, machine = nil, nil
	}
	var items []store.Item
	if state == nil || anyOpen(state) {
		items, err = s.store.Items(ctx, store.ItemFilter{Namespace: key.Namespace, SagaID: key.ID, Limit: pageSizeMax})
		if err != nil {
			return nil, err
		}
	}
	return sagaView(row, state, machine, items), nil
}

func anyOpen(state *statemachine.State) bool {
	for i := range state.Items {
		if state.Items[i].Open() {
			return true
		}
	}
	return false
}

// StartSaga implements the service.
func (s *sagaService) StartSaga(ctx context.Context, req *sagadv1.StartSagaRequest) (*sagadv1.StartSagaResponse, error) {
	return owner(ctx, s.peers, req,
		func(ctx context.Context, req *sagadv1.StartSagaRequest) (*sagadv1.StartSagaResponse, error) {
			reply, err := s.engine.StartSaga(ctx, engine.StartRequest{
				Namespace:  req.Namespace,
				ID:         req.Id,
				Definition: req.Definition,
				Version:    req.Version,
				Input:      []byte(req.Input),
				Labels:     req.Labels,
				Actor:      actor(ctx),
			})
			if err != nil {
				return nil, err
			}
			return &sagadv1.StartSagaResponse{RunId: reply.Run.String(), Version: reply.Version, Created: reply.Created}, nil
		},
		func(p *peer, ctx context.Context, req *sagadv1.StartSagaRequest) (*sagadv1.StartSagaResponse, error) {
			return p.sagas.StartSaga(ctx, req)
		})
}

// GetSaga implements the service.
func (s *sagaService) GetSaga(ctx context.Context, req *sagadv1.GetSagaRequest) (*sagadv1.GetSagaResponse, error) {
	saga, err := s.saga(ctx, s.key(req.Namespace, req.Id))
	if err != nil {
		return nil, err
	}
	return &sagadv1.GetSagaResponse{Saga: saga}, nil
}

// ListSagas implements the service.
func (s *sagaService) ListSagas(ctx context.Context, req *sagadv1.ListSagasRequest) (*sagadv1.ListSagasResponse, error) {
	size := pageSize(req.PageSize)
	f := store.SagaFilter{Namespace: req.Namespace, OldestFirst: req.OldestFirst, Limit: size + 1}
	if q := req.Filter; q != nil {
		for _, st := range q.Statuses {
			if st == sagadv1.SagaStatus_SAGA_STATUS_UNSPECIFIED {
				return nil, fail(connect.CodeInvalidArgument, codeInvalidRequest, "filter.statuses holds an unspecified status; leave the list empty for all")
			}
			f.Statuses = append(f.Statuses, store.Status(st))
		}
		f.Definition, f.Version, f.IDPrefix = q.Definition, q.Version, q.IdPrefix
		f.StartedAfter, f.StartedBefore = asTime(q.StartedAfter), asTime(q.StartedBefore)
	}
	asked := question("ListSagas", req)
	if req.PageToken != "" {
		body, err := s.pages.open(asked, req.PageToken)
		if err != nil {
			return nil, err
		}
		run, ok := parseRunPlace(body)
		if !ok {
			return nil, badPageToken()
		}
		f.After = run
	}
	rows, err := s.store.Sagas(ctx, f)
	if err != nil {
		return nil, err
	}
	res := &sagadv1.ListSagasResponse{}
	if len(rows) > size {
		rows = rows[:size]
		res.NextPageToken = s.pages.seal(asked, runPlace(rows[size-1].Run))
	}
	for _, row := range rows {
		res.Sagas = append(res.Sagas, sagaSummary(row))
	}
	return res, nil
}

// GetHistory implements the service.
func (s *sagaService) GetHistory(ctx context.Context, req *sagadv1.GetHistoryRequest) (*sagadv1.GetHistoryResponse, error) {
	size := pageSize(req.PageSize)
	key := s.key(req.Namespace, req.Id)
	row, err := s.row(ctx, key)
	if err != nil {
		return nil, err
	}
	res := &sagadv1.GetHistoryResponse{}
	from, bytes := max(req.From, 1), 0
	// In small portions: a page of large payloads ends long before its number of entries.
	for len(res.Entries) <= size {
		portion := min(historyPortion, size+1-len(res.Entries))
		rows, err := s.store.History(ctx, key.Shard, row.Run, from, portion)
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			if len(res.Entries) == size || len(res.Entries) > 0 && bytes+len(r.Facts) > pageBytesMax {
				res.Next = r.N
				return res, nil
			}
			t := new(historyv1.Transition)
			if proto.Unmarshal(r.Facts, t) != nil {
				t = nil
			}
			res.Entries = append(res.Entries, historyEntry(r, t))
			bytes += len(r.Facts)
			from = r.N + 1
		}
		if len(rows) < portion {
			return res, nil
		}
	}
	return res, nil
}

const historyPortion = 64

// CancelSaga implements the service.
func (s *sagaService) CancelSaga(ctx context.Context, req *sagadv1.CancelSagaRequest) (*sagadv1.CancelSagaResponse, error) {
	return owner(ctx, s.peers, req,
		func(ctx context.Context, req *sagadv1.CancelSagaRequest) (*sagadv1.CancelSagaResponse, error) {
			answer, status, err := s.engine.Cancel(ctx, req.Namespace, req.Id, statemachine.Cancel{
				Actor: actor(ctx), Reason: req.Reason, RequestID: req.RequestId,
			})
			if err != nil {
				return nil, err
			}
			return &sagadv1.CancelSagaResponse{Answer: answer, Status: sagadv1.SagaStatus(status)}, nil
		},
		func(p *peer, ctx context.Context, req *sagadv1.CancelSagaRequest) (*sagadv1.CancelSagaResponse, error) {
			return p.sagas.CancelSaga(ctx, req)
		})
}

func pageSize(asked int32) int {
	if asked <= 0 {
		return pageSizeDefault
	}
	return min(int(asked), pageSizeMax)
}

func badPageToken() error {
	return fail(connect.CodeInvalidArgument, codeInvalidPageToken, "the page token isn't one of this question; ask without it for the first page")
}

func asTime(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
