package expr

import (
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// appendResult writes a CEL value as compact JSON. What came from a document keeps its digits and its order of
// keys; maps that the expression built have theirs sorted.
func appendResult(dst []byte, v ref.Val, depth int) ([]byte, *EvalError) {
	if depth > NestingMax {
		return nil, &EvalError{Code: CodeTooLarge, Message: "the result is nested deeper than " + strconv.Itoa(NestingMax)}
	}
	switch v := v.(type) {
	case types.Null:
		dst = append(dst, "null"...)
	case types.Bool:
		dst = strconv.AppendBool(dst, bool(v))
	case types.Int:
		dst = strconv.AppendInt(dst, int64(v), 10)
	case types.Uint:
		dst = strconv.AppendUint(dst, uint64(v), 10)
	case types.Double:
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return nil, &EvalError{Code: CodeNotJSON, Message: "the result holds a double that is infinite or not a number"}
		}
		dst = appendDouble(dst, float64(v))
	case *number:
		dst = append(dst, v.lit...)
	case types.String:
		if err := checkString(string(v)); err != nil {
			return nil, err
		}
		dst = appendString(dst, string(v))
	case *object:
		return appendRaw(dst, v.raw, depth)
	case *list:
		return appendRaw(dst, v.raw, depth)
	case traits.Lister:
		var err *EvalError
		dst = append(dst, '[')
		for it := v.Iterator(); it.HasNext() == types.True; {
			if dst, err = appendResult(dst, it.Next(), depth+1); err != nil {
				return nil, err
			}
			dst = append(dst, ',')
		}
		dst = closing(dst, ']')
	case traits.Mapper:
		keys := make([]string, 0, 8)
		for it := v.Iterator(); it.HasNext() == types.True; {
			k, ok := it.Next().(types.String)
			if !ok {
				return nil, &EvalError{Code: CodeNotJSON, Message: "the result holds a map whose keys aren't strings; use string(key)"}
			}
			keys = append(keys, string(k))
		}
		slices.Sort(keys)
		dst = append(dst, '{')
		for _, k := range keys {
			if err := checkString(k); err != nil {
				return nil, err
			}
			dst = append(appendString(dst, k), ':')
			e, _ := v.Find(types.String(k))
			var err *EvalError
			if dst, err = appendResult(dst, e, depth+1); err != nil {
				return nil, err
			}
			dst = append(dst, ',')
		}
		dst = closing(dst, '}')
	case nil:
		return nil, &EvalError{Code: CodeInternal, Message: "no value"}
	default:
		return nil, &EvalError{Code: CodeNotJSON, Message: "the result holds a " + typeName(v.Type()) + ", which isn't JSON; use string(...)"}
	}
	if len(dst) > ResultBytesMax {
		return nil, errResultSize
	}
	return dst, nil
}

var errResultSize = &EvalError{Code: CodeTooLarge, Message: "the result is longer than " + strconv.Itoa(ResultBytesMax) + " bytes; pass a reference to the data instead"}

func appendRaw(dst, raw []byte, depth int) ([]byte, *EvalError) {
	dst, deep := compact(dst, raw)
	if len(dst) > ResultBytesMax {
		return nil, errResultSize
	}
	if depth+deep > NestingMax {
		return nil, &EvalError{Code: CodeTooLarge, Message: "the result is nested deeper than " + strconv.Itoa(NestingMax)}
	}
	return dst, nil
}

func checkString(s string) *EvalError {
	if !utf8.ValidString(s) {
		return &EvalError{Code: CodeNotJSON, Message: "the result holds a string that isn't UTF-8"}
	}
	for i := range len(s) {
		if s[i] == 0 {
			return &EvalError{Code: CodeNotJSON, Message: "the result holds a string with U+0000, which can't be stored"}
		}
	}
	return nil
}

// typeName is a CEL type's name in the words of JSON Schema.
func typeName(t ref.Type) string {
	switch n := t.TypeName(); n {
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
	case "map":
		return "object"
	case "google.protobuf.Timestamp":
		return "timestamp"
	case "google.protobuf.Duration":
		return "duration"
	default:
		return n
	}
}
