package expr

import (
	"bytes"
	"cmp"
	"errors"
	"math"
	"reflect"
	"strconv"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

// decimal is a JSON number as it was written, without rounding: 0.digits x 10^exp. Zero has no digits.
type decimal struct {
	neg    bool
	digits []byte // neither the first nor the last is '0'
	exp    int
}

// exponentMax keeps sums of exponents from overflowing; literals beyond it are told apart by digits only.
const exponentMax = 1 << 40

func parseDecimal(lit []byte) decimal {
	var d decimal
	if lit[0] == '-' {
		d.neg, lit = true, lit[1:]
	}
	exp := 0
	if i := bytes.IndexAny(lit, "eE"); i >= 0 {
		n, err := strconv.Atoi(string(lit[i+1:]))
		if err != nil || n > exponentMax || n < -exponentMax {
			if n = exponentMax; lit[i+1] == '-' {
				n = -exponentMax
			}
		}
		exp, lit = n, lit[:i]
	}
	whole, frac, _ := bytes.Cut(lit, []byte{'.'})
	d.digits = append(append(make([]byte, 0, len(lit)), whole...), frac...)
	d.exp = exp + len(whole)
	n := len(d.digits)
	d.digits = bytes.TrimLeft(d.digits, "0")
	d.exp -= n - len(d.digits)
	d.digits = bytes.TrimRight(d.digits, "0")
	if len(d.digits) == 0 {
		return decimal{}
	}
	return d
}

// integral says whether d is a whole number.
func (d decimal) integral() bool { return d.exp >= len(d.digits) }

// int is d as an int64, if it is one.
func (d decimal) int() (int64, bool) {
	if !d.integral() || d.exp > 19 {
		return 0, len(d.digits) == 0
	}
	b := make([]byte, 0, 20)
	if d.neg {
		b = append(b, '-')
	}
	b = append(b, d.digits...)
	for range d.exp - len(d.digits) {
		b = append(b, '0')
	}
	if len(d.digits) == 0 {
		return 0, true
	}
	v, err := strconv.ParseInt(string(b), 10, 64)
	return v, err == nil
}

func (d decimal) cmp(e decimal) int {
	switch {
	case len(d.digits) == 0 && len(e.digits) == 0:
		return 0
	case len(d.digits) == 0:
		return e.sign() * -1
	case len(e.digits) == 0 || d.neg != e.neg:
		return d.sign()
	}
	return d.sign() * cmp.Or(cmp.Compare(d.exp, e.exp), bytes.Compare(d.digits, e.digits))
}

func (d decimal) sign() int {
	switch {
	case len(d.digits) == 0:
		return 0
	case d.neg:
		return -1
	default:
		return 1
	}
}

// append writes d in a form that equal numbers share.
func (d decimal) append(dst []byte) []byte {
	if len(d.digits) == 0 {
		return append(dst, '0')
	}
	if d.neg {
		dst = append(dst, '-')
	}
	dst = append(dst, "0."...)
	dst = append(dst, d.digits...)
	dst = append(dst, 'e')
	return strconv.AppendInt(dst, int64(d.exp), 10)
}

// appendDouble writes a finite f so that it reads back the same and is seen to be no integer type: 1 is 1.0.
func appendDouble(dst []byte, f float64) []byte {
	if abs := math.Abs(f); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		return strconv.AppendFloat(dst, f, 'e', -1, 64)
	}
	n := len(dst)
	dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
	if bytes.IndexByte(dst[n:], '.') < 0 {
		dst = append(dst, ".0"...)
	}
	return dst
}

// number is a JSON number that a CEL value can't hold with its digits: 12345678901234567890123, 1.00, or 5 where
// the schema says number. As long as it is only passed on it keeps them; a function that gets it as an
// argument gets what plain makes of it.
type number struct {
	lit  string
	kind kind // kindInteger or kindNumber; kindAny: by the literal
}

// numberValue reads a literal. The common ones become plain CEL values, which print the same digits.
func numberValue(raw []byte, k kind) ref.Val {
	whole := !bytes.ContainsAny(raw, ".eE")
	switch {
	case whole && k != kindNumber:
		if len(raw) <= 20 {
			if v, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
				return types.Int(v)
			}
		}
	case !whole && k != kindInteger && len(raw) <= 32:
		if f, err := strconv.ParseFloat(string(raw), 64); err == nil {
			var buf [40]byte
			if bytes.Equal(appendDouble(buf[:0], f), raw) {
				return types.Double(f)
			}
		}
	}
	if k != kindInteger && k != kindNumber {
		k = kindNumber
		if whole {
			k = kindInteger
		}
	}
	return &number{string(raw), k}
}

var errNumber = &EvalError{Code: CodeNumber, Message: "a number beyond 64-bit precision can be passed on but not computed with"}

