package expr

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// evaluated is what an expression gives without the short ways: what the evaluator says.
func evaluated(p *Program, v Vars) (json.RawMessage, error) {
	long := *p
	long.path, long.constant = nil, nil
	return long.Eval(v)
}

func evaluatedObject(o *Object, v Vars) (json.RawMessage, error) {
	long := *o
	long.fields = nil
	for _, f := range o.fields {
		p := *f.prog
		p.path, p.constant = nil, nil
		f.path, f.prog = nil, &p
		long.fields = append(long.fields, f)
	}
	return long.Eval(v)
}

func sameOutcome(t interface{ Fatalf(string, ...any) }, what string, got, want json.RawMessage, err, werr error) {
	if !bytes.Equal(got, want) || (err == nil) != (werr == nil) || err != nil && fmt.Sprintf("%+v", *err.(*EvalError)) != fmt.Sprintf("%+v", *werr.(*EvalError)) {
		t.Fatalf("%s: got %s, %v; the evaluator says %s, %v", what, got, err, want, werr)
	}
}

// drawJSON draws a document of the fields that drawSchema knows, well formed, odd in spelling.
func drawJSON(t *rapid.T, depth int) string {
	space := func() string { return rapid.SampledFrom([]string{"", "", "", " ", "\n\t"}).Draw(t, "space") }
	kinds := 9
	if depth <= 0 {
		kinds = 7
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return "null"
	case 1:
		return rapid.SampledFrom([]string{"true", "false"}).Draw(t, "bool")
	case 2, 3:
		return rapid.SampledFrom([]string{"0", "-0", "1", "-7", "1.0", "1.50", "-0.0", "1e2", "5E-1", "12345678901234567890123", "9223372036854775808", "0.1"}).Draw(t, "number")
	case 4, 5, 6:
		return rapid.SampledFrom([]string{`""`, `"a"`, `"abc"`, `"\u0061"`, `"é"`, `"\n\"\\\/"`, `"\ud83d\ude00"`, `"\ud800"`, `"\u0000"`, "\"\x7f\u2028\""}).Draw(t, "string")
	case 7:
		var parts []string
		for range rapid.IntRange(0, 3).Draw(t, "elements") {
			parts = append(parts, space()+drawJSON(t, depth-1)+space())
		}
		return "[" + strings.Join(parts, ",") + "]"
	default:
		var parts []string
		for range rapid.IntRange(0, 4).Draw(t, "members") {
			key := rapid.SampledFrom([]string{`"a"`, `"b"`, `"c"`, `"\u0061"`, `"o-1"`, `"é"`, `"zz"`}).Draw(t, "key")
			parts = append(parts, space()+key+space()+":"+space()+drawJSON(t, depth-1)+space())
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
}

// drawSchema draws a schema whose documents drawJSON has a chance to hit.
func drawSchema(t *rapid.T, depth int) map[string]any {
	s := map[string]any{}
	is := func(what string, of int) bool { return rapid.IntRange(1, of).Draw(t, what) == 1 }
	kinds := []string{"string", "integer", "number", "boolean", "null", "object", "object", "array"}
	if depth <= 0 {
		kinds = kinds[:5]
	}
	kind := rapid.SampledFrom(kinds).Draw(t, "type")
	switch {
	case is("untyped", 8):
	case is("nullable", 5):
		s["type"] = []string{kind, "null"}
	default:
		s["type"] = kind
	}
	sub := func() any {
		if is("bool schema", 12) {
			return rapid.Bool().Draw(t, "true or false")
		}
		return drawSchema(t, depth-1)
	}
	name := func() string { return rapid.SampledFrom([]string{"a", "b", "c", "o-1", "zz"}).Draw(t, "name") }
	switch kind {
	case "string":
		if is("minLength", 4) {
			s["minLength"] = rapid.IntRange(0, 2).Draw(t, "n")
		}
		if is("maxLength", 4) {
			s["maxLength"] = rapid.IntRange(0, 3).Draw(t, "n")
		}
		if is("pattern", 6) {
			s["pattern"] = rapid.SampledFrom([]string{"^a", "b"}).Draw(t, "pattern")
		}
	case "integer", "number":
		for _, k := range []string{"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"} {
			if is(k, 6) {
				s[k] = rapid.IntRange(-2, 3).Draw(t, "n")
			}
		}
		if is("multipleOf", 8) {
			s["multipleOf"] = rapid.SampledFrom([]float64{0.5, 1, 2}).Draw(t, "n")
		}
	case "array":
		if is("items", 2) {
			s["items"] = sub()
		}
		if is("prefixItems", 8) {
			s["prefixItems"] = []any{sub()}
		}
		if is("minItems", 6) {
			s["minItems"] = rapid.IntRange(0, 2).Draw(t, "n")
		}
		if is("maxItems", 6) {
			s["maxItems"] = rapid.IntRange(0, 2).Draw(t, "n")
		}
		if is("uniqueItems", 8) {
			s["uniqueItems"] = true
		}
	case "object":
		props := map[string]any{}
		var required []string
		for range rapid.IntRange(0, 3).Draw(t, "props") {
			n := name()
			props[n] = sub()
			if is("required", 2) {
				required = append(required, n)
			}
		}
		if is("required alone", 10) {
			required = append(required, name())
		}
		if len(props) > 0 || is("empty props", 2) {
			s["properties"] = props
		}
		if len(required) > 0 {
			s["required"] = required
		}
		if is("additional", 2) {
			s["additionalProperties"] = false
		} else if is("additional schema", 3) {
			s["additionalProperties"] = sub()
		}
		if is("patterns", 10) {
			s["patternProperties"] = map[string]any{"^a": sub()}
		}
		if is("minProperties", 8) {
			s["minProperties"] = rapid.IntRange(0, 2).Draw(t, "n")
		}
		if is("maxProperties", 8) {
			s["maxProperties"] = rapid.IntRange(0, 3).Draw(t, "n")
		}
	}
	if is("enum", 10) {
		s["enum"] = []any{"a", 1, nil, true, map[string]any{"a": 1}}[:rapid.IntRange(1, 5).Draw(t, "values")]
	}
	if depth > 0 && is("combined", 12) {
		s[rapid.SampledFrom([]string{"anyOf", "oneOf", "allOf"}).Draw(t, "how")] = []any{drawSchema(t, depth-1), drawSchema(t, depth-1)}
	}
	if is("not", 20) {
		s["not"] = drawSchema(t, 0)
	}
	if is("ref", 8) {
		ref := rapid.SampledFrom([]string{"#/$defs/text", "#/$defs/thing"}).Draw(t, "ref")
		if is("only ref", 2) {
			return map[string]any{"$ref": ref}
		}
		s["$ref"] = ref
	}
	return s
}

func drawParsed(t *rapid.T, label string) *Schema {
	raw := drawSchema(t, 2)
	raw["$defs"] = map[string]any{
		"text":  map[string]any{"type": "string", "maxLength": 3},
		"thing": map[string]any{"type": "object", "required": []string{"a"}, "properties": map[string]any{"a": map[string]any{"type": "string"}, "b": map[string]any{"$ref": "#/$defs/thing"}}},
	}
	b, err := json.Marshal(raw)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ParseSchema(b)
	if err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	t.Logf("%s: %s", label, b)
	return s
}

var drawnPaths = []string{"input", "input.a", "input.b", "input.a.b", "input.c.a.b", "input.`o-1`", ".input.a", "other.a", "other", "other.zz.a", "input.a.a", "gone.a"}

// The short ways give what the evaluator gives: the bytes, and the errors with their places.
func TestShortWaysSayWhatTheEvaluatorSays(t *testing.T) {
	passed := 0
	rapid.Check(t, func(t *rapid.T) {
		env, err := NewEnv(Var{"input", drawParsed(t, "input")}, Var{"other", nil}, Var{"gone", nil})
		if err != nil {
			t.Fatal(err)
		}
		vars := Vars{"input": []byte(drawJSON(t, 3)), "other": []byte(drawJSON(t, 3))}
		if rapid.IntRange(0, 9).Draw(t, "broken") == 0 {
			vars["other"] = []byte(rapid.SampledFrom([]string{"", "{", `{"a":1}x`, "{\"a\":\"\xff\"}", `{"a":01}`, " {\"a\" : 1 } "}).Draw(t, "document"))
		}
		want := Any
		if rapid.Bool().Draw(t, "wants") {
			want = drawParsed(t, "want")
		}
		var fields []Field
		for i, src := range append(drawnPaths, "'x'", "1", "-1", "1.50", "true", "null", "'\\u0001é\"'", "input.a == input.a") {
			if p, err := env.Compile(src, want); err == nil {
				got, err := p.Eval(vars)
				long, lerr := evaluated(p, vars)
				sameOutcome(t, src, got, long, err, lerr)
				docs, derr := p.EvalDocs(vars.docs(nil, p.Refs()))
				sameOutcome(t, src+" by documents", docs, long, derr, lerr)
				if err == nil {
					passed++
				}
				if rapid.Bool().Draw(t, "field") {
					fields = append(fields, Field{fmt.Sprint("f", i), src})
				}
			}
		}
		if o, errs := env.CompileObject(fields, nil); errs == nil {
			got, err := o.Eval(vars)
			long, lerr := evaluatedObject(o, vars)
			sameOutcome(t, "object", got, long, err, lerr)
			docs, derr := o.EvalDocs(vars.docs(nil, o.Refs()))
			sameOutcome(t, "object by documents", docs, long, derr, lerr)
		}
	})
	if passed < 20 {
		t.Errorf("only %d values came through", passed)
	}
}

func TestShortWaysAtTheLimits(t *testing.T) {
	env, err := NewEnv(Var{"input", nil})
	if err != nil {
		t.Fatal(err)
	}
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	long := func(n int) string { return `"` + strings.Repeat("x", n-2) + `"` }
	for name, doc := range map[string]string{
		"deepest": nested(NestingMax), "too deep": nested(NestingMax + 1), "deepest in a field": `{"a":` + nested(NestingMax-1) + `}`,
		"longest": long(ResultBytesMax), "too long": long(ResultBytesMax + 1), "longest in a field": `{"a":` + long(ResultBytesMax-20) + `}`,
		"too long in a field": `{"a":` + long(ResultBytesMax-4) + `}`, "too large": long(DocumentBytesMax + 1), "nothing": "",
		"many members": "{" + strings.Repeat(`"k":1,`, 1000) + `"a":2}`, "twice": `{"a":1,"a":2}`, "twice, one in disguise": `{"a":1,"\u0061":2}`,
	} {
		vars := Vars{"input": []byte(doc)}
		for _, src := range []string{"input", "input.a"} {
			p, err := env.Compile(src, nil)
			if err != nil {
				t.Fatal(err)
			}
			if p.path == nil {
				t.Fatalf("%s isn't taken for a path", src)
			}
			got, gerr := p.Eval(vars)
			want, werr := evaluated(p, vars)
			sameOutcome(t, name+": "+src, got, want, gerr, werr)
			o, errs := env.CompileObject([]Field{{"a", src}, {"b", "'constant'"}, {"c", src}}, nil)
			if errs != nil {
				t.Fatal(errs)
			}
			got, gerr = o.Eval(vars)
			want, werr = evaluatedObject(o, vars)
			sameOutcome(t, name+": object of "+src, got, want, gerr, werr)
		}
	}
}

// A quick validation says what the thorough one says.
func TestQuickSaysWhatValidateSays(t *testing.T) {
	fit := 0
	rapid.Check(t, func(t *rapid.T) {
		s := drawParsed(t, "schema")
		for range 8 {
			doc := []byte(drawJSON(t, 3))
			err := s.validate(doc)
			if quick := s.quickly(doc); quick != (err == nil) {
				t.Fatalf("%s: quick says %v, the validator %v", doc, quick, err)
			}
			if err == nil {
				fit++
			}
		}
	})
	for _, tt := range validations {
		s := mustSchema(t, tt.schema)
		if s.quickly([]byte(tt.doc)) != (s.validate([]byte(tt.doc)) == nil) {
			t.Errorf("%s by %s", tt.doc, tt.schema)
		}
	}
	if fit < 20 {
		t.Errorf("only %d documents fit", fit)
	}
}

// What one schema covers by another's word, it accepts.
func TestCoveredDocumentsFit(t *testing.T) {
	covered, fit := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		have := drawParsed(t, "have")
		want := have
		if rapid.IntRange(0, 2).Draw(t, "other") > 0 {
			want = drawParsed(t, "want")
		}
		if !want.covers(have) {
			return
		}
		covered++
		for range 20 {
			doc := []byte(drawJSON(t, 3))
			if have.Validate(doc) != nil {
				continue
			}
			fit++
			if err := want.Validate(doc); err != nil {
				t.Fatalf("%s: %v", doc, err)
			}
		}
	})
	if covered < 5 || fit < 5 {
		t.Errorf("only %d pairs, %d documents", covered, fit)
	}
}

