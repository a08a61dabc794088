package expr

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"
)

// Field is one field of an object mapping: its name and the expression of its value.
type Field struct{ Name, Source string }

// Object is a compiled mapping that builds a JSON object field by field. It is safe for concurrent use.
type Object struct {
	env    *Env
	fields []objectField // sorted by name
	refs   []string
	fits   bool
}

type objectField struct {
	name string
	head []byte // "name":
	prog *Program
	path *path // nil unless the expression is one; its ref is among the object's
}

// CompileObject compiles a mapping. Each field's type is checked against the property of that name in want;
// required properties that have no field, and fields that want doesn't list, are errors. A nil want allows
// everything. All that is wrong is reported, in the order of the field names; the Object is nil then.
func (e *Env) CompileObject(fields []Field, want *Schema) (*Object, []FieldError) {
	var errs []FieldError
	fail := func(field string, code Code, format string, args ...any) {
		errs = append(errs, FieldError{field, &Error{Code: code, Message: shortMessage(fmt.Sprintf(format, args...))}})
	}
	if len(fields) > FieldsMax {
		fail("", CodeTooLong, "%d fields, the limit is %d", len(fields), FieldsMax)
		return nil, errs
	}
	w := want.typing()
	if w.types != 0 && w.types&typeObject == 0 || w.never {
		fail("", CodeType, "want %s, got an object", w)
		return nil, errs
	}
	sorted := slices.Clone(fields)
	slices.SortStableFunc(sorted, func(a, b Field) int { return cmp.Compare(a.Name, b.Name) })
	o := &Object{env: e}
	given := make(map[string]bool, len(sorted))
	for _, f := range sorted {
		switch {
		case given[f.Name]:
			fail(f.Name, CodeUnknownField, "the field comes twice")
			continue
		case f.Name == "" || !utf8.ValidString(f.Name) || checkString(f.Name) != nil:
			fail(f.Name, CodeUnknownField, "want a name: UTF-8 without U+0000, not empty")
			continue
		}
		given[f.Name] = true
		p := w.property(f.Name)
		if p == nil {
			fail(f.Name, CodeUnknownField, "no such field is wanted%s", hint(f.Name, w.propNames))
			continue
		}
		prog, err := e.compile(f.Source, p)
		if err != nil {
			errs = append(errs, FieldError{f.Name, err})
			continue
		}
		o.fields = append(o.fields, objectField{name: f.Name, head: append(appendString(nil, f.Name), ':'), prog: prog})
		o.refs = append(o.refs, prog.refs...)
	}
	for _, r := range w.required {
		if !given[r] {
			p := w.property(r)
			fail(r, CodeMissingField, "the field is required, but missing; want %s", p)
		}
	}
	if len(errs) > 0 {
		slices.SortStableFunc(errs, func(a, b FieldError) int { return cmp.Compare(a.Field, b.Field) })
		return nil, errs
	}
	slices.Sort(o.refs)
	o.refs = slices.Compact(o.refs)
	for i := range o.fields {
		if f := &o.fields[i]; f.prog.path != nil {
			f.path = &path{ref: slices.Index(o.refs, f.prog.refs[0]), fields: f.prog.path.fields}
		}
	}
	o.fits = o.fitsAlways(want)
	return o, nil
}

// fitsAlways finds out what Fits says: it compares the wanted schema with that of all objects which can be built.
func (o *Object) fitsAlways(want *Schema) bool {
	have := &Schema{
		types: typeObject, props: map[string]*Schema{}, additional: &Schema{never: true},
		maxProps: -1, maxItems: -1, maxLength: -1,
	}
	for i := range o.fields {
		f := &o.fields[i]
		p := f.prog
		if p.have == nil && p.constant == nil && p.path == nil {
			return false
		}
		if p.path != nil && len(p.path.fields) == 0 && !p.have.scalar() {
			return false // a whole document may be as deep as any may be; here it comes to be one deeper
		}
		have.props[f.name] = p.have
		have.required = append(have.required, f.name)
	}
	return want.covers(have)
}

// Refs lists the variables that the fields refer to, sorted. It isn't to be changed.
func (o *Object) Refs() []string { return o.refs }

// Fits says that each object is sure to fit the wanted schema, provided that the variables' documents fit theirs:
// there is nothing to find in a validation.
func (o *Object) Fits() bool { return o.fits }

// Eval returns the object as compact JSON, its fields in the order of their names, at most ResultBytesMax bytes.
// The error is an *EvalError that names the field.
func (o *Object) Eval(v Vars) (json.RawMessage, error) {
	var room [readerVars]json.RawMessage
	return o.run(v.docs(room[:0], o.refs), v)
}

// EvalDocs is Eval with the documents in the order of Refs. A nil one isn't there.
func (o *Object) EvalDocs(docs []json.RawMessage) (json.RawMessage, error) { return o.run(docs, nil) }

func (o *Object) run(docs []json.RawMessage, v Vars) (json.RawMessage, error) {
	r := newReader(docs)
	defer r.release()
	var s *scope // of the fields that need the evaluator
	out := make([]byte, 0, 160)
	out = append(out, '{')
	for i := range o.fields {
		f := &o.fields[i]
		out = append(out, f.head...)
		next, ok := out, false
		switch c := f.prog.constant; {
		case f.path != nil:
			next, ok = r.pass(out, f.path, f.prog.want)
		case c != nil && len(out)+len(c) <= ResultBytesMax:
			next, ok = append(out, c...), true
		}
		if !ok {
			if s == nil {
				s = &scope{env: o.env, vars: v.or(docs, o.refs)}
			}
			var err *EvalError
			if next, err = f.prog.appendTo(out, s); err != nil {
				err = err.at(1, 1)
				err.Field = f.name
				return nil, err
			}
		}
		out = append(next, ',')
		if len(out) > ResultBytesMax {
			return nil, errResultSize
		}
	}
	return closing(out, '}'), nil
}
