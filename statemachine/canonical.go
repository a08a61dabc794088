package statemachine

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"sort"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sagad/sagad/internal/expr"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// Canonical is the definition's canonical form: JSON with the proto field names, fields in the order of their numbers, map
// keys sorted, unset and default values left out, schemas with sorted keys. Its bytes, and so the hash, don't depend on
// the protobuf library.
func Canonical(def *sagadv1.Definition) ([]byte, error) {
	if path := unknownField(def.ProtoReflect(), ""); path != "" {
		return nil, fmt.Errorf("definition %q: %s has fields that this version doesn't know", clip(def.GetName()), clip(path))
	}
	if path := badText(def.ProtoReflect(), ""); path != "" {
		return nil, fmt.Errorf("definition %q: %s isn't UTF-8", clip(def.GetName()), clip(path))
	}
	var b bytes.Buffer
	if err := canonicalMessage(&b, def.ProtoReflect()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// Hash is the SHA-256 of the canonical form.
func Hash(def *sagadv1.Definition) ([32]byte, error) {
	c, err := Canonical(def)
	return sha256.Sum256(c), err
}

func canonicalMessage(b *bytes.Buffer, m protoreflect.Message) error {
	type field struct {
		fd protoreflect.FieldDescriptor
		v  protoreflect.Value
	}
	var fields []field
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		fields = append(fields, field{fd, v})
		return true
	})
	sort.Slice(fields, func(i, j int) bool { return fields[i].fd.Number() < fields[j].fd.Number() })
	b.WriteByte('{')
	for i, f := range fields {
		if i > 0 {
			b.WriteByte(',')
		}
		canonicalString(b, string(f.fd.Name()))
		b.WriteByte(':')
		var err error
		switch {
		case f.fd.IsMap():
			err = canonicalMap(b, f.fd, f.v.Map())
		case f.fd.IsList():
			b.WriteByte('[')
			for j := range f.v.List().Len() {
				if j > 0 {
					b.WriteByte(',')
				}
				if err = canonicalValue(b, f.fd, f.v.List().Get(j)); err != nil {
					break
				}
			}
			b.WriteByte(']')
		default:
			err = canonicalValue(b, f.fd, f.v)
		}
		if err != nil {
			return err
		}
	}
	b.WriteByte('}')
	return nil
}

func canonicalMap(b *bytes.Buffer, fd protoreflect.FieldDescriptor, m protoreflect.Map) error {
	var keys []string
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k.String())
		return true
	})
	sort.Strings(keys)
	b.WriteByte('{')
	for i, k := range keys {
		if i > 0 {
			b.WriteByte(',')
		}
		canonicalString(b, k)
		b.WriteByte(':')
		if err := canonicalValue(b, fd.MapValue(), m.Get(protoreflect.ValueOfString(k).MapKey())); err != nil {
			return err
		}
	}
	b.WriteByte('}')
	return nil
}

func canonicalValue(b *bytes.Buffer, fd protoreflect.FieldDescriptor, v protoreflect.Value) error {
	switch fd.Kind() {
	case protoreflect.MessageKind:
		return canonicalMessage(b, v.Message())
	case protoreflect.StringKind:
		switch fd.Name() {
		case "input_schema", "output_schema", "form_schema", "schema":
			c, err := expr.CanonicalJSON([]byte(v.String()))
			if err != nil {
				return fmt.Errorf("%s: %w", fd.Name(), err)
			}
			b.Write(c)
		default:
			canonicalString(b, v.String())
		}
	case protoreflect.EnumKind:
		if ev := fd.Enum().Values().ByNumber(v.Enum()); ev != nil {
			canonicalString(b, string(ev.Name()))
		} else {
			b.WriteString(strconv.Itoa(int(v.Enum())))
		}
	case protoreflect.BoolKind:
		b.WriteString(strconv.FormatBool(v.Bool()))
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		b.WriteString(strconv.FormatInt(v.Int(), 10))
	case protoreflect.DoubleKind:
		canonicalString(b, strconv.FormatFloat(v.Float(), 'g', -1, 64))
	default:
		return fmt.Errorf("%s has a kind that the canonical form doesn't know", fd.FullName())
	}
	return nil
}

// canonicalString writes a JSON string: quotes, backslashes and control characters are escaped, and nothing else.
func canonicalString(b *bytes.Buffer, s string) {
	const digits = "0123456789abcdef"
	b.WriteByte('"')
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < 0x20:
			b.WriteString(`\u00`)
			b.WriteByte(digits[c>>4])
			b.WriteByte(digits[c&15])
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
}

// unknownField is the path to the first message with fields that this version doesn't know, or "".
func unknownField(m protoreflect.Message, path string) string {
	if len(m.GetUnknown()) > 0 {
		return orRoot(path)
	}
	return children(m, path, unknownField, nil)
}

// badText is the path to the first text that isn't UTF-8, or "". Texts that came over the wire are.
func badText(m protoreflect.Message, path string) string {
	return children(m, path, badText, func(text, path string) string {
		if !utf8.ValidString(text) {
			return path
		}
		return ""
	})
}

// children calls message and text for what is in m, in the order of the field numbers, until one returns a path.
func children(m protoreflect.Message, path string, message func(protoreflect.Message, string) string, text func(string, string) string) string {
	fields := m.Descriptor().Fields()
	value := func(fd protoreflect.FieldDescriptor, v protoreflect.Value, path string) string {
		switch {
		case fd.Kind() == protoreflect.MessageKind:
			return message(v.Message(), path)
		case fd.Kind() == protoreflect.StringKind && text != nil:
			return text(v.String(), path)
		default:
			return ""
		}
	}
	for i := range fields.Len() {
		fd := fields.Get(i)
		if !m.Has(fd) {
			continue
		}
		at := string(fd.Name())
		if path != "" {
			at = path + "." + at
		}
		found := ""
		switch v := m.Get(fd); {
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				if text != nil {
					found = text(k.String(), at)
				}
				if found == "" {
					found = value(fd.MapValue(), v, at)
				}
				return found == ""
			})
		case fd.IsList():
			for j := 0; j < v.List().Len() && found == ""; j++ {
				found = value(fd, v.List().Get(j), fmt.Sprintf("%s[%d]", at, j))
			}
		default:
			found = value(fd, v, at)
		}
		if found != "" {
			return found
		}
	}
	return ""
}

func orRoot(path string) string {
	if path == "" {
		return "(definition)"
	}
	return path
}
