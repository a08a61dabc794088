// Package worker serves activities: it takes tasks from NATS, calls handlers, and reports what became of them.
//
//	w, err := worker.New(worker.Config{URL: "nats://127.0.0.1:4222", Namespace: "shop"})
//	...
//	worker.Compensatable(w, ReserveStock, inventory.Reserve, inventory.Release)
//	worker.Activity(w, ChargeCard, payments.Charge)
//	err = w.Run(ctx)
//
// Delivery is at least once: a handler may be called again for the same request, also at the same time in another process, after a
// lost answer. saga.IdempotencyKey says that it is the same one. Only the engine retries; it does so under the definition's policy.
//
// A handler's context ends at the attempt's deadline, and with the cause saga.ErrStopped when the saga doesn't want the attempt any more: at once
// where the worker may subscribe to stop messages, else with the next heartbeat. Heartbeats are sent by the worker while a handler runs, for
// steps that have one. A task that kills its workers is given up, see [Config].
//
// How the messages look is in docs/worker-protocol.md.
package worker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/internal/wire"
)

// Config says what a worker serves and how it reaches NATS.
type Config struct {
	// URL of the NATS servers, comma-separated. Not together with Conn.
	URL string
	// CredsFile, NKeyFile, User and Password, or Token authenticate a connection made to URL. At most one kind.
	CredsFile      string
	NKeyFile       string
	User, Password string
	Token          string
	// TLS is used if set, for a connection made to URL.
	TLS *tls.Config
	// InboxPrefix begins the reply subjects of a connection made to URL; it must itself begin with "_INBOX". Give each worker pool its own
	// where NATS users are limited to their own inbox. Default "_INBOX".
	InboxPrefix string

	// Conn is a connection of the caller's own, who closes it. Let it reconnect without limit (nats.MaxReconnects(-1)).
	Conn *nats.Conn

	// Namespace whose tasks are served. Default "default".
	Namespace string
	// Name says to people which worker did it. Default host name and process id.
	Name string
	// Concurrency is how many handlers run at the same time. Default 64.
	Concurrency int
	// Grace is for how long Stop, and Run when its context ends, lets running handlers finish. Default 30 s.
	Grace time.Duration
	// AckWait is the engine's setting of the same name: a third of it is how often a running task says that it is alive.
	// Default 30 s.
	AckWait time.Duration
	// MaxDeaths is how often an attempt's worker may die before it answers. If its task is delivered once more it isn't run, but fails for good
	// with the code POISON. Deliveries are counted: those that follow a worker's silence of more than the ack wait, the first handing back by a worker
	// that stops, and those after a lost acknowledgement. All that runs in a process shares its deaths; so the last run before a task would
	// be given up is a trial, beside which nothing new begins for half a minute. Default 3; negative for no limit.
	MaxDeaths int
	// Logger gets what goes wrong; never payloads, nor texts of handlers' errors. Default: [slog.Default].
	Logger *slog.Logger
}

const (
	concurrencyMax = 100_000
	// linger is for how long results of a pack wait for others of it.
	linger = 2 * time.Millisecond
	// requestTimeout is for how long a result's answer is awaited before it is sent again.
	requestTimeout = 5 * time.Second
	// strangeDelay, times the deliveries so far, is after what time another worker is offered a message that this one doesn't
	// understand; strangeDelayMax at most.
	strangeDelay    = 5 * time.Second
	strangeDelayMax = 5 * time.Minute
)

