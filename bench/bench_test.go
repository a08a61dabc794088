package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The test binary is also what the processes with a role are.
func TestMain(m *testing.M) {
	if role, ok := strings.CutPrefix(first(os.Args[1:]), "-role="); ok {
		os.Exit(child(context.Background(), role, os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// A whole run on SQLite, with the proof that nothing is missing and nothing is done twice.
func TestSession(t *testing.T) {
	for _, c := range []struct {
		part, via string
		load      load
	}{
		{partCommit, viaCommit, load{InFlight: 16, Warmup: 0.1, Seconds: 0.5}},
		{partUnwind, viaCommit, load{InFlight: 16, Warmup: 0.1, Seconds: 0.5}},
		{partCommit, viaAPI, load{Rate: 50, Seconds: 0.5}},
		{partUnwind, viaHTTP, load{InFlight: 4, Seconds: 0.5}},
	} {
		t.Run(c.part+" via "+c.via, func(t *testing.T) {
			s := &suite{dir: t.TempDir(), stderr: os.Stderr}
			x, err := s.open(t.Context(), onSQLite, c.part)
			if err != nil {
				t.Fatal(err)
			}
			f, err := x.load(t.Context(), loadCommand{load: c.load, Mode: c.part, Via: c.via})
			if err := errors.Join(err, x.close(t.Context(), err)); err != nil {
				t.Fatal(err)
			}
			if f.Sagas < 1 || f.P50ms <= 0 || f.P99ms < f.P50ms || f.Commits <= 0 || x.total < int64(f.Sagas) {
				t.Errorf("%d sagas in all, %+v", x.total, f)
			}
		})
	}
}

// What isn't so must void a run's figures.
func TestProofFails(t *testing.T) {
	s := &suite{dir: t.TempDir(), stderr: os.Stderr}
	x, err := s.open(t.Context(), onSQLite, partCommit)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = x.load(t.Context(), loadCommand{load: load{InFlight: 1, Seconds: 0.2}, Mode: partCommit, Via: viaCommit}); err != nil {
		t.Fatal(errors.Join(err, x.close(t.Context(), err)))
	}
	x.total++
	if err := x.close(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "void") {
		t.Errorf("%v, want the figures void", err)
	}
}

func TestClosedLoop(t *testing.T) {
	var running, marks atomic.Int64
	all := make(chan struct{})
	full := sync.OnceFunc(func() { close(all) })
	// Each saga waits until three run, so fewer at a time would never end.
	took, err := drive(t.Context(), load{InFlight: 3, Seconds: 0.1}, func(bool) error { marks.Add(1); return nil }, func(ctx context.Context) error {
		n := running.Add(1)
		defer running.Add(-1)
		if n == 3 {
			full()
		}
		if n > 3 {
			return errors.New("more than three run")
		}
		select {
		case <-all:
			return nil
		case <-time.After(10 * time.Second):
			return errors.New("fewer than three run")
		}
	})
	if err != nil || len(took) == 0 || marks.Load() != 2 {
		t.Errorf("%d sagas, %d marks, %v", len(took), marks.Load(), err)
	}
	failed := errors.New("failed")
	if _, err := drive(t.Context(), load{InFlight: 3, Seconds: 60}, func(bool) error { return nil }, func(context.Context) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("%v, want the saga's error", err)
	}
}

func TestOpenLoop(t *testing.T) {
	var begun atomic.Int64
	took, err := drive(t.Context(), load{Rate: 64, Warmup: 0.125, Seconds: 0.25}, func(bool) error { return nil }, func(context.Context) error {
		begun.Add(1)
		return nil
	})
	if err != nil || begun.Load() != 24 || len(took) != 16 {
		t.Errorf("%d begun, %d measured, %v; want 24 and 16", begun.Load(), len(took), err)
	}
}

func TestPercentiles(t *testing.T) {
	var l latencies
	for i := range 100 {
		l = append(l, time.Duration(i+1)*time.Millisecond)
	}
	got := []float64{l.percentile(50), l.percentile(99), l[:1].percentile(50), latencies(nil).percentile(50)}
	if diff := cmp.Diff([]float64{50, 99, 1, 0}, got); diff != "" {
		t.Error(diff)
	}
}

func TestMiddle(t *testing.T) {
	run := func(perSecond, cpu float64) figures {
		return figures{System: "sagad", InFlight: 32, PerSecond: perSecond, CPUms: map[string]float64{"engine": cpu}}
	}
	got := middle([]figures{run(30, 1), run(10, 5), run(20, 3)})
	want := run(20, 3)
	want.Runs = 3
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if m := median([]float64{4, 1, 2, 3}); m != 2.5 {
		t.Errorf("median of four is %v, want 2.5", m)
	}
}

func TestGoals(t *testing.T) {
	f := func(system, part string, inflight int, perSecond, p50 float64) figures {
		return figures{System: system, Store: onPostgres, Part: part, InFlight: inflight, PerSecond: perSecond, P50ms: p50,
			LogBytes: 4000, Commits: 0.05, CPUms: map[string]float64{"engine": 0.5, "worker": 0.5}}
	}
	r := report{Medians: []figures{
		f("sagad", partCommit, 2000, 9000, 100), f("dbos", partCommit, 16, 1000, 10), f("sagad", partCommit, 32, 2000, 10), f("dbos", partCommit, 32, 900, 30),
		f("sagad", partLight, 0, 50, 6), f("dbos", partLight, 0, 50, 5),
		// These don't count.
		{System: "sagad", Store: onSQLite, Part: partCommit, InFlight: 4000, PerSecond: 99_999},
		{System: "sagad", Store: onPostgres, Part: partCommit, Via: viaAPI, InFlight: 4000, PerSecond: 99_999},
	}}
	r.judge()
	got := map[string]bool{}
	for _, g := range r.Goals {
		got[g.Name] = g.Met
	}
	want := map[string]bool{
		"commit3: throughput, each at its best": true, "commit3: throughput, both with 32 in flight": false,
		"commit3: log per saga": true, "commit3: commits per saga": true, "commit3: CPU per saga, all processes": false, "light: p50": true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	var b strings.Builder
	if err := r.print(&b); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"9 x", "2000 against 16 in flight", "MISSED", "on sqlite"} {
		if !strings.Contains(b.String(), part) {
			t.Errorf("the table lacks %q:\n%s", part, b.String())
		}
	}
}

func TestProcessorTime(t *testing.T) {
	before, err := cpuOf(os.Getpid(), true)
	if err != nil {
		t.Fatal(err)
	}
	after := before
	for end := time.Now().Add(10 * time.Second); after < before+5*tick && time.Now().Before(end); {
		if after, err = cpuOf(os.Getpid(), true); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := busy(); after < before+5*tick || err != nil || all < after {
		t.Errorf("%v, then %v; the whole machine %v, %v", before, after, all, err)
	}
}

func TestFlags(t *testing.T) {
	var out strings.Builder
	s, err := parse([]string{"-quick", "-only", "commit3,sqlite", "-seconds", "3"}, &out)
	if err != nil || s.runs != 1 || s.seconds != 3 || !s.wants(partSQLite) || s.wants(partLight) {
		t.Errorf("%+v, %v", s, err)
	}
	for _, args := range [][]string{{"-only", "all"}, {"-seconds", "0"}, {"-seconds", "NaN"}, {"-runs", "0"}, {"-inflight", "5000"}, {"x"}} {
		if _, err := parse(args, &out); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}
