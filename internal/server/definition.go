package server

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/sagad/sagad/engine"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/proto/gen/sagad/v1/sagadv1connect"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

type definitionService struct {
	*Server
	sagadv1connect.UnimplementedDefinitionServiceHandler
}

var _ sagadv1connect.DefinitionServiceHandler = (*definitionService)(nil)

func hexadecimal(b []byte) string { return hex.EncodeToString(b) }

// RegisterDefinition implements the service.
func (s *definitionService) RegisterDefinition(ctx context.Context, req *sagadv1.RegisterDefinitionRequest) (*sagadv1.RegisterDefinitionResponse, error) {
	d, created, err := s.engine.Register(ctx, req.Namespace, req.Definition)
	if err != nil {
		return nil, err
	}
	if created {
		s.log.Info("definition registered", "namespace", d.Namespace, "definition", d.Name, "version", d.Version, "actor", actor(ctx))
	}
	return &sagadv1.RegisterDefinitionResponse{Version: definitionVersion(d, nil), Created: created}, nil
}

// VerifyDefinition implements the service.
func (s *definitionService) VerifyDefinition(_ context.Context, req *sagadv1.VerifyDefinitionRequest) (*sagadv1.VerifyDefinitionResponse, error) {
	m, problems := statemachine.Compile(req.Definition)
	if m == nil {
		return &sagadv1.VerifyDefinitionResponse{Problems: problems}, nil
	}
	return &sagadv1.VerifyDefinitionResponse{Hash: m.Hash()}, nil
}

// GetDefinition implements the service.
func (s *definitionService) GetDefinition(ctx context.Context, req *sagadv1.GetDefinitionRequest) (*sagadv1.GetDefinitionResponse, error) {
	d, def, err := s.definition(ctx, req.Namespace, req.Name, req.Version)
	if err != nil {
		return nil, err
	}
	return &sagadv1.GetDefinitionResponse{Version: definitionVersion(d, def)}, nil
}

func (s *Server) definition(ctx context.Context, namespace, name string, version int32) (store.Definition, *sagadv1.Definition, error) {
	d, err := s.store.Definition(ctx, namespace, name, version)
	if errors.Is(err, store.ErrNotFound) {
		return d, nil, &engine.NotFoundError{What: "definition", Namespace: namespace, Name: name, Version: version}
	}
	if err != nil {
		return d, nil, err
	}
	if !d.DeletedAt.IsZero() {
		return d, nil, &engine.NotFoundError{What: "definition", Namespace: namespace, Name: name, Version: version, Deleted: true}
	}
	def := new(sagadv1.Definition)
	if err := proto.Unmarshal(d.Body, def); err != nil {
		return d, nil, fmt.Errorf("stored definition %s/%s version %d can't be decoded: %w", namespace, name, d.Version, err)
	}
	return d, def, nil
}

// ListDefinitions implements the service.
func (s *definitionService) ListDefinitions(ctx context.Context, req *sagadv1.ListDefinitionsRequest) (*sagadv1.ListDefinitionsResponse, error) {
	size := pageSize(req.PageSize)
	asked := question("ListDefinitions", req)
	after := ""
	if req.PageToken != "" {
		body, err := s.pages.open(asked, req.PageToken)
		if err != nil {
			return nil, err
		}
		after = string(body)
	}
	rows, err := s.store.Definitions(ctx, req.Namespace, req.Name, after, size+1)
	if err != nil {
		return nil, err
	}
	res := &sagadv1.ListDefinitionsResponse{}
	if len(rows) > size {
		rows = rows[:size]
		last := rows[size-1]
		place := last.Name
		if req.Name != "" {
			place = fmt.Sprint(last.Version)
		}
		res.NextPageToken = s.pages.seal(asked, []byte(place))
	}
	for _, d := range rows {
		res.Definitions = append(res.Definitions, definitionVersion(d, nil))
	}
	return res, nil
}

// GetDefinitionGraph implements the service.
func (s *definitionService) GetDefinitionGraph(ctx context.Context, req *sagadv1.GetDefinitionGraphRequest) (*sagadv1.GetDefinitionGraphResponse, error) {
	_, def, err := s.definition(ctx, req.Namespace, req.Name, req.Version)
	if err != nil {
		return nil, err
	}
	return &sagadv1.GetDefinitionGraphResponse{Mermaid: statemachine.Mermaid(def)}, nil
}

// GetDefinitionUsage implements the service.
func (s *definitionService) GetDefinitionUsage(ctx context.Context, req *sagadv1.GetDefinitionUsageRequest) (*sagadv1.GetDefinitionUsageResponse, error) {
	usage, err := s.store.Usage(ctx, req.Namespace, req.Name, req.Version)
	if errors.Is(err, store.ErrNotFound) {
		if req.Version != 0 {
			// It may have been deleted: then the answer says so.
			if _, _, err := s.definition(ctx, req.Namespace, req.Name, req.Version); err != nil {
				return nil, err
			}
		}
		return nil, &engine.NotFoundError{What: "definition", Namespace: req.Namespace, Name: req.Name, Version: req.Version}
	}
	if err != nil {
		return nil, err
	}
	res := &sagadv1.GetDefinitionUsageResponse{}
	for _, u := range usage {
		res.Versions = append(res.Versions, &sagadv1.VersionUsage{
			Version: u.Version, Unfinished: u.Unfinished, Sagas: u.Sagas, Examples: u.Examples,
		})
	}
	return res, nil
}

// DeleteDefinition implements the service.
func (s *definitionService) DeleteDefinition(ctx context.Context, req *sagadv1.DeleteDefinitionRequest) (*sagadv1.DeleteDefinitionResponse, error) {
	if err := s.engine.DeleteDefinition(ctx, req.Namespace, req.Name, req.Version); err != nil {
		return nil, err
	}
	s.log.Info("definition deleted", "namespace", req.Namespace, "definition", req.Name, "version", req.Version, "actor", actor(ctx))
	return &sagadv1.DeleteDefinitionResponse{}, nil
}
