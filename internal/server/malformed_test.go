package server

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// malformed is a request that must be refused.
type malformed struct {
	name   string
	codec  string // proto unless set
	body   []byte // the message
	raw    []byte // what is sent in place of the framed message, if set
	header map[string]string
	// want are the codes that will do.
	want []string
	// only is the protocol that it is for, if set.
	only string
}

// gzipped is what r gives, compressed.
func gzipped(t *testing.T, r io.Reader) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.Copy(w, r); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// set is the sample with one field changed.
func set(p procedure, field string, v any) proto.Message {
	req := p.sample()
	m := req.ProtoReflect()
	f := m.Descriptor().Fields().ByName(protoreflect.Name(field))
	m.Set(f, protoreflect.ValueOf(v))
	return req
}

const (
	invalid   = "invalid_argument"
	exhausted = "resource_exhausted"
)

// breaches are all ways to get a request of p wrong that apply to it.
func breaches(t *testing.T, p procedure, bomb []byte) []malformed {
	t.Helper()
	good, err := proto.Marshal(p.sample())
	if err != nil {
		t.Fatal(err)
	}
	var all []malformed
	add := func(name string, c malformed) {
		c.name = name
		if len(c.want) == 0 {
			c.want = []string{invalid}
		}
		all = append(all, c)
	}
	message := func(name string, req proto.Message, want ...string) {
		raw, err := proto.Marshal(req)
		if err != nil {
			t.Fatalf("%s %s: %v", p.path, name, err)
		}
		add(name, malformed{body: raw, want: want})
	}

	// The bytes themselves.
	deep := protowire.AppendTag(nil, 999, protowire.StartGroupType)
	add("noise", malformed{body: []byte("\xff\xff\xff\xff")})
	add("a field without its value", malformed{body: append(bytes.Clone(good), 0x0a)})
	add("a length beyond the end", malformed{body: append(bytes.Clone(good), 0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f)})
	add("field number 0", malformed{body: append(bytes.Clone(good), 0x00, 0x00)})
	add("wire type 7", malformed{body: append(bytes.Clone(good), 0x0f)})
	add("groups, 15,000 deep", malformed{body: bytes.Repeat(deep, 15_000)})
	add("a group that never ends", malformed{body: append(bytes.Clone(good), deep...)})
	// JSON
	for name, text := range map[string]string{
		"broken": `{"namespace":`, "array": `[]`, "text": `"x"`, "number": `7`, "unknown field": `{"nope":1}`, "wrong type": `{"namespace":7}`, "deep": `{"namespace":` + strings.Repeat("[", 12_000),
		"invalid UTF-8": "{\"namespace\":\"\xff\"}", "half a pair": `{"namespace":"\ud800"}`, "repeated key": `{"namespace":"a","namespace":"b"}`, "two documents": `{}{}`,
	} {
		add("JSON: "+name, malformed{codec: "json", body: []byte(text)})
	}
	add("JSON: empty", malformed{codec: "json", raw: []byte{}, only: overConnect, want: []string{invalid, "unimplemented"}})
	// Frames and compression
	if isFramed(overGRPC, p.streaming()) {
		add("huge frame", malformed{raw: []byte("\x00\x7f\xff\xff\xff"), only: overGRPC, want: []string{exhausted}})
		add("4 GiB frame", malformed{raw: []byte("\x00\xff\xff\xff\xffabc"), only: overGRPC, want: []string{exhausted}})
		add("short frame", malformed{raw: append([]byte("\x00\x00\x00\x10\x00"), good...), only: overGRPC})
		add("half a frame's head", malformed{raw: []byte("\x00\x00"), only: overGRPC})
		add("huge frame", malformed{raw: []byte("\x00\x7f\xff\xff\xff"), only: overGRPCWeb, want: []string{exhausted}})
		add("short frame", malformed{raw: append([]byte("\x00\x00\x00\x10\x00"), good...), only: overGRPCWeb})
		add("compressed, but doesn't say how", malformed{raw: framed(1, good), only: overGRPC})
		add("two messages", malformed{raw: append(framed(0, good), framed(0, good)...), only: overGRPC, want: []string{"unimplemented", invalid}})
		add("no message", malformed{raw: []byte{}, only: overGRPC, want: []string{"unimplemented", invalid}})
		add("bomb", malformed{raw: framed(1, bomb), only: overGRPC, header: map[string]string{"Grpc-Encoding": "gzip"}, want: []string{exhausted}})
		add("not gzip", malformed{raw: framed(1, []byte("plain")), only: overGRPC, header: map[string]string{"Grpc-Encoding": "gzip"}})
		add("unknown compression", malformed{body: good, only: overGRPC, header: map[string]string{"Grpc-Encoding": "br"}, want: []string{"unimplemented"}})
		add("wrong timeout", malformed{body: good, only: overGRPC, header: map[string]string{"Grpc-Timeout": "soon"}})
	}
	encoding := "Content-Encoding"
	wrap := func(b []byte) []byte { return b }
	if p.streaming() {
		encoding = "Connect-Content-Encoding"
		wrap = func(b []byte) []byte { return framed(1, b) }
		add("huge frame", malformed{raw: []byte("\x00\x7f\xff\xff\xff"), only: overConnect, want: []string{exhausted}})
		add("unknown flags", malformed{raw: framed(0x40, good), only: overConnect})
	}
	add("bomb", malformed{raw: wrap(bomb), only: overConnect, header: map[string]string{encoding: "gzip"}, want: []string{exhausted}})
	add("not gzip", malformed{raw: wrap([]byte("plain")), only: overConnect, header: map[string]string{encoding: "gzip"}})
	add("unknown compression", malformed{body: good, only: overConnect, header: map[string]string{encoding: "br"}, want: []string{"unimplemented"}})
	add("long timeout", malformed{body: good, only: overConnect, header: map[string]string{"Connect-Timeout-Ms": "99999999999999"}})
	add("wrong content type", malformed{body: good, header: map[string]string{"Content-Type": "text/plain"}, want: []string{"http 415"}})
	add("too large", malformed{body: protowire.AppendBytes(protowire.AppendTag(nil, 999, protowire.BytesType), make([]byte, 2<<20)), want: []string{exhausted}})

	// Fields, as far as the request has them.
	fields := p.newRequest().ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		name := string(f.Name())
		if f.IsList() || f.IsMap() {
			if name == "labels" {
				raw := append(bytes.Clone(good), "\x32\x05\x0a\x01k\x12\x00"...)
				add("labels: invalid UTF-8", malformed{body: bytes.Replace(raw, []byte("\x0a\x01k"), []byte("\x0a\x01\xff"), 1)})
			}
			continue
		}
		switch f.Kind() {
		case protoreflect.StringKind:
			add(name+": invalid UTF-8", malformed{body: protowire.AppendBytes(protowire.AppendTag(bytes.Clone(good), f.Number(), protowire.BytesType), []byte("a\xff"))})
			text := func(s string, want ...string) { message(fmt.Sprintf("%s: %.12q", name, s), set(p, name, s), want...) }
			switch name {
			case "namespace":
				for _, bad := range []string{"a.b", "*", ">", "a b", "a\x00", "a\r\nPUB x 1", "A", "-a", strings.Repeat("a", 64), "é", "'; DROP TABLE saga; --"} {
					text(bad)
				}
			case "id", "saga_id":
				if name == "saga_id" && p.name() == "ListItems" {
					text(strings.Repeat("x", 256))
					continue
				}
				for _, bad := range []string{"", "a\x00", "a\r", "a\nb", "\x7f", strings.Repeat("x", 256), strings.Repeat("x", 60<<10)} {
					text(bad)
				}
			case "page_token":
				for _, bad := range []string{"x", "AQ", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "' OR 1=1 --", strings.Repeat("A", 1025)} {
					text(bad)
				}
			case "definition", "name", "signal":
				text(strings.Repeat("x", 64))
				text("a\x00")
			case "reason", "evidence":
				text(strings.Repeat("x", 4097))
				text("a\x00")
			case "request_id", "key":
				text(strings.Repeat("x", 129))
			case "input", "output", "payload":
				for _, bad := range []string{"{", `{"a":1,"a":2}`, `"\u0000"`, `"\ud800"`, "NaN", strings.Repeat("[", 20_000)} {
					text(bad)
				}
				text(`"` + strings.Repeat("x", 256<<10-1) + `"`) // one byte too many
			}
		case protoreflect.Int32Kind:
			least := []int32{-1, -1 << 31}
			switch name {
			case "page_size":
				least = append(least, 1001, 1<<31-1)
			}
			for _, v := range least {
				message(name+": "+strconv.Itoa(int(v)), set(p, name, v))
			}
			for _, text := range []string{"2147483648", "1.5", "1e999", `"x"`, "9007199254740993"} {
				add("JSON: "+name+": "+text, malformed{codec: "json", body: fmt.Appendf(nil, `{%q:%s}`, f.JSONName(), text)})
			}
		case protoreflect.Int64Kind:
			if name == "from" {
				message(name+": -1", set(p, name, int64(-1)))
			}
			add("JSON: "+name, malformed{codec: "json", body: fmt.Appendf(nil, `{%q:"9223372036854775808"}`, f.JSONName())})
		case protoreflect.EnumKind:
			message(name+": unknown", set(p, name, protoreflect.EnumNumber(9999)))
		case protoreflect.MessageKind:
			switch f.Message().FullName() {
			case "google.protobuf.Duration":
				for _, text := range []string{"-1s", "315576000001s", `soon`, "61s"} {
					add("JSON: "+name+": "+text, malformed{codec: "json", body: jsonWith(t, p, f.JSONName(), text)})
				}
				raw := func(seconds, nanos int64) []byte {
					inner := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(seconds))
					inner = protowire.AppendVarint(protowire.AppendTag(inner, 2, protowire.VarintType), uint64(nanos))
					return protowire.AppendBytes(protowire.AppendTag(bytes.Clone(good), f.Number(), protowire.BytesType), inner)
				}
				add(name+": the longest", malformed{body: raw(1<<63-1, 999999999)})
				add(name+": of two signs", malformed{body: raw(1, -1)})
			case "sagad.v1.SagaFilter":
				for _, text := range []string{"0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "yesterday"} {
					add("JSON: filter: "+text, malformed{codec: "json", body: fmt.Appendf(nil, `{"filter":{"startedAfter":%q}}`, text)})
				}
				add("JSON: filter: unknown status", malformed{codec: "json", body: []byte(`{"filter":{"statuses":["NOPE"]}}`)})
				add("filter: unknown status", malformed{body: append(bytes.Clone(good), "\x22\x03\x0a\x01\x63"...)})
			}
		}
	}
	return all
}

