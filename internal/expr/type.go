package expr

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

// objectPrefix starts the names of the types that stand for object schemas. The colon keeps them apart from
// everything that an expression can name.
const objectPrefix = "object:"

// provider gives the checker the types of a set of variables. Objects with known fields become struct types,
// named by the way that leads to them: object:input.customer.
type provider struct {
	types.Provider // of CEL's own types
	names          map[*Schema]string
	schemas        map[string]*Schema
	missed         []missed // failed look-ups of one Compile; guarded by Env.mu
}

type missed struct{ typeName, field string }

func newProvider(base types.Provider, vars []Var) *provider {
	p := &provider{Provider: base, names: map[*Schema]string{}, schemas: map[string]*Schema{}}
	for _, v := range vars {
		p.name(v.Schema, v.Name)
	}
	return p
}

// name gives names to the object types within s, wherever expressions can get to.
func (p *provider) name(s *Schema, way string) {
	s = s.typing()
	if _, ok := p.names[s]; ok {
		return
	}
	if s.name != "" {
		way = s.name
	}
	switch s.kind {
	case kindObject:
		name := objectPrefix + way
		for n := 2; p.schemas[name] != nil; n++ {
			name = objectPrefix + way + "#" + strconv.Itoa(n)
		}
		p.names[s], p.schemas[name] = name, s
		for _, f := range s.propNames {
			p.name(s.props[f], way+"."+f)
		}
		for _, ps := range s.patterns {
			p.name(ps.schema, way+".*")
		}
		if s.open {
			p.name(s.additional, way+".*")
		}
	case kindMap:
		p.names[s] = ""
		p.name(s.values(), way+".*")
	case kindList:
		p.names[s] = ""
		p.name(s.element(), way+"[]")
	}
}

// celType is what a schema means to the checker. Where CEL has no type for it, such as a nullable list, it is
// dyn: everything is allowed and checked when it is evaluated.
func (p *provider) celType(s *Schema, depth int) *types.Type {
	s = s.typing()
	var t *types.Type
	switch s.kind {
	case kindBool:
		t = types.BoolType
	case kindInteger:
		t = types.IntType
	case kindNumber:
		t = types.DoubleType
	case kindString:
		t = types.StringType
	case kindNull:
		return types.NullType
	case kindObject:
		return types.NewObjectType(p.names[s]) // null is assignable to it
	case kindList:
		if !s.nullable && depth < typeDepthMax {
			return types.NewListType(p.celType(s.element(), depth+1))
		}
	case kindMap:
		if !s.nullable && depth < typeDepthMax {
			return types.NewMapType(types.StringType, p.celType(s.values(), depth+1))
		}
	}
	switch {
	case t == nil:
		return types.DynType
	case s.nullable:
		return types.NewNullableType(t)
	}
	return t
}

// FindStructType implements types.Provider. Messages that CEL knows can't be built in expressions.
func (p *provider) FindStructType(name string) (*types.Type, bool) {
	if p.schemas[name] == nil {
		return nil, false
	}
	return types.NewTypeTypeWithParam(types.NewObjectType(name)), true
}

// FindStructFieldNames implements types.Provider.
func (p *provider) FindStructFieldNames(name string) ([]string, bool) {
	s := p.schemas[name]
	if s == nil {
		return nil, false
	}
	return slices.Clone(s.propNames), true
}

// FindStructFieldType implements types.Provider.
func (p *provider) FindStructFieldType(name, field string) (*types.FieldType, bool) {
	s := p.schemas[name]
	if s == nil {
		return nil, false
	}
	f := s.property(field)
	if f == nil {
		p.missed = append(p.missed, missed{name, field})
		return nil, false
	}
	return &types.FieldType{Type: p.celType(f, 0)}, true
}

// NewValue implements types.Provider.
func (p *provider) NewValue(string, map[string]ref.Val) ref.Val {
	return types.NewErr("no such overload")
}

// fits says whether a value of type t can be what w wants, as far as the types tell; what they leave open is
// for Schema.Validate. why is the reason if not.
func (p *provider) fits(t *types.Type, w *Schema, depth int) (why string) {
	w = w.typing()
	want := func() string { return "want " + w.String() + ", got " + p.show(t) }
	nullable := t.IsAssignableType(types.NullType) && t.Kind() != types.DynKind && t.Kind() != types.StructKind
	switch t.Kind() {
	case types.DynKind, types.AnyKind, types.TypeParamKind, types.ErrorKind:
		return ""
	case types.BytesKind, types.TimestampKind, types.DurationKind, types.TypeKind, types.OpaqueKind:
		return want() + ", which isn't JSON; use string(...)"
	}
	if w.kind == kindAny && w.types == 0 || depth > typeDepthMax {
		return ""
	}
	if nullable && t.Kind() != types.NullTypeKind && !w.nullable && w.kind != kindAny {
		return want() + "; test for null: x != null ? x : ..."
	}
	switch t.Kind() {
	case types.NullTypeKind:
		if w.kind == kindNull || w.nullable || w.kind == kindAny && w.types&typeNull != 0 {
			return ""
		}
	case types.BoolKind:
		if w.kind == kindBool || w.kind == kindAny && w.types&typeBoolean != 0 {
			return ""
		}
	case types.IntKind, types.UintKind:
		if w.kind == kindInteger || w.kind == kindNumber || w.kind == kindAny && w.types&(typeInteger|typeNumber) != 0 {
			return ""
		}
		if w.kind == kindString {
			return want() + "; convert it with string(...)"
		}
	case types.DoubleKind:
		if w.kind == kindNumber || w.kind == kindAny && w.types&typeNumber != 0 {
			return ""
		}
		if w.kind == kindInteger {
			return want() + "; convert it with int(...)"
		}
	case types.StringKind:
		if w.kind == kindString || w.kind == kindAny && w.types&typeString != 0 {
			return ""
		}
	case types.ListKind:
		if w.kind == kindList {
			if why := p.fits(t.Parameters()[0], w.element(), depth+1); why != "" {
				return "the elements: " + why
			}
			return ""
		}
		if w.kind == kindAny && w.types&typeArray != 0 {
			return ""
		}
	case types.MapKind:
		if k := t.Parameters()[0].Kind(); k != types.StringKind && k != types.DynKind && k != types.TypeParamKind {
			return "the keys of a JSON object are strings; use string(key)"
		}
		switch {
		case w.kind == kindMap:
			if why := p.fits(t.Parameters()[1], w.values(), depth+1); why != "" {
				return "the values: " + why
			}
			return ""
		case w.kind == kindObject, w.kind == kindAny && w.types&typeObject != 0:
			return ""
		}
	case types.StructKind:
		switch {
		case w.kind == kindObject:
			return p.fitsFields(p.schemas[t.TypeName()], w, depth)
		case w.kind == kindMap, w.kind == kindAny && w.types&typeObject != 0:
			return ""
		}
	}
	return want()
}

