package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sagad/sagad/store"
)

func testMeta(t *testing.T, s store.Store) {
	meta, err := s.Meta(t.Context())
	check(t, err)
	if meta.Shards < 8 || meta.ClusterID == uuid.Nil || len(meta.TokenKey) != 32 || bytes.Equal(meta.TokenKey, make([]byte, 32)) {
		t.Errorf("meta: %d shards, cluster %v, a token key of %d bytes", meta.Shards, meta.ClusterID, len(meta.TokenKey))
	}
	again, err := s.Meta(t.Context())
	check(t, err)
	same(t, "meta, asked again", meta, again)
	check(t, s.Ping(t.Context()))
	now, err := s.Now(t.Context())
	check(t, err)
	if off := time.Since(now).Abs(); off > time.Minute || now.Location() != time.UTC {
		t.Errorf("the clock says %v, which is %v off", now, off)
	}
}

func testFence(t *testing.T, s store.Store) {
	o := own(t, s)
	first := saga(3, "first")
	o.start(first)
	o.commit(3, step(first, 2))

	next := o.batch(3, step(first, 3), start(saga(3, "second")))
	for _, c := range []struct {
		name   string
		change func(b *store.Batch)
		want   store.Result
	}{
		{"an older epoch", func(b *store.Batch) { b.Grant.Epoch-- }, store.Fenced},
		{"an older epoch with a wrong number", func(b *store.Batch) { b.Grant.Epoch--; b.Seq = 99 }, store.Fenced},
		{"the same epoch, another grant", func(b *store.Batch) { b.Grant.ID = uuid.New() }, store.Fenced},
		{"an epoch that the database lost", func(b *store.Batch) { b.Grant.Epoch++ }, store.Regressed},
		{"a batch before it that the database lost", func(b *store.Batch) { b.Seq++ }, store.Regressed},
		{"the batch before", func(b *store.Batch) { b.Seq-- }, store.Already},
		{"an earlier batch", func(b *store.Batch) { b.Seq -= 2 }, 0}, // Seq 1 is committed, too
	} {
		b := next
		c.change(&b)
		if c.want == 0 {
			b.Seq, c.want = 1, store.Already
		}
		got, err := s.Commit(t.Context(), []store.Batch{b})
		check(t, err)
		if got[0] != c.want {
			t.Errorf("%s: %v, want %v", c.name, got[0], c.want)
		}
		same(t, c.name+": history", []int64{1, 2}, numbers(history(t, s, first)))
	}
	expect(t, s, []store.Batch{next}, store.Committed)
	same(t, "history", []int64{1, 2, 3}, numbers(history(t, s, first)))
}

func testFenceOfManyShards(t *testing.T, s store.Store) {
	o := own(t, s)
	sagas := make([]*store.Saga, 7)
	for i := range sagas {
		sagas[i] = saga(i, fmt.Sprint("saga ", i))
		o.start(sagas[i])
	}
	b := make([]store.Batch, 7)
	for i := range b {
		done := changed(sagas[i], 2, store.Completed)
		b[i] = o.batch(i, change(done), start(saga(i, fmt.Sprint("new ", i))))
	}
	b[1].Grant.Epoch--
	b[2].Seq--
	b[3].Transitions[1].Saga.ID = "saga 3" // is there already
	b[4].Grant.ID = uuid.New()
	b[5].Seq++
	// Neither in order, nor without gaps.
	expect(t, s, []store.Batch{b[6], b[2], b[3], b[0], b[5], b[1], b[4]},
		store.Committed, store.Already, store.Refused, store.Committed, store.Regressed, store.Fenced, store.Fenced)
	for i, want := range []bool{true, false, false, false, false, false, true} {
		got, err := s.Saga(t.Context(), store.Key{Shard: i, Namespace: "default", ID: fmt.Sprint("saga ", i)})
		check(t, err)
		if written := got.Status == store.Completed; written != want {
			t.Errorf("shard %d: written %v, want %v", i, written, want)
		}
		if written := len(history(t, s, sagas[i])) == 2; written != want {
			t.Errorf("shard %d: history written %v, want %v", i, written, want)
		}
		_, err = s.Saga(t.Context(), store.Key{Shard: i, Namespace: "default", ID: fmt.Sprint("new ", i)})
		if written := err == nil; written != want || err != nil && !errors.Is(err, store.ErrNotFound) {
			t.Errorf("shard %d: new saga written %v (%v), want %v", i, written, err, want)
		}
	}
	// Each shard goes on with the number that is due to it.
	for i := range 7 {
		if i == 0 || i == 6 {
			o.seqs[i]++
		}
		o.commit(i, start(saga(i, fmt.Sprint("later ", i))))
	}
}

