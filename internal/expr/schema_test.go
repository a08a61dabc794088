package expr

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

func TestParseSchema(t *testing.T) {
	for _, tt := range []struct{ schema, name, err string }{
		{``, "any", ""},
		{` `, "any", ""},
		{`true`, "any", ""},
		{`false`, "nothing", ""},
		{`{}`, "any", ""},
		{`{"type":"integer"}`, "integer", ""},
		{`{"type":"number","format":"double","title":"x","x-y":1}`, "number", ""},
		{`{"type":["string","null"]}`, "string or null", ""},
		{`{"type":["string","integer"]}`, "integer or string", ""},
		{`{"type":"array"}`, "list", ""},
		{`{"type":"array","items":{"type":"array","items":{"type":"string"}}}`, "list of list of string", ""},
		{`{"type":"object"}`, "object", ""},
		{`{"type":"object","properties":{"a":{}}}`, "object", ""},
		{`{"properties":{"a":{}}}`, "object", ""},
		{`{"type":"object","additionalProperties":{"type":"integer"}}`, "map of integer", ""},
		{`{"type":"object","patternProperties":{"^[0-9]+$":{"type":"boolean"}},"additionalProperties":false}`, "map of boolean", ""},
		{`{"enum":["a","b"]}`, "string", ""},
		{`{"enum":["a",null]}`, "string or null", ""},
		{`{"const":3}`, "integer", ""},
		{`{"anyOf":[{"type":"string"}]}`, "any", ""},
		{`{"$ref":"#/$defs/A","$defs":{"A":{"$ref":"#/$defs/B"},"B":{"type":"boolean"}}}`, "boolean", ""},
		{`{"$ref":"#/definitions/A~1b","definitions":{"A/b":{"type":"null"}}}`, "null", ""},
		{`{"properties":{"a":{"type":"string"}},"items":{"$ref":"#/properties/a"},"type":"array"}`, "list of string", ""},
		{`{"type":"array","items":{"$ref":"#"}}`, "list of list of list of list of list of list of list of list of list", ""},

		{`[]`, "", "#: a schema is an object, true or false"},
		{`{`, "", "$: not JSON"},
		{`{"type":"int"}`, "", "#/type: want one of null, boolean"},
		{`{"type":[]}`, "", "#/type: want at least one type"},
		{`{"properties":{"a":{"type":"strin"}}}`, "", "#/properties/a/type: want one of"},
		{`{"$ref":"http://example.org/x"}`, "", "#/$ref: \"http://example.org/x\" isn't in this document"},
		{`{"$ref":"#/$defs/A"}`, "", "#/$ref: there is no \"#/$defs/A\" in this document"},
		{`{"$ref":"#"}`, "", "a $ref leads back to itself"},
		{`{"$ref":"#/$defs/A","$defs":{"A":{"$ref":"#/$defs/B"},"B":{"$ref":"#/$defs/A"}}}`, "", "a $ref leads back to itself"},
		{`{"if":{}}`, "", "#/if: the keyword isn't supported"},
		{`{"items":{"contains":{}}}`, "", "#/items/contains: the keyword isn't supported"},
		{`{"pattern":"("}`, "", "#/pattern: the pattern isn't a regular expression by RE2's syntax: missing closing )"},
		{`{"pattern":"(a{1,100}){1,10}b"}`, "", "#/pattern: the pattern compiles to"},
		{`{"pattern":"` + strings.Repeat("a", 257) + `"}`, "", "#/pattern: the pattern has 257 bytes, the limit is 256"},
		{`{"minLength":-1}`, "", "#/minLength: want a whole number from 0 on"},
		{`{"minimum":"1"}`, "", "#/minimum: want a number"},
		{`{"multipleOf":0}`, "", "#/multipleOf: want a number above 0"},
		{`{"required":[1]}`, "", "#/required: want a list of names"},
		{`{"anyOf":[]}`, "", "#/anyOf: want at least one schema"},
		{`{"anyOf":[1]}`, "", "#/anyOf/0: a schema is an object"},
		{`{"title":"` + strings.Repeat("a", SchemaBytesMax) + `"}`, "", "the limit is 65536"},
		{`{"anyOf":[` + strings.Repeat("{},", 5000) + `{}]}`, "", "the schema has more than 4096 subschemas"},
		{strings.Repeat(`{"not":`, 60) + "{}" + strings.Repeat("}", 60), "any", ""},
	} {
		s, err := ParseSchema([]byte(tt.schema))
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%.80s: got %v, want %s", tt.schema, err, tt.err)
			}
			continue
		}
		if err != nil || s.String() != tt.name {
			t.Errorf("%.80s: got %v, %v, want %s", tt.schema, s, err, tt.name)
		}
	}
	if (*Schema)(nil).String() != "any" || (*Schema)(nil).Validate([]byte("1")) != nil {
		t.Error("nil isn't any")
	}
}

