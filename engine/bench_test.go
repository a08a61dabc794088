package engine

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sagad/sagad/engine/enginetest"
	"github.com/sagad/sagad/internal/wire"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/store/memory"
)

// benchBus answers tasks at once, those of one call in one pack per shard.
type benchBus struct {
	handles []func(*workerv1.ResultPack, func(*workerv1.ResultReply))
	packs   chan []*workerv1.Task
	bad     atomic.Int64
	// confirm has a channel for each saga under way, closed when its last result is accepted.
	confirm sync.Map
	ended   sync.WaitGroup
}

func (b *benchBus) Publish(tasks []*workerv1.Task)        { b.packs <- tasks }
func (b *benchBus) Stop(string, string, []*workerv1.Stop) {}
func (b *benchBus) Serve(shard int, handle func(*workerv1.ResultPack, func(*workerv1.ResultReply))) (func(), error) {
	b.handles[shard] = handle
	return func() {}, nil
}
func (b *benchBus) Listening(string, string, workerv1.Direction) bool { return true }
func (b *benchBus) Healthy() bool                                     { return true }

func (b *benchBus) work() {
	output := []byte(`{"ref":"r-1"}`)
	for tasks := range b.packs {
		// A call's tasks are of one shard.
		pack := &workerv1.ResultPack{}
		for _, t := range tasks {
			pack.Results = append(pack.Results, &workerv1.Result{Token: t.Token, Outcome: workerv1.Outcome_OUTCOME_SUCCEEDED, Output: output, Worker: "w"})
		}
		shard, _ := wire.TokenShard(tasks[0].Token)
		b.handles[shard](pack, func(r *workerv1.ResultReply) {
			for i, v := range r.Verdicts {
				if v != workerv1.Verdict_VERDICT_ACCEPTED {
					b.bad.Add(1)
				}
				if tasks[i].Step == "confirm" {
					if c, ok := b.confirm.LoadAndDelete(tasks[i].SagaId); ok {
						close(c.(chan struct{}))
					}
				}
			}
		})
	}
}

// cpuTime is what this process has used so far, all threads together.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkSaga is a saga of three steps, from its start to its end, with so many under way.
func BenchmarkSaga(b *testing.B) {
	for _, inFlight := range []int{1, 64, 2000} {
		b.Run(fmt.Sprintf("%d under way", inFlight), func(b *testing.B) {
			const shards = 64
			st := memory.New(shards)
			bus := &benchBus{handles: make([]func(*workerv1.ResultPack, func(*workerv1.ResultReply)), shards), packs: make(chan []*workerv1.Task, 1024)}
			e, err := New(Config{Name: "e1", Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}, st, bus)
			if err != nil {
				b.Fatal(err)
			}
			if err := e.Start(context.Background()); err != nil {
				b.Fatal(err)
			}
			if _, _, err := e.Register(context.Background(), "default", enginetest.Transfer()); err != nil {
				b.Fatal(err)
			}
			for range 2 {
				bus.ended.Go(bus.work)
			}
			b.ReportAllocs()
			b.ResetTimer()
			cpu := cpuTime()
			var next atomic.Int64
			var wg sync.WaitGroup
			for range inFlight {
				wg.Go(func() {
					for {
						i := next.Add(1)
						if i > int64(b.N) {
							return
						}
						id := fmt.Sprint("saga-", i)
						confirmed := make(chan struct{})
						bus.confirm.Store(id, confirmed)
						if _, err := e.StartSaga(context.Background(), StartRequest{Namespace: "default", ID: id, Definition: "transfer", Input: []byte(`{"amount":30}`)}); err != nil {
							b.Error(err)
							return
						}
						<-confirmed
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			// The machine may be busy with other things: CPU time is what can be compared.
			b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/float64(b.N), "cpu-µs/saga")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "sagas/s")
			if err := e.Stop(context.Background()); err != nil {
				b.Fatal(err)
			}
			close(bus.packs)
			bus.ended.Wait()
			if n := bus.bad.Load(); n > 0 {
				b.Errorf("%d results weren't accepted", n)
			}
		})
	}
}
