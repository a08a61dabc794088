package engine

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/sagad/sagad/internal/expr"
	"github.com/sagad/sagad/internal/wire"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// StartRequest asks for a saga. Namespace and ID name it; the rest is its content.
type StartRequest struct {
	Namespace, ID string
	Definition    string
	// Version of the definition; 0 means the latest at the first start.
	Version int32
	// Input is JSON; empty means null.
	Input  []byte
	Labels map[string]string
	// Actor is who asked, for the history. It isn't part of the content.
	Actor string
}

// StartReply tells which saga there is now.
type StartReply struct {
	Run     uuid.UUID
	Version int32
	// Created is false if the saga had been started before, with the same content.
	Created bool
}

// StartSaga starts a saga, once, however often it is asked for. It answers when the saga is durable. A trace context in
// ctx is continued. Errors: *[ConflictError], *[NotFoundError], *[InvalidError], *[statemachine.Refusal] if the input
// doesn't fit, *[NotOwnerError], *[UnavailableError], *[QuarantinedError].
func (e *Engine) StartSaga(ctx context.Context, r StartRequest) (StartReply, error) {
	for try := 1; ; try++ {
		ev, err := e.startEvent(ctx, &r)
		if err != nil {
			return StartReply{}, err
		}
		a, err := e.ask(ctx, ev)
		if err = e.startRefused(err); err == nil {
			return startReply(&a), nil
		}
		if gone, none := errors.AsType[*NotFoundError](err); !none || !gone.Deleted || r.Version != 0 || try == startTriesMax {
			return StartReply{}, err
		}
		// What was the latest version a moment ago was deleted. Another one is now.
	}
}

// startRefused says so if a start was refused because its version was deleted since it was looked up.
func (e *Engine) startRefused(err error) error {
	gone, deleted := errors.AsType[*store.DeletedError](err)
	if !deleted {
		return err
	}
	e.definitions.forget(gone.Namespace, gone.Name, gone.Version)
	return &NotFoundError{What: "definition", Namespace: gone.Namespace, Name: gone.Name, Version: gone.Version, Deleted: true}
}

func startReply(a *answer) StartReply {
	return StartReply{Run: a.run, Version: a.state.Version, Created: a.created}
}

// startEvent is what a start asks of the saga's shard.
func (e *Engine) startEvent(ctx context.Context, r *StartRequest) (*event, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	input := r.Input
	if len(input) == 0 {
		input = []byte("null")
	}
	if len(input) > wire.PayloadBytesMax {
		return nil, &InvalidError{Field: "input", Message: fmt.Sprintf(
			"has %d bytes; the limit is %d: put large data elsewhere and pass a reference", len(input), wire.PayloadBytesMax)}
	}
	digest, err := r.digestOf(input)
	if err != nil {
		return nil, &InvalidError{Field: "input", Message: err.Error()}
	}
	key := sagaKey{r.Namespace, r.ID}
	if _, err := e.shard(key); err != nil {
		return nil, err // before the definition is looked up
	}
	machine, def, err := e.definitions.startable(ctx, r.Namespace, r.Definition, r.Version)
	if err != nil {
		return nil, err
	}
	traceparent := e.traces.start(ctx, r.Definition, r.Namespace, r.ID)
	return &event{
		// A saga that is there already is told whatever the latest version says to the input.
		key: key, machine: machine, invalid: machine.CheckInput(input), run: newRun(e.clock.now(), e.random),
		what: statemachine.Start{
			Namespace: r.Namespace, SagaID: r.ID, Version: def.Version, Input: input, Digest: digest[:], Labels: r.Labels, Actor: r.Actor,
			Traceparent: traceparent,
		},
	}, nil
}

// scratch is memory for digests.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

func keepScratch(buf *[]byte, used []byte) {
	if cap(used) <= scratchBytesMax {
		*buf = used[:0]
	}
	scratch.Put(buf)
}

// digestOf is the digest for an input in any form. It fails if that isn't JSON which can be stored.
func (r *StartRequest) digestOf(input []byte) ([sha256.Size]byte, error) {
	buf := scratch.Get().(*[]byte)
	canonical, err := expr.AppendCanonicalJSON((*buf)[:0], input)
	if err != nil {
		scratch.Put(buf)
		return [sha256.Size]byte{}, err
	}
	digest := r.digest(canonical)
	keepScratch(buf, canonical)
	return digest, nil
}

// digest is of what was asked for, so that a repeat is told from another saga: definition, version as it was asked for,
// input in canonical form, labels.
func (r *StartRequest) digest(canonical []byte) [sha256.Size]byte {
	buf := scratch.Get().(*[]byte)
	b := (*buf)[:0]
	part := func(s string) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	part(r.Definition)
	b = binary.AppendUvarint(b, uint64(r.Version))
	b = binary.AppendUvarint(b, uint64(len(canonical)))
	b = append(b, canonical...)
	if len(r.Labels) > 0 {
		for _, k := range slices.Sorted(maps.Keys(r.Labels)) {
			part(k)
			part(r.Labels[k])
		}
	}
	sum := sha256.Sum256(b)
	keepScratch(buf, b)
	return sum
}

func (r *StartRequest) check() error {
	if err := checkKey(r.Namespace, r.ID); err != nil {
		return err
	}
	if err := wire.ValidDefinition(r.Definition); err != nil {
		return &InvalidError{Field: "definition", Message: err.Error()}
	}
	if r.Version < 0 {
		return &InvalidError{Field: "version", Message: "is negative: write 0 for the latest"}
	}
	if len(r.Labels) > labelsMax {
		return &InvalidError{Field: "labels", Message: fmt.Sprintf("are %d; the limit is %d", len(r.Labels), labelsMax)}
	}
	for k, v := range r.Labels {
		if k == "" {
			return &InvalidError{Field: "labels", Message: "have an empty name"}
		}
		if err := checkText("label", k, labelBytesMax); err != nil {
			return err
		}
		if err := checkText("label", v, labelBytesMax); err != nil {
			return err
		}
	}
	return checkText("actor", r.Actor, actorBytesMax)
}

func checkNamespace(namespace string) error {
	if err := wire.ValidNamespace(namespace); err != nil {
		return &InvalidError{Field: "namespace", Message: err.Error()}
	}
	return nil
}

func checkKey(namespace, id string) error {
	if err := checkNamespace(namespace); err != nil {
		return err
	}
	if err := wire.ValidSagaID(id); err != nil {
		return &InvalidError{Field: "id", Message: err.Error()}
	}
	return nil
}

// text is a field that a person wrote.
type text struct {
	field, value string
	bytesMax     int
}

func checkTexts(texts ...text) error {
	for _, t := range texts {
		if err := checkText(t.field, t.value, t.bytesMax); err != nil {
			return err
		}
	}
	return nil
}

// checkText refuses what can't be stored as text.
func checkText(field, s string, bytesMax int) error {
	switch {
	case len(s) > bytesMax:
		return &InvalidError{Field: field, Message: fmt.Sprintf("has %d bytes; the limit is %d", len(s), bytesMax)}
	case !utf8.ValidString(s) || strings.IndexByte(s, 0) >= 0:
		return &InvalidError{Field: field, Message: "isn't text: it must be UTF-8 without NUL"}
	}
	return nil
}

// newRun is a UUIDv7 whose time is now.
func newRun(now statemachine.Micros, random io.Reader) uuid.UUID {
	var id uuid.UUID
	_, _ = io.ReadFull(random, id[6:]) // it never fails
	ms := now / 1000
	for i := 5; i >= 0; i-- {
		id[i] = byte(ms)
		ms >>= 8
	}
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	return id
}