// jsonWith is the sample as JSON, with one more member.
func jsonWith(t *testing.T, p procedure, name, text string) []byte {
	t.Helper()
	raw, err := protojson.Marshal(p.sample())
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]any{}
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	m[name] = text
	if raw, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	return raw
}

// Every way to get a request wrong, of every procedure, over every protocol: each is refused as the caller's fault, soon, with a word
// on what is wrong; nothing is changed, and nothing of the inside is shown.
func TestEveryMalformedRequest(t *testing.T) {
	n := newStillFor(t)
	clients := map[string]*http.Client{overConnect: h1(t), overGRPC: h2c(t), overGRPCWeb: h1(t)}
	bomb := gzipped(t, io.LimitReader(zeros{}, 16<<20))
	before := n.store.changes.Load()
	tried := 0
	for _, p := range procedures(n.server) {
		for _, c := range breaches(t, p, bomb) {
			for _, protocol := range []string{overConnect, overGRPC, overGRPCWeb} {
				if c.only != "" && c.only != protocol {
					continue
				}
				tried++
				code, text, took := n.call(t, clients[protocol], protocol, p, c)
				name := fmt.Sprintf("%s over %s, %s", p.path, protocol, c.name)
				if !slices.Contains(c.want, code) {
					t.Errorf("%s: %s (%.200s), want %v", name, code, text, c.want)
				}
				if text == "" && code != "http 415" {
					t.Errorf("%s: no word on what is wrong", name)
				}
				if strings.Contains(text, "goroutine") || strings.Contains(text, ".go:") || strings.Contains(text, "SQL") {
					t.Errorf("%s: the answer shows the inside: %s", name, text)
				}
				if took > 5*time.Second {
					t.Errorf("%s: it took %v", name, took)
				}
			}
		}
	}
	if after := n.store.changes.Load(); after != before {
		t.Errorf("refused requests changed something %d times", after-before)
	}
	if logs := n.log.String(); strings.Contains(logs, "panicked") || strings.Contains(logs, "DROP TABLE") {
		t.Error("the log tells of a panic, or quotes a request")
	}
	t.Logf("%d requests", tried)
	if tried < 1500 {
		t.Errorf("only %d requests were tried", tried)
	}
}

