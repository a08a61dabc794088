package server

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
)

// pager makes and checks page tokens. A token says where the next page begins; it is bound to the question that it
// came with, and to this cluster, so that a token that was cut, altered or taken from another question is refused
// instead of silently giving other pages.
//
// A token is base64url of: version (1 byte), a body, 16 bytes of HMAC-SHA-256 over question, version and body.
type pager struct{ key []byte }

const (
	pageVersion  = 1
	pageMACBytes = 16
)

// newPager derives the key from the cluster's root key.
func newPager(root []byte) pager {
	mac := hmac.New(sha256.New, root)
	mac.Write([]byte("sagad/page-token/v1"))
	return pager{key: mac.Sum(nil)}
}

// question is what a token is bound to: the request but for token and page size.
func question(procedure string, req proto.Message) []byte {
	req = proto.Clone(req)
	m := req.ProtoReflect()
	for _, name := range []string{"page_token", "page_size"} {
		if f := m.Descriptor().Fields().ByTextName(name); f != nil {
			m.Clear(f)
		}
	}
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(req)
	if err != nil {
		// Requests were decoded from the wire, so they can be encoded.
		panic(err)
	}
	return append([]byte(procedure+"\x00"), body...)
}

func (p pager) mac(question, head []byte) []byte {
	mac := hmac.New(sha256.New, p.key)
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(question)))
	mac.Write(n[:])
	mac.Write(question)
	mac.Write(head)
	return mac.Sum(nil)[:pageMACBytes]
}

func (p pager) seal(question, body []byte) string {
	head := append([]byte{pageVersion}, body...)
	return base64.RawURLEncoding.EncodeToString(append(head, p.mac(question, head)...))
}

func (p pager) open(question []byte, token string) ([]byte, error) {
	bad := fail(connect.CodeInvalidArgument, codeInvalidPageToken,
		"the page token isn't one that this question was answered with; ask without it for the first page")
	if len(token) > pageTokenMax {
		return nil, bad
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(raw) < 1+pageMACBytes || raw[0] != pageVersion {
		return nil, bad
	}
	head, mac := raw[:len(raw)-pageMACBytes], raw[len(raw)-pageMACBytes:]
	if !hmac.Equal(mac, p.mac(question, head)) {
		return nil, bad
	}
	return head[1:], nil
}

// runPlace is a place in a list of sagas.
func runPlace(run uuid.UUID) []byte { return run[:] }

func parseRunPlace(b []byte) (run uuid.UUID, ok bool) {
	if len(b) != len(run) {
		return run, false
	}
	return uuid.UUID(b), true
}

// itemPlace is a place in a list of operations items.
func itemPlace(opened time.Time, run uuid.UUID, number int32) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(opened.UnixMicro()))
	b = append(b, run[:]...)
	return binary.BigEndian.AppendUint32(b, uint32(number))
}

func parseItemPlace(b []byte) (opened time.Time, run uuid.UUID, number int32, ok bool) {
	if len(b) != 8+16+4 {
		return opened, run, 0, false
	}
	return time.UnixMicro(int64(binary.BigEndian.Uint64(b))).UTC(), uuid.UUID(b[8:24]), int32(binary.BigEndian.Uint32(b[24:])), true
}
