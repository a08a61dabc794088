package saga

import (
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sagad/sagad/internal/expr"
	"github.com/sagad/sagad/internal/wire"
)

type base struct {
	ID string `json:"id"`
}

type colour int

func (colour) MarshalText() ([]byte, error) { return []byte("red"), nil }

type opaque struct{ X int }

func (opaque) MarshalJSON() ([]byte, error) { return []byte(`"whatever"`), nil }

type line struct {
	SKU string `json:"sku"`
	Qty int    `json:"qty" jsonschema:"minimum=1,maximum=9"`
}

type order struct {
	base
	Lines   []line            `json:"lines"`
	Refs    []*line           `json:"refs,omitempty"`
	Note    *string           `json:"note"`
	Tags    map[string]string `json:"tags"`
	Counts  map[int]int64     `json:"counts,omitempty"`
	At      time.Time         `json:"at"`
	Raw     json.RawMessage   `json:"raw,omitempty"`
	Any     any               `json:"any"`
	Blob    []byte            `json:"blob"`
	Colour  colour            `json:"colour"`
	Opaque  opaque            `json:"opaque"`
	Big     *big.Int          `json:"big,omitempty"`
	Num     json.Number       `json:"num"`
	Text    int64             `json:"text,string"`
	Wait    time.Duration     `json:"wait"`
	Rate    float64           `json:"rate"`
	Fixed   [2]bool           `json:"fixed"`
	Plain   string
	Hidden  string `json:"-"`
	private string
}

type tree struct {
	Kids []tree `json:"kids"`
}

func TestSchemas(t *testing.T) {
	_ = order{}.private
	for _, c := range []struct {
		t    reflect.Type
		want string
	}{
		{reflect.TypeFor[int64](), `{"maximum":9223372036854775807,"minimum":-9223372036854775808,"type":"integer"}`},
		{reflect.TypeFor[uint8](), `{"maximum":255,"minimum":0,"type":"integer"}`},
		{reflect.TypeFor[string](), `{"type":"string"}`},
		{reflect.TypeFor[any](), ``},
		{reflect.TypeFor[json.RawMessage](), ``},
		{reflect.TypeFor[struct{}](), `{"type":"object"}`},
		{reflect.TypeFor[map[string]any](), `{"additionalProperties":{},"type":"object"}`},
		{reflect.TypeFor[[]*line](), `{"items":{"properties":{"qty":{"maximum":9,"minimum":1,"type":"integer"},"sku":{"type":"string"}},"required":["sku","qty"],"type":["object","null"]},"type":"array"}`},
		{reflect.TypeFor[*line](), `{"properties":{"qty":{"maximum":9,"minimum":1,"type":"integer"},"sku":{"type":"string"}},"required":["sku","qty"],"type":"object"}`},
		{reflect.TypeFor[order](), `{"properties":{"Plain":{"type":"string"},"any":{},"at":{"format":"date-time","type":"string"},"big":{"type":"integer"},` +
			`"blob":{"type":"string"},"colour":{"type":"string"},"counts":{"additionalProperties":{"maximum":9223372036854775807,"minimum":-9223372036854775808,"type":"integer"},"type":"object"},` +
			`"fixed":{"items":{"type":"boolean"},"maxItems":2,"minItems":2,"type":"array"},"id":{"type":"string"},` +
			`"lines":{"items":{"properties":{"qty":{"maximum":9,"minimum":1,"type":"integer"},"sku":{"type":"string"}},"required":["sku","qty"],"type":"object"},"type":"array"},` +
			`"note":{"type":"string"},"num":{"type":"number"},"opaque":{},"rate":{"maximum":1.7976931348623157e+308,"minimum":-1.7976931348623157e+308,"type":"number"},"raw":{},` +
			`"refs":{"items":{"properties":{"qty":{"maximum":9,"minimum":1,"type":"integer"},"sku":{"type":"string"}},"required":["sku","qty"],"type":["object","null"]},"type":"array"},` +
			`"tags":{"additionalProperties":{"type":"string"},"type":"object"},"text":{"type":"string"},"wait":{"maximum":9223372036854775807,"minimum":-9223372036854775808,"type":"integer"}},` +
			`"required":["id","lines","tags","at","blob","colour","opaque","num","text","wait","rate","fixed","Plain"],"type":"object"}`},
	} {
		got, err := schemaOf(c.t)
		if err != nil {
			t.Errorf("%s: %v", c.t, err)
			continue
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", c.t, diff)
		}
		if _, err := expr.ParseSchema([]byte(got)); err != nil {
			t.Errorf("%s: the engine refuses its schema: %v", c.t, err)
		}
		schemas.Delete(c.t)
		if again, _ := schemaOf(c.t); again != got {
			t.Errorf("%s: two schemas", c.t)
		}
	}
	for typ, want := range map[reflect.Type]string{
		reflect.TypeFor[tree](): "contains itself", reflect.TypeFor[func()](): "no JSON", reflect.TypeFor[struct{ C chan int }](): "no JSON", reflect.TypeFor[map[bool]int](): "keys",
	} {
		if s, err := schemaOf(typ); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v; want an error about %s", typ, s, err, want)
		}
	}
}

