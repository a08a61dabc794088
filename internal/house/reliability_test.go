package house

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestNamedTestsExist: the page on reliability says which test shows what. They must be there.
func TestNamedTestsExist(t *testing.T) {
	page, err := os.ReadFile("../../docs/reliability.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := regexp.MustCompile("`([a-z0-9/]+)\\.([tT]est[A-Z][A-Za-z0-9]*)`").FindAllStringSubmatch(string(page), -1)
	scripts := regexp.MustCompile("`(statemachine/testdata/script/[a-z]+)`").FindAllStringSubmatch(string(page), -1)
	if len(tests) < 50 || len(scripts) < 5 {
		t.Fatalf("only %d tests and %d scripts are named", len(tests), len(scripts))
	}
	for _, m := range tests {
		files, err := filepath.Glob("../../" + m[1] + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range files {
			source, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(source, []byte("\nfunc "+m[2]+"(")) && (strings.HasSuffix(f, "_test.go") || strings.HasPrefix(m[2], "test")) {
				found = true
			}
		}
		if !found {
			t.Errorf("docs/reliability.md names %s.%s, which isn't there: was it renamed?", m[1], m[2])
		}
	}
	for _, m := range scripts {
		if _, err := os.Stat("../../" + m[1]); err != nil {
			t.Errorf("docs/reliability.md names %s: %v", m[1], err)
		}
	}
}
