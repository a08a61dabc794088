package expr

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"unicode/utf16"
	"unicode/utf8"
)

// CheckJSON says whether doc is a JSON document that can be stored and read the same by everyone. It refuses,
// with a *DocumentError: anything that isn't JSON, invalid UTF-8, lone surrogates, U+0000 in strings and
// keys, a key that comes twice in one object, nesting beyond NestingMax, and more than DocumentBytesMax.
func CheckJSON(doc []byte) error {
	if err := scan(doc, true); err != nil {
		return err
	}
	return nil
}

// CanonicalJSON is doc in the one form that equal documents share: keys sorted by their bytes, no white space,
// strings with as few escapes as can be. Numbers keep the digits they were written with: 1.0 stays 1.0. It
// refuses what CheckJSON refuses.
func CanonicalJSON(doc []byte) ([]byte, error) {
	return AppendCanonicalJSON(make([]byte, 0, len(doc)), doc)
}

// AppendCanonicalJSON appends what CanonicalJSON returns to dst.
func AppendCanonicalJSON(dst, doc []byte) ([]byte, error) {
	if err := scan(doc, true); err != nil {
		return nil, err
	}
	dst, _ = canonical(dst, doc, space(doc, 0), false)
	return dst, nil
}

// scan reads all of doc by the grammar. Strict also refuses what is JSON but not fit to be stored.
func scan(doc []byte, strict bool) *DocumentError {
	if len(doc) > DocumentBytesMax {
		return &DocumentError{CodeTooLarge, "$", fmt.Sprintf("the document has %d bytes, the limit is %d", len(doc), DocumentBytesMax)}
	}
	s := scanners.Get().(*scanner)
	s.b, s.strict = doc, strict
	var err *DocumentError
	if s.document() < 0 {
		err = &DocumentError{s.code, s.path(), s.msg}
	}
	s.reset()
	scanners.Put(s)
	return err
}

// scanners keep their memory.
var scanners = sync.Pool{New: func() any { return new(scanner) }}

// reset forgets the document.
func (s *scanner) reset() {
	keys := s.keys[:cap(s.keys)]
	clear(keys)
	*s = scanner{keys: keys[:0]}
	if cap(s.keys) > scannerKeysMax {
		s.keys = nil
	}
}

// scannerKeysMax is for how many keys a scanner keeps memory.
const scannerKeysMax = 256

// document reads all there is.
func (s *scanner) document() int {
	i := space(s.b, 0)
	if i == len(s.b) {
		return s.fail(CodeBadDocument, "no JSON: the document is empty")
	}
	if i = s.value(i, 0); i >= 0 {
		if i = space(s.b, i); i < len(s.b) {
			i = s.fail(CodeBadDocument, "not JSON: something follows the value at byte %d", i)
		}
	}
	return i
}

// scanner holds a document under validation. Its methods take the place where something starts and return the
// place after it, or -1 after a failure.
type scanner struct {
	b      []byte
	strict bool
	keys   [][]byte // keys of the open objects, decoded; those of the innermost last
	code   Code
	msg    string
	trail  []string // from the failure outwards

	outline *[]member // gets the outermost members, unless it is nil
}

func (s *scanner) fail(code Code, format string, args ...any) int {
	s.code, s.msg = code, fmt.Sprintf(format, args...)
	return -1
}

func (s *scanner) path() string {
	n := []byte("$")
	for _, t := range slices.Backward(s.trail) {
		n = append(n, t...)
	}
	return string(n)
}

func keySegment(key []byte) string {
	if k := shortKey(string(key)); isWord(k) {
		return "." + k
	} else if k[0] == '"' {
		return "[" + k + "]"
	} else {
		return "." + k
	}
}

func (s *scanner) value(i, depth int) int {
	if i >= len(s.b) {
		return s.fail(CodeBadDocument, "not JSON: it ends too early")
	}
	switch c := s.b[i]; c {
	case '{':
		if depth >= NestingMax {
			return s.fail(CodeNesting, "nested deeper than %d", NestingMax)
		}
		return s.object(i, depth)
	case '[':
		if depth >= NestingMax {
			return s.fail(CodeNesting, "nested deeper than %d", NestingMax)
		}
		return s.array(i, depth)
	case '"':
		return s.string(i, "a string")
	case 't':
		return s.word(i, "true")
	case 'f':
		return s.word(i, "false")
	case 'n':
		return s.word(i, "null")
	default:
		return s.number(i)
	}
}

