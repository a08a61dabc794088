package expr

import (
	"bytes"
	"math"
	"sync"
)

// rule is what an object schema says of the fields of one name.
type rule struct {
	schema   *Schema // nil: not listed
	required bool
}

// prepare derives what a quick validation goes by. It comes after setKind.
func (s *Schema) prepare() {
	s.plain = !s.never && s.enum == nil && s.patterns == nil && s.prefix == nil && !s.unique &&
		s.anyOf == nil && s.oneOf == nil && s.allOf == nil && s.not == nil
	s.alias = s.plain && s.ref != nil && s.types == 0 && s.props == nil && s.required == nil && s.additional == nil &&
		s.minProps == 0 && s.maxProps < 0 && s.items == nil && s.minItems == 0 && s.maxItems < 0 && s.minLength == 0 && s.maxLength < 0 &&
		s.pattern == nil && s.minimum == nil && s.maximum == nil && s.above == nil && s.below == nil && s.multipleOf == nil
	s.plain = s.plain && s.ref == nil
	s.prepareBounds()
	if len(s.props)+len(s.required) == 0 {
		return
	}
	s.rules = make(map[string]rule, len(s.props)+len(s.required))
	for name, p := range s.props { // into a map: order doesn't matter
		s.rules[name] = rule{schema: p}
	}
	for _, name := range s.required {
		s.rules[name] = rule{s.props[name], true}
	}
}

// prepareBounds makes the bounds int64, if that says the same of whole numbers: integer types of languages have bounds, and
// nearly all numbers are far within. It saves what decimals cost.
func (s *Schema) prepareBounds() {
	if s.minimum == nil && s.maximum == nil || s.above != nil || s.below != nil || s.multipleOf != nil {
		return
	}
	least, most := int64(math.MinInt64), int64(math.MaxInt64)
	whole := func(bound *decimal, to *int64) bool {
		if bound == nil {
			return true
		}
		if v, ok := bound.int(); ok {
			*to = v
			return true
		}
		return bound.integral() && (bound.sign() < 0) == (*to < 0) // beyond all int64, away from zero
	}
	s.bounded = whole(s.minimum, &least) && whole(s.maximum, &most)
	s.least, s.most = least, most
}

// within64 says that a number is surely within the bounds. No may mean perhaps.
func (s *Schema) within64(raw []byte) bool {
	if !s.bounded || len(raw) > within64BytesMax {
		return false
	}
	digits, negative := bytes.CutPrefix(raw, []byte{'-'})
	var v int64
	for i, c := range digits {
		if c == '.' && s.least <= -within64Beyond && s.most >= within64Beyond {
			return !bytes.ContainsAny(digits[i:], "eE")
		}
		if c < '0' || c > '9' {
			return false
		}
		v = v*10 + int64(c-'0')
	}
	if negative {
		v = -v
	}
	return s.least <= v && v <= s.most
}

const (
	within64BytesMax = 18
	// within64Beyond is beyond all numbers of that many characters without an exponent.
	within64Beyond = 1_000_000_000_000_000_000
)

// quick validates a document while it reads it, once and as a rule without memory. It only says yes or no; whoever
// wants to know why not asks the validator. What isn't usual in a schema, it asks the validator too.
type quick struct {
	scanner
	v validator
}

// quickly says whether doc fits the schema and can be stored. It is what Validate says.
func (s *Schema) quickly(doc []byte) bool {
	if len(doc) > DocumentBytesMax {
		return false
	}
	q := quicks.Get().(*quick)
	q.b, q.strict = doc, true
	q.v = validator{steps: validateStepsMax, quiet: 1}
	i := q.value(s, space(doc, 0), 0)
	ok := i >= 0 && space(doc, i) == len(doc) && q.v.steps >= 0
	q.reset()
	quicks.Put(q)
	return ok
}

// quicks keep their memory.
var quicks = sync.Pool{New: func() any { return new(quick) }}

