// Command peer runs the benchmark's saga on DBOS Transact Go, so that the
// engine's figures stand beside those of another durable executor that did the
// same work on the same Postgres. It prints one JSON line on stdout.
//
// A run makes a schema of its own, checks that Postgres is durable, warms up,
// measures, and then proves that what it counted is what was done. A run whose
// proof fails prints no figures and exits with 1.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The limits of a run.
const (
	inflightMax    = 4096
	rateMax        = 100_000
	poolMax        = 1024
	warmupMax      = 10 * time.Minute
	durationMin    = 100 * time.Millisecond
	durationMax    = time.Hour
	outstandingMax = 2_000 // open loop: sagas begun and not ended
	lagMax         = time.Second
	shutdownWait   = 30 * time.Second
	cleanupWait    = time.Minute
)

// poolDefault is the number of connections with which the peer was fastest. It
// holds one of them for LISTEN.
const poolDefault = 20

const peerModule = "github.com/dbos-inc/dbos-transact-golang"

// settings are what one run is asked to do.
type settings struct {
	dsn      string
	mode     string
	inflight int     // sagas in flight; closed loop
	rate     float64 // sagas begun per second; above 0 makes the loop open
	warmup   time.Duration
	duration time.Duration
	pool     int // connections
	keep     bool
	json     bool
	marks    bool
}

