package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

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

// Definition returns a version, the latest that isn't deleted for 0.
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

// DefinitionsNaming lists the versions in whose body a word occurs.
func (s *Store) DefinitionsNaming(
	ctx context.Context, namespace, word, afterName string, afterVersion int32, limit int,
) ([]store.Definition, error) {
	rows, err := s.q.DefinitionsNaming(ctx, s.main, pgdb.DefinitionsNamingParams{
		Namespace: namespace, Word: []byte(word), AfterName: afterName, AfterVersion: afterVersion, MaxRows: int32(store.Limit(limit)),
	})
	if err != nil {
		return nil, fmt.Errorf("searching definitions: %w", err)
	}
	definitions := make([]store.Definition, len(rows))
	for i, r := range rows {
		definitions[i] = toDefinition(r)
	}
	return definitions, nil
}

// Usage tells who needs a version, or all of them.
func (s *Store) Usage(ctx context.Context, namespace, name string, version int32) ([]store.VersionUsage, error) {
	fail := func(err error) ([]store.VersionUsage, error) {
		return nil, fmt.Errorf("usage of definition %s/%s version %d: %w", namespace, name, version, err)
	}
	usage, at := []store.VersionUsage{}, map[int32]int{}
	if version != 0 {
		d, err := s.Definition(ctx, namespace, name, version)
		if err != nil {
			return nil, err
		}
		if d.DeletedAt.IsZero() {
			usage, at[version] = append(usage, store.VersionUsage{Version: version}), 0
		}
	} else {
		versions, err := s.Definitions(ctx, namespace, name, "", store.UsageVersionsMax)
		if err != nil {
			return nil, err
		}
		for i, d := range versions {
			usage, at[d.Version] = append(usage, store.VersionUsage{Version: d.Version}), i
		}
	}
	if len(usage) == 0 {
		return fail(store.ErrNotFound)
	}
	unfinished, err := s.q.UnfinishedOf(ctx, s.main, pgdb.UnfinishedOfParams{Namespace: namespace, Name: name, Version: version})
	if err != nil {
		return fail(err)
	}
	for _, r := range unfinished {
		i, ok := at[r.Version]
		if !ok {
			continue
		}
		usage[i].Unfinished = r.Sagas
		usage[i].Examples, err = s.q.ExamplesOf(ctx, s.main, pgdb.ExamplesOfParams{
			Namespace: namespace, Name: name, Version: r.Version, MaxRows: store.UsageExamplesMax,
		})
		if err != nil {
			return fail(err)
		}
	}
	sagas, err := s.q.SagasOf(ctx, s.main, pgdb.SagasOfParams{Namespace: namespace, Name: name, Version: version})
	if err != nil {
		return fail(err)
	}
	for _, r := range sagas {
		if i, ok := at[r.Version]; ok {
			usage[i].Sagas = r.Sagas
		}
	}
	return usage, nil
}

// DeleteDefinition deletes a version that no unfinished saga needs: see sagad_delete_definition.
func (s *Store) DeleteDefinition(ctx context.Context, namespace, name string, version int32) error {
	unfinished, err := s.q.DeleteDefinition(ctx, s.main, pgdb.DeleteDefinitionParams{Namespace: namespace, Name: name, Version: version})
	switch {
	case err != nil:
		return fmt.Errorf("deleting definition %s/%s version %d: %w", namespace, name, version, err)
	case unfinished < 0:
		return fmt.Errorf("definition %s/%s version %d: %w", namespace, name, version, store.ErrNotFound)
	case unfinished > 0:
		return &store.InUseError{Namespace: namespace, Name: name, Version: version, Unfinished: unfinished}
	}
	return nil
}

// deletedError finds out whether a statement was refused because a version is deleted.
func deletedError(err error) *store.DeletedError {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.ConstraintName != "saga_definition" {
		return nil
	}
	d := new(store.DeletedError)
	if _, err := fmt.Sscanf(pg.Detail, "%s %s %d", &d.Namespace, &d.Name, &d.Version); err != nil {
		return nil
	}
	return d
}

func toDefinition(r pgdb.Definition) store.Definition {
	d := store.Definition{
		Namespace: r.Namespace, Name: r.Name, Version: r.Version, Hash: r.Hash, RegisteredAt: r.RegisteredAt.UTC(),
		Body: r.Body,
	}
	if r.DeletedAt != nil {
		d.DeletedAt = r.DeletedAt.UTC()
	}
	return d
}
