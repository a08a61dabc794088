// Package natsbus carries tasks and results over NATS: tasks through a JetStream work-queue stream, results and
// announcements of workers as requests of core NATS. It has the methods of the engine's bus.
//
// JetStream is a hint that may lose, repeat, delay and reorder: every task can be made again from the database. So this
// package never fails to its caller, never waits for long, and keeps no more than a bounded backlog; what it has to drop it
// counts, and the engine's sweep sends it again. It creates the stream and its consumers, and again when somebody deletes them.
package natsbus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sagad/sagad/internal/wire"
)

// Config says how to reach NATS. The zero values of what is optional are good defaults.
type Config struct {
	// URL of the NATS servers, comma-separated. Not together with Server.
	URL string
	// Server is an embedded server, reached within the process.
	Server *Server

	// CredsFile, NKeyFile, User and Password, or Token authenticate. At most one kind.
	CredsFile      string
	NKeyFile       string
	User, Password string
	Token          string
	// TLS is used if set.
	TLS *tls.Config

	// Name is how the connection shows at the server. Default "sagad".
	Name string
	// AckWait is after what silence of a worker a task is delivered again. Default 30 s.
	AckWait time.Duration
	// MaxBytes bounds the stream; at the bound new tasks wait in the engine. Default 1 GiB, -1 for none.
	MaxBytes int64
	// MaxAge is how long a task may wait in the stream. Longer than the longest timeout of an attempt. Default 24 h.
	MaxAge time.Duration
	// Replicas of the stream. Default 1.
	Replicas int
	// BacklogBytesMax bounds what waits to be sent. Default 64 MiB.
	BacklogBytesMax int

	// Logger gets warnings. Default: none.
	Logger *slog.Logger
	// OnRecreated, if set, is called after the stream was created anew, by whatever node, in place of one that was lost, as soon as it
	// can be used: tasks that were in the old one are gone until they are sent again.
	OnRecreated func()

	tempo tempo
}

