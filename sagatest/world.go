package sagatest

import (
	"testing"

	"github.com/sagad/sagad/sdk/worker"
)

// World makes what the handlers act on, anew for each run: a database, a fake of a service, a map. It gives the function that
// registers the handlers, the same as in production, and a check of what is there in the end, which fails its t if that isn't right:
//
//   - after COMPENSATED, nothing may be left of the saga;
//   - after COMPLETED, each thing must be there, once.
//
// The check is called only when the saga has come to one of these ends; s says to which. t is the test's, but its failures become
// findings, and its clean-ups are run after each run. check may be nil: then only what the handlers answer is looked at, which
// finds much less.
//
// To find what is half done when a handler is interrupted, let the world's operations heed their context, as a database or a remote
// service would: if ctx.Err() isn't nil, do nothing and return it.
type World func(t testing.TB) (register func(*worker.Worker), check func(t testing.TB, s *Saga))