// validations are schemas with documents and what Validate says of them; empty is nothing.
var validations = []struct{ schema, doc, err string }{
	{orderSchema, orderDoc, ""},
	{orderSchema, `{"id":"x","cent":1,"customer":{"name":"n"},"lines":[{"sku":"a","qty":"1"}]}`, "$.lines[0].qty: want integer, got string"},
	{orderSchema, `{"id":"x","cent":1,"customer":{"name":"n"},"lines":[{"sku":"a","qty":0}]}`, "$.lines[0].qty: want at least 1"},
	{orderSchema, `{"id":"x","cent":1,"customer":{"name":"n"},"lines":[{"sku":"a"}]}`, "$.lines[0].qty: required, but missing"},
	{orderSchema, `{"id":"x","cent":1.5,"customer":{"name":"n"},"lines":[]}`, "$.cent: want integer, got number"},
	{orderSchema, `{"id":"x","cent":1.0,"customer":{"name":"n","parent":{"name":null}},"lines":[]}`, "$.customer.parent.name: want string, got null"},
	{orderSchema, `{"id":"x","cent":1,"customer":{"name":"n"},"lines":[],"tag":1}`, "$.tag: no such field is allowed; did you mean tags?"},
	{orderSchema, `[]`, "$: want object, got array"},
	{`{"type":"integer"}`, `123456789012345678901234567890`, ""},
	{`{"type":"integer"}`, `1e3`, ""},
	{`{"type":"integer"}`, `1e-1`, "$: want integer, got number"},
	{`{"type":"number"}`, `1`, ""},
	{`{"type":["string","null"]}`, `null`, ""},
	{`{"type":["string","null"]}`, `1`, "$: want null or string, got integer"},
	{`{"maximum":9007199254740992}`, `9007199254740993`, "$: want at most 9007199254740992"},
	{`{"maximum":9007199254740992}`, `9007199254740992.0`, ""},
	{`{"exclusiveMinimum":0.1}`, `0.10`, "$: want more than 0.1"},
	{`{"exclusiveMinimum":0.1}`, `0.10000000000000000001`, ""},
	{`{"exclusiveMaximum":5,"minimum":-5}`, `5`, "$: want less than 5"},
	{`{"multipleOf":0.01}`, `19.99`, ""},
	{`{"multipleOf":0.01}`, `19.999`, "$: want a multiple of 0.01"},
	{`{"multipleOf":3}`, `9`, ""},
	{`{"multipleOf":3}`, `10`, "$: want a multiple of 3"},
	{`{"minLength":2,"maxLength":3}`, `"ü"`, "$: want at least 2 characters, got 1"},
	{`{"minLength":2,"maxLength":3}`, `"üüü"`, ""},
	{`{"maxLength":1}`, `"\ud83d\ude00"`, ""},
	{`{"maxLength":3}`, `"abcd"`, "$: want at most 3 characters, got 4"},
	{`{"pattern":"^a+$"}`, `"aa"`, ""},
	{`{"pattern":"^a+$"}`, `"ab"`, "$: want a string that matches ^a+$"},
	{`{"pattern":"^a+$"}`, `5`, ""},
	{`{"enum":["a",1,{"x":[1]}]}`, `{"x":[1.0]}`, ""},
	{`{"enum":["a",1]}`, `1.0`, ""},
	{`{"enum":["a",1]}`, `"b"`, `$: want one of "a", 1`},
	{`{"const":{"a":1,"b":2}}`, `{"b":2,"a":1}`, ""},
	{`{"const":"x"}`, `"y"`, `$: want "x"`},
	{`{"minItems":1,"maxItems":2}`, `[]`, "$: want at least 1 elements, got 0"},
	{`{"minItems":1,"maxItems":2}`, `[1,2,3]`, "$: want at most 2 elements, got 3"},
	{`{"uniqueItems":true}`, `[1,2,1.0]`, "$[2]: want different elements, this one equals [0]"},
	{`{"uniqueItems":true}`, `[{"a":1,"b":2},{"b":2,"a":1}]`, "$[1]: want different elements, this one equals [0]"},
	{`{"uniqueItems":true}`, `[1,"1",[1]]`, ""},
	{`{"prefixItems":[{"type":"string"}],"items":{"type":"integer"}}`, `["a",1,2]`, ""},
	{`{"prefixItems":[{"type":"string"}],"items":{"type":"integer"}}`, `["a",1,"b"]`, "$[2]: want integer, got string"},
	{`{"minProperties":1,"maxProperties":1}`, `{}`, "$: want at least 1 fields, got 0"},
	{`{"minProperties":1,"maxProperties":1}`, `{"a":1,"b":2}`, "$: want at most 1 fields, got 2"},
	{`{"patternProperties":{"^x-":{"type":"integer"}},"additionalProperties":false}`, `{"x-a":1}`, ""},
	{`{"patternProperties":{"^x-":{"type":"integer"}},"additionalProperties":false}`, `{"x-a":"1"}`, `$["x-a"]: want integer, got string`},
	{`{"patternProperties":{"^x-":{"type":"integer"}},"additionalProperties":false}`, `{"y":1}`, "$.y: no such field is allowed"},
	{`{"additionalProperties":{"type":"integer"}}`, `{"a":1,"b":"x"}`, "$.b: want integer, got string"},
	{`{"properties":{"a":false}}`, `{"a":1}`, "$.a: nothing is allowed here"},
	{`{"properties":{"a":false}}`, `{"b":1}`, ""},
	{`{"properties":{"\u0061":{"type":"string"}}}`, `{"\u0061":1}`, "$.a: want string, got integer"},
	{`{"anyOf":[{"type":"string"},{"type":"integer"}]}`, `1`, ""},
	{`{"anyOf":[{"type":"string"},{"type":"integer"}]}`, `true`, "$: want string, integer; got a boolean that fits none of them"},
	{`{"oneOf":[{"type":"integer"},{"minimum":5}]}`, `3`, ""},
	{`{"oneOf":[{"type":"integer"},{"minimum":5}]}`, `7`, "$: want exactly one of: integer, any; got an integer that fits 2 of them"},
	{`{"allOf":[{"type":"integer"},{"minimum":5}]}`, `3`, "$: want at least 5"},
	{`{"not":{"type":"string"}}`, `"x"`, "$: want anything but string"},
	{`{"not":{"type":"string"}}`, `1`, ""},
	{`{"$ref":"#/$defs/A","minimum":3,"$defs":{"A":{"type":"integer"}}}`, `2`, "$: want at least 3"},
	{`{"type":"object","properties":{"next":{"$ref":"#"},"v":{"type":"integer"}}}`, `{"next":{"next":{"v":"x"}}}`, "$.next.next.v: want integer, got string"},
	{`false`, `1`, "$: nothing is allowed here"},
	{`true`, `1`, ""},
}