// call sends a request and says what became of it.
func (n *still) call(t *testing.T, client *http.Client, protocol string, p procedure, c malformed) (code, text string, took time.Duration) {
	t.Helper()
	codec := c.codec
	if codec == "" {
		codec = "proto"
	}
	body := c.raw
	if body == nil {
		if body = c.body; isFramed(protocol, p.streaming()) {
			body = framed(0, body)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.url+p.path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType(protocol, codec, p.streaming()))
	if protocol == overGRPC {
		req.Header.Set("Te", "trailers")
	}
	for k, v := range c.header {
		req.Header.Set(k, v)
	}
	began := time.Now()
	res, err := client.Do(req)
	if err != nil {
		t.Errorf("%s over %s, %s: %v", p.path, protocol, c.name, err)
		return "", "", 0
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		t.Errorf("%s over %s, %s: reading the answer: %v", p.path, protocol, c.name, err)
	}
	code, text = codeOf(protocol, p.streaming(), res.StatusCode, res.Header, res.Trailer, answer)
	return code, text, time.Since(began)
}

// The samples themselves are well formed, so that what is refused is refused for what was changed in them. (The definition awaits no
// signal.)
func TestSamplesAreWellFormed(t *testing.T) {
	n := newStillFor(t)
	clients := map[string]*http.Client{overConnect: h1(t), overGRPC: h2c(t), overGRPCWeb: h1(t)}
	for _, p := range procedures(n.server) {
		raw, err := proto.Marshal(p.sample())
		if err != nil {
			t.Fatal(err)
		}
		for _, protocol := range slices.Sorted(maps.Keys(clients)) {
			if code, text, _ := n.call(t, clients[protocol], protocol, p, malformed{body: raw}); code == invalid && p.name() != "SignalSaga" || code == "no end" || code == "internal" || code == "unknown" {
				t.Errorf("%s over %s: %s: %s", p.path, protocol, code, text)
			}
		}
	}
}

// What isn't a request at all: the connection is answered or closed, and the port goes on.
func TestConnectionsThatAreNoRequests(t *testing.T) {
	n := newStillFor(t)
	address := strings.TrimPrefix(n.url, "http://")
	var headers strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&headers, "X-%d: y\r\n", i)
	}
	const post = "POST /sagad.v1.SagaService/StartSaga HTTP/1.1\r\nHost: localhost\r\n"
	for name, bytes := range map[string]string{
		"TLS hello":         "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
		"HTTP/2, cut short": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\xff\x04",
		"header of 1 MiB":   post + "X: " + strings.Repeat("x", 1<<20) + "\r\n\r\n",
		"10,000 headers":    post + headers.String() + "\r\n",
		"two lengths":       post + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
		"bad chunk":         post + "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
		"NUL":               "\x00\x00\x00\x00\r\n\r\n",
		"two content types": post + "Content-Type: application/json\r\nContent-Type: application/proto\r\nContent-Length: 2\r\n\r\n{}",
		"foreign host":      "POST /sagad.v1.SagaService/StartSaga HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(conn, bytes) // the server may close before it has all
			if tcp, ok := conn.(*net.TCPConn); ok {
				_ = tcp.CloseWrite()
			}
			answer, _ := io.ReadAll(io.LimitReader(conn, 64<<10))
			if strings.HasPrefix(string(answer), "HTTP/1.1 2") || strings.HasPrefix(string(answer), "HTTP/1.1 500") {
				t.Errorf("the answer is %.200q", answer)
			}
		})
	}
	res, err := h1(t).Get(n.url + "/healthz")
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("the port is gone: %v %v", res, err)
	}
	_ = res.Body.Close()
}

