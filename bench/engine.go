package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectinprocess"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sagad/sagad/internal/node"
	"github.com/sagad/sagad/internal/telemetry"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/proto/gen/sagad/v1/sagadv1connect"
	"github.com/sagad/sagad/sdk/client"
	"github.com/sagad/sagad/store"
)

// engineConfig is what the engine's process is told first.
type engineConfig struct {
	Store string // of internal/node
	Dir   string // of the NATS server
}

// engineReady is its answer.
type engineReady struct {
	NATS string
}

// How the load reaches the engine.
const (
	// viaCommit: starts through the API within the process, ends from the store, see [endings].
	viaCommit = "commit"
	// viaAPI: both through the API within the process.
	viaAPI = "api"
	// viaHTTP: the SDK's client, over HTTP on loopback, from the engine's process.
	viaHTTP = "http"
)

// loadCommand asks the engine's process for a load. The answers are two marks and a loadResult, in one type.
type loadCommand struct {
	load
	Mode    string
	Via     string
	Profile string // file, without its ending
}

type loadAnswer struct {
	// Mark is begin or end: the measured time begins or has ended. Commits and Transitions are the engine's counts at that moment.
	Mark                 string  `json:",omitempty"`
	Commits, Transitions float64 `json:",omitempty"`

	// Of the last answer. Total has the sagas of all loads of this process.
	Sagas, Total int64   `json:",omitempty"`
	P50ms, P99ms float64 `json:",omitempty"`
}

// endWait is how long a saga may take. Far longer than any should: a lost one must not hang the benchmark.
const endWait = time.Minute

// engineRole is the engine's process: a whole node, as sagad serve runs it, and the load beside it.
func engineRole(ctx context.Context, c *conversation, stderr io.Writer) (err error) {
	var cfg engineConfig
	if err := c.next(&cfg); err != nil {
		return err
	}
	tel, err := telemetry.New(ctx, telemetry.Config{Log: stderr, Level: "warn", Format: "text"})
	if err != nil {
		return err
	}
	slog.SetDefault(tel.Logger)
	ends := &endings{}
	n, err := node.Open(ctx, node.Config{
		Store: cfg.Store, NATSEmbedded: cfg.Dir, NATSListen: "127.0.0.1:0", Listen: "127.0.0.1:0", Version: "bench", Telemetry: tel,
		WrapStore: func(st store.Store) store.Store { ends.Store = st; return ends },
	})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- n.Run(running) }()
	defer func() {
		stop()
		err = errors.Join(err, <-served)
	}()

	rpc := connect.NewClient(connectinprocess.New(n.Server().RPC()))
	l := &loader{
		ends: ends, sagas: sagadv1connect.NewSagaServiceClient(rpc),
		counter: func(name string) (float64, error) { return counted(tel, name) },
	}
	if l.client, err = client.New(n.URL()); err != nil {
		return err
	}
	if err := register(ctx, l.client); err != nil {
		return err
	}
	if err := c.say(engineReady{NATS: n.NATSURL()}); err != nil {
		return err
	}
	for {
		var cmd loadCommand
		if err := c.next(&cmd); err != nil {
			return err
		}
		answer, err := l.run(ctx, cmd, c.say)
		if err != nil {
			return err
		}
		if err := c.say(answer); err != nil {
			return err
		}
	}
}

// counted is the sum of a counter over its labels, or how many a histogram has seen, as the node shows it.
func counted(tel *telemetry.Telemetry, name string) (sum float64, _ error) {
	families, err := tel.Registry.Gather()
	if err != nil {
		return 0, err
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
			return sum, nil
		}
	}
	return 0, fmt.Errorf("there is no metric %s", name)
}

// loader runs loads against the node of its process.
type loader struct {
	ends    *endings
	sagas   sagadv1connect.SagaServiceClient
	client  *client.Client
	counter func(name string) (float64, error)
	begun   atomic.Int64
	ended   atomic.Int64
}

func (l *loader) run(ctx context.Context, cmd loadCommand, say func(any) error) (loadAnswer, error) {
	saga, err := l.saga(cmd)
	if err != nil {
		return loadAnswer{}, err
	}
	stop := func() error { return nil }
	mark := func(begin bool) (err error) {
		a := loadAnswer{Mark: "end"}
		if begin {
			a.Mark = "begin"
			if stop, err = profile(cmd.Profile); err != nil {
				return err
			}
		} else if err := stop(); err != nil {
			return err
		}
		if a.Commits, err = l.counter("sagad_commit_seconds"); err != nil {
			return err
		}
		if a.Transitions, err = l.counter("sagad_transitions_total"); err != nil {
			return err
		}
		return say(a)
	}
	took, err := drive(ctx, cmd.load, mark, saga)
	if err != nil {
		return loadAnswer{}, err
	}
	if begun, ended := l.begun.Load(), l.ended.Load(); begun != ended {
		return loadAnswer{}, fmt.Errorf("the figures are void: %d sagas were begun, %d ended", begun, ended)
	}
	return loadAnswer{Sagas: int64(len(took)), Total: l.ended.Load(), P50ms: took.percentile(50), P99ms: took.percentile(99)}, nil
}

// saga makes the function that runs one saga to its end and checks that.
func (l *loader) saga(cmd loadCommand) (func(context.Context) error, error) {
	want := store.Completed
	if cmd.Mode == partUnwind {
		want = store.Compensated
	}
	next := func() (string, order) {
		o := newOrder(l.begun.Add(1))
		return o.ID, o
	}
	check := func(id string, got store.Status) error {
		if got != want {
			return fmt.Errorf("saga %s ended with status %d, should be %d", id, got, want)
		}
		l.ended.Add(1)
		return nil
	}
	switch cmd.Via {
	case viaCommit:
		return func(ctx context.Context) error {
			id, in := next()
			end := make(chan store.Status, 1)
			l.ends.expect(id, end)
			if err := l.start(ctx, id, in); err != nil {
				return err
			}
			select {
			case got := <-end:
				return check(id, got)
			case <-time.After(endWait):
				return fmt.Errorf("saga %s didn't end within %v", id, endWait)
			case <-ctx.Done():
				return ctx.Err()
			}
		}, nil
	case viaAPI:
		return func(ctx context.Context) error {
			id, in := next()
			if err := l.start(ctx, id, in); err != nil {
				return err
			}
			res, err := l.sagas.WaitSaga(ctx, &sagadv1.WaitSagaRequest{Namespace: namespace, Id: id, Timeout: durationpb.New(endWait)})
			if err != nil {
				return fmt.Errorf("saga %s: %w", id, err)
			}
			return check(id, store.Status(res.GetSaga().GetSummary().GetStatus()))
		}, nil
	case viaHTTP:
		return func(ctx context.Context) error {
			id, in := next()
			got := store.Completed
			run, err := client.Start(ctx, l.client, definition, id, in)
			if err == nil {
				_, err = run.Wait(ctx)
			}
			var undone *client.CompensatedError
			switch {
			case errors.As(err, &undone):
				got = store.Compensated
			case err != nil:
				return fmt.Errorf("saga %s: %w", id, err)
			}
			return check(id, got)
		}, nil
	}
	return nil, fmt.Errorf("there is no way %q to the engine", cmd.Via)
}

func (l *loader) start(ctx context.Context, id string, in order) error {
	input, err := json.Marshal(in)
	if err != nil {
		return err
	}
	if _, err := l.sagas.StartSaga(ctx, &sagadv1.StartSagaRequest{Namespace: namespace, Id: id, Definition: definition.Name(), Input: string(input)}); err != nil {
		return fmt.Errorf("saga %s did not start: %w", id, err)
	}
	return nil
}
