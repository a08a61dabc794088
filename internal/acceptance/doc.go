// Package acceptance runs sagad as its users do, and breaks it: a real engine process on SQLite or Postgres, real worker
// processes of the example examples/order, hundreds of orders with errors, timeouts and lost replies, and kill -9 of
// engine and workers while they run. Then every order must have ended or wait for a person, every unit and every cent
// must be where it should be, no effect may be there twice, and every history must be without a gap.
//
// `go test ./internal/acceptance` is the small form. The full one takes files in the form of examples/order/testdata:
//
//	SAGAD_ORDERS=orders.jsonl SAGAD_STOCK=stock.jsonl SAGAD_KILLS=5 go test -timeout 30m -v ./internal/acceptance
//
// SAGAD_SEED chooses another run, SAGAD_COUNT how many orders are made up where there are no files; SAGAD_KILLS is how
// often the engine and the worker are each killed.
package acceptance
