package saga

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"net"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/invopop/jsonschema"
)

// Schemas are made of Go types as encoding/json writes them:
//
//   - integers stay integers, so that digits stay digits on the way through the engine
//   - numbers have the bounds of their Go type, so that what it can't hold is refused where it enters; a tag's own minimum or
//     maximum comes in its place
//   - time.Time is a string (date-time); json.RawMessage, interfaces and types with a MarshalJSON are anything;
//     types with a MarshalText are strings; []byte is a string (base64)
//   - map[string]T is an object with any names
//   - a field is required unless it has omitempty or omitzero, or is a pointer or an interface
//   - tags of github.com/invopop/jsonschema add constraints: `jsonschema:"minimum=1"`
//
// Types that refer to themselves have no schema here; put json.RawMessage in their place.

var schemas sync.Map // reflect.Type to schemaResult

type schemaResult struct {
	text string
	err  error
}

// schemaOf is t's JSON Schema, as JSON text with sorted keys. Empty for anything.
func schemaOf(t reflect.Type) (string, error) {
	if r, ok := schemas.Load(t); ok {
		return r.(schemaResult).text, r.(schemaResult).err
	}
	text, err := makeSchema(t)
	schemas.Store(t, schemaResult{text, err})
	return text, err
}

var (
	timeType        = reflect.TypeFor[time.Time]()
	rawType         = reflect.TypeFor[json.RawMessage]()
	numberType      = reflect.TypeFor[json.Number]()
	bigIntType      = reflect.TypeFor[big.Int]()
	ipType          = reflect.TypeFor[net.IP]()
	jsonMarshaler   = reflect.TypeFor[json.Marshaler]()
	textMarshaler   = reflect.TypeFor[encoding.TextMarshaler]()
	customSchema    = reflect.TypeFor[interface{ JSONSchema() *jsonschema.Schema }]()
	customAlias     = reflect.TypeFor[interface{ JSONSchemaAlias() any }]()
	schemaDepthsMax = 32
)

func implements(t, iface reflect.Type) bool {
	return t.Implements(iface) || reflect.PointerTo(t).Implements(iface)
}

// leaf is the schema of types that encoding/json doesn't write by their structure.
func leaf(t reflect.Type) (*jsonschema.Schema, bool) {
	switch {
	case t == timeType:
		return &jsonschema.Schema{Type: "string", Format: "date-time"}, true
	case t == numberType:
		return &jsonschema.Schema{Type: "number"}, true
	case t == bigIntType:
		return &jsonschema.Schema{Type: "integer"}, true
	case t == ipType:
		return &jsonschema.Schema{Type: "string"}, true
	case t == rawType || t.Kind() == reflect.Interface:
		return &jsonschema.Schema{}, true
	case implements(t, customSchema) || t.Implements(customAlias):
		return nil, true // asked by the reflector
	case implements(t, jsonMarshaler):
		return &jsonschema.Schema{}, true
	case implements(t, textMarshaler):
		return &jsonschema.Schema{Type: "string"}, true
	}
	return nil, false
}

func makeSchema(t reflect.Type) (text string, err error) {
	defer func() { // the reflector panics on types that have no JSON
		if p := recover(); p != nil {
			err = fmt.Errorf("type %s has no JSON Schema: %v", t, p)
		}
	}()
	if err := finite(t, nil); err != nil {
		return "", err
	}
	r := jsonschema.Reflector{Anonymous: true, DoNotReference: true, AllowAdditionalProperties: true,
		Mapper: func(t reflect.Type) *jsonschema.Schema {
			s, _ := leaf(t)
			return s
		}}
	raw, err := json.Marshal(r.ReflectFromType(t))
	if err != nil {
		return "", fmt.Errorf("type %s: %w", t, err)
	}
	var doc any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&doc); err != nil {
		return "", fmt.Errorf("type %s: %w", t, err)
	}
	doc = fit(doc, t)
	if m, ok := doc.(map[string]any); !ok || len(m) == 0 {
		return "", nil
	}
	out, err := json.Marshal(doc)
	return string(out), err
}

