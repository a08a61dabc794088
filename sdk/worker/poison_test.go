package worker_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/internal/wire"
	"github.com/sagad/sagad/sdk/worker"
)

// victimEnv has the address of the NATS server in processes that die of their task.
const victimEnv = "SAGAD_TEST_VICTIM_NATS"

// TestVictim is the worker of TestPoison: it is killed as soon as it runs task 2.
func TestVictim(t *testing.T) {
	url := os.Getenv(victimEnv)
	if url == "" {
		t.Skip("it is a process of TestPoison")
	}
	w, err := worker.New(worker.Config{URL: url, Namespace: "shop", AckWait: poisonAckWait})
	if err != nil {
		t.Fatal(err)
	}
	worker.Activity(w, plain, func(_ context.Context, in numIn) (numOut, error) {
		if in.N == 2 {
			self, _ := os.FindProcess(os.Getpid())
			_ = self.Kill()
			select {}
		}
		return numOut{in.N}, nil
	})
	_ = w.Run(t.Context())
}

const poisonAckWait = 400 * time.Millisecond

// A task that kills its worker takes the others of its pack along once, then dies alone, and is given up after three deaths.
func TestPoison(t *testing.T) {
	r := newRig(t, poisonAckWait)
	tasks := map[string]*workerv1.Task{}
	var pack []*workerv1.Task
	for n := 1; n <= 3; n++ {
		task := r.task("plain", do, n)
		task.TimeoutUs, task.DeadlineUs = 30_000_000, time.Now().Add(30*time.Second).UnixMicro()
		tasks[string(task.Token)] = task
		pack = append(pack, task)
	}
	var mu sync.Mutex
	final := map[int]string{}
	r.answering(func(res *workerv1.Result) workerv1.Verdict {
		mu.Lock()
		defer mu.Unlock()
		task := tasks[string(res.Token)]
		var n int
		for i, p := range pack {
			if p == task {
				n = i + 1
			}
		}
		switch {
		case final[n] != "":
			return stale
		case res.Outcome == handedBack:
			task.Dispatch++
			go r.bus.Publish([]*workerv1.Task{task})
		default:
			final[n] = res.Outcome.String() + " " + res.Code
			if res.GiveUp {
				final[n] += ", given up"
			}
		}
		return accepted
	})
	over := make(chan struct{})
	var deaths atomic.Int64
	var spawner sync.WaitGroup
	spawner.Go(func() { // somebody starts the worker again each time
		for {
			cmd := exec.Command(os.Args[0], "-test.run=^TestVictim$")
			cmd.Env = append(os.Environ(), victimEnv+"="+r.server.ClientURL())
			cmd.Stdout, cmd.Stderr = io.Discard, io.Discard
			if err := cmd.Start(); err != nil {
				t.Error(err)
				return
			}
			died := make(chan struct{})
			go func() {
				_ = cmd.Wait()
				close(died)
			}()
			select {
			case <-died:
				deaths.Add(1)
			case <-over:
				_ = cmd.Process.Kill()
				<-died
				return
			}
		}
	})
	r.publish(pack...)
	r.until("the end of all three", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(final) == 3
	})
	r.until("acknowledgement of all", func() bool { return r.stored() == 0 })
	close(over)
	spawner.Wait()
	want := map[int]string{1: "OUTCOME_SUCCEEDED ", 2: "OUTCOME_FAILED POISON, given up", 3: "OUTCOME_SUCCEEDED "}
	if diff := cmp.Diff(want, final); diff != "" {
		t.Error(diff)
	}
	// Once with its pack, three times alone; three times more whenever another one was on trial in its place.
	if deaths.Load() < 4 {
		t.Errorf("%d deaths", deaths.Load())
	}
}

// deliver takes all messages of a queue n times, as a worker that falls silent, or that hands them back.
func (r *rig) deliver(consumer string, messages, n int) {
	r.t.Helper()
	c, err := r.js.Consumer(r.ctx(), wire.Stream, consumer)
	if err != nil {
		r.t.Fatal(err)
	}
	for range n {
		var got []jetstream.Msg
		for len(got) < messages {
			m, err := c.Next(jetstream.FetchMaxWait(5 * time.Second))
			if err != nil {
				r.t.Fatal(err)
			}
			got = append(got, m)
		}
		for _, m := range got {
			if err := m.Nak(); err != nil {
				r.t.Fatal(err)
			}
		}
	}
	if err := r.admin.FlushWithContext(r.ctx()); err != nil {
		r.t.Fatal(err)
	}
}

