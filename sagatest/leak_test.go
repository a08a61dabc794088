package sagatest_test

import (
	"runtime"
	"testing"

	"github.com/sagad/sagad/sagatest"
)

// TestNoGoroutineIsLeft: hundreds of runs leave nothing behind.
func TestNoGoroutineIsLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	sagatest.Unwind(t, transferMoney, transferIn{"a", "b", 30}, transferWorld(""))
	if after := runtime.NumGoroutine(); after > before+10 {
		t.Errorf("%d goroutines before, %d after", before, after)
	}
}
