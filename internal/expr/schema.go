package expr

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
)

// Schema is a JSON Schema (draft 2020-12) as far as the engine types and validates with it. It is immutable
// and safe for concurrent use. A nil *Schema means any.
//
// Understood: type, properties, required, additionalProperties, patternProperties, items, prefixItems,
// minItems, maxItems, uniqueItems, minProperties, maxProperties, enum, const, minimum, maximum, exclusiveMinimum,
// exclusiveMaximum, multipleOf, minLength, maxLength, pattern (RE2), anyOf, oneOf, allOf, not, $ref into the same
// document, $defs; and the annotations, which have no effect, format among them. Other keywords are refused,
// since leaving a constraint out silently would let wrong documents pass.
//
// Two rules are stricter than the draft's, because they find misspelt names: an object schema that lists
// properties and says nothing about additionalProperties has only these for the checker (documents may have more),
// and a mapping into it may set only these.
type Schema struct {
	never bool    // the schema false
	ref   *Schema // holds as well as the rest
	types typeSet // 0 is any

	props      map[string]*Schema
	propNames  []string // sorted, without those that are forbidden
	required   []string // sorted
	additional *Schema
	open       bool // additionalProperties is given and isn't false
	patterns   []patternSchema
	minProps   int
	maxProps   int // -1: none, as with the other maxima

	items    *Schema
	prefix   []*Schema
	minItems int
	maxItems int
	unique   bool

	enum      [][]byte // canonical by value
	enumShown []string

	minimum, maximum, above, below *decimal
	// least and most are the same of whole numbers, if bounded is set.
	least, most int64
	bounded     bool
	multipleOf  *decimal

	minLength int
	maxLength int
	pattern   *pattern

	anyOf, oneOf, allOf []*Schema
	not                 *Schema

	kind     kind
	nullable bool
	plain    bool            // only what quick knows by itself
	alias    bool            // nothing but a reference
	rules    map[string]rule // of props and required
	name     string          // of the definition under $defs, for messages
}

type patternSchema struct {
	pattern *pattern
	schema  *Schema
}

// kind is what a schema means to the checker.
type kind uint8

const (
	kindAny kind = iota
	kindNull
	kindBool
	kindInteger
	kindNumber
	kindString
	kindList
	kindMap    // an object with any keys and values of one schema
	kindObject // an object with known fields
)

// typeSet is a set of JSON types.
type typeSet uint8

const (
	typeNull typeSet = 1 << iota
	typeBoolean
	typeInteger
	typeNumber
	typeString
	typeArray
	typeObject
)

var typeNames = []string{"null", "boolean", "integer", "number", "string", "array", "object"}

func (t typeSet) String() string {
	if t == 0 {
		return "any"
	}
	var names []string
	for i, n := range typeNames {
		if t&(1<<i) != 0 && (n != "integer" || t&typeNumber == 0) {
			names = append(names, n)
		}
	}
	return strings.Join(names, " or ")
}

// The schemas that an expression may be wanted to have.
var (
	Any     = &Schema{plain: true, maxProps: -1, maxItems: -1, maxLength: -1}
	Bool    = &Schema{plain: true, types: typeBoolean, kind: kindBool, maxProps: -1, maxItems: -1, maxLength: -1}
	String  = &Schema{plain: true, types: typeString, kind: kindString, maxProps: -1, maxItems: -1, maxLength: -1}
	Integer = &Schema{plain: true, types: typeInteger, kind: kindInteger, maxProps: -1, maxItems: -1, maxLength: -1}
)