func (q *quick) value(s *Schema, i, depth int) int {
	visits := 1
	for s != nil && s.alias {
		s = s.ref
		visits++
	}
	if i >= len(q.b) {
		return -1
	}
	if s == nil || !s.plain {
		end := q.scanner.value(i, depth)
		if end < 0 || s == nil {
			return end
		}
		if q.v.steps -= (visits - 1) * stepsOf(q.b[i:end]); q.v.check(s, q.b[i:end], nil) != nil {
			return -1
		}
		return end
	}
	end := -1
	switch q.b[i] {
	case '{':
		if depth >= NestingMax || s.types != 0 && s.types&typeObject == 0 {
			return -1
		}
		end = q.object(s, i, depth)
	case '[':
		if depth >= NestingMax || s.types != 0 && s.types&typeArray == 0 {
			return -1
		}
		end = q.array(s, i, depth)
	default:
		if end = q.scanner.value(i, depth); end < 0 {
			return -1
		}
		raw := q.b[i:end]
		if !s.allowsType(raw) {
			return -1
		}
		switch c := raw[0]; {
		case c == '"':
			if q.v.checkString(s, raw, nil) != nil {
				return -1
			}
		case c == '-' || c >= '0' && c <= '9':
			if q.v.checkNumber(s, raw, nil) != nil {
				return -1
			}
		}
	}
	if end >= 0 {
		q.v.steps -= visits * stepsOf(q.b[i:end])
	}
	return end
}

// stepsOf is what looking at a raw value counts for.
func stepsOf(raw []byte) int { return 1 + len(raw)/validateBytesPerStep }

func (q *quick) array(s *Schema, i, depth int) int {
	b, n := q.b, 0
	i = space(b, i+1)
	if i < len(b) && b[i] == ']' {
		return q.counted(i+1, 0, s.minItems, s.maxItems)
	}
	for {
		n++
		if s.items != nil {
			i = q.value(s.items, i, depth+1)
		} else {
			i = q.scanner.value(i, depth+1)
		}
		if i < 0 {
			return -1
		}
		i = space(b, i)
		switch {
		case i < len(b) && b[i] == ',':
			i = space(b, i+1)
		case i < len(b) && b[i] == ']':
			return q.counted(i+1, n, s.minItems, s.maxItems)
		default:
			return -1
		}
	}
}

// counted is i if n is within the bounds.
func (q *quick) counted(i, n, least, most int) int {
	if n < least || most >= 0 && n > most {
		return -1
	}
	return i
}

func (q *quick) object(s *Schema, i, depth int) int {
	b, n, met := q.b, 0, 0
	i = space(b, i+1)
	if i < len(b) && b[i] == '}' {
		if len(s.required) > 0 {
			return -1
		}
		return q.counted(i+1, 0, s.minProps, s.maxProps)
	}
	base := len(q.keys)
	var seen map[string]struct{}
	for {
		if i >= len(b) || b[i] != '"' {
			return -1
		}
		from := i
		if i = q.string(i, "a key"); i < 0 {
			return -1
		}
		key := b[from+1 : i-1]
		if bytes.IndexByte(key, '\\') >= 0 {
			key = unescape(nil, key)
		}
		if q.repeated(key, base, &seen) {
			return -1
		}
		n++
		i = space(b, i)
		if i >= len(b) || b[i] != ':' {
			return -1
		}
		i = space(b, i+1)
		r := s.rules[string(key)]
		if r.required {
			met++
		}
		t := r.schema
		if t == nil {
			t = s.additional
		}
		if t != nil {
			i = q.value(t, i, depth+1)
		} else {
			i = q.scanner.value(i, depth+1)
		}
		if i < 0 {
			return -1
		}
		i = space(b, i)
		switch {
		case i < len(b) && b[i] == ',':
			i = space(b, i+1)
		case i < len(b) && b[i] == '}':
			q.keys = q.keys[:base]
			if met < len(s.required) {
				return -1
			}
			return q.counted(i+1, n, s.minProps, s.maxProps)
		default:
			return -1
		}
	}
}
