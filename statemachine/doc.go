// Package statemachine is the law of sagas. It turns a definition into a machine, and an event into facts:
//
//	Decide(state, event, now, chance) -> facts, commands        Evolve(state, facts) -> state
//
// Facts are what is stored; folding them gives the state, for ever. Commands (attempts to send, calls to stop) follow from
// the state and are never stored. The package is pure: no context, clock, randomness, goroutine or I/O. Time and chance are
// arguments.
//
// Terms follow Garcia-Molina and Salem, "Sagas" (SIGMOD 1987: saga, compensating transaction, backward and forward
// recovery) and Richardson, "Microservices Patterns" (2018: compensatable, pivot and retriable transactions).
package statemachine