func TestDeathsHaveALimit(t *testing.T) {
	for name, c := range map[string]struct {
		max, deliveries int
		claimed         bool
		want            string
	}{
		"third delivery":         {deliveries: 2, want: "OUTCOME_SUCCEEDED "},
		"fourth delivery":        {deliveries: 3, want: "OUTCOME_FAILED POISON"},
		"another limit":          {max: 1, deliveries: 1, want: "OUTCOME_FAILED POISON"},
		"no limit":               {max: -1, deliveries: 9, want: "OUTCOME_SUCCEEDED "},
		"claimed: one runs ever": {deliveries: 5, claimed: true, want: "OUTCOME_SUCCEEDED "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0)
			task := r.task("plain", do, 1)
			task.Claimed = c.claimed
			r.publish(task)
			r.until("the consumer", func() bool { return r.unacked("shop=do=plain") >= 0 })
			r.deliver("shop=do=plain", 1, c.deliveries)
			cfg := r.config()
			cfg.MaxDeaths = c.max
			w := r.start(cfg, func(w *worker.Worker) {
				worker.Activity(w, plain, func(context.Context, numIn) (numOut, error) { return numOut{}, nil })
			})
			if res := r.final(); res.Outcome.String()+" "+res.Code != c.want || res.GiveUp != (res.Code == "POISON") {
				t.Errorf("%v, want %s", res, c.want)
			}
			r.until("acknowledgement", func() bool { return r.stored() == 0 && w.Stats().Held == 0 })
		})
	}
}

// Workers that stop aren't taken for workers that die: what comes for the second time goes back by the engine.
func TestHandingBackIsNoDeath(t *testing.T) {
	r := newRig(t, 0)
	begun := make(chan struct{}, 10)
	blocking := func(w *worker.Worker) {
		worker.Activity(w, plain, func(ctx context.Context, in numIn) (numOut, error) {
			begun <- struct{}{}
			<-ctx.Done()
			return numOut{}, ctx.Err()
		})
	}
	cfg := r.config()
	cfg.Grace = time.Millisecond
	task := r.task("plain", do, 1)
	r.answering(func(res *workerv1.Result) workerv1.Verdict {
		if res.Outcome == handedBack {
			task.Dispatch++
			r.bus.Publish([]*workerv1.Task{task})
		}
		return accepted
	})
	r.publish(task)
	for range 8 {
		w, err := worker.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		blocking(w)
		if err := w.Start(r.ctx()); err != nil {
			t.Fatal(err)
		}
		<-begun
		if err := w.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	r.start(r.config(), func(w *worker.Worker) {
		worker.Activity(w, plain, func(context.Context, numIn) (numOut, error) { return numOut{}, nil })
	})
	for {
		res := r.final()
		if res.Outcome == handedBack {
			continue
		}
		if res.Outcome != succeeded {
			t.Errorf("%v", res)
		}
		break
	}
	if task.Dispatch != 5 { // every other time
		t.Errorf("sent %d times", task.Dispatch)
	}
}

// What is on trial is alone: what comes meanwhile waits, and what would be on trial too goes back, as does the trial's own task if the worker stops
// before it has begun.
func TestTrials(t *testing.T) {
	r := newRig(t, 0)
	begun, finish := make(chan int64, 10), make(chan struct{})
	register := func(w *worker.Worker) {
		worker.Activity(w, plain, func(_ context.Context, in numIn) (numOut, error) {
			begun <- in.N
			<-finish
			return numOut{in.N}, nil
		})
	}
	first, second := r.task("plain", do, 1), r.task("plain", do, 2)
	tasks := map[string]*workerv1.Task{string(first.Token): first, string(second.Token): second}
	back := make(chan *workerv1.Task, 10)
	r.answering(func(res *workerv1.Result) workerv1.Verdict {
		if res.Outcome == handedBack {
			back <- tasks[string(res.Token)]
		}
		return accepted
	})
	r.publish(first)
	r.publish(second)
	r.until("the consumer", func() bool { return r.unacked("shop=do=plain") >= 0 })
	r.deliver("shop=do=plain", 2, 2)
	w := r.start(r.config(), register)
	returned := <-back
	one := <-begun
	if returned.Input == nil || string(returned.Input) == fmt.Sprintf(`{"n":%d}`, one) {
		t.Errorf("%d is on trial, and %s was handed back", one, returned.Input)
	}
	r.publish(r.task("plain", do, 3))
	select {
	case n := <-begun:
		t.Errorf("%d began beside a trial", n)
	case <-time.After(50 * time.Millisecond): // is what is tested
	}
	close(finish)
	if n := <-begun; n != 3 {
		t.Errorf("%d began after the trial", n)
	}
	r.until("acknowledgement of all", func() bool { return r.stored() == 0 && w.Stats().Held == 0 })
	if err := w.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}

	again := r.task("plain", do, 4)
	tasks[string(again.Token)] = again
	r.publish(again)
	r.deliver("shop=do=plain", 1, 2)
	stopped := r.start(r.config(), register)
	r.until("the task", func() bool { return stopped.Stats().Held == 1 })
	if err := stopped.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-back:
		if got != again {
			t.Errorf("handed back: %v", got)
		}
	case n := <-begun: // the machine was slow
		t.Logf("%d had begun before the worker was stopped", n)
	case <-r.ctx().Done():
		t.Error("the task on trial is lost")
	}
}
