package expr

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// digits is a document of numbers that common JSON decoding changes.
const digits = `{"acct":9007199254740993,"big":123456789012345678901234567890,"amt":0.1,"cent":1999,"z":1.0,"neg":-0,
	"e":1E3,"long":0.12345678901234567890123,"cents":10.50,"max":9223372036854775807,"min":-9223372036854775808,"over":9223372036854775808}`

const digitsSchema = `{"type":"object","properties":{"acct":{"type":"integer"},"big":{"type":"integer"},"amt":{"type":"number"},
	"cent":{"type":"integer"},"z":{"type":"number"},"neg":{"type":"integer"},"e":{"type":"integer"},"long":{"type":"number"},
	"cents":{"type":"number"},"max":{"type":"integer"},"min":{"type":"integer"},"over":{"type":"integer"}}}`

// TestDigits holds the package's promise: what an expression passes on has the digits it came with, and nothing
// is rounded on the way into a comparison or a computation.
func TestDigits(t *testing.T) {
	env, err := NewEnv(Var{"input", mustSchema(t, digitsSchema)}, Var{"dyn_", nil})
	if err != nil {
		t.Fatal(err)
	}
	vars := Vars{"input": []byte(digits), "dyn_": []byte(digits)}
	both := func(src string) []string { // the typed and the untyped document
		return []string{src, strings.ReplaceAll(src, "input", "dyn_")}
	}
	compact, _ := compact(nil, []byte(digits))
	type test struct{ src, want string }
	var tests []test
	for _, f := range []struct{ name, want string }{
		{"acct", "9007199254740993"}, {"big", "123456789012345678901234567890"}, {"amt", "0.1"}, {"cent", "1999"}, {"z", "1.0"},
		{"e", "1E3"}, {"long", "0.12345678901234567890123"}, {"cents", "10.50"}, {"max", "9223372036854775807"},
		{"min", "-9223372036854775808"}, {"over", "9223372036854775808"}, {"neg", "0"},
	} {
		for _, src := range both("input." + f.name) {
			tests = append(tests,
				test{src, f.want},
				test{"[" + src + "]", "[" + f.want + "]"},
				test{"{'a': {'b': " + src + "}}", `{"a":{"b":` + f.want + "}}"},
				test{"true ? " + src + " : " + src, f.want},
				test{"[" + src + "].map(x, x)[0]", f.want},
				test{"[" + src + "].filter(x, true)", "[" + f.want + "]"},
				test{"[1].map(i, " + src + ")", "[" + f.want + "]"},
				test{"([" + src + "] + [" + src + "])[1]", f.want},
				test{"{'k': " + src + "}.k", f.want},
				test{"{'k': " + src + "}['k']", f.want},
				test{"dyn(" + src + ")", f.want},
				test{"string(" + src + ")", `"` + f.want + `"`},
				test{src + " == " + src, "true"},
				test{src + " in [" + src + "]", "true"},
				test{"[" + src + "] == [" + src + "]", "true"},
				test{"{'a': " + src + "} != {'a': " + src + "}", "false"},
			)
		}
	}
	for _, src := range both("input") {
		tests = append(tests, test{src, string(compact)}, test{"[" + src + "]", "[" + string(compact) + "]"},
			test{"{'a': true ? " + src + " : " + src + "}", `{"a":` + string(compact) + "}"})
	}
	for _, x := range []test{
		{"input.acct == 9007199254740993", "true"},
		{"input.acct == 9007199254740992", "false"},
		{"input.acct != 9007199254740992", "true"},
		{"input.acct > 9007199254740992", "true"},
		{"input.acct == 9007199254740993 ? 'right' : 'wrong'", `"right"`},
		{"input.cent + 1", "2000"},
		{"input.cent + 1 == 2000", "true"},
		{"type(input.cent + 1) == int", "true"},
		{"input.acct + 1", "9007199254740994"},
		{"input.amt + 0.2", "0.30000000000000004"},
		{"input.amt == 0.1", "true"},
		{"input.z == 1.0", "true"},
		{"input.z + 1.0", "2.0"},
		{"input.cents == 10.5", "true"},
		{"input.cents + 1.0", "11.5"},
		{"input.neg == 0", "true"},
		{"input.max - 1", "9223372036854775806"},
		{"input.big == input.big", "true"},
		{"input.big == input.over", "false"},
		{"input.max == input.over", "false"},
		{"input.long == 0.12345678901234568", "false"},
		{"uint(input.cent) == 1999u", "true"},
		{"int(input.cents)", "10"},
		{"double(input.cent)", "1999.0"},
	} {
		for _, src := range both(x.src) {
			tests = append(tests, test{src, x.want})
		}
	}
	tests = append(tests,
		test{"dyn_.acct == 9007199254740992.0", "false"},
		test{"dyn(9007199254740993) == 9007199254740992.0", "false"},
		test{"dyn(9007199254740992.0) == 9007199254740993", "false"},
		test{"dyn(9007199254740993) != 9007199254740992.0", "true"},
		test{"9007199254740992.0 in [dyn(9007199254740993)]", "false"},
		test{"dyn_.acct in [9007199254740992.0]", "false"},
		test{"[dyn_.acct] == [9007199254740992.0]", "false"},
		test{"{'a': dyn_.acct} == {'a': 9007199254740992.0}", "false"},
		test{"dyn_.acct > 9007199254740992.0", "true"},
		test{"dyn_.acct <= 9007199254740992.0", "false"},
		test{"9007199254740992.0 < dyn_.acct", "true"},
		test{"9007199254740992.0 >= dyn_.acct", "false"},
		test{"dyn_.cent == 1999.0", "true"},
		test{"dyn_.cent == 1999u", "true"},
		test{"dyn_.z == 1", "true"},
		test{"dyn_.max == 9223372036854775808.0", "false"},
		test{"dyn_.max < 9223372036854775808.0", "true"},
		test{"dyn_.min == -9223372036854775808.0", "true"},
		test{"dyn(18446744073709551615u) == 18446744073709551616.0", "false"},
		test{"dyn(18446744073709551615u) < 18446744073709551616.0", "true"},
		test{"dyn_.e == 1000", "true"},
		test{"dyn_.over == 9223372036854775808u", "true"},
		test{"dyn_ == input", "true"},
		test{"input.e + 1", "1001"},
	)
	for _, tt := range tests {
		p, err := env.Compile(tt.src, nil)
		if err != nil {
			t.Errorf("%s: %v", tt.src, err)
			continue
		}
		if got, err := p.Eval(vars); err != nil || string(got) != tt.want {
			t.Errorf("%s: got %s, %v, want %s", tt.src, got, err, tt.want)
		}
	}
	// Typed schemas refuse the mix of an integer and a double.
	if _, err := env.Compile("input.acct == 9007199254740992.0", nil); err == nil {
		t.Error("an integer compared with a double compiles")
	}
	for _, src := range []string{
		"input.big + 1", "1 + input.big", "input.big - input.big", "-input.big", "input.big * 2", "input.big / 2", "input.big % 2",
		"input.big > 1", "input.over + 1", "int(input.big)", "double(input.big)", "uint(input.over) + 1u", "input.long + 1.0", "input.long < 1.0",
		"[input.big].map(x, x + 1)", "(true ? input.big : 1) + 1", "[input.big][0] + 1", "{'a': input.big}.a + 1", "double(input.acct)",
	} {
		for _, src := range both(src) {
			p, err := env.Compile(src, nil)
			if err != nil {
				t.Errorf("%s: %v", src, err)
				continue
			}
			_, err = p.Eval(vars)
			if e := (*EvalError)(nil); !errors.As(err, &e) || e.Code != CodeNumber {
				t.Errorf("%s: got %v, want code %s", src, err, CodeNumber)
			}
		}
	}
}

