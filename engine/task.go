package engine

import (
	"crypto/sha256"

	"github.com/sagad/sagad/internal/wire"
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// task makes what is sent of an attempt. It is made of durable state alone, so it can be made again by anyone who owns
// the shard.
func (e *Engine) task(g *saga, c statemachine.Call, dispatch int32) (*workerv1.Task, error) {
	t, err := g.machine.Task(g.state, c)
	if err != nil {
		return nil, err
	}
	run := g.run.String()
	t.RunId = run
	t.Dispatch = dispatch
	t.Traceparent = g.state.Traceparent
	t.IdempotencyKey = wire.IdempotencyKey(run, c.Step, c.Item, t.Direction, t.Generation)
	if t.Direction == workerv1.Direction_DIRECTION_UNDO {
		generation := max(g.state.Call(statemachine.Call{Step: c.Step, Item: c.Item, Dir: historyv1.Direction_DIRECTION_DO}).Generation, 1)
		t.ActionKey = wire.IdempotencyKey(run, c.Step, c.Item, workerv1.Direction_DIRECTION_DO, generation)
	}
	digest := sha256.Sum256(t.Input)
	t.Token, err = e.keys.Sign(&workerv1.TaskToken{
		Namespace: t.Namespace, Shard: int32(store.ShardOf(t.Namespace, t.SagaId, len(e.shards))), Run: g.run[:], SagaId: t.SagaId,
		Step: c.Step, Item: c.Item, Direction: t.Direction, Generation: t.Generation, Attempt: t.Attempt, Activity: t.Activity,
		ExpiresUs: t.DeadlineUs + wire.TokenGrace.Microseconds(), InputDigest: digest[:8],
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

func (e *Engine) noWorker(g *saga, c statemachine.Call) bool {
	dir := workerv1.Direction_DIRECTION_DO
	if c.Dir == historyv1.Direction_DIRECTION_UNDO {
		dir = workerv1.Direction_DIRECTION_UNDO
	}
	return !e.bus.Listening(g.key.namespace, g.machine.Activity(c.Step), dir)
}
