package outbox

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/sagad/sagad/internal/wire"
	"github.com/sagad/sagad/sdk/client"
	"github.com/sagad/sagad/sdk/saga"
)

// Codes of rows that the server wasn't asked about, or didn't answer.
const (
	// CodeBadRow: what stands in the row can't be started. Somebody has changed it.
	CodeBadRow = "BAD_ROW"
	// codeUnavailable: sagad can't be reached.
	codeUnavailable = "UNAVAILABLE"
)

const (
	codeBytesMax    = 64
	messageBytesMax = 2 << 10
)

// refusal is why a row wasn't delivered.
type refusal struct {
	// final: asking again won't help.
	final         bool
	code, message string
}

// deliver starts a row's saga, and says why if it can't. nil: the server has answered that the saga is durable.
func deliver(ctx context.Context, c *client.Client, o order, bad error) *refusal {
	if bad != nil {
		return &refusal{final: true, code: CodeBadRow, message: clean(bad.Error(), messageBytesMax)}
	}
	// A definition by its name alone: the input is written already.
	def := saga.Define[json.RawMessage, json.RawMessage](o.definition)
	var opts []client.StartOption
	if o.version != 0 {
		opts = append(opts, client.WithVersion(o.version))
	}
	for k, v := range o.labels {
		opts = append(opts, client.WithLabel(k, v))
	}
	_, err := client.Start(ctx, c, def, o.sagaID, json.RawMessage(o.input), opts...)
	if err == nil {
		return nil
	}
	return refusalOf(err)
}

func refusalOf(err error) *refusal {
	r := &refusal{code: codeUnavailable, message: clean(err.Error(), messageBytesMax)}
	var e *client.Error
	if errors.As(err, &e) {
		r.code = clean(e.Code, codeBytesMax)
	}
	switch {
	case errors.Is(err, client.ErrConflict), errors.Is(err, client.ErrInvalid), errors.Is(err, client.ErrNotFound):
		r.final = true
	case r.code == "PAYLOAD_TOO_LARGE", r.code == "QUARANTINED":
		r.final = true
	}
	// All else may be otherwise the next time: the server is away or busy, or doesn't let this client in.
	return r
}

func clean(s string, bytesMax int) string { return wire.CleanText(s, bytesMax) }