func TestEval(t *testing.T) {
	env := orderEnv(t)
	vars := Vars{"input": []byte(orderDoc), "any": []byte(`{"m":{"b":1,"a":2,"\u0063":3},"l":[1,"x",null,true,{"k":[]}],"s":"grün","f":1.5,"n":null, "esc":"a\"b\\c\u00e9\ud83d\ude00"}`)}
	for _, tt := range []struct{ src, want string }{
		{"input.customer.parent.name", `"Bob"`},
		{"input.customer.`order-id`", `"x-1"`},
		{"input.memo == null", "true"},
		{"has(input.memo)", "true"},
		{"has(input.note)", "false"},
		{"has(any.m.a) && !has(any.m.z)", "true"},
		{"has(any.nope) ? any.nope : 7", "7"},
		{"input.lines[1].sku", `"b"`},
		{"input.lines.map(l, l.qty * 2)", "[4,6]"},
		{"input.lines.filter(l, l.qty > 2)", `[{"sku":"b","qty":3}]`},
		{"input.lines.all(l, l.qty > 0) && input.lines.exists(l, l.sku == 'b') && input.lines.exists_one(l, l.sku == 'a')", "true"},
		{"input.tags.map(k, k + input.tags[k])", `["a1","b2"]`},
		{"'a' in input.tags", "true"},
		{"'c' in any.m", "true"},
		{"any.m.c", "3"},
		{"size(any.m)", "3"},
		{"size(any.s)", "4"},
		{"any.s.upperAscii()", `"GRüN"`},
		{"any.l", `[1,"x",null,true,{"k":[]}]`},
		{"any.l[4].k", "[]"},
		{"any.l[0] + 1", "2"},
		{"any.l == [1, 'x', null, true, {'k': []}]", "true"},
		{"any.l != [1, 'x', null, true, {'k': [1]}]", "true"},
		{"any.m == {'c': 3, 'a': 2, 'b': 1.0}", "true"},
		{"any.m == {'c': 3, 'a': 2}", "false"},
		{"any.m == any.l", "false"},
		{"any.l == 1", "false"},
		{"null in any.l", "true"},
		{"2 in any.l", "false"},
		{"any.esc", `"a\"b\\cé😀"`},
		{"{'y': 1, 'x': {'q': 2, 'p': 3}}", `{"x":{"p":3,"q":2},"y":1}`},
		{"{'y': 1, 'x': 2}.map(k, k)", `["x","y"]`},
		{"{3: 'c', 1: 'a', 2: 'b'}.map(k, k)", "[1,2,3]"},
		{"any.m.map(k, any.m[k])", "[2,1,3]"},
		{"[[1], [2, 3]].map(l, size(l))", "[1,2]"},
		{"any.l + [2]", `[1,"x",null,true,{"k":[]},2]`},
		{"[2] + any.l", `[2,1,"x",null,true,{"k":[]}]`},
		{"1.0 + 1.0", "2.0"},
		{"1e21 + 0.0", "1e+21"},
		{"7 / 2", "3"},
		{"uint(7)", "7"},
		{"'a' + 'b'", `"ab"`},
		{"'tab\\t<&>'", `"tab\t<&>"`},
		{"'a,b,c'.split(',').join('-')", `"a-b-c"`},
		{"'banana'.replace('a', 'o', 2)", `"bonona"`},
		{"'banana'.indexOf('an', 2)", "3"},
		{"'banana'.lastIndexOf('an')", "3"},
		{"'banana'.lastIndexOf('an', 2)", "1"},
		{"'grünü'.indexOf('ü', 3)", "4"},
		{"'grünü'.lastIndexOf('ü', 3)", "2"},
		{"'grünü'.lastIndexOf('ü', 9)", "-1"},
		{"'abc'.indexOf('', 1)", "1"},
		{"'abc'.reverse()", `"cba"`},
		{"strings.quote('a')", `"\"a\""`},
		{"' x '.trim().charAt(0)", `"x"`},
		{"'grün'.substring(2)", `"ün"`},
		{"input.id.matches('^o-[0-9]+$')", "true"},
		{"matches(input.id, 'x')", "false"},
		{"string(timestamp('2020-01-01T00:00:00Z') + duration('36h'))", `"2020-01-02T12:00:00Z"`},
		{"timestamp('2020-03-04T05:06:07Z').getDayOfWeek()", "3"},
		{"type(any.f) == double && type(any.n) == null_type && type(any.m) == map && type(any.l) == list", "true"},
		{"any.n == null ? 1 : 2", "1"},
		{"true || any.nope", "true"},
		{"any.nope || true", "true"},
		{"false && any.nope", "false"},
	} {
		p, err := env.Compile(tt.src, nil)
		if err != nil {
			t.Errorf("%s: %v", tt.src, err)
			continue
		}
		if got, err := p.Eval(vars); err != nil || string(got) != tt.want {
			t.Errorf("%s: got %s, %v, want %s", tt.src, got, err, tt.want)
		}
	}
}

