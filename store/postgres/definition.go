package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/postgres/pgdb"
)

// registrationsMax is how often a registration gives way to others at the same moment before it gives up.
const registrationsMax = 200

// PutDefinition registers a definition under the next version, or finds the version with its hash.
func (s *Store) PutDefinition(ctx context.Context, d store.Definition) (_ store.Definition, created bool, _ error) {
	fail := func(err error) (store.Definition, bool, error) {
		return store.Definition{}, false, fmt.Errorf("registering definition %s/%s: %w", d.Namespace, d.Name, err)
	}
	if d.RegisteredAt.IsZero() {
		var err error
		if d.RegisteredAt, err = s.Now(ctx); err != nil {
			return fail(err)
		}
	}
	for range registrationsMax {
		row, err := s.q.DefinitionByHash(ctx, s.main, pgdb.DefinitionByHashParams{
			Namespace: d.Namespace, Name: d.Name, Hash: filled(d.Hash),
		})
		if err == nil {
			return toDefinition(row), created, nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return fail(err)
		}
		versions, err := s.q.InsertDefinition(ctx, s.main, pgdb.InsertDefinitionParams{
			Namespace: d.Namespace, Name: d.Name, Hash: filled(d.Hash), RegisteredAt: d.RegisteredAt, Body: filled(d.Body),
		})
		if err != nil {
			return fail(err)
		}
		created = len(versions) == 1 // else another came first
	}
	return fail(errors.New("too many others register at the same time: try again"))
}

// Definition returns a version, the latest for 0.
func (s *Store) Definition(ctx context.Context, namespace, name string, version int32) (store.Definition, error) {
	var row pgdb.Definition
	var err error
	if version == 0 {
		row, err = s.q.LatestDefinition(ctx, s.main, pgdb.LatestDefinitionParams{Namespace: namespace, Name: name})
	} else {
		row, err = s.q.Definition(ctx, s.main, pgdb.DefinitionParams{Namespace: namespace, Name: name, Version: version})
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return store.Definition{}, fmt.Errorf("definition %s/%s version %d: %w", namespace, name, version, store.ErrNotFound)
	}
	if err != nil {
		return store.Definition{}, fmt.Errorf("reading definition %s/%s: %w", namespace, name, err)
	}
	return toDefinition(row), nil
}

// Definitions lists definitions, or the versions of one.
func (s *Store) Definitions(ctx context.Context, namespace, name, after string, limit int) ([]store.Definition, error) {
	var rows []pgdb.DefinitionVersionsRow
	var err error
	if name == "" {
		var latest []pgdb.LatestDefinitionsRow
		latest, err = s.q.LatestDefinitions(ctx, s.main, pgdb.LatestDefinitionsParams{
			Namespace: namespace, After: after, MaxRows: int32(store.Limit(limit)),
		})
		for _, r := range latest {
			rows = append(rows, pgdb.DefinitionVersionsRow(r))
		}
	} else {
		before := int64(math.MaxInt32)
		if after != "" {
			if before, err = strconv.ParseInt(after, 10, 32); err != nil {
				return nil, fmt.Errorf("after: %q is not a version", after)
			}
		}
		rows, err = s.q.DefinitionVersions(ctx, s.main, pgdb.DefinitionVersionsParams{
			Namespace: namespace, Name: name, BeforeVersion: int32(before), MaxRows: int32(store.Limit(limit)),
		})
	}
	if err != nil {
		return nil, fmt.Errorf("listing definitions: %w", err)
	}
	definitions := make([]store.Definition, len(rows))
	for i, r := range rows {
		definitions[i] = toDefinition(pgdb.Definition{
			Namespace: r.Namespace, Name: r.Name, Version: r.Version, Hash: r.Hash, RegisteredAt: r.RegisteredAt,
		})
	}
	return definitions, nil
}

func toDefinition(r pgdb.Definition) store.Definition {
	return store.Definition{
		Namespace: r.Namespace, Name: r.Name, Version: r.Version, Hash: r.Hash, RegisteredAt: r.RegisteredAt.UTC(),
		Body: r.Body,
	}
}
