package expr

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

// bombTime is how long one bomb may take; the best of some tries counts.
const (
	bombTime  = 50 * time.Millisecond
	bombBytes = 16 << 20
	bombTries = 5
)

type bomb struct {
	name string
	src  string
	vars Vars
	// compiles says whether the limit is met only when it is evaluated.
	compiles bool
	// code wanted; empty means that it may succeed, as long as it is quick.
	code Code
}

func bombs() []bomb {
	rep := strings.Repeat
	text := func(n int) json.RawMessage { return json.RawMessage(`"` + rep("a", n) + `"`) }
	numbers := func(n int) json.RawMessage { return json.RawMessage("[" + rep("1,", n-1) + "1]") }
	deep := func(n int) json.RawMessage { return json.RawMessage(rep("[", n) + rep("]", n)) }
	wide := `string(x)` + rep(`.replace("a","aaaaaaaaaa")`, 3)
	growing := `"aaaaaaaaaa"` + rep(`.replace("a","aaaaaaaaaa")`, 60)
	return []bomb{
		{name: "64 KiB source", src: rep("1+", 32<<10) + "1", code: CodeTooLong},
		{name: "8 KiB of (", src: rep("(", 8<<10), code: CodeTooLong},
		{name: "8 KiB of [", src: rep("[", 8<<10), code: CodeTooLong},
		{name: "8 KiB of {", src: rep("{", 8<<10), code: CodeTooLong},
		{name: "4 KiB of (1)", src: rep("(", 4<<10) + "1" + rep(")", 4<<10-1), code: CodeTooLong},
		{name: "brackets behind a raw string", src: `r'\'+` + rep("(", 8000)},
		{name: "brackets behind a comment", src: "//'\n" + rep("[", 8000)},
		{name: "brackets behind three quotes", src: `"""` + "\n" + `""" + '""'+` + rep("{1:", 2600)},
		{name: "63 of (", src: rep("(", 63) + "1" + rep(")", 63), compiles: true},
		{name: "63 of [", src: rep("[", 63) + "1" + rep("]", 63), compiles: true},
		{name: "60 of [ open", src: rep("[", 60), code: CodeSyntax},
		{name: "60 of f( open", src: rep("f(", 60), code: CodeSyntax},
		{name: "60 of a[ open", src: rep("a[", 60), code: CodeSyntax},
		{name: "60 of {1: open", src: rep("{1:", 60), code: CodeSyntax},
		{name: "8 KiB of !", src: rep("!", 8<<10-4) + "true"},
		{name: "8 KiB of -", src: rep("-", 8<<10-1) + "1"},
		{name: "8 KiB of - -", src: rep("- ", 4<<10-1) + "1"},
		{name: "8 KiB of sums", src: rep("1+", 4<<10-1) + "1", code: CodeTooLong},
		{name: "8 KiB of ||", src: rep("x||", 2700) + "x"},
		{name: "8 KiB of conditions", src: rep("true?1:", 1100) + "1", code: CodeTooLong},
		{name: "8 KiB of conditions inside", src: rep("true?", 1600) + "1", code: CodeTooLong},
		{name: "8 KiB of selects", src: "x" + rep(".a", 4<<10-1), code: CodeTooLong},
		{name: "8 KiB of calls", src: "x" + rep(".a()", 2<<10-1), code: CodeTooLong},
		{name: "8 KiB of indexes", src: "x" + rep("[0]", 2700), code: CodeTooLong},
		{name: "8 KiB of elements", src: "[" + rep("1,", 4090) + "1]"},
		{name: "8 KiB of members", src: "{" + rep("'a':1,", 1360) + "'a':1}"},
		{name: "8 KiB of errors", src: rep("$ ", 4<<10), code: CodeSyntax},
		{name: "8 KiB of quotes", src: rep(`"`, 8<<10-1)},
		{name: "8 KiB of unknown names", src: rep("u||", 900) + "u", code: CodeUnknownName},
		{name: "loops nested four deep", src: "l.map(a,l.map(b,l.map(c,l.map(d,1))))", code: CodeCost},
		{name: "loops nested twelve deep", src: rep("l.map(a,", 12) + "1" + rep(")", 12), code: CodeTooLong},
		{name: "literal loops nested three deep", src: "[1,2,3,4,5,6,7,8,9].map(a,[1,2,3,4,5,6,7,8,9].map(b,[1,2,3,4,5,6,7,8,9].map(c,[a,b,c])))", compiles: true},
		{name: "loop over a long list", src: "l.map(a, l.map(b, 1))", vars: Vars{"l": numbers(50_000)}, compiles: true, code: CodeCost},
		{name: "loop over a long list, adding", src: "l.map(a, a + 1).exists(a, a > 100)", vars: Vars{"l": numbers(100_000)}, compiles: true, code: CodeCost},
		{name: "two loops", src: "l.all(a, l.all(b, a == b))", vars: Vars{"l": numbers(5_000)}, compiles: true, code: CodeCost},
		{name: "two loops of whole comparisons", src: "l.all(a, l == l)", vars: Vars{"l": numbers(100_000)}, compiles: true, code: CodeCost},
		{name: "searching in a loop", src: "l.all(a, 2 in l || true)", vars: Vars{"l": numbers(100_000)}, compiles: true, code: CodeCost},
		{name: "list of lists doubled", src: "[l+l+l+l].map(a,a+a+a+a).map(a,a+a+a+a).map(a,a+a+a+a).map(a,size(a))", vars: Vars{"l": numbers(1000)}, compiles: true, code: CodeTooLarge},
		{name: "growing string", src: growing, code: ""},
		{name: "growing string, short", src: `"aaaaaaaaaa"` + rep(`.replace("a","aaaaaaaaaa")`, 8), code: CodeCost},
		{name: "growing string, from data", src: wide, vars: Vars{"x": text(1000)}, compiles: true, code: CodeCost},
		{name: "growing sum", src: "[s].map(a,a+a+a+a+a+a+a+a).map(a,a+a+a+a+a+a+a+a).map(a,a+a+a+a+a+a+a+a)", vars: Vars{"s": text(1000)}, compiles: true, code: CodeCost},
		{name: "joining", src: "[l.map(a,s).join(s)]", vars: Vars{"l": numbers(1000), "s": text(10_000)}, compiles: true, code: CodeTooLarge},
		{name: "splitting", src: "s.split('').map(c, c + c).join('')", vars: Vars{"s": text(200_000)}, compiles: true, code: CodeTooLarge},
		{name: "searching text", src: "s.indexOf(t)", vars: Vars{"s": text(250_000), "t": json.RawMessage(`"` + rep("a", 120_000) + `b"`)}, compiles: true},
		{name: "searching text from the end", src: "s.lastIndexOf(t)", vars: Vars{"s": text(250_000), "t": json.RawMessage(`"b` + rep("a", 120_000) + `"`)}, compiles: true},
		{name: "huge result", src: "[s,s,s,s]", vars: Vars{"s": text(100_000)}, compiles: true, code: CodeTooLarge},
		{name: "huge pattern", src: "s.matches('" + rep("a", 8000) + "')", code: CodePattern},
		{name: "pattern of repetitions", src: "s.matches('((a{1,30}){1,30}){1,30}')", code: CodePattern},
		{name: "pattern of 1000 repetitions", src: "s.matches('(x+x+)+y{1000}')", code: CodePattern},
		{name: "slow pattern", src: "s.matches('(a*)*(a*)*(a*)*(a*)*(a*)*b')", vars: Vars{"s": text(5_000)}, compiles: true},
		{name: "slow pattern on a long text", src: "s.matches('(a|aa|aaa)*b')", vars: Vars{"s": text(250_000)}, compiles: true, code: CodeTooLarge},
		{name: "pattern in a loop", src: "l.all(a, !s.matches('(a|b|ab)*(a|b|ab)*c'))", vars: Vars{"l": numbers(1000), "s": text(5_000)}, compiles: true, code: CodeCost},
		{name: "text in a loop", src: "l.all(a, s.contains('b') == false)", vars: Vars{"l": numbers(1000), "s": text(200_000)}, compiles: true, code: CodeCost},
		{name: "upper case in a loop", src: "l.all(a, s.upperAscii() != '')", vars: Vars{"l": numbers(1000), "s": text(200_000)}, compiles: true, code: CodeCost},
		{name: "sizes in a loop", src: "l.all(a, size(s) > 1)", vars: Vars{"l": numbers(50_000), "s": text(200_000)}, compiles: true, code: CodeCost},
		{name: "deep document", src: "x", vars: Vars{"x": deep(100_000)}, compiles: true, code: CodeBadDocument},
		{name: "long number", src: "x + 1", vars: Vars{"x": json.RawMessage(rep("9", 200_000))}, compiles: true, code: CodeNumber},
		{name: "large exponent", src: "x == y", vars: Vars{"x": json.RawMessage("1e999999999"), "y": json.RawMessage("1e-999999999999999999999")}, compiles: true},
		{name: "large document in a loop", src: "l.all(a, x.k.a == x.k.a)", vars: Vars{"l": numbers(30_000), "x": json.RawMessage(`{"k":{"a":1,"b":"` + rep("b", 250_000) + `"}}`)}, compiles: true},
		{name: "object with many keys", src: "l.all(a, x.k29999 == 29999)", vars: Vars{"l": numbers(20_000), "x": manyKeys(30_000)}, compiles: true},
		{name: "large document", src: "x[0]", vars: Vars{"x": json.RawMessage("[" + rep("{},", 80_000) + "1]")}, compiles: true},
		{name: "loop over empty objects", src: "x.all(a, a == {})", vars: Vars{"x": json.RawMessage("[" + rep("{},", 80_000) + "{}]")}, compiles: true, code: CodeCost},
		{name: "timestamps in a loop", src: "l.all(a, timestamp('2020-01-01T00:00:00Z') + duration('1h') > timestamp(a))", vars: Vars{"l": numbers(50_000)}, compiles: true},
		{name: "number texts in a loop", src: "l.all(a, double(string(a) + '.5e10') > 0.0)", vars: Vars{"l": numbers(50_000)}, compiles: true},
		{name: "keys as bytes", src: "{b'a': 1}.size()", code: CodeType},
		{name: "keys as any bytes", src: "{dyn(b'a'): 1}.size()", compiles: true, code: CodeType},
		{name: "start of a text in a loop", src: "l.all(a, s.startsWith('a'))", vars: Vars{"l": numbers(50_000), "s": text(200_000)}, compiles: true},
		{name: "end of a text in a loop", src: "l.all(a, s.endsWith('a') && s != 'a' && s > 'b' == false)", vars: Vars{"l": numbers(50_000), "s": text(200_000)}, compiles: true},
		{name: "bytes of a text in a loop", src: "l.all(a, bytes(s) == b'')", vars: Vars{"l": numbers(50_000), "s": text(200_000)}, compiles: true},
		{name: "characters in a loop", src: "l.all(a, s.charAt(1) == 'a')", vars: Vars{"l": numbers(50_000), "s": text(200_000)}, compiles: true, code: CodeCost},
		{name: "parts of a text in a loop", src: "l.all(a, s.substring(1, 2) == 'a' && s.trim() != '')", vars: Vars{"l": numbers(50_000), "s": text(200_000)}, compiles: true, code: CodeCost},
		{name: "sums of texts in a loop", src: "l.all(a, (s + 'a').size() > 0)", vars: Vars{"l": numbers(50_000), "s": text(200_000)}, compiles: true, code: CodeCost},
		{name: "sums of lists in a loop", src: "l.all(a, (l + l).size() > 0)", vars: Vars{"l": numbers(20_000)}, compiles: true},
		{name: "keys as lists", src: "{dyn([1]): 1}", compiles: true},
	}
}

