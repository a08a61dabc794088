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
