package store

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/google/uuid"
)

const (
	// LimitDefault is how many rows a page has if no limit is given.
	LimitDefault = 100
	// LimitMax is the largest page.
	LimitMax = 10_000
	// StraysMax is how many of the newest strays are kept, at least; a hundred more may be.
	StraysMax = 10_000
	// UsageVersionsMax is how many versions an answer about usage has, and UsageExamplesMax how many ids of each.
	UsageVersionsMax = 1000
	UsageExamplesMax = 10
	// ItemClosed is history.v1's number for a closed item.
	ItemClosed int16 = 3
)

// Limit is how many rows a page has that is asked for with this limit.
func Limit(limit int) int {
	if limit <= 0 {
		return LimitDefault
	}
	return min(limit, LimitMax)
}

// runSlack is how far a run's time may be from the saga's start: runs only narrow a search down by time, the start itself
// decides.
const runSlack = time.Hour

// Runs are the lowest and the highest run that the filter can choose; ok is false if there are none. They let a store
// search by its index of runs.
func (f *SagaFilter) Runs() (lowest, highest uuid.UUID, ok bool) {
	highest = uuid.Max
	if !f.StartedAfter.IsZero() {
		lowest = runAt(f.StartedAfter.Add(-runSlack))
	}
	if !f.StartedBefore.IsZero() {
		highest = runAt(f.StartedBefore.Add(runSlack))
	}
	if f.After != uuid.Nil {
		if f.OldestFirst {
			if f.After == uuid.Max {
				return lowest, highest, false
			}
			lowest = later(lowest, step(f.After, 1))
		} else {
			highest = earlier(highest, step(f.After, -1))
		}
	}
	return lowest, highest, later(lowest, highest) == highest
}

// StatusBits has bit s set for each status s that the filter chooses.
func (f *SagaFilter) StatusBits() int32 {
	if len(f.Statuses) == 0 {
		return math.MaxInt32
	}
	var bits int32
	for _, s := range f.Statuses {
		if s >= 0 && s < 31 {
			bits |= 1 << s
		}
	}
	return bits
}

// runAt is the lowest UUIDv7 of a time.
func runAt(t time.Time) (id uuid.UUID) {
	ms := min(max(t.UnixMilli(), 0), 1<<48-1)
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(ms))
	copy(id[:6], b[2:])
	return id
}

// step is the next or the previous id.
func step(id uuid.UUID, by int) uuid.UUID {
	for i := len(id) - 1; i >= 0; i-- {
		id[i] += byte(by)
		if by > 0 && id[i] != 0 || by < 0 && id[i] != 255 {
			break
		}
	}
	return id
}

func later(a, b uuid.UUID) uuid.UUID {
	if string(a[:]) > string(b[:]) {
		return a
	}
	return b
}

func earlier(a, b uuid.UUID) uuid.UUID {
	if string(a[:]) < string(b[:]) {
		return a
	}
	return b
}
