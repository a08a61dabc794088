package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"sync"

	"google.golang.org/protobuf/proto"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
)

// A task token is the right to report one attempt of one call:
//
//	1 byte   version, 1
//	2 bytes  shard, big-endian, in clear so that workers can tell packs apart by shard
//	n bytes  TaskToken
//	32 bytes HMAC-SHA-256 over all before, by a key derived from the root key for the token's namespace
//
// Nothing in it is secret; nothing in it can be changed.
const (
	tokenVersion = 1
	tokenHead    = 3
	tokenMAC     = sha256.Size
	keyBytesMin  = 32
	keyLabel     = "sagad/task-token/v1/"
	// namespacesMax bounds the derived keys that are kept.
	namespacesMax = 10_000
)

// Why a token is not accepted.
var (
	ErrTokenMalformed = errors.New("task token is malformed")
	ErrTokenForged    = errors.New("task token isn't signed by this engine")
	ErrTokenKey       = errors.New("task token is signed by an unknown key")
	ErrTokenExpired   = errors.New("task token is expired")
)

// Keyring signs and opens task tokens. Its keys are the roots from which each namespace's key is derived. To rotate,
// add a key under a new id to every node, then make it current, and drop the old one when all its tokens are expired.
// It may be used by many goroutines.
type Keyring struct {
	current int32
	roots   map[int32][]byte

	mu      sync.RWMutex
	derived map[derivedID]*sync.Pool // of hash.Hash, keyed and reset
}

type derivedID struct {
	key       int32
	namespace string
}

// NewKeyring makes a key ring of root keys by id; current signs. Keys are at least 32 bytes.
func NewKeyring(current int32, keys map[int32][]byte) (*Keyring, error) {
	k := &Keyring{current: current, roots: make(map[int32][]byte, len(keys)), derived: map[derivedID]*sync.Pool{}}
	for id, key := range keys {
		if len(key) < keyBytesMin {
			return nil, fmt.Errorf("token key %d has %d bytes: give it %d random ones at least", id, len(key), keyBytesMin)
		}
		k.roots[id] = append([]byte(nil), key...)
	}
	if k.roots[current] == nil {
		return nil, fmt.Errorf("token key %d is to sign, but isn't there: add it, or name another as the current one", current)
	}
	return k, nil
}

func (k *Keyring) pool(id derivedID) *sync.Pool {
	k.mu.RLock()
	p := k.derived[id]
	k.mu.RUnlock()
	if p != nil {
		return p
	}
	root := k.roots[id.key]
	if root == nil {
		return nil
	}
	m := hmac.New(sha256.New, root)
	m.Write([]byte(keyLabel))
	m.Write([]byte(id.namespace))
	key := m.Sum(nil)
	p = &sync.Pool{New: func() any { return hmac.New(sha256.New, key) }}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.derived) >= namespacesMax {
		clear(k.derived)
	}
	k.derived[id] = p
	return p
}

// Sign makes the token of t. It sets t's key id. It fails if t's shard doesn't fit or the token would be too large.
func (k *Keyring) Sign(t *workerv1.TaskToken) ([]byte, error) {
	if t.Shard < 0 || t.Shard > 0xFFFF {
		return nil, fmt.Errorf("shard %d: want 0 to 65535", t.Shard)
	}
	t.KeyId = k.current
	size := proto.Size(t)
	b := make([]byte, tokenHead, tokenHead+size+tokenMAC)
	b[0] = tokenVersion
	binary.BigEndian.PutUint16(b[1:], uint16(t.Shard))
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, t)
	if err != nil {
		return nil, fmt.Errorf("encode task token: %w", err)
	}
	if len(b)+tokenMAC > TokenBytesMax {
		return nil, fmt.Errorf("task token of %d bytes: want %d at most; shorten the item's name", len(b)+tokenMAC, TokenBytesMax)
	}
	return k.mac(b, b, derivedID{t.KeyId, t.Namespace}), nil
}

// mac appends the code of data to b. The key must be known.
func (k *Keyring) mac(b, data []byte, id derivedID) []byte {
	p := k.pool(id)
	h := p.Get().(hash.Hash)
	h.Reset()
	h.Write(data)
	b = h.Sum(b)
	p.Put(h)
	return b
}

// Open gives what a token holds if it was signed by one of the ring's keys and isn't expired at nowMicros, microseconds
// since 1970. The errors wrap ErrTokenMalformed, ErrTokenForged, ErrTokenKey or ErrTokenExpired. With
// ErrTokenExpired, and only then, the token is genuine and is returned too.
func (k *Keyring) Open(token []byte, nowMicros int64) (*workerv1.TaskToken, error) {
	if len(token) <= tokenHead+tokenMAC || len(token) > TokenBytesMax {
		return nil, fmt.Errorf("%w: %d bytes", ErrTokenMalformed, len(token))
	}
	if token[0] != tokenVersion {
		return nil, fmt.Errorf("%w: version %d", ErrTokenMalformed, token[0])
	}
	signed, code := token[:len(token)-tokenMAC], token[len(token)-tokenMAC:]
	// Parsed before it is trusted: key id and namespace say which key to check it by. Bounded by its size.
	t := new(workerv1.TaskToken)
	if err := proto.Unmarshal(signed[tokenHead:], t); err != nil {
		return nil, fmt.Errorf("%w: not a TaskToken", ErrTokenMalformed)
	}
	if k.roots[t.KeyId] == nil {
		return nil, fmt.Errorf("%w: key %d", ErrTokenKey, t.KeyId)
	}
	if ValidNamespace(t.Namespace) != nil {
		return nil, fmt.Errorf("%w: namespace", ErrTokenMalformed)
	}
	var want [tokenMAC]byte
	if !hmac.Equal(code, k.mac(want[:0], signed, derivedID{t.KeyId, t.Namespace})) {
		return nil, ErrTokenForged
	}
	if int32(binary.BigEndian.Uint16(token[1:])) != t.Shard {
		return nil, fmt.Errorf("%w: shard", ErrTokenMalformed)
	}
	if nowMicros >= t.ExpiresUs {
		return t, fmt.Errorf("%w", ErrTokenExpired)
	}
	return t, nil
}

// TokenShard reads the shard that a token claims, unchecked: for choosing where to send. ok is false if it can't be
// a token.
func TokenShard(token []byte) (shard int, ok bool) {
	if len(token) <= tokenHead+tokenMAC || len(token) > TokenBytesMax || token[0] != tokenVersion {
		return 0, false
	}
	return int(binary.BigEndian.Uint16(token[1:])), true
}

// TokenAttempt reads the attempt that a token claims to be of, unchecked: for what does no harm if it is a lie. ok is false if it
// can't be a token.
func TokenAttempt(token []byte) (key string, attempt int32, ok bool) {
	if len(token) <= tokenHead+tokenMAC || len(token) > TokenBytesMax || token[0] != tokenVersion {
		return "", 0, false
	}
	t := new(workerv1.TaskToken)
	if err := proto.Unmarshal(token[tokenHead:len(token)-tokenMAC], t); err != nil || len(t.Run) != 16 {
		return "", 0, false
	}
	r := hex.EncodeToString(t.Run)
	run := r[:8] + "-" + r[8:12] + "-" + r[12:16] + "-" + r[16:20] + "-" + r[20:]
	return IdempotencyKey(run, t.Step, t.Item, t.Direction, t.Generation), t.Attempt, true
}
