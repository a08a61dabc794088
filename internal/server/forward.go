package server

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/sagad/sagad/engine"
	"github.com/sagad/sagad/proto/gen/sagad/v1/sagadv1connect"
)

// peers are the other nodes that calls are forwarded to.
type peers struct {
	client *http.Client
	log    *slog.Logger

	mu    sync.Mutex
	nodes map[string]*peer
	// warned is when it was last logged that a shard's owner can't be reached. There are as many shards as there are.
	warned map[int]time.Time
}

// warnEvery is how often that is logged: in an outage each request meets it.
const warnEvery = time.Minute

// warns says whether a shard's owner that can't be reached is to be logged now.
func (p *peers) warns(shard int, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last, ok := p.warned[shard]; ok && now.Sub(last) < warnEvery {
		return false
	}
	p.warned[shard] = now
	return true
}

// peer is a node's API.
type peer struct {
	sagas      sagadv1connect.SagaServiceClient
	operations sagadv1connect.OperationsServiceClient
}

// peersMax bounds the remembered addresses; nodes come and go under new ones.
const peersMax = 256

func newPeers(log *slog.Logger) *peers {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &peers{
		log:    log,
		nodes:  map[string]*peer{},
		warned: map[int]time.Time{},
		client: &http.Client{
			Transport: &http.Transport{
				Protocols:           protocols,
				TLSHandshakeTimeout: 5 * time.Second,
				IdleConnTimeout:     idleTimeout,
				// A node that vanished without a word is noticed by pings, not by the next call's timeout.
				HTTP2: &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 5 * time.Second},
			},
			// A lease's address is where the owner answers; nothing else is followed.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

func (p *peers) at(address string) *peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n, ok := p.nodes[address]; ok {
		return n
	}
	if len(p.nodes) >= peersMax {
		clear(p.nodes)
	}
	client := connect.NewClient(connecthttp.NewTransport(p.client, address,
		connecthttp.WithReadMaxBytes(sendBytesMax)))
	n := &peer{
		sagas:      sagadv1connect.NewSagaServiceClient(client),
		operations: sagadv1connect.NewOperationsServiceClient(client),
	}
	p.nodes[address] = n
	return n
}

func (p *peers) close() { p.client.CloseIdleConnections() }

// owner answers a call that changes a saga: here, or at the saga's owner if here says that it isn't. It hops once.
func owner[Req, Res any](ctx context.Context, p *peers, req Req,
	here func(context.Context, Req) (Res, error),
	there func(*peer, context.Context, Req) (Res, error),
) (Res, error) {
	var none Res
	res, err := here(ctx, req)
	var elsewhere *engine.NotOwnerError
	if err == nil || !errors.As(err, &elsewhere) {
		return res, err
	}
	if elsewhere.Address == "" || forwarded(ctx) {
		// Ownership is moving. The two nodes may not agree for a moment.
		return none, fail(connect.CodeUnavailable, codeNoOwner,
			"the saga's shard %d has no owner that answers just now; nothing is lost, ask again in a second", elsewhere.Shard)
	}
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	out, info := connect.NewClientContext(ctx)
	info.RequestHeader().Set(HeaderForwarded, "1")
	info.RequestHeader().Set(HeaderActor, actor(ctx))
	res, err = there(p.at(elsewhere.Address), out, req)
	if err == nil {
		return res, nil
	}
	var cerr *connect.Error
	if errors.As(err, &cerr) && cerr.IsRemote() {
		// The owner's verdict is ours.
		verdict := connect.NewError(cerr.Code(), cerr.Message())
		for _, d := range cerr.Details() {
			verdict = verdict.WithDetail(d)
		}
		return none, verdict
	}
	if p.warns(elsewhere.Shard, time.Now()) {
		p.log.Warn("the owner of a shard can't be reached; said once a minute", "shard", elsewhere.Shard, "address", elsewhere.Address,
			"request_id", requestID(ctx), "error", err)
	}
	return none, fail(connect.CodeUnavailable, codeOwnerUnreachable,
		"the node that owns the saga doesn't answer; another one takes over when its lease ends. Nothing is lost, ask again")
}
