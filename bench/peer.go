package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// peer is the program of bench/peer.
type peer struct{ binary string }

func buildPeer(ctx context.Context, dir string) (*peer, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOMOD: %w", err)
	}
	source := filepath.Join(filepath.Dir(strings.TrimSpace(string(out))), "bench", "peer")
	p := &peer{binary: filepath.Join(dir, "peer")}
	build := exec.CommandContext(ctx, "go", "build", "-o", p.binary, ".")
	build.Dir = source
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the peer in %s (run the benchmark from within its module, or with -no-peer): %w\n%s", source, err, out)
	}
	return p, nil
}

// peerReport is what of the peer's line is used.
type peerReport struct {
	System  string  `json:"system"`
	Version string  `json:"version"`
	Sagas   int64   `json:"sagas"`
	P50ms   float64 `json:"p50_ms"`
	P99ms   float64 `json:"p99_ms"`
}

// runPeer runs the peer, which proves its counts by itself, and measures from outside what it costs.
func (s *suite) runPeer(ctx context.Context, mode string, l load) (figures, error) {
	f := figures{System: "dbos", Store: onPostgres, InFlight: l.InFlight, Rate: l.Rate, Runs: 1}
	args := []string{"-dsn", s.db.url(peerDatabase), "-mode", mode, "-marks",
		"-warmup", seconds(l.Warmup).String(), "-duration", seconds(l.Seconds).String()}
	if l.Rate > 0 {
		args = append(args, "-rate", strconv.FormatFloat(l.Rate, 'g', -1, 64))
	} else {
		args = append(args, "-inflight", strconv.Itoa(l.InFlight))
	}
	cmd := exec.CommandContext(ctx, s.peer.binary, args...)
	cmd.Env = measuredEnv()
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute // it drops its schema
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return f, err
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return f, err
	}
	if err := cmd.Start(); err != nil {
		return f, err
	}
	taken := map[string]snapshot{}
	var failed error
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		switch line := lines.Text(); line {
		case "begin", "end":
			if taken[line], err = s.snapshot(ctx, map[string]int{"peer": cmd.Process.Pid}, peerDatabase); err != nil {
				failed = err
			}
		default:
			fmt.Fprintln(s.stderr, line)
		}
	}
	out, err := io.ReadAll(stdout)
	if err = errors.Join(failed, err, cmd.Wait()); err != nil {
		return f, fmt.Errorf("the peer: %w", err)
	}
	var r peerReport
	if err := json.Unmarshal(out, &r); err != nil {
		return f, fmt.Errorf("the peer's report: %w", err)
	}
	f.System = r.System
	s.report.PeerVersion = r.System + " " + r.Version
	f.Sagas, f.PerSecond, f.P50ms, f.P99ms = float64(r.Sagas), float64(r.Sagas)/l.Seconds, r.P50ms, r.P99ms
	taken["end"].since(taken["begin"], &f)
	return f, nil
}