func (s *scanner) word(i int, w string) int {
	if i+len(w) > len(s.b) || string(s.b[i:i+len(w)]) != w {
		return s.fail(CodeBadDocument, "not JSON at byte %d", i)
	}
	return i + len(w)
}

func (s *scanner) number(i int) int {
	start := i
	digits := func() bool {
		from := i
		for i < len(s.b) && s.b[i] >= '0' && s.b[i] <= '9' {
			i++
		}
		return i > from
	}
	if i < len(s.b) && s.b[i] == '-' {
		i++
	}
	zero := i < len(s.b) && s.b[i] == '0'
	from := i
	if !digits() || zero && i > from+1 {
		return s.fail(CodeBadDocument, "not JSON at byte %d", start)
	}
	if i < len(s.b) && s.b[i] == '.' {
		i++
		if !digits() {
			return s.fail(CodeBadDocument, "not JSON: a number without digits after its point at byte %d", start)
		}
	}
	if i < len(s.b) && (s.b[i] == 'e' || s.b[i] == 'E') {
		i++
		if i < len(s.b) && (s.b[i] == '+' || s.b[i] == '-') {
			i++
		}
		if !digits() {
			return s.fail(CodeBadDocument, "not JSON: a number without digits in its exponent at byte %d", start)
		}
	}
	return i
}

func (s *scanner) string(i int, what string) int {
	start := i
	high := false
	for i++; i < len(s.b); i++ {
		switch c := s.b[i]; {
		case c == '"':
			if high && !utf8.Valid(s.b[start:i]) {
				return s.fail(CodeUTF8, "%s holds invalid UTF-8", what)
			}
			return i + 1
		case c == '\\':
			i++
			if i >= len(s.b) {
				break
			}
			switch s.b[i] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				r := hex4(s.b, i+1)
				if r < 0 {
					return s.fail(CodeBadDocument, "not JSON: a broken \\u escape at byte %d", i-1)
				}
				i += 4
				if !s.strict {
					continue
				}
				if r == 0 {
					return s.fail(CodeNUL, "%s holds U+0000, which can't be stored", what)
				}
				if utf16.IsSurrogate(r) {
					low := rune(-1)
					if i+2 < len(s.b) && s.b[i+1] == '\\' && s.b[i+2] == 'u' {
						low = hex4(s.b, i+3)
					}
					if utf16.DecodeRune(r, low) == utf8.RuneError {
						return s.fail(CodeUTF8, "%s holds half a surrogate pair", what)
					}
					i += 6
				}
			default:
				return s.fail(CodeBadDocument, "not JSON: an unknown escape at byte %d", i-1)
			}
		case c < 0x20:
			return s.fail(CodeBadDocument, "not JSON: a bare control character in %s at byte %d", what, i)
		case c >= utf8.RuneSelf:
			high = true
		}
	}
	return s.fail(CodeBadDocument, "not JSON: %s without an end", what)
}

func (s *scanner) array(i, depth int) int {
	i = space(s.b, i+1)
	if i < len(s.b) && s.b[i] == ']' {
		return i + 1
	}
	for n := 0; ; n++ {
		if i = s.value(i, depth+1); i < 0 {
			s.trail = append(s.trail, "["+strconv.Itoa(n)+"]")
			return -1
		}
		i = space(s.b, i)
		switch {
		case i < len(s.b) && s.b[i] == ',':
			i = space(s.b, i+1)
		case i < len(s.b) && s.b[i] == ']':
			return i + 1
		default:
			return s.fail(CodeBadDocument, "not JSON: an array without , or ] at byte %d", i)
		}
	}
}

// seenMin is from how many keys on a set pays against comparing with each.
const seenMin = 16

