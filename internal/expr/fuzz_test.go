package expr

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"
)

// FuzzEval compiles and evaluates anything over anything: it must neither panic nor hang, must give the same answer
// twice, and a result must be JSON that can be stored.
func FuzzEval(f *testing.F) {
	for _, src := range []string{"input.cent + 1", "any.a.map(x, x + 1)", "{'b': input.lines, 'a': any}", "input.memo == null ? any : input.id",
		"any.s.matches('a+')", "any == input || any in [1, 2.0]", "string(any) + 'x'", "any.split(',').join('-')"} {
		f.Add(src, orderDoc, `{"a":[1,2.50,1e400],"s":"aaa"}`)
	}
	env := orderEnv(f)
	f.Fuzz(func(t *testing.T, src, input, other string) {
		p, err := env.Compile(src, nil)
		if err != nil {
			if e := err.(*Error); e.Code == CodeInternal || e.Line < 1 || e.Column < 1 {
				t.Fatalf("%+v", e)
			}
			return
		}
		vars := Vars{"input": json.RawMessage(input), "any": json.RawMessage(other)}
		got, err := p.Eval(vars)
		again, err2 := p.Eval(vars)
		if !bytes.Equal(got, again) || (err == nil) != (err2 == nil) || err != nil && err.Error() != err2.Error() {
			t.Fatalf("first %s, %v, then %s, %v", got, err, again, err2)
		}
		long, lerr := evaluated(p, vars)
		sameOutcome(t, src, got, long, err, lerr)
		var e *EvalError
		if errors.As(err, &e) {
			if e.Code == CodeInternal || e.Line < 1 || e.Column < 1 {
				t.Fatalf("%+v", e)
			}
			return
		}
		if err != nil {
			t.Fatalf("not an *EvalError: %v", err)
		}
		if CheckJSON([]byte(input)) == nil && CheckJSON([]byte(other)) == nil {
			if err := CheckJSON(got); err != nil {
				t.Fatalf("%s: %v", got, err)
			}
		}
	})
}

// FuzzJSON holds CheckJSON and CanonicalJSON to encoding/json and to each other.
func FuzzJSON(f *testing.F) {
	for _, doc := range []string{orderDoc, `{"a":1,"a":2}`, `"\ud800"`, `"\u0000"`, `[1e5,-0.0,1E+2]`, "\"\xff\"", `{"b":[{}],"\u0061":" "}`} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		err := CheckJSON(doc)
		out, cerr := CanonicalJSON(doc)
		if (err == nil) != (cerr == nil) {
			t.Fatalf("CheckJSON says %v, CanonicalJSON %v", err, cerr)
		}
		valid := json.Valid(doc)
		if err != nil {
			if e := err.(*DocumentError); valid && e.Code == CodeBadDocument {
				t.Fatalf("valid JSON is refused: %v", err)
			}
			return
		}
		if !valid || !json.Valid(out) {
			t.Fatalf("accepted, but not JSON: %q, %q", doc, out)
		}
		again, err := CanonicalJSON(out)
		if err != nil || !bytes.Equal(again, out) {
			t.Fatalf("not stable: %s, then %s, %v", out, again, err)
		}
		if !bytes.Equal(generic(t, doc), generic(t, out)) {
			t.Fatalf("%s has another meaning than %s", out, doc)
		}
		if err := Any.Validate(doc); err != nil {
			t.Fatal(err)
		}
	})
}

// generic is what encoding/json makes of doc.
func generic(t *testing.T, doc []byte) []byte {
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// FuzzSchema parses any schema and validates any document by it.
func FuzzSchema(f *testing.F) {
	for _, tt := range validations {
		f.Add([]byte(tt.schema), []byte(tt.doc))
	}
	f.Fuzz(func(t *testing.T, schema, doc []byte) {
		s, err := ParseSchema(schema)
		if err != nil {
			return
		}
		_ = s.String()
		if quick, err := s.quickly(doc), s.validate(doc); quick != (err == nil) {
			t.Fatalf("quick says %v, the validator %v", quick, err)
		}
		env, err := NewEnv(Var{"input", s})
		if err != nil {
			t.Fatal(err)
		}
		p, err := env.Compile("input", s)
		if err != nil {
			if err.(*Error).Code == CodeInternal {
				t.Fatal(err)
			}
			return
		}
		if s.Validate(doc) != nil {
			return
		}
		if _, err := p.Eval(Vars{"input": doc}); err != nil {
			t.Fatalf("a valid document can't be passed on: %v", err)
		}
	})
}