func testResend(t *testing.T, s store.Store) {
	o := own(t, s)
	one := saga(0, "one")
	b := o.batch(0, start(one), step(one, 2))
	expect(t, s, []store.Batch{b}, store.Committed)
	for range 3 {
		expect(t, s, []store.Batch{b}, store.Already)
	}
	o.seqs[0]++
	o.commit(0, step(one, 3))
	expect(t, s, []store.Batch{b}, store.Already)
	same(t, "history", []int64{1, 2, 3}, numbers(history(t, s, one)))
}

// testResendAtOnce sends a batch again while it is on its way, as an owner does whose connection broke.
func testResendAtOnce(t *testing.T, s store.Store) {
	o := own(t, s)
	for i := range 20 {
		one := saga(0, fmt.Sprint("saga ", i))
		b := []store.Batch{o.batch(0, start(one), step(one, 2))}
		var results [3]store.Result
		var wg sync.WaitGroup
		for j := range results {
			wg.Go(func() {
				got, err := s.Commit(background(t), b)
				if err != nil {
					t.Error(err)
				}
				results[j] = got[0]
			})
		}
		wg.Wait()
		count := map[store.Result]int{}
		for _, r := range results {
			count[r]++
		}
		same(t, "results", map[store.Result]int{store.Committed: 1, store.Already: 2}, count)
		same(t, "history", []int64{1, 2}, numbers(history(t, s, one)))
		o.seqs[0]++
	}
}

func testAtomic(t *testing.T, s store.Store) {
	o := own(t, s)
	old := saga(2, "old")
	o.start(old)
	o.commit(2, step(old, 2))
	other := *old
	other.Run = run(base)
	invalid := saga(2, "invalid")
	invalid.Status = 0
	for _, c := range []struct {
		name string
		bad  store.Transition
	}{
		{"a transition that is there already", step(old, 2)},
		{"the same transition twice", step(saga(2, "new"), 1)},
		{"a start of a saga that is there already", start(&other)},
		{"an update of a saga that isn't there", change(changed(saga(2, "missing"), 2, store.Stuck))},
		{"an update of another run", change(changed(&other, 3, store.Stuck))},
		{"a status that isn't one", start(invalid)},
	} {
		fresh := saga(2, "new")
		if c.name == "the same transition twice" {
			c.bad.Run = fresh.Run
		}
		item := store.Item{Namespace: "default", SagaID: "new", Run: fresh.Run, Number: 1, Status: 1, OpenedAt: base, ChangedAt: base}
		first := start(fresh)
		first.Items = []store.Item{item}
		expect(t, s, []store.Batch{o.batch(2, first, step(old, 3), c.bad)}, store.Refused)
		same(t, c.name+": history", []int64{1, 2}, numbers(history(t, s, old)))
		if _, err := s.Saga(t.Context(), store.Key{Shard: 2, Namespace: "default", ID: "new"}); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s: the batch's other saga: %v, want it not found", c.name, err)
		}
		items, err := s.Items(t.Context(), store.ItemFilter{})
		check(t, err)
		same(t, c.name+": items", 0, len(items))
	}
	// The number is still free.
	o.commit(2, step(old, 3))
}

func testMisuse(t *testing.T, s store.Store) {
	o := own(t, s)
	one := saga(1, "one")
	elsewhere := start(saga(2, "elsewhere"))
	strange := start(saga(1, "strange"))
	strange.Items = []store.Item{{Run: run(base), Number: 1}}
	huge := step(one, 1<<31)
	for name, batches := range map[string][]store.Batch{
		"two batches of a shard":   {o.batch(1, start(one)), o.batch(1, step(one, 2))},
		"another shard's saga":     {o.batch(1, elsewhere)},
		"another saga's item":      {o.batch(1, strange)},
		"number 0":                 {o.batch(1, step(one, 0))},
		"a number out of range":    {o.batch(1, huge)},
		"a shard below 0":          {{Grant: store.Grant{Shard: -1}, Seq: 1}},
		"a sequence number of 0":   {{Grant: o.grants[1], Seq: 0}},
		"a good one and a bad one": {o.batch(0, start(saga(0, "good"))), o.batch(1, elsewhere)},
	} {
		got, err := s.Commit(t.Context(), batches)
		for _, r := range got {
			if r != store.Refused || err == nil {
				t.Errorf("%s: %v, %v; want refused", name, got, err)
			}
		}
	}
	expect(t, s, []store.Batch{{Grant: store.Grant{Shard: 1 << 20, Epoch: 1}, Seq: 1}}, store.Regressed)
	expect(t, s, nil)
	// A batch without transitions takes its number.
	o.commit(1)
	expect(t, s, []store.Batch{{Grant: o.grants[1], Seq: 1}}, store.Already)
}