// The rest of a body that wasn't read is never taken for a request: behind a proxy it would be somebody else's.
func TestBodiesAreNoRequests(t *testing.T) {
	n := newStillFor(t)
	const (
		hidden = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
		last   = "GET /last HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
	)
	body := strings.Repeat(hidden, 3<<20/len(hidden))
	for _, path := range []string{"/sagad.v1.SagaService/GetSaga", "/sagad.v1.SagaService/WatchSaga", "/sagad.v1.SagaService/StartSaga", "/nowhere", "/healthz"} {
		for _, contentType := range []string{"application/json", "application/connect+json", "application/grpc-web+json", "text/plain"} {
			conn, err := net.Dial("tcp", strings.TrimPrefix(n.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
				t.Fatal(err)
			}
			go func() { // the server may close before it has all
				_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s%s", path, contentType, len(body), body, last)
			}()
			answer, _ := io.ReadAll(io.LimitReader(conn, 1<<20))
			_ = conn.Close()
			// One to the request, and one to the last, if the connection stayed.
			answers := strings.Split(string(answer), "HTTP/1.1 ")[1:]
			if len(answers) == 0 || len(answers) > 2 || len(answers) == 2 && !strings.HasPrefix(answers[1], "404 ") {
				t.Errorf("%s, %s: %d answers to two requests, the last of which nothing is at", path, contentType, len(answers))
			}
		}
	}
}
