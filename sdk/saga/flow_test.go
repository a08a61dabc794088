package saga_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"

	"github.com/sagad/sagad/sdk/saga"
)

// Each builder makes the node that its name says.
func TestFlowAsData(t *testing.T) {
	const integer = `{"maximum":9223372036854775807,"minimum":-9223372036854775808,"type":"integer"}`
	const outSchema = `{"properties":{"b":` + integer + `},"required":["b"],"type":"object"}`
	f, value := saga.Fields{"a": "input.a"}, func(s string) *sagadv1.Mapping { return &sagadv1.Mapping{Value: s} }
	read := func(name string) saga.Node { return saga.Read(name, reading, f) }
	do := func(name string) saga.Node { return saga.Do(name, undoable, f) }
	readStep := func(name string) *sagadv1.Node {
		return step(&sagadv1.Step{Name: name, Activity: "t.reading", Kind: sagadv1.Kind_KIND_READ_ONLY, Input: a("input.a")})
	}
	doStep := func(name string) *sagadv1.Node {
		return step(&sagadv1.Step{Name: name, Activity: "t.undoable", Kind: sagadv1.Kind_KIND_COMPENSATABLE, Input: a("input.a")})
	}
	paid, gone := saga.Signal[out]{Name: "paid"}, saga.Signal[any]{Name: "gone"}
	claimed := saga.Compensatable[in, out]{Name: "t.claimed", Probe: true, Claimed: true}
	child := saga.Define[in, out]("child", saga.Do("x", undoable, f), saga.Return(saga.Fields{"b": "x.b"}))

	def := saga.Define[in, any]("flow",
		saga.Sleep("s1", 90*time.Second), saga.SleepFor("s2", "'90m'"), saga.SleepUntil("s3", "'2026-01-01T00:00:00Z'"),
		saga.Wait("w1", paid, saga.Timeout(time.Minute)),
		saga.Wait("w2", gone, saga.Timeout(time.Hour)).Then(read("then")).Otherwise(read("else1"), read("else2")),
		saga.Wait("w3", paid, saga.Timeout(time.Hour)).Otherwise(),
		saga.Approve[out]("ask", saga.Title("'Fine?'"), saga.Timeout(time.Hour)),
		saga.Switch("sw", saga.Case("w1.b == 1", read("c1")), saga.Case("ask.b == 2"), saga.Default(read("c3"))),
		saga.Loop("again", 7, saga.Initial(saga.Value("0")), read("l1"), saga.Next(saga.Value("l1.b")), saga.While("again.index < 3")),
		saga.Map("each", "[1, 2]", do("m1"), saga.Window(4), saga.Tolerate(1), saga.Output(saga.Value("m1.b"))),
		saga.Any("any", read("r1"), saga.Branch(do("r2"), do("r3"), saga.Output(saga.Value("r3")))),
		saga.AtLeast(2, "two", do("r4"), do("r5"), do("r6")),
		saga.Savepoint("safe", saga.Body(do("b1"), do("b2")), saga.AlternativeIf("safe.code == 'NO'", do("b3")), saga.Alternative()),
		saga.Child("other", child, saga.Fields{"a": "input.a"}),
		saga.Child("far", saga.Named("far-away"), saga.Returns[out](), saga.Version(3)),
		saga.Do("held", claimed, f, saga.Heartbeat(5*time.Second)),
		saga.Pivot("pay", doing, f),
		saga.RetriableChild("mail", saga.Named("mail"), saga.Value("pay")))

	want := []*sagadv1.Node{
		{Kind: &sagadv1.Node_Sleep{Sleep: &sagadv1.Sleep{Name: "s1", Duration: durationpb.New(90 * time.Second)}}},
		{Kind: &sagadv1.Node_Sleep{Sleep: &sagadv1.Sleep{Name: "s2", For: "'90m'"}}},
		{Kind: &sagadv1.Node_Sleep{Sleep: &sagadv1.Sleep{Name: "s3", Until: "'2026-01-01T00:00:00Z'"}}},
		{Kind: &sagadv1.Node_Wait{Wait: &sagadv1.Wait{Name: "w1", Signal: "paid", Timeout: durationpb.New(time.Minute)}}},
		{Kind: &sagadv1.Node_Wait{Wait: &sagadv1.Wait{Name: "w2", Signal: "gone", Timeout: durationpb.New(time.Hour), HasOtherwise: true,
			Received: []*sagadv1.Node{readStep("then")}, Otherwise: []*sagadv1.Node{readStep("else1"), readStep("else2")}}}},
		{Kind: &sagadv1.Node_Wait{Wait: &sagadv1.Wait{Name: "w3", Signal: "paid", Timeout: durationpb.New(time.Hour), HasOtherwise: true}}},
		{Kind: &sagadv1.Node_Wait{Wait: &sagadv1.Wait{Name: "ask", Timeout: durationpb.New(time.Hour), Approval: &sagadv1.Approval{Title: "'Fine?'", FormSchema: outSchema}}}},
		{Kind: &sagadv1.Node_Switch{Switch: &sagadv1.Switch{Name: "sw", Cases: []*sagadv1.Case{{Condition: "w1.b == 1", Body: []*sagadv1.Node{readStep("c1")}}, {Condition: "ask.b == 2"}},
			Default: &sagadv1.Default{Body: []*sagadv1.Node{readStep("c3")}}}}},
		{Kind: &sagadv1.Node_Loop{Loop: &sagadv1.Loop{Name: "again", MaxRounds: 7, Initial: value("0"), Body: []*sagadv1.Node{readStep("l1")}, Next: value("l1.b"), While: "again.index < 3"}}},
		{Kind: &sagadv1.Node_Map{Map: &sagadv1.Map{Name: "each", Items: "[1, 2]", Body: []*sagadv1.Node{doStep("m1")}, Window: 4, Tolerate: 1, Output: value("m1.b")}}},
		{Kind: &sagadv1.Node_Parallel{Parallel: &sagadv1.Parallel{Name: "any", Join: sagadv1.Join_JOIN_ANY, Branches: []*sagadv1.Branch{
			{Body: []*sagadv1.Node{readStep("r1")}}, {Body: []*sagadv1.Node{doStep("r2"), doStep("r3")}, Output: value("r3")}}}}},
		{Kind: &sagadv1.Node_Parallel{Parallel: &sagadv1.Parallel{Name: "two", Join: sagadv1.Join_JOIN_COUNT, Count: 2, Branches: []*sagadv1.Branch{
			{Body: []*sagadv1.Node{doStep("r4")}}, {Body: []*sagadv1.Node{doStep("r5")}}, {Body: []*sagadv1.Node{doStep("r6")}}}}}},
		{Kind: &sagadv1.Node_Savepoint{Savepoint: &sagadv1.Savepoint{Name: "safe", Body: []*sagadv1.Node{doStep("b1"), doStep("b2")},
			Alternatives: []*sagadv1.Alternative{{Condition: "safe.code == 'NO'", Body: []*sagadv1.Node{doStep("b3")}}, {}}}}},
		{Kind: &sagadv1.Node_Child{Child: &sagadv1.Child{Name: "other", Definition: "child", Kind: sagadv1.Kind_KIND_COMPENSATABLE, Input: a("input.a"), OutputSchema: outSchema}}},
		{Kind: &sagadv1.Node_Child{Child: &sagadv1.Child{Name: "far", Definition: "far-away", Version: 3, Kind: sagadv1.Kind_KIND_COMPENSATABLE, OutputSchema: outSchema}}},
		step(&sagadv1.Step{Name: "held", Activity: "t.claimed", Kind: sagadv1.Kind_KIND_COMPENSATABLE, Input: a("input.a"), Heartbeat: durationpb.New(5 * time.Second)}),
		step(&sagadv1.Step{Name: "pay", Activity: "t.doing", Kind: sagadv1.Kind_KIND_PIVOT, Input: a("input.a")}),
		{Kind: &sagadv1.Node_Child{Child: &sagadv1.Child{Name: "mail", Definition: "mail", Kind: sagadv1.Kind_KIND_RETRIABLE, Input: value("pay")}}},
	}
	got := def.Proto()
	if diff := cmp.Diff(want, got.Body, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]*sagadv1.Signal{{Name: "gone"}, {Name: "paid", Schema: outSchema}}, got.Signals, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if c := got.Activities[0]; c.Name != "t.claimed" || !c.Probe || !c.Claimed {
		t.Errorf("%v", got.Activities)
	}
	if err := def.Verify(); err != nil {
		t.Error(err)
	}
}

