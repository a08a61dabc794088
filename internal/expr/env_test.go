package expr

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// ok is the code of a test that wants no error.
const ok Code = ""

func TestCompile(t *testing.T) {
	env := orderEnv(t)
	for _, tt := range []struct {
		src  string
		want *Schema
		code Code
		// at is line:column, text a part of the message.
		at, text string
	}{
		{"input.cent", Integer, ok, "", ""},
		{"input.cent", mustSchema(t, `{"type":"number"}`), ok, "", ""},
		{"input.amt", mustSchema(t, `{"type":"number"}`), ok, "", ""},
		{"input.amt", Integer, CodeType, "1:6", "want integer, got number; convert it with int(...)"},
		{"input.id", String, ok, "", ""},
		{"input.cent", String, CodeType, "1:6", "want string, got integer; convert it with string(...)"},
		{"string(input.cent)", String, ok, "", ""},
		{"input.id", Bool, CodeType, "1:6", "want boolean, got string"},
		{"input.cent > 3", Bool, ok, "", ""},
		{"any.whatever", Bool, ok, "", ""},
		{"null", String, CodeType, "1:1", "want string, got null"},
		{"null", mustSchema(t, `{"type":["string","null"]}`), ok, "", ""},
		{"input.memo", mustSchema(t, `{"type":["string","null"]}`), ok, "", ""},
		{"input.memo", String, CodeType, "1:6", "want string, got string or null; test for null"},
		{"input.memo != null ? input.memo : 'none'", String, ok, "", ""},
		{"input.memo != null ? input.cent : 1", String, CodeType, "1:27", "want string, got integer"},
		{"input.lines", mustSchema(t, `{"type":"array"}`), ok, "", ""},
		{"input.lines", mustSchema(t, `{"type":"array","items":{"type":"string"}}`), CodeType, "1:6", "the elements: want string, got object"},
		{"input.lines.map(l, l.sku)", mustSchema(t, `{"type":"array","items":{"type":"string"}}`), ok, "", ""},
		{"[input.id, input.cent]", mustSchema(t, `{"type":"array","items":{"type":"string"}}`), CodeType, "1:17", "want string, got integer"},
		{"[]", mustSchema(t, `{"type":"array","items":{"type":"string"}}`), ok, "", ""},
		{"[1]", String, CodeType, "1:1", "want string, got list of integer"},
		{"input.tags", mustSchema(t, `{"type":"object","additionalProperties":{"type":"string"}}`), ok, "", ""},
		{"input.tags", mustSchema(t, `{"type":"object","additionalProperties":{"type":"integer"}}`), CodeType, "1:6", "the values: want integer, got string"},
		{"input.customer", mustSchema(t, `{"type":"object","required":["name"],"properties":{"name":{"type":"string"}}}`), ok, "", ""},
		{"input.customer", mustSchema(t, `{"type":"object","required":["nam"],"properties":{"nam":{"type":"string"}}}`), CodeType, "1:6", "the object has no field nam, which is required; did you mean name?"},
		{"input.customer", mustSchema(t, `{"type":"object","properties":{"name":{"type":"integer"}}}`), CodeType, "1:6", "its field name: want integer, got string"},
		{"input.customer", mustSchema(t, `{"type":"object","properties":{"x":{}},"additionalProperties":false}`), CodeType, "1:6", "the object has a field name, which isn't allowed"},
		{"{'name': input.id}", mustSchema(t, `{"type":"object","required":["name"],"properties":{"name":{"type":"string"}}}`), ok, "", ""},
		{"{'name': input.cent}", mustSchema(t, `{"type":"object","properties":{"name":{"type":"string"}}}`), CodeType, "1:15", "want string, got integer"},
		{"{'nmae': input.id}", mustSchema(t, `{"type":"object","properties":{"name":{"type":"string"}}}`), CodeUnknownField, "1:2", "no field nmae is wanted; did you mean name?"},
		{"{}", mustSchema(t, `{"type":"object","required":["name"],"properties":{"name":{"type":"string"}}}`), CodeMissingField, "1:1", "the field name is required, but missing"},
		{"true ? {'name': 'x'} : {'nmae': 'x'}", mustSchema(t, `{"type":"object","properties":{"name":{"type":"string"}}}`), CodeUnknownField, "1:25", "no field nmae is wanted"},
		{"{1: 2}", nil, CodeType, "1:2", "the keys of a JSON object are strings"},
		{"{b'a': 2}.size()", nil, CodeType, "1:2", "a key can be a string, an integer or a boolean, not bytes"},

		{"input.amount", nil, CodeUnknownField, "1:7", "input has no field amount; known are amt, big, cent"},
		{"input.amnt", nil, CodeUnknownField, "1:7", "did you mean amt?"},
		{"1 +\n  input.customer.nmae", nil, CodeUnknownField, "2:18", "Customer has no field nmae; did you mean name?"},
		{"input.customer.parent.parent.nme", nil, CodeUnknownField, "1:30", "did you mean name?"},
		{"input.lines.all(l, l.qyt > 0)", nil, CodeUnknownField, "1:22", "input.lines[] has no field qyt; did you mean qty?"},
		{"has(input.nope)", nil, CodeUnknownField, "1:11", "input has no field nope"},
		{"inptu.id", nil, CodeUnknownName, "1:1", "unknown name inptu; did you mean input?"},
		{"now()", nil, CodeUnknownName, "1:4", "there is no function now"},
		{"input.id.frobnicate()", nil, CodeUnknownName, "1:20", "there is no function frobnicate"},
		{"input.lines.frob(l, l)", nil, CodeUnknownName, "", "there is no function frob"},
		{"'%s'.format(['x'])", nil, CodeUnknownName, "1:12", "format isn't available"},
		{"timestamp('2020-01-01T00:00:00Z').getHours('Europe/Paris')", nil, CodeType, "", "no function getHours for timestamp.(string)"},
		{"google.protobuf.Int64Value{value: 3}", nil, CodeUnknownName, "", ""},
		{"input.cent + 'x'", nil, CodeType, "1:12", "no operator + for (integer, string)"},
		{"input.cent == 5.0", nil, CodeType, "1:12", "no operator == for (integer, number)"},
		{"input.cent > 5.0", nil, CodeType, "1:12", "no operator > for (integer, number)"},
		{"input.cent ? 1 : 2", nil, CodeType, "1:12", "no operator ? : for (integer, integer, integer)"},
		{"true ? 1 : 'a'", nil, CodeType, "1:6", "no operator ? :"},
		{"input.customer['name']", nil, CodeType, "", "no operator [] for"},
		{"input.cent.name", nil, CodeType, "", "integer"},
		{"1 +", nil, CodeSyntax, "1:4", "syntax error: mismatched input end"},
		{"1 + + 2", nil, CodeSyntax, "1:5", "syntax error"},
		{"", nil, CodeSyntax, "1:1", "the expression is empty"},
		{"\xff", nil, CodeSyntax, "1:1", "UTF-8"},
		{"input.id.matches('^o-[0-9]+$')", Bool, ok, "", ""},
		{"input.id.matches('(')", nil, CodePattern, "1:18", "the pattern isn't a regular expression by RE2's syntax: missing closing )"},
		{"input.id.matches(input.note)", nil, CodePattern, "1:23", "the pattern of matches() must be a string literal"},
		{"matches(input.id, 'a' + 'b')", nil, CodePattern, "1:23", "must be a string literal"},
		{strings.Repeat("1+", 5000) + "1", nil, CodeTooLong, "1:1", "the expression has 10001 bytes, the limit is 8192"},
		{"b'abc'", nil, CodeType, "1:1", "got bytes, which isn't JSON; use string(...)"},
		{"timestamp('2020-01-01T00:00:00Z')", nil, CodeType, "", "which isn't JSON"},
		{"type(1)", nil, CodeType, "", "which isn't JSON"},
		{"any.a.map(x, any.b.map(y, any.c.map(z, 1)))", nil, CodeCost, "", "bound them with maxItems"},
		{"input.lines.map(x, input.lines.map(y, x.qty * y.qty))", nil, ok, "", ""},
		{"any.text.split(',').map(p, p.trim()).filter(p, p != '')", nil, ok, "", ""},
		{"any.l.filter(x, x > 1).map(x, x * 2).filter(x, x > 4).map(x, string(x)).join('-')", nil, ok, "", ""},
	} {
		_, err := env.Compile(tt.src, tt.want)
		name := tt.src
		if len(name) > 60 {
			name = name[:60] + "..."
		}
		if tt.code == ok {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%s: got %v, want an *Error", name, err)
			continue
		}
		if at := fmt.Sprintf("%d:%d", e.Line, e.Column); e.Code != tt.code || tt.at != "" && at != tt.at || !strings.Contains(e.Message, tt.text) {
			t.Errorf("%s:\n got %v (%s)\nwant %s: %s (%s)", name, e, e.Code, tt.at, tt.text, tt.code)
		}
	}
}