// testEndedContext: a caller that goes away must not leave a commit half done.
func testEndedContext(t *testing.T, s store.Store) {
	o := own(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got, err := s.Commit(ctx, []store.Batch{o.batch(0, start(saga(0, "one")))})
	check(t, err)
	same(t, "results", []store.Result{store.Committed}, got)
}

func testSagaRow(t *testing.T, s store.Store) {
	o := own(t, s)
	full := saga(1, "full")
	full.Deadline = base.Add(time.Hour)
	full.Labels = map[string]string{"region": "eu", "tier": "gold"}
	full.Cause = []byte{0, 1, 2}
	full.SettledByHand = 3
	key := store.Key{Shard: 1, Namespace: "default", ID: "full"}
	read := func(name string, want *store.Saga) {
		t.Helper()
		got, err := s.Saga(t.Context(), key)
		check(t, err)
		same(t, name, *want, got)
	}
	o.start(full)
	read("started", full)

	o.commit(1, step(full, 2))
	read("a step changes nothing", full)

	moved := changed(full, 3, store.Compensating)
	moved.Definition, moved.Version, moved.Deadline, moved.Labels, moved.Cause, moved.SettledByHand = "order-2", 7, time.Time{}, nil, nil, 0
	o.commit(1, change(moved))
	read("changed", moved)

	stuck, done := changed(moved, 4, store.Stuck), changed(moved, 6, store.Compensated)
	o.commit(1, change(stuck), step(full, 5), change(done))
	read("changed twice in a batch", done)

	for _, n := range []int64{3, 6} {
		b := o.batch(1, change(changed(done, n, store.Running)))
		b.Transitions[0].N, b.Transitions[0].Saga.N = n, n
		expect(t, s, []store.Batch{b}, store.Refused)
	}
	read("older rows are refused", done)

	// Started and finished in one batch.
	quick := saga(1, "quick")
	key.ID = "quick"
	o.commit(1, start(quick), change(changed(quick, 2, store.Completed)))
	read("started and finished at once", changed(quick, 2, store.Completed))

	// The same id in another namespace is another saga.
	twin := saga(1, "full")
	twin.Namespace = "other"
	o.start(twin)
	key = store.Key{Shard: 1, Namespace: "other", ID: "full"}
	read("another namespace", twin)

	for _, k := range []store.Key{{Shard: 1, Namespace: "default", ID: "none"}, {Shard: 2, Namespace: "default", ID: "full"}} {
		if _, err := s.Saga(t.Context(), k); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%v: %v, want ErrNotFound", k, err)
		}
	}
}

func testHistory(t *testing.T, s store.Store) {
	o := own(t, s)
	one, two := saga(5, "one"), saga(5, "two")
	o.start(one, two)
	var want []store.Row
	row := func(tr store.Transition, seq int64) store.Row {
		return store.Row{Run: tr.Run, N: tr.N, Epoch: o.grants[5].Epoch, Seq: seq, At: tr.At, Facts: tr.Facts}
	}
	want = append(want, row(start(one), 1))
	for n := int64(2); n <= 30; n += 2 {
		o.commit(5, step(one, n), step(two, n), step(one, n+1), step(two, n+1))
		want = append(want, row(step(one, n), n/2+1), row(step(one, n+1), n/2+1))
	}
	same(t, "whole", want, history(t, s, one))
	for _, c := range []struct {
		from  int64
		limit int
		want  []store.Row
	}{
		{0, 5, want[:5]}, {1, 5, want[:5]}, {7, 5, want[6:11]}, {29, 100, want[28:]}, {32, 100, nil}, {-5, 3, want[:3]},
		{1 << 40, 3, nil}, {1, 0, want},
	} {
		got, err := s.History(t.Context(), 5, one.Run, c.from, c.limit)
		check(t, err)
		same(t, fmt.Sprintf("from %d, limit %d", c.from, c.limit), c.want, got)
	}
	for name, k := range map[string]*store.Saga{"another shard": {Shard: 4, Run: one.Run}, "another run": {Shard: 5, Run: run(base)}} {
		same(t, name, []store.Row{}, history(t, s, k))
	}
}

