package acceptance

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/sagad/sagad/proto/gen/sagad/v1/sagadv1connect"
)

const (
	// readyTimeout is how long a process may take to be of use, on a busy machine.
	readyTimeout = 60 * time.Second
	// ackWait is short, so that the tasks of killed workers are delivered again while the test runs.
	ackWait = 3 * time.Second
)

// Binaries are the programs under test.
type Binaries struct{ Sagad, Order string }

// Build builds the programs into dir.
func Build(ctx context.Context, dir string) (Binaries, error) {
	b := Binaries{Sagad: filepath.Join(dir, "sagad"), Order: filepath.Join(dir, "order")}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", dir+string(filepath.Separator),
		"github.com/sagad/sagad/cmd/sagad", "github.com/sagad/sagad/examples/order")
	if out, err := cmd.CombinedOutput(); err != nil {
		return b, fmt.Errorf("go build: %w\n%s", err, out)
	}
	return b, nil
}

// Rig is an engine and what hangs on it, as processes.
type Rig struct {
	bin Binaries
	dir string
	// store is postgres://... or sqlite:DIR.
	store     string
	api, nats string // host:port
	engine    *Process
	workers   []*Process
	ended     []*Process // for their last words

	Sagas      sagadv1connect.SagaServiceClient
	Operations sagadv1connect.OperationsServiceClient
}

// NewRig chooses addresses. dir is a fresh folder.
func NewRig(bin Binaries, dir, store string) (*Rig, error) {
	r := &Rig{bin: bin, dir: dir, store: store}
	var held []net.Listener
	for _, a := range []*string{&r.api, &r.nats} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		held = append(held, l) // both at once, so that they differ
		*a = l.Addr().String()
	}
	for _, l := range held {
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	c := connect.NewClient(connecthttp.NewTransport(&http.Client{Transport: &http.Transport{Protocols: protocols}}, "http://"+r.api))
	r.Sagas, r.Operations = sagadv1connect.NewSagaServiceClient(c), sagadv1connect.NewOperationsServiceClient(c)
	return r, nil
}

// StartEngine starts the engine and waits until it is ready. Its NATS server dies and comes back with it.
func (r *Rig) StartEngine() error {
	p, err := StartProcess("engine", r.bin.Sagad, "serve", "--log-format", "text", "--store", r.store,
		"--nats-embedded", filepath.Join(r.dir, "nats"), "--nats-listen", r.nats, "--listen", r.api,
		"--ack-wait", ackWait.String())
	if err != nil {
		return err
	}
	r.engine = p
	return p.Await("it is ready", readyTimeout, says("is ready"))
}

func says(text string) func([]string) bool {
	return func(lines []string) bool {
		return slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, text) })
	}
}

// KillEngine ends the engine as a crash does.
func (r *Rig) KillEngine() {
	r.engine.Kill()
	r.ended = append(r.ended, r.engine)
}

// order makes the command line of the example.
func (r *Rig) order(role string, args ...string) []string {
	return append([]string{
		"-role", role, "-address", "http://" + r.api, "-nats", "nats://" + r.nats, "-data", filepath.Join(r.dir, "services"),
	}, args...)
}

// StartWorker starts a worker and waits until it serves.
func (r *Rig) StartWorker(args ...string) error {
	p, err := StartProcess(fmt.Sprintf("worker %d", len(r.workers)+1), r.bin.Order, r.order("worker", append([]string{"-ack-wait", ackWait.String()}, args...)...)...)
	if err != nil {
		return err
	}
	r.workers = append(r.workers, p)
	return p.Await("it serves", readyTimeout, says("serving"))
}

// KillWorker ends worker i as a crash does.
func (r *Rig) KillWorker(i int) {
	r.workers[i].Kill()
	r.ended = append(r.ended, r.workers[i])
	r.workers = slices.Delete(r.workers, i, i+1)
}

// StopWorkers stops all workers cleanly.
func (r *Rig) StopWorkers() error {
	for len(r.workers) > 0 {
		w := r.workers[0]
		err := w.Stop()
		r.workers = r.workers[1:]
		r.ended = append(r.ended, w)
		if err != nil {
			return err
		}
	}
	return nil
}

// StartOrders starts the example's client.
func (r *Rig) StartOrders(args ...string) (*Process, error) {
	return StartProcess("client", r.bin.Order, r.order("client", args...)...)
}

// Run runs a role of the example, or fails with what it said.
func (r *Rig) Run(role string, args ...string) (string, error) {
	return run(r.bin.Order, r.order(role, args...)...)
}

// Sagad runs a command of sagad against the engine.
func (r *Rig) Sagad(args ...string) (string, error) {
	return run(r.bin.Sagad, append([]string{"--address", "http://" + r.api, "--actor", "acceptance"}, args...)...)
}

func run(program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w\n%s", filepath.Base(program), strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// Tails are the last words of all processes, for a test that failed.
func (r *Rig) Tails() string {
	var b strings.Builder
	for _, p := range r.ended[max(0, len(r.ended)-4):] {
		b.WriteString(p.Tail())
	}
	for _, p := range append([]*Process{r.engine}, r.workers...) {
		if p != nil {
			b.WriteString(p.Tail())
		}
	}
	return b.String()
}

// Close ends whatever still runs.
func (r *Rig) Close() error {
	var first error
	for _, p := range append(r.workers, r.engine) {
		if p == nil {
			continue
		}
		if err := p.Stop(); err != nil && first == nil {
			first = err
		}
	}
	return first
}
