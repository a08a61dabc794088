package wire

import "time"

// Limits of the worker protocol. docs/worker-protocol.md states them.
const (
	// Protocol is the version that this code speaks.
	Protocol = 1

	// PayloadBytesMax bounds one input or output, as JSON text.
	PayloadBytesMax = 256 << 10
	// PackTasksMax and PackBytesMax bound a task message.
	PackTasksMax = 16
	PackBytesMax = 512 << 10
	// PackResultsMax bounds the results of one request; ResultPackBytesMax its body, as workers of this module
	// send it. What NATS lets through is the outer bound.
	PackResultsMax     = 256
	ResultPackBytesMax = 512 << 10
	// CheckpointBytesMax bounds what an attempt says before it is over: a checkpoint or its progress, as JSON text.
	CheckpointBytesMax = 64 << 10
	// StopsMax bounds the stops of one message.
	StopsMax = 256
	// TokenBytesMax bounds a task token.
	TokenBytesMax = 1 << 10
	// ResultCodeBytesMax, ResultMessageBytesMax, ResultDetailBytesMax and ResultWorkerBytesMax bound a result's texts;
	// longer ones are cut.
	ResultCodeBytesMax    = 64
	ResultMessageBytesMax = 4 << 10
	ResultDetailBytesMax  = 16 << 10
	ResultWorkerBytesMax  = 255
	// SagaIDBytesMax bounds a saga's id.
	SagaIDBytesMax = 255

	// TokenGrace is for how long after its attempt's deadline a token is good: late results are evidence.
	TokenGrace = 24 * time.Hour
	// DuplicateWindow is the stream's memory of message ids. An optimisation, never relied on.
	DuplicateWindow = 2 * time.Minute
	// DefaultAckWait is after what silence of a worker a task message is delivered again.
	DefaultAckWait = 30 * time.Second
)

// CodeNotStorable is the code of a success whose output can't be stored: too large, not JSON, not UTF-8, or with a
// NUL. The action was done; its output can't be used.
const CodeNotStorable = "RESULT_NOT_STORABLE"
