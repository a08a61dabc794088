package expr

import (
	"fmt"
	"testing"
	"time"
)

func TestScratch(t *testing.T) {
	s, err := ParseSchema([]byte(`{"type":"object","additionalProperties":false,"required":["acct","lines"],"properties":{"acct":{"type":"integer"},"big":{"type":"integer"},"amt":{"type":"number"},"cent":{"type":"integer"},"z":{"type":"number"},"neg":{"type":"integer"},"memo":{"type":["string","null"]},"customer":{"$ref":"#/$defs/Customer"},"lines":{"type":"array","items":{"type":"object","properties":{"sku":{"type":"string"},"qty":{"type":"integer"}}}},"tags":{"type":"object","additionalProperties":{"type":"string"}}},"$defs":{"Customer":{"type":"object","properties":{"name":{"type":"string"},"parent":{"$ref":"#/$defs/Customer"},"order-id":{"type":"string"}}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	env, err := NewEnv(Var{"input", s}, Var{"any", nil})
	if err != nil {
		t.Fatal(err)
	}
	doc := []byte(`{"acct":9007199254740993,"big":123456789012345678901234567890,"amt":0.1,"cent":1999,"z":1.0,"neg":-0,"memo":null,"customer":{"name":"Ann", "parent":{"name":"x"},"order-id":"o1"},"lines":[{"sku":"a","qty":2},{"sku":"b","qty":3}],"tags":{"b":"2","a":"1"}}`)
	v := Vars{"input": doc, "any": doc}
	for _, src := range []string{
		"input", "input.acct", "input.big", "input.amt", "input.z", "input.neg", "input.cent + 1", "input.cent + 1 == 2000", "input.acct == 9007199254740993",
		"input.acct == 9007199254740992.0", "any.acct == 9007199254740992.0", "any.acct < 9007199254740992.5", "any.acct == 9007199254740993", "input.big + 1", "any.big + 1", "[input.big, any.z]", "{'b': input.big, 'a': any}",
		"input.acct > 5 ? input.big : input.cent", "input.amount", "input.customer.nme", "input.customer.parent.parent", "input.customer.parent.parent.name", "foo + 1", "inptu.acct", "input.memo == null", "input.lines.map(l, l.qty * 2)", "input.lines.all(l, l.qty > 0)", "input.lines.exists(l, l.skuu == 'x')",
		"input.lines[5]", "input.lines[0].sku + '-' + string(input.acct)", "input.tags.map(k, k)", "{'z':1,'a':2}.map(k,k)", "has(input.memo)", "has(input.customer)", "input.`customer`.`order-id`", "string(any.big)", "string(any.z)", "1/0", "9223372036854775807 + 1",
		"input.cent + 'x'", "input.amt * 2", "input.amt * 2.0", "'a'.matches('^a+$')", "'a'.matches(input.memo)", "'%d'.format([1])", "timestamp('2020-01-01T00:00:00Z').getHours('Europe/Paris')", "timestamp('2020-01-01T00:00:00Z').getHours()", "b'abc'", "any.x.y", "any.acct.y", "input.lines.map(l, l)", "dyn(1) == 1.0", "1 in [1.0, dyn('x')]", "any.lines == input.lines", "1 in any.lines", "'a' in input.tags", "size(input.lines)", "int('secret')", "any['secret' + 'x']", "input.lines.filter(l, l.sku == 'a')[0].qty", "google.protobuf.Int64Value{value: 3}", "type(any.acct) == int", "((1", "1 +", "input.lines.map(a, input.lines.map(b, input.lines.map(c, 1)))", "input.lines.map(a, input.lines.map(b, a.qty*b.qty))", "string(input.memo)", "input.memo + 'x'", "dyn(any.big)", "any.z + 1.0", "any.neg + 1", "'x'.replace('', 'y')", "['a','b'].join(',')", "'a,b'.split(',')", "'hello'.indexOf('l')", "'hello'.lastIndexOf('l')", "double(any.acct)", "any.big > 3", "any.big == 123456789012345678901234567890.0", "[any.big] == [any.big]", "{'a': any.big} == {'a': any.big}", "any.big == any.big", "null", "uint(3)", "has(input.memo) ? input.memo : 'none'", "input.lines.map(l, l.qty).exists(q, q == 3)", "max(1)", "\"\\u0000\"", "input.lines.sum()", "optional.of(1)", "input.?memo",
	} {
		start := time.Now()
		p, err := env.Compile(src, nil)
		el := time.Since(start)
		if err != nil {
			fmt.Printf("%-60s C %v (%v) %v\n", src, err, err.(*Error).Code, el.Round(time.Microsecond))
			continue
		}
		out, err := p.Eval(v)
		if err != nil {
			fmt.Printf("%-60s E %v (%v)\n", src, err, err.(*EvalError).Code)
			continue
		}
		fmt.Printf("%-60s = %s   %v %v\n", src, out, p.Refs(), el.Round(time.Microsecond))
	}
}
