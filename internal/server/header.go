package server

import (
	"context"
	"strings"
	"unicode"
	"unicode/utf8"

	"connectrpc.com/connect/v2"
)

// Headers of the API.
const (
	// HeaderActor names who acts, while the API has no authentication. 128 bytes at most, the rest is cut.
	HeaderActor = "Sagad-Actor"
	// HeaderRequestID is set on answers; the node's log uses it.
	HeaderRequestID = "Sagad-Request-Id"
	// HeaderForwarded is set between nodes: such a call isn't forwarded again.
	HeaderForwarded = "Sagad-Forwarded"
)

// anonymous is the actor of calls that don't say who acts.
const anonymous = "anonymous"

// actor says who acts. Nothing proves it: it is for the history, not for decisions.
func actor(ctx context.Context) string {
	info, ok := connect.CallInfoForServerContext(ctx)
	if !ok {
		return anonymous
	}
	return cleanActor(info.RequestHeader().Get(HeaderActor))
}

func cleanActor(s string) string {
	s = strings.ToValidUTF8(s, "")
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s)
	s = strings.TrimSpace(s)
	if len(s) > actorBytesMax {
		cut := actorBytesMax
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut]
	}
	if s == "" {
		return anonymous
	}
	return s
}

func forwarded(ctx context.Context) bool {
	info, ok := connect.CallInfoForServerContext(ctx)
	return ok && info.RequestHeader().Get(HeaderForwarded) != ""
}
