package sagatest

import (
	"testing"

	"github.com/sagad/sagad/sdk/saga"
)

// Recorded is what a test was told.
type Recorded struct {
	Failed bool
	Text   string
}

// Record calls f with a test that keeps what it is told.
func Record(t testing.TB, f func(testing.TB)) Recorded {
	rec := &recorder{TB: t}
	rec.guard(func() { f(rec) })
	rec.end()
	if !rec.Failed() {
		return Recorded{}
	}
	return Recorded{true, rec.words()}
}

// CanonicalText is what a golden file holds.
func CanonicalText[In, Out any](def *saga.Definition[In, Out]) ([]byte, error) { return canonical(def) }