func (s *scanner) object(i, depth int) int {
	i = space(s.b, i+1)
	if i < len(s.b) && s.b[i] == '}' {
		return i + 1
	}
	base := len(s.keys)
	var seen map[string]struct{}
	for {
		if i >= len(s.b) || s.b[i] != '"' {
			return s.fail(CodeBadDocument, "not JSON: an object without a key at byte %d", i)
		}
		from := i
		if i = s.string(i, "a key"); i < 0 {
			return -1
		}
		keyEnd := i - 1
		key := s.b[from+1 : keyEnd]
		if s.strict {
			if bytes.IndexByte(key, '\\') >= 0 {
				key = unescape(nil, key)
			}
			if s.repeated(key, base, &seen) {
				s.trail = append(s.trail, keySegment(key))
				return s.fail(CodeDuplicate, "the key comes twice in one object")
			}
		}
		i = space(s.b, i)
		if i >= len(s.b) || s.b[i] != ':' {
			return s.fail(CodeBadDocument, "not JSON: a key without a colon at byte %d", i)
		}
		value := space(s.b, i+1)
		if i = s.value(value, depth+1); i < 0 {
			if !s.strict && bytes.IndexByte(key, '\\') >= 0 {
				key = unescape(nil, key)
			}
			s.trail = append(s.trail, keySegment(key))
			return -1
		}
		if s.outline != nil && depth == 0 {
			*s.outline = append(*s.outline, member{from + 1, keyEnd, value, i})
		}
		i = space(s.b, i)
		switch {
		case i < len(s.b) && s.b[i] == ',':
			i = space(s.b, i+1)
		case i < len(s.b) && s.b[i] == '}':
			s.keys = s.keys[:base]
			return i + 1
		default:
			return s.fail(CodeBadDocument, "not JSON: an object without , or } at byte %d", i)
		}
	}
}

// repeated says whether the object whose keys begin at base has the key already, and notes it.
func (s *scanner) repeated(key []byte, base int, seen *map[string]struct{}) bool {
	if *seen != nil {
		if _, dup := (*seen)[string(key)]; dup {
			return true
		}
		(*seen)[string(key)] = struct{}{}
		return false
	}
	for _, k := range s.keys[base:] {
		if bytes.Equal(k, key) {
			return true
		}
	}
	if s.keys = append(s.keys, key); len(s.keys)-base == seenMin {
		*seen = make(map[string]struct{}, 2*seenMin)
		for _, k := range s.keys[base:] {
			(*seen)[string(k)] = struct{}{}
		}
	}
	return false
}

func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

func hex4(b []byte, i int) rune {
	if i+4 > len(b) {
		return -1
	}
	var r rune
	for _, c := range b[i : i+4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// What follows reads documents that scan has accepted, so it doesn't look for errors.

// skip returns the place after the value that starts at i.
func skip(b []byte, i int) int {
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '{', '[':
		for depth := 0; ; i++ {
			switch b[i] {
			case '"':
				i = skipString(b, i) - 1
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
		}
	default:
		for i < len(b) {
			switch b[i] {
			case ',', ']', '}', ' ', '\n', '\t', '\r':
				return i
			}
			i++
		}
		return i
	}
}

func skipString(b []byte, i int) int {
	for i++; b[i] != '"'; i++ {
		if b[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// members calls f with the raw key (between its quotes), the raw value and the value's place of each member of the
// object at i, in the document's order, until f says no.
func members(b []byte, i int, f func(key, value []byte, at int) bool) {
	for i = space(b, i+1); b[i] != '}'; {
		end := skipString(b, i)
		from := space(b, space(b, end)+1)
		to := skip(b, from)
		if !f(b[i+1:end-1], b[from:to], from) {
			return
		}
		if i = space(b, to); b[i] == ',' {
			i = space(b, i+1)
		}
	}
}

// elements calls f with each raw element of the array at i and its place, until f says no.
func elements(b []byte, i int, f func(value []byte, at int) bool) {
	for i = space(b, i+1); b[i] != ']'; {
		to := skip(b, i)
		if !f(b[i:to], i) {
			return
		}
		if i = space(b, to); b[i] == ',' {
			i = space(b, i+1)
		}
	}
}

// unescape appends the decoded content of a JSON string, given without its quotes.
func unescape(dst, raw []byte) []byte {
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if c != '\\' {
			dst = append(dst, c)
			continue
		}
		i++
		switch raw[i] {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r := hex4(raw, i+1)
			i += 4
			if utf16.IsSurrogate(r) {
				low := rune(-1)
				if i+2 < len(raw) && raw[i+1] == '\\' && raw[i+2] == 'u' {
					low = hex4(raw, i+3)
				}
				if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
					i += 6
				}
			}
			dst = utf8.AppendRune(dst, r)
		default:
			dst = append(dst, raw[i])
		}
	}
	return dst
}

// text is the decoded content of a raw JSON string, quotes included.
func text(raw []byte) string {
	raw = raw[1 : len(raw)-1]
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw)
	}
	return string(unescape(nil, raw))
}

// appendString appends s as a JSON string with as few escapes as can be.
func appendString(dst []byte, s string) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c >= 0x20:
			dst = append(dst, c)
		case c == '\b':
			dst = append(dst, '\\', 'b')
		case c == '\f':
			dst = append(dst, '\\', 'f')
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c == '\r':
			dst = append(dst, '\\', 'r')
		case c == '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		}
	}
	return append(dst, '"')
}