// ParseSchema reads a JSON Schema. Empty input is Any. The error names the place in the schema.
func ParseSchema(raw []byte) (*Schema, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return Any, nil
	}
	if len(raw) > SchemaBytesMax {
		return nil, fmt.Errorf("the schema has %d bytes, the limit is %d", len(raw), SchemaBytesMax)
	}
	if err := scan(raw, true); err != nil {
		return nil, err
	}
	p := schemaParser{root: raw, at: map[string]*Schema{}}
	s, err := p.parse(raw, "#", 0)
	if err != nil {
		return nil, err
	}
	for _, r := range p.refs {
		t, err := p.resolve(r.to)
		if err != nil {
			return nil, fmt.Errorf("%s/$ref: %w", r.place, err)
		}
		r.from.ref = t
	}
	for i := 0; i < len(p.all); i++ { // resolve may have added to it
		t := p.all[i]
		for n := 0; t.ref != nil; n++ {
			if t = t.ref; n > len(p.all) {
				return nil, errors.New("a $ref leads back to itself; point it at a schema that says something")
			}
		}
		p.all[i].setKind()
		p.all[i].prepare()
	}
	return s, nil
}

type schemaParser struct {
	root []byte
	at   map[string]*Schema // by JSON pointer
	all  []*Schema
	refs []schemaRef
}

type schemaRef struct {
	from      *Schema
	place, to string
}