// fitsFields compares two object schemas. It complains only about what can't go well.
func (p *provider) fitsFields(have, w *Schema, depth int) string {
	if have == nil || have == w {
		return ""
	}
	for _, r := range w.required {
		if have.property(r) == nil {
			return "the object has no field " + shortKey(r) + ", which is required" + hint(r, have.propNames)
		}
	}
	for _, f := range have.propNames {
		wf := w.property(f)
		if wf == nil {
			if w.additional != nil && slices.Contains(have.required, f) {
				return "the object has a field " + shortKey(f) + ", which isn't allowed" + hint(f, w.propNames)
			}
			continue
		}
		if why := p.fits(p.celType(have.props[f], 0), wf, depth+1); why != "" {
			return "its field " + shortKey(f) + ": " + why
		}
	}
	return ""
}

// show is a CEL type in the words of JSON Schema.
func (p *provider) show(t *types.Type) string {
	name := ""
	switch t.Kind() {
	case types.DynKind, types.AnyKind, types.TypeParamKind:
		return "any"
	case types.ListKind:
		name = "list"
		if e := p.show(t.Parameters()[0]); e != "any" {
			name += " of " + e
		}
	case types.MapKind:
		name = "object"
		if e := p.show(t.Parameters()[1]); e != "any" {
			name = "map of " + e
		}
	case types.StructKind:
		return "object"
	default:
		name = typeName(t)
		if t.Kind() != types.NullTypeKind && t.IsAssignableType(types.NullType) {
			name += " or null"
		}
	}
	return name
}

// estimator tells the cost estimate how large the values of variables can be.
type estimator struct{ vars map[string]*Schema }

// EstimateCallCost implements cost.Estimator: CEL's own estimates are used.
func (e estimator) EstimateCallCost(string, string, *cost.AstNode, []cost.AstNode) *cost.CallEstimate {
	return nil
}

// EstimateSize implements cost.Estimator.
func (e estimator) EstimateSize(node cost.AstNode) *cost.SizeEstimate {
	top := uint64(1)
	switch node.Type().Kind() {
	case types.StringKind, types.BytesKind:
		top = stringSizeAssumed
	case types.ListKind, types.DynKind, types.AnyKind, types.TypeParamKind:
		top = listSizeAssumed
	case types.MapKind, types.StructKind:
		top = objectSizeAssumed
	}
	if path := node.Path(); len(path) > 0 {
		if s, ok := e.vars[path[0]]; ok {
			for _, seg := range path[1:] {
				switch seg {
				case "@items":
					s = s.element()
				case "@values":
					s = s.typing().values()
				case "@keys":
					s = String
				default:
					s = s.property(seg)
				}
				if s == nil {
					break
				}
			}
			s = s.typing()
			switch {
			case s.kind == kindString && s.maxLength >= 0:
				top = uint64(s.maxLength)
			case s.kind == kindList && s.maxItems >= 0:
				top = uint64(s.maxItems)
			case s.kind == kindMap && s.maxProps >= 0:
				top = uint64(s.maxProps)
			}
		}
	}
	est := cost.RangedSizeEstimate(0, min(top, ResultBytesMax))
	return &est
}

var celNames = regexp.MustCompile(`\b(int|uint|double|bool|null_type|dyn|google\.protobuf\.(Timestamp|Duration)|wrapper)\b`)

// plainNames replaces CEL's names of types in one of its messages.
func plainNames(msg string) string {
	msg = strings.ReplaceAll(msg, objectPrefix, "")
	return celNames.ReplaceAllStringFunc(msg, func(n string) string {
		switch n {
		case "int":
			return "integer"
		case "uint":
			return "unsigned integer"
		case "double":
			return "number"
		case "bool":
			return "boolean"
		case "null_type":
			return "null"
		case "dyn":
			return "any"
		case "wrapper":
			return "nullable"
		}
		return strings.ToLower(strings.TrimPrefix(n, "google.protobuf."))
	})
}
