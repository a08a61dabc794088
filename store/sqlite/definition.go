package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strconv"

	"modernc.org/sqlite"

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
		last, err := s.q.LastVersion(ctx, w, litedb.LastVersionParams{Namespace: d.Namespace, Name: d.Name})
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		row = litedb.Definition{
			Namespace: d.Namespace, Name: d.Name, Version: last + 1, Hash: filled(d.Hash),
			RegisteredAt: d.RegisteredAt.UnixMicro(), Body: filled(d.Body),
		}
		got, created = toDefinition(row), true
		return s.q.InsertDefinition(ctx, w, litedb.InsertDefinitionParams{
			Namespace: row.Namespace, Name: row.Name, Version: row.Version, Hash: row.Hash, RegisteredAt: row.RegisteredAt, Body: row.Body,
		})
	})
	if err != nil {
		return store.Definition{}, false, fmt.Errorf("registering definition %s/%s: %w", d.Namespace, d.Name, err)
	}
	return got, created, nil
}

// Definition returns a version, the latest that isn't deleted for 0.
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

// DefinitionsNaming lists the versions in whose body a word occurs.
func (s *Store) DefinitionsNaming(
	ctx context.Context, namespace, word, afterName string, afterVersion int32, limit int,
) ([]store.Definition, error) {
	var definitions []store.Definition
	err := s.read(ctx, func(ctx context.Context, db litedb.DBTX) error {
		rows, err := s.q.DefinitionsNaming(ctx, db, litedb.DefinitionsNamingParams{
			Namespace: namespace, Word: []byte(word), AfterName: afterName, AfterVersion: int64(afterVersion), MaxRows: int64(store.Limit(limit)),
		})
		definitions = make([]store.Definition, len(rows))
		for i, r := range rows {
			definitions[i] = toDefinition(r)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("searching definitions: %w", err)
	}
	return definitions, nil
}

// Usage tells who needs a version, or all of them, from one snapshot.
func (s *Store) Usage(ctx context.Context, namespace, name string, version int32) ([]store.VersionUsage, error) {
	usage := []store.VersionUsage{}
	err := s.read(ctx, func(ctx context.Context, db litedb.DBTX) error {
		before, limit := int64(math.MaxInt64), int64(store.UsageVersionsMax)
		if version != 0 {
			before, limit = int64(version)+1, 1
		}
		versions, err := s.q.DefinitionVersions(ctx, db, litedb.DefinitionVersionsParams{
			Namespace: namespace, Name: name, BeforeVersion: before, MaxRows: limit,
		})
		if err != nil {
			return err
		}
		at := map[int64]int{}
		for _, d := range versions {
			if version == 0 || d.Version == int64(version) {
				at[d.Version] = len(usage)
				usage = append(usage, store.VersionUsage{Version: int32(d.Version)})
			}
		}
		if len(usage) == 0 {
			return store.ErrNotFound
		}
		unfinished, err := s.q.UnfinishedOf(ctx, db, litedb.UnfinishedOfParams{Namespace: namespace, Name: name, Version: int64(version)})
		if err != nil {
			return err
		}
		for _, r := range unfinished {
			i, ok := at[r.Version]
			if !ok {
				continue
			}
			usage[i].Unfinished = r.Sagas
			usage[i].Examples, err = s.q.ExamplesOf(ctx, db, litedb.ExamplesOfParams{
				Namespace: namespace, Name: name, Version: r.Version, MaxRows: store.UsageExamplesMax,
			})
			if err != nil {
				return err
			}
		}
		sagas, err := s.q.SagasOf(ctx, db, litedb.SagasOfParams{Namespace: namespace, Name: name, Version: int64(version)})
		for _, r := range sagas {
			if i, ok := at[r.Version]; ok {
				usage[i].Sagas = r.Sagas
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("usage of definition %s/%s version %d: %w", namespace, name, version, err)
	}
	return usage, nil
}

// DeleteDefinition deletes a version that no unfinished saga needs. There is one writer, so no start comes between.
func (s *Store) DeleteDefinition(ctx context.Context, namespace, name string, version int32) error {
	err := s.write(ctx, func(ctx context.Context, w *writer) error {
		_, err := s.q.DeletedAt(ctx, w, litedb.DeletedAtParams{Namespace: namespace, Name: name, Version: int64(version)})
		if errors.Is(err, sql.ErrNoRows) {
			return store.ErrNotFound
		}
		if err != nil {
			return err
		}
		unfinished, err := s.q.UnfinishedOf(ctx, w, litedb.UnfinishedOfParams{Namespace: namespace, Name: name, Version: int64(version)})
		if err != nil {
			return err
		}
		if len(unfinished) > 0 {
			return &store.InUseError{Namespace: namespace, Name: name, Version: version, Unfinished: unfinished[0].Sagas}
		}
		deleted := now().UnixMicro()
		return s.q.DeleteDefinition(ctx, w, litedb.DeleteDefinitionParams{
			Namespace: namespace, Name: name, Version: int64(version), DeletedAt: &deleted,
		})
	})
	var used *store.InUseError
	if err == nil || errors.As(err, &used) {
		return err
	}
	return fmt.Errorf("deleting definition %s/%s version %d: %w", namespace, name, version, err)
}

// constraintTrigger is SQLite's code for what a trigger refuses. There are none but those that watch over deleted versions.
const constraintTrigger = 1811

// deletedError is err, but says so if a saga's row was refused because its version is deleted.
func deletedError(err error, saga *store.Saga) error {
	var e *sqlite.Error
	if errors.As(err, &e) && e.Code() == constraintTrigger {
		return &deletedVersion{err, store.DeletedError{Namespace: saga.Namespace, Name: saga.Definition, Version: saga.Version}}
	}
	return err
}

// deletedVersion is a database's error and what it means.
type deletedVersion struct {
	error
	means store.DeletedError
}

func (e *deletedVersion) Unwrap() []error { return []error{e.error, &e.means} }

func toDefinition(r litedb.Definition) store.Definition {
	d := store.Definition{
		Namespace: r.Namespace, Name: r.Name, Version: int32(r.Version), Hash: r.Hash, RegisteredAt: at(r.RegisteredAt),
		Body: r.Body,
	}
	if r.DeletedAt != nil {
		d.DeletedAt = at(*r.DeletedAt)
	}
	return d
}
