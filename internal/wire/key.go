package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
)

// IdempotencyKey names a call: <run>/<step>/<item>/<do|undo|probe>/<generation>. It never holds the attempt, so every attempt,
// redelivery and restart has the same. run is the saga's run, a UUID as text; item is empty for steps that run once. A direction
// that is none of these is spelled "unknown", which no other key holds.
func IdempotencyKey(run, step, item string, d workerv1.Direction, generation int32) string {
	word, err := DirectionWord(d)
	if err != nil {
		word = "unknown"
	}
	b := make([]byte, 0, 96)
	b = append(b, run...)
	b = append(b, '/')
	b = append(b, step...)
	b = append(b, '/')
	b = append(b, itemWord(item)...)
	b = append(b, '/')
	b = append(b, word...)
	b = append(b, '/')
	return string(strconv.AppendInt(b, int64(generation), 10))
}

// itemWord spells an item: "-" for none; letters, digits, '.' and '_' as they are; other bytes as %XX; and as '~' and a
// SHA-256 if that would be long. No two items share a word (short of a collision of SHA-256).
func itemWord(item string) string {
	if item == "" {
		return "-"
	}
	const hexDigits, wordBytesMax = "0123456789ABCDEF", 64
	var b strings.Builder
	for i := range len(item) {
		c := item[i]
		if lower(c) || digit(c) || 'A' <= c && c <= 'Z' || c == '.' || c == '_' {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(hexDigits[c>>4])
			b.WriteByte(hexDigits[c&15])
		}
		if b.Len() > wordBytesMax {
			sum := sha256.Sum256([]byte(item))
			return "~" + hex.EncodeToString(sum[:])
		}
	}
	return b.String()
}

// MessageID is the id by which JetStream tells duplicates: <key>#<attempt>#<dispatch>, and +<tasks> for a pack of more than one,
// whose first task gives the rest. A new attempt or dispatch is never taken for a duplicate of an earlier one.
func MessageID(key string, attempt, dispatch int32, tasks int) string {
	b := make([]byte, 0, len(key)+16)
	b = append(b, key...)
	b = append(b, '#')
	b = strconv.AppendInt(b, int64(attempt), 10)
	b = append(b, '#')
	b = strconv.AppendInt(b, int64(dispatch), 10)
	if tasks > 1 {
		b = append(b, '+')
		b = strconv.AppendInt(b, int64(tasks), 10)
	}
	return string(b)
}
