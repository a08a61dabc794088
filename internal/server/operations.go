package server

import (
	"context"

	"connectrpc.com/connect/v2"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/proto/gen/sagad/v1/sagadv1connect"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

type operationsService struct{ *Server }

var _ sagadv1connect.OperationsServiceHandler = (*operationsService)(nil)

// ListItems implements the service.
func (s *operationsService) ListItems(ctx context.Context, req *sagadv1.ListItemsRequest) (*sagadv1.ListItemsResponse, error) {
	size := pageSize(req.PageSize)
	f := store.ItemFilter{
		Namespace:     req.Namespace,
		Definition:    req.Definition,
		SagaID:        req.SagaId,
		IncludeClosed: req.IncludeClosed,
		Limit:         size + 1,
	}
	asked := question("ListItems", req)
	if req.PageToken != "" {
		body, err := s.pages.open(asked, req.PageToken)
		if err != nil {
			return nil, err
		}
		var ok bool
		if f.AfterOpened, f.AfterRun, f.AfterNumber, ok = parseItemPlace(body); !ok {
			return nil, badPageToken()
		}
	}
	rows, err := s.store.Items(ctx, f)
	if err != nil {
		return nil, err
	}
	res := &sagadv1.ListItemsResponse{}
	if len(rows) > size {
		rows = rows[:size]
		last := rows[size-1]
		res.NextPageToken = s.pages.seal(asked, itemPlace(last.OpenedAt, last.Run, last.Number))
	}
	for _, it := range rows {
		res.Items = append(res.Items, itemView(it, nil, nil))
	}
	return res, nil
}

// itemRow is an item's row, as committed.
func (s *Server) itemRow(ctx context.Context, namespace, sagaID string, number int32) (store.Item, error) {
	f := store.ItemFilter{Namespace: namespace, SagaID: sagaID, IncludeClosed: true, Limit: pageSizeMax}
	for {
		rows, err := s.store.Items(ctx, f)
		if err != nil {
			return store.Item{}, err
		}
		for _, it := range rows {
			if it.Number == number {
				return it, nil
			}
		}
		if len(rows) < f.Limit {
			return store.Item{}, fail(connect.CodeNotFound, codeItemNotFound,
				"saga %q in namespace %q has no operations item %d; list what it has", sagaID, namespace, number)
		}
		last := rows[len(rows)-1]
		f.AfterOpened, f.AfterRun, f.AfterNumber = last.OpenedAt, last.Run, last.Number
	}
}

// GetItem implements the service.
func (s *operationsService) GetItem(ctx context.Context, req *sagadv1.GetItemRequest) (*sagadv1.GetItemResponse, error) {
	if _, err := s.row(ctx, s.key(req.Namespace, req.SagaId)); err != nil {
		return nil, err
	}
	item, err := s.itemRow(ctx, req.Namespace, req.SagaId, req.Number)
	if err != nil {
		return nil, err
	}
	row, state, machine, err := s.engine.Get(ctx, req.Namespace, req.SagaId)
	if err != nil {
		if historyv1.ItemKind(item.Kind) == historyv1.ItemKind_ITEM_KIND_QUARANTINED {
			return &sagadv1.GetItemResponse{Item: itemView(item, nil, nil)}, nil
		}
		return nil, err
	}
	res := &sagadv1.GetItemResponse{
		Item:    itemView(item, state, machine),
		Actions: machine.Allowed(state, req.Number),
		Cause:   state.Cause,
	}
	res.Effects = machine.Effects(state)
	for _, e := range res.Effects {
		generation := int32(1)
		call := statemachine.Call{Step: e.Step, Item: e.Item, Dir: historyv1.Direction_DIRECTION_DO}
		if c := state.Call(call); c != nil {
			generation = c.Generation
		}
		e.IdempotencyKey = key(row.Run, state.KeyName(call), e.Item, historyv1.Direction_DIRECTION_DO, generation)
	}
	return res, nil
}

// ActOnItem implements the service.
func (s *operationsService) ActOnItem(ctx context.Context, req *sagadv1.ActOnItemRequest) (*sagadv1.ActOnItemResponse, error) {
	return owner(ctx, s.peers, req,
		func(ctx context.Context, req *sagadv1.ActOnItemRequest) (*sagadv1.ActOnItemResponse, error) {
			act := statemachine.Act{
				Item:      req.Number,
				Version:   req.Version,
				Action:    req.Action,
				Actor:     actor(ctx),
				Reason:    req.Reason,
				Evidence:  req.Evidence,
				RequestID: req.RequestId,
			}
			if req.Output != "" {
				act.Output = []byte(req.Output)
			}
			state, err := s.engine.Act(ctx, req.Namespace, req.SagaId, act)
			if err != nil {
				return nil, err
			}
			item, err := s.itemRow(ctx, req.Namespace, req.SagaId, req.Number)
			if err != nil {
				return nil, err
			}
			return &sagadv1.ActOnItemResponse{Item: itemView(item, state, state.Machine()), Status: sagadv1.SagaStatus(state.Status)}, nil
		},
		func(p *peer, ctx context.Context, req *sagadv1.ActOnItemRequest) (*sagadv1.ActOnItemResponse, error) {
			return p.operations.ActOnItem(ctx, req)
		})
}
