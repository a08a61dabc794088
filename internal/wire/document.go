package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// ErrNotStorable is wrapped by every error of [Storable].
var ErrNotStorable = errors.New("not storable")

// Storable says whether a JSON text can be stored: up to PayloadBytesMax bytes of valid JSON in UTF-8, without a NUL, also not as the
// escape \u0000. An escaped backslash before u0000 is plain text and fine.
func Storable(doc []byte) error {
	switch {
	case len(doc) > PayloadBytesMax:
		return fmt.Errorf("%w: %d bytes, the limit is %d; store it elsewhere and pass a reference", ErrNotStorable, len(doc), PayloadBytesMax)
	case !utf8.Valid(doc):
		return fmt.Errorf("%w: not UTF-8", ErrNotStorable)
	case !json.Valid(doc): // refuses a raw NUL too
		return fmt.Errorf("%w: not JSON", ErrNotStorable)
	case escapesNUL(doc):
		return fmt.Errorf("%w: a text holds a NUL character", ErrNotStorable)
	}
	return nil
}

// escapesNUL looks for \u0000 in valid JSON, where a backslash is always the first of an escape or the second of one.
func escapesNUL(doc []byte) bool {
	for {
		i := bytes.IndexByte(doc, '\\')
		if i < 0 || i+1 >= len(doc) {
			return false
		}
		if bytes.HasPrefix(doc[i+1:], []byte("u0000")) {
			return true
		}
		doc = doc[i+2:]
	}
}
