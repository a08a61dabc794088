package engine

import "time"

// Limits of a node. Those on definitions, payloads and histories are the state machine's.
const (
	// One shard's batch.
	batchTransitionsMax = 512
	batchBytesMax       = 4 << 20
	// A larger batch's memory isn't kept.
	batchArenaMax = 1 << 20
	// Larger memory for digests isn't kept.
	scratchBytesMax = 64 << 10
	// One commit of many shards' batches.
	commitTransitionsMax = 4096
	commitBytesMax       = 16 << 20
	// So many transitions must wait for a commit to be begun beside one that is under way.
	commitBesideMin = 64
	// Events of one shard that wait for an answer. Starts, cancels and acts are refused above the first, results above
	// the second, so that work under way ends before new work begins.
	mailboxMax       = 8192
	mailboxResultMax = 16384
	// Results in one pack.
	packMax = 4096
	// Sagas looked up at once, and lookups of a shard's events under way.
	lookupMax = 256
	// Sagas in a page of recovery.
	pageMax = 256
	// Timers, and attempts sent again, in one turn of a shard's loop.
	ticksMax      = 256
	redispatchMax = 256
	// Ended sagas that a shard remembers, so that late duplicates don't need the database.
	endedMax      = 512
	endedBytesMax = 1 << 20
	// Results for unknown sagas that wait to be recorded.
	straysMax = 4096
	// Child sagas that are looked up at a time.
	childrenMax = 64
	// Compiled definitions in memory.
	machinesMax = 4096

	// Starts of the latest version that begin anew because it was deleted meanwhile.
	startTriesMax = 5
	// Definitions that are searched for one that names another, in a page and in all.
	namersPage = 100
	namersMax  = 10_000
	// Definitions that an error names.
	namersShown = 10

	idBytesMax         = 255
	definitionBytesMax = 63
	labelsMax          = 16
	labelBytesMax      = 63
	reasonBytesMax     = 4096
	requestIDBytesMax  = 128
	signalBytesMax     = 63
	signalKeyBytesMax  = 128
	namesMax           = 1000
	actorBytesMax      = 128

	// What a worker says, cut to this.
	errorCodeBytesMax    = 64
	errorMessageBytesMax = 4 << 10
	errorDetailBytesMax  = 16 << 10
	workerBytesMax       = 255
)

// Times that no configuration changes.
const (
	// latestMax is how long a node may take another node's registration for not having happened, when a start asks for
	// the latest version.
	latestMax = 250 * time.Millisecond
	// clockEvery is how often the offset to the database's clock is measured.
	clockEvery = 30 * time.Second
	// clockRoundTripMax: a slower measurement isn't used unless there is none.
	clockRoundTripMax = time.Second
	// refreshEvery is how often a shard's gauges are brought up to date.
	refreshEvery = 5 * time.Second
	// resendMin and resendMax bound the back-off of a batch whose commit is unknown.
	resendMin = 20 * time.Millisecond
	resendMax = time.Second
	// recoverMin and recoverMax bound the back-off of a shard's recovery while the store can't be read.
	recoverMin = 20 * time.Millisecond
	recoverMax = time.Second
	// redispatchDoublings: each time an attempt is sent again, the next time is twice as far, up to 2^n times.
	redispatchDoublings = 4
	// lookAfterRefusal is for how long a shard looks starts up after one that was taken for new wasn't.
	lookAfterRefusal = time.Minute
	// retryIn is what callers are told when a node is overloaded or a shard is moving.
	retryIn = 250 * time.Millisecond
	// stalled is when a timer that changed nothing is tried again.
	stalled = time.Second
)
