// Package mutant tests the tests: it plants bugs in the engine, the state machine and the store, one at a time, and sees whether the
// simulation finds them. The sources aren't touched: a changed copy of a file is laid over it when the simulation is built.
//
//	SAGAD_MUTANTS=all go test -v -timeout 60m ./engine/enginetest/mutant      # or make mutants
//	SAGAD_MUTANTS=fence,order go test -v ./engine/enginetest/mutant
package mutant