// TestEvalError also checks that no message tells what the documents hold.
func TestEvalError(t *testing.T) {
	env := orderEnv(t)
	secret := "SECRET4711"
	vars := Vars{"input": []byte(orderDoc), "any": []byte(`{"s":"` + secret + `","n":4711,"l":[1],"z":0,"big":471147114711471147114711,"m":{"` + secret + `":1},"d":4711.5,"t":true}`)}
	for _, tt := range []struct {
		src  string
		want *Schema
		code Code
		text string
	}{
		{"any.nope", nil, CodeNoField, "1:4: there is no any.nope; test with has()"},
		{"any.m.nope.x", nil, CodeNoField, "there is no any.m.nope;"},
		{"any[any.s]", nil, CodeNoField, "no such field"},
		{"any.m[any.s + 'x']", nil, CodeNoField, "no such field"},
		{"input.note", nil, CodeNoField, "1:6: there is no input.note"},
		{"input.lines[7].sku", nil, CodeIndex, "no such index"},
		{"any.l[any.n]", nil, CodeIndex, "no such index"},
		{"any.l[any.s]", nil, CodeType, ""},
		{"any.l[any.d]", nil, CodeType, ""},
		{"any.s.substring(any.n)", nil, CodeIndex, ""},
		{"any.s.charAt(4711)", nil, CodeIndex, ""},
		{"1 / any.z", nil, CodeDivision, "division by zero"},
		{"1 % any.z", nil, CodeDivision, "division by zero"},
		{"9223372036854775807 + any.n", nil, CodeOverflow, "1:21: the result doesn't fit into 64 bits"},
		{"any.n * 9223372036854775807", nil, CodeOverflow, ""},
		{"-(-9223372036854775807 - 1)", nil, CodeOverflow, ""},
		{"any.big + 1", nil, CodeNumber, "1:9: a number beyond 64-bit"},
		{"any.s + 1", nil, CodeType, "1:7: +: an operand has the wrong type"},
		{"any.n + any.s", nil, CodeType, "+: an operand has the wrong type"},
		{"any.n + 1.0", nil, CodeType, ""},
		{"any.s > 1", nil, CodeType, ""},
		{"any.n ? 1 : 2", nil, CodeType, ""},
		{"any.n && true", nil, CodeType, ""},
		{"!any.n", nil, CodeType, ""},
		{"any.n.map(x, x)", nil, CodeType, ""},
		{"1 in any.n", nil, CodeType, ""},
		{"any.n.matches('x')", nil, CodeType, ""},
		{"size(any.n)", nil, CodeType, ""},
		{"int(any.s)", nil, CodeConversion, "int(): the value can't be used there"},
		{"double(any.s)", nil, CodeConversion, ""},
		{"timestamp(any.s)", String, CodeType, ""},
		{"string(timestamp(any.s))", nil, CodeConversion, "timestamp(): "},
		{"duration(any.s) > duration('1s')", nil, CodeConversion, ""},
		{"1.0 / 0.0", nil, CodeNotJSON, "infinite"},
		{"'\\u0000'", nil, CodeNotJSON, "U+0000"},
		{"{'\\u0000': 1}", nil, CodeNotJSON, "U+0000"},
		{"dyn(b'abc')", nil, CodeNotJSON, "bytes, which isn't JSON"},
		{"[dyn(timestamp(0))]", nil, CodeNotJSON, "timestamp, which isn't JSON"},
		{"dyn({1: 2})", nil, CodeNotJSON, "keys aren't strings"},
		{"any.s", Integer, CodeType, "want integer, got string"},
		{"any.d", Integer, CodeType, "want integer, got number"},
		{"any.n", Integer, ok, ""},
		{"any.n", mustSchema(t, `{"type":"number"}`), ok, ""},
		{"any.t", String, CodeType, "want string, got boolean"},
		{"any.l", mustSchema(t, `{"type":["object","null"]}`), CodeType, "want object or null, got array"},
		{"dyn(" + strings.Repeat("[", 50) + strings.Repeat("]", 50) + ")", nil, ok, ""},
	} {
		p, err := env.Compile(tt.src, tt.want)
		if err != nil {
			if e := err.(*Error); tt.code != e.Code {
				t.Errorf("%s: %v", tt.src, err)
			}
			continue
		}
		_, err = p.Eval(vars)
		if tt.code == ok {
			if err != nil {
				t.Errorf("%s: %v", tt.src, err)
			}
			continue
		}
		var e *EvalError
		if !errors.As(err, &e) || e.Code != tt.code || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: got %v (%+v), want %s (%s)", tt.src, err, e, tt.text, tt.code)
			continue
		}
		if e.Line == 0 {
			t.Errorf("%s: no place in %v", tt.src, e)
		}
		// 4711 may come from the source.
		if strings.Contains(err.Error(), secret) || !strings.Contains(tt.src, "4711") && strings.Contains(err.Error(), "4711") {
			t.Errorf("%s: the message tells a value: %v", tt.src, err)
		}
	}
}

