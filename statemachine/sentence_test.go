package statemachine

import (
	"strings"
	"testing"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
)

// Each fact has a sentence of its own, and each value of an enumeration words.
func TestEverythingHasWords(t *testing.T) {
	const unknown = "doesn't know"
	seen := map[string]string{}
	fields := (&historyv1.Fact{}).ProtoReflect().Descriptor().Oneofs().ByName("kind").Fields()
	for i := range fields.Len() {
		f := &historyv1.Fact{}
		fd := fields.Get(i)
		f.ProtoReflect().Set(fd, f.ProtoReflect().NewField(fd))
		s := Sentence(f)
		if strings.Contains(s, "Something happened that") || !strings.HasSuffix(s, ".") {
			t.Errorf("%s: %q", fd.Name(), s)
		}
		if other, ok := seen[s]; ok {
			t.Errorf("%s and %s are told alike: %q", fd.Name(), other, s)
		}
		seen[s] = string(fd.Name())
	}
	for n := range historyv1.ItemKind_name {
		if w := KindWords(historyv1.ItemKind(n)); n != 0 && strings.Contains(w, unknown) {
			t.Errorf("%v: %q", historyv1.ItemKind(n), w)
		}
	}
	for n := range historyv1.CauseKind_name {
		if w := CauseWords(&historyv1.Cause{Kind: historyv1.CauseKind(n)}); n != 0 && strings.Contains(w, unknown) {
			t.Errorf("%v: %q", historyv1.CauseKind(n), w)
		}
	}
	for n := range historyv1.Outcome_name {
		if w := outcomeWords(historyv1.Outcome(n)); n != 0 && w == "ended" {
			t.Errorf("%v: %q", historyv1.Outcome(n), w)
		}
	}
	for item, want := range map[string]string{"": "w took signal go with key \"k\".", "1.2": "w[1.2] took signal go with key \"k\"."} {
		f := &historyv1.Fact{Kind: &historyv1.Fact_SignalConsumed{SignalConsumed: &historyv1.SignalConsumed{Name: "w", Item: item, Signal: "go", Key: "k"}}}
		if got := Sentence(f); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
