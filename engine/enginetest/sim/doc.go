// Package sim lives through random lives of a whole cluster: nodes of the real engine over one store, a bus, workers behind
// a barrier, clients and operators, and all that can go wrong between them. One goroutine and one seeded source of chance
// drive everything in virtual time, so the same seed does the same, bit for bit.
//
// What must be true is checked by a model that knows the rules of sagas a second time. It shares no code with the engine but
// the messages of the history, which it reads as they become durable.
package sim
