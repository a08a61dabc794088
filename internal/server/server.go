package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	connectv1 "connectrpc.com/connect"
	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/connect/v2/connectproto"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect/v2"
	"connectrpc.com/validate"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/sagad/sagad/engine"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/proto/gen/sagad/v1/sagadv1connect"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// Engine is what the API needs of the engine.
type Engine interface {
	StartSaga(ctx context.Context, req engine.StartRequest) (engine.StartReply, error)
	Cancel(ctx context.Context, namespace, id string, c statemachine.Cancel) (sagadv1.CancelAnswer, statemachine.Status, error)
	Act(ctx context.Context, namespace, id string, a statemachine.Act) (*statemachine.State, error)
	Signal(ctx context.Context, namespace, id string, s statemachine.Signal) (fresh bool, _ error)
	Pause(ctx context.Context, namespace, id string, p statemachine.Pause) (statemachine.Status, error)
	Resume(ctx context.Context, namespace, id string, r statemachine.Resume) (statemachine.Status, error)
	Migrate(ctx context.Context, namespace, id string, r engine.MigrateRequest) (engine.MigrateReply, error)
	DeleteDefinition(ctx context.Context, namespace, name string, version int32) error
	Register(ctx context.Context, namespace string, def *sagadv1.Definition) (store.Definition, bool, error)
	Machine(ctx context.Context, namespace, name string, version int32) (*statemachine.Machine, store.Definition, error)
	Get(ctx context.Context, namespace, id string) (store.Saga, *statemachine.State, *statemachine.Machine, error)
	Changes(namespace, id string) (<-chan engine.Change, func())
	// Owned lists the shards that this node serves.
	Owned() []int
	// HasOwner says whether some node serves a saga's shard.
	HasOwner(namespace, id string) bool
	// Listening says whether some worker waits for tasks of an activity.
	Listening(namespace, activity string, dir workerv1.Direction) bool
	// Now is the database's clock.
	Now() time.Time
}

// Config says how to serve.
type Config struct {
	// AllowedHosts are names that this server goes by over loopback, besides localhost and loopback addresses.
	AllowedHosts []string
	// WatchesMax bounds open watches and waits together. 0 means 4096.
	WatchesMax int
	// Checks must hold before the node says that it is ready.
	Checks []Check
	// Metrics serves /metrics. nil: it isn't there.
	Metrics http.Handler
	// UI serves everything that isn't an API. nil: it isn't there.
	UI http.Handler

	Logger     *slog.Logger
	Tracer     trace.TracerProvider
	Meter      metric.MeterProvider
	Propagator propagation.TextMapPropagator
}

// Server answers the API.
type Server struct {
	cfg     Config
	log     *slog.Logger
	engine  Engine
	store   store.Store
	shards  int
	pages   pager
	watches open
	peers   *peers
	rpc     *connect.Server
	ready   *readiness
	handler http.Handler

	pollInterval time.Duration
	stopOnce     sync.Once
	stopping     chan struct{}
}

// New makes a server over an engine and the store that it works on. It doesn't listen yet.
func New(ctx context.Context, cfg Config, eng Engine, st store.Store) (*Server, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Tracer == nil {
		cfg.Tracer = tracenoop.NewTracerProvider()
	}
	if cfg.Meter == nil {
		cfg.Meter = metricnoop.NewMeterProvider()
	}
	if cfg.Propagator == nil {
		cfg.Propagator = propagation.TraceContext{}
	}
	if cfg.WatchesMax <= 0 {
		cfg.WatchesMax = watchesMax
	}
	meta, err := st.Meta(ctx)
	if err != nil {
		return nil, fmt.Errorf("read what the database was initialised with: %w", err)
	}
	s := &Server{
		cfg:          cfg,
		log:          cfg.Logger,
		engine:       eng,
		store:        st,
		shards:       meta.Shards,
		pages:        newPager(meta.TokenKey),
		watches:      make(open, cfg.WatchesMax),
		peers:        newPeers(cfg.Logger),
		pollInterval: pollInterval,
		stopping:     make(chan struct{}),
	}
	tracing, err := telemetry(&s.cfg)
	if err != nil {
		return nil, fmt.Errorf("set up RPC telemetry: %w", err)
	}
	s.rpc = connect.NewServer(tracing, guard(s.log, s.stopping), check, validate.NewServerInterceptor())
	sagadv1connect.RegisterDefinitionServiceHandler(s.rpc, &definitionService{Server: s})
	sagadv1connect.RegisterSagaServiceHandler(s.rpc, &sagaService{Server: s})
	sagadv1connect.RegisterOperationsServiceHandler(s.rpc, &operationsService{s})
	services := serviceNames(s.rpc)
	grpcreflect.Register(s.rpc, grpcreflect.WithNamer(grpcreflect.NamerFunc(func() []string {
		return append([]string{grpchealth.HealthV1ServiceName}, services...)
	})))
	s.ready = &readiness{checks: cfg.Checks, keep: time.Second}
	s.handler = s.routes(services)
	return s, nil
}

