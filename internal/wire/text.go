package wire

import (
	"strings"
	"unicode/utf8"
)

// CleanText makes a text storable: invalid UTF-8 becomes U+FFFD, NUL becomes U+2400, and what is longer than bytesMax is
// cut at a character's border, ending in "...". Texts from workers pass through it.
func CleanText(s string, bytesMax int) string {
	if len(s) > 2*bytesMax { // so that the work is bounded too
		s = s[:2*bytesMax]
	}
	s = strings.ToValidUTF8(s, "\uFFFD")
	if strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(s, "\x00", "\u2400")
	}
	if len(s) <= bytesMax {
		return s
	}
	const mark = "..."
	n := max(0, bytesMax-len(mark))
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + mark[:min(len(mark), bytesMax)]
}