func (c Config) withDefaults() (Config, error) {
	if (c.URL == "") == (c.Conn == nil) {
		return c, errors.New("worker: give either the URL of a NATS server or a connection")
	}
	for _, server := range strings.Split(c.URL, ",") {
		// Not quoted as a whole: it may hold a password.
		switch scheme, _, ok := strings.Cut(strings.TrimSpace(server), "://"); {
		case !ok:
		case !slices.Contains([]string{"nats", "tls", "ws", "wss"}, strings.ToLower(scheme)):
			return c, fmt.Errorf("worker: URL begins with %s://, which is no NATS server's: write for example nats://127.0.0.1:4222 (sagad's own address is the client's)", scheme)
		}
	}
	if c.Namespace == "" {
		c.Namespace = "default"
	}
	if err := wire.ValidNamespace(c.Namespace); err != nil {
		return c, fmt.Errorf("worker: %w", err)
	}
	if c.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		c.Name = fmt.Sprintf("%s-%d", host, os.Getpid())
	}
	c.Name = wire.CleanText(c.Name, wire.ResultWorkerBytesMax)
	if c.Concurrency == 0 {
		c.Concurrency = 64
	}
	if c.Concurrency < 0 || c.Concurrency > concurrencyMax {
		return c, fmt.Errorf("worker: Concurrency is %d: write 1 to %d, or leave it out for 64", c.Concurrency, concurrencyMax)
	}
	if c.Grace == 0 {
		c.Grace = 30 * time.Second
	}
	if c.AckWait == 0 {
		c.AckWait = wire.DefaultAckWait
	}
	if c.Grace < 0 || c.AckWait < 0 {
		return c, errors.New("worker: Grace and AckWait can't be negative: leave them out for 30 s")
	}
	if c.MaxDeaths == 0 {
		c.MaxDeaths = 3
	}
	if c.InboxPrefix == "" {
		c.InboxPrefix = wire.InboxPrefix
	}
	if !wire.ReplyAllowed(c.InboxPrefix) {
		return c, fmt.Errorf("worker: InboxPrefix %q: begin it with %s, engines answer to nothing else", c.InboxPrefix, wire.InboxPrefix)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, nil
}

// Worker serves activities. Register handlers with [Compensatable], [ReadOnly] and [Activity], then run it, once.
type Worker struct {
	cfg      Config
	log      *slog.Logger
	tracer   trace.Tracer
	counters counters
	// clock is what is to be added to this machine's clock to have the engine's, in microseconds.
	clock atomic.Int64
	// unreachable: that NATS can't be reached was said.
	unreachable atomic.Bool

	mu       sync.Mutex // of registration, start and stop
	handlers map[wire.Queue]*handler
	problems []error
	started  bool
	stopped  chan struct{} // closed when Stop is done

	nc      *nats.Conn
	pullers []*puller
	// stopSubs are subscriptions to stops.
	stopSubs []*nats.Subscription
	// alive ends when the last goroutine should; handling ends earlier, when the grace is over.
	alive, handling         context.Context
	endAlive                context.CancelFunc
	endHandling             context.CancelCauseFunc
	background              sync.WaitGroup
	closed                  chan struct{} // the connection was closed by somebody else
	closedOnce, stoppedOnce sync.Once

	desk   desk
	teller teller
}

// New makes a worker. It fails on a configuration that can't work.
func New(cfg Config) (*Worker, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	w := &Worker{cfg: cfg, log: cfg.Logger, handlers: map[wire.Queue]*handler{}, stopped: make(chan struct{}), closed: make(chan struct{})}
	w.desk.init(w)
	w.teller.init(w)
	return w, nil
}