func testRoundTrip(t *testing.T, s store.Store) {
	o := own(t, s)
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	const hard = "Zoë 🦆 ' \" \\ % _ ; -- \u202e $1 ?1 {} \t\r\n"
	one := saga(4, hard)
	one.Namespace, one.Definition = "ns "+hard, "def "+hard
	one.Digest, one.Cause = every, every
	one.Labels = map[string]string{hard: hard, "": "", "k": strings.Repeat("v", 5000)}
	one.StartedAt = base.Add(1500 * time.Nanosecond) // kept in microseconds
	one.Deadline = time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.FixedZone("", 3600))
	big := bytes.Repeat(every, 1024)
	first, second, third := start(one), step(one, 2), step(one, 3)
	first.Facts, second.Facts, third.Facts = every, nil, big
	third.At = base.Add(999 * time.Nanosecond)
	first.Items = []store.Item{{
		Namespace: one.Namespace, SagaID: hard, Run: one.Run, Number: 1, Definition: one.Definition, Kind: 1, Status: 1,
		Step: hard, Code: hard, Message: "NUL \x00, not UTF-8 \xff\xfe, " + hard, Fingerprint: hard, How: hard,
		OpenedAt: base, ChangedAt: base, Version: 1,
	}}
	o.commit(4, first, second, third)

	want := *one
	want.StartedAt, want.Deadline = base.Add(time.Microsecond), one.Deadline.UTC()
	got, err := s.Load(t.Context(), []store.Key{{Shard: 4, Namespace: one.Namespace, ID: hard}})
	check(t, err)
	rows := []store.Row{
		{Run: one.Run, N: 1, Epoch: o.grants[4].Epoch, Seq: 1, At: first.At, Facts: every},
		{Run: one.Run, N: 2, Epoch: o.grants[4].Epoch, Seq: 1, At: second.At, Facts: []byte{}},
		{Run: one.Run, N: 3, Epoch: o.grants[4].Epoch, Seq: 1, At: base, Facts: big},
	}
	same(t, "loaded", []store.Loaded{{Saga: want, History: rows}}, got)
	same(t, "history", rows, history(t, s, one))
	items, err := s.Items(t.Context(), store.ItemFilter{Namespace: one.Namespace, SagaID: hard, Definition: one.Definition})
	check(t, err)
	item := first.Items[0]
	item.Message = "NUL \uFFFD, not UTF-8 \uFFFD, " + hard // what can't be stored is replaced, never a reason to fail
	same(t, "items", []store.Item{item}, items)
	listed, err := s.Sagas(t.Context(), store.SagaFilter{Namespace: one.Namespace, IDPrefix: "Zoë 🦆", Definition: one.Definition})
	check(t, err)
	same(t, "listed", []store.Saga{want}, listed)
	for _, prefix := range []string{"%", "_", "Z_", "zoë"} {
		listed, err := s.Sagas(t.Context(), store.SagaFilter{Namespace: one.Namespace, IDPrefix: prefix})
		check(t, err)
		same(t, "listed by "+prefix, 0, len(listed))
	}
}

func testCommitAtOnce(t *testing.T, s store.Store) {
	o := own(t, s)
	const perShard = 40
	sagas := make([]*store.Saga, 8)
	var wg sync.WaitGroup
	for shard := range sagas {
		sagas[shard] = saga(shard, fmt.Sprint("saga ", shard))
		wg.Go(func() {
			for i := int64(1); i <= perShard; i++ {
				tr := step(sagas[shard], i)
				if i == 1 {
					tr = start(sagas[shard])
				}
				got, err := s.Commit(background(t), []store.Batch{{Grant: o.grants[shard], Seq: i, Transitions: []store.Transition{tr}}})
				if err != nil || got[0] != store.Committed {
					t.Errorf("shard %d, batch %d: %v, %v", shard, i, got, err)
					return
				}
			}
		})
	}
	wg.Wait()
	for _, one := range sagas {
		rows := history(t, s, one)
		if len(rows) != perShard {
			t.Errorf("shard %d: %d transitions, want %d", one.Shard, len(rows), perShard)
		}
		for i, r := range rows {
			if r.N != int64(i+1) || r.Seq != int64(i+1) {
				t.Errorf("shard %d: transition %d is number %d of batch %d", one.Shard, i+1, r.N, r.Seq)
			}
		}
	}
}
