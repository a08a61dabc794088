package expr

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestCheckJSON(t *testing.T) {
	deep := func(n int, in string) string { return strings.Repeat("[", n) + in + strings.Repeat("]", n) }
	var keys strings.Builder
	for i := range 40 {
		fmt.Fprintf(&keys, `,"k%d":1`, i)
	}
	for _, tt := range []struct {
		doc  string
		code Code
		err  string
	}{
		{`null`, ok, ""},
		{` {"a" : [ 1 , -2.5e+10, "x\n\u00e9\ud83d\ude00", true , false,null,{},[] ] } `, ok, ""},
		{`"` + "grün \x7f" + `"`, ok, ""},
		{`123456789012345678901234567890`, ok, ""},
		{deep(64, ""), ok, ""},
		{strings.Repeat(`{"a":`, 64) + "1" + strings.Repeat("}", 64), ok, ""},
		{`{"a":{"x":1},"b":{"x":1},"x":1}`, ok, ""},
		{"{" + keys.String()[1:] + "}", ok, ""},

		{``, CodeBadDocument, "$: no JSON: the document is empty"},
		{` `, CodeBadDocument, "$: no JSON: the document is empty"},
		{`1 2`, CodeBadDocument, "$: not JSON: something follows the value at byte 2"},
		{`{"a":01}`, CodeBadDocument, "$.a: not JSON at byte 5"},
		{`[1.]`, CodeBadDocument, "$[0]: not JSON: a number without digits after its point at byte 1"},
		{`[1e]`, CodeBadDocument, "$[0]: not JSON: a number without digits in its exponent at byte 1"},
		{`[.5]`, CodeBadDocument, "$[0]: not JSON at byte 1"},
		{`[+1]`, CodeBadDocument, "$[0]: not JSON at byte 1"},
		{`-`, CodeBadDocument, "$: not JSON at byte 0"},
		{`NaN`, CodeBadDocument, "$: not JSON at byte 0"},
		{`[1,]`, CodeBadDocument, "$[1]: not JSON at byte 3"},
		{`[1`, CodeBadDocument, "$: not JSON: an array without , or ] at byte 2"},
		{`{"a":1,}`, CodeBadDocument, "$: not JSON: an object without a key at byte 7"},
		{`{"a" 1}`, CodeBadDocument, "$: not JSON: a key without a colon at byte 5"},
		{`{"a":1`, CodeBadDocument, "$: not JSON: an object without , or } at byte 6"},
		{`{"a":`, CodeBadDocument, "$.a: not JSON: it ends too early"},
		{`{a:1}`, CodeBadDocument, "$: not JSON: an object without a key at byte 1"},
		{`tru`, CodeBadDocument, "$: not JSON at byte 0"},
		{`"a`, CodeBadDocument, "$: not JSON: a string without an end"},
		{`"a\`, CodeBadDocument, "$: not JSON: a string without an end"},
		{`"\x"`, CodeBadDocument, `$: not JSON: an unknown escape at byte 1`},
		{`"\u12g4"`, CodeBadDocument, `$: not JSON: a broken \u escape at byte 1`},
		{"\"a\nb\"", CodeBadDocument, "$: not JSON: a bare control character in a string at byte 2"},
		{"\ufeff1", CodeBadDocument, "$: not JSON at byte 0"},

		{`{"memo":"a\u0000b"}`, CodeNUL, "$.memo: a string holds U+0000, which can't be stored"},
		{"{\"memo\":\"a\x00b\"}", CodeBadDocument, "$.memo: not JSON: a bare control character in a string at byte 10"},
		{`{"a":{"\u0000":1}}`, CodeNUL, "$.a: a key holds U+0000, which can't be stored"},
		{`[0,{"a b":["\ud800"]}]`, CodeUTF8, `$[1]["a b"][0]: a string holds half a surrogate pair`},
		{`"\udc00"`, CodeUTF8, "$: a string holds half a surrogate pair"},
		{`"\ud800x"`, CodeUTF8, "$: a string holds half a surrogate pair"},
		{`"\ud800\ud800"`, CodeUTF8, "$: a string holds half a surrogate pair"},
		{`{"\ud800":1}`, CodeUTF8, "$: a key holds half a surrogate pair"},
		{"[\"\xff\"]", CodeUTF8, "$[0]: a string holds invalid UTF-8"},
		{"[\"\xed\xa0\x80\"]", CodeUTF8, "$[0]: a string holds invalid UTF-8"},
		{"{\"\xff\":1}", CodeUTF8, "$: a key holds invalid UTF-8"},
		{`{"a":1,"b":2,"a":3}`, CodeDuplicate, "$.a: the key comes twice in one object"},
		{`{"x":{"a":1,"\u0061":3}}`, CodeDuplicate, "$.x.a: the key comes twice in one object"},
		{"{" + keys.String()[1:] + `,"k0":2}`, CodeDuplicate, "$.k0: the key comes twice in one object"},
		{"{" + keys.String()[1:] + `,"k39":2}`, CodeDuplicate, "$.k39: the key comes twice in one object"},
		{deep(65, ""), CodeNesting, "$" + strings.Repeat("[0]", 64) + ": nested deeper than 64"},
		{`"` + strings.Repeat("a", DocumentBytesMax) + `"`, CodeTooLarge, "$: the document has 1048578 bytes, the limit is 1048576"},
		{strings.Repeat("[", 500_000), CodeNesting, "$" + strings.Repeat("[0]", 64) + ": nested deeper than 64"},
	} {
		err := CheckJSON([]byte(tt.doc))
		var e *DocumentError
		errors.As(err, &e)
		if tt.code == ok && err != nil || tt.code != ok && (e == nil || e.Code != tt.code || err.Error() != tt.err) {
			t.Errorf("%.60s: got %v, want %s (%s)", tt.doc, err, tt.err, tt.code)
		}
		out, err2 := CanonicalJSON([]byte(tt.doc))
		if (err == nil) != (err2 == nil) || err != nil && err.Error() != err2.Error() {
			t.Errorf("%.60s: CheckJSON says %v, CanonicalJSON %v", tt.doc, err, err2)
		}
		if err == nil && !json.Valid(out) {
			t.Errorf("%.60s: the canonical form %.60s isn't JSON", tt.doc, out)
		}
	}
}

func TestCanonicalJSON(t *testing.T) {
	for _, tt := range []struct{ doc, want string }{
		{` { "b" : 1 , "a" : [ 1.0 , -0 , 1E3, 1.50 ] } `, `{"a":[1.0,-0,1E3,1.50],"b":1}`},
		{`{"b":{"d":1,"c":2},"a":{},"aa":[ ],"B":0}`, `{"B":0,"a":{},"aa":[],"b":{"c":2,"d":1}}`},
		{`{"\u0062":1,"a":2}`, `{"a":2,"b":1}`},
		{`"\u0041\/\u00e9\ud83d\ude00<>&\u2028"`, `"A/é😀<>&` + "\u2028" + `"`},
		{`"\u0001\u000a\u0008\u000c\r\t\"\\\u001F"`, `"\u0001\n\b\f\r\t\"\\\u001f"`},
		{`123456789012345678901234567890.10`, `123456789012345678901234567890.10`},
	} {
		got, err := CanonicalJSON([]byte(tt.doc))
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: got %s, %v, want %s", tt.doc, got, err, tt.want)
		}
		if again, err := CanonicalJSON(got); err != nil || !bytes.Equal(again, got) {
			t.Errorf("%s: not stable: %s, %v", tt.doc, again, err)
		}
	}
}

func TestDecimal(t *testing.T) {
	ordered := []string{"-1e400", "-123456789012345678901234567891", "-123456789012345678901234567890", "-2", "-1.5", "-1", "-0.001", "0",
		"1e-999999999999999999999", "1e-400", "0.001", "0.01", "0.1", "0.10000000000000000001", "1", "1.5", "9", "10", "9007199254740992", "9007199254740993",
		"123456789012345678901234567890", "1e400", "1e999999999999999999999"}
	for i, a := range ordered {
		for j, b := range ordered {
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got := parseDecimal([]byte(a)).cmp(parseDecimal([]byte(b))); got != want {
				t.Errorf("%s against %s: got %d", a, b, got)
			}
		}
	}
	for _, same := range [][]string{{"0", "-0", "0.0", "0e5", "-0.00e-3"}, {"1", "1.0", "10e-1", "0.1E1", "0.01e+2"}, {"-1500", "-1.5e3", "-1500.00"}} {
		for _, a := range same {
			d := parseDecimal([]byte(a))
			if d.cmp(parseDecimal([]byte(same[0]))) != 0 || string(d.append(nil)) != string(parseDecimal([]byte(same[0])).append(nil)) {
				t.Errorf("%s differs from %s", a, same[0])
			}
		}
	}
	for lit, want := range map[string]string{"1500": "1500", "-0.5": "-0.5", "0": "0", "12.50": "12.5", "1e3": "1000", "0.001": "0.001", "1e30": "0.1e31"} {
		if got := parseDecimal([]byte(lit)).show(); got != want {
			t.Errorf("%s: shown as %s, want %s", lit, got, want)
		}
	}
}
