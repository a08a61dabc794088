package store

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

func TestRuns(t *testing.T) {
	at := time.UnixMilli(0x0123456789ab)
	id := uuid.MustParse("01234567-89ab-7000-8000-0000000000ff")
	hour := uint64(time.Hour / time.Millisecond)
	ms := func(n uint64) (u uuid.UUID) {
		for i := range 6 {
			u[i] = byte(n >> (40 - 8*i))
		}
		return u
	}
	for _, c := range []struct {
		name            string
		f               SagaFilter
		lowest, highest uuid.UUID
		none            bool
	}{
		{"all", SagaFilter{}, uuid.Nil, uuid.Max, false},
		{"after", SagaFilter{StartedAfter: at}, ms(0x0123456789ab - hour), uuid.Max, false},
		{"before", SagaFilter{StartedBefore: at}, uuid.Nil, ms(0x0123456789ab + hour), false},
		{"long ago", SagaFilter{StartedAfter: time.Unix(-1000, 0)}, uuid.Nil, uuid.Max, false},
		{"older than a run", SagaFilter{After: id}, uuid.Nil, uuid.MustParse("01234567-89ab-7000-8000-0000000000fe"), false},
		{"newer than a run", SagaFilter{After: id, OldestFirst: true}, uuid.MustParse("01234567-89ab-7000-8000-000000000100"), uuid.Max, false},
		{"newer than the last", SagaFilter{After: uuid.Max, OldestFirst: true}, uuid.Nil, uuid.Max, true},
		{"between nothing", SagaFilter{StartedAfter: at, StartedBefore: at.Add(-3 * time.Hour)}, ms(0x0123456789ab - hour), ms(0x0123456789ab - 2*hour), true},
	} {
		lowest, highest, ok := c.f.Runs()
		if lowest != c.lowest || highest != c.highest || ok == c.none {
			t.Errorf("%s: %v to %v, %v; want %v to %v, %v", c.name, lowest, highest, ok, c.lowest, c.highest, !c.none)
		}
	}
	// A UUIDv7 of the time lies between.
	lowest, _, _ := (&SagaFilter{StartedAfter: at}).Runs()
	if bytes.Compare(lowest[:], id[:]) >= 0 {
		t.Errorf("%v is above %v", lowest, id)
	}
}

func TestLimit(t *testing.T) {
	var got []int
	for _, limit := range []int{-1, 0, 1, LimitMax, LimitMax + 1} {
		got = append(got, Limit(limit))
	}
	if d := cmp.Diff([]int{LimitDefault, LimitDefault, 1, LimitMax, LimitMax}, got); d != "" {
		t.Errorf("limits (-want +got):\n%s", d)
	}
}

// TestShardOf: were a saga's shard ever another, it would be lost.
func TestShardOf(t *testing.T) {
	got := []int{
		ShardOf("", "", 64), ShardOf("default", "order-1", 64), ShardOf("default", "order-2", 64), ShardOf("defaul", "torder-1", 64),
		ShardOf("default", "order-1", 8), ShardOf("ü", "🦆", 4096),
	}
	if d := cmp.Diff([]int{38, 34, 8, 29, 2, 2886}, got); d != "" {
		t.Errorf("shards (-want +got):\n%s", d)
	}
	const shards = 64
	var count [shards]int
	for i := range 64_000 {
		count[ShardOf("default", "order-"+string(rune('a'+i%26))+time.Duration(i).String(), shards)]++
	}
	for shard, n := range count {
		if n < 800 || n > 1200 {
			t.Errorf("shard %d has %d of 64,000 sagas", shard, n)
		}
	}
}

func TestText(t *testing.T) {
	for in, want := range map[string]string{"": "", "as it is ü": "as it is ü", "a\x00b": "a\uFFFDb", "\xff\xfe": "\uFFFD", "\x00\xff": "\uFFFD\uFFFD"} {
		if got := Text(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
