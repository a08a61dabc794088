package expr

import (
	"bytes"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Validate says whether doc fits the schema. The *DocumentError names the first place that doesn't and what is
// wanted there, such as "$.lines[0].qty: want integer, got string", never the value. It refuses what CheckJSON
// refuses. Numbers are compared by their digits: 1.0 is an integer, and no bound is rounded.
func (s *Schema) Validate(doc []byte) error {
	if s.quickly(doc) {
		return nil
	}
	// It says why not.
	return s.validate(doc)
}

func (s *Schema) validate(doc []byte) error {
	if err := scan(doc, true); err != nil {
		return err
	}
	if s == nil {
		return nil
	}
	v := validator{steps: validateStepsMax}
	i := space(doc, 0)
	if err := v.check(s, doc[i:skip(doc, i)], nil); err != nil {
		return err
	}
	return nil
}

type validator struct {
	steps int // left
	quiet int // above 0 within alternatives, where nobody reads the messages
}

var errQuiet = &DocumentError{Code: CodeSchema}

// place is a path under construction, innermost first.
type place struct {
	up    *place
	key   string
	index int // if key is empty and named is false
	named bool
}

func (p *place) String() string {
	if p == nil {
		return "$"
	}
	if p.named {
		return p.up.String() + keySegment([]byte(p.key))
	}
	return p.up.String() + "[" + strconv.Itoa(p.index) + "]"
}

func (v *validator) bad(p *place, format string, args ...any) *DocumentError {
	if v.quiet > 0 {
		return errQuiet
	}
	return &DocumentError{CodeSchema, p.String(), shortMessage(fmt.Sprintf(format, args...))}
}

func (v *validator) check(s *Schema, raw []byte, at *place) *DocumentError {
	if v.steps -= stepsOf(raw); v.steps < 0 {
		return &DocumentError{CodeCost, at.String(), "validating takes too many steps; use fewer alternatives (anyOf, oneOf) in the schema"}
	}
	if s.never {
		return v.bad(at, "nothing is allowed here")
	}
	if s.ref != nil {
		if err := v.check(s.ref, raw, at); err != nil {
			return err
		}
	}
	got := typeOf(raw)
	if s.types != 0 && s.types&got == 0 && (got != typeInteger || s.types&typeNumber == 0) {
		return v.bad(at, "want %s, got %s", s.types, got)
	}
	if s.enum != nil {
		v.steps -= len(raw) / 8
		c, _ := canonical(nil, raw, 0, true)
		found := false
		for _, e := range s.enum {
			found = found || bytes.Equal(e, c)
		}
		if !found {
			return v.bad(at, "want %s", oneOfNames(s.enumShown))
		}
	}
	var err *DocumentError
	switch got {
	case typeInteger, typeNumber:
		err = v.checkNumber(s, raw, at)
	case typeString:
		err = v.checkString(s, raw, at)
	case typeArray:
		err = v.checkArray(s, raw, at)
	case typeObject:
		err = v.checkObject(s, raw, at)
	}
	if err != nil {
		return err
	}
	return v.checkCombined(s, raw, at)
}

func oneOfNames(names []string) string {
	if len(names) == 1 {
		return names[0]
	}
	if len(names) > enumShownMax {
		return "one of " + strings.Join(names[:enumShownMax], ", ") + ", ..."
	}
	return "one of " + strings.Join(names, ", ")
}

func (v *validator) checkCombined(s *Schema, raw []byte, at *place) *DocumentError {
	for _, t := range s.allOf {
		if err := v.check(t, raw, at); err != nil {
			return err
		}
	}
	if s.anyOf != nil {
		ok := false
		for _, t := range s.anyOf {
			err := v.try(t, raw, at)
			if err != nil && err.Code == CodeCost {
				return err
			}
			if ok = err == nil; ok {
				break
			}
		}
		if !ok {
			return v.bad(at, "want %s; got %s that fits none of them", alternatives(s.anyOf), withArticle(typeOf(raw)))
		}
	}
	if s.oneOf != nil {
		n := 0
		for _, t := range s.oneOf {
			err := v.try(t, raw, at)
			if err != nil && err.Code == CodeCost {
				return err
			}
			if err == nil {
				n++
			}
		}
		if n != 1 {
			return v.bad(at, "want exactly one of: %s; got %s that fits %d of them", alternatives(s.oneOf), withArticle(typeOf(raw)), n)
		}
	}
	if s.not != nil {
		err := v.try(s.not, raw, at)
		if err == nil {
			return v.bad(at, "want anything but %s", s.not)
		}
		if err.Code == CodeCost {
			return err
		}
	}
	return nil
}

// try checks an alternative.
func (v *validator) try(s *Schema, raw []byte, at *place) *DocumentError {
	v.quiet++
	defer func() { v.quiet-- }()
	return v.check(s, raw, at)
}

func withArticle(t typeSet) string {
	switch t {
	case typeInteger, typeArray, typeObject:
		return "an " + t.String()
	case typeNull:
		return "null"
	}
	return "a " + t.String()
}

func alternatives(list []*Schema) string {
	var names []string
	for _, s := range list[:min(len(list), enumShownMax)] {
		names = append(names, s.String())
	}
	return strings.Join(names, ", ")
}

func (v *validator) checkNumber(s *Schema, raw []byte, at *place) *DocumentError {
	if s.minimum == nil && s.maximum == nil && s.above == nil && s.below == nil && s.multipleOf == nil || s.within64(raw) {
		return nil
	}
	if len(raw) > numberDigitsMax {
		return v.bad(at, "want a number of at most %d digits", numberDigitsMax)
	}
	d := parseDecimal(raw)
	switch {
	case s.minimum != nil && d.cmp(*s.minimum) < 0:
		return v.bad(at, "want at least %s", s.minimum.show())
	case s.maximum != nil && d.cmp(*s.maximum) > 0:
		return v.bad(at, "want at most %s", s.maximum.show())
	case s.above != nil && d.cmp(*s.above) <= 0:
		return v.bad(at, "want more than %s", s.above.show())
	case s.below != nil && d.cmp(*s.below) >= 0:
		return v.bad(at, "want less than %s", s.below.show())
	case s.multipleOf != nil && !d.multipleOf(*s.multipleOf):
		return v.bad(at, "want a multiple of %s", s.multipleOf.show())
	}
	return nil
}

// show writes d for a message.
func (d decimal) show() string {
	if d.integral() && d.exp <= 21 || len(d.digits) == 0 {
		b := []byte{}
		if d.neg {
			b = append(b, '-')
		}
		b = append(b, d.digits...)
		for range d.exp - len(d.digits) {
			b = append(b, '0')
		}
		if len(d.digits) == 0 {
			return "0"
		}
		return string(b)
	}
	if d.exp > -6 && d.exp <= 21 {
		b := []byte{}
		if d.neg {
			b = append(b, '-')
		}
		if d.exp <= 0 {
			b = append(b, "0."...)
			for range -d.exp {
				b = append(b, '0')
			}
			return string(append(b, d.digits...))
		}
		b = append(append(b, d.digits[:d.exp]...), '.')
		return string(append(b, d.digits[d.exp:]...))
	}
	return string(d.append(nil))
}

// multipleOf says whether d is a whole multiple of m. Beyond some 400 digits it says no.
func (d decimal) multipleOf(m decimal) bool {
	if len(d.digits) == 0 {
		return true
	}
	shift := (d.exp - len(d.digits)) - (m.exp - len(m.digits))
	if shift > numberDigitsMax || shift < -numberDigitsMax {
		return shift > 0 && d.integralMultipleByPower(m)
	}
	x, _ := new(big.Int).SetString(string(d.digits), 10)
	y, _ := new(big.Int).SetString(string(m.digits), 10)
	p := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(shift, -shift))), nil)
	if shift >= 0 {
		x.Mul(x, p)
	} else {
		y.Mul(y, p)
	}
	return new(big.Int).Rem(x, y).Sign() == 0
}

