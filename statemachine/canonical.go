package statemachine

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sort"
	"strconv"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sagad/sagad/internal/expr"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// Canonical is the definition's canonical form: JSON with the proto field names, fields in the order of their numbers, map
// keys sorted, unset and default values left out, schemas with sorted keys. Its bytes, and so the hash, don't depend on
// the protobuf library.
func Canonical(def *sagadv1.Definition) ([]byte, error) {
	if n := len(def.ProtoReflect().GetUnknown()); n > 0 {
		return nil, fmt.Errorf("definition %q has fields that this version doesn't know", def.GetName())
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
		if len(v.Message().GetUnknown()) > 0 {
			return fmt.Errorf("%s has fields that this version doesn't know", fd.Name())
		}
		return canonicalMessage(b, v.Message())
	case protoreflect.StringKind:
		switch fd.Name() {
		case "input_schema", "output_schema":
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

// canonicalString writes a JSON string as encoding/json does.
func canonicalString(b *bytes.Buffer, s string) {
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // strings always encode
	b.Truncate(b.Len() - 1)
}