func TestNewEnv(t *testing.T) {
	many := make([]Var, VarsMax+1)
	for i := range many {
		many[i].Name = fmt.Sprintf("v%d", i)
	}
	for _, tt := range []struct {
		vars []Var
		text string
	}{
		{nil, ""},
		{[]Var{{"input", nil}, {"size", nil}, {"reserve_stock", String}}, ""},
		{many[:VarsMax], ""},
		{many, "the limit is 512"},
		{[]Var{{"in", nil}}, "reserved in CEL"},
		{[]Var{{"int", nil}}, "reserved in CEL"},
		{[]Var{{"a-b", nil}}, "want a name of letters"},
		{[]Var{{"1a", nil}}, "want a name of letters"},
		{[]Var{{"", nil}}, "want a name of letters"},
		{[]Var{{"a", nil}, {"a", nil}}, "it comes twice"},
	} {
		_, err := NewEnv(tt.vars...)
		if (err == nil) != (tt.text == "") || err != nil && !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%v: got %v, want %q", tt.vars, err, tt.text)
		}
	}
	env, err := NewEnv(Var{"size", String}, Var{"as1", nil})
	if err != nil {
		t.Fatal(err)
	}
	p, err := env.Compile("size(size)", Integer)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := p.Eval(Vars{"size": []byte(`"abc"`)}); string(got) != "3" || err != nil {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestRefs(t *testing.T) {
	env, err := NewEnv(Var{"input", nil}, Var{"pay", nil}, Var{"a", nil})
	if err != nil {
		t.Fatal(err)
	}
	for src, want := range map[string][]string{
		"1":                                     nil,
		"pay.x + input.y + pay.z":               {"input", "pay"},
		"input.l.map(x, x + a.b)":               {"a", "input"},
		"has(pay.x) ? pay.x : {'k': [input]}.k": {"input", "pay"},
	} {
		p, err := env.Compile(src, nil)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, p.Refs()); diff != "" {
			t.Errorf("%s: %s", src, diff)
		}
	}
}
