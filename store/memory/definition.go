package memory

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/sagad/sagad/store"
)

// PutDefinition registers a definition under the next version, or finds the version with its hash.
func (s *Store) PutDefinition(_ context.Context, d store.Definition) (_ store.Definition, created bool, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := definitionKey{d.Namespace, d.Name}
	for _, old := range s.definitions[k] {
		if bytes.Equal(old.Hash, d.Hash) {
			return copyDefinition(old), false, nil
		}
	}
	if d.RegisteredAt.IsZero() {
		d.RegisteredAt = s.clock()
	}
	d.RegisteredAt = micro(d.RegisteredAt)
	d.Version = int32(len(s.definitions[k]) + 1)
	d = copyDefinition(d)
	s.definitions[k] = append(s.definitions[k], d)
	return copyDefinition(d), true, nil
}

// Definition returns a version, the latest for 0.
func (s *Store) Definition(_ context.Context, namespace, name string, version int32) (store.Definition, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	versions := s.definitions[definitionKey{namespace, name}]
	if version == 0 {
		version = int32(len(versions))
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
			if k.namespace == namespace && k.name > after {
				found = append(found, versions[len(versions)-1])
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
	}
	found = page(found, limit)
	for i := range found {
		found[i] = copyDefinition(found[i])
		found[i].Body = nil
	}
	return found, nil
}

func copyDefinition(d store.Definition) store.Definition {
	d.Hash, d.Body = clone(d.Hash), clone(d.Body)
	return d
}
