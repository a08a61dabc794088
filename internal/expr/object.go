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
}

type objectField struct {
	name string
	head []byte // "name":
	prog *Program
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
		o.fields = append(o.fields, objectField{f.Name, append(appendString(nil, f.Name), ':'), prog})
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
	return o, nil
}

// Refs lists the variables that the fields refer to, sorted.
func (o *Object) Refs() []string { return slices.Clone(o.refs) }

// Eval returns the object as compact JSON, its fields in the order of their names, at most ResultBytesMax bytes.
// The error is an *EvalError that names the field.
func (o *Object) Eval(v Vars) (json.RawMessage, error) {
	s := scope{env: o.env, vars: v}
	out := make([]byte, 0, 128)
	out = append(out, '{')
	for _, f := range o.fields {
		out = append(out, f.head...)
		next, err := f.prog.appendTo(out, &s)
		if err != nil {
			err = err.at(1, 1)
			err.Field = f.name
			return nil, err
		}
		out = append(next, ',')
		if len(out) > ResultBytesMax {
			return nil, errResultSize
		}
	}
	return closing(out, '}'), nil
}
