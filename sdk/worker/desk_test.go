package worker

import (
	"testing"
	"time"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
)

func TestDeliveries(t *testing.T) {
	for reply, want := range map[string]int{
		"$JS.ACK.SAGAD_TASKS.shop=do=a.1.7.8.1700000000000000000.0":                 1,
		"$JS.ACK.SAGAD_TASKS.shop=do=a.3.7.8.1700000000000000000.0":                 3,
		"$JS.ACK.hub.ABCDEF.SAGAD_TASKS.shop=do=a.4.7.8.1700000000000000000.0":      4,
		"$JS.ACK.hub.ABCDEF.SAGAD_TASKS.shop=do=a.1.7.8.1700000000000000000.0.rand": 1,
		"": 1, "_INBOX.x": 1, "$JS.ACK.SAGAD_TASKS.c.x.7.8.9.0": 1,
	} {
		if got := deliveryOf(reply).n; got != want {
			t.Errorf("%s: %d, want %d", reply, got, want)
		}
	}
}

// The engine's clock counts, and a task never gets more time than its timeout.
func TestDeadlines(t *testing.T) {
	now := time.Now()
	at := func(d time.Duration) int64 { return now.Add(d).UnixMicro() }
	for name, c := range map[string]struct {
		deadline, timeout int64
		clock             time.Duration // what this machine's clock is behind the engine's
		want              time.Duration
		expired           bool
	}{
		"in time":            {deadline: at(10 * time.Second), timeout: 30_000_000, want: 10 * time.Second},
		"over":               {deadline: at(-time.Second), timeout: 30_000_000, expired: true},
		"clock behind":       {deadline: at(time.Hour), timeout: 30_000_000, want: 30 * time.Second},
		"clock ahead":        {deadline: at(-50 * time.Minute), timeout: 30_000_000, clock: -time.Hour, want: 30 * time.Second},
		"clock behind, told": {deadline: at(time.Hour + 10*time.Second), timeout: 30_000_000, clock: time.Hour, want: 10 * time.Second},
		"late, told":         {deadline: at(time.Minute), timeout: 30_000_000, clock: 2 * time.Minute, expired: true},
		"no deadline":        {timeout: 5_000_000, want: 5 * time.Second},
		"neither":            {expired: true},
	} {
		w := &Worker{}
		w.clock.Store(c.clock.Microseconds())
		got, ok := w.deadline(&workerv1.Task{DeadlineUs: c.deadline, TimeoutUs: c.timeout}, now)
		if ok == c.expired {
			t.Errorf("%s: expired %v", name, !ok)
		} else if diff := got.Sub(now) - c.want; ok && (diff > time.Second || diff < -time.Second) {
			t.Errorf("%s: %v, want %v", name, got.Sub(now), c.want)
		}
	}
}
