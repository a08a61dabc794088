package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os/user"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/proto/gen/sagad/v1/sagadv1connect"
)

// api is the client of a running sagad.
type api struct {
	address     string
	sagas       sagadv1connect.SagaServiceClient
	definitions sagadv1connect.DefinitionServiceClient
	operations  sagadv1connect.OperationsServiceClient
}

// answerBytesMax bounds one answer.
const answerBytesMax = 32 << 20

// callTimeout bounds a call that waits for nothing.
const callTimeout = 30 * time.Second

func (g *globals) api() (*api, error) {
	address := g.Address
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, &exitError{exitUsage, fmt.Errorf("--address %q isn't one: use for example http://127.0.0.1:7230", g.Address)}
	}
	protocols := new(http.Protocols)
	if u.Scheme == "https" {
		protocols.SetHTTP1(true)
		protocols.SetHTTP2(true)
	} else {
		protocols.SetUnencryptedHTTP2(true)
	}
	httpClient := &http.Client{Transport: &http.Transport{
		Proxy:           http.ProxyFromEnvironment,
		Protocols:       protocols,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}}
	actor := g.Actor
	if actor == "" {
		if u, err := user.Current(); err == nil {
			actor = u.Username
		}
	}
	client := connect.NewClient(
		connecthttp.NewTransport(httpClient, strings.TrimSuffix(address, "/"), connecthttp.WithReadMaxBytes(answerBytesMax)),
		func(next connect.ClientFunc) connect.ClientFunc {
			return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
				if info, ok := connect.CallInfoForClientContext(ctx); ok && actor != "" {
					info.RequestHeader().Set("Sagad-Actor", actor)
				}
				return next(ctx, spec)
			}
		})
	return &api{
		address:     address,
		sagas:       sagadv1connect.NewSagaServiceClient(client),
		definitions: sagadv1connect.NewDefinitionServiceClient(client),
		operations:  sagadv1connect.NewOperationsServiceClient(client),
	}, nil
}

// failed turns an error of a call into what a person can use, and an exit code.
func (a *api) failed(err error) error {
	if err == nil {
		return nil
	}
	var cerr *connect.Error
	if !errors.As(err, &cerr) {
		return err
	}
	if !cerr.IsRemote() {
		switch cerr.Code() {
		case connect.CodeUnavailable:
			return &exitError{exitUnreachable, fmt.Errorf("no sagad answers at %s (%s). Is it running? Start it with `sagad dev`, or say with --address where it is", a.address, cerr.Message())}
		case connect.CodeCanceled:
			return &exitError{exitFailed, errors.New("interrupted")}
		}
	}
	text := cerr.Message()
	if text == "" {
		text = cerr.Code().String()
	}
	if problems := problemsOf(cerr); len(problems) > 0 {
		lines := []string{"the definition isn't accepted:"}
		for _, p := range problems {
			lines = append(lines, "  "+problemLine(p))
		}
		text = strings.Join(lines, "\n")
	} else if reason := reasonOf(cerr); reason != "" {
		text += " [" + reason + "]"
	}
	switch cerr.Code() {
	case connect.CodeNotFound:
		return &exitError{exitNotFound, errors.New(text)}
	case connect.CodeUnimplemented:
		return &exitError{exitFailed, fmt.Errorf("%s: is this sagad at %s, and as new as this client?", text, a.address)}
	}
	return &exitError{exitFailed, errors.New(text)}
}

// refusedHere says that a server refused this one thing: another one may be fine.
func refusedHere(err error) bool {
	var cerr *connect.Error
	if !errors.As(err, &cerr) || !cerr.IsRemote() {
		return false
	}
	switch reasonOf(cerr) {
	case "MIGRATION_REFUSED", "SAGA_NOT_FOUND", "QUARANTINED", "HISTORY_LIMIT", "NOT_ALLOWED":
		return true
	}
	return false
}

func reasonOf(err *connect.Error) string {
	for _, d := range err.Details() {
		if m, derr := connectproto.UnmarshalErrorDetail(d); derr == nil {
			if info, ok := m.(*errdetails.ErrorInfo); ok {
				return info.Reason
			}
		}
	}
	return ""
}

func problemsOf(err *connect.Error) []*sagadv1.Problem {
	var problems []*sagadv1.Problem
	for _, d := range err.Details() {
		if m, derr := connectproto.UnmarshalErrorDetail(d); derr == nil {
			if p, ok := m.(*sagadv1.Problem); ok {
				problems = append(problems, p)
			}
		}
	}
	return problems
}

func problemLine(p *sagadv1.Problem) string {
	where := p.Definition
	if p.Step != "" {
		where += "." + p.Step
	}
	if p.Field != "" {
		where += "." + p.Field
	}
	if p.Line > 0 {
		where += fmt.Sprintf(":%d:%d", p.Line, p.Column)
	}
	line := fmt.Sprintf("%s: %s [%s]", where, p.Message, p.Rule)
	if p.Mend != "" {
		line += "\n    " + p.Mend
	}
	return line
}
