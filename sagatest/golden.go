package sagatest

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/statemachine"
)

// updateFlag has a name that no other package's flag has: two of one name panic.
var updateFlag = flag.Bool("sagatest.update", false, "write golden files of definitions anew")

// update says so too if the test has a flag -update of its own.
func update() bool {
	own := flag.Lookup("update")
	return *updateFlag || own != nil && own.Value.String() == "true"
}

// Golden holds the definition to testdata/<name>.golden, its canonical form: what the engine stores and hashes. A change of the
// definition, which is a new version to the engine, so shows in review. `go test -sagatest.update` writes the file, and so does -update
// if the test's own package has such a flag. The definition is verified too.
func Golden[In, Out any](t testing.TB, def *saga.Definition[In, Out]) {
	t.Helper()
	if def == nil {
		t.Fatalf("sagatest: the definition is nil")
		return
	}
	if err := def.Verify(); err != nil {
		t.Errorf("sagatest: %v", err)
		return
	}
	got, err := canonical(def)
	if err != nil {
		t.Errorf("sagatest: %v", err)
		return
	}
	path := filepath.Join("testdata", def.Name()+".golden")
	if update() {
		if err := os.MkdirAll("testdata", 0o777); err != nil {
			t.Fatalf("sagatest: %v", err)
		}
		if err := os.WriteFile(path, got, 0o666); err != nil {
			t.Fatalf("sagatest: %v", err)
		}
		return
	}
	want, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		t.Errorf("sagatest: there is no %s yet: run `go test -sagatest.update`, and check it in", path)
	case err != nil:
		t.Errorf("sagatest: %v", err)
	case !bytes.Equal(bytes.ReplaceAll(want, []byte("\r\n"), []byte("\n")), got):
		t.Errorf("sagatest: definition %s isn't what %s holds. A registered definition never changes: this will be its next version, and sagas that run keep theirs. "+
			"If that is meant, run `go test -sagatest.update` and check the file in.\n%s", def.Name(), path, difference(string(want), string(got)))
	}
}

// Steady holds that a definition comes out the same each time that it is made: build makes it, and must not depend on the time, on
// chance, or on the order of a map. Otherwise each start of a program would register another version.
func Steady[In, Out any](t testing.TB, build func() *saga.Definition[In, Out]) {
	t.Helper()
	var first []byte
	for i := range 20 {
		def := build()
		if def == nil {
			t.Fatalf("sagatest: build gives nil")
			return
		}
		got, err := canonical(def)
		if err == nil {
			err = def.Err()
		}
		if err != nil {
			t.Errorf("sagatest: %v", err)
			return
		}
		if i == 0 {
			first = got
		} else if !bytes.Equal(first, got) {
			t.Errorf("sagatest: definition %s is another one each time that it is made: don't use the time, chance, or the order of a map in it\n%s", def.Name(), difference(string(first), string(got)))
			return
		}
	}
}

// canonical is a definition's canonical form for reading.
func canonical[In, Out any](def *saga.Definition[In, Out]) ([]byte, error) {
	doc, err := statemachine.Canonical(def.Proto())
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, doc, "", "  "); err != nil {
		return nil, fmt.Errorf("definition %s: %w", def.Name(), err)
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// difference shows the lines that differ, with some around them: "-" is what was, "+" what is.
func difference(was, is string) string {
	a, b := strings.Split(strings.TrimRight(was, "\n"), "\n"), strings.Split(strings.TrimRight(is, "\n"), "\n")
	// Beginning and end are mostly the same: only the middle is compared line by line.
	start := 0
	for start < len(a) && start < len(b) && a[start] == b[start] {
		start++
	}
	end := 0
	for end < len(a)-start && end < len(b)-start && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	const around, linesMax = 3, 1500
	x, y := a[start:len(a)-end], b[start:len(b)-end]
	type line struct {
		mark byte
		text string
	}
	var lines []line
	for _, l := range a[:start] {
		lines = append(lines, line{' ', l})
	}
	if len(x) > linesMax || len(y) > linesMax {
		for _, l := range x {
			lines = append(lines, line{'-', l})
		}
		for _, l := range y {
			lines = append(lines, line{'+', l})
		}
	} else {
		// The longest common subsequence, from the end.
		common := make([][]int32, len(x)+1)
		for i := range common {
			common[i] = make([]int32, len(y)+1)
		}
		for i := len(x) - 1; i >= 0; i-- {
			for j := len(y) - 1; j >= 0; j-- {
				if x[i] == y[j] {
					common[i][j] = common[i+1][j+1] + 1
				} else {
					common[i][j] = max(common[i+1][j], common[i][j+1])
				}
			}
		}
		i, j := 0, 0
		for i < len(x) || j < len(y) {
			switch {
			case i < len(x) && j < len(y) && x[i] == y[j]:
				lines = append(lines, line{' ', x[i]})
				i, j = i+1, j+1
			case i < len(x) && (j == len(y) || common[i+1][j] >= common[i][j+1]):
				lines = append(lines, line{'-', x[i]})
				i++
			default:
				lines = append(lines, line{'+', y[j]})
				j++
			}
		}
	}
	for _, l := range a[len(a)-end:] {
		lines = append(lines, line{' ', l})
	}
	near := make([]bool, len(lines))
	for n, l := range lines {
		if l.mark != ' ' {
			for k := max(n-around, 0); k <= min(n+around, len(lines)-1); k++ {
				near[k] = true
			}
		}
	}
	var out strings.Builder
	shown := 0
	for n, l := range lines {
		switch {
		case near[n] && shown < 200:
			if n > 0 && !near[n-1] {
				out.WriteString("  ...\n")
			}
			fmt.Fprintf(&out, "%c %s\n", l.mark, l.text)
			shown++
		case near[n] && shown == 200:
			out.WriteString("  ... and more\n")
			shown++
		}
	}
	return out.String()
}
