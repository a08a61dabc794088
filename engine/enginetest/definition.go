package enginetest

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// Transfer is a saga of three steps: debit and credit can be undone; confirm changes nothing.
func Transfer() *sagadv1.Definition {
	step := func(name string, kind sagadv1.Kind) *sagadv1.Node {
		s := &sagadv1.Step{
			Name: name, Activity: "bank." + name, Kind: kind, Timeout: durationpb.New(5 * time.Second),
			Input: &sagadv1.Mapping{Fields: map[string]string{"amount": "input.amount"}},
			Retry: &sagadv1.RetryPolicy{MaxAttempts: 3, Initial: durationpb.New(time.Second), Factor: 2},
		}
		if kind == sagadv1.Kind_KIND_COMPENSATABLE {
			s.Compensation = &sagadv1.Compensation{
				Timeout: durationpb.New(5 * time.Second),
				Retry:   &sagadv1.RetryPolicy{MaxAttempts: 3, Initial: durationpb.New(time.Second), Factor: 2},
			}
		}
		return &sagadv1.Node{Kind: &sagadv1.Node_Step{Step: s}}
	}
	return &sagadv1.Definition{
		Name:        "transfer",
		InputSchema: `{"type":"object","properties":{"amount":{"type":"integer"}},"required":["amount"]}`,
		Activities: []*sagadv1.Activity{
			{Name: "bank.confirm"}, {Name: "bank.credit"}, {Name: "bank.debit"},
		},
		Body: []*sagadv1.Node{
			step("debit", sagadv1.Kind_KIND_COMPENSATABLE),
			step("credit", sagadv1.Kind_KIND_COMPENSATABLE),
			step("confirm", sagadv1.Kind_KIND_READ_ONLY),
		},
	}
}
