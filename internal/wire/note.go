package wire

import (
	"crypto/hmac"
	"errors"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/proto"

	peerv1 "github.com/sagad/sagad/proto/gen/sagad/peer/v1"
)

// notePrefix begins the subjects by which nodes tell each other's sagas something. Workers need no right to it.
const notePrefix = "sagad.peer."

// noteNamespace keeps the key of notes apart from those of task tokens: it is no legal namespace.
const noteNamespace = "/peer/v1"

// NoteBytesMax bounds a message of notes.
const NoteBytesMax = 1 << 20

// ErrNoteForged: a message of notes wasn't made by a node that has the key.
var ErrNoteForged = errors.New("a message between nodes isn't signed by one of this cluster")

// NoteSubject is where notes for a shard's sagas are sent.
func NoteSubject(shard int) string { return notePrefix + strconv.Itoa(shard) }

// Seal signs notes for another node.
func (k *Keyring) Seal(notes *peerv1.Notes) ([]byte, error) {
	body, err := proto.Marshal(notes)
	if err != nil {
		return nil, fmt.Errorf("encode notes: %w", err)
	}
	x := &peerv1.SealedNotes{Notes: body, KeyId: k.current, Mac: k.mac(nil, body, derivedID{k.current, noteNamespace})}
	b, err := proto.Marshal(x)
	if err == nil && len(b) > NoteBytesMax {
		err = fmt.Errorf("%d bytes of notes: want %d at most", len(b), NoteBytesMax)
	}
	return b, err
}

// Unseal gives the notes of a message, if a node with the key made it.
func (k *Keyring) Unseal(b []byte) (*peerv1.Notes, error) {
	x := new(peerv1.SealedNotes)
	if len(b) > NoteBytesMax || proto.Unmarshal(b, x) != nil || k.roots[x.GetKeyId()] == nil {
		return nil, ErrNoteForged
	}
	if !hmac.Equal(x.GetMac(), k.mac(nil, x.GetNotes(), derivedID{x.GetKeyId(), noteNamespace})) {
		return nil, ErrNoteForged
	}
	notes := new(peerv1.Notes)
	if err := proto.Unmarshal(x.GetNotes(), notes); err != nil {
		return nil, fmt.Errorf("decode notes: %w", err)
	}
	return notes, nil
}
