package natsbus

import (
	"context"
	"sync"
	"testing"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
)

// TestCallsShareMessages: what many shards publish at the same moment goes out together, each task once, and a lone task isn't
// held back.
func TestCallsShareMessages(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	g := newGather()
	entered, leave := make(chan int), make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		g.run(ctx, func(tasks []*workerv1.Task) {
			entered <- len(tasks)
			<-leave
		})
	})
	g.put([]*workerv1.Task{{SagaId: "lone"}})
	if n := <-entered; n != 1 {
		t.Errorf("%d tasks, want the lone one", n)
	}
	// While that is on its way, others arrive.
	for range 64 {
		g.put([]*workerv1.Task{{}, {}})
	}
	g.put(nil)
	leave <- struct{}{}
	if n := <-entered; n != 128 {
		t.Errorf("%d tasks went out together, want 128", n)
	}
	leave <- struct{}{}
	if rest := g.take(); len(rest) != 0 {
		t.Errorf("%d tasks are left", len(rest))
	}
	cancel()
	done.Wait()
}
