// Package house holds the project's structure to what its documents say: imports fall and never rise, and the pure packages
// stay pure.
package house

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/sagad/sagad/"

// allowed lists, for each layer, what of this module it may import, by prefix. A package belongs to the longest prefix that
// fits. What isn't listed may import anything below cmd.
var allowed = map[string][]string{
	"compensation":      {},
	"internal/retry":    {},
	"internal/expr":     {},
	"internal/wire":     {"proto/gen"},
	"statemachine":      {"compensation", "internal/expr", "internal/retry", "proto/gen"},
	"store":             {},
	"store/memory":      {"store"},
	"store/sqlite":      {"store", "sql", "internal/filelock"},
	"internal/filelock": {},
	"store/postgres":    {"store", "sql"},
	"store/storetest":   {"store", "proto/gen"},
	"sql":               {},
	"engine":            {"statemachine", "store", "internal/expr", "internal/retry", "internal/wire", "proto/gen"},
	"internal/natsbus":  {"internal/wire", "proto/gen"},
	"internal/server":   {"engine", "statemachine", "store", "internal/expr", "internal/wire", "proto/gen", "internal/telemetry"},
	"sdk/saga":          {"statemachine", "internal/expr", "internal/retry", "internal/wire", "proto/gen"},
	"sdk/worker":        {"sdk/saga", "internal/wire", "internal/expr", "internal/retry", "proto/gen"},
	"sdk/barrier":       {"sdk/saga", "internal/wire"},
	"sdk/client":        {"sdk/saga", "internal/wire", "internal/retry", "proto/gen"},
	"sagatest":          {"engine", "statemachine", "store", "sdk/saga", "sdk/worker", "proto/gen"},
	"proto/gen":         {"proto/gen"},
}

// drivers may be imported by these alone.
var drivers = map[string][]string{
	"cel.dev/cel-go":              {"internal/expr"},
	"github.com/jackc/pgx":        {"store/postgres", "internal/pgtest", "bench"},
	"modernc.org/sqlite":          {"store/sqlite", "examples", "bench"},
	"github.com/nats-io/":         {"internal/natsbus", "internal/node", "sdk/worker", "examples", "cmd/sagad", "bench", "internal/acceptance"},
	"github.com/pressly/goose":    {"store/postgres", "store/sqlite"},
	"github.com/alecthomas/kong":  {"cmd/sagad"},
	"google.golang.org/grpc":      {},
	"github.com/stretchr/testify": {},
}

// pure packages have no context, clock, randomness, goroutine or I/O, and nothing in them depends on the order of a map.
var pure = []string{"statemachine", "compensation", "internal/expr", "internal/retry"}

var impure = []string{"context", "math/rand", "math/rand/v2", "crypto/rand", "os", "io/fs", "net", "net/http", "log", "log/slog", "runtime", "database/sql", "testing"}

type pkg struct {
	ImportPath, Dir, Export   string
	Imports, GoFiles          []string
	TestImports, XTestImports []string
	Standard                  bool
}

func list(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Dir,Export,Imports,GoFiles,Standard"}, args...)...)
	cmd.Dir = "../.."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var pkgs []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); err == io.EOF {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

func within(path, prefix string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") }

func TestImportsFall(t *testing.T) {
	for _, p := range list(t, "./...") {
		path := strings.TrimPrefix(p.ImportPath, module)
		layer := ""
		for l := range allowed {
			if within(path, l) && len(l) > len(layer) {
				layer = l
			}
		}
		for _, imp := range p.Imports {
			own, isOurs := strings.CutPrefix(imp, module)
			switch {
			case !isOurs:
				for driver, users := range drivers {
					if strings.HasPrefix(imp, driver) && !slices.ContainsFunc(users, func(u string) bool { return within(path, u) }) {
						t.Errorf("%s imports %s, which only %v may", path, imp, users)
					}
				}
			case within(own, "cmd") || within(own, "examples") || within(own, "bench"):
				t.Errorf("%s imports %s: nothing imports a program", path, own)
			case within(own, "sagatest") && !within(path, "sagatest"):
				t.Errorf("%s imports %s: only tests do", path, own)
			case layer != "" && !within(own, layer) && !slices.ContainsFunc(allowed[layer], func(a string) bool { return within(own, a) }):
				t.Errorf("%s imports %s: %s may import only %v", path, own, layer, allowed[layer])
			}
		}
	}
}

func TestPurePackages(t *testing.T) {
	args := []string{"-export", "-deps"}
	for _, p := range pure {
		args = append(args, "./"+p)
	}
	exports := map[string]string{}
	pkgs := list(t, args...)
	for _, p := range pkgs {
		exports[p.ImportPath] = p.Export
	}
	for _, p := range pkgs {
		path := strings.TrimPrefix(p.ImportPath, module)
		if !slices.Contains(pure, path) {
			continue
		}
		for _, imp := range p.Imports {
			if slices.Contains(impure, imp) {
				t.Errorf("%s imports %s, but is pure", path, imp)
			}
		}
		for _, finding := range inspect(t, p, exports) {
			t.Errorf("%s", finding)
		}
	}
}

// inspect finds goroutines, clocks, and loops over maps that nobody says are sorted.
func inspect(t *testing.T, p pkg, exports map[string]string) []string {
	t.Helper()
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(exports[path])
	})}
	if _, err := conf.Check(p.ImportPath, fset, files, info); err != nil {
		t.Fatal(err)
	}
	var findings []string
	for _, f := range files {
		sorted := map[int]bool{}
		for _, group := range f.Comments {
			for _, c := range group.List {
				if strings.Contains(c.Text, "sorted") || strings.Contains(c.Text, "order doesn't matter") {
					sorted[fset.Position(c.Pos()).Line] = true
				}
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			at := func() token.Position { return fset.Position(n.Pos()) }
			switch n := n.(type) {
			case *ast.GoStmt:
				findings = append(findings, fmt.Sprintf("%s: a goroutine in a pure package", at()))
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains([]string{"Now", "Since", "Until", "After", "Sleep", "NewTimer", "Tick"}, n.Sel.Name) {
					findings = append(findings, fmt.Sprintf("%s: time.%s in a pure package", at(), n.Sel.Name))
				}
			case *ast.RangeStmt:
				if tv, ok := info.Types[n.X]; ok {
					if _, isMap := tv.Type.Underlying().(*types.Map); isMap && !sorted[at().Line] && !sorted[at().Line-1] {
						findings = append(findings, fmt.Sprintf("%s: a loop over a map: sort, and say \"sorted\" in a comment on the line or above it", at()))
					}
				}
			}
			return true
		})
	}
	return findings
}

// TestSQLiteRunsWithItsLibc: modernc.org/sqlite is made for one version of modernc.org/libc, and others crash.
func TestSQLiteRunsWithItsLibc(t *testing.T) {
	version := func(args ...string) string {
		cmd := exec.Command("go", append([]string{"list", "-m"}, args...)...)
		cmd.Dir = "../.."
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list -m %v: %v", args, err)
		}
		return strings.TrimSpace(string(out))
	}
	mod, err := os.ReadFile(version("-f", "{{.GoMod}}", "modernc.org/sqlite"))
	if err != nil {
		t.Fatal(err)
	}
	have := version("-f", "{{.Version}}", "modernc.org/libc")
	if !strings.Contains(string(mod), "modernc.org/libc "+have+"\n") {
		t.Errorf("modernc.org/libc is %s, which isn't what modernc.org/sqlite's go.mod names: exclude later versions in go.mod", have)
	}
}
