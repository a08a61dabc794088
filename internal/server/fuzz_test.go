package server

import (
	"bytes"
	"context"
	"hash/crc32"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectinprocess"
	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/proto/gen/sagad/v1/sagadv1connect"
)

// Forms of FuzzRPC's requests.
const (
	formProto = iota
	formJSON
	formGRPC
	formGRPCWebJSON
	formRawFrames
	formGzip
	forms
)

// FuzzRPC: whatever bytes come as a request of whatever procedure and protocol, the answer is a result or a refusal that is the
// caller's, it comes soon, and a refused request has changed nothing.
func FuzzRPC(f *testing.F) {
	var n *still
	fresh := func() {
		if n != nil {
			if err := n.stop(); err != nil {
				f.Error(err)
			}
		}
		var err error
		if n, err = newStill(false); err != nil {
			f.Fatal(err)
		}
	}
	fresh()
	f.Cleanup(func() { _ = n.stop() })
	known := map[string]procedure{}
	all := procedures(n.server)
	for _, p := range all {
		known[p.path] = p
		sample := p.sample()
		raw, err := proto.Marshal(sample)
		if err != nil {
			f.Fatal(err)
		}
		text, err := protojson.Marshal(sample)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(p.path, byte(formProto), raw)
		f.Add(p.path, byte(formJSON), text)
		f.Add(p.path, byte(formGRPC), raw)
		f.Add(p.path, byte(formGRPCWebJSON), text)
		f.Add(p.path, byte(formRawFrames), framed(0, raw))
		f.Add(p.path, byte(formProto), []byte{})
	}
	f.Fuzz(func(t *testing.T, path string, form byte, body []byte) {
		p, ok := known[path]
		if !ok {
			p = all[int(crc32.ChecksumIEEE([]byte(path)))%len(all)]
		}
		form %= forms
		protocol, codec := overConnect, "proto"
		switch form {
		case formJSON:
			codec = "json"
		case formGRPC, formRawFrames:
			protocol = overGRPC
		case formGRPCWebJSON:
			protocol, codec = overGRPCWeb, "json"
		}
		if form != formRawFrames && isFramed(protocol, p.streaming()) {
			body = framed(0, body)
		}
		// Watches and waits of sagas that go on end with the caller.
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		req := httptest.NewRequestWithContext(ctx, http.MethodPost, p.path, bytes.NewReader(body))
		req.Header.Set("Content-Type", contentType(protocol, codec, p.streaming()))
		if protocol == overGRPC {
			req.Proto, req.ProtoMajor, req.ProtoMinor = "HTTP/2.0", 2, 0
			req.Header.Set("Te", "trailers")
		}
		if form == formGzip {
			req.Header.Set("Content-Encoding", "gzip")
			req.Header.Set("Connect-Content-Encoding", "gzip")
		}
		before, began := n.store.changes.Load(), time.Now()
		rec := httptest.NewRecorder()
		n.server.Handler().ServeHTTP(rec, req)
		took := time.Since(began)
		res := rec.Result()
		code, says := codeOf(protocol, p.streaming(), res.StatusCode, res.Header, res.Trailer, rec.Body.Bytes())
		changed := n.store.changes.Load() != before
		switch code {
		case "ok":
		case "internal", "unknown", "data_loss", "no end", "http 500":
			t.Errorf("%s: %s: %s", p.path, code, says)
		default:
			if changed && code != "deadline_exceeded" && code != "canceled" {
				t.Errorf("%s: refused as %s, %s, but something was changed", p.path, code, says)
			}
		}
		if took > 3*time.Second {
			t.Errorf("%s: it took %v", p.path, took)
		}
		if changed {
			fresh()
		}
	})
}

// FuzzPageToken: no page token is accepted but one that was given, and for the same question.
func FuzzPageToken(f *testing.F) {
	n, err := newStill(false)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = n.stop() })
	client := connect.NewClient(connectinprocess.New(n.server.RPC()))
	sagas, definitions, operations := sagadv1connect.NewSagaServiceClient(client), sagadv1connect.NewDefinitionServiceClient(client), sagadv1connect.NewOperationsServiceClient(client)
	pages := n.server.pages
	place := runPlace(uuid.Nil)
	good := pages.seal([]byte("question"), place)
	first, err := sagas.ListSagas(context.Background(), &sagadv1.ListSagasRequest{PageSize: 1})
	if err != nil || first.NextPageToken == "" {
		f.Fatal(first, err)
	}
	for _, token := range []string{"", good, good[:len(good)-1], good + "=", first.NextPageToken, "AQ", pages.seal([]byte("question"), itemPlace(time.Time{}, uuid.Nil, 1)), "\xff\x00"} {
		f.Add(token, place)
	}
	f.Fuzz(func(t *testing.T, token string, place []byte) {
		if _, err := pages.open([]byte("question"), token); err == nil && pages.seal([]byte("question"), place) != token && token != good {
			body, _ := pages.open([]byte("question"), token)
			if pages.seal([]byte("question"), body) != token {
				t.Errorf("%q is accepted", token)
			}
		}
		parseRunPlace(place)
		parseItemPlace(place)
		ctx := context.Background()
		_, sagasErr := sagas.ListSagas(ctx, &sagadv1.ListSagasRequest{PageToken: token, PageSize: 1})
		_, definitionsErr := definitions.ListDefinitions(ctx, &sagadv1.ListDefinitionsRequest{PageToken: token})
		_, itemsErr := operations.ListItems(ctx, &sagadv1.ListItemsRequest{PageToken: token})
		for i, err := range []error{sagasErr, definitionsErr, itemsErr} {
			if token == "" || i == 0 && token == first.NextPageToken {
				if err != nil {
					t.Errorf("list %d: %v", i, err)
				}
			} else if connect.CodeOf(err) != connect.CodeInvalidArgument {
				t.Errorf("list %d: token %q: %v", i, token, err)
			}
		}
		// Whatever place is sealed by this cluster for the question, asking there is an answer or a refusal.
		for _, err := range []error{
			second(sagas.ListSagas(ctx, &sagadv1.ListSagasRequest{Namespace: "default", PageToken: pages.seal(question("ListSagas", &sagadv1.ListSagasRequest{Namespace: "default"}), place)})),
			second(operations.ListItems(ctx, &sagadv1.ListItemsRequest{Namespace: "default", PageToken: pages.seal(question("ListItems", &sagadv1.ListItemsRequest{Namespace: "default"}), place)})),
			second(definitions.ListDefinitions(ctx, &sagadv1.ListDefinitionsRequest{Namespace: "default", PageToken: pages.seal(question("ListDefinitions", &sagadv1.ListDefinitionsRequest{Namespace: "default"}), place)})),
		} {
			if err != nil && connect.CodeOf(err) != connect.CodeInvalidArgument {
				t.Errorf("place %x: %v", place, err)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }
