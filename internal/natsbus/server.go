package natsbus

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Server is a NATS server within this process, with JetStream.
type Server struct {
	ns     *server.Server
	dir    string
	memory bool
}

// Embedded starts a server. It keeps its streams in dir, or in memory if dir is empty. It listens on listen, a host and port of this
// machine's own ("127.0.0.1:0" takes a free port), or is reachable only from within the process if that is empty.
// It knows no users, so it refuses other addresses: for workers elsewhere run a NATS server with authentication. Logger gets
// its warnings; nil for none. Close it after use.
func Embedded(dir, listen string, logger *slog.Logger) (*Server, error) {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{dir: dir, memory: dir == ""}
	opts := &server.Options{
		ServerName: "sagad", NoSigs: true, JetStream: true, DontListen: listen == "",
		MaxPayload: payloadBytesMax, MaxConn: 4096, MaxControlLine: 4096, MaxPending: 64 << 20,
		JetStreamMaxMemory: 1 << 30, JetStreamMaxStore: 16 << 30, WriteDeadline: 10 * time.Second,
	}
	if listen != "" {
		host, port, err := loopback(listen)
		if err != nil {
			return nil, err
		}
		opts.Host, opts.Port = host, port
	}
	if s.memory {
		dir, err := os.MkdirTemp("", "sagad-nats-")
		if err != nil {
			return nil, fmt.Errorf("embedded NATS: %w", err)
		}
		s.dir = dir
	}
	opts.StoreDir = s.dir
	ns, err := server.NewServer(opts)
	if err != nil {
		s.clean()
		return nil, fmt.Errorf("embedded NATS: %w", err)
	}
	ns.SetLoggerV2(serverLog{logger}, false, false, false)
	s.ns = ns
	ns.Start()
	if !ns.ReadyForConnections(10 * time.Second) {
		s.Close()
		return nil, fmt.Errorf("embedded NATS didn't get ready: is %q in use, or the folder %q?", listen, dir)
	}
	if !ns.JetStreamEnabled() {
		s.Close()
		return nil, fmt.Errorf("embedded NATS: JetStream didn't start: can the folder %q be written, and does no other process use it?", dir)
	}
	return s, nil
}

func loopback(listen string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(listen)
	if err != nil {
		return "", 0, fmt.Errorf("embedded NATS: listen on %q: write host:port", listen)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return "", 0, fmt.Errorf("embedded NATS: listen on %q: it knows no users, so only loopback addresses are allowed; run a NATS server with authentication for others", listen)
	}
	port, err = strconv.Atoi(text)
	if err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("embedded NATS: listen on %q: the port must be 0 to 65535", listen)
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	return host, port, nil
}

// ClientURL is where clients connect; empty if the server doesn't listen.
func (s *Server) ClientURL() string {
	if s.ns.Addr() == nil {
		return ""
	}
	return "nats://" + s.ns.Addr().String()
}

// InProcess makes a connection to s that needs no listener.
func (s *Server) InProcess() nats.Option { return nats.InProcessServer(inProcess{s.ns}) }

// inProcess refuses connections after the server is closed, so that a client goes on trying instead of hanging.
type inProcess struct{ ns *server.Server }

func (p inProcess) InProcessConn() (net.Conn, error) {
	if !p.ns.Running() {
		return nil, errors.New("the embedded NATS server isn't running")
	}
	return p.ns.InProcessConn()
}

// Close stops the server. It may be called twice.
func (s *Server) Close() {
	if s.ns != nil {
		s.ns.Shutdown()
		s.ns.WaitForShutdown()
	}
	s.clean()
}

func (s *Server) clean() {
	if s.memory {
		_ = os.RemoveAll(s.dir)
	}
}

// serverLog passes a server's warnings and errors on.
type serverLog struct{ log *slog.Logger }

func (serverLog) Noticef(string, ...any)      {}
func (serverLog) Debugf(string, ...any)       {}
func (serverLog) Tracef(string, ...any)       {}
func (l serverLog) Warnf(f string, a ...any)  { l.log.Warn("NATS server: " + fmt.Sprintf(f, a...)) }
func (l serverLog) Errorf(f string, a ...any) { l.log.Error("NATS server: " + fmt.Sprintf(f, a...)) }
func (l serverLog) Fatalf(f string, a ...any) { l.log.Error("NATS server: " + fmt.Sprintf(f, a...)) }
