// Package client starts sagas and waits for what becomes of them.
//
//	c, err := client.New("http://127.0.0.1:7230")
//	_, err = client.Register(ctx, c, PlaceOrder)
//	run, err := client.Start(ctx, c, PlaceOrder, "order-42", Order{...})
//	receipt, err := run.Wait(ctx, client.StopWhenStuck())
//	var undone *client.CompensatedError
//	var stuck *client.StuckError
//	switch {
//	case err == nil:
//		// receipt is the saga's output.
//	case errors.As(err, &undone):
//		// Nothing of it stands; undone.Cause says why, with the code of the handler's Reject.
//	case errors.As(err, &stuck):
//		// It waits for a person, and isn't over. Without StopWhenStuck, Wait would go on.
//	}
//
// A saga's id is yours: starting twice under one id with the same content is one saga, so a start whose answer was lost
// is simply made again. The client does so by itself while the server can't be reached.
package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/sagad/sagad/proto/gen/sagad/v1/sagadv1connect"
)

const (
	// answerBytesMax bounds one answer.
	answerBytesMax = 32 << 20
	// retryForDefault is how long a call is tried again while the server can't be reached.
	retryForDefault = 30 * time.Second
	// callTimeout bounds one try.
	callTimeout = 30 * time.Second
	retryMin    = 50 * time.Millisecond
	retryMax    = 2 * time.Second
)

// Client talks to sagad. It may be used by many goroutines.
type Client struct {
	namespace   string
	address     string
	retryFor    time.Duration
	sagas       sagadv1connect.SagaServiceClient
	definitions sagadv1connect.DefinitionServiceClient
}

type options struct {
	namespace  string
	actor      string
	retryFor   time.Duration
	httpClient *http.Client
	transport  connect.Transport
}

// Option configures a client.
type Option func(*options)

// WithNamespace chooses the namespace of all that the client does. Default: default.
func WithNamespace(namespace string) Option { return func(o *options) { o.namespace = namespace } }

// WithActor says who acts, for the sagas' histories: 128 bytes at most.
func WithActor(actor string) Option { return func(o *options) { o.actor = actor } }

// WithRetryFor says how long a call is tried again while the server can't be reached; 30 s by default, and never beyond
// the call's context. 0 means one try. Waiting for a saga is tried again until its context ends.
func WithRetryFor(d time.Duration) Option { return func(o *options) { o.retryFor = d } }

// WithHTTPClient sets the HTTP client. Without it one is made that speaks HTTP/2.
func WithHTTPClient(c *http.Client) Option { return func(o *options) { o.httpClient = c } }

// WithTransport reaches the server by other means than its address, for example within the process.
func WithTransport(t connect.Transport) Option { return func(o *options) { o.transport = t } }

// New makes a client of the sagad at address, for example http://127.0.0.1:7230. It doesn't connect yet.
func New(address string, opts ...Option) (*Client, error) {
	o := options{retryFor: retryForDefault}
	for _, opt := range opts {
		opt(&o)
	}
	if o.transport == nil {
		if !strings.Contains(address, "://") {
			address = "http://" + address
		}
		u, err := url.Parse(address)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, fmt.Errorf("client: %q is no address of a sagad: use for example http://127.0.0.1:7230", address)
		}
		if o.httpClient == nil {
			o.httpClient = newHTTPClient(u.Scheme)
		}
		o.transport = connecthttp.NewTransport(o.httpClient, strings.TrimSuffix(address, "/"), connecthttp.WithReadMaxBytes(answerBytesMax))
	}
	cc := connect.NewClient(o.transport, func(next connect.ClientFunc) connect.ClientFunc {
		return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
			if info, ok := connect.CallInfoForClientContext(ctx); ok && o.actor != "" {
				info.RequestHeader().Set("Sagad-Actor", o.actor)
			}
			return next(ctx, spec)
		}
	})
	return &Client{
		namespace:   o.namespace,
		address:     address,
		retryFor:    o.retryFor,
		sagas:       sagadv1connect.NewSagaServiceClient(cc),
		definitions: sagadv1connect.NewDefinitionServiceClient(cc),
	}, nil
}

func newHTTPClient(scheme string) *http.Client {
	protocols := new(http.Protocols)
	if scheme == "https" {
		protocols.SetHTTP1(true)
		protocols.SetHTTP2(true)
	} else {
		protocols.SetUnencryptedHTTP2(true)
	}
	return &http.Client{Transport: &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		Protocols:           protocols,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: 5 * time.Second,
		IdleConnTimeout:     90 * time.Second,
		// A server that vanished without a word is noticed by pings.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 10 * time.Second},
	}}
}

// call makes a call that may be repeated, and repeats it while the server can't answer. Each try is bounded by timeout.
func call[Req, Res any](ctx context.Context, c *Client, do func(context.Context, Req) (Res, error), req Req, retryFor, timeout time.Duration) (Res, error) {
	start := time.Now()
	for delay := retryMin; ; delay = min(2*delay, retryMax) {
		try, cancel := context.WithTimeout(ctx, timeout)
		res, err := do(try, req)
		cancel()
		if err == nil {
			return res, nil
		}
		if ctx.Err() != nil {
			e := asError(err, c.address)
			if !remote(err) && errors.Is(err, ctx.Err()) {
				// It is the context's own end that came back.
				e.Message, e.cause = context.Cause(ctx).Error(), errors.Join(context.Cause(ctx), err)
				return res, e
			}
			return res, fmt.Errorf("%w (the last answer: %w)", context.Cause(ctx), e)
		}
		if !again(err) || retryFor >= 0 && time.Since(start)+delay > retryFor {
			return res, asError(err, c.address)
		}
		// Half of it by chance, so that many clients don't come back at once.
		timer := time.NewTimer(delay/2 + rand.N(delay/2))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// untilDone is a time to retry for that only the context ends.
const untilDone time.Duration = -1

// again says that a call that may be repeated should be.
func again(err error) bool {
	var cerr *connect.Error
	if !errors.As(err, &cerr) {
		return errors.Is(err, context.DeadlineExceeded)
	}
	switch cerr.Code() {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded:
		return true
	case connect.CodeUnknown, connect.CodeInternal, connect.CodeCanceled:
		// Not the server's verdict: the connection broke while the answer came. A reset one is called cancelled; a context
		// that ended was seen before.
		return !cerr.IsRemote()
	}
	return false
}