// What Fits says is true: with documents that fit their schemas, the result fits.
func TestFits(t *testing.T) {
	fits := 0
	rapid.Check(t, func(t *rapid.T) {
		input, other := drawParsed(t, "input"), drawParsed(t, "other")
		env, err := NewEnv(Var{"input", input}, Var{"other", other})
		if err != nil {
			t.Fatal(err)
		}
		want := rapid.SampledFrom([]*Schema{Any, input, other, drawParsed(t, "want")}).Draw(t, "which")
		var vars []Vars
		for range 10 {
			v := Vars{"input": []byte(drawJSON(t, 3)), "other": []byte(drawJSON(t, 3))}
			if input.Validate(v["input"]) == nil && other.Validate(v["other"]) == nil {
				vars = append(vars, v)
			}
		}
		check := func(what string, eval func(Vars) (json.RawMessage, error)) {
			for _, v := range vars {
				out, err := eval(v)
				if err != nil {
					continue
				}
				fits++
				if err := want.Validate(out); err != nil {
					t.Fatalf("%s said that it fits: %s from %s: %v", what, out, v, err)
				}
			}
		}
		sources := []string{"input", "input.a", "input.b", "input.c", "other", "other.a", "other.a.b", "'a'", "1", "true", "null"}
		for _, src := range sources {
			if p, err := env.Compile(src, want); err == nil && p.Fits() {
				check(src, p.Eval)
			}
		}
		var fields []Field
		for _, name := range []string{"a", "b", "c"} {
			if src := rapid.SampledFrom(append(sources, "")).Draw(t, "source"); src != "" {
				fields = append(fields, Field{name, src})
			}
		}
		if o, errs := env.CompileObject(fields, want); errs == nil && o.Fits() {
			check(fmt.Sprint(fields), o.Eval)
		}
	})
	if fits < 20 {
		t.Errorf("only %d results", fits)
	}
}

