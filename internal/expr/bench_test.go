package expr

import "testing"

const orderSchema = `{
  "type": "object",
  "additionalProperties": false,
  "required": ["id", "cent", "customer", "lines"],
  "properties": {
    "id": {"type": "string"},
    "cent": {"type": "integer"},
    "amt": {"type": "number"},
    "big": {"type": "integer"},
    "memo": {"type": ["string", "null"]},
    "note": {"type": "string"},
    "customer": {"$ref": "#/$defs/Customer"},
    "lines": {"type": "array", "maxItems": 100, "items": {
      "type": "object",
      "required": ["sku", "qty"],
      "properties": {"sku": {"type": "string", "maxLength": 40}, "qty": {"type": "integer", "minimum": 1}}
    }},
    "tags": {"type": "object", "additionalProperties": {"type": "string"}}
  },
  "$defs": {"Customer": {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string"}, "order-id": {"type": "string"}, "parent": {"$ref": "#/$defs/Customer"}}
  }}
}`

const orderDoc = `{"id":"o-17","cent":1999,"amt":19.99,"big":123456789012345678901234567890,"memo":null,
 "customer":{"name":"Ann","parent":{"name":"Bob"},"order-id":"x-1"},
 "lines":[{"sku":"a","qty":2},{"sku":"b","qty":3}],"tags":{"b":"2","a":"1"}}`

func orderEnv(t testing.TB) *Env {
	t.Helper()
	env, err := NewEnv(Var{"input", mustSchema(t, orderSchema)}, Var{"any", nil})
	if err != nil {
		t.Fatal(err)
	}
	return env
}

func BenchmarkEval(b *testing.B) {
	env := orderEnv(b)
	vars := Vars{"input": []byte(orderDoc), "any": []byte(orderDoc)}
	for _, src := range []string{
		"input.id",
		"input.customer.parent.name",
		"input.cent + 1",
		"input.cent > 1000 && input.customer.name != ''",
		"'order-' + input.id",
		"input.lines.map(l, l.sku)",
		"input",
	} {
		p, err := env.Compile(src, nil)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(src, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := p.Eval(vars); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkObjectEval(b *testing.B) {
	o, errs := orderEnv(b).CompileObject([]Field{
		{"order", "input.id"}, {"cent", "input.cent"}, {"who", "input.customer.name"}, {"kind", "'sale'"},
	}, nil)
	if errs != nil {
		b.Fatal(errs)
	}
	vars := Vars{"input": []byte(orderDoc)}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := o.Eval(vars); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	env := orderEnv(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := env.Compile("input.cent > 1000 && input.customer.name != ''", Bool); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDocument(b *testing.B) {
	doc := []byte(orderDoc)
	s := mustSchema(b, orderSchema)
	b.Run("check", func(b *testing.B) {
		b.SetBytes(int64(len(doc)))
		b.ReportAllocs()
		for b.Loop() {
			if err := CheckJSON(doc); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("canonical", func(b *testing.B) {
		b.SetBytes(int64(len(doc)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := CanonicalJSON(doc); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("validate", func(b *testing.B) {
		b.SetBytes(int64(len(doc)))
		b.ReportAllocs()
		for b.Loop() {
			if err := s.Validate(doc); err != nil {
				b.Fatal(err)
			}
		}
	})
}
