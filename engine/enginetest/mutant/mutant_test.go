package mutant

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	// killedMin is how many of a hundred must be found.
	killedMin = 95
	// patience is how long the simulation may look for one.
	patience = 4 * time.Minute
	root     = "../../.."
)

// sample is what every run plants; the rest is for make mutants.
var sample = []string{"unknown-is-failed", "order", "unknown-not-undone"}

// TestMutantsFit: each planted bug still has its place, and only one.
func TestMutantsFit(t *testing.T) {
	if len(Mutants) < 40 {
		t.Errorf("only %d mutants", len(Mutants))
	}
	seen := map[string]bool{}
	for _, m := range Mutants {
		if seen[m.Name] || m.Why == "" {
			t.Errorf("%s is there twice, or says nothing", m.Name)
		}
		seen[m.Name] = true
		if _, err := m.apply(); err != nil {
			t.Error(err)
		}
	}
}

// apply is the file with the bug.
func (m *Mutant) apply() (string, error) {
	b, err := os.ReadFile(filepath.Join(root, m.File))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(b), m.Old); n != 1 {
		return "", fmt.Errorf("%s: its text occurs %d times in %s: bring the mutant up to date", m.Name, n, m.File)
	}
	changed := strings.Replace(string(b), m.Old, m.New, 1)
	if changed == string(b) {
		return "", fmt.Errorf("%s changes nothing", m.Name)
	}
	return changed, nil
}

// TestMutants plants bugs, and wants the simulation to find them.
func TestMutants(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the simulation for each planted bug")
	}
	names := sample
	if list := os.Getenv("SAGAD_MUTANTS"); list == "all" {
		names = nil
		for _, m := range Mutants {
			names = append(names, m.Name)
		}
	} else if list != "" {
		names = strings.Split(list, ",")
	}
	killed := 0
	var survivors []string
	for _, name := range names {
		i := slices.IndexFunc(Mutants, func(m Mutant) bool { return m.Name == name })
		if i < 0 {
			t.Fatalf("there is no mutant %q", name)
		}
		m := &Mutants[i]
		began := time.Now()
		how, err := m.run(t)
		if err != nil {
			t.Errorf("%s can't be tried: %v", m.Name, err)
			continue
		}
		if how == "" {
			survivors = append(survivors, m.Name)
			how = "SURVIVED"
		} else {
			killed++
		}
		t.Logf("%-22s %4.0f s  %s", m.Name, time.Since(began).Seconds(), how)
	}
	t.Logf("%d of %d planted bugs were found; not found: %v", killed, len(names), survivors)
	if 100*killed < killedMin*len(names) {
		t.Errorf("fewer than %d %% of the planted bugs were found", killedMin)
	}
}

var (
	violation = regexp.MustCompile(`(?m)^\s*(?:\S+_test\.go:\d+: )?(.*(?:I\d+|rule \d+|violat|panic|does something else|seed \d+).*)$`)
	finding   = regexp.MustCompile(`(?m)^--- FAIL|^panic:|^FAIL`)
)

// run builds the simulation with the bug and lets it look. how is what it found, "" if nothing.
func (m *Mutant) run(t *testing.T) (how string, _ error) {
	changed, err := m.apply()
	if err != nil {
		return "", err
	}
	dir := t.TempDir()
	file := filepath.Join(dir, filepath.Base(m.File))
	original, err := filepath.Abs(filepath.Join(root, m.File))
	if err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{original: file}})
	if err != nil {
		return "", err
	}
	list, binary := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "sim.test")
	for path, content := range map[string]string{file: changed, list: string(overlay)} { // order doesn't matter
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return "", err
		}
	}
	build := exec.Command("go", "test", "-overlay", list, "-c", "-o", binary, "./engine/enginetest/sim")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("it doesn't compile: %s", out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, "-test.run", "^TestSim$").CombinedOutput()
	switch {
	case err == nil, ctx.Err() != nil && !finding.Match(out):
		return "", nil
	case !finding.Match(out):
		return "", fmt.Errorf("%w: %s", err, out)
	}
	if v := violation.FindSubmatch(out); v != nil {
		return clip(strings.TrimSpace(string(v[1]))), nil
	}
	return clip(string(out)), nil
}

func clip(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s[:min(len(s), 150)]
}
