// Package engine runs sagas. A saga belongs to a shard, a shard to one node at a time, and on that node to one
// goroutine, which is the only way to change it:
//
//	submit(event) -> decide -> commit -> publish, answer
//
// A start, a result, a timer, a cancel and a person's act are all events through this one door. What is decided is made
// durable by one fenced commit; nothing leaves before. While a commit is under way events gather, and the next commit
// takes all of them, so that load makes batches larger and a lone event isn't delayed.
//
// The parts, from the inside out:
//
//   - door: the shard's sagas, queue and timers. Synchronous, not safe for concurrent use, without a clock or goroutine of its
//     own, so that a simulator can drive it.
//   - shard: the goroutine around a door, with its mailbox.
//   - committers take the batches of many shards into one commit; loaders look many sagas up at once.
//   - placement: the node's heartbeat, its leases, and which shards it takes and gives.
//   - Engine: what the API calls.
package engine
