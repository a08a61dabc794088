package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/sqlite/litedb"
)

// PutDefinition registers a definition under the next version, or finds the version with its hash.
func (s *Store) PutDefinition(ctx context.Context, d store.Definition) (got store.Definition, created bool, _ error) {
	if d.RegisteredAt.IsZero() {
		d.RegisteredAt = now()
	}
	err := s.write(ctx, func(ctx context.Context, w *writer) error {
		row, err := s.q.DefinitionByHash(ctx, w, litedb.DefinitionByHashParams{
			Namespace: d.Namespace, Name: d.Name, Hash: filled(d.Hash),
		})
		if !errors.Is(err, sql.ErrNoRows) {
			got, created = toDefinition(row), false
			return err
		}
		latest, err := s.q.LatestDefinition(ctx, w, litedb.LatestDefinitionParams{Namespace: d.Namespace, Name: d.Name})
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		row = litedb.Definition{
			Namespace: d.Namespace, Name: d.Name, Version: latest.Version + 1, Hash: filled(d.Hash),
			RegisteredAt: d.RegisteredAt.UnixMicro(), Body: filled(d.Body),
		}
		got, created = toDefinition(row), true
		return s.q.InsertDefinition(ctx, w, litedb.InsertDefinitionParams(row))
	})
	if err != nil {
		return store.Definition{}, false, fmt.Errorf("registering definition %s/%s: %w", d.Namespace, d.Name, err)
	}
	return got, created, nil
}

// Definition returns a version, the latest for 0.
func (s *Store) Definition(ctx context.Context, namespace, name string, version int32) (store.Definition, error) {
	var row litedb.Definition
	err := s.read(ctx, func(ctx context.Context, db litedb.DBTX) (err error) {
		if version == 0 {
			row, err = s.q.LatestDefinition(ctx, db, litedb.LatestDefinitionParams{Namespace: namespace, Name: name})
		} else {
			row, err = s.q.Definition(ctx, db, litedb.DefinitionParams{Namespace: namespace, Name: name, Version: int64(version)})
		}
		return err
	})
	if errors.Is(err, sql.ErrNoRows) {
		err = store.ErrNotFound
	}
	if err != nil {
		return store.Definition{}, fmt.Errorf("definition %s/%s version %d: %w", namespace, name, version, err)
	}
	return toDefinition(row), nil
}

// Definitions lists definitions, or the versions of one.
func (s *Store) Definitions(ctx context.Context, namespace, name, after string, limit int) ([]store.Definition, error) {
	before := int64(math.MaxInt64)
	if name != "" && after != "" {
		var err error
		if before, err = strconv.ParseInt(after, 10, 32); err != nil {
			return nil, fmt.Errorf("after: %q is not a version", after)
		}
	}
	var rows []litedb.DefinitionVersionsRow
	err := s.read(ctx, func(ctx context.Context, db litedb.DBTX) (err error) {
		if name != "" {
			rows, err = s.q.DefinitionVersions(ctx, db, litedb.DefinitionVersionsParams{
				Namespace: namespace, Name: name, BeforeVersion: before, MaxRows: int64(store.Limit(limit)),
			})
			return err
		}
		latest, err := s.q.LatestDefinitions(ctx, db, litedb.LatestDefinitionsParams{
			Namespace: namespace, After: after, MaxRows: int64(store.Limit(limit)),
		})
		for _, r := range latest {
			rows = append(rows, litedb.DefinitionVersionsRow(r))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listing definitions: %w", err)
	}
	definitions := make([]store.Definition, len(rows))
	for i, r := range rows {
		definitions[i] = toDefinition(litedb.Definition{
			Namespace: r.Namespace, Name: r.Name, Version: r.Version, Hash: r.Hash, RegisteredAt: r.RegisteredAt,
		})
	}
	return definitions, nil
}

func toDefinition(r litedb.Definition) store.Definition {
	return store.Definition{
		Namespace: r.Namespace, Name: r.Name, Version: int32(r.Version), Hash: r.Hash, RegisteredAt: at(r.RegisteredAt),
		Body: r.Body,
	}
}
