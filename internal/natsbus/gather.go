package natsbus

import (
	"context"
	"runtime"
	"sync"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
)

// gather collects the tasks that many shards publish at about the same time, so that they share messages. A commit makes
// several shards go on at once; each publishes a few tasks, and a message for each of them would cost several times as much.
// There is no timer: tasks wait only for who is ready to run at this moment.
type gather struct {
	mu    sync.Mutex
	tasks []*workerv1.Task
	wake  chan struct{}
}

func newGather() *gather { return &gather{wake: make(chan struct{}, 1)} }

func (g *gather) put(tasks []*workerv1.Task) {
	if len(tasks) == 0 {
		return
	}
	g.mu.Lock()
	g.tasks = append(g.tasks, tasks...)
	g.mu.Unlock()
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

func (g *gather) take() []*workerv1.Task {
	g.mu.Lock()
	defer g.mu.Unlock()
	tasks := g.tasks
	g.tasks = nil
	return tasks
}

// run publishes what was gathered until ctx ends.
func (g *gather) run(ctx context.Context, publish func([]*workerv1.Task)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.wake:
		}
		runtime.Gosched() // behind the shards that the same commit has woken
		if tasks := g.take(); len(tasks) > 0 {
			publish(tasks)
		}
	}
}