// What a field's type can't hold is refused by the schema, and nothing else is: whoever starts a saga learns it, not the worker.
func TestNumbersHaveTheirTypesBounds(t *testing.T) {
	type numbers struct {
		I   int     `json:"i,omitempty"`
		I8  int8    `json:"i8,omitempty"`
		I16 int16   `json:"i16,omitempty"`
		I32 int32   `json:"i32,omitempty"`
		I64 int64   `json:"i64,omitempty"`
		P   *int64  `json:"p,omitempty"`
		U   uint    `json:"u,omitempty"`
		U8  uint8   `json:"u8,omitempty"`
		U16 uint16  `json:"u16,omitempty"`
		U32 uint32  `json:"u32,omitempty"`
		U64 uint64  `json:"u64,omitempty"`
		F32 float32 `json:"f32,omitempty"`
		F64 float64 `json:"f64,omitempty"`
		L   []int8  `json:"l,omitempty"`
		Own int64   `json:"own,omitempty" jsonschema:"minimum=1"`
		Mid int64   `json:"mid,omitempty" jsonschema:"exclusiveMaximum=10"`
		One int64   `json:"one,omitempty" jsonschema:"enum=1,enum=2"`
		Q   int8    `json:"q,omitempty,string"`
	}
	text, err := schemaOf(reflect.TypeFor[numbers]())
	if err != nil {
		t.Fatal(err)
	}
	s, err := expr.ParseSchema([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	for doc, fits := range map[string]bool{
		`{"i":9223372036854775807}`: true, `{"i":9223372036854775808}`: false, `{"i":-9223372036854775808}`: true, `{"i":-9223372036854775809}`: false,
		`{"i8":127}`: true, `{"i8":128}`: false, `{"i8":-128}`: true, `{"i8":-129}`: false,
		`{"i16":32767}`: true, `{"i16":32768}`: false, `{"i32":2147483647}`: true, `{"i32":2147483648}`: false, `{"i32":-2147483649}`: false,
		`{"i64":9223372036854775807}`: true, `{"i64":99999999999999999999}`: false, `{"i64":1e999}`: false, `{"p":1}`: true, `{"p":99999999999999999999}`: false,
		`{"u":18446744073709551615}`: true, `{"u":18446744073709551616}`: false, `{"u":-1}`: false, `{"u8":255}`: true, `{"u8":256}`: false,
		`{"u16":65536}`: false, `{"u32":4294967295}`: true, `{"u32":4294967296}`: false, `{"u64":18446744073709551615}`: true, `{"u64":18446744073709551616}`: false,
		`{"f64":1.7976931348623157e308}`: true, `{"f64":1e309}`: false, `{"f64":1e999}`: false, `{"f64":-1e999}`: false, `{"f64":0.5}`: true, `{"f64":1e-999}`: true,
		`{"f32":3.4028235e38}`: true, `{"f32":3.5e38}`: false, `{"l":[127]}`: true, `{"l":[128]}`: false,
		`{"own":1}`: true, `{"own":0}`: false, `{"own":99999999999999999999}`: false, `{"mid":9}`: true, `{"mid":10}`: false, `{"mid":-9223372036854775809}`: false,
		`{"one":2}`: true, `{"one":3}`: false, `{"q":"7"}`: true,
	} {
		if err := s.Validate([]byte(doc)); (err == nil) != fits {
			t.Errorf("%s: %v, want it to fit: %v", doc, err, fits)
		}
		var v numbers
		if err := Decode([]byte(doc), &v); fits && err != nil {
			t.Errorf("%s fits, but can't be read: %v", doc, err)
		}
	}
	for _, v := range []any{int64(math.MinInt64), uint64(math.MaxUint64), math.MaxFloat64, -math.MaxFloat64, float32(math.MaxFloat32), math.SmallestNonzeroFloat64} {
		doc, err := Encode(v)
		if err != nil {
			t.Fatal(err)
		}
		text, err := schemaOf(reflect.TypeOf(v))
		if err != nil {
			t.Fatal(err)
		}
		s, err := expr.ParseSchema([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(doc); err != nil {
			t.Errorf("%s: %v", doc, err)
		}
	}
	if strings.Contains(text, `"q":{"m`) {
		t.Errorf("a string has the bounds of a number: %s", text)
	}
}

// What Encode writes fits the schema, also of values that are all empty.
func TestEncodedValuesFitTheirSchemas(t *testing.T) {
	word := "null"
	for name, v := range map[string]any{
		"zero order": order{Opaque: opaque{}, Num: "1"}, "full order": order{base: base{"x"}, Lines: []line{{"a", 1}}, Refs: []*line{nil, {"b", 2}}, Note: &word, Tags: map[string]string{"a": "null"},
			Counts: map[int]int64{1: 2}, At: time.Unix(0, 0), Raw: []byte(`{"keep":null}`), Any: nil, Blob: []byte("x"), Num: "1.50", Big: big.NewInt(7)},
		"nil list": []line(nil), "nil map": map[string]int64(nil), "empty": struct{}{}, "lists": [][]int64{nil, {1}}, "maps": map[string][]string{"a": nil},
		"number": int64(math.MaxInt64), "nil pointers": []*line{nil},
	} {
		doc, err := Encode(v)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		text, err := schemaOf(reflect.TypeOf(v))
		if err != nil {
			t.Fatal(err)
		}
		s, err := expr.ParseSchema([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(doc); err != nil {
			t.Errorf("%s: %s doesn't fit %s: %v", name, doc, text, err)
		}
		if name == "full order" && (!strings.Contains(string(doc), `{"keep":null}`) || !strings.Contains(string(doc), `"note":"null"`)) {
			t.Errorf("%s: %s", name, doc)
		}
	}
	for want, v := range map[string]any{`[]`: []line(nil), `{}`: map[string]int64(nil), `{"a":[]}`: map[string][]string{"a": nil}, `[[],[1]]`: [][]int64{nil, {1}}, `"<&>"`: "<&>", `""`: []byte(nil), `[null]`: []*line{nil}, `null`: nil} {
		if doc, err := Encode(v); err != nil || string(doc) != want {
			t.Errorf("%#v: %s, %v; want %s", v, doc, err, want)
		}
	}
}

func TestEncodeRefusesWhatCantBeStored(t *testing.T) {
	for name, v := range map[string]any{
		"NaN": math.NaN(), "channel": make(chan int), "NUL": "a\x00b", "raw NUL": json.RawMessage(`"\u0000"`), "not JSON": json.RawMessage(`{`),
		"not UTF-8": json.RawMessage("\"\xff\""), "large": strings.Repeat("x", wire.PayloadBytesMax), "number": json.Number("x"),
	} {
		if doc, err := Encode(v); !errors.Is(err, wire.ErrNotStorable) {
			t.Errorf("%s: %.40s, %v", name, doc, err)
		}
	}
	if _, err := Encode(`a\u0000b`); err != nil { // the six characters
		t.Error(err)
	}
}

func TestDecodeKeepsDigits(t *testing.T) {
	const doc = `{"big":12345678901234567890123,"cent":9007199254740993,"amt":1.50,"list":[1.0]}`
	var loose any
	if err := Decode([]byte(doc), &loose); err != nil {
		t.Fatal(err)
	}
	back, err := Encode(loose)
	if err != nil || !strings.Contains(string(back), "12345678901234567890123") || !strings.Contains(string(back), "9007199254740993") ||
		!strings.Contains(string(back), "1.50") || !strings.Contains(string(back), "[1.0]") {
		t.Errorf("%s, %v", back, err)
	}
	var typed struct {
		Cent int64 `json:"cent"`
	}
	if err := Decode([]byte(doc), &typed); err != nil || typed.Cent != 9007199254740993 {
		t.Errorf("%+v, %v", typed, err)
	}
	var raw json.RawMessage
	if err := Decode([]byte(doc), &raw); err != nil || string(raw) != doc {
		t.Errorf("%s, %v", raw, err)
	}
	for _, bad := range []string{`{"cent":1.5}`, `{"cent":99999999999999999999}`, `{} {}`, `{`} {
		if err := Decode([]byte(bad), &typed); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
	if err := Decode([]byte(`1 2`), &loose); err == nil {
		t.Error("what follows is ignored")
	}
	var p *line
	if err := Decode(nil, &p); err != nil || p != nil {
		t.Error(p, err)
	}
}
