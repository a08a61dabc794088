package statemachine

import "time"

// Limits on definitions and sagas. Each has a rule or a code that names it.
const (
	stepsMax        = 256
	nestingMax      = 16
	branchesMax     = 64
	activitiesMax   = stepsMax
	nameBytesMax    = 63
	descriptionMax  = 4096
	definitionMax   = 256 << 10
	schemaBytesMax  = 64 << 10
	payloadBytesMax = 256 << 10
	parallelUndoMax = 1000
	undoDefault     = 16
	timeoutDefault  = 30 * time.Second
	timeoutMin      = time.Millisecond
	timeoutMax      = 30 * 24 * time.Hour
	deadlineMin     = time.Millisecond
	deadlineMax     = 10 * 365 * 24 * time.Hour
	attemptsMax     = 10_000
	attemptsDefault = 3
	attemptsMust    = 10
	itemsMax        = 1000
	latesMax        = 100
	requestsMax     = 100
	// elementsMax bounds a map's list.
	elementsMax = 10_000
	// signalsKeptMax bounds the signals that wait to be taken, signalKeysMax all that a saga ever takes in.
	signalsKeptMax = 100
	signalKeysMax  = 10_000
	checkpointMax  = 64 << 10
	claimBytesMax  = 128
	idBytesMax     = 255
	retryAfterMax  = 30 * 24 * time.Hour
	// transitionsMax bounds a saga's history. In the last transitionsReserve nothing is tried again and, in their second half,
	// late results are no longer kept, so that every saga can be brought to its end.
	transitionsMax     = 100_000
	transitionsReserve = 10_000
	// problemsMax bounds what Compile reports.
	problemsMax = 100
	// clipBytes bounds what a problem quotes, expressions apart.
	clipBytes = 160
	// nodesMax bounds nodes that aren't steps, branches, cases and paths together.
	nodesMax        = 1000
	signalsMax      = 64
	casesMax        = 64
	alternativesMax = 16
	roundsMax       = 1000
	windowMax       = 1000
	windowDefault   = 16
	// turnsMax is how many maps and loops may stand inside one another.
	turnsMax     = 3
	heartbeatMin = 100 * time.Millisecond
	// heartbeatsMax is how many heartbeats may fit into a timeout.
	heartbeatsMax = 2000
)

// Codes of errors that the engine itself gives to calls.
const (
	CodeTimeout   = "TIMEOUT"
	CodeHeartbeat = "HEARTBEAT_LOST"
	// CodePoison is a worker's: the task killed its workers again and again, and isn't run any more.
	CodePoison        = "POISON"
	CodeSignalTimeout = "SIGNAL_TIMEOUT"
	CodeLoopLimit     = "LOOP_LIMIT"
	CodeElements      = "ELEMENTS_FAILED"
	CodeBranches      = "BRANCHES_FAILED"
	CodeLostRace      = "LOST_RACE"
	CodeNoWorker      = "NO_WORKER"
	CodeNotStorable   = "RESULT_NOT_STORABLE"
	CodeTooLarge      = "PAYLOAD_TOO_LARGE"
	CodeResultInvalid = "RESULT_INVALID"
	CodeExpression    = "EXPRESSION_ERROR"
	CodeBadOutcome    = "BAD_OUTCOME"
)
