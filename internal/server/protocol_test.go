package server

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"connectrpc.com/connect/v2"
)

// The protocols that one port speaks.
const (
	overConnect = "connect"
	overGRPC    = "grpc"
	overGRPCWeb = "grpc-web"
)

// framed puts a message into a frame, as gRPC and Connect's streams have it.
func framed(flags byte, body []byte) []byte {
	b := append([]byte{flags}, binary.BigEndian.AppendUint32(nil, uint32(len(body)))...)
	return append(b, body...)
}

// contentType of a request. codec is proto or json.
func contentType(protocol, codec string, streaming bool) string {
	switch {
	case protocol == overGRPC || protocol == overGRPCWeb:
		return "application/" + protocol + "+" + codec
	case streaming:
		return "application/connect+" + codec
	}
	return "application/" + codec
}

// isFramed says whether messages are in frames.
func isFramed(protocol string, streaming bool) bool { return protocol != overConnect || streaming }

// codeOf is what a response says became of the call: ok, an RPC code's name, or the HTTP status where no protocol has a say.
func codeOf(protocol string, streaming bool, status int, header, trailer http.Header, body []byte) (code, text string) {
	grpc := func(h http.Header) (string, string, bool) {
		n, err := strconv.Atoi(h.Get("Grpc-Status"))
		if err != nil {
			return "", "", false
		}
		message, _ := url.PathUnescape(h.Get("Grpc-Message"))
		if n == 0 {
			return "ok", message, true
		}
		return connect.Code(n).String(), message, true
	}
	type connectError struct{ Code, Message string }
	plain := "http " + strconv.Itoa(status)
	switch {
	case protocol != overConnect:
		if status != http.StatusOK {
			return plain, string(body)
		}
		for _, h := range []http.Header{trailer, header} {
			if code, text, ok := grpc(h); ok {
				return code, text
			}
		}
		for rest := body; len(rest) >= 5; {
			n := int(binary.BigEndian.Uint32(rest[1:5]))
			if n > len(rest)-5 {
				break
			}
			if rest[0]&0x80 != 0 {
				h := http.Header{}
				for line := range strings.SplitSeq(string(rest[5:5+n]), "\r\n") {
					k, v, _ := strings.Cut(line, ":")
					h.Set(strings.TrimSpace(k), strings.TrimSpace(v))
				}
				if code, text, ok := grpc(h); ok {
					return code, text
				}
			}
			rest = rest[5+n:]
		}
	case streaming:
		if status != http.StatusOK {
			return plain, string(body)
		}
		for rest := body; len(rest) >= 5; {
			n := int(binary.BigEndian.Uint32(rest[1:5]))
			if n > len(rest)-5 {
				break
			}
			if rest[0]&2 != 0 {
				var end struct{ Error *connectError }
				if json.Unmarshal(rest[5:5+n], &end) != nil {
					return "no end", string(body)
				}
				if end.Error == nil {
					return "ok", ""
				}
				return end.Error.Code, end.Error.Message
			}
			rest = rest[5+n:]
		}
	case status == http.StatusOK:
		return "ok", ""
	default:
		var e connectError
		if json.Unmarshal(bytes.TrimSpace(body), &e) != nil || e.Code == "" {
			return plain, string(body)
		}
		return e.Code, e.Message
	}
	return "no end", string(body)
}