// integralMultipleByPower is multipleOf for a d that ends in more zeros than m has digits: only m's factors
// besides 2 and 5 count.
func (d decimal) integralMultipleByPower(m decimal) bool {
	y, _ := new(big.Int).SetString(string(m.digits), 10)
	for _, f := range []int64{2, 5} {
		for q, r := new(big.Int), new(big.Int); ; {
			if q.QuoRem(y, big.NewInt(f), r); r.Sign() != 0 {
				break
			}
			y.Set(q)
		}
	}
	x, _ := new(big.Int).SetString(string(d.digits), 10)
	return new(big.Int).Rem(x, y).Sign() == 0
}

func (v *validator) checkString(s *Schema, raw []byte, at *place) *DocumentError {
	if s.minLength == 0 && s.maxLength < 0 && s.pattern == nil {
		return nil
	}
	t := text(raw)
	if s.minLength > 0 || s.maxLength >= 0 {
		n := utf8.RuneCountInString(t)
		if n < s.minLength {
			return v.bad(at, "want at least %d characters, got %d", s.minLength, n)
		}
		if s.maxLength >= 0 && n > s.maxLength {
			return v.bad(at, "want at most %d characters, got %d", s.maxLength, n)
		}
	}
	if s.pattern != nil {
		if s.pattern.work(len(t)) > matchWorkMax {
			return v.bad(at, "the string is too long to be matched with the pattern; give the schema a maxLength")
		}
		if !s.pattern.re.MatchString(t) {
			return v.bad(at, "want a string that matches %s", s.pattern.re)
		}
	}
	return nil
}

