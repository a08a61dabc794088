package expr_test

import (
	"fmt"

	"github.com/sagad/sagad/internal/expr"
)

// A step's input is mapped from the saga's input and from the output of an earlier step.
func Example() {
	order, err := expr.ParseSchema([]byte(`{"type":"object","required":["id","cents"],
		"properties":{"id":{"type":"string"},"cents":{"type":"integer"}}}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	stock, err := expr.ParseSchema([]byte(`{"type":"object","properties":{"reservation":{"type":"string"}}}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	charge, err := expr.ParseSchema([]byte(`{"type":"object","required":["amount","reference"],
		"properties":{"amount":{"type":"integer"},"reference":{"type":"string"}}}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	env, err := expr.NewEnv(expr.Var{Name: "input", Schema: order}, expr.Var{Name: "reserve", Schema: stock})
	if err != nil {
		fmt.Println(err)
		return
	}

	_, problems := env.CompileObject([]expr.Field{{Name: "amount", Source: "input.cent"}}, charge)
	for _, p := range problems {
		fmt.Println(p)
	}

	mapping, problems := env.CompileObject([]expr.Field{
		{Name: "amount", Source: "input.cents"},
		{Name: "reference", Source: "input.id + '/' + reserve.reservation"},
	}, charge)
	if problems != nil {
		fmt.Println(problems)
		return
	}
	fmt.Println(mapping.Refs())
	out, err := mapping.Eval(expr.Vars{
		"input":   []byte(`{"id": "o-17", "cents": 9007199254740993}`),
		"reserve": []byte(`{"reservation": "r1"}`),
	})
	fmt.Println(string(out), err)

	// Output:
	// field amount: 1:7: input has no field cent; did you mean cents?
	// field reference: the field is required, but missing; want string
	// [input reserve]
	// {"amount":9007199254740993,"reference":"o-17/r1"} <nil>
}

func ExampleCanonicalJSON() {
	out, err := expr.CanonicalJSON([]byte(`{ "b": 1.0, "a": "\u00e9" }`))
	fmt.Println(string(out), err)
	_, err = expr.CanonicalJSON([]byte(`{"memo": "a\u0000"}`))
	fmt.Println(err)
	// Output:
	// {"a":"é","b":1.0} <nil>
	// $.memo: a string holds U+0000, which can't be stored
}