// Start connects and begins to serve. It doesn't wait for NATS: if no server can be reached now the worker goes on
// trying. It fails if a handler was registered wrongly, or none.
func (w *Worker) Start(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := errors.Join(w.problems...); err != nil {
		return err
	}
	if len(w.handlers) == 0 {
		return errors.New("worker: no handler is registered: call worker.Compensatable, worker.ReadOnly or worker.Activity before it is started")
	}
	if w.started {
		return errors.New("worker: it was started before: make a new one")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	w.tracer = otel.GetTracerProvider().Tracer("github.com/sagad/sagad/sdk/worker")
	w.nc = w.cfg.Conn
	if w.nc == nil {
		opts, err := w.options()
		if err != nil {
			return err
		}
		if w.nc, err = nats.Connect(w.cfg.URL, opts...); err != nil {
			return fmt.Errorf("worker: connect to NATS: %w", err)
		}
	}
	w.alive, w.endAlive = context.WithCancel(context.Background())
	w.handling, w.endHandling = context.WithCancelCause(w.alive)
	var err error
	w.stopSubs, err = w.listen()
	for _, h := range w.handlers {
		var p *puller
		if err == nil {
			p, err = newPuller(w, h)
		}
		if err != nil {
			w.endAlive()
			w.deafen()
			for _, p := range w.pullers {
				_ = p.sub.Unsubscribe()
			}
			if w.cfg.Conn == nil {
				w.nc.Close()
			}
			return fmt.Errorf("worker: subscribe: %w", err)
		}
		w.pullers = append(w.pullers, p)
	}
	w.started = true
	w.background.Go(w.teller.run)
	for _, p := range w.pullers {
		w.background.Go(p.run)
	}
	w.background.Go(w.watch)
	w.background.Go(w.keepAlive)
	w.log.Info("worker started", "worker", w.cfg.Name, "namespace", w.cfg.Namespace, "handlers", len(w.handlers), "concurrency", w.cfg.Concurrency)
	return nil
}

func (w *Worker) options() ([]nats.Option, error) {
	c := w.cfg
	opts := []nats.Option{
		nats.Name(c.Name), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true), nats.IgnoreAuthErrorAbort(),
		nats.ReconnectBufSize(-1), nats.CustomInboxPrefix(c.InboxPrefix), nats.Timeout(5 * time.Second),
		nats.PingInterval(10 * time.Second), nats.MaxPingsOutstanding(2),
		nats.CustomReconnectDelay(func(rounds int) time.Duration { return backOff(rounds, 100*time.Millisecond, 5*time.Second) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if w.alive == nil || w.alive.Err() == nil {
				w.log.Warn("NATS connection lost; trying to reconnect", "error", err)
			}
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) {
			// Once for each outage: the first connection is tried like this too.
			if !w.unreachable.Swap(true) {
				w.log.Warn("NATS can't be reached; trying again", "error", err)
			}
		}),
		nats.ConnectHandler(func(*nats.Conn) { w.unreachable.Store(false) }),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			w.unreachable.Store(false)
			w.log.Info("NATS connection is back", "server", nc.ConnectedServerName())
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			w.log.Warn("NATS reports an error", "error", err)
		}),
	}
	kinds := 0
	if c.CredsFile != "" {
		kinds++
		opts = append(opts, nats.UserCredentials(c.CredsFile))
	}
	if c.NKeyFile != "" {
		kinds++
		o, err := nats.NkeyOptionFromSeed(c.NKeyFile)
		if err != nil {
			return nil, fmt.Errorf("worker: NATS credentials: %w", err)
		}
		opts = append(opts, o)
	}
	if c.User != "" {
		kinds++
		opts = append(opts, nats.UserInfo(c.User, c.Password))
	}
	if c.Token != "" {
		kinds++
		opts = append(opts, nats.Token(c.Token))
	}
	if kinds > 1 {
		return nil, errors.New("worker: NATS credentials: give one of a credentials file, an nkey file, user and password, or a token")
	}
	if c.TLS != nil {
		opts = append(opts, nats.Secure(c.TLS))
	}
	return opts, nil
}

// backOff is a random time below a ceiling that doubles with each round from low to high, and above half of it.
func backOff(rounds int, low, high time.Duration) time.Duration {
	ceiling := min(low<<min(max(rounds, 0), 20), high)
	return ceiling/2 + rand.N(ceiling/2+1)
}

