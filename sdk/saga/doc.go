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
// # Writing a saga
//
// In this order: types of inputs and outputs; a contract for each activity, [Compensatable], [ReadOnly] or [Activity], shared with
// the workers; then [Define] with steps, [Do], [Read], [Pivot] and [Retriable], in [Parallel] and [If] where needed, whose inputs are
// [Fields] or a [Value], with [Timeout], [Retry], [Hold] and [Compensation] where the defaults don't fit; at the end a [Return].
//
// Sagas that need more have [Sleep], [Wait] for a [Signal] and [Approve] by a person, [Switch], [Loop], [Map] over a list, [Any] and
// [AtLeast] of several branches, [Savepoint] with other ways forward, and [Child] sagas.
//
// # Answering
//
// Handlers are plain functions, served by package worker. They answer with an output, or with an error: [Reject] for a business
// no, [RetryAfter], [GiveUp], of compensations [NothingToUndo] and [CantUndo], and any other error for "try again". What they are
// called for is in their context: [IdempotencyKey] first of all, and [CallOf].
//
// While it runs, an action can say what its compensation will need, with [Checkpoint] before its effect, and how far it is, with
// [Progress]. Its context ends with the cause [ErrStopped] when its attempt isn't wanted any more. A probe, which says whether an action whose
// outcome nobody knows did happen, answers with [Happened], [HappenedUnknownOutput], [DidNotHappen] or [CantTell].
//
// # For other packages
//
// [Kind], [Meaning], [MeaningOf], [Rejection], [Later], [Surrender], [Undoable], [Finding], [Statements], [WithCall] and [WithStatements] are what package worker, and tests of
// handlers, take answers apart with. Sagas and handlers don't need them.
package saga