// plain is v as CEL computes with it: an int or a double of exactly the literal's value, or an error.
func plain(v ref.Val) ref.Val {
	n, ok := v.(*number)
	if !ok {
		return v
	}
	if len(n.lit) > numberDigitsMax {
		return types.WrapErr(errNumber)
	}
	d := parseDecimal([]byte(n.lit))
	if n.kind == kindInteger {
		if i, ok := d.int(); ok {
			return types.Int(i)
		}
		return types.WrapErr(errNumber)
	}
	f, err := strconv.ParseFloat(n.lit, 64)
	if err != nil || parseDecimal(appendDouble(nil, f)).cmp(d) != 0 {
		return types.WrapErr(errNumber)
	}
	return types.Double(f)
}

// compareNumbers orders two numbers without rounding either. ok is false if one isn't a number or is NaN.
// Integers and doubles compare by their exact values; a literal beyond both compares by its decimal digits.
func compareNumbers(a, b ref.Val) (order int, ok bool) {
	if v := plain(a); !types.IsError(v) {
		a = v
	}
	if v := plain(b); !types.IsError(v) {
		b = v
	}
	switch x := a.(type) {
	case types.Int:
		switch y := b.(type) {
		case types.Int:
			return cmp.Compare(x, y), true
		case types.Uint:
			return compareIntUint(x, y), true
		case types.Double:
			order, ok = compareIntDouble(x, y)
			return order, ok
		}
	case types.Uint:
		switch y := b.(type) {
		case types.Int:
			return -compareIntUint(y, x), true
		case types.Uint:
			return cmp.Compare(x, y), true
		case types.Double:
			order, ok = compareUintDouble(x, y)
			return order, ok
		}
	case types.Double:
		switch y := b.(type) {
		case types.Int:
			order, ok = compareIntDouble(y, x)
			return -order, ok
		case types.Uint:
			order, ok = compareUintDouble(y, x)
			return -order, ok
		case types.Double:
			return cmp.Compare(x, y), x == x && y == y
		}
	}
	x, okx := decimalOf(a)
	y, oky := decimalOf(b)
	if !okx || !oky {
		return 0, false
	}
	return x.cmp(y), true
}

func decimalOf(v ref.Val) (decimal, bool) {
	switch v := v.(type) {
	case types.Int:
		return parseDecimal(strconv.AppendInt(nil, int64(v), 10)), true
	case types.Uint:
		return parseDecimal(strconv.AppendUint(nil, uint64(v), 10)), true
	case types.Double:
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return decimal{}, false
		}
		return parseDecimal(appendDouble(nil, float64(v))), true
	case *number:
		if len(v.lit) > numberDigitsMax {
			return decimal{}, false
		}
		return parseDecimal([]byte(v.lit)), true
	}
	return decimal{}, false
}

func compareIntUint(i types.Int, u types.Uint) int {
	if i < 0 {
		return -1
	}
	return cmp.Compare(types.Uint(i), u)
}

func compareIntDouble(i types.Int, d types.Double) (int, bool) {
	switch {
	case d != d:
		return 0, false
	case d >= 1<<63:
		return -1, true
	case d < -1<<63:
		return 1, true
	}
	t := math.Trunc(float64(d))
	return cmp.Or(cmp.Compare(int64(i), int64(t)), cmp.Compare(t, float64(d))), true
}

func compareUintDouble(u types.Uint, d types.Double) (int, bool) {
	switch {
	case d != d:
		return 0, false
	case d >= 1<<64:
		return -1, true
	case d < 0:
		return 1, true
	}
	t := math.Trunc(float64(d))
	return cmp.Or(cmp.Compare(uint64(u), uint64(t)), cmp.Compare(t, float64(d))), true
}

// isNumber says whether v takes part in numeric comparison.
func isNumber(v ref.Val) bool {
	switch v.(type) {
	case types.Int, types.Uint, types.Double, *number:
		return true
	}
	return false
}

// The rest makes *number a ref.Val.

var errNotNative = errors.New("no conversion to a Go value")

// ConvertToNative implements ref.Val.
func (n *number) ConvertToNative(reflect.Type) (any, error) { return nil, errNotNative }

// ConvertToType implements ref.Val.
func (n *number) ConvertToType(t ref.Type) ref.Val {
	v := plain(n)
	if types.IsError(v) {
		return v
	}
	return v.ConvertToType(t)
}

// Equal implements ref.Val.
func (n *number) Equal(other ref.Val) ref.Val {
	order, ok := compareNumbers(n, other)
	return types.Bool(ok && order == 0)
}

// Type implements ref.Val.
func (n *number) Type() ref.Type {
	if n.kind == kindInteger {
		return types.IntType
	}
	return types.DoubleType
}

// Value implements ref.Val.
func (n *number) Value() any { return n.lit }
