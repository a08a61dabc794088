package memory

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/sagad/sagad/store"
)

// Unfinished returns a page of a shard's sagas that aren't terminal, with their histories.
func (s *Store) Unfinished(_ context.Context, shard int, after uuid.UUID, limit int) ([]store.Loaded, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if shard < 0 || shard >= len(s.shards) {
		return nil, nil
	}
	have := &s.shards[shard]
	runs := make([]uuid.UUID, 0, len(have.unfinished))
	for run := range have.unfinished {
		if compare(run, after) > 0 {
			runs = append(runs, run)
		}
	}
	slices.SortFunc(runs, compare)
	loaded := []store.Loaded{}
	for _, run := range page(runs, limit) {
		loaded = append(loaded, s.loaded(have.sagas[have.unfinished[run]]))
	}
	return loaded, nil
}

// Load returns those of the sagas that exist, with their histories.
func (s *Store) Load(_ context.Context, keys []store.Key) ([]store.Loaded, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	loaded := []store.Loaded{}
	for _, k := range keys {
		if saga, ok := s.saga(k); ok {
			loaded = append(loaded, s.loaded(saga))
		}
	}
	return loaded, nil
}

func (s *Store) loaded(saga store.Saga) store.Loaded {
	return store.Loaded{
		Saga:    copySaga(saga),
		History: copyRows(s.histories[historyKey{saga.Shard, saga.Run}]),
	}
}

func (s *Store) saga(k store.Key) (store.Saga, bool) {
	if k.Shard < 0 || k.Shard >= len(s.shards) {
		return store.Saga{}, false
	}
	saga, ok := s.shards[k.Shard].sagas[sagaKey{k.Namespace, k.ID}]
	return saga, ok
}

// Saga returns a saga's row.
func (s *Store) Saga(_ context.Context, key store.Key) (store.Saga, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	saga, ok := s.saga(key)
	if !ok {
		return store.Saga{}, fmt.Errorf("saga %s/%s: %w", key.Namespace, key.ID, store.ErrNotFound)
	}
	return copySaga(saga), nil
}

// Sagas returns a page of sagas.
func (s *Store) Sagas(_ context.Context, f store.SagaFilter) ([]store.Saga, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lowest, highest, ok := f.Runs()
	if !ok {
		return nil, nil
	}
	found := []store.Saga{}
	for i := range s.shards {
		for _, saga := range s.shards[i].sagas {
			if (f.Namespace == "" || saga.Namespace == f.Namespace) &&
				compare(saga.Run, lowest) >= 0 && compare(saga.Run, highest) <= 0 &&
				f.StatusBits()&(1<<saga.Status) != 0 &&
				(f.Definition == "" || saga.Definition == f.Definition) &&
				(f.Version == 0 || saga.Version == f.Version) &&
				strings.HasPrefix(saga.ID, f.IDPrefix) &&
				(f.StartedAfter.IsZero() || !saga.StartedAt.Before(micro(f.StartedAfter))) &&
				(f.StartedBefore.IsZero() || saga.StartedAt.Before(micro(f.StartedBefore))) {
				found = append(found, copySaga(saga))
			}
		}
	}
	slices.SortFunc(found, func(a, b store.Saga) int {
		if f.OldestFirst {
			return compare(a.Run, b.Run)
		}
		return compare(b.Run, a.Run)
	})
	return page(found, f.Limit), nil
}

// History returns a page of a saga's transitions.
func (s *Store) History(_ context.Context, shard int, run uuid.UUID, from int64, limit int) ([]store.Row, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := s.histories[historyKey{shard, run}]
	at, _ := find(rows, from)
	return copyRows(page(rows[at:], limit)), nil
}

// Items returns a page of operations items, oldest first.
func (s *Store) Items(_ context.Context, f store.ItemFilter) ([]store.Item, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	after := store.Item{OpenedAt: micro(f.AfterOpened), Run: f.AfterRun, Number: f.AfterNumber}
	found := []store.Item{}
	for _, item := range s.items {
		if (f.IncludeClosed || item.Status < store.ItemClosed) &&
			(f.Namespace == "" || item.Namespace == f.Namespace) &&
			(f.Definition == "" || item.Definition == f.Definition) &&
			(f.SagaID == "" || item.SagaID == f.SagaID) &&
			compareItems(item, after) > 0 {
			found = append(found, item)
		}
	}
	slices.SortFunc(found, compareItems)
	return page(found, f.Limit), nil
}

// CountItems counts open items by kind.
func (s *Store) CountItems(context.Context) (map[int16]int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := map[int16]int64{}
	for _, item := range s.items {
		if item.Status < store.ItemClosed {
			counts[item.Kind]++
		}
	}
	return counts, nil
}

// KeepStray keeps a result that fits nothing.
func (s *Store) KeepStray(_ context.Context, r store.Stray) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.At = micro(r.At)
	r.Namespace, r.SagaID, r.Step = store.Text(r.Namespace), store.Text(r.SagaID), store.Text(r.Step)
	r.Worker, r.Why = store.Text(r.Worker), store.Text(r.Why)
	s.strays = append(s.strays, r)
	if len(s.strays) >= store.StraysMax+100 {
		s.strays = slices.Clone(s.strays[len(s.strays)-store.StraysMax:])
	}
	return nil
}

// Strays returns the newest stray results, newest first.
func (s *Store) Strays(_ context.Context, limit int) ([]store.Stray, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	strays := slices.Clone(s.strays[max(0, len(s.strays)-store.Limit(limit)):])
	slices.Reverse(strays)
	return strays, nil
}

// Sizes tells how much is kept: sagas, unfinished ones and transitions.
func (s *Store) Sizes() (sagas, unfinished, transitions int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.shards {
		sagas += len(s.shards[i].sagas)
		unfinished += len(s.shards[i].unfinished)
	}
	for rows := range maps.Values(s.histories) {
		transitions += len(rows)
	}
	return sagas, unfinished, transitions
}

func page[T any](rows []T, limit int) []T { return rows[:min(len(rows), store.Limit(limit))] }

func copyRows(rows []store.Row) []store.Row {
	rows = append([]store.Row{}, rows...)
	for i := range rows {
		rows[i].Facts = clone(rows[i].Facts)
	}
	return rows
}

func compare(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }

func compareItems(a, b store.Item) int {
	return cmp.Or(a.OpenedAt.Compare(b.OpenedAt), compare(a.Run, b.Run), cmp.Compare(a.Number, b.Number))
}