func manyKeys(n int) json.RawMessage {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"k%d":%d`, i, i)
	}
	return json.RawMessage("{" + b.String()[1:] + "}")
}

func TestBombs(t *testing.T) {
	env, err := NewEnv(Var{"s", String}, Var{"t", String}, Var{"l", mustSchema(t, `{"type":"array","items":{"type":"integer"}}`)}, Var{"x", nil}, Var{"y", nil})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := env.Compile("1", nil); err != nil { // the first one builds tables
		t.Fatal(err)
	}
	for _, b := range bombs() {
		t.Run(b.name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var took time.Duration
			var used uint64
			for range bombTries {
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				start := spent(t)
				prog, err := env.Compile(b.src, nil)
				if err == nil {
					_, err = prog.Eval(b.vars)
				}
				took = spent(t) - start
				runtime.ReadMemStats(&after)
				used = after.Sys - min(after.Sys, before.Sys)
				var code Code
				var ce *Error
				var ee *EvalError
				switch {
				case errors.As(err, &ce):
					code = ce.Code
				case errors.As(err, &ee):
					code = ee.Code
				}
				if b.compiles && ce != nil {
					t.Fatalf("doesn't compile: %v", err)
				}
				if b.code != "" && code != b.code {
					t.Fatalf("got %v (code %q), want code %q", err, code, b.code)
				}
				if code == CodeInternal {
					t.Fatalf("internal error: %v", err)
				}
				if took < bombTime {
					break
				}
			}
			if took >= bombTime && !raceEnabled {
				t.Errorf("took %v, the limit is %v", took, bombTime)
			}
			if used >= bombBytes && !raceEnabled {
				t.Errorf("took %d bytes from the system, the limit is %d", used, bombBytes)
			}
			t.Logf("%v, %d KiB", took.Round(time.Microsecond), used>>10)
		})
	}
}

func mustSchema(t testing.TB, src string) *Schema {
	t.Helper()
	s, err := ParseSchema([]byte(src))
	if err != nil {
		t.Fatal(err)
	}
	return s
}
