package worker_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/internal/natsbus"
	"github.com/sagad/sagad/internal/wire"
	"github.com/sagad/sagad/sdk/worker"
)

// BenchmarkTask is a task's whole way without an engine: published in packs of 16, stored by the embedded server, run by a
// worker, its result answered. All of it is one process; cpu-us/task is its CPU time.
func BenchmarkTask(b *testing.B) {
	server, err := natsbus.Embedded("", "127.0.0.1:0", nil)
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	bus, err := natsbus.Connect(b.Context(), natsbus.Config{Server: server})
	if err != nil {
		b.Fatal(err)
	}
	defer bus.Close()
	if err := bus.Ready(b.Context()); err != nil {
		b.Fatal(err)
	}
	done := make(chan int, 100_000)
	if _, err := bus.Serve(ownShard, func(p *workerv1.ResultPack, reply func(*workerv1.ResultReply)) {
		reply(verdicts(accepted, len(p.Results)))
		done <- len(p.Results)
	}); err != nil {
		b.Fatal(err)
	}
	w, err := worker.New(worker.Config{URL: server.ClientURL(), Namespace: "shop", Concurrency: 256})
	if err != nil {
		b.Fatal(err)
	}
	worker.Activity(w, plain, func(_ context.Context, in numIn) (numOut, error) { return in2out(in), nil })
	if err := w.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	defer w.Stop(context.Background())
	ring, _ := wire.NewKeyring(1, map[int32][]byte{1: make([]byte, 32)})
	token, _ := ring.Sign(&workerv1.TaskToken{Namespace: "shop", Shard: ownShard, SagaId: "saga", Step: "step", Activity: "plain", Run: make([]byte, 16), ExpiresUs: 1 << 60})
	cpu := func() time.Duration {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	const inFlight = 2000
	sent, finished := 0, 0
	b.ReportAllocs()
	b.ResetTimer()
	before := cpu()
	for finished < b.N {
		for sent < b.N && sent-finished < inFlight {
			tasks := make([]*workerv1.Task, min(16, b.N-sent))
			for i := range tasks {
				sent++
				tasks[i] = &workerv1.Task{Protocol: 1, Namespace: "shop", SagaId: "saga", RunId: "01890a5d-ac96-774b-bcce-b302099a8057", Step: "step", Direction: do, Generation: 1,
					Attempt: 1, Dispatch: 1, IdempotencyKey: fmt.Sprint("01890a5d-ac96-774b-bcce-b302099a8057/step/-/do/", sent), Activity: "plain", Input: []byte(`{"n":1}`),
					TimeoutUs: 30_000_000, DeadlineUs: time.Now().Add(30 * time.Second).UnixMicro(), Token: token}
			}
			bus.Publish(tasks)
		}
		finished += <-done
	}
	b.ReportMetric(float64((cpu()-before).Microseconds())/float64(b.N), "cpu-us/task")
}
