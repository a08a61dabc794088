package expr

// covers says that every document that fits have fits s as well. It looks only as far as is cheap, so no may mean
// perhaps.
func (s *Schema) covers(have *Schema) bool {
	c := coverer{left: coverStepsMax}
	return c.covers(s, have, 0)
}

// coverStepsMax bounds the comparison of two schemas.
const coverStepsMax = 10_000

type coverer struct{ left int }

func (c *coverer) covers(w, h *Schema, depth int) bool {
	if c.left--; c.left < 0 || depth > schemaDepthMax {
		return false
	}
	if w == nil {
		return true
	}
	if h == nil {
		h = Any
	}
	if h.never {
		return true // nothing fits it
	}
	// Alternatives and chains of references are left out: they may take more steps than a validation has.
	if w.never || w.enum != nil && h.enum == nil || w.anyOf != nil || w.oneOf != nil || w.allOf != nil || w.not != nil || w.patterns != nil || w.prefix != nil {
		return false
	}
	if w.ref != nil && (w.ref.ref != nil || !c.covers(w.ref, h, depth+1)) {
		return false
	}
	if h.enum != nil && len(h.enum) <= enumShownMax {
		// Few enough to be tried.
		for _, e := range h.enum {
			switch t := typeOf(e); {
			case t == typeArray || t == typeObject:
				return false
			case t&(typeInteger|typeNumber) != 0 && !coversNumbers(w, h):
				return false // an equal number may have more digits than are compared, unless h compares them too
			case w.Validate(e) != nil:
				return false
			}
		}
		return true
	}
	if w.enum != nil {
		return false
	}
	return c.keywords(w, h, depth) || h.ref != nil && c.covers(w, h.ref, depth+1)
}

// keywords compares what the two say beside references and alternatives.
func (c *coverer) keywords(w, h *Schema, depth int) bool {
	if w.types != 0 {
		rest := h.types &^ w.types
		if w.types&typeNumber != 0 {
			rest &^= typeInteger
		}
		if h.types == 0 || rest != 0 {
			return false
		}
	}
	may := func(t typeSet) bool { return h.types == 0 || h.types&t != 0 }
	if may(typeInteger|typeNumber) && !coversNumbers(w, h) {
		return false
	}
	if may(typeString) {
		if w.minLength > h.minLength || !within(h.maxLength, w.maxLength) {
			return false
		}
		if w.pattern != nil && (h.pattern == nil || h.pattern.re.String() != w.pattern.re.String()) {
			return false
		}
	}
	if may(typeArray) {
		if w.minItems > h.minItems || !within(h.maxItems, w.maxItems) || w.unique && !h.unique {
			return false
		}
		if w.items != nil && (h.prefix != nil || !c.covers(w.items, h.items, depth+1)) {
			return false
		}
	}
	return !may(typeObject) || c.objects(w, h, depth)
}

func (c *coverer) objects(w, h *Schema, depth int) bool {
	if w.minProps > h.minProps || !within(h.maxProps, w.maxProps) {
		return false
	}
	given := make(map[string]bool, len(h.required))
	for _, r := range h.required {
		given[r] = true
	}
	for _, r := range w.required {
		if !given[r] {
			return false
		}
	}
	for name, p := range w.props { // all of them: order doesn't matter
		if !c.covers(p, h.field(name), depth+1) {
			return false
		}
	}
	if w.additional == nil {
		return true
	}
	for name, p := range h.props { // all of them: order doesn't matter
		if w.props[name] == nil && !c.covers(w.additional, p, depth+1) {
			return false
		}
	}
	return h.patterns == nil && c.covers(w.additional, h.additional, depth+1)
}

// field is a schema that the values of a field fit in every document that fits s, Any if nothing is known of them.
func (s *Schema) field(name string) *Schema {
	for s != nil {
		if p := s.props[name]; p != nil {
			return p
		}
		if s.patterns == nil && s.additional != nil {
			return s.additional
		}
		s = s.ref
	}
	return Any
}

func coversNumbers(w, h *Schema) bool {
	return (w.minimum == nil || h.minimum != nil && h.minimum.cmp(*w.minimum) >= 0) &&
		(w.maximum == nil || h.maximum != nil && h.maximum.cmp(*w.maximum) <= 0) &&
		(w.above == nil || h.above != nil && h.above.cmp(*w.above) >= 0) &&
		(w.below == nil || h.below != nil && h.below.cmp(*w.below) <= 0) &&
		(w.multipleOf == nil || h.multipleOf != nil && h.multipleOf.cmp(*w.multipleOf) == 0)
}

// within compares two maxima, of which -1 is none.
func within(h, w int) bool { return w < 0 || h >= 0 && h <= w }

// scalar says that everything that fits s is neither a list nor an object.
func (s *Schema) scalar() bool {
	for ; s != nil; s = s.ref {
		if s.types != 0 && s.types&(typeArray|typeObject) == 0 {
			return true
		}
	}
	return false
}