func TestWhatIsWrongInFlowIsSaid(t *testing.T) {
	f := saga.Fields{"a": "input.a"}
	read := saga.Read("x", reading, f)
	paid := saga.Signal[out]{Name: "paid"}
	withPivot := saga.Define[in, any]("paying", saga.If("input.a > 1", saga.Pivot("p", doing, f)))
	broken := saga.Define[in, any]("broken", nil)
	for name, c := range map[string]struct {
		part saga.Part
		want []string
	}{
		"nil options":          {saga.Wait("w", paid, nil), []string{"wait w", "nil"}},
		"nil question":         {saga.Approve[any]("w", nil), []string{"wait w", "nil"}},
		"no question":          {saga.Approve[any]("w", saga.Timeout(time.Second)), []string{"wait-source", "what a person is asked"}},
		"no end":               {saga.Wait("w", paid), []string{"wait-unbounded"}},
		"nil arm":              {saga.Wait("w", paid, saga.Timeout(time.Second)).Then(nil), []string{"nil"}},
		"no default":           {saga.Switch("s", saga.Case("true", read)), []string{"switch-default"}},
		"two defaults":         {saga.Switch("s", saga.Case("true", read), saga.Default(), saga.Default()), []string{"switch s", "two defaults"}},
		"case after default":   {saga.Switch("s", saga.Default(), saga.Case("true", read)), []string{"switch s", `"true"`, "default last"}},
		"nil case":             {saga.Switch("s", nil), []string{"switch s", "nil"}},
		"rounds":               {saga.Loop("l", 1001, read, saga.While("false")), []string{"loop l", "1001"}},
		"no rounds":            {saga.Loop("l", 0, read, saga.While("false")), []string{"max_rounds", "0 rounds"}},
		"no while":             {saga.Loop("l", 1, read), []string{"loop-while"}},
		"two whiles":           {saga.Loop("l", 1, read, saga.While("false"), saga.While("true")), []string{"loop l", "twice"}},
		"nil next":             {saga.Loop("l", 1, read, saga.While("false"), saga.Next(nil)), []string{"loop l", "Next is nil"}},
		"two initials":         {saga.Loop("l", 1, read, saga.While("false"), saga.Initial(f), saga.Initial(f)), []string{"loop l", "Initial", "twice"}},
		"nil in a loop":        {saga.Loop("l", 1, nil), []string{"loop l", "nil"}},
		"window":               {saga.Map("m", "[1]", read, saga.Window(1001)), []string{"map m", "Window", "1001"}},
		"tolerate":             {saga.Map("m", "[1]", read, saga.Tolerate(-1)), []string{"map m", "Tolerate", "-1"}},
		"two outputs":          {saga.Map("m", "[1]", read, saga.Output(f), saga.Output(f)), []string{"map m", "Output", "twice"}},
		"nil in a map":         {saga.Map("m", "[1]", nil), []string{"map m", "nil"}},
		"nil branch":           {saga.Any("r", nil, read), []string{"parallel r", "nil"}},
		"nil in a branch":      {saga.Any("r", saga.Branch(nil), read), []string{"parallel r", "nil"}},
		"all of them":          {saga.AtLeast(2, "r", read, saga.Read("y", reading, f)), []string{"join-count"}},
		"output in a parallel": {saga.Parallel(saga.Branch(read, saga.Output(f)), saga.Read("y", reading, f)), []string{"branch-output"}},
		"output in an if":      {saga.If("true", saga.Branch(read, saga.Output(f))), []string{`if "true"`, "output"}},
		"no alternative":       {saga.Savepoint("s", saga.Body(read)), []string{"savepoint-alternatives"}},
		"nil child":            {saga.Child("c", nil), []string{"child c", "nil"}},
		"nil definition":       {saga.Child("c", (*saga.Definition[in, out])(nil)), []string{"child c", "nil"}},
		"child with a pivot":   {saga.Child("c", withPivot), []string{"child c", "paying", "pivot, p"}},
		"child that is broken": {saga.Child("c", broken), []string{"child c", "definition broken"}},
		"child's input twice":  {saga.Child("c", saga.Named("x"), f, f), []string{"child c", "input", "twice"}},
		"child's nil option":   {saga.Child("c", saga.Named("x"), nil), []string{"child c", "nil"}},
		"child's output":       {saga.Child("c", saga.Named("x"), saga.Returns[chan int]()), []string{"child c", "no JSON"}},
		"heartbeat":            {saga.Read("y", reading, f, saga.Heartbeat(time.Minute)), []string{"y, heartbeat", "1m0s"}},
		"no heartbeat":         {saga.Read("y", saga.ReadOnly[in, out]{Name: "t.claimed", Claimed: true}, f), []string{"claimed-heartbeat"}},
		"payload":              {saga.Wait("w", saga.Signal[chan int]{Name: "c"}, saga.Timeout(time.Second)), []string{"wait w", "signal c", "no JSON"}},
	} {
		err := saga.Define[in, any]("d", c.part).Verify()
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
	// What is wrong only with another part.
	second := saga.Timeout(time.Second)
	if err := saga.Define[in, any]("d", read, saga.Wait("v", paid, second), saga.Wait("w", saga.Signal[in]{Name: "paid"}, second)).Verify(); err == nil || !strings.Contains(err.Error(), "two types of payload") {
		t.Error(err)
	}
	probed := saga.Activity[in, out]{Name: "t.doing", Probe: true}
	if err := saga.Define[in, any]("d", saga.Pivot("p", doing, f), saga.Retriable("r", probed, f)).Verify(); err == nil || !strings.Contains(err.Error(), "two contracts") {
		t.Error(err)
	}
	// A retriable child may have a pivot.
	if err := saga.Define[in, any]("d", saga.Pivot("p", doing, f), saga.RetriableChild("c", withPivot, saga.Value("input"))).Verify(); err != nil {
		t.Error(err)
	}
}

// Nodes without a name get one that none of the new nodes has.
func TestNamesOfFlowAreTaken(t *testing.T) {
	f := saga.Fields{"a": "input.a"}
	def := saga.Define[in, any]("d",
		saga.If("true", saga.Read("x", reading, f)), saga.Sleep("if1", time.Second), saga.Savepoint("if2", saga.Body(saga.Read("y", reading, f)), saga.Alternative()))
	if name := def.Proto().Body[0].GetIf().GetName(); name != "if3" {
		t.Error(name)
	}
}

// What whoever sends a signal needs of its contract.
func TestSignalAsContract(t *testing.T) {
	var contract interface {
		SignalName() string
		SignalPayload(payload []string) ([]byte, error)
	} = saga.Signal[[]string]{Name: "tags"}
	doc, err := contract.SignalPayload(nil)
	if err != nil || string(doc) != "[]" || contract.SignalName() != "tags" {
		t.Errorf("%s %s %v", contract.SignalName(), doc, err)
	}
}