// canonical appends the canonical form of the value at i and returns the place after it. With values set,
// numbers that are equal come out the same too.
func canonical(dst, b []byte, i int, values bool) ([]byte, int) {
	switch b[i] {
	case '"':
		end := skipString(b, i)
		return canonicalString(dst, b[i:end]), end
	case '[':
		dst = append(dst, '[')
		for i = space(b, i+1); b[i] != ']'; {
			dst, i = canonical(dst, b, i, values)
			dst = append(dst, ',')
			if i = space(b, i); b[i] == ',' {
				i = space(b, i+1)
			}
		}
		return closing(dst, ']'), i + 1
	case '{':
		return canonicalObject(append(dst, '{'), b, i, values)
	default:
		end := skip(b, i)
		if c := b[i]; values && (c == '-' || c >= '0' && c <= '9') {
			return parseDecimal(b[i:end]).append(dst), end
		}
		return append(dst, b[i:end]...), end
	}
}

// canonicalString appends a raw string with as few escapes as can be. One without any has none to lose.
func canonicalString(dst, raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return append(dst, raw...)
	}
	return appendString(dst, text(raw))
}

func canonicalObject(dst, b []byte, i int, values bool) ([]byte, int) {
	type entry struct {
		key      []byte
		from, to int // in dst, comma included
	}
	var room [12]entry
	all := room[:0]
	start := len(dst)
	sorted := true
	for i = space(b, i+1); b[i] != '}'; {
		end := skipString(b, i)
		key := b[i+1 : end-1]
		if bytes.IndexByte(key, '\\') >= 0 {
			key = unescape(nil, key)
		}
		from := len(dst)
		dst = append(canonicalString(dst, b[i:end]), ':')
		dst, i = canonical(dst, b, space(b, space(b, end)+1), values)
		dst = append(dst, ',')
		sorted = sorted && (len(all) == 0 || bytes.Compare(all[len(all)-1].key, key) < 0)
		all = append(all, entry{key, from, len(dst)})
		if i = space(b, i); b[i] == ',' {
			i = space(b, i+1)
		}
	}
	if !sorted {
		// The members are written once more in their order, behind, and moved to the front.
		slices.SortStableFunc(all, func(a, b entry) int { return bytes.Compare(a.key, b.key) })
		end := len(dst)
		for _, e := range all {
			dst = append(dst, dst[e.from:e.to]...)
		}
		copy(dst[start:], dst[end:])
		dst = dst[:end]
	}
	return closing(dst, '}'), i + 1
}

// closing ends a list of members that each have a comma behind them.
func closing(dst []byte, c byte) []byte {
	if dst[len(dst)-1] == ',' {
		dst[len(dst)-1] = c
		return dst
	}
	return append(dst, c)
}

// compact appends raw without white space and returns how deep it is nested.
func compact(dst, raw []byte) ([]byte, int) {
	depth, deepest := 0, 0
	for i := 0; i < len(raw); {
		switch c := raw[i]; c {
		case '"':
			end := skipString(raw, i)
			dst = append(dst, raw[i:end]...)
			i = end
			continue
		case ' ', '\n', '\t', '\r':
		case '{', '[':
			depth++
			deepest = max(deepest, depth)
			dst = append(dst, c)
		case '}', ']':
			depth--
			dst = append(dst, c)
		default:
			dst = append(dst, c)
		}
		i++
	}
	return dst, deepest
}
