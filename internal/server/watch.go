package server

import (
	"context"
	"slices"
	"time"

	"connectrpc.com/connect/v2"
	"google.golang.org/protobuf/proto"

	"github.com/sagad/sagad/engine"
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/proto/gen/sagad/v1/sagadv1connect"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// pollInterval is how often a watched saga is looked at when another node owns it. A saga that is owned here is looked at
// when it changes, and now and then all the same: it may have moved away.
const (
	pollInterval = 250 * time.Millisecond
	pollOwned    = 20
)

// open counts open watches and waits.
type open chan struct{}

func (o open) take() (give func(), err error) {
	select {
	case o <- struct{}{}:
		return func() { <-o }, nil
	default:
		return nil, fail(connect.CodeResourceExhausted, codeTooManyWatches,
			"this node has %d watches and waits open, which is its limit: end some, or ask again later", cap(o))
	}
}

// changes wakes whoever follows a saga: at once when this node commits a change, else from time to time.
type changes struct {
	of   <-chan engine.Change
	stop func()
	poll *time.Ticker
}

func (s *Server) follow(key store.Key) *changes {
	of, stop := s.engine.Changes(key.Namespace, key.ID)
	interval := s.pollInterval
	if slices.Contains(s.engine.Owned(), key.Shard) {
		interval *= pollOwned
	}
	return &changes{of: of, stop: stop, poll: time.NewTicker(interval)}
}

func (c *changes) end() {
	c.poll.Stop()
	c.stop()
}

// next waits until wanted holds for a change, or it is time to look; it says false when the time is up or the server
// stops.
func (s *Server) next(ctx context.Context, c *changes, wanted func(engine.Change) bool, timeUp <-chan time.Time) (bool, error) {
	for {
		select {
		case change := <-c.of:
			if wanted(change) {
				return true, nil
			}
		case <-c.poll.C:
			return true, nil
		case <-timeUp:
			return false, nil
		case <-s.stopping:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// WaitSaga implements the service.
func (s *sagaService) WaitSaga(ctx context.Context, req *sagadv1.WaitSagaRequest) (*sagadv1.WaitSagaResponse, error) {
	timeout := waitDefault
	if req.Timeout != nil {
		timeout = req.Timeout.AsDuration()
	}
	give, err := s.watches.take()
	if err != nil {
		return nil, err
	}
	defer give()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	key := s.key(req.Namespace, req.Id)
	c := s.follow(key)
	defer c.end()
	ended := func(c engine.Change) bool { return c.Status.Terminal() }
	for more := true; ; {
		saga, err := s.saga(ctx, key)
		if err != nil {
			return nil, err
		}
		terminal := store.Status(saga.Summary.Status).Terminal()
		if terminal || !more {
			return &sagadv1.WaitSagaResponse{Saga: saga, Terminal: terminal}, nil
		}
		if more, err = s.next(ctx, c, ended, timer.C); err != nil {
			return nil, err
		}
	}
}

// WatchSaga implements the service.
func (s *sagaService) WatchSaga(ctx context.Context, req *sagadv1.WatchSagaRequest, stream sagadv1connect.SagaServiceWatchSagaServerStream) error {
	give, err := s.watches.take()
	if err != nil {
		return err
	}
	defer give()
	key := s.key(req.Namespace, req.Id)
	c := s.follow(key)
	defer c.end()
	row, err := s.row(ctx, key)
	if err != nil {
		return err
	}
	if err := stream.SendHeaders(); err != nil {
		return err
	}
	// The status after each entry is a fold from the start, whatever the caller asks to be sent.
	f := s.fold(ctx, row)
	for {
		// Terminal is read before the history: what is stored after it was seen terminal only adds evidence.
		row, err := s.row(ctx, key)
		if err != nil {
			return err
		}
		for {
			rows, err := s.store.History(ctx, key.Shard, row.Run, f.n+1, watchPage)
			if err != nil {
				return err
			}
			for _, r := range rows {
				t, status := f.add(r, row)
				if r.N < req.From {
					continue
				}
				if err := stream.Send(&sagadv1.WatchSagaResponse{Entry: historyEntry(r, t), Status: sagadv1.SagaStatus(status)}); err != nil {
					return err
				}
			}
			if len(rows) < watchPage {
				break
			}
		}
		if row.Status.Terminal() {
			return nil
		}
		more, err := s.next(ctx, c, func(engine.Change) bool { return true }, nil)
		if err != nil {
			return err
		}
		if !more {
			return fail(connect.CodeUnavailable, codeStopping, "this node is stopping; watch again from %d", max(f.n+1, req.From))
		}
	}
}

const watchPage = 64

// folding follows a saga's state along its history.
type folding struct {
	machine *statemachine.Machine
	state   *statemachine.State
	n       int64
	broken  bool
}

// fold begins. Without a machine (its definition can't be read any more) the status is that of the saga's row.
func (s *Server) fold(ctx context.Context, row store.Saga) *folding {
	m, _, err := s.engine.Machine(ctx, row.Namespace, row.Definition, row.Version)
	if err != nil {
		s.log.Warn("a watched saga's definition can't be loaded", "namespace", row.Namespace, "saga", row.ID,
			"definition", row.Definition, "version", row.Version, "error", err)
	}
	return &folding{machine: m, broken: err != nil}
}

func (f *folding) add(r store.Row, row store.Saga) (*historyv1.Transition, store.Status) {
	f.n = r.N
	t := new(historyv1.Transition)
	if err := proto.Unmarshal(r.Facts, t); err != nil {
		// Quarantined: the entry is there, its facts can't be read.
		f.broken = true
		return nil, row.Status
	}
	if !f.broken {
		state, err := f.machine.Evolve(f.state, t)
		if err == nil {
			f.state = state
			return t, store.Status(state.Status)
		}
		f.broken = true
	}
	return t, row.Status
}
