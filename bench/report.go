package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// report is what a run of the benchmark yields.
type report struct {
	At              time.Time `json:"at"`
	CPUs            int       `json:"cpus"`
	Go              string    `json:"go"`
	PostgresVersion string    `json:"postgres_version"`
	PeerVersion     string    `json:"peer_version,omitempty"`
	// SyncMs is how long 8 kB take to become durable, before and after all runs.
	SyncMs      float64   `json:"sync_ms"`
	SyncMsAfter float64   `json:"sync_ms_after"`
	Seconds     float64   `json:"seconds"`
	Sweep       []figures `json:"sweep"`
	Medians     []figures `json:"medians"`
	Runs        []figures `json:"runs"`
	Goals       []goal    `json:"goals"`
}

// goal is a figure that sagad is held to.
type goal struct {
	Name string  `json:"name"`
	Got  float64 `json:"got"`
	Want float64 `json:"want"`
	// AtLeast: the more the better.
	AtLeast bool   `json:"at_least"`
	Met     bool   `json:"met"`
	Unit    string `json:"unit,omitempty"`
	How     string `json:"how"`
}

func newReport(s settings, postgres string, sync time.Duration) report {
	return report{
		At: time.Now().UTC().Truncate(time.Second), CPUs: runtime.NumCPU(), Go: runtime.Version(),
		PostgresVersion: postgres, SyncMs: ms(sync), Seconds: s.seconds,
	}
}

// circumstance is how much was asked of the system.
func (f figures) circumstance() string {
	s := fmt.Sprintf("%d in flight", f.InFlight)
	if f.Rate > 0 {
		s = fmt.Sprintf("%g begun/s", f.Rate)
	}
	switch f.Via {
	case viaAPI:
		s += ", waits by API"
	case viaHTTP:
		s += ", SDK over HTTP"
	}
	return s
}

// judge compares the medians with the goals.
func (r *report) judge() {
	find := func(part, system string, fits func(figures) bool) (best figures, ok bool) {
		for _, f := range r.Medians {
			if f.Part == part && f.Store == onPostgres && (f.System == "sagad") == (system == "sagad") && f.Via != viaAPI && f.Via != viaHTTP && fits(f) {
				if !ok || f.PerSecond > best.PerSecond {
					best, ok = f, true
				}
			}
		}
		return best, ok
	}
	any := func(figures) bool { return true }
	same := func(f figures) bool { return f.InFlight == sameInFlight }
	add := func(name string, got, want float64, atLeast bool, unit, how string) {
		if math.IsNaN(got) || math.IsInf(got, 0) {
			return
		}
		met := got <= want
		if atLeast {
			met = got >= want
		}
		r.Goals = append(r.Goals, goal{Name: name, Got: got, Want: want, AtLeast: atLeast, Met: met, Unit: unit, How: how})
	}
	for _, part := range []string{partCommit, partUnwind} {
		ours, ok := find(part, "sagad", any)
		theirs, with := find(part, "peer", any)
		if ok && with {
			add(part+": throughput, each at its best", ours.PerSecond/theirs.PerSecond, 8, true, "x",
				fmt.Sprintf("%d against %d in flight", ours.InFlight, theirs.InFlight))
		}
		ours32, ok32 := find(part, "sagad", same)
		theirs32, with32 := find(part, "peer", same)
		if ok32 && with32 {
			add(part+": throughput, both with 32 in flight", ours32.PerSecond/theirs32.PerSecond, 2.5, true, "x", "")
		}
		if ok && part == partCommit {
			how := fmt.Sprintf("with %d in flight", ours.InFlight)
			if with {
				how += fmt.Sprintf("; %s: %.1f kB, %.1f commits, %.2f ms", theirs.System, theirs.LogBytes/1000, theirs.Transactions, theirs.cpu())
			}
			add("commit3: log per saga", ours.LogBytes/1000, 5, false, "kB", how)
			add("commit3: commits per saga", ours.Commits, 0.1, false, "", "")
			add("commit3: CPU per saga, all processes", ours.cpu(), 0.9, false, "ms", "")
		}
	}
	ours, ok := find(partLight, "sagad", any)
	theirs, with := find(partLight, "peer", any)
	if ok && with {
		add("light: p50", ours.P50ms/theirs.P50ms, 1.5, false, "x",
			fmt.Sprintf("%.2f against %.2f ms at %d sagas begun per second", ours.P50ms, theirs.P50ms, lightRate))
	}
}

func (r *report) print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%d CPUs, %s, Postgres %s, %s; 8 kB durable in %.2f ms (%.2f ms after). Medians of runs of %g s.\n",
		r.CPUs, r.Go, r.PostgresVersion, cmp.Or(r.PeerVersion, "no peer"), r.SyncMs, r.SyncMsAfter, r.Seconds)
	groups := slices.Clone(r.Medians)
	title := func(f figures) string {
		switch f.Part {
		case partCommit:
			return "three steps that succeed, on " + f.Store
		case partUnwind:
			return "two steps, the third refused, two compensations, on " + f.Store
		default:
			return "three steps, light load, on " + f.Store
		}
	}
	for len(groups) > 0 {
		t := title(groups[0])
		fmt.Fprintf(&b, "\n%s\n", t)
		tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(tw, "  \t\truns\tsagas/s\tp50 ms\tp99 ms\tCPU ms/saga\tof which\tlog kB\tcommits\tothers CPUs")
		var rest []figures
		for _, f := range groups {
			if title(f) != t {
				rest = append(rest, f)
				continue
			}
			var parts []string
			for _, p := range processes {
				if v, ok := f.CPUms[p]; ok {
					parts = append(parts, fmt.Sprintf("%s %.3f", p, v))
				}
			}
			commits := f.Commits
			if f.System != "sagad" {
				commits = f.Transactions
			}
			fmt.Fprintf(tw, "  %s\t%s\t%d\t%.0f\t%.2f\t%.2f\t%.3f\t%s\t%s\t%s\t%.2f\n", f.System, f.circumstance(), f.Runs, f.PerSecond, f.P50ms, f.P99ms,
				f.cpu(), strings.Join(parts, ", "), blank(f.LogBytes/1000, "%.2f"), blank(commits, "%.3f"), f.Others)
		}
		if err := tw.Flush(); err != nil {
			return err
		}
		groups = rest
	}
	if len(r.Goals) > 0 {
		fmt.Fprintf(&b, "\ngoals\n")
		tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, g := range r.Goals {
			want, met := "at most", "met"
			if g.AtLeast {
				want = "at least"
			}
			if !g.Met {
				met = "MISSED"
			}
			fmt.Fprintf(tw, "  %s\t%.3g %s\t%s %g\t%s\t%s\n", g.Name, g.Got, g.Unit, want, g.Want, met, g.How)
		}
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// blank is nothing for a figure that there isn't.
func blank(v float64, format string) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf(format, v)
}

func (r *report) write(file string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}