// resolve finds the target of a reference, parsing places that no keyword has led to yet.
func (p *schemaParser) resolve(to string) (*Schema, error) {
	if to != "#" && !strings.HasPrefix(to, "#/") {
		return nil, fmt.Errorf("%s isn't in this document; only references such as #/$defs/name are supported", shortKey(to))
	}
	if s := p.at[to]; s != nil {
		return s, nil
	}
	cur := p.root
	for _, seg := range strings.Split(to, "/")[1:] {
		seg = strings.NewReplacer("~1", "/", "~0", "~").Replace(seg)
		var next []byte
		switch cur[0] {
		case '{':
			members(cur, 0, func(k, v []byte, _ int) bool {
				if string(unescape(nil, k)) == seg {
					next = v
				}
				return next == nil
			})
		case '[':
			n := 0
			elements(cur, 0, func(v []byte, _ int) bool {
				if strconv.Itoa(n) == seg {
					next = v
				}
				n++
				return next == nil
			})
		}
		if next == nil {
			return nil, fmt.Errorf("there is no %s in this document", shortKey(to))
		}
		cur = next
	}
	before := len(p.refs)
	s, err := p.parse(cur, to, 0)
	if err != nil {
		return nil, err
	}
	for _, r := range p.refs[before:] {
		if r.from.ref, err = p.resolve(r.to); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (p *schemaParser) parse(raw []byte, place string, depth int) (*Schema, error) {
	s := &Schema{maxProps: -1, maxItems: -1, maxLength: -1}
	if p.at[place] != nil {
		return p.at[place], nil
	}
	p.at[place] = s
	if p.all = append(p.all, s); len(p.all) > schemaNodesMax {
		return nil, fmt.Errorf("the schema has more than %d subschemas", schemaNodesMax)
	}
	if depth > schemaDepthMax {
		return nil, fmt.Errorf("%s: subschemas nested deeper than %d", place, schemaDepthMax)
	}
	if dir, name, ok := strings.Cut(place, "/$defs/"); ok && dir == "#" && !strings.Contains(name, "/") {
		s.name = name
	}
	switch raw[0] {
	case 't':
		return s, nil
	case 'f':
		s.never = true
		return s, nil
	case '{':
	default:
		return nil, fmt.Errorf("%s: a schema is an object, true or false", place)
	}
	var err error
	members(raw, 0, func(k, v []byte, _ int) bool {
		key := string(unescape(nil, k))
		if e := p.keyword(s, key, v, place, depth); e != nil {
			if err = e; !strings.HasPrefix(e.Error(), "#") {
				err = fmt.Errorf("%s/%s: %w", place, shortKey(key), e)
			}
		}
		return err == nil
	})
	return s, err
}

// annotations have no effect on types or validation.
var annotations = map[string]bool{
	"$schema": true, "$id": true, "$anchor": true, "$comment": true, "$vocabulary": true,
	"title": true, "description": true, "default": true, "examples": true, "deprecated": true, "readOnly": true,
	"writeOnly": true, "format": true, "contentEncoding": true, "contentMediaType": true, "contentSchema": true,
}

func (p *schemaParser) keyword(s *Schema, key string, v []byte, place string, depth int) (err error) {
	sub := func(v []byte, segments ...string) (*Schema, error) {
		at := place + "/" + key
		for _, seg := range segments {
			at += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(seg)
		}
		return p.parse(v, at, depth+1)
	}
	list := func() (out []*Schema, err error) {
		if v[0] != '[' {
			return nil, errors.New("want a list of schemas")
		}
		elements(v, 0, func(e []byte, _ int) bool {
			var t *Schema
			t, err = sub(e, strconv.Itoa(len(out)))
			out = append(out, t)
			return err == nil
		})
		if err == nil && len(out) == 0 {
			err = errors.New("want at least one schema")
		}
		return out, err
	}
	switch key {
	case "type":
		s.types, err = parseTypes(v)
	case "$ref":
		if v[0] != '"' {
			return errors.New("want a string")
		}
		p.refs = append(p.refs, schemaRef{s, place, text(v)})
	case "$defs", "definitions":
		if v[0] != '{' {
			return errors.New("want an object of schemas")
		}
		members(v, 0, func(k, d []byte, _ int) bool {
			_, err = sub(d, string(unescape(nil, k)))
			return err == nil
		})
	case "properties":
		if v[0] != '{' {
			return errors.New("want an object of schemas")
		}
		s.props = map[string]*Schema{}
		members(v, 0, func(k, d []byte, _ int) bool {
			name := string(unescape(nil, k))
			f, e := sub(d, name)
			if s.props[name], err = f, e; e == nil && !f.never {
				s.propNames = append(s.propNames, name)
			}
			return err == nil
		})
		slices.Sort(s.propNames)
	case "patternProperties":
		if v[0] != '{' {
			return errors.New("want an object of schemas")
		}
		members(v, 0, func(k, d []byte, _ int) bool {
			var ps patternSchema
			name := string(unescape(nil, k))
			if ps.pattern, err = parsePattern(name); err == nil {
				ps.schema, err = sub(d, name)
			}
			s.patterns = append(s.patterns, ps)
			return err == nil
		})
	case "required":
		if v[0] != '[' {
			return errors.New("want a list of names")
		}
		elements(v, 0, func(e []byte, _ int) bool {
			if e[0] != '"' {
				err = errors.New("want a list of names")
				return false
			}
			s.required = append(s.required, text(e))
			return true
		})
		slices.Sort(s.required)
		s.required = slices.Compact(s.required)
	case "additionalProperties":
		s.additional, err = sub(v)
		s.open = err == nil && !s.additional.never
	case "items":
		s.items, err = sub(v)
	case "prefixItems":
		s.prefix, err = list()
	case "anyOf":
		s.anyOf, err = list()
	case "oneOf":
		s.oneOf, err = list()
	case "allOf":
		s.allOf, err = list()
	case "not":
		s.not, err = sub(v)
	case "enum":
		if v[0] != '[' {
			return errors.New("want a list of values")
		}
		s.enum = [][]byte{}
		elements(v, 0, func(e []byte, _ int) bool {
			s.addEnum(e)
			return true
		})
	case "const":
		s.enum = nil
		s.addEnum(v)
	case "minimum":
		s.minimum, err = parseBound(v)
	case "maximum":
		s.maximum, err = parseBound(v)
	case "exclusiveMinimum":
		s.above, err = parseBound(v)
	case "exclusiveMaximum":
		s.below, err = parseBound(v)
	case "multipleOf":
		if s.multipleOf, err = parseBound(v); err == nil && (s.multipleOf.sign() <= 0 || len(s.multipleOf.digits) > 18) {
			err = errors.New("want a number above 0 with at most 18 digits")
		}
	case "minLength":
		s.minLength, err = parseCount(v)
	case "maxLength":
		s.maxLength, err = parseCount(v)
	case "minItems":
		s.minItems, err = parseCount(v)
	case "maxItems":
		s.maxItems, err = parseCount(v)
	case "minProperties":
		s.minProps, err = parseCount(v)
	case "maxProperties":
		s.maxProps, err = parseCount(v)
	case "uniqueItems":
		if v[0] != 't' && v[0] != 'f' {
			return errors.New("want true or false")
		}
		s.unique = v[0] == 't'
	case "pattern":
		if v[0] != '"' {
			return errors.New("want a string")
		}
		s.pattern, err = parsePattern(text(v))
	default:
		if !annotations[key] && !strings.HasPrefix(key, "x-") {
			return errors.New("the keyword isn't supported; leave it out, or check this in the activity")
		}
	}
	return err
}

func (s *Schema) addEnum(v []byte) {
	c, _ := canonical(nil, v, 0, true)
	s.enum = append(s.enum, c)
	c, _ = canonical(nil, v, 0, false)
	s.enumShown = append(s.enumShown, shortMessage(string(c)))
}

func parseTypes(v []byte) (t typeSet, err error) {
	one := func(e []byte, _ int) bool {
		i := -1
		if e[0] == '"' {
			i = slices.Index(typeNames, text(e))
		}
		if i < 0 {
			err = fmt.Errorf("want one of %s", strings.Join(typeNames, ", "))
			return false
		}
		t |= 1 << i
		return true
	}
	if v[0] != '[' {
		one(v, 0)
		return t, err
	}
	elements(v, 0, one)
	if t == 0 && err == nil {
		err = errors.New("want at least one type")
	}
	return t, err
}

func parseBound(v []byte) (*decimal, error) {
	if c := v[0]; c != '-' && (c < '0' || c > '9') || len(v) > numberDigitsMax {
		return nil, errors.New("want a number")
	}
	d := parseDecimal(v)
	return &d, nil
}

func parseCount(v []byte) (int, error) {
	d, err := parseBound(v)
	if err == nil {
		if n, ok := d.int(); ok && n >= 0 {
			return int(min(n, 1<<31)), nil
		}
	}
	return 0, errors.New("want a whole number from 0 on")
}

// pattern is a regular expression whose work is bounded.
type pattern struct {
	re   *regexp.Regexp
	size int // instructions
}

func parsePattern(src string) (*pattern, error) {
	if len(src) > patternBytesMax {
		return nil, fmt.Errorf("the pattern has %d bytes, the limit is %d", len(src), patternBytesMax)
	}
	parsed, err := syntax.Parse(src, syntax.Perl)
	if err != nil {
		var e *syntax.Error
		if errors.As(err, &e) {
			return nil, fmt.Errorf("the pattern isn't a regular expression by RE2's syntax: %s", e.Code)
		}
		return nil, errors.New("the pattern isn't a regular expression by RE2's syntax")
	}
	prog, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, errors.New("the pattern can't be compiled")
	}
	if len(prog.Inst) > patternProgramMax {
		return nil, fmt.Errorf("the pattern compiles to %d instructions, the limit is %d: use smaller repetition counts", len(prog.Inst), patternProgramMax)
	}
	re, err := regexp.Compile(src)
	if err != nil {
		return nil, errors.New("the pattern can't be compiled")
	}
	return &pattern{re, len(prog.Inst)}, nil
}

// work is the bytes x instructions of matching n bytes.
func (p *pattern) work(n int) int { return (n + 1) * p.size }

// setKind derives what the schema means to the checker. References must be resolved.
func (s *Schema) setKind() {
	t := s.types
	if t == 0 && s.ref == nil && s.enum != nil {
		t = enumTypes(s.enum)
	}
	s.nullable = t&typeNull != 0
	switch t &^ typeNull {
	case 0:
		switch {
		case s.nullable:
			s.kind = kindNull
		case len(s.props) > 0 && s.ref == nil:
			s.kind = kindObject // whoever lists properties without a type means an object
		}
	case typeBoolean:
		s.kind = kindBool
	case typeInteger:
		s.kind = kindInteger
	case typeNumber, typeNumber | typeInteger:
		s.kind = kindNumber
	case typeString:
		s.kind = kindString
	case typeArray:
		s.kind = kindList
	case typeObject:
		s.kind = kindObject
		if len(s.props) == 0 && (s.additional == nil || s.open || len(s.patterns) > 0) {
			s.kind = kindMap
		}
	}
	if s.anyOf != nil || s.oneOf != nil || s.allOf != nil {
		if s.kind == kindObject || s.kind == kindMap || s.kind == kindList {
			s.kind = kindAny // the alternatives may add fields
		}
	}
}

func enumTypes(enum [][]byte) (t typeSet) {
	for _, e := range enum {
		u := typeOf(e)
		if u == typeInteger && t&typeNumber != 0 {
			continue
		}
		t |= u
	}
	return t
}

// typing is the schema that says what s means to the checker: s, or what it refers to.
func (s *Schema) typing() *Schema {
	if s == nil {
		return Any
	}
	for s.ref != nil && s.types == 0 && s.enum == nil {
		s = s.ref
	}
	return s
}

// property is the schema of a field, nil if the checker knows no such field.
func (s *Schema) property(name string) *Schema {
	s = s.typing()
	if p := s.props[name]; p != nil {
		if p.never {
			return nil
		}
		return p
	}
	switch s.kind {
	case kindObject:
		for _, ps := range s.patterns {
			if ps.pattern.re.MatchString(name) {
				return ps.schema
			}
		}
		if s.open {
			return s.additional
		}
		return nil
	case kindMap:
		return s.values()
	}
	return Any
}

// values is the schema of fields that aren't listed.
func (s *Schema) values() *Schema {
	switch {
	case len(s.patterns) == 1 && !s.open && s.additional != nil:
		return s.patterns[0].schema
	case len(s.patterns) > 0 || s.additional == nil:
		return Any
	}
	return s.additional
}

// element is the schema of the elements of a list.
func (s *Schema) element() *Schema {
	s = s.typing()
	if s.items == nil || len(s.prefix) > 0 {
		return Any
	}
	return s.items
}

// String is a short name for messages: integer, list of string, string or null, any.
func (s *Schema) String() string { return s.describe(0) }

func (s *Schema) describe(depth int) string {
	s = s.typing()
	if s.never {
		return "nothing"
	}
	var name string
	switch s.kind {
	case kindAny:
		return s.types.String()
	case kindNull:
		return "null"
	case kindList:
		name = "list"
		if e := s.element().typing(); e.kind != kindAny && depth < typeDepthMax {
			name = "list of " + e.describe(depth+1)
		}
	case kindMap:
		name = "object"
		if e := s.values().typing(); e.kind != kindAny && depth < typeDepthMax {
			name = "map of " + e.describe(depth+1)
		}
	default:
		name = [...]string{kindBool: "boolean", kindInteger: "integer", kindNumber: "number", kindString: "string", kindObject: "object"}[s.kind]
	}
	if s.nullable {
		name += " or null"
	}
	return name
}

// typeOf is the JSON type of a raw value. A number is an integer if its value is whole.
func typeOf(raw []byte) typeSet {
	switch raw[0] {
	case 'n':
		return typeNull
	case 't', 'f':
		return typeBoolean
	case '"':
		return typeString
	case '[':
		return typeArray
	case '{':
		return typeObject
	}
	if !bytes.ContainsAny(raw, ".eE") || parseDecimal(raw).integral() {
		return typeInteger
	}
	return typeNumber
}
