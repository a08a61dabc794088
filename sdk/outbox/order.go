package outbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode"
	"unicode/utf8"

	"github.com/sagad/sagad/internal/wire"
)

// order is what to start.
type order struct {
	sagaID     string
	definition string
	version    int32
	input      []byte
	labels     map[string]string
}

// check says what can be known to be wrong with o without asking the server.
func (o *order) check() error {
	if err := wire.ValidSagaID(o.sagaID); err != nil {
		return err
	}
	if err := wire.ValidDefinition(o.definition); err != nil {
		return err
	}
	if o.version < 0 {
		return fmt.Errorf("version %d: write 1 or more, or leave it out for the latest", o.version)
	}
	if err := wire.Storable(o.input); err != nil {
		return fmt.Errorf("the input: %w", err)
	}
	if len(o.labels) > labelsMax {
		return fmt.Errorf("%d labels, the limit is %d", len(o.labels), labelsMax)
	}
	for k, v := range o.labels {
		if k == "" {
			return errors.New("a label's key is empty")
		}
		for _, s := range [...]string{k, v} {
			if len(s) > labelBytesMax {
				return fmt.Errorf("label %s: key and value have %d bytes at most", quoted(k), labelBytesMax)
			}
			if !printable(s) {
				return fmt.Errorf("label %s: key and value are UTF-8 without control characters", quoted(k))
			}
		}
	}
	return nil
}

func printable(s string) bool {
	for _, r := range s {
		if unicode.IsControl(r) {
			return false
		}
	}
	return utf8.ValidString(s)
}

// row is a row that a relay has taken.
type row struct {
	id       int64
	attempts int
	order
}

// labelsBytesMax bounds what is read as labels: 16 of them, each byte escaped.
const labelsBytesMax = 32 << 10

// orderOf reads what is stored. Rows are written by Start, but anybody can change them.
func orderOf(sagaID, definition string, version int64, input, labels string) (order, error) {
	o := order{sagaID: sagaID, definition: definition, version: int32(version), input: []byte(input)}
	if int64(o.version) != version {
		return o, fmt.Errorf("version %d is out of range", version)
	}
	if len(labels) > labelsBytesMax {
		return o, fmt.Errorf("the labels have %d bytes, the limit is %d", len(labels), labelsBytesMax)
	}
	dec := json.NewDecoder(bytes.NewReader([]byte(labels)))
	if err := dec.Decode(&o.labels); err != nil {
		return o, errors.New("the labels aren't a JSON object of texts")
	}
	if _, err := dec.Token(); err != io.EOF {
		return o, errors.New("more follows the labels")
	}
	return o, o.check()
}
