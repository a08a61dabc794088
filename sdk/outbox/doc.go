// Package outbox starts sagas inside your own database transaction: PostgreSQL or SQLite, with pgx.Tx or database/sql. If the
// transaction commits, the saga is started, once; if it rolls back, nothing is.
//
//	tx, err := pool.Begin(ctx)
//	...
//	_, err = tx.Exec(ctx, "INSERT INTO orders ...")
//	...
//	err = outbox.Start(ctx, outbox.Pgx(tx), PlaceOrder, "order-42", Order{...})
//	...
//	err = tx.Commit(ctx)
//
// Without it one of two things goes wrong when a process dies between commit and start, or between start and commit: an order
// without its saga, or a saga without its order.
//
// [Start] writes a row to the table sagad_outbox. A [Relay] reads such rows, starts the sagas with a client, and removes the rows:
//
//	relay := outbox.NewRelay(c, outbox.PgxPool(pool), outbox.Config{})
//	err := relay.Run(ctx) // until ctx ends
//
// Any number of relays may run at once, in any processes. A row is removed only after the server has answered that the saga is
// durable. If the relay dies before, another one starts the saga again, which is the same saga, since its id and its content are.
// So there is exactly one saga for a committed row, wherever anything dies, as long as the server knows the saga's id.
//
//   - Rows are delivered in the order in which they were inserted, as far as they are committed and nothing fails. A row that is
//     committed late is delivered late, and never passed over.
//   - A relay takes up to [Config].Batch rows and leases them for [Config].Lease. If it dies, they are taken by another when the lease
//     is over. While it talks to the server it holds no transaction and no lock.
//   - Relays in the process that calls [Start] look at once, others after [Config].Poll.
//   - While sagad can't be reached, a row is tried again for ever: after 0.1 s, and then less and less often, down to once a minute,
//     each time with jitter. Others go on.
//   - A row that the server refuses for good is parked: the id is taken by a saga with other content, the input doesn't fit, the
//     definition isn't registered. It stays in the table with the error, blocks nobody, and waits for [Relay.Retry] or
//     [Relay.Discard]. [Relay.Parked] lists such rows, [Relay.Backlog] counts them.
//
// All rows of a table are started in the namespace of the relay's client. A relay's errors and logs name rows, sagas and codes, and
// never what is in an input.
//
// With SQLite, set a busy timeout, as for all writers. See [PostgresTable], [SQLiteTable] and [CreateTable] for the table.
//
// # Sources
//
// This is the transactional outbox with a polling publisher of Chris Richardson, "Microservices Patterns" (Manning 2018), chapter 3,
// and microservices.io/patterns/data/transactional-outbox.html.
package outbox
