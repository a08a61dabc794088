// Command bench measures sagad beside a peer, a durable executor that keeps its steps in Postgres too: the same saga, the
// same private Postgres, alternating within one run. README.md says what is measured and how to read it.
//
// It starts itself again, with a role, for the processes of sagad: one that holds engine, NATS server and load, and one that is
// the worker.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// The limits of a run.
const (
	secondsMin, secondsMax = 0.5, 600
	runsMax                = 99
)

// settings are what the whole run is asked to do.
type settings struct {
	only     map[string]bool // parts; empty: all
	seconds  float64         // of each measurement
	warmup   float64
	runs     int
	quick    bool
	noPeer   bool
	jsonFile string
	profiles string // folder
	dir      string // folder of the database and of NATS
	inflight int    // 0: found by a sweep
	verbose  bool
}

// The parts that -only chooses from. Those on Postgres are also run on SQLite, for sagad alone, as the part sqlite.
const (
	partCommit = "commit3"
	partUnwind = "unwind"
	partLight  = "light"
	partSQLite = "sqlite"
	partAPI    = "api"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if role, ok := strings.CutPrefix(first(args), "-role="); ok {
		return child(ctx, role, os.Stdin, stdout, stderr)
	}
	s, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "bench:", err)
		return 2
	}
	if err := measure(ctx, s, stdout, stderr); err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	return 0
}

func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

func parse(args []string, stderr io.Writer) (settings, error) {
	var s settings
	var only string
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&only, "only", "", "run these parts alone, comma-separated: commit3, unwind, light, api, sqlite")
	f.Float64Var(&s.seconds, "seconds", 8, "measured time of each run")
	f.IntVar(&s.runs, "runs", 3, "runs of each measurement; figures are their medians")
	f.BoolVar(&s.quick, "quick", false, "one run of 1.5 seconds of each: about a minute, rough figures")
	f.BoolVar(&s.noPeer, "no-peer", false, "leave the peer out")
	f.StringVar(&s.jsonFile, "json", "", "write all figures of all runs to this file")
	f.StringVar(&s.profiles, "cpuprofile", "", "write CPU profiles of engine and worker to this folder")
	f.StringVar(&s.dir, "dir", os.TempDir(), "folder for the data, on the disk to be measured")
	f.IntVar(&s.inflight, "inflight", 0, "sagas in flight in place of those that the sweep finds best")
	f.BoolVar(&s.verbose, "v", false, "print each run's figures")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	set := map[string]bool{}
	f.Visit(func(f *flag.Flag) { set[f.Name] = true })
	if s.quick {
		if !set["seconds"] {
			s.seconds = 1.5
		}
		if !set["runs"] {
			s.runs = 1
		}
	}
	s.warmup = min(2, s.seconds/2)
	if s.quick {
		s.warmup = 0.5
	}
	s.only = map[string]bool{}
	for part := range strings.SplitSeq(only, ",") {
		switch part {
		case "":
		case partCommit, partUnwind, partLight, partSQLite, partAPI:
			s.only[part] = true
		default:
			return s, fmt.Errorf("-only %q is unknown: use commit3, unwind, light, api or sqlite", part)
		}
	}
	switch {
	case f.NArg() > 0:
		return s, fmt.Errorf("unexpected argument %q: everything is a flag", f.Arg(0))
	case !(s.seconds >= secondsMin && s.seconds <= secondsMax):
		return s, fmt.Errorf("-seconds %v is out of range: use %v to %v", s.seconds, secondsMin, secondsMax)
	case s.runs < 1 || s.runs > runsMax:
		return s, fmt.Errorf("-runs %d is out of range: use 1 to %d", s.runs, runsMax)
	case s.inflight < 0 || s.inflight > inflightMax:
		return s, fmt.Errorf("-inflight %d is out of range: use 1 to %d", s.inflight, inflightMax)
	}
	if s.profiles != "" {
		if err := os.MkdirAll(s.profiles, 0o755); err != nil {
			return s, fmt.Errorf("-cpuprofile: %w", err)
		}
	}
	return s, nil
}

func (s *settings) wants(part string) bool { return len(s.only) == 0 || s.only[part] }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
