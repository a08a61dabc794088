package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	connectv1 "connectrpc.com/connect"
	"connectrpc.com/grpchealth"
)

// Check is one thing that must hold before a node takes traffic.
type Check struct {
	Name string
	// Run says what is wrong, in words that may be shown to anyone who reaches the port.
	Run func(context.Context) error
}

// readiness runs the checks, at most once in a while: whoever asks often gets the last answer.
type readiness struct {
	checks []Check
	keep   time.Duration

	mu    sync.Mutex
	at    time.Time
	state ready
}

type ready struct {
	Ready  bool         `json:"ready"`
	Checks []checkState `json:"checks"`
}

type checkState struct {
	Name  string `json:"name"`
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

const checkTimeout = 2 * time.Second

func (r *readiness) now(ctx context.Context) ready {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.at.IsZero() && time.Since(r.at) < r.keep {
		return r.state
	}
	// Not the caller's context: one who goes away mustn't leave a wrong answer to the others.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
	defer cancel()
	state := ready{Ready: true, Checks: []checkState{}}
	for _, c := range r.checks {
		cs := checkState{Name: c.Name, OK: true}
		if err := c.Run(ctx); err != nil {
			cs.OK, cs.Error, state.Ready = false, err.Error(), false
			if errors.Is(err, context.DeadlineExceeded) {
				cs.Error = "no answer within " + checkTimeout.String()
			}
		}
		state.Checks = append(state.Checks, cs)
	}
	r.at, r.state = time.Now(), state
	return state
}

// ServeHTTP answers /readyz.
func (r *readiness) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	state := r.now(req.Context())
	w.Header().Set("Content-Type", "application/json")
	if !state.Ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(state)
}

// healthz says that the process runs and answers; nothing more, so that a broken database doesn't restart it.
func healthz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n"))
}

// healthChecker answers gRPC health checks from the same checks.
type healthChecker struct {
	ready    *readiness
	services map[string]bool
}

func (h healthChecker) Check(ctx context.Context, req *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	if req.Service != "" && !h.services[req.Service] {
		return nil, connectv1.NewError(connectv1.CodeNotFound, errors.New("no such service"))
	}
	if !h.ready.now(ctx).Ready {
		return &grpchealth.CheckResponse{Status: grpchealth.StatusNotServing}, nil
	}
	return &grpchealth.CheckResponse{Status: grpchealth.StatusServing}, nil
}