// tempo are the bus's periods; tests set them.
type tempo struct {
	ackSilence time.Duration // without a PubAck for so long a message is sent again
	sweep      time.Duration // how often that is looked at
	check      time.Duration // how often stream and consumers are looked at
	retryMin   time.Duration
	retryMax   time.Duration
	deaf       time.Duration // without an answer for so long the stream didn't take a placeholder
	ttlMargin  time.Duration // for so long after the last deadline of its tasks a message stays in the stream
	apart      bool          // calls don't share messages
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	if c.Name == "" {
		c.Name = "sagad"
	}
	def(&c.AckWait, wire.DefaultAckWait)
	def(&c.MaxAge, 24*time.Hour)
	if c.MaxBytes == 0 {
		c.MaxBytes = 1 << 30
	}
	if c.Replicas == 0 {
		c.Replicas = 1
	}
	if c.BacklogBytesMax == 0 {
		c.BacklogBytesMax = 64 << 20
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	def(&c.tempo.ackSilence, 5*time.Second)
	def(&c.tempo.sweep, 250*time.Millisecond)
	def(&c.tempo.check, 5*time.Second)
	def(&c.tempo.retryMin, 100*time.Millisecond)
	def(&c.tempo.retryMax, 5*time.Second)
	def(&c.tempo.deaf, 5*time.Second)
	def(&c.tempo.ttlMargin, time.Minute)
	return c
}

// serverVersionMin is the oldest server that is known to be without holes that matter here.
var serverVersionMin = [2]int{2, 14}

// Bus is a connection to NATS. Its methods may be used by many goroutines.
type Bus struct {
	cfg Config
	log *slog.Logger
	nc  *nats.Conn
	js  jetstream.JetStream

	gather   *gather
	outbox   *outbox
	kept     *kept
	topology *topology
	// answering counts result requests that are not answered yet.
	answering atomic.Int64

	counters counters
	stop     context.CancelFunc
	done     sync.WaitGroup
	closing  atomic.Bool
}

// Connect makes a bus. It doesn't wait for NATS: if no server can be reached now it goes on trying, without limit, and
// [Bus.Healthy] says so. It fails on a configuration that can't work. Close the bus after use.
func Connect(ctx context.Context, cfg Config) (*Bus, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if (cfg.URL == "") == (cfg.Server == nil) {
		return nil, errors.New("NATS: give either the URL of a server or an embedded server")
	}
	if cfg.AckWait < 0 || cfg.MaxAge < 0 || cfg.Replicas < 0 || cfg.BacklogBytesMax < 0 {
		return nil, errors.New("NATS: AckWait, MaxAge, Replicas and BacklogBytesMax can't be negative: leave them out for their defaults")
	}
	b := &Bus{cfg: cfg.withDefaults()}
	b.log = b.cfg.Logger
	runCtx, stop := context.WithCancel(context.Background())
	b.stop = stop
	b.gather = newGather()
	b.outbox = newOutbox(b)
	b.kept = newKept(b)
	b.topology = newTopology(b)

	opts, err := b.options()
	if err != nil {
		stop()
		return nil, err
	}
	url := b.cfg.URL
	if b.cfg.Server != nil {
		opts = append(opts, b.cfg.Server.InProcess())
	}
	if b.nc, err = nats.Connect(url, opts...); err != nil {
		stop()
		return nil, fmt.Errorf("NATS: connect: %w", err)
	}
	fail := func(err error) (*Bus, error) {
		b.closing.Store(true)
		stop()
		b.nc.Close()
		return nil, fmt.Errorf("NATS: %w", err)
	}
	if b.js, err = jetstream.New(b.nc); err != nil {
		return fail(err)
	}
	if err := b.outbox.listen(); err != nil {
		return fail(err)
	}
	if err := b.topology.listen(); err != nil {
		return fail(err)
	}
	b.done.Go(func() { b.gather.run(runCtx, b.publish) })
	b.done.Go(func() { b.outbox.run(runCtx) })
	b.done.Go(func() { b.kept.run(runCtx) })
	b.done.Go(func() { b.topology.run(runCtx) })
	for range 4 {
		b.done.Go(func() { b.topology.greet(runCtx) })
	}
	return b, nil
}

func (b *Bus) options() ([]nats.Option, error) {
	c := b.cfg
	opts := []nats.Option{
		nats.Name(c.Name),
		nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(true),
		nats.IgnoreAuthErrorAbort(), // credentials may be mended while we wait
		nats.ReconnectBufSize(-1),   // the outbox is the buffer
		nats.CustomReconnectDelay(reconnectDelay),
		nats.Timeout(5 * time.Second),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.ConnectHandler(func(nc *nats.Conn) { b.connected(nc, false) }),
		nats.ReconnectHandler(func(nc *nats.Conn) { b.connected(nc, true) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if !b.closing.Load() {
				b.counters.disconnects.Add(1)
				b.log.Warn("NATS connection lost; trying to reconnect", "error", err)
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			if b.closing.Load() {
				return
			}
			b.counters.asyncErrors.Add(1)
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			b.log.Warn("NATS reports an error", "error", err, "subject", subject)
		}),
	}
	kinds := 0
	add := func(on bool, opt func() (nats.Option, error)) error {
		if !on {
			return nil
		}
		kinds++
		o, err := opt()
		if err == nil {
			opts = append(opts, o)
		}
		return err
	}
	err := errors.Join(
		add(c.CredsFile != "", func() (nats.Option, error) { return nats.UserCredentials(c.CredsFile), nil }),
		add(c.NKeyFile != "", func() (nats.Option, error) { return nats.NkeyOptionFromSeed(c.NKeyFile) }),
		add(c.User != "", func() (nats.Option, error) { return nats.UserInfo(c.User, c.Password), nil }),
		add(c.Token != "", func() (nats.Option, error) { return nats.Token(c.Token), nil }),
	)
	if err != nil {
		return nil, fmt.Errorf("NATS credentials: %w", err)
	}
	if kinds > 1 {
		return nil, errors.New("NATS credentials: give one of a credentials file, an nkey file, user and password, or a token")
	}
	if c.TLS != nil {
		opts = append(opts, nats.Secure(c.TLS))
	}
	return opts, nil
}

// reconnectDelay backs off from 100 ms to 5 s, with jitter so that nodes don't come back together. It counts rounds over
// all servers.
func reconnectDelay(rounds int) time.Duration {
	ceiling := 100 * time.Millisecond << min(max(rounds, 0), 6)
	ceiling = min(ceiling, 5*time.Second)
	return ceiling/2 + rand.N(ceiling/2)
}

func (b *Bus) connected(nc *nats.Conn, again bool) {
	if v := nc.ConnectedServerVersion(); olderThan(v, serverVersionMin) {
		b.log.Warn("the NATS server is older than what sagad is made for; upgrade it", "version", v,
			"oldest", fmt.Sprintf("%d.%d", serverVersionMin[0], serverVersionMin[1]))
	}
	if again {
		b.log.Info("NATS connection is back", "server", nc.ConnectedServerName())
	}
	b.outbox.reconnected()
	b.topology.reconnected()
}

func olderThan(version string, oldest [2]int) bool {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 2 {
		return false
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	if err1 != nil || err2 != nil {
		return false
	}
	return major < oldest[0] || major == oldest[0] && minor < oldest[1]
}

// Healthy says whether NATS is connected and has the stream.
func (b *Bus) Healthy() bool { return b.nc.IsConnected() && b.topology.ready.Load() }

// Problem says why the bus isn't healthy, in words for an administrator. It is nil if it is.
func (b *Bus) Problem() error {
	switch {
	case b.Healthy():
		return nil
	case !b.nc.IsConnected():
		return errors.New("NATS isn't connected; steps wait until it is")
	case b.topology.mute.Load():
		return fmt.Errorf("NATS is connected, but its stream %s takes no messages; steps wait until it does: is the NATS server's disk full?", wire.Stream)
	}
	return fmt.Errorf("NATS is connected, but its stream %s can't be used yet; steps wait until it can: this node's log says more", wire.Stream)
}

// Ready waits until the bus is healthy or ctx ends.
func (b *Bus) Ready(ctx context.Context) error {
	for {
		changed := b.topology.changes()
		if b.Healthy() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("NATS isn't ready: %w", context.Cause(ctx))
		}
	}
}

// Close ends the bus. What is in the backlog is dropped: it is sent again from the database. It may be called twice.
func (b *Bus) Close() {
	if b.closing.Swap(true) {
		return
	}
	b.stop()
	b.done.Wait()
	// Answers that were given are sent; nothing new is taken.
	if b.nc.IsConnected() {
		_ = b.nc.FlushTimeout(time.Second)
	}
	b.nc.Close()
}
