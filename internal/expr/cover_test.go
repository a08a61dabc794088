package expr

import "testing"

// Pairs of which the first doesn't cover the second, each with a document that shows it.
func TestCoversNothingThatItRefuses(t *testing.T) {
	for _, tt := range []struct{ want, have, doc string }{
		{`{"minItems":1}`, `{"type":"array"}`, `[]`},
		{`{"maxItems":1}`, `{"type":"array","maxItems":2}`, `[1,2]`},
		{`{"uniqueItems":true}`, `{"type":"array"}`, `[1,1]`},
		{`{"items":{"type":"string"}}`, `{"type":"array"}`, `[1]`},
		{`{"items":{"type":"string"}}`, `{"type":"array","prefixItems":[{"type":"integer"}],"items":{"type":"string"}}`, `[1]`},
		{`{"prefixItems":[{"type":"string"}]}`, `{"type":"array"}`, `[1]`},
		{`{"minLength":2}`, `{"type":"string","minLength":1}`, `"a"`},
		{`{"maxLength":2}`, `{"type":"string"}`, `"abc"`},
		{`{"pattern":"^a"}`, `{"type":"string","pattern":"a"}`, `"ba"`},
		{`{"minimum":1}`, `{"type":"integer"}`, `0`},
		{`{"type":"integer","maximum":127}`, `{"type":"integer","maximum":128}`, `128`},
		{`{"type":"integer","maximum":127}`, `{"enum":[1,128],"maximum":128}`, `128`},
		{`{"maximum":1}`, `{"type":"integer","maximum":2}`, `2`},
		{`{"exclusiveMinimum":1}`, `{"type":"integer","minimum":1}`, `1`},
		{`{"exclusiveMaximum":1}`, `{"type":"integer","maximum":1}`, `1`},
		{`{"multipleOf":2}`, `{"type":"integer","multipleOf":1}`, `1`},
		{`{"type":"integer"}`, `{"type":"number"}`, `0.5`},
		{`{"type":"string"}`, `{"type":["string","null"]}`, `null`},
		{`{"type":"string"}`, `{}`, `1`},
		{`{"enum":["a"]}`, `{"type":"string"}`, `"b"`},
		{`{"enum":["a"]}`, `{"enum":["a","b"]}`, `"b"`},
		{`{"const":1}`, `{"enum":[1,2]}`, `2`},
		{`{"required":["a"]}`, `{"type":"object"}`, `{}`},
		{`{"minProperties":1}`, `{"type":"object"}`, `{}`},
		{`{"maxProperties":0}`, `{"type":"object"}`, `{"a":1}`},
		{`{"properties":{"a":{"type":"string"}}}`, `{"type":"object"}`, `{"a":1}`},
		{`{"properties":{"a":{"type":"string"}}}`, `{"type":"object","properties":{"a":{"type":"integer"}}}`, `{"a":1}`},
		{`{"properties":{"a":{"type":"string"}}}`, `{"type":"object","additionalProperties":{"type":"integer"}}`, `{"a":1}`},
		{`{"properties":{"a":{"type":"string"}}}`, `{"type":"object","patternProperties":{"^a":{"type":"integer"}},"additionalProperties":{"type":"string"}}`, `{"a":1}`},
		{`{"properties":{"a":false}}`, `{"type":"object"}`, `{"a":1}`},
		{`{"additionalProperties":false}`, `{"type":"object"}`, `{"a":1}`},
		{`{"additionalProperties":false}`, `{"type":"object","properties":{"a":{}},"additionalProperties":false}`, `{"a":1}`},
		{`{"additionalProperties":false}`, `{"type":"object","patternProperties":{"^a":{}},"additionalProperties":false}`, `{"a":1}`},
		{`{"additionalProperties":{"type":"string"}}`, `{"type":"object","additionalProperties":{"type":"integer"}}`, `{"a":1}`},
		{`{"patternProperties":{"^a":{"type":"string"}}}`, `{"type":"object"}`, `{"a":1}`},
		{`{"anyOf":[{"type":"string"}]}`, `{"type":"integer"}`, `1`},
		{`{"oneOf":[{"type":"string"}]}`, `{"type":"integer"}`, `1`},
		{`{"allOf":[{"type":"string"}]}`, `{"type":"integer"}`, `1`},
		{`{"not":{"type":"integer"}}`, `{"type":"integer"}`, `1`},
		{`{"$ref":"#/$defs/t","$defs":{"t":{"type":"string"}}}`, `{"type":"integer"}`, `1`},
		{`false`, `true`, `1`},
	} {
		want, have := mustSchema(t, tt.want), mustSchema(t, tt.have)
		if have.Validate([]byte(tt.doc)) != nil || want.Validate([]byte(tt.doc)) == nil {
			t.Errorf("%s is no example of what fits %s and not %s", tt.doc, tt.have, tt.want)
		}
		if want.covers(have) {
			t.Errorf("%s is said to cover %s; %s", tt.want, tt.have, tt.doc)
		}
		if !want.covers(want) && want.ref == nil && want.anyOf == nil && want.oneOf == nil && want.allOf == nil && want.not == nil &&
			want.patterns == nil && want.prefix == nil && tt.want != `{"const":1}` && !want.never {
			t.Errorf("%s isn't said to cover itself", tt.want)
		}
	}
}