// finite refuses types that contain themselves, and channels and functions.
func finite(t reflect.Type, within []reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if _, ok := leaf(t); ok {
		return nil
	}
	if len(within) > schemaDepthsMax {
		return fmt.Errorf("type %s is nested more than %d deep: put json.RawMessage in the place of its inner part", within[0], schemaDepthsMax)
	}
	for _, outer := range within {
		if outer == t {
			return fmt.Errorf("type %s contains itself: put json.RawMessage in the place of the inner one", t)
		}
	}
	within = append(within, t)
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		return finite(t.Elem(), within)
	case reflect.Map:
		switch k := t.Key(); {
		case k.Kind() == reflect.String, implements(k, textMarshaler):
		case k.Kind() >= reflect.Int && k.Kind() <= reflect.Uint64:
		default:
			return fmt.Errorf("type %s: JSON objects can't have keys of type %s: use strings", t, k)
		}
		return finite(t.Elem(), within)
	case reflect.Struct:
		for _, f := range fieldsOf(t) {
			if err := finite(f.typ, within); err != nil {
				return fmt.Errorf("%s.%s: %w", t, f.goName, err)
			}
		}
	case reflect.Chan, reflect.Func, reflect.UnsafePointer, reflect.Complex64, reflect.Complex128, reflect.Uintptr:
		return errors.New("type " + t.String() + " has no JSON: leave it out of inputs and outputs")
	}
	return nil
}

// field is a field of a struct as encoding/json sees it.
type field struct {
	name, goName string
	typ          reflect.Type
	omitted      bool // it may be left out
	quoted       bool // the option string
}

// fieldsOf lists a struct's JSON fields, those of embedded structs among them.
func fieldsOf(t reflect.Type) []field {
	var out []field
	for i := range t.NumField() {
		f := t.Field(i)
		tag, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == "-" && opts == "" {
			continue
		}
		if f.Anonymous && tag == "" {
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			if _, ok := leaf(inner); inner.Kind() == reflect.Struct && !ok {
				if inner == t { // finite reports it
					continue
				}
				out = append(out, fieldsOf(inner)...)
				continue
			}
		}
		if !f.IsExported() {
			continue
		}
		if tag == "" {
			tag = f.Name
		}
		g := field{name: tag, goName: f.Name, typ: f.Type}
		for opt := range strings.SplitSeq(opts, ",") {
			g.omitted = g.omitted || opt == "omitempty" || opt == "omitzero"
			g.quoted = g.quoted || opt == "string"
		}
		out = append(out, g)
	}
	return out
}

// keep are the keywords that the engine understands, and those that say something to people.
var keep = map[string]bool{
	"type": true, "properties": true, "required": true, "additionalProperties": true, "patternProperties": true, "items": true,
	"prefixItems": true, "minItems": true, "maxItems": true, "uniqueItems": true, "minProperties": true, "maxProperties": true,
	"enum": true, "const": true, "minimum": true, "maximum": true, "exclusiveMinimum": true, "exclusiveMaximum": true,
	"multipleOf": true, "minLength": true, "maxLength": true, "pattern": true, "anyOf": true, "oneOf": true, "allOf": true,
	"not": true, "title": true, "description": true, "default": true, "examples": true, "format": true,
}

