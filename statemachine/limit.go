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
	retryAfterMax   = 30 * 24 * time.Hour
	// transitionsMax bounds a saga's history. In the last transitionsReserve nothing is tried again and, in their second half,
	// late results are no longer kept, so that every saga can be brought to its end.
	transitionsMax     = 100_000
	transitionsReserve = 10_000
	// problemsMax bounds what Compile reports.
	problemsMax = 100
	// clipBytes bounds what a problem quotes, expressions apart.
	clipBytes = 160
	// nodesMax bounds parallels, branches and ifs together.
	nodesMax = 1000
)

// Codes of errors that the engine itself gives to calls.
const (
	CodeTimeout       = "TIMEOUT"
	CodeNoWorker      = "NO_WORKER"
	CodeNotStorable   = "RESULT_NOT_STORABLE"
	CodeTooLarge      = "PAYLOAD_TOO_LARGE"
	CodeResultInvalid = "RESULT_INVALID"
	CodeExpression    = "EXPRESSION_ERROR"
	CodeBadOutcome    = "BAD_OUTCOME"
)
