package engine

import (
	"crypto/sha256"
	"sync"

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
	name := g.state.KeyName(c)
	t.IdempotencyKey = wire.IdempotencyKey(run, name, c.Item, t.Direction, t.Generation)
	if t.Direction != workerv1.Direction_DIRECTION_DO {
		generation := max(g.state.Call(statemachine.Call{Step: c.Step, Item: c.Item, Dir: historyv1.Direction_DIRECTION_DO}).Generation, 1)
		t.ActionKey = wire.IdempotencyKey(run, name, c.Item, workerv1.Direction_DIRECTION_DO, generation)
	}
	x := tokens.Get().(*token)
	digest := sha256.Sum256(t.Input)
	copy(x.digest[:], digest[:])
	x.Namespace, x.Shard, x.Run, x.SagaId = t.Namespace, int32(store.ShardOf(t.Namespace, t.SagaId, len(e.shards))), g.run[:], t.SagaId
	x.Step, x.Item, x.Direction, x.Generation, x.Attempt, x.Activity = c.Step, c.Item, t.Direction, t.Generation, t.Attempt, t.Activity
	x.ExpiresUs, x.InputDigest = t.DeadlineUs+wire.TokenGrace.Microseconds(), x.digest[:]
	t.Token, err = e.keys.Sign(&x.TaskToken)
	x.Reset()
	tokens.Put(x)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// tokens are needed only until they are signed.
var tokens = sync.Pool{New: func() any { return new(token) }}

type token struct {
	workerv1.TaskToken
	digest [8]byte
}

func (e *Engine) noWorker(g *saga, c statemachine.Call) bool {
	return !e.bus.Listening(g.key.namespace, g.machine.Activity(c.Step), workerv1.Direction(c.Dir)) // the numbers are the same
}