// watch follows the connection.
func (w *Worker) watch() {
	changes := w.nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer w.nc.RemoveStatusListener(changes)
	if w.nc.IsClosed() {
		w.lost()
	}
	for {
		select {
		case <-w.alive.Done():
			return
		case status := <-changes:
			switch status {
			case nats.CONNECTED:
				for _, p := range w.pullers {
					p.reconnected()
				}
			case nats.CLOSED:
				w.lost()
				return
			}
		}
	}
}

func (w *Worker) lost() {
	w.closedOnce.Do(func() {
		select {
		case <-w.alive.Done():
		default:
			w.log.Error("the NATS connection was closed; the worker can't serve any more")
			close(w.closed)
		}
	})
}

// Run starts the worker and serves until ctx ends; then it stops gracefully, see [Worker.Stop]. It returns nil after an orderly end,
// and an error if it can't be started, if handlers were still running when the grace was over, or if somebody closed
// the connection.
func (w *Worker) Run(ctx context.Context) error {
	if err := w.Start(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return w.Stop(context.WithoutCancel(ctx))
	case <-w.closed:
		_ = w.Stop(context.WithoutCancel(ctx))
		return errors.New("worker: the NATS connection was closed")
	}
}

// errStopping is the cause of handlers' contexts that end because the worker does.
var errStopping = errors.New("the worker is stopping")

// Stop takes no new tasks, hands back those that haven't begun, and waits until the others are finished and their results
// answered, for the grace or until ctx ends. Then it ends the handlers' contexts, and hands back what is still
// unfinished: another worker gets it. The error says how many handlers didn't end. Stop may be called twice.
func (w *Worker) Stop(ctx context.Context) error {
	w.mu.Lock()
	started := w.started
	w.mu.Unlock()
	if !started {
		return nil
	}
	var err error
	w.stoppedOnce.Do(func() {
		err = w.stop(ctx)
		close(w.stopped)
	})
	<-w.stopped
	return err
}

func (w *Worker) stop(ctx context.Context) error {
	w.desk.close()
	for _, p := range w.pullers {
		p.drain()
	}
	drained := time.NewTimer(time.Second) // more only if the connection breaks now
	defer drained.Stop()
	for _, p := range w.pullers {
		if !w.nc.IsConnected() {
			break
		}
		select {
		case <-p.drained:
		case <-drained.C:
			drained.Reset(0)
		}
	}
	w.desk.handBackWaiting()
	grace, cancel := context.WithTimeout(ctx, w.cfg.Grace)
	idle := w.desk.wait(grace)
	cancel()
	if !idle {
		w.endHandling(errStopping)
		// Handlers that heed their context end now.
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		w.desk.wait(last)
		cancel()
	}
	left := w.desk.abandon()
	w.endHandling(errStopping)
	w.deafen()
	w.endAlive()
	w.background.Wait()
	if w.nc.IsConnected() {
		_ = w.nc.FlushTimeout(time.Second)
	}
	if w.cfg.Conn == nil {
		w.nc.Close()
	}
	w.log.Info("worker stopped", "worker", w.cfg.Name, "unfinished", left)
	if left > 0 {
		return fmt.Errorf("worker: %d handlers didn't end within the grace of %v; their tasks were handed back", left, w.cfg.Grace)
	}
	return nil
}

// now is the engine's time, as well as it is known, in microseconds since 1970.
func (w *Worker) now() int64 { return time.Now().UnixMicro() + w.clock.Load() }

// deadline is when, by this process's own clock, a task that came at received is too late; ok is false if it is so now.
func (w *Worker) deadline(t *workerv1.Task, received time.Time) (at time.Time, ok bool) {
	left := time.Duration(t.DeadlineUs-w.now()) * time.Microsecond
	if t.DeadlineUs <= 0 {
		left = time.Duration(t.TimeoutUs) * time.Microsecond
	}
	if limit := time.Duration(t.TimeoutUs) * time.Microsecond; limit > 0 && left > limit { // the clock is behind
		left = limit
	}
	return received.Add(left), left > 0
}
