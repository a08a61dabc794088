package server

import (
	"context"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectinprocess"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/sagad/sagad/engine"
	"github.com/sagad/sagad/internal/server/servertest"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/proto/gen/sagad/v1/sagadv1connect"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/memory"
)

// procedure is an RPC of sagad's.
type procedure struct {
	path   string
	method protoreflect.MethodDescriptor
}

// procedures are all of them, sorted: a new one can't be forgotten.
func procedures(s *Server) []procedure {
	var all []procedure
	for spec := range s.RPC().Specs() {
		service, method, _ := strings.Cut(strings.TrimPrefix(spec.Procedure, "/"), "/")
		if !strings.HasPrefix(service, "sagad.") {
			continue
		}
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
		if err != nil {
			panic(err)
		}
		all = append(all, procedure{spec.Procedure, d.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(method))})
	}
	slices.SortFunc(all, func(x, y procedure) int { return strings.Compare(x.path, y.path) })
	return all
}

func (p procedure) name() string    { return string(p.method.Name()) }
func (p procedure) streaming() bool { return p.method.IsStreamingServer() }

func (p procedure) newRequest() proto.Message {
	t, err := protoregistry.GlobalTypes.FindMessageByName(p.method.Input().FullName())
	if err != nil {
		panic(err)
	}
	return t.New().Interface()
}

// sample is a request that is well formed.
func (p procedure) sample() proto.Message {
	req := p.newRequest()
	m := req.ProtoReflect()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		text := ""
		switch f.Name() {
		case "id", "saga_id":
			text = "order-1"
			switch p.name() {
			case "StartSaga":
				text = "order-9"
			case "GetItem", "ActOnItem":
				text = "stuck"
			}
		case "name":
			text = "order"
		case "reason", "evidence", "key", "signal":
			text = "because"
		case "input", "payload", "output":
			text = `{"Note":"n"}`
		case "definition":
			if f.Message() != nil {
				m.Set(f, protoreflect.ValueOfMessage(orderDefinition().ProtoReflect()))
			} else if p.name() == "StartSaga" {
				text = "order"
			}
		case "number", "version":
			if f.Kind() == protoreflect.Int32Kind {
				m.Set(f, protoreflect.ValueOfInt32(1))
			}
		case "action":
			if f.Enum() != nil {
				m.Set(f, protoreflect.ValueOfEnum(1))
			}
		}
		if text != "" && f.Kind() == protoreflect.StringKind && !f.IsList() {
			m.Set(f, protoreflect.ValueOfString(text))
		}
	}
	return req
}

// counted counts what is changed in a store.
type counted struct {
	store.Store
	changes atomic.Int64
}

func (c *counted) Commit(ctx context.Context, batches []store.Batch) ([]store.Result, error) {
	c.changes.Add(1)
	return c.Store.Commit(ctx, batches)
}

func (c *counted) PutDefinition(ctx context.Context, d store.Definition) (store.Definition, bool, error) {
	d, created, err := c.Store.PutDefinition(ctx, d)
	if created {
		c.changes.Add(1)
	}
	return d, created, err
}

// still is a node in which nothing happens but by requests: the saga order-1 has ended, stuck waits for a person, open for a worker
// that never answers.
type still struct {
	server *Server
	store  *counted
	log    *lockedBuffer
	url    string
	stop   func() error
}

func newStill(serve bool) (*still, error) {
	ctx, cancel := context.WithCancel(context.Background())
	n := &still{store: &counted{Store: memory.New(4)}, log: &lockedBuffer{}}
	log := slog.New(slog.NewJSONHandler(n.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if !serve {
		log = slog.New(slog.NewJSONHandler(io.Discard, nil))
	}
	var silent atomic.Bool
	eng, err := engine.New(engine.Config{Name: "still", Logger: slog.New(slog.DiscardHandler)}, n.store, servertest.NewBus(func(t *workerv1.Task) *workerv1.Result {
		if silent.Load() {
			return nil
		}
		return worker(t)
	}))
	if err != nil {
		cancel()
		return nil, err
	}
	if n.server, err = New(ctx, Config{Logger: log}, eng, n.store); err != nil {
		cancel()
		return nil, err
	}
	if err := eng.Start(ctx); err != nil {
		cancel()
		return nil, err
	}
	served := make(chan error, 1)
	if serve {
		ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			cancel()
			return nil, err
		}
		n.url = "http://" + ln.Addr().String()
		go func() { served <- n.server.Serve(ctx, ln) }()
	} else {
		served <- nil
	}
	n.stop = func() error {
		cancel()
		n.server.Stop()
		err := <-served
		bounded, end := context.WithTimeout(context.Background(), 10*time.Second)
		defer end()
		if stopped := eng.Stop(bounded); err == nil {
			err = stopped
		}
		return err
	}
	client := connect.NewClient(connectinprocess.New(n.server.RPC()))
	if _, err := sagadv1connect.NewDefinitionServiceClient(client).RegisterDefinition(ctx, &sagadv1.RegisterDefinitionRequest{Definition: orderDefinition()}); err != nil {
		return n, err
	}
	sagas := sagadv1connect.NewSagaServiceClient(client)
	for id, c := range map[string]struct {
		input string
		until sagadv1.SagaStatus
	}{
		"order-1": {"{}", sagadv1.SagaStatus_SAGA_STATUS_COMPLETED},
		"stuck":   {`{"Reject":"charge","CantUndo":"reserve"}`, sagadv1.SagaStatus_SAGA_STATUS_STUCK},
		"open":    {`{"Hang":"reserve"}`, sagadv1.SagaStatus_SAGA_STATUS_RUNNING},
	} {
		if _, err := sagas.StartSaga(ctx, &sagadv1.StartSagaRequest{Id: id, Definition: "order", Input: c.input}); err != nil {
			return n, err
		}
		watch, err := sagas.WatchSaga(ctx, &sagadv1.WatchSagaRequest{Id: id})
		if err != nil {
			return n, err
		}
		for {
			res, err := watch.Receive()
			if err != nil {
				return n, err
			}
			if res.Status == c.until {
				break
			}
		}
		_ = watch.Close()
	}
	silent.Store(true)
	return n, nil
}

// newStillFor is for a test.
func newStillFor(t *testing.T) *still {
	t.Helper()
	n, err := newStill(true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.stop(); err != nil {
			t.Error(err)
		}
	})
	return n
}
