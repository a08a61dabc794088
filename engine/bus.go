package engine

import workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

// Bus carries tasks to workers and results back. It may lose, repeat, delay and reorder; what is in the store decides.
type Bus interface {
	// Publish sends tasks at least once. It never blocks for long and never fails to the caller: what can't be sent is
	// tried again with the same message id until the bus is closed or the task's deadline has passed. The tasks are the
	// bus's after the call.
	Publish(tasks []*workerv1.Task)
	// Stop tells the workers of an activity that attempts aren't wanted any more. It never blocks for long, and may be lost.
	Stop(namespace, activity string, stops []*workerv1.Stop)
	// Serve answers result requests for a shard until stop is called. handle calls reply exactly once, later, from any
	// goroutine.
	Serve(shard int, handle func(pack *workerv1.ResultPack, reply func(*workerv1.ResultReply))) (stop func(), err error)
	// Listening says whether some worker waits for tasks of the activity.
	Listening(namespace, activity string, dir workerv1.Direction) bool
	// Healthy says that the bus is connected.
	Healthy() bool
}

// Names of the points at which [Config.Fault] is called.
const (
	// BeforeCommit: a batch is about to be sent to the store.
	BeforeCommit = "before commit"
	// AfterCommit: the store has answered, and nobody knows.
	AfterCommit = "after commit"
	// BeforePublish: the batch is durable, its tasks aren't sent.
	BeforePublish = "before publish"
	// AfterPublish: the tasks were given to the bus.
	AfterPublish = "after publish"
	// ResultReceived: results have arrived and aren't committed.
	ResultReceived = "result received"
	// BeforeReply: the batch is durable, its callers don't know.
	BeforeReply = "before reply"
)