// fit makes the reflector's schema what encoding/json really writes. t is nil where no type is known.
func fit(doc any, t reflect.Type) any {
	m, ok := doc.(map[string]any)
	if !ok {
		if doc == true { // the same, but an object as the rest
			return map[string]any{}
		}
		return doc
	}
	for k := range m {
		if !keep[k] {
			delete(m, k)
		}
	}
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil {
		return m
	}
	if _, ok := leaf(t); ok {
		return m
	}
	bound(m, t)
	switch t.Kind() {
	case reflect.Struct:
		fitStruct(m, t)
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 && t.Kind() == reflect.Slice {
			break
		}
		if items, ok := m["items"]; ok {
			m["items"] = nullable(fit(items, t.Elem()), t.Elem())
		}
	case reflect.Map:
		elem, ok := m["additionalProperties"]
		if patterns, _ := m["patternProperties"].(map[string]any); len(patterns) > 0 { // integer keys
			elem, ok = patterns["^[0-9]+$"]
			delete(m, "patternProperties")
		}
		if !ok {
			elem = map[string]any{}
		}
		m["additionalProperties"] = nullable(fit(elem, t.Elem()), t.Elem())
	}
	return m
}

// bound adds the smallest and the largest value that a number of type t can be, where the schema doesn't say so or more.
// A float's are those whose shortest form is written.
func bound(m map[string]any, t reflect.Type) {
	var least, most string
	switch k := t.Kind(); {
	case m["enum"] != nil || m["const"] != nil:
		return
	case m["type"] == "integer" && k >= reflect.Int && k <= reflect.Int64:
		bits := intBits(t)
		least, most = strconv.FormatInt(-1<<(bits-1), 10), strconv.FormatInt(1<<(bits-1)-1, 10)
	case m["type"] == "integer" && k >= reflect.Uint && k <= reflect.Uint64:
		least, most = "0", strconv.FormatUint(math.MaxUint64>>(64-intBits(t)), 10)
	case m["type"] == "number" && (k == reflect.Float32 || k == reflect.Float64):
		most = strconv.FormatFloat(math.MaxFloat64, 'e', -1, 64)
		if k == reflect.Float32 {
			most = strconv.FormatFloat(math.MaxFloat32, 'e', -1, 32)
		}
		least = "-" + most
	default:
		return
	}
	if m["minimum"] == nil && m["exclusiveMinimum"] == nil {
		m["minimum"] = json.Number(least)
	}
	if m["maximum"] == nil && m["exclusiveMaximum"] == nil {
		m["maximum"] = json.Number(most)
	}
}

// intBits is an integer type's size. int and uint are taken for 64 bit everywhere, so that a definition is the same wherever
// it is made.
func intBits(t reflect.Type) int {
	if t.Kind() == reflect.Int || t.Kind() == reflect.Uint {
		return 64
	}
	return t.Bits()
}

func fitStruct(m map[string]any, t reflect.Type) {
	props, _ := m["properties"].(map[string]any)
	delete(m, "additionalProperties") // a newer worker may write more
	optional := map[string]bool{}
	for _, f := range fieldsOf(t) {
		if p, ok := props[f.name]; ok {
			p = fit(p, f.typ)
			if s, ok := p.(map[string]any); ok && f.quoted {
				if typ := s["type"]; typ == "integer" || typ == "number" || typ == "boolean" {
					s["type"] = "string"
					delete(s, "minimum") // they say nothing of strings
					delete(s, "maximum")
				}
			}
			props[f.name] = p
		}
		if k := f.typ.Kind(); k == reflect.Pointer || k == reflect.Interface {
			optional[f.name] = true
		}
	}
	if required, ok := m["required"].([]any); ok {
		kept := []any{}
		for _, name := range required {
			if s, _ := name.(string); !optional[s] {
				kept = append(kept, name)
			}
		}
		if m["required"] = kept; len(kept) == 0 {
			delete(m, "required")
		}
	}
	if len(props) == 0 { // an empty struct: an object without any known field
		delete(m, "properties")
	}
}

// nullable lets elements of pointer types be null.
func nullable(doc any, t reflect.Type) any {
	m, ok := doc.(map[string]any)
	if typ, one := m["type"].(string); ok && one && t.Kind() == reflect.Pointer {
		m["type"] = []any{typ, "null"}
	}
	return doc
}
