package expr

import (
	"syscall"
	"testing"
	"time"
)

// spent is the processor time of this thread, which a busy machine doesn't stretch as it does the wall's. The
// caller must hold its thread.
func spent(t *testing.T) time.Duration {
	const thisThread = 1 // RUSAGE_THREAD
	var r syscall.Rusage
	if err := syscall.Getrusage(thisThread, &r); err != nil {
		t.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