func serviceNames(rpc *connect.Server) []string {
	var names []string
	for spec := range rpc.Specs() {
		// "/package.Service/Method"
		name := spec.Procedure[1:]
		for i := range len(name) {
			if name[i] == '/' {
				name = name[:i]
				break
			}
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// documents are the calls that carry a definition or a payload. All others are small.
var documents = map[string]bool{
	sagadv1connect.DefinitionServiceRegisterDefinitionProcedure: true,
	sagadv1connect.DefinitionServiceVerifyDefinitionProcedure:   true,
	sagadv1connect.SagaServiceStartSagaProcedure:                true,
	sagadv1connect.SagaServiceSignalSagaProcedure:               true,
	sagadv1connect.SagaServiceMigrateSagaProcedure:              true, // names
	sagadv1connect.OperationsServiceActOnItemProcedure:          true,
}

// waits says that a unary call may take as long as its caller asked for.
func waits(procedure string) bool { return procedure == sagadv1connect.SagaServiceWaitSagaProcedure }

// strictJSON refuses fields that this release doesn't know: JSON is written by hand, and a filter that is misspelled would
// silently list everything. Binary messages, which come from generated clients, may have newer fields.
func strictJSON() *connectproto.JSONCodec {
	c := connectproto.NewJSONCodec()
	c.UnmarshalOptions.DiscardUnknown = false
	return c
}

func (s *Server) routes(services []string) http.Handler {
	mux := http.NewServeMux()
	connecthttp.Mount(mux, s.rpc,
		connecthttp.WithSendMaxBytes(sendBytesMax),
		connecthttp.WithCompressMinBytes(1<<10),
		connecthttp.WithCodecs(connectproto.NewBinaryCodec(), strictJSON()),
		connecthttp.WithConditionalOptions(func(spec connect.Spec) []connecthttp.Option {
			if documents[spec.Procedure] {
				return []connecthttp.Option{connecthttp.WithReadMaxBytes(readBytesMax)}
			}
			return []connecthttp.Option{connecthttp.WithReadMaxBytes(readSmallBytesMax)}
		}))
	known := map[string]bool{}
	for _, name := range services {
		known[name] = true
	}
	path, health := grpchealth.NewHandler(healthChecker{s.ready, known}, connectv1.WithReadMaxBytes(readSmallBytesMax))
	mux.Handle(path, health)
	mux.HandleFunc("GET /healthz", healthz)
	mux.Handle("GET /readyz", s.ready)
	if s.cfg.Metrics != nil {
		mux.Handle("GET /metrics", s.cfg.Metrics)
	}
	if s.cfg.UI != nil {
		mux.Handle("/", s.cfg.UI)
	}
	return secure(&s.cfg, mux)
}

// RPC is the API without a network, for calls within the process.
func (s *Server) RPC() *connect.Server { return s.rpc }

// Handler is all of the port.
func (s *Server) Handler() http.Handler { return s.handler }

// Listen opens the port. It refuses addresses that others than this machine reach, unless allowed: there is no
// authentication yet.
func Listen(ctx context.Context, address string, allowUnauthenticated bool) (net.Listener, error) {
	if err := checkListen(address, allowUnauthenticated); err != nil {
		return nil, err
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s is in use, perhaps by another sagad: stop that, or choose another address with --listen (port 0 takes a free one)", address)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return ln, nil
}

// Serve answers until ctx ends, then lets calls under way end, for some seconds, and returns nil. Watches and waits are
// told that the node stops.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{
		Handler:           s.handler,
		Protocols:         protocols,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    headerBytesMax,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: streamsMax,
			MaxReadFrameSize:     1 << 20,
			SendPingTimeout:      30 * time.Second,
			PingTimeout:          15 * time.Second,
			WriteByteTimeout:     writeTimeout,
		},
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		// No WriteTimeout: watches are open for hours. Each piece has one, see pacedWriter.
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(ln) }()
	select {
	case err := <-failed:
		s.Stop()
		return fmt.Errorf("serve %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	s.Stop()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	if err := srv.Shutdown(grace); err != nil {
		s.log.Warn("some calls didn't end in time and are cut", "error", err)
		_ = srv.Close()
	}
	if err := <-failed; err != nil && !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// shutdownGrace is how long calls under way may take to end. Connected HTTP/2 clients alone cost a second.
const shutdownGrace = 8 * time.Second

// Stop ends watches and waits. It may be called twice. [Server.Serve] calls it.
func (s *Server) Stop() {
	s.stopOnce.Do(func() {
		close(s.stopping)
		s.peers.close()
	})
}
