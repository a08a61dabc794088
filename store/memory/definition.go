package memory

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sagad/sagad/store"
)

// PutDefinition registers a definition under the next version, or finds the version with its hash.
func (s *Store) PutDefinition(_ context.Context, d store.Definition) (_ store.Definition, created bool, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := definitionKey{d.Namespace, d.Name}
	for _, old := range s.definitions[k] {
		if bytes.Equal(old.Hash, d.Hash) && old.DeletedAt.IsZero() {
			return copyDefinition(old), false, nil
		}
	}
	if d.RegisteredAt.IsZero() {
		d.RegisteredAt = s.clock()
	}
	d.RegisteredAt, d.DeletedAt = micro(d.RegisteredAt), time.Time{}
	d.Version = int32(len(s.definitions[k]) + 1)
	d = copyDefinition(d)
	s.definitions[k] = append(s.definitions[k], d)
	return copyDefinition(d), true, nil
}

// Definition returns a version, the latest that isn't deleted for 0.
func (s *Store) Definition(_ context.Context, namespace, name string, version int32) (store.Definition, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	versions := s.definitions[definitionKey{namespace, name}]
	if version == 0 {
		version = latest(versions)
	}
	if version < 1 || int(version) > len(versions) {
		return store.Definition{}, fmt.Errorf("definition %s/%s version %d: %w", namespace, name, version, store.ErrNotFound)
	}
	return copyDefinition(versions[version-1]), nil
}

// Definitions lists definitions, or the versions of one.
func (s *Store) Definitions(_ context.Context, namespace, name, after string, limit int) ([]store.Definition, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := []store.Definition{}
	if name == "" {
		for k, versions := range s.definitions {
			if v := latest(versions); v > 0 && k.namespace == namespace && k.name > after {
				found = append(found, versions[v-1])
			}
		}
		slices.SortFunc(found, func(a, b store.Definition) int { return cmp.Compare(a.Name, b.Name) })
	} else {
		found = slices.Clone(s.definitions[definitionKey{namespace, name}])
		if after != "" {
			before, err := strconv.ParseInt(after, 10, 32)
			if err != nil {
				return nil, fmt.Errorf("after: %q is not a version", after)
			}
			found = found[:min(max(before-1, 0), int64(len(found)))]
		}
		slices.Reverse(found)
		found = slices.DeleteFunc(found, func(d store.Definition) bool { return !d.DeletedAt.IsZero() })
	}
	found = page(found, limit)
	for i := range found {
		found[i] = copyDefinition(found[i])
		found[i].Body = nil
	}
	return found, nil
}

// latest is the newest version that isn't deleted, 0 if there is none.
func latest(versions []store.Definition) int32 {
	for i := len(versions) - 1; i >= 0; i-- {
		if versions[i].DeletedAt.IsZero() {
			return versions[i].Version
		}
	}
	return 0
}

// DefinitionsNaming lists the versions in whose body a word occurs.
func (s *Store) DefinitionsNaming(
	_ context.Context, namespace, word, afterName string, afterVersion int32, limit int,
) ([]store.Definition, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := []store.Definition{}
	for k, versions := range s.definitions {
		for _, d := range versions {
			if k.namespace == namespace && d.DeletedAt.IsZero() && bytes.Contains(d.Body, []byte(word)) &&
				cmp.Or(cmp.Compare(d.Name, afterName), cmp.Compare(d.Version, afterVersion)) > 0 {
				found = append(found, copyDefinition(d))
			}
		}
	}
	slices.SortFunc(found, func(a, b store.Definition) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Version, b.Version))
	})
	return page(found, limit), nil
}

// Usage tells who needs a version, or all of them.
func (s *Store) Usage(_ context.Context, namespace, name string, version int32) ([]store.VersionUsage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	usage := []store.VersionUsage{}
	at := map[int32]int{}
	versions := s.definitions[definitionKey{namespace, name}]
	for i := len(versions) - 1; i >= 0 && len(usage) < store.UsageVersionsMax; i-- {
		if v := versions[i]; v.DeletedAt.IsZero() && (version == 0 || v.Version == version) {
			at[v.Version] = len(usage)
			usage = append(usage, store.VersionUsage{Version: v.Version})
		}
	}
	if len(usage) == 0 {
		return nil, fmt.Errorf("definition %s/%s version %d: %w", namespace, name, version, store.ErrNotFound)
	}
	for i := range s.shards {
		for _, saga := range s.shards[i].sagas {
			j, ok := at[saga.Version]
			if !ok || saga.Namespace != namespace || saga.Definition != name {
				continue
			}
			u := &usage[j]
			u.Sagas++
			if saga.Status.Terminal() {
				continue
			}
			u.Unfinished++
			if len(u.Examples) < store.UsageExamplesMax {
				u.Examples = append(u.Examples, saga.ID)
			}
		}
	}
	return usage, nil
}

// DeleteDefinition deletes a version that no unfinished saga needs.
func (s *Store) DeleteDefinition(_ context.Context, namespace, name string, version int32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	versions := s.definitions[definitionKey{namespace, name}]
	if version < 1 || int(version) > len(versions) {
		return fmt.Errorf("definition %s/%s version %d: %w", namespace, name, version, store.ErrNotFound)
	}
	var unfinished int64
	for i := range s.shards {
		for _, k := range s.shards[i].unfinished {
			if saga := s.shards[i].sagas[k]; saga.Namespace == namespace && saga.Definition == name && saga.Version == version {
				unfinished++
			}
		}
	}
	if unfinished > 0 {
		return &store.InUseError{Namespace: namespace, Name: name, Version: version, Unfinished: unfinished}
	}
	if d := &versions[version-1]; d.DeletedAt.IsZero() {
		d.DeletedAt = s.now()
	}
	return nil
}

// deleted says that a saga's version of its definition was deleted.
func (s *Store) deleted(saga *store.Saga) bool {
	versions := s.definitions[definitionKey{saga.Namespace, saga.Definition}]
	return saga.Version >= 1 && int(saga.Version) <= len(versions) && !versions[saga.Version-1].DeletedAt.IsZero()
}

func copyDefinition(d store.Definition) store.Definition {
	d.Hash, d.Body = clone(d.Hash), clone(d.Body)
	return d
}
