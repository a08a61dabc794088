package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagad/sagad/store"
)

// Commit writes the batches in one statement. A definite failure that may pass (a deadlock, a lock timeout, no room, a
// read-only server) is resent a few times and then reported as Unknown, which asks for the same: send it again. If a
// statement for several batches is refused, each is sent by itself, so that only the guilty one is refused.
func (s *Store) Commit(ctx context.Context, batches []store.Batch) ([]store.Result, error) {
	results := make([]store.Result, len(batches))
	if len(batches) == 0 {
		return results, nil
	}
	if err := store.Check(batches); err != nil {
		for i := range results {
			results[i] = store.Refused
		}
		return results, err
	}
	// A caller's context is never put on a commit: its end would make pgx cancel a statement that may be committing.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()

	sorted, was := store.ByShard(batches)
	got, refused, err := s.send(ctx, sorted)
	if refused && len(sorted) > 1 {
		got, err = make([]int16, len(sorted)), nil
		for i := range sorted {
			one, refused, oneErr := s.send(ctx, sorted[i:i+1])
			switch {
			case refused:
				got[i] = int16(store.Refused)
			case oneErr == nil:
				got[i] = one[0]
			}
			err = errors.Join(err, oneErr)
		}
	} else if refused {
		got = []int16{int16(store.Refused)}
	}
	for i := range got {
		results[was[i]] = store.Result(got[i])
	}
	return results, err
}

// send sends one statement, again if that is safe and promising. No results means that the outcome is unknown, or refused.
func (s *Store) send(ctx context.Context, batches []*store.Batch) (results []int16, refused bool, err error) {
	params := commitParams(batches)
	for attempt := 0; ; attempt++ {
		results, err = s.q.Commit(ctx, s.main, params)
		if err == nil {
			if len(results) != len(batches) {
				return nil, false, fmt.Errorf("commit: %d results for %d batches", len(results), len(batches))
			}
			return results, false, nil
		}
		switch classify(err) {
		case outcomeRefused:
			if gone := deletedError(err); gone != nil {
				return nil, true, fmt.Errorf("commit of shard %d: %w", batches[0].Grant.Shard, gone)
			}
			return nil, true, fmt.Errorf("commit of shard %d: %w", batches[0].Grant.Shard, err)
		case outcomeUnknown:
			return nil, false, fmt.Errorf("commit of %d batches: outcome unknown: %w", len(batches), err)
		case outcomeReadOnly:
			// The server that these connections lead to isn't the primary any more.
			s.main.Reset()
		}
		if attempt == 4 {
			return nil, false, fmt.Errorf("commit of %d batches: not committed, send it again: %w", len(batches), err)
		}
		wait := time.Duration(1+rand.IntN(10<<attempt)) * time.Millisecond
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, false, fmt.Errorf("commit of %d batches: not committed, send it again: %w", len(batches), err)
		}
	}
}

// outcome is what an error tells of a statement that was sent.
type outcome int

const (
	// outcomeUnknown: it may have been committed.
	outcomeUnknown outcome = iota
	// outcomeAgain: it has not, and sending it again may help.
	outcomeAgain
	// outcomeReadOnly is as outcomeAgain, on another connection.
	outcomeReadOnly
	// outcomeRefused: it has not, and sending it again won't help.
	outcomeRefused
)

// classify goes by what is known. What isn't a definite answer is unknown: to take a definite failure for an unknown one costs
// one resending, the other way round it would cost a commit.
func classify(err error) outcome {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		if pgconn.SafeToRetry(err) {
			return outcomeAgain // nothing was sent
		}
		return outcomeUnknown
	}
	switch code := pg.Code; {
	case code == "40003": // statement completion unknown
		return outcomeUnknown
	case code == "25006": // read-only transaction
		return outcomeReadOnly
	case code == "42P05" || code == "26000": // a pooler mixed prepared statements up: see Config.DSN
		return outcomeAgain
	case strings.HasPrefix(code, "40"), strings.HasPrefix(code, "53"), strings.HasPrefix(code, "54"),
		strings.HasPrefix(code, "55"):
		return outcomeAgain
	case strings.HasPrefix(code, "22"), strings.HasPrefix(code, "23"), strings.HasPrefix(code, "42"):
		return outcomeRefused
	default:
		return outcomeUnknown
	}
}
