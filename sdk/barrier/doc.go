// Package barrier makes handlers safe against repeats, late calls and lost answers, where an effect is a write to the
// worker's own database: PostgreSQL or SQLite, with pgx.Tx or database/sql.
//
// sagad calls handlers at least once, and perhaps late: an action may be called again after its answer was lost, twice at a
// time, or after its own compensation. The barrier keeps, in a table of the same database, what was asked under each
// idempotency key and what was answered, and writes it in the same transaction as the effect. So either both are there or
// neither is:
//
//	func (s *Stock) Reserve(ctx context.Context, in ReserveIn) (Reserved, error) {
//		tx, err := s.db.BeginTx(ctx, nil)
//		if err != nil {
//			return Reserved{}, err
//		}
//		defer tx.Rollback()
//		answer, err := barrier.Do(ctx, barrier.Postgres(tx), in, func() (Reserved, error) {
//			return reserve(ctx, tx, in) // writes with tx, or answers saga.Reject
//		})
//		if err != nil {
//			return Reserved{}, err // and the transaction is rolled back
//		}
//		return answer.After(tx.Commit())
//	}
//
// An answer counts only once it is committed, also if it is a rejection or "nothing to undo": that is why it can't be had
// without saying what became of the commit.
//
//   - A repeat gets the stored answer, and the effect isn't run. Repeats at one time wait for each other.
//   - The same key with other input is refused: [ErrOtherInput].
//   - A rejection is stored as well, without the writes that came before it: a copy of that attempt which comes late
//     can't succeed where the saga has been told no. A later attempt, which the engine makes only if it doesn't know of the
//     rejection or if a person retries the step, asks anew.
//   - Any other error stores nothing.
//   - [Undo] gets what the action stored, so it knows the output even if the engine doesn't. If the action wasn't there, it
//     leaves a tombstone under the action's key and answers saga.NothingToUndo. An action that comes later is refused:
//     [ErrCompensated].
//   - [Probe] answers from the action's row whether it happened. If it didn't it leaves the same tombstone, so that it won't.
//   - An action is undone once, whatever the number of calls and generations of its compensation.
//
// One call is one effect: put all its writes into one Do. A second Do with the context of the same call is a repeat.
// Effects elsewhere, such as calls of other services, aren't covered: hand them saga.IdempotencyKey.
//
// Make the barrier's call the first statement of the transaction. Any isolation level will do: stricter ones than READ
// COMMITTED may fail an attempt, which is then tried again. With SQLite, begin transactions as immediate ones and set a busy
// timeout, as for all writers.
//
// The table has one row for each action and compensation. See [PostgresTable], [SQLiteTable] and [CreateTable], and
// [Purge] for how long rows must be kept.
//
// # Sources
//
// Pat Helland, "Life beyond Distributed Transactions: an Apostate's Opinion" (CIDR 2007), has the idea: at-least-once messages are
// made harmless by remembering them where their effect is, in one transaction. The sub-transaction barrier of DTM
// (github.com/dtm-labs/dtm) is prior art for doing this for sagas and TCC, with rows against empty compensation and hanging. This one
// also stores the answer and what was asked, tells a late action that it is refused where DTM lets it pass as done, and
// makes no keys of its own.
package barrier
