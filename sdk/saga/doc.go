// Package saga is how sagas are written: contracts of activities, definitions made of them, and what handlers of
// activities are given and answer.
//
// A definition is data. It reads from top to bottom like the drawing of the saga; mappings and conditions are CEL expressions over
// the saga's input and the outputs of earlier steps. No function of the program that defines a saga is run by the engine.
// [Definition.Verify] checks all that the engine checks, so a test of one line finds whatever is wrong:
//
//	func TestPlaceOrder(t *testing.T) {
//		if err := PlaceOrder.Verify(); err != nil {
//			t.Fatal(err)
//		}
//	}
//
// Handlers are plain functions, served by package worker. They answer with an output, or with an error: [Reject] for a business
// no, [RetryAfter], [GiveUp], of compensations [NothingToUndo] and [CantUndo], and any other error for "try again".
package saga