func (v *validator) checkArray(s *Schema, raw []byte, at *place) *DocumentError {
	if s.items == nil && s.prefix == nil && s.minItems == 0 && s.maxItems < 0 && !s.unique {
		return nil
	}
	var err *DocumentError
	var seen map[string]int
	if s.unique {
		seen = map[string]int{}
	}
	n := 0
	elements(raw, 0, func(e []byte, _ int) bool {
		t := s.items
		if n < len(s.prefix) {
			t = s.prefix[n]
		}
		if t != nil {
			err = v.check(t, e, &place{up: at, index: n})
		}
		if seen != nil && err == nil {
			c, _ := canonical(nil, e, 0, true)
			if first, dup := seen[string(c)]; dup {
				err = v.bad(&place{up: at, index: n}, "want different elements, this one equals [%d]", first)
			}
			seen[string(c)] = n
		}
		n++
		return err == nil
	})
	switch {
	case err != nil:
		return err
	case n < s.minItems:
		return v.bad(at, "want at least %d elements, got %d", s.minItems, n)
	case s.maxItems >= 0 && n > s.maxItems:
		return v.bad(at, "want at most %d elements, got %d", s.maxItems, n)
	}
	return nil
}

func (v *validator) checkObject(s *Schema, raw []byte, at *place) *DocumentError {
	if s.props == nil && s.required == nil && s.additional == nil && s.patterns == nil && s.minProps == 0 && s.maxProps < 0 {
		return nil
	}
	var err *DocumentError
	n, met := 0, 0
	var missing map[string]bool
	if len(s.required) > 0 {
		missing = make(map[string]bool, len(s.required))
		for _, r := range s.required {
			missing[r] = true
		}
	}
	var buf []byte
	members(raw, 0, func(k, e []byte, _ int) bool {
		n++
		if bytes.IndexByte(k, '\\') >= 0 {
			buf = unescape(buf[:0], k)
			k = buf
		}
		if missing[string(k)] {
			met++
			delete(missing, string(k))
		}
		known := false
		if t := s.props[string(k)]; t != nil {
			known = true
			err = v.check(t, e, &place{up: at, key: string(k), named: true})
		}
		for _, p := range s.patterns {
			if err != nil {
				return false
			}
			if p.pattern.work(len(k)) > matchWorkMax {
				err = v.bad(at, "a key is too long to be matched with the pattern")
				return false
			}
			if p.pattern.re.Match(k) {
				known = true
				err = v.check(p.schema, e, &place{up: at, key: string(k), named: true})
			}
		}
		if err == nil && !known && s.additional != nil {
			here := &place{up: at, key: string(k), named: true}
			if s.additional.never {
				err = v.bad(here, "no such field is allowed%s", hint(string(k), s.propNames))
			} else {
				err = v.check(s.additional, e, here)
			}
		}
		return err == nil
	})
	if err != nil {
		return err
	}
	for _, r := range s.required {
		if missing[r] {
			return v.bad(&place{up: at, key: r, named: true}, "required, but missing")
		}
	}
	switch {
	case n < s.minProps:
		return v.bad(at, "want at least %d fields, got %d", s.minProps, n)
	case s.maxProps >= 0 && n > s.maxProps:
		return v.bad(at, "want at most %d fields, got %d", s.maxProps, n)
	}
	return nil
}
