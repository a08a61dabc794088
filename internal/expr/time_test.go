package expr

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// TestImpossibleTimes: times and durations that can't be are errors of the expression, whichever way they come in. None panics, and none
// becomes another time.
func TestImpossibleTimes(t *testing.T) {
	env, err := NewEnv(Var{"input", nil})
	if err != nil {
		t.Fatal(err)
	}
	good := map[string]string{
		"timestamp:9999-12-31T23:59:59.999999999Z": "9999-12-31T23:59:59.999999999Z",
		"timestamp:0001-01-01T00:00:00Z":           "0001-01-01T00:00:00Z", // Go's zero time is a time
		"duration:-5s":                             "-5s",
	}
	for _, text := range []string{
		"timestamp:0000-01-01T00:00:00Z", "timestamp:9999-12-31T23:59:59.999999999Z", "timestamp:0001-01-01T00:00:00Z", "timestamp:10000-01-01T00:00:00Z",
		"timestamp:infinity", "timestamp:-infinity", "timestamp:", "timestamp:2026-02-30T00:00:00Z", "timestamp:0001-01-01",
		"duration:-5s", "duration:292y", "duration:1e20s", "duration:99999999999999999999s", "duration:infinity", "duration:",
	} {
		kind, value, _ := strings.Cut(text, ":")
		doc, err := json.Marshal(map[string]string{"at": value})
		if err != nil {
			t.Fatal(err)
		}
		quoted, _ := json.Marshal(value)
		for _, src := range []string{"string(" + kind + "(input.at))", "string(" + kind + "(" + string(quoted) + "))"} {
			p, err := env.Compile(src, nil)
			var got []byte
			if err == nil {
				got, err = p.Eval(Vars{"input": doc})
			}
			want, ok := good[text]
			var failed *EvalError
			var refused *Error
			switch {
			case ok && (err != nil || string(got) != `"`+want+`"`):
				t.Errorf("%s of %s: %s %v, want %s", src, value, got, err, want)
			case !ok && !errors.As(err, &failed) && !errors.As(err, &refused):
				t.Errorf("%s of %s: %s %v, want an error of the expression", src, value, got, err)
			}
		}
	}
	for _, src := range []string{
		"string(timestamp('9999-12-31T23:59:59Z') + duration('1s'))", "string(timestamp('0001-01-01T00:00:00Z') - duration('1s'))",
		"string(timestamp(253402300800))", "string(timestamp(-62135596801))", "string(timestamp(9223372036854775807))",
		"string(duration('9000000000s') + duration('9000000000s'))", "string(timestamp('9999-12-31T23:59:59Z') - timestamp('0001-01-01T00:00:00Z'))",
	} {
		p, err := env.Compile(src, nil)
		var got []byte
		if err == nil {
			got, err = p.Eval(Vars{"input": []byte("{}")})
		}
		var failed *EvalError
		if !errors.As(err, &failed) {
			t.Errorf("%s: %s %v, want an error of the expression", src, got, err)
		}
	}
}
