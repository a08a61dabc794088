package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/sagad/sagad/internal/wire"
	"github.com/sagad/sagad/sdk/client"
	"github.com/sagad/sagad/sdk/saga"
)

const (
	// labelsMax and labelBytesMax bound a saga's labels, their keys and values.
	labelsMax     = 16
	labelBytesMax = 63
)

// StartOption is for one start.
type StartOption func(*order)

// WithVersion starts this version of the definition instead of the one that is the latest when the saga is started.
func WithVersion(version int32) StartOption { return func(o *order) { o.version = version } }

// WithLabel marks the saga: 16 labels at most, of 63 bytes each.
func WithLabel(key, value string) StartOption {
	return func(o *order) {
		if o.labels == nil {
			o.labels = map[string]string{}
		}
		o.labels[key] = value
	}
}

// Start notes, in the transaction of tx, that a saga is to be started under id: once the transaction is committed, a [Relay] does it. The
// definition must be registered by then. An id is 1 to 255 bytes of UTF-8 without control characters; an input has up to 256
// KiB of JSON. An error that wraps client.ErrInvalid says that this can't be started, and nothing was written; any other is the database's.
//
// Whether the id is taken by a saga with other content, only the server knows: such a row is parked.
func Start[In, Out any](ctx context.Context, tx Tx, def *saga.Definition[In, Out], id string, in In, opts ...StartOption) error {
	o := order{sagaID: id, definition: def.Name()}
	for _, opt := range opts {
		opt(&o)
	}
	var err error
	if o.input, err = saga.Encode(in); err != nil {
		return invalid("start %s of %s: the input: %w", quoted(id), def.Name(), err)
	}
	if err := o.check(); err != nil {
		return invalid("start %s of %s: %w", quoted(id), def.Name(), err)
	}
	labels, err := json.Marshal(o.labels)
	if err != nil {
		return invalid("start %s of %s: the labels: %w", quoted(id), def.Name(), err)
	}
	if _, err := tx.exec(ctx, "INSERT INTO sagad_outbox (saga_id, definition, version, input, labels) VALUES ($1, $2, $3, $4, $5)",
		o.sagaID, o.definition, o.version, string(o.input), string(labels)); err != nil {
		return fmt.Errorf("outbox: start %s of %s: %w", quoted(id), def.Name(), err)
	}
	wakeAll()
	return nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("outbox: %w: %w", client.ErrInvalid, fmt.Errorf(format, args...))
}

// quoted is an id as errors show it: short, and without anything that a terminal would obey.
func quoted(id string) string {
	const bytesMax = 80
	if len(id) > bytesMax {
		id = wire.CleanText(id, bytesMax)
	}
	return strconv.QuoteToGraphic(id)
}
