// Package sagatest tests sagas, a line each:
//
//	func TestPlaceOrder(t *testing.T) {
//		s := sagatest.Run(t, PlaceOrder, order, newShop(t).register)              // the plain way
//		sagatest.Unwind(t, PlaceOrder, order, world)                              // every failure, everywhere
//		sagatest.Repeat(t, PlaceOrder, order, world)                              // every request twice
//		sagatest.Golden(t, PlaceOrder)                                            // a change of the definition shows in review
//	}
//
// It is the real engine, in the test's process, with time of its own: nothing is sent over a network, and nothing sleeps, so a saga
// that backs off for a day takes a millisecond. The handlers are the very ones that the worker serves, given by the function that
// registers them.
//
// A [World] is what the handlers act on, made anew for each run, and the check of what is there in the end. [Unwind] makes each
// step fail in each way that a network, a process or a business can fail, and each compensation as well; then the world must
// be as if the saga had never been, or had been done once. docs/testing.md has the list of what is injected, and what a finding
// looks like.
//
// Handlers are called one after the other, in an order that doesn't change from run to run; see [Concurrently] for [Repeat].
package sagatest
