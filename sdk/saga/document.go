package saga

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"sync"

	"github.com/sagad/sagad/internal/wire"
)

// Encode writes v, an input or an output, as the engine takes it: JSON whose nil slices are [] and nil maps {}, and which
// leaves nil pointers out, so that it fits v's schema. It fails on what can't be stored: more than 256 KiB, or a NUL.
// Bytes in strings that aren't UTF-8 become U+FFFD without an error, as encoding/json writes them: use []byte for other bytes.
func Encode(v any) ([]byte, error) {
	var doc []byte
	switch v := v.(type) {
	case json.RawMessage:
		if doc = v; len(doc) == 0 {
			doc = []byte("null")
		}
	default:
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(v); err != nil {
			return nil, fmt.Errorf("%w: %w", wire.ErrNotStorable, err)
		}
		doc = bytes.TrimSuffix(b.Bytes(), []byte("\n"))
		if bytes.Contains(doc, []byte("null")) {
			var err error
			if doc, err = shapeOf(reflect.TypeOf(v)).full(doc); err != nil {
				return nil, err
			}
		}
	}
	if err := wire.Storable(doc); err != nil {
		return nil, err
	}
	return doc, nil
}

// Decode reads an input or an output into v, a pointer. Numbers keep their digits: into integer types exactly or not at all, and
// where v says any, as json.Number. Nothing may follow the document. An empty doc is null.
func Decode(doc []byte, v any) error {
	if len(doc) == 0 {
		doc = []byte("null")
	}
	if raw, ok := v.(*json.RawMessage); ok {
		*raw = append((*raw)[:0], doc...)
		return nil
	}
	if !holdsAny(reflect.TypeOf(v)) {
		return json.Unmarshal(doc, v)
	}
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return fmt.Errorf("more follows the JSON document")
	}
	return nil
}

var anyTypes sync.Map // reflect.Type to bool

// holdsAny says whether decoding into t may meet an interface, where plain decoding turns numbers into doubles.
func holdsAny(t reflect.Type) bool {
	if known, ok := anyTypes.Load(t); ok {
		return known.(bool)
	}
	found := searchAny(t, map[reflect.Type]bool{})
	anyTypes.Store(t, found)
	return found
}

func searchAny(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return true
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return searchAny(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if searchAny(t.Field(i).Type, seen) {
				return true
			}
		}
	}
	return false
}

// shape says where encoding/json writes null for what is empty. nil is a value that is left as it is.
type shape struct {
	empty  string            // in place of null, if set
	fields map[string]*shape // of objects
	drop   map[string]bool   // fields that are left out when null
	each   *shape            // of elements
}

var shapes sync.Map // reflect.Type to *shape

func shapeOf(t reflect.Type) *shape {
	if t == nil {
		return nil
	}
	if s, ok := shapes.Load(t); ok {
		return s.(*shape)
	}
	var s *shape
	if finite(t, nil) == nil {
		s = makeShape(t)
	}
	shapes.Store(t, s)
	return s
}

func makeShape(t reflect.Type) *shape {
	pointer := t.Kind() == reflect.Pointer
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if _, ok := leaf(t); ok {
		return nil
	}
	s := &shape{}
	switch t.Kind() {
	case reflect.Struct:
		s.fields, s.drop = map[string]*shape{}, map[string]bool{}
		for _, f := range fieldsOf(t) {
			s.fields[f.name] = makeShape(f.typ)
			s.drop[f.name] = f.typ.Kind() == reflect.Pointer
		}
	case reflect.Slice:
		s.empty = "[]"
		if t.Elem().Kind() == reflect.Uint8 {
			s.empty = `""`
		} else {
			s.each = makeShape(t.Elem())
		}
	case reflect.Array:
		s.each = makeShape(t.Elem())
	case reflect.Map:
		s.empty, s.each = "{}", makeShape(t.Elem())
	default:
		return nil
	}
	if pointer {
		s.empty = ""
	}
	return s
}

// full puts what is empty in the place of null, where s says so.
func (s *shape) full(doc json.RawMessage) (json.RawMessage, error) {
	if s == nil || !bytes.Contains(doc, []byte("null")) {
		return doc, nil
	}
	if bytes.Equal(bytes.TrimSpace(doc), []byte("null")) {
		if s.empty != "" {
			return json.RawMessage(s.empty), nil
		}
		return doc, nil
	}
	switch {
	case doc[0] == '{' && (s.fields != nil || s.each != nil):
		var m map[string]json.RawMessage
		if err := json.Unmarshal(doc, &m); err != nil {
			return nil, err
		}
		for k, v := range m {
			inner := s.each
			if s.fields != nil {
				inner = s.fields[k]
			}
			if s.drop[k] && bytes.Equal(v, []byte("null")) {
				delete(m, k)
				continue
			}
			f, err := inner.full(v)
			if err != nil {
				return nil, err
			}
			m[k] = f
		}
		return marshal(m)
	case doc[0] == '[' && s.each != nil:
		var l []json.RawMessage
		if err := json.Unmarshal(doc, &l); err != nil {
			return nil, err
		}
		for i, v := range l {
			f, err := s.each.full(v)
			if err != nil {
				return nil, err
			}
			l[i] = f
		}
		return marshal(l)
	}
	return doc, nil
}

func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}
