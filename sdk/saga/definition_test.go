package saga_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"

	"github.com/sagad/sagad/sdk/saga"
)

type in struct {
	A int64 `json:"a"`
}

type out struct {
	B int64 `json:"b"`
}

var (
	undoable = saga.Compensatable[in, out]{Name: "t.undoable"}
	reading  = saga.ReadOnly[in, out]{Name: "t.reading"}
	doing    = saga.Activity[in, out]{Name: "t.doing"}
)

func step(n *sagadv1.Step) *sagadv1.Node {
	return &sagadv1.Node{Kind: &sagadv1.Node_Step{Step: n}}
}

func a(expr string) *sagadv1.Mapping {
	return &sagadv1.Mapping{Fields: map[string]string{"a": expr}}
}

func TestDefinitionAsData(t *testing.T) {
	const inSchema = `{"properties":{"a":{"maximum":9223372036854775807,"minimum":-9223372036854775808,"type":"integer"}},"required":["a"],"type":"object"}`
	const outSchema = `{"properties":{"b":{"maximum":9223372036854775807,"minimum":-9223372036854775808,"type":"integer"}},"required":["b"],"type":"object"}`
	f := saga.Fields{"a": "input.a"}
	def := saga.Define[in, out]("everything",
		saga.Deadline(48*time.Hour), saga.Description("all there is"), saga.MaxParallelCompensations(3),
		saga.Do("first", undoable, f, saga.Timeout(time.Minute), saga.Hold(),
			saga.Retry{MaxAttempts: 5, Initial: time.Second, Factor: 3, Max: time.Minute, Total: time.Hour},
			saga.Compensation(saga.Timeout(2*time.Minute), saga.Retry{MaxAttempts: 20}, saga.LetPass())),
		saga.Parallel(
			saga.Read("x", reading, f),
			saga.Branch(saga.Read("y1", reading, f), saga.Read("y2", reading, saga.Fields{"a": "y1.b"}))),
		saga.If("first.b > 1", saga.Read("p1", reading, f)).Else(saga.Read("other", reading, saga.Value("input"))),
		saga.If("first.b > 2", saga.Name("named"), saga.Parallel(saga.Name("inner"), saga.Read("q", reading, f), saga.Read("r", reading, f))),
		saga.Pivot("pay", doing, f),
		saga.Retriable("ship", doing, f),
		saga.Return(saga.Fields{"b": "ship.b"}))
	want := &sagadv1.Definition{
		Name: "everything", Description: "all there is", InputSchema: inSchema, OutputSchema: outSchema, Deadline: durationpb.New(48 * time.Hour), MaxParallelCompensations: 3,
		Activities: []*sagadv1.Activity{
			{Name: "t.doing", InputSchema: inSchema, OutputSchema: outSchema}, {Name: "t.reading", InputSchema: inSchema, OutputSchema: outSchema}, {Name: "t.undoable", InputSchema: inSchema, OutputSchema: outSchema},
		},
		Body: []*sagadv1.Node{
			step(&sagadv1.Step{Name: "first", Activity: "t.undoable", Kind: sagadv1.Kind_KIND_COMPENSATABLE, Input: a("input.a"), Timeout: durationpb.New(time.Minute), GiveUp: sagadv1.GiveUp_GIVE_UP_HOLD,
				Retry:        &sagadv1.RetryPolicy{MaxAttempts: 5, Initial: durationpb.New(time.Second), Factor: 3, Max: durationpb.New(time.Minute), Total: durationpb.New(time.Hour)},
				Compensation: &sagadv1.Compensation{Timeout: durationpb.New(2 * time.Minute), Retry: &sagadv1.RetryPolicy{MaxAttempts: 20}, LetPass: true}}),
			// p1 is taken by a step.
			{Kind: &sagadv1.Node_Parallel{Parallel: &sagadv1.Parallel{Name: "p2", Branches: []*sagadv1.Branch{
				{Body: []*sagadv1.Node{step(&sagadv1.Step{Name: "x", Activity: "t.reading", Kind: sagadv1.Kind_KIND_READ_ONLY, Input: a("input.a")})}},
				{Body: []*sagadv1.Node{
					step(&sagadv1.Step{Name: "y1", Activity: "t.reading", Kind: sagadv1.Kind_KIND_READ_ONLY, Input: a("input.a")}),
					step(&sagadv1.Step{Name: "y2", Activity: "t.reading", Kind: sagadv1.Kind_KIND_READ_ONLY, Input: a("y1.b")})}},
			}}}},
			{Kind: &sagadv1.Node_If{If: &sagadv1.If{Name: "if1", Condition: "first.b > 1",
				Then: []*sagadv1.Node{step(&sagadv1.Step{Name: "p1", Activity: "t.reading", Kind: sagadv1.Kind_KIND_READ_ONLY, Input: a("input.a")})},
				Else: []*sagadv1.Node{step(&sagadv1.Step{Name: "other", Activity: "t.reading", Kind: sagadv1.Kind_KIND_READ_ONLY, Input: &sagadv1.Mapping{Value: "input"}})},
			}}},
			{Kind: &sagadv1.Node_If{If: &sagadv1.If{Name: "named", Condition: "first.b > 2", Then: []*sagadv1.Node{
				{Kind: &sagadv1.Node_Parallel{Parallel: &sagadv1.Parallel{Name: "inner", Branches: []*sagadv1.Branch{
					{Body: []*sagadv1.Node{step(&sagadv1.Step{Name: "q", Activity: "t.reading", Kind: sagadv1.Kind_KIND_READ_ONLY, Input: a("input.a")})}},
					{Body: []*sagadv1.Node{step(&sagadv1.Step{Name: "r", Activity: "t.reading", Kind: sagadv1.Kind_KIND_READ_ONLY, Input: a("input.a")})}},
				}}}}}}}},
			step(&sagadv1.Step{Name: "pay", Activity: "t.doing", Kind: sagadv1.Kind_KIND_PIVOT, Input: a("input.a")}),
			step(&sagadv1.Step{Name: "ship", Activity: "t.doing", Kind: sagadv1.Kind_KIND_RETRIABLE, Input: a("input.a")}),
			{Kind: &sagadv1.Node_Return{Return: &sagadv1.Return{Output: &sagadv1.Mapping{Fields: map[string]string{"b": "ship.b"}}}}},
		},
	}
	if diff := cmp.Diff(want, def.Proto(), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if err := def.Verify(); err != nil {
		t.Error(err)
	}
	// A copy each time.
	def.Proto().Name = "changed"
	if def.Name() != "everything" || !proto.Equal(def.Proto(), want) {
		t.Error("the definition can be changed from outside")
	}
}

func TestWhatIsWrongIsSaidByVerify(t *testing.T) {
	other := saga.ReadOnly[in, in]{Name: "t.reading"}
	f := saga.Fields{"a": "input.a"}
	for name, c := range map[string]struct {
		def  interface{ Verify() error }
		want []string
	}{
		"two contracts": {saga.Define[in, out]("d", saga.Read("x", reading, f), saga.Read("y", other, f)), []string{"step y", "two contracts"}},
		"input twice":   {saga.Define[in, out]("d", saga.Read("x", reading, f, saga.Value("input"))), []string{"step x", "given twice"}},
		"nil part":      {saga.Define[in, out]("d", nil), []string{"nil"}},
		"nil option":    {saga.Define[in, out]("d", saga.Read("x", reading, f, nil)), []string{"step x", "nil"}},
		"nil return":    {saga.Define[in, out]("d", saga.Return(nil)), []string{"return", "nil"}},
		"attempts":      {saga.Define[in, out]("d", saga.Read("x", reading, f, saga.Retry{MaxAttempts: -1})), []string{"step x", "MaxAttempts", "-1", "1 to 10000"}},
		"many attempts": {saga.Define[in, out]("d", saga.Read("x", reading, f, saga.Retry{MaxAttempts: 10_001})), []string{"step x", "MaxAttempts", "10001", "1 to 10000"}},
		"many undone":   {saga.Define[in, out]("d", saga.Read("x", reading, f), saga.MaxParallelCompensations(1001)), []string{"MaxParallelCompensations", "1001", "1 to 1000"}},
		"channel":       {saga.Define[chan int, out]("d"), []string{"input", "chan int", "no JSON"}},
		"misspelt":      {saga.Define[in, any]("d", saga.Read("x", reading, saga.Fields{"a": "input.aa"})), []string{"definition d", "x, input.a", `"input.aa"`, "line 1, column"}},
		"no pivot":      {saga.Define[in, any]("d", saga.Retriable("x", doing, f)), []string{"retriable-before-pivot"}},
	} {
		err := c.def.Verify()
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		for _, part := range c.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v; want it to say %q", name, err, part)
			}
		}
	}
	err := saga.Define[in, any]("d", saga.Retriable("x", doing, f)).Verify()
	if p := saga.Problems(err); len(p) == 0 || p[0].Rule != "retriable-before-pivot" || p[0].Step != "x" {
		t.Errorf("problems of %v: %v", err, p)
	}
}