// Of what is usual, Fits must not be afraid.
func TestFitsTheUsual(t *testing.T) {
	order := mustSchema(t, orderSchema)
	env := orderEnv(t)
	for _, tt := range []struct {
		want   string
		fields []Field
		fits   bool
	}{
		{`{"type":"object","properties":{"id":{"type":"string"},"n":{"type":"number"},"kind":{"type":"string","enum":["sale"]}},"required":["id"],"additionalProperties":false}`,
			[]Field{{"id", "input.id"}, {"n", "input.cent"}, {"kind", "'sale'"}}, true},
		{`{"type":"object","properties":{"who":{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}}}`, []Field{{"who", "input.customer"}}, true},
		{`{"type":"object","properties":{"id":{"type":"string","minLength":1}}}`, []Field{{"id", "input.id"}}, false},
		{`{"type":"object","properties":{"id":{"type":"string"}}}`, []Field{{"id", "any.id"}}, false},
		{`{"type":"object","properties":{"id":{"type":"string"}}}`, []Field{{"id", "'o' + input.id"}}, false},
		{`{}`, []Field{{"all", "input"}}, false}, // one level deeper than it was
	} {
		o, errs := env.CompileObject(tt.fields, mustSchema(t, tt.want))
		if errs != nil {
			t.Fatal(errs)
		}
		if o.Fits() != tt.fits {
			t.Errorf("%v for %s: %v", tt.fields, tt.want, o.Fits())
		}
	}
	if _, err := env.Compile("input", order); err != nil {
		t.Error(err)
	}
}
