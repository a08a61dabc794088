package wire

import (
	"errors"
	"strings"
	"testing"
)

func TestStorable(t *testing.T) {
	for doc, want := range map[string]string{
		`{}`: "", `null`: "", `12345678901234567890123`: "", `"` + strings.Repeat("x", PayloadBytesMax-2) + `"`: "",
		`{"a":"plain \\u0000 text"}`: "", `"\\\\u0000"`: "", `"\u0001"`: "",
		`{"a":"\u0000"}`: "NUL", `"\\\u0000"`: "NUL", `{"\u0000":1}`: "NUL", "\"\x00\"": "JSON",
		``: "JSON", `{`: "JSON", `NaN`: "JSON", "\"\xff\"": "UTF-8", `"` + strings.Repeat("x", PayloadBytesMax-1) + `"`: "limit",
	} {
		err := Storable([]byte(doc))
		switch {
		case want == "" && err != nil:
			t.Errorf("%.40s: %v", doc, err)
		case want != "" && (!errors.Is(err, ErrNotStorable) || !strings.Contains(err.Error(), want)):
			t.Errorf("%.40s: %v, want one about %s", doc, err, want)
		}
	}
}