// Integers and floats of Go types are passed on to such fields without another validation.
func TestBoundedNumbersFit(t *testing.T) {
	const (
		i32 = `{"type":"integer","minimum":-2147483648,"maximum":2147483647}`
		i64 = `{"type":"integer","minimum":-9223372036854775808,"maximum":9223372036854775807}`
		u64 = `{"type":"integer","minimum":0,"maximum":18446744073709551615}`
		f64 = `{"type":"number","minimum":-1.7976931348623157e308,"maximum":1.7976931348623157e308}`
	)
	for _, tt := range []struct {
		source, have, want string
		fits               bool
	}{
		{"input.n", i64, i64, true},
		{"input.n", i32, i64, true},
		{"input.n", i64, i32, false},
		{"input.n", u64, u64, true},
		{"input.n", u64, i64, false},
		{"input.n", i64, f64, true},
		{"input.n", f64, f64, true},
		{"input.n", `{"type":"integer"}`, i64, false},
		{"5", i64, i64, true},
		{"-5", i64, i64, true},
		{"2147483648", i64, i64, true},
		{"0.5", i64, f64, true},
		{"-1", i64, u64, false},
	} {
		env, err := NewEnv(Var{Name: "input", Schema: mustSchema(t, `{"type":"object","required":["n"],"properties":{"n":`+tt.have+`}}`)})
		if err != nil {
			t.Fatal(err)
		}
		p, err := env.Compile(tt.source, mustSchema(t, tt.want))
		if err != nil {
			t.Errorf("%s to %s: %v", tt.source, tt.want, err)
			continue
		}
		if p.Fits() != tt.fits {
			t.Errorf("%s of %s to %s: fits %v", tt.source, tt.have, tt.want, p.Fits())
		}
		o, errs := env.CompileObject([]Field{{Name: "n", Source: tt.source}}, mustSchema(t, `{"type":"object","properties":{"n":`+tt.want+`}}`))
		if errs != nil {
			t.Errorf("%s to %s: %v", tt.source, tt.want, errs)
		} else if o.Fits() != tt.fits {
			t.Errorf("object, %s of %s to %s: fits %v", tt.source, tt.have, tt.want, o.Fits())
		}
	}
}

// The quick look at bounds says what the exact one says.
func TestWithinBounds(t *testing.T) {
	numbers := []string{"0", "-0", "1", "-1", "0.5", "-0.5", "127", "128", "127.5", "-128", "-129", "999999999999999999", "-99999999999999999",
		"9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "1e2", "1.5e300", "1e-5", "0.1e400", "18446744073709551616", "1e999"}
	for _, text := range []string{`{"minimum":-128,"maximum":127}`, `{"minimum":0}`, `{"maximum":0}`, `{"minimum":0.5}`, `{"maximum":-1.5}`,
		`{"minimum":-9223372036854775808,"maximum":9223372036854775807}`, `{"minimum":0,"maximum":18446744073709551615}`, `{"minimum":1e30}`,
		`{"maximum":-1e30}`, `{"minimum":-1e308,"maximum":1e308}`, `{"minimum":1e999}`, `{"minimum":0,"exclusiveMaximum":5}`, `{"minimum":0,"multipleOf":2}`} {
		s := mustSchema(t, text)
		exact := *s
		exact.bounded = false
		for _, n := range numbers {
			v := validator{steps: 1000}
			if got, want := v.checkNumber(s, []byte(n), nil) == nil, v.checkNumber(&exact, []byte(n), nil) == nil; got != want {
				t.Errorf("%s of %s: fits %v, exactly %v", n, text, got, want)
			}
		}
	}
}
