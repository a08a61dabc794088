package sim

import (
	"bufio"
	"flag"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	seedFlag  = flag.Int64("sim.seed", -1, "run this seed alone")
	traceFlag = flag.Bool("sim.trace", false, "write every decision of the seed to standard output")
	seedsFlag = flag.Uint64("sim.seeds", seedsCI, "how many seeds to run")
	firstFlag = flag.Uint64("sim.first", 0, "the first of the seeds to run")
)

const (
	// seedsCI is what every submission runs, seedsShort what go test -short does.
	seedsCI, seedsShort = 10_000, 300
	// runners are the goroutines that run seeds, each its own.
	runners = 2
)

// floors of a full run: a quiet day of the fault injector, or of the generator, is a failure too. Changing the simulator
// changes what a seed does, so they stand at about 70 % of what was measured.
var floors = struct {
	sagas, events, faults, unknown, virtualHours int
}{sagas: 480_000, events: 50_000_000, faults: 2_600_000, unknown: 190_000, virtualHours: 1_800}

// TestSim lives through many random lives of a cluster. A failing seed is run again, alone, by what it prints.
func TestSim(t *testing.T) {
	if *seedFlag >= 0 {
		one(t, uint64(*seedFlag))
		return
	}
	seeds := *seedsFlag
	if testing.Short() && seeds == seedsCI {
		seeds = seedsShort
	}
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // worlds are small and short-lived
	began := time.Now()
	total := run(t, *firstFlag, seeds)
	t.Logf("seeds %d, sagas %d, virtual hours %.0f, events %d, commits %d, faults %d, unknown commits %d (%d had landed, %d had not), ends %v, in %v",
		total.seeds, total.Sagas, total.Virtual.Hours(), total.Events, total.Commits, sum(total.Faults), total.UnknownLanded+total.UnknownLost,
		total.UnknownLanded, total.UnknownLost, total.Ends, time.Since(began).Round(time.Second))
	names := slices.SortedFunc(maps.Keys(rare), func(a, b string) int { return total.Rare[a] - total.Rare[b] })
	for _, name := range names[:5] {
		t.Logf("met %d times: %s", total.Rare[name], name)
	}
	if testing.Short() || seeds < seedsCI || t.Failed() {
		return
	}
	floor := func(what string, have, want int) {
		if have < want {
			t.Errorf("%s: %d, the floor is %d", what, have, want)
		}
	}
	floor("sagas", total.Sagas, floors.sagas)
	floor("events", total.Events, floors.events)
	floor("faults", sum(total.Faults), floors.faults)
	floor("unknown commits", total.UnknownLanded+total.UnknownLost, floors.unknown)
	floor("virtual hours", int(total.Virtual.Hours()), floors.virtualHours)
	var missing []string
	for name := range rare {
		if total.Rare[name] == 0 {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	if len(missing) > 0 {
		t.Errorf("%d of %d rare situations weren't met:\n\t%s", len(missing), len(rare), strings.Join(missing, "\n\t"))
	}
	if len(rare) < 60 {
		t.Errorf("only %d rare situations are registered", len(rare))
	}
}

func one(t *testing.T, seed uint64) {
	var o *Outcome
	if *traceFlag {
		w := bufio.NewWriter(os.Stdout)
		o = Run(seed, w)
		w.Flush()
	} else {
		o = Run(seed, nil)
	}
	if o.Violation != nil {
		t.Error(o.Violation)
	}
	t.Logf("seed %d: hash %016x, %d sagas, %d events, %v of virtual time, ends %v, faults %v", seed, o.Hash, o.Sagas, o.Events, o.Virtual, o.Ends, o.Faults)
}

type totals struct {
	Outcome
	seeds int
}

// run runs seeds on some goroutines. Each seed has one, so it does the same whatever the others do.
func run(t *testing.T, first, seeds uint64) *totals {
	total := &totals{Outcome: *newOutcome(0)}
	var next, failures atomic.Uint64
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range runners {
		wg.Go(func() {
			for {
				n := next.Add(1) - 1
				if n >= seeds || failures.Load() >= 5 {
					return
				}
				seed := first + n
				o := Run(seed, nil)
				if o.Violation != nil {
					failures.Add(1)
					t.Errorf("%v\nrun it again with: go test ./engine/enginetest/sim -run TestSim$ -v -sim.seed=%d -sim.trace", o.Violation, seed)
				}
				mu.Lock()
				total.add(o)
				mu.Unlock()
				if n%97 == 0 {
					// The same seed does the same, bit for bit.
					if again := Run(seed, nil); again.Hash != o.Hash {
						t.Errorf("seed %d: another run of it does something else", seed)
					}
				}
			}
		})
	}
	wg.Wait()
	return total
}

func (t *totals) add(o *Outcome) {
	t.seeds++
	t.Sagas += o.Sagas
	t.Events += o.Events
	t.Commits += o.Commits
	t.UnknownLanded += o.UnknownLanded
	t.UnknownLost += o.UnknownLost
	t.Virtual += o.Virtual
	for k, n := range o.Faults {
		t.Faults[k] += n
	}
	for k, n := range o.Rare {
		t.Rare[k] += n
	}
	for k, n := range o.Ends {
		t.Ends[k] += n
	}
}

func sum(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// TestSameSeed: a seed does the same each time, and another seed doesn't; with a trace as without one.
func TestSameSeed(t *testing.T) {
	seen := map[uint64]uint64{}
	for seed := range uint64(20) {
		o := Run(seed, nil)
		var b strings.Builder
		if again := Run(seed, &b); again.Hash != o.Hash || again.Events != o.Events {
			t.Errorf("seed %d: %016x, and then %016x", seed, o.Hash, again.Hash)
		}
		if b.Len() == 0 {
			t.Errorf("seed %d: there is no trail", seed)
		}
		if other, ok := seen[o.Hash]; ok {
			t.Errorf("seeds %d and %d do the same", seed, other)
		}
		seen[o.Hash] = seed
	}
}

// TestRare prints how often each rare situation was met, for whoever tunes the settings: -v -run TestRare.
func TestRare(t *testing.T) {
	if !testing.Verbose() {
		t.Skip("run it with -v: it only prints")
	}
	total := run(t, 0, 500)
	names := make([]string, 0, len(rare))
	for name := range rare {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return total.Rare[b] - total.Rare[a] })
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, "%9d %s\n", total.Rare[name], name)
	}
	t.Logf("in %d seeds:\n%s", total.seeds, b.String())
}
