package expr

import (
	"bytes"
	"cmp"
	"reflect"
	"slices"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// valueOf makes a CEL value of a raw JSON value that scan has accepted. Arrays and objects are looked into only
// when something asks, and remember what they found: each byte of a document is read once per level around it.
func valueOf(raw []byte, s *Schema) ref.Val {
	switch raw[0] {
	case '{':
		return &object{raw: raw, schema: s}
	case '[':
		return &list{raw: raw, schema: s}
	case '"':
		return types.String(text(raw))
	case 't':
		return types.True
	case 'f':
		return types.False
	case 'n':
		return types.NullValue
	default:
		return numberValue(raw, s.typing().kind)
	}
}

// object is a JSON object. It isn't safe for concurrent use; each evaluation has its own.
type object struct {
	raw    []byte
	schema *Schema
	read   bool
	fields []field        // in the document's order
	byKey  map[string]int // only for large ones
	sorted []ref.Val      // keys, on demand
}

type field struct {
	key      []byte // decoded
	from, to uint32 // of the value in the object's raw
	val      ref.Val
}

func (o *object) index() {
	if o.read {
		return
	}
	o.read = true
	n := 0
	members(o.raw, 0, func(_, _ []byte, _ int) bool { n++; return true })
	o.fields = make([]field, 0, n)
	members(o.raw, 0, func(k, v []byte, at int) bool {
		if bytes.IndexByte(k, '\\') >= 0 {
			k = unescape(nil, k)
		}
		o.fields = append(o.fields, field{key: k, from: uint32(at), to: uint32(at + len(v))})
		return true
	})
	if len(o.fields) > seenMin {
		o.byKey = make(map[string]int, len(o.fields))
		for i, f := range o.fields {
			o.byKey[string(f.key)] = i
		}
	}
}

// field returns the value under a key, nil if there is none. Of equal keys the last counts, as everywhere in Go.
func (o *object) field(key string) ref.Val {
	o.index()
	if o.byKey != nil {
		if i, ok := o.byKey[key]; ok {
			return o.at(i)
		}
		return nil
	}
	for i := len(o.fields) - 1; i >= 0; i-- {
		if string(o.fields[i].key) == key {
			return o.at(i)
		}
	}
	return nil
}

func (o *object) at(i int) ref.Val {
	f := &o.fields[i]
	if f.val == nil {
		var s *Schema
		if o.schema != nil {
			s = o.schema.property(string(f.key))
		}
		f.val = valueOf(o.raw[f.from:f.to], s)
	}
	return f.val
}

// keys returns the keys in order, so that no loop depends on how the document was written.
func (o *object) keys() []ref.Val {
	o.index()
	if o.sorted == nil {
		o.sorted = make([]ref.Val, 0, len(o.fields))
		for _, f := range o.fields {
			o.sorted = append(o.sorted, types.String(f.key))
		}
		slices.SortFunc(o.sorted, func(a, b ref.Val) int { return cmp.Compare(a.(types.String), b.(types.String)) })
	}
	return o.sorted
}

// FindStringKey is the interpreter's short way to a field.
func (o *object) FindStringKey(key string) (any, bool) {
	if v := o.field(key); v != nil {
		return v, true
	}
	return nil, false
}

// Find implements traits.Mapper.
func (o *object) Find(key ref.Val) (ref.Val, bool) {
	k, ok := key.(types.String)
	if !ok {
		return nil, false
	}
	v := o.field(string(k))
	return v, v != nil
}

// Get implements traits.Indexer.
func (o *object) Get(key ref.Val) ref.Val {
	if v, ok := o.Find(key); ok {
		return v
	}
	return types.WrapErr(&EvalError{Code: CodeNoField, Message: "no such key"})
}

// Contains implements traits.Container.
func (o *object) Contains(key ref.Val) ref.Val {
	_, ok := o.Find(key)
	return types.Bool(ok)
}

// Size implements traits.Sizer.
func (o *object) Size() ref.Val {
	o.index()
	return types.Int(len(o.fields))
}

// Iterator implements traits.Iterable.
func (o *object) Iterator() traits.Iterator { return &iterator{items: o.keys()} }

// Fold implements traits.Foldable.
func (o *object) Fold(f traits.Folder) { fold(o, o.keys(), f) }

// ConvertToNative implements ref.Val.
func (o *object) ConvertToNative(reflect.Type) (any, error) { return nil, errNotNative }

// ConvertToType implements ref.Val.
func (o *object) ConvertToType(t ref.Type) ref.Val { return convertCollection(o, types.MapType, t) }

// Equal implements ref.Val.
func (o *object) Equal(other ref.Val) ref.Val { return equalVals(o, other) }

// Type implements ref.Val.
func (o *object) Type() ref.Type { return types.MapType }

// Value implements ref.Val.
func (o *object) Value() any { return o }

func convertCollection(v ref.Val, own *types.Type, t ref.Type) ref.Val {
	switch t {
	case own:
		return v
	case types.TypeType:
		return own
	}
	return types.NewErr("type conversion error from '%s' to '%s'", own, t)
}

// list is a JSON array. It isn't safe for concurrent use; each evaluation has its own.
type list struct {
	raw    []byte
	schema *Schema
	read   bool
	spans  []span
	vals   []ref.Val // nil until asked for
	full   bool      // all vals are there
}

// span is where an element is in the array's raw.
type span struct{ from, to uint32 }

func (l *list) index() {
	if l.read {
		return
	}
	l.read = true
	n := 0
	elements(l.raw, 0, func([]byte, int) bool { n++; return true })
	l.spans, l.vals = make([]span, 0, n), make([]ref.Val, n)
	elements(l.raw, 0, func(e []byte, at int) bool {
		l.spans = append(l.spans, span{uint32(at), uint32(at + len(e))})
		return true
	})
}

func (l *list) at(i int) ref.Val {
	if l.vals[i] == nil {
		var s *Schema
		if l.schema != nil {
			s = l.schema.element()
		}
		l.vals[i] = valueOf(l.raw[l.spans[i].from:l.spans[i].to], s)
	}
	return l.vals[i]
}

// all returns the elements; the caller mustn't change them.
func (l *list) all() []ref.Val {
	l.index()
	if !l.full {
		l.full = true
		for i := range l.vals {
			l.at(i)
		}
	}
	return l.vals
}

// GetInt64Index is the interpreter's short way to an element.
func (l *list) GetInt64Index(i int64) (any, bool) {
	l.index()
	if i < 0 || i >= int64(len(l.vals)) {
		return nil, false
	}
	return l.at(int(i)), true
}

// Get implements traits.Indexer.
func (l *list) Get(index ref.Val) ref.Val {
	i, err := types.GetOrError(plain(index))
	if err == nil {
		if v, ok := l.GetInt64Index(int64(i)); ok {
			return v.(ref.Val)
		}
	}
	return types.WrapErr(&EvalError{Code: CodeIndex, Message: "no such index in the list"})
}

// Add implements traits.Adder.
func (l *list) Add(other ref.Val) ref.Val {
	if _, ok := other.(traits.Lister); !ok {
		return types.MaybeNoSuchOverloadErr(other)
	}
	return types.NewRefValList(types.DefaultTypeAdapter, l.all()).Add(other)
}

// Contains implements traits.Container.
func (l *list) Contains(v ref.Val) ref.Val { return containsVal(l, v) }

// Size implements traits.Sizer.
func (l *list) Size() ref.Val {
	l.index()
	return types.Int(len(l.vals))
}

// Iterator implements traits.Iterable.
func (l *list) Iterator() traits.Iterator { return &iterator{items: l.all()} }

// Fold implements traits.Foldable.
func (l *list) Fold(f traits.Folder) {
	l.index()
	for i := range l.vals {
		if !f.FoldEntry(types.Int(i), l.at(i)) {
			return
		}
	}
}

// ConvertToNative implements ref.Val.
func (l *list) ConvertToNative(reflect.Type) (any, error) { return nil, errNotNative }

// ConvertToType implements ref.Val.
func (l *list) ConvertToType(t ref.Type) ref.Val { return convertCollection(l, types.ListType, t) }

// Equal implements ref.Val.
func (l *list) Equal(other ref.Val) ref.Val { return equalVals(l, other) }

// Type implements ref.Val.
func (l *list) Type() ref.Type { return types.ListType }

// Value implements ref.Val.
func (l *list) Value() any { return l }

// sortedMap is a map that an expression wrote down. CEL keeps it in a Go map, whose order is random.
type sortedMap struct {
	traits.Mapper
	keys []ref.Val
}

// sortMap gives m an order: keys by their type, then by their value.
func sortMap(m traits.Mapper) ref.Val {
	var keys []ref.Val
	for it := m.Iterator(); it.HasNext() == types.True; {
		keys = append(keys, it.Next())
	}
	slices.SortFunc(keys, compareKeys)
	return &sortedMap{m, keys}
}

func compareKeys(a, b ref.Val) int {
	if c := cmp.Compare(a.Type().TypeName(), b.Type().TypeName()); c != 0 {
		return c
	}
	if a, ok := a.(traits.Comparer); ok {
		if c, ok := a.Compare(b).(types.Int); ok {
			return int(c)
		}
	}
	return 0
}

// Iterator implements traits.Iterable.
func (m *sortedMap) Iterator() traits.Iterator { return &iterator{items: m.keys} }

// Fold implements traits.Foldable.
func (m *sortedMap) Fold(f traits.Folder) { fold(m, m.keys, f) }

// Equal implements ref.Val.
func (m *sortedMap) Equal(other ref.Val) ref.Val { return equalVals(m, other) }

func fold(m traits.Mapper, keys []ref.Val, f traits.Folder) {
	for _, k := range keys {
		v, _ := m.Find(k)
		if !f.FoldEntry(k, v) {
			return
		}
	}
}

// iterator walks over values.
type iterator struct {
	items []ref.Val
	next  int
}

// HasNext implements traits.Iterator.
func (it *iterator) HasNext() ref.Val { return types.Bool(it.next < len(it.items)) }

// Next implements traits.Iterator.
func (it *iterator) Next() ref.Val {
	if it.next >= len(it.items) {
		return nil
	}
	it.next++
	return it.items[it.next-1]
}

// ConvertToNative implements ref.Val.
func (it *iterator) ConvertToNative(reflect.Type) (any, error) { return nil, errNotNative }

// ConvertToType implements ref.Val.
func (it *iterator) ConvertToType(ref.Type) ref.Val { return types.NewErr("no such overload") }

// Equal implements ref.Val.
func (it *iterator) Equal(ref.Val) ref.Val { return types.False }

// Type implements ref.Val.
func (it *iterator) Type() ref.Type { return types.IteratorType }

// Value implements ref.Val.
func (it *iterator) Value() any { return nil }
