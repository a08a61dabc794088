package expr

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"cel.dev/cel-go/common/ast"
)

// path is an expression that only passes on a part of a document, such as input or input.customer.name. Most
// fields of mappings are, so they have a way of their own, without an evaluator. It gives the very bytes that the
// evaluator would, or leaves the case to it: whatever can't be passed on has the evaluator's error.
type path struct {
	ref    int // the variable's place among the refs of the program or object
	fields []string
}

// plainPath is the path that an expression is, if it is one.
func (e *Env) plainPath(a *ast.AST) (variable string, fields []string, ok bool) {
	x := a.Expr()
	for x.Kind() == ast.SelectKind {
		sel := x.AsSelect()
		if sel.IsTestOnly() || strings.IndexByte(sel.FieldName(), '\\') >= 0 {
			return "", nil, false
		}
		fields = append(fields, sel.FieldName())
		x = sel.Operand()
	}
	if x.Kind() != ast.IdentKind {
		return "", nil, false
	}
	slices.Reverse(fields)
	variable = strings.TrimPrefix(x.AsIdent(), ".")
	_, ok = e.vars[variable]
	return variable, fields, ok
}

// readerVars is how many variables a reader looks into; those beyond are the evaluator's.
const readerVars = 6

// reader takes parts out of documents. It reads each document once, with all that paths want of it.
type reader struct {
	docs    [readerVars]json.RawMessage // by ref; nil: isn't there
	open    [readerVars]opened
	outline []member // of the open documents, one after the other
	scanner scanner
}

// readers keep their memory.
var readers = sync.Pool{New: func() any { return new(reader) }}

func newReader(docs []json.RawMessage) *reader {
	r := readers.Get().(*reader)
	copy(r.docs[:], docs)
	return r
}

// release gives the reader back. It forgets the documents.
func (r *reader) release() {
	r.docs, r.open = [readerVars]json.RawMessage{}, [readerVars]opened{}
	if r.outline = r.outline[:0]; cap(r.outline) > outlineMax {
		r.outline = nil
	}
	readers.Put(r)
}

// outlineMax is for how many members a reader keeps memory.
const outlineMax = 256

// opened is a document that was read. Its members are outline[first:last], in its order, if it is an object.
type opened struct {
	read, ok    bool
	from, to    int // the value, without the space around it
	first, last int
}

// member is where a key, without its quotes, and its value are in the document.
type member struct{ keyFrom, keyTo, from, to int }

func (r *reader) look(ref int) *opened {
	o := &r.open[ref]
	if o.read {
		return o
	}
	o.read = true
	doc := r.docs[ref]
	if doc == nil {
		return o
	}
	if len(doc) > DocumentBytesMax {
		return o
	}
	o.first = len(r.outline)
	r.scanner.b, r.scanner.outline = doc, &r.outline
	end := r.scanner.document()
	r.scanner.reset()
	if end < 0 || !utf8.Valid(doc) {
		return o
	}
	o.last = len(r.outline)
	o.from = space(doc, 0)
	o.to = skip(doc, o.from)
	o.ok = true
	return o
}

// pass appends what p leads to. Without ok the evaluator has to say what becomes of it.
func (r *reader) pass(dst []byte, p *path, want *Schema) (_ []byte, ok bool) {
	if p.ref >= readerVars {
		return dst, false
	}
	o := r.look(p.ref)
	if !o.ok {
		return dst, false
	}
	doc := r.docs[p.ref]
	raw := doc[o.from:o.to]
	for n, name := range p.fields {
		if raw[0] != '{' {
			return dst, false
		}
		var next []byte
		if n == 0 {
			// Of equal keys the last counts.
			for i := o.last - 1; i >= o.first && next == nil; i-- {
				if m := &r.outline[i]; isKey(doc[m.keyFrom:m.keyTo], name) {
					next = doc[m.from:m.to]
				}
			}
		} else {
			next = lastMember(raw, name)
		}
		if next == nil {
			return dst, false
		}
		raw = next
	}
	start := len(dst)
	if dst, ok = passValue(dst, raw); !ok || !want.allowsType(dst[start:]) {
		return dst[:start], false
	}
	return dst, true
}

// isKey says whether a raw key, without its quotes, is name, which has no backslash.
func isKey(raw []byte, name string) bool {
	if string(raw) == name {
		return true
	}
	return len(raw) > len(name) && bytes.IndexByte(raw, '\\') >= 0 && string(unescape(nil, raw)) == name
}

// lastMember is the value of the last member of that name, nil if there is none.
func lastMember(b []byte, name string) (value []byte) {
	for i := space(b, 1); b[i] != '}'; {
		end := skipString(b, i)
		from := space(b, space(b, end)+1)
		to := skip(b, from)
		if isKey(b[i+1:end-1], name) {
			value = b[from:to]
		}
		if i = space(b, to); b[i] == ',' {
			i = space(b, i+1)
		}
	}
	return value
}

// passValue appends a raw value as appendResult would.
func passValue(dst, raw []byte) ([]byte, bool) {
	if dst == nil {
		dst = make([]byte, 0, len(raw))
	}
	switch raw[0] {
	case '{', '[':
		deep := 0
		if dst, deep = compact(dst, raw); deep > NestingMax {
			return dst, false
		}
	case '"':
		if bytes.IndexByte(raw, '\\') < 0 {
			dst = append(dst, raw...)
			break
		}
		t := text(raw)
		if checkString(t) != nil {
			return dst, false
		}
		dst = appendString(dst, t)
	case '-':
		if string(raw) == "-0" {
			return dst, false // may be written as 0
		}
		dst = append(dst, raw...)
	default:
		dst = append(dst, raw...)
	}
	return dst, len(dst) <= ResultBytesMax
}

// allowsType says whether a raw value has a type that w, a typing schema, wants.
func (s *Schema) allowsType(raw []byte) bool {
	if s.never {
		return false
	}
	if s.types == 0 {
		return true
	}
	got := typeOf(raw)
	return s.types&got != 0 || got == typeInteger && s.types&typeNumber != 0
}