func TestValidate(t *testing.T) {
	for _, tt := range validations {
		err := mustSchema(t, tt.schema).Validate([]byte(tt.doc))
		if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.HasPrefix(err.Error(), tt.err)) {
			t.Errorf("%.60s with %.60s: got %v, want %s", tt.schema, tt.doc, err, tt.err)
		}
		var e *DocumentError
		if err != nil && (!errors.As(err, &e) || e.Code != CodeSchema) {
			t.Errorf("%.60s with %.60s: got %#v", tt.schema, tt.doc, err)
		}
	}
	for doc, code := range map[string]Code{`{`: CodeBadDocument, `{"a":1,"a":1}`: CodeDuplicate, `"\u0000"`: CodeNUL, ``: CodeBadDocument} {
		var e *DocumentError
		if err := Any.Validate([]byte(doc)); !errors.As(err, &e) || e.Code != code {
			t.Errorf("%s: got %v, want %s", doc, err, code)
		}
	}
	// Alternatives that lead back to themselves double with each level.
	s := mustSchema(t, `{"anyOf":[{"items":{"$ref":"#"},"type":"array"},{"items":{"$ref":"#"},"type":"array","minItems":1},{"type":"string"}]}`)
	var e *DocumentError
	if err := s.Validate([]byte(strings.Repeat("[", 60) + "1" + strings.Repeat("]", 60))); !errors.As(err, &e) || e.Code != CodeCost {
		t.Errorf("got %v, want code %s", err, CodeCost)
	}
	s = mustSchema(t, `{"type":"string","pattern":"^(a|b|ab)*c$"}`)
	if err := s.Validate([]byte(`"` + strings.Repeat("a", 250_000) + `"`)); err == nil || !strings.Contains(err.Error(), "too long to be matched") {
		t.Errorf("got %v", err)
	}
}

// TestValidateOracle compares with an independent implementation.
func TestValidateOracle(t *testing.T) {
	docs := []string{`null`, `true`, `1`, `-3`, `1.5`, `1.0`, `7`, `1e3`, `"a"`, `"aa"`, `"abcd"`, `"ü"`, `[]`, `[1]`, `["a",1,"b"]`, `[1,2,1.0]`, `{}`,
		`{"a":1}`, `{"a":1,"b":2}`, `{"x-a":1}`, `{"next":{"v":1}}`, `123456789012345678901234567890`, `9007199254740993`, `[{"a":1},{"a":1}]`, orderDoc}
	for _, tt := range validations {
		docs = append(docs, tt.doc)
	}
	for _, tt := range validations {
		raw, err := jsonschema.UnmarshalJSON(strings.NewReader(tt.schema))
		if err != nil {
			t.Fatal(err)
		}
		c := jsonschema.NewCompiler()
		if err := c.AddResource("schema.json", raw); err != nil {
			t.Fatal(err)
		}
		oracle, err := c.Compile("schema.json")
		if err != nil {
			t.Fatalf("%s: %v", tt.schema, err)
		}
		ours := mustSchema(t, tt.schema)
		for _, doc := range docs {
			v, err := jsonschema.UnmarshalJSON(bytes.NewReader([]byte(doc)))
			if err != nil {
				t.Fatal(err)
			}
			if theirs, our := oracle.Validate(v), ours.Validate([]byte(doc)); (theirs == nil) != (our == nil) {
				t.Errorf("%s with %s: we say %v, the oracle %v", tt.schema, doc, our, theirs)
			}
		}
	}
}
