package node

import (
	"os"
	"runtime/debug"
)

// gcPercent lets the heap grow to five times what lives before it is collected. A node makes much garbage and keeps little, so
// that at Go's default of 100 a quarter of its time goes into collecting; this costs some tens of megabytes instead.
const gcPercent = 400

// tuneMemory sets the garbage collector for this process, unless the environment does.
func tuneMemory() {
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetGCPercent(gcPercent)
	}
}
