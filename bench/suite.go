package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// The stores.
const (
	onPostgres = "postgres"
	onSQLite   = "sqlite"
)

// lightRate is the sagas per second of the light load.
const lightRate = 50

// The numbers in flight: those that the sweep tries for sagad, that at which both systems are compared like for like, and those of the
// peer, which was found to be at its best from 16 to 32.
var (
	sweepInFlight      = []int{32, 128, 512, 2000, 4000}
	sweepInFlightQuick = []int{512, 2000}
	peerInFlight       = []int{16, 32}
)

const sameInFlight = 32

// httpInFlight is for the load over HTTP.
const httpInFlight = 128

// suite is a whole run of the benchmark.
type suite struct {
	settings
	stdout, stderr io.Writer
	dir            string
	db             *database
	peer           *peer // nil: left out
	best           map[string]int
	report         report
}

// entry is a measurement: what is run, and how.
type entry struct {
	peer        bool
	store, part string
	via         string
	inflight    int
	rate        float64
}

func measure(ctx context.Context, cfg settings, stdout, stderr io.Writer) (err error) {
	s := &suite{settings: cfg, stdout: stdout, stderr: stderr, best: map[string]int{}}
	if s.dir, err = os.MkdirTemp(cfg.dir, "sagad-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.dir)) }()
	took, err := syncTime(s.dir)
	if err != nil {
		return err
	}
	if s.db, err = openDatabase(ctx, cfg.dir); err != nil {
		return fmt.Errorf("a private Postgres: %w", err)
	}
	defer s.db.close()
	if !cfg.noPeer {
		if s.peer, err = buildPeer(ctx, s.dir); err != nil {
			return err
		}
	}
	s.report = newReport(cfg, s.db.version, took)
	if err := s.run(ctx); err != nil {
		return err
	}
	if took, err = syncTime(s.dir); err != nil {
		return err
	}
	s.report.SyncMsAfter = ms(took)
	s.report.judge()
	if err := s.report.print(stdout); err != nil {
		return err
	}
	if cfg.jsonFile != "" {
		return s.report.write(cfg.jsonFile)
	}
	return nil
}

func (s *suite) run(ctx context.Context) error {
	for _, part := range []string{partCommit, partLight, partUnwind} {
		if !s.wants(part) {
			continue
		}
		entries, err := s.entries(ctx, onPostgres, part)
		if err != nil {
			return err
		}
		if err := s.rounds(ctx, s.runs, entries); err != nil {
			return err
		}
	}
	if s.wants(partAPI) {
		best, err := s.bestInFlight(ctx, onPostgres)
		if err != nil {
			return err
		}
		err = s.rounds(ctx, 1, []entry{
			{store: onPostgres, part: partCommit, via: viaAPI, inflight: best},
			{store: onPostgres, part: partCommit, via: viaHTTP, inflight: httpInFlight},
		})
		if err != nil {
			return err
		}
	}
	if s.wants(partSQLite) {
		var all []entry
		for _, part := range []string{partCommit, partLight, partUnwind} {
			entries, err := s.entries(ctx, onSQLite, part)
			if err != nil {
				return err
			}
			all = append(all, entries...)
		}
		return s.rounds(ctx, s.runs, all)
	}
	return nil
}

// entries of a part, in the order in which they alternate.
func (s *suite) entries(ctx context.Context, store, part string) ([]entry, error) {
	withPeer := s.peer != nil && store == onPostgres
	if part == partLight {
		entries := []entry{{store: store, part: part, via: viaCommit, rate: lightRate}}
		if withPeer {
			entries = append(entries, entry{peer: true, store: store, part: part, rate: lightRate})
		}
		return entries, nil
	}
	best, err := s.bestInFlight(ctx, store)
	if err != nil {
		return nil, err
	}
	ours := []int{best}
	if best != sameInFlight {
		ours = append(ours, sameInFlight)
	}
	var entries []entry
	for i := range max(len(ours), len(peerInFlight)) {
		if i < len(ours) {
			entries = append(entries, entry{store: store, part: part, via: viaCommit, inflight: ours[i]})
		}
		if withPeer && i < len(peerInFlight) {
			entries = append(entries, entry{peer: true, store: store, part: part, inflight: peerInFlight[i]})
		}
	}
	return entries, nil
}

// bestInFlight is the number in flight at which sagad does most on a store, found by short loads one after the other.
func (s *suite) bestInFlight(ctx context.Context, store string) (int, error) {
	if s.inflight > 0 {
		return s.inflight, nil
	}
	if n, ok := s.best[store]; ok {
		return n, nil
	}
	if n, ok := s.best[onPostgres]; ok && s.quick {
		return n, nil
	}
	levels, l := sweepInFlight, load{Warmup: 1, Seconds: min(2.5, s.seconds)}
	if s.quick {
		levels, l = sweepInFlightQuick, load{Warmup: 0.5, Seconds: min(1, s.seconds)}
	}
	x, err := s.open(ctx, store, partCommit)
	if err != nil {
		return 0, err
	}
	best := figures{}
	for _, n := range levels {
		l.InFlight = n
		f, err := x.load(ctx, loadCommand{load: l, Mode: partCommit, Via: viaCommit})
		if err != nil {
			return 0, errors.Join(err, x.close(ctx, err))
		}
		s.progress("sweep", f)
		s.report.Sweep = append(s.report.Sweep, f)
		if f.PerSecond > best.PerSecond {
			best = f
		}
	}
	s.best[store] = best.InFlight
	return best.InFlight, x.close(ctx, nil)
}

// rounds measures the entries in turn, as often as asked for.
func (s *suite) rounds(ctx context.Context, runs int, entries []entry) error {
	got := make([][]figures, len(entries))
	for round := range runs {
		for i, e := range entries {
			if err := s.db.settle(ctx); err != nil {
				return err
			}
			f, err := s.once(ctx, e, round)
			if err != nil {
				return fmt.Errorf("%s on %s: %w", e.part, e.store, err)
			}
			s.progress(fmt.Sprintf("run %d of %d", round+1, runs), f)
			got[i] = append(got[i], f)
			s.report.Runs = append(s.report.Runs, f)
		}
	}
	for i := range entries {
		s.report.Medians = append(s.report.Medians, middle(got[i]))
	}
	return nil
}

// once measures an entry in processes and a database of its own.
func (s *suite) once(ctx context.Context, e entry, round int) (figures, error) {
	l := load{InFlight: e.inflight, Rate: e.rate, Warmup: s.warmup, Seconds: s.seconds}
	mode := e.part
	if mode == partLight {
		mode = partCommit
	}
	if e.peer {
		f, err := s.runPeer(ctx, mode, l)
		f.Part = e.part
		return f, err
	}
	x, err := s.open(ctx, e.store, mode)
	if err != nil {
		return figures{}, err
	}
	if s.profiles != "" && round == 0 {
		name := fmt.Sprintf("%s-%s-%s-%d", e.store, e.part, e.via, e.inflight)
		if x.profiles, err = filepath.Abs(filepath.Join(s.profiles, name)); err != nil {
			return figures{}, err
		}
	}
	f, err := x.load(ctx, loadCommand{load: l, Mode: mode, Via: e.via})
	f.Part = e.part
	return f, errors.Join(err, x.close(ctx, err))
}

func (s *suite) progress(what string, f figures) {
	fmt.Fprintf(s.stderr, "%s  %-11s %-8s %-7s %-20s %7.0f sagas/s  p50 %8.2f ms  p99 %8.2f ms  %.2f ms CPU  others %.2f CPUs\n",
		time.Now().Format(time.TimeOnly), what, f.Part, f.System, f.circumstance(), f.PerSecond, f.P50ms, f.P99ms, f.cpu(), f.Others)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