// report is the line on stdout.
type report struct {
	System        string  `json:"system"`
	Version       string  `json:"version"`
	Mode          string  `json:"mode"`
	Inflight      int     `json:"inflight"` // 0 in an open loop
	Rate          float64 `json:"rate"`     // 0 in a closed loop
	Pool          int     `json:"pool"`
	Sagas         int     `json:"sagas"` // measured, without the warm-up
	Seconds       float64 `json:"seconds"`
	PerSecond     float64 `json:"per_second"`
	P50ms         float64 `json:"p50_ms"`
	P99ms         float64 `json:"p99_ms"`
	CPUSeconds    float64 `json:"cpu_seconds_self"` // this process alone, in the measured time
	SagasTotal    int64   `json:"sagas_total"`      // with the warm-up: what the proof covers
	Steps         int64   `json:"steps_total"`
	Compensations int64   `json:"compensations_total"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	s, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "peer:", err)
		return 2
	}
	r, err := bench(ctx, s, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "peer:", err)
		return 1
	}
	if s.json {
		err = json.NewEncoder(stdout).Encode(r)
	} else {
		_, err = fmt.Fprintf(stdout, "%s %s %s: %.0f sagas/s, p50 %.2f ms, p99 %.2f ms, %.3f ms CPU of its own per saga\n",
			r.System, r.Version, r.Mode, r.PerSecond, r.P50ms, r.P99ms, 1000*r.CPUSeconds/float64(r.Sagas))
	}
	if err != nil {
		fmt.Fprintln(stderr, "peer: the report could not be written:", err)
		return 1
	}
	return 0
}

func parse(args []string, stderr io.Writer) (settings, error) {
	var s settings
	f := flag.NewFlagSet("peer", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&s.dsn, "dsn", "", "Postgres connection string of an existing database (required)")
	f.StringVar(&s.mode, "mode", modeCommit, modeCommit+": three steps; "+modeUnwind+": the third is refused and two are compensated")
	f.IntVar(&s.inflight, "inflight", 16, "closed loop: sagas in flight")
	f.Float64Var(&s.rate, "rate", 0, "open loop: sagas begun per second, in place of -inflight")
	f.DurationVar(&s.warmup, "warmup", 3*time.Second, "time that runs before the measured time")
	f.DurationVar(&s.duration, "duration", 10*time.Second, "measured time")
	f.IntVar(&s.pool, "pool", poolDefault, "connections of the pool")
	f.BoolVar(&s.keep, "keep", false, "leave the run's schema in the database")
	f.BoolVar(&s.marks, "marks", false, "write lines to stderr when the measured time begins and ends, for whoever measures from outside")
	f.BoolVar(&s.json, "json", true, "print one JSON line; false prints a line for people")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	switch {
	case f.NArg() > 0:
		return s, fmt.Errorf("unexpected argument %q: everything is a flag", f.Arg(0))
	case s.dsn == "":
		return s, errors.New("-dsn is missing: give the connection string of an existing database")
	case s.mode != modeCommit && s.mode != modeUnwind:
		return s, fmt.Errorf("-mode %q is unknown: use %s or %s", s.mode, modeCommit, modeUnwind)
	case s.inflight < 1 || s.inflight > inflightMax:
		return s, fmt.Errorf("-inflight %d is out of range: use 1 to %d", s.inflight, inflightMax)
	case !(s.rate >= 0 && s.rate <= rateMax): // written so that NaN is refused
		return s, fmt.Errorf("-rate %v is out of range: use 0 to %d", s.rate, rateMax)
	case s.warmup < 0 || s.warmup > warmupMax:
		return s, fmt.Errorf("-warmup %v is out of range: use 0 to %v", s.warmup, warmupMax)
	case s.duration < durationMin || s.duration > durationMax:
		return s, fmt.Errorf("-duration %v is out of range: use %v to %v", s.duration, durationMin, durationMax)
	case s.pool < 2 || s.pool > poolMax:
		return s, fmt.Errorf("-pool %d is out of range: use 2 to %d, one of them is held to listen", s.pool, poolMax)
	}
	if s.rate > 0 {
		s.inflight = 0
	}
	return s, nil
}

// bench prepares the peer, drives it, and returns the figures once they are
// proven.
func bench(ctx context.Context, s settings, stderr io.Writer) (r report, err error) {
	pc, err := pgxpool.ParseConfig(s.dsn)
	if err != nil {
		return r, fmt.Errorf("-dsn can't be read: %w", err)
	}
	pc.MaxConns, pc.MinConns = int32(s.pool), int32(s.pool)
	pc.MaxConnLifetime = 2 * durationMax // no connection is replaced within a run
	pc.ConnConfig.RuntimeParams["application_name"] = "sagad-bench-peer"
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return r, fmt.Errorf("the pool can't be opened: %w", err)
	}
	defer pool.Close()
	if err := durable(ctx, pool); err != nil {
		return r, err
	}
	if err := fill(ctx, pool, s.pool); err != nil {
		return r, err
	}

	// Each run has a schema of its own: no run inherits another's rows, bloat
	// or unfinished workflows.
	schema := fmt.Sprintf("sagad_peer_%d", time.Now().UnixNano())
	if !s.keep {
		defer func() {
			if dropErr := drop(s.dsn, schema); dropErr != nil {
				fmt.Fprintf(stderr, "peer: schema %s is left behind, drop it by hand: %v\n", schema, dropErr)
			}
		}()
	}
	d, err := dbos.NewContext(context.Background(), dbos.Config{
		AppName:            "sagad-bench-peer",
		ApplicationVersion: "bench",
		SystemDBPool:       pool,
		DatabaseSchema:     schema,
		Logger:             slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return r, fmt.Errorf("the peer can't be made: %w", err)
	}
	w := newWorkload(s.mode)
	w.register(d)
	if err := dbos.Launch(d); err != nil {
		return r, fmt.Errorf("the peer can't be launched: %w", err)
	}
	defer func() {
		if stopErr := dbos.Shutdown(d, shutdownWait); stopErr != nil && err == nil {
			err = fmt.Errorf("the peer did not stop: %w", stopErr)
		}
	}()

	mark := func(string) {}
	if s.marks {
		mark = func(line string) { fmt.Fprintln(stderr, line) }
	}
	m, err := drive(ctx, s, mark, func() error { return w.saga(d) })
	if err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted: no figures, run it again")
		}
		return r, err
	}
	if err := w.verify(d); err != nil {
		return r, fmt.Errorf("the figures are void: %w", err)
	}
	if len(m.latencies) == 0 {
		return r, errors.New("nothing was measured: no saga ended within -duration, make it longer")
	}
	return report{
		System: "dbos", Version: version(), Mode: s.mode,
		Inflight: s.inflight, Rate: s.rate, Pool: s.pool,
		Sagas:         len(m.latencies),
		Seconds:       s.duration.Seconds(),
		PerSecond:     round(float64(len(m.latencies)) / s.duration.Seconds()),
		P50ms:         round(m.percentile(50)),
		P99ms:         round(m.percentile(99)),
		CPUSeconds:    round(m.cpu.Seconds()),
		SagasTotal:    w.ended.Load(),
		Steps:         w.steps(),
		Compensations: w.compensations(),
	}, nil
}

// durable refuses a Postgres that would make the figures worth nothing.
func durable(ctx context.Context, pool *pgxpool.Pool) error {
	for _, name := range []string{"fsync", "synchronous_commit"} {
		var value string
		if err := pool.QueryRow(ctx, "select current_setting($1)", name).Scan(&value); err != nil {
			return fmt.Errorf("Postgres can't be asked for %s: %w", name, err)
		}
		if value != "on" {
			return fmt.Errorf("Postgres has %s=%s: set it to on, the benchmark is about durable work", name, value)
		}
	}
	return nil
}

// fill opens all n connections, so that none is opened while measuring.
func fill(ctx context.Context, pool *pgxpool.Pool, n int) error {
	conns := make([]*pgxpool.Conn, 0, n)
	defer func() {
		for _, c := range conns {
			c.Release()
		}
	}()
	for range n {
		c, err := pool.Acquire(ctx)
		if err != nil {
			return fmt.Errorf("connection %d of %d can't be opened, lower -pool or raise max_connections: %w", len(conns)+1, n, err)
		}
		conns = append(conns, c)
	}
	return nil
}

// drop uses a connection of its own: the pool is closed by then, and a run that
// was interrupted cleans up too.
func drop(dsn, schema string) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupWait)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "drop schema if exists "+pgx.Identifier{schema}.Sanitize()+" cascade")
	return err
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == peerModule {
				return strings.TrimPrefix(dep.Version, "v")
			}
		}
	}
	return "unknown"
}