func TestVars(t *testing.T) {
	env := orderEnv(t)
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, tt := range []struct {
		src, doc, want string
		code           Code
	}{
		{"any", " [ 1 , 2 ] ", "[1,2]", ok},
		{"any", deep(64), deep(64), ok},
		{"[any]", deep(63), deep(64), ok},
		{"[any]", deep(64), "", CodeTooLarge},
		{"any", deep(65), "", CodeBadDocument},
		{"any", "", "", CodeBadDocument},
		{"any", "{", "", CodeBadDocument},
		{"any", `{"a":1,}`, "", CodeBadDocument},
		{"any", `"` + "\xff" + `"`, "", CodeBadDocument},
		{"any", "01", "", CodeBadDocument},
		{"any.a", `{"a":1,"a":2}`, "2", ok},
		{"any.lines", `"x"`, "", CodeNoField},
		{"input.cent + 1", `{"cent":1.5}`, "", CodeNumber},
		{"input.cent", `{"cent":1.5}`, "1.5", ok},
		{"input.cent + 1", `{"cent":"x"}`, "", CodeType},
		{"input.cent + 1", `{"cent":{}}`, "", CodeType},
		{"input.cent + 1", `{"cent":null}`, "", CodeType},
		{"input.cent + 1", `[]`, "", CodeType},
		{"input.lines.map(l, l.qty + 1)", `{"lines":[1]}`, "", CodeNoField},
		{"input.lines.map(l, l.qty + 1)", `{"lines":{"a":{"qty":1}}}`, "", CodeNoField},
		{"input.lines[0].qty", `{"lines":{"a":{"qty":1}}}`, "", CodeNoField},
		{"input.amt * 2.0", `{"amt":2}`, "4.0", ok},
		{"input.amt", `{"amt":2}`, "2", ok},
		{"input.amt == 2.0", `{"amt":2}`, "true", ok},
		{"input.amt * 2.0", `{"amt":1e400}`, "", CodeNumber},
		{"input.amt", `{"amt":1e400}`, "1e400", ok},
		{"input.cent + 1", `{"cent":1.0}`, "2", ok},
		{"input.cent == 1", `{"cent":1.0}`, "true", ok},
	} {
		p, err := env.Compile(tt.src, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := p.Eval(Vars{"any": json.RawMessage(tt.doc), "input": json.RawMessage(tt.doc)})
		var e *EvalError
		errors.As(err, &e)
		if tt.code == ok && (err != nil || string(got) != tt.want) || tt.code != ok && (e == nil || e.Code != tt.code) {
			t.Errorf("%s with %.40s: got %s, %v, want %s%s", tt.src, tt.doc, got, err, tt.want, tt.code)
		}
	}
	p, err := env.Compile("input.cent + any", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Eval(Vars{"input": []byte(orderDoc)})
	if e := (*EvalError)(nil); !errors.As(err, &e) || e.Code != CodeNoVariable || !strings.Contains(e.Message, "any isn't there") {
		t.Errorf("got %v, want code %s", err, CodeNoVariable)
	}
	// A document that the expression doesn't refer to isn't looked at.
	if p, err = env.Compile("input.cent", nil); err != nil {
		t.Fatal(err)
	}
	if got, err := p.Eval(Vars{"input": []byte(orderDoc), "any": []byte("{{{")}); string(got) != "1999" || err != nil {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestEvalBool(t *testing.T) {
	env := orderEnv(t)
	for _, tt := range []struct {
		src  string
		want bool
		code Code
	}{
		{"input.cent > 1000", true, ok},
		{"input.cent > 2000", false, ok},
		{"any.flag", true, ok},
		{"any.word", false, CodeType},
		{"any.nope", false, CodeNoField},
	} {
		p, err := env.Compile(tt.src, Bool)
		if err != nil {
			t.Fatal(err)
		}
		got, err := p.EvalBool(Vars{"input": []byte(orderDoc), "any": []byte(`{"flag":true,"word":"true"}`)})
		var e *EvalError
		errors.As(err, &e)
		if got != tt.want || (err == nil) != (tt.code == ok) || e != nil && e.Code != tt.code {
			t.Errorf("%s: got %v, %v", tt.src, got, err)
		}
	}
}

// TestRepeat evaluates often and from many goroutines: order must not come from Go's maps, and programs must not
// share anything that changes.
func TestRepeat(t *testing.T) {
	env := orderEnv(t)
	src := `{'z': 1, 'y': {'b': input.tags, 'a': any.map(k, k)}, 'x': {'q': 1, 'p': 2, 'r': 3, 'o': 4}.map(k, k)}`
	p, err := env.Compile(src, nil)
	if err != nil {
		t.Fatal(err)
	}
	bad, err := env.Compile("any.a + any.b", nil)
	if err != nil {
		t.Fatal(err)
	}
	vars := Vars{"input": []byte(orderDoc), "any": []byte(`{"e":1,"d":2,"c":3,"b":"x","a":{}}`)}
	want := `{"x":["o","p","q","r"],"y":{"a":["a","b","c","d","e"],"b":{"b":"2","a":"1"}},"z":1}`
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 125 {
				if got, err := p.Eval(vars); err != nil || string(got) != want {
					t.Errorf("got %s, %v\nwant %s", got, err, want)
					return
				}
				if _, err := bad.Eval(vars); err == nil || err.Error() != "1:7: +: an operand has the wrong type" {
					t.Errorf("got %v", err)
					return
				}
				if _, err := env.Compile("input.nope", nil); err == nil || !strings.HasPrefix(err.Error(), "1:7: input has no field nope") {
					t.Errorf("got %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestCompileObject(t *testing.T) {
	env := orderEnv(t)
	want := mustSchema(t, `{"type":"object","required":["order","qty"],"properties":{"order":{"type":"string"},"qty":{"type":"integer"},"note":{"type":"string"},"x":{}}}`)
	o, errs := env.CompileObject([]Field{{"qty", "input.cent"}, {"order", "input.id"}, {"x", "any"}}, want)
	if errs != nil {
		t.Fatal(errs)
	}
	if got := fmt.Sprint(o.Refs()); got != "[any input]" {
		t.Errorf("refs %s", got)
	}
	vars := Vars{"input": []byte(orderDoc), "any": []byte(` {"b" : 1.50, "a":[ ]}`)}
	if got, err := o.Eval(vars); err != nil || string(got) != `{"order":"o-17","qty":1999,"x":{"b":1.50,"a":[]}}` {
		t.Errorf("got %s, %v", got, err)
	}
	_, err := o.Eval(Vars{"input": []byte(`{"id":"x"}`), "any": []byte("1")})
	if e := (*EvalError)(nil); !errors.As(err, &e) || e.Field != "qty" || e.Code != CodeNoField || err.Error() != "field qty: 1:6: there is no input.cent; test with has() if it may be missing" {
		t.Errorf("got %v", err)
	}

	for _, tt := range []struct {
		name   string
		fields []Field
		want   *Schema
		errs   []string
	}{
		{"all wrong", []Field{{"qty", "input.id"}, {"nota", "'x'"}, {"x", "input.nope"}}, want, []string{
			"field nota: no such field is wanted; did you mean note?",
			"field order: the field is required, but missing; want string",
			"field qty: 1:6: want integer, got string",
			"field x: 1:7: input has no field nope; did you mean note?",
		}},
		{"twice", []Field{{"a", "1"}, {"a", "2"}}, nil, []string{"field a: the field comes twice"}},
		{"names", []Field{{"", "1"}, {"a\x00", "1"}, {"\xff", "1"}}, nil, []string{
			"want a name: UTF-8 without U+0000, not empty",
			`field "a\x00": want a name: UTF-8 without U+0000, not empty`,
			`field "\xff": want a name: UTF-8 without U+0000, not empty`,
		}},
		{"no object", []Field{{"a", "1"}}, Integer, []string{"want integer, got an object"}},
		{"map", []Field{{"a", "1"}, {"b", "'x'"}}, mustSchema(t, `{"type":"object","additionalProperties":{"type":"integer"}}`), []string{
			"field b: 1:1: want integer, got string",
		}},
		{"open", []Field{{"order", "'x'"}, {"more", "1"}}, mustSchema(t, `{"type":"object","properties":{"order":{"type":"string"}},"additionalProperties":true}`), nil},
		{"forbidden", []Field{{"a", "1"}}, mustSchema(t, `{"type":"object","properties":{"a":false,"b":{}}}`), []string{"field a: no such field is wanted; did you mean b?"}},
		{"any", []Field{{"a b", "1"}, {"c", "input"}}, nil, nil},
		{"empty", nil, nil, nil},
		{"many", make([]Field, FieldsMax+1), nil, []string{"257 fields, the limit is 256"}},
	} {
		o, errs := env.CompileObject(tt.fields, tt.want)
		var got []string
		for _, e := range errs {
			got = append(got, e.Error())
		}
		if len(got) != len(tt.errs) || (o == nil) != (len(errs) > 0) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.errs)
			continue
		}
		for i := range got {
			if !strings.HasPrefix(got[i], tt.errs[i]) {
				t.Errorf("%s:\n got %s\nwant %s", tt.name, got[i], tt.errs[i])
			}
		}
	}
	o, errs = env.CompileObject([]Field{{"a b\"", "1"}}, nil)
	if errs != nil {
		t.Fatal(errs)
	}
	if got, err := o.Eval(nil); err != nil || string(got) != `{"a b\"":1}` {
		t.Errorf("got %s, %v", got, err)
	}
}
