package store

import (
	"encoding/json"
	"strings"
)

// Text is s without what a database refuses in text: NUL and what isn't UTF-8 become U+FFFD. It is for what workers say
// (messages, codes, reasons), which must never make a commit fail; keys and ids are refused earlier instead.
func Text(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(s, "\x00", "\uFFFD")
	}
	return s
}

// EncodeLabels is how labels are stored: a JSON object with sorted keys; "" if there are none.
func EncodeLabels(labels map[string]string) string {
	if len(labels) == 0 {
		return ""
	}
	b, err := json.Marshal(labels)
	if err != nil {
		panic(err) // strings always encode
	}
	return string(b)
}

// DecodeLabels reverses [EncodeLabels].
func DecodeLabels(s string) (map[string]string, error) {
	if s == "" {
		return nil, nil
	}
	var labels map[string]string
	return labels, json.Unmarshal([]byte(s), &labels)
}
