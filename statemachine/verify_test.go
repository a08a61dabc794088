package statemachine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/sagad/sagad/internal/expr"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// TestDefinitions verifies the definitions in testdata/definition: those in bad have the problems that stand there, word for
// word; those in good have none. Run with -rewrite to write the problems anew, and read the difference.
//
// The commands: "json" takes a definition as JSON; "script" one in the language of the scripts; "flow" one as JSON whose activities are
// added and in which a step may be a line of the scripts.
func TestDefinitions(t *testing.T) {
	for _, want := range []string{"bad", "good"} {
		cases := 0
		datadriven.Walk(t, "testdata/definition/"+want, func(t *testing.T, path string) {
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				cases++
				def, err := readDefinition(d.Cmd, d.Input)
				if err != nil {
					return "unreadable: " + err.Error() + "\n"
				}
				m, problems := Compile(def)
				if (want == "good") != (len(problems) == 0) || (m == nil) != (len(problems) > 0) {
					t.Errorf("%s: a definition that should be %s has %d problems:\n%s%s", d.Pos, want, len(problems), d.Input, printProblems(problems))
				}
				if len(problems) == 0 {
					checkMachine(t, m)
					return fmt.Sprintf("ok, %d steps, hash %.12s\n", len(m.steps), m.Hash())
				}
				checkProblems(t, def, problems)
				return printProblems(problems)
			})
		})
		if want == "bad" && cases < 50 {
			t.Errorf("%d bad definitions; some got lost", cases)
		}
	}
}

func readDefinition(kind, source string) (*sagadv1.Definition, error) {
	switch kind {
	case "script":
		return parseDefinition(source)
	case "flow":
		return parseFlow(source)
	}
	def := &sagadv1.Definition{}
	return def, protojson.Unmarshal([]byte(source), def)
}

// parseFlow reads a definition, or its body alone, as JSON. In a list of nodes, a text stands for a step. Activities that aren't there
// are added, and the name.
func parseFlow(source string) (*sagadv1.Definition, error) {
	var doc any
	if err := json.Unmarshal([]byte(source), &doc); err != nil {
		return nil, err
	}
	whole, ok := doc.(map[string]any)
	if !ok {
		whole = map[string]any{"body": doc}
	}
	if err := stepLines(whole); err != nil {
		return nil, err
	}
	b, err := json.Marshal(whole)
	if err != nil {
		return nil, err
	}
	def := &sagadv1.Definition{Name: "test"}
	merged := &sagadv1.Definition{}
	if err := protojson.Unmarshal(b, merged); err != nil {
		return nil, err
	}
	proto.Merge(def, merged)
	declared := map[string]bool{}
	for _, a := range def.Activities {
		declared[a.Name] = true
	}
	for _, s := range stepsOf(def.Body) {
		if s.Activity != "" && !declared[s.Activity] {
			declared[s.Activity] = true
			def.Activities = append(def.Activities, &sagadv1.Activity{Name: s.Activity})
		}
	}
	sort.Slice(def.Activities, func(i, j int) bool { return def.Activities[i].Name < def.Activities[j].Name })
	return def, nil
}

// stepLines makes steps of the texts in lists of nodes.
func stepLines(doc any) error {
	switch d := doc.(type) {
	case []any:
		for _, e := range d {
			if err := stepLines(e); err != nil {
				return err
			}
		}
	case map[string]any:
		for key, e := range d {
			list, ok := e.([]any)
			if ok && (key == "body" || key == "then" || key == "else" || key == "received" || key == "otherwise") {
				for i := range list {
					line, ok := list[i].(string)
					if !ok {
						continue
					}
					p := defParser{activities: map[string]bool{}}
					word, rest, _ := strings.Cut(line, " ")
					s := p.step(word, rest)
					if p.err != nil {
						return p.err
					}
					b, err := protojson.Marshal(s)
					if err != nil {
						return err
					}
					list[i] = map[string]any{"step": json.RawMessage(b)}
				}
			}
			if err := stepLines(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkMachine checks that a machine hangs together: each step and each place stands once in the body that it says, at its slot, and
// each body belongs to the place that runs it.
func checkMachine(t interface {
	Helper()
	Errorf(string, ...any)
	Fatal(...any)
}, m *Machine) {
	t.Helper()
	steps, places := map[int]bool{}, map[int]bool{}
	last := -1 // steps are numbered as they appear
	var walk func(body int, nodes []node, indexed bool)
	enter := func(owner int, indexed bool) {
		p := &m.places[owner]
		for i, b := range p.bodies {
			inner := &m.bodies[b]
			if inner.owner != owner || inner.index != i || inner.depth != m.bodies[p.body].depth+1 {
				t.Errorf("%s: body %d is %d of %d, depth %d", p.name, i, inner.index, inner.owner, inner.depth)
			}
			walk(b, inner.nodes, indexed || p.kind == mapNode || p.kind == loopNode)
		}
	}
	walk = func(body int, nodes []node, indexed bool) {
		for i := range nodes {
			n := &nodes[i]
			switch n.kind {
			case stepNode:
				st := &m.steps[n.index]
				if steps[n.index] || n.index != last+1 || st.body != body || m.bodies[body].steps[st.slot] != n.index || st.indexed != indexed || m.byName[st.name] != n.index {
					t.Errorf("step %d, %s, in body %d after %d: %+v", n.index, st.name, body, last, st)
				}
				steps[n.index], last = true, n.index
				continue
			case parallelNode, returnNode:
			default:
				p := &m.places[n.index]
				if places[n.index] || p.kind != n.kind || p.body != body || m.bodies[body].places[p.slot] != n.index || p.indexed != indexed || m.placeOf[p.name] != n.index {
					t.Errorf("place %d, %s, in body %d: %+v", n.index, p.name, body, p)
				}
				places[n.index] = true
				enter(n.index, indexed)
			}
			want := len(n.branches)
			switch n.kind {
			case ifNode:
				want = 2
			case switchNode:
				want = len(n.conditions) + 1
			case waitNode:
				want = 0
				if m.places[n.index].otherwise {
					want = 2
				}
			case loopNode, mapNode, savepointNode, raceNode, sleepNode, returnNode:
				want = 0
			}
			if len(n.branches) != want {
				t.Errorf("a node of kind %d has %d branches, want %d", n.kind, len(n.branches), want)
			}
			for _, b := range n.branches {
				walk(body, b, indexed)
			}
		}
	}
	if len(m.bodies) == 0 || m.bodies[0].owner != -1 || m.bodies[0].depth != 0 {
		t.Fatal("the first body isn't the definition's")
	}
	walk(0, m.bodies[0].nodes, false)
	if len(steps) != len(m.steps) || len(places) != len(m.places) {
		t.Errorf("%d of %d steps and %d of %d places can be reached", len(steps), len(m.steps), len(places), len(m.places))
	}
	inBodies := 0
	for i := range m.bodies {
		inBodies += len(m.bodies[i].steps) + len(m.bodies[i].places)
	}
	if inBodies != len(steps)+len(places) {
		t.Errorf("%d steps and places in bodies, want %d", inBodies, len(steps)+len(places))
	}
}

// TestDrawnFlow: what is drawn with each kind of node is accepted, hangs together, and keeps its form over the wire.
func TestDrawnFlow(t *testing.T) {
	kinds := map[nodeKind]int{}
	check(t, 300, func(t *rapid.T) {
		def := drawFlow(t)
		m, problems := Compile(def)
		if len(problems) > 0 {
			t.Fatalf("%s\n%s", protojson.Format(def), printProblems(problems))
		}
		checkMachine(t, m)
		for i := range m.places {
			kinds[m.places[i].kind]++
		}
		raw, err := proto.Marshal(def)
		if err != nil {
			t.Fatal(err)
		}
		again := &sagadv1.Definition{}
		if err := proto.Unmarshal(raw, again); err != nil {
			t.Fatal(err)
		}
		a, errA := Canonical(def)
		b, errB := Canonical(again)
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Fatalf("%v %v\n%s\n%s", errA, errB, a, b)
		}
		if chart := Mermaid(def); strings.Count(chart, "-->") < 2 {
			t.Fatal(chart)
		}
	})
	for _, k := range []nodeKind{ifNode, sleepNode, waitNode, switchNode, loopNode, mapNode, savepointNode, raceNode} {
		if kinds[k] == 0 {
			t.Errorf("nodes of kind %d were drawn %d times", k, kinds[k])
		}
	}
}

// TestMachineOfFlow looks at what the verifier puts into the machine for each kind of node.
func TestMachineOfFlow(t *testing.T) {
	m, problems := Compile(definitionOf(t, flowFile))
	if len(problems) > 0 {
		t.Fatal(printProblems(problems))
	}
	checkMachine(t, m)
	const second = int64(1_000_000)
	at := func(name string) place {
		i, ok := m.placeOf[name]
		if !ok {
			t.Fatalf("no place %s", name)
		}
		return m.places[i]
	}
	if p := at("short"); p.duration != second*3/2 || p.lasts != nil || p.until != nil {
		t.Errorf("%+v", p)
	}
	if p := at("computed"); p.duration != 0 || p.lasts == nil || p.until != nil {
		t.Errorf("%+v", p)
	}
	if p := at("appointed"); p.duration != 0 || p.lasts != nil || p.until == nil {
		t.Errorf("%+v", p)
	}
	if p := at("paid"); p.signal != "payment" || p.timeout != 60*second || !p.otherwise || p.title != nil || p.schema != m.signals["payment"] {
		t.Errorf("%+v", p)
	}
	if p := at("fine"); p.signal != "" || p.timeout != 3600*second || p.otherwise || p.title == nil || p.schema.Validate([]byte("1")) == nil {
		t.Errorf("%+v", p)
	}
	if p := at("again"); p.rounds != 5 || p.keep || p.initial.value == nil || p.next.value == nil || p.while == nil || len(p.bodies) != 1 {
		t.Errorf("%+v", p)
	}
	if p := at("lines"); p.window != 4 || p.tolerate != 2 || !p.results || p.items == nil || len(p.bodies) != 1 || m.bodies[p.bodies[0]].output.object == nil {
		t.Errorf("%+v", p)
	}
	if p := at("carrier"); len(p.bodies) != 3 || len(p.conditions) != 2 || p.conditions[0] == nil || p.conditions[1] != nil {
		t.Errorf("%+v", p)
	}
	if p := at("quotes"); p.kind != raceNode || p.need != 1 || len(p.bodies) != 2 || m.bodies[p.bodies[1]].output.value == nil {
		t.Errorf("%+v", p)
	}
	st := m.steps[m.byName["reserve"]]
	if !st.probe || !st.claimed || st.heartbeat != 5*second || !st.indexed {
		t.Errorf("%+v", st)
	}
	st = m.steps[m.byName["invoice"]]
	if !st.child || st.activity != "invoice" || st.childVersion != 3 || st.timeout != 0 || st.kind != sagadv1.Kind_KIND_COMPENSATABLE || st.outSchema.Validate([]byte("1")) == nil || !m.children || st.retry.Attempts != attemptsDefault {
		t.Errorf("%+v", st)
	}
}

func printProblems(problems []*sagadv1.Problem) string {
	var b strings.Builder
	for _, p := range problems {
		var place []string
		for _, s := range []string{p.GetStep(), p.GetField()} {
			if s != "" {
				place = append(place, s)
			}
		}
		if len(place) == 0 {
			place = []string{"definition"}
		}
		fmt.Fprintf(&b, "%s: %s\n", strings.Join(place, " "), p.GetRule())
		if p.GetExpression() != "" || p.GetLine() != 0 {
			fmt.Fprintf(&b, "  %d:%d: %q\n", p.GetLine(), p.GetColumn(), p.GetExpression())
		}
		fmt.Fprintf(&b, "  %s\n  -> %s\n", p.GetMessage(), p.GetMend())
	}
	return b.String()
}

// checkProblems checks what holds of every answer: it is complete, it can be sent, and it is of bounded size.
func checkProblems(t testing.TB, def *sagadv1.Definition, problems []*sagadv1.Problem) {
	t.Helper()
	if len(problems) > problemsMax+1 {
		t.Errorf("%d problems; the limit is %d", len(problems), problemsMax+1)
	}
	for _, p := range problems {
		if p.GetRule() == "" || p.GetMessage() == "" || p.GetMend() == "" {
			t.Errorf("a problem doesn't say everything: %v", p)
		}
		if len(p.GetDefinition()) > clipBytes+3 || p.GetDefinition() != clip(def.GetName()) {
			t.Errorf("a problem of %q", p.GetDefinition())
		}
		if len(p.GetStep()) > clipBytes+3 || len(p.GetField()) > clipBytes+3 || len(p.GetExpression()) > expr.SourceBytesMax || len(p.GetMessage()) > 1024 || len(p.GetMend()) > 512 {
			t.Errorf("a problem of %d bytes: %.200s...", proto.Size(p), p)
		}
		if _, err := proto.Marshal(p); err != nil {
			t.Errorf("a problem can't be sent: %v", err)
		}
		if strings.ContainsAny(p.GetMessage()+p.GetMend(), "\n\x00") {
			t.Errorf("a problem of several lines: %q", p)
		}
	}
}

func read(name string) *sagadv1.Node {
	return &sagadv1.Node{Kind: &sagadv1.Node_Step{Step: &sagadv1.Step{Name: name, Activity: "svc.a", Kind: sagadv1.Kind_KIND_READ_ONLY}}}
}

func small(body ...*sagadv1.Node) *sagadv1.Definition {
	return &sagadv1.Definition{Name: "test", Activities: []*sagadv1.Activity{{Name: "svc.a"}}, Body: body}
}

func nested(depth int) []*sagadv1.Node {
	if depth == 0 {
		return []*sagadv1.Node{read("a")}
	}
	return []*sagadv1.Node{{Kind: &sagadv1.Node_If{If: &sagadv1.If{Name: fmt.Sprintf("if_%d", depth), Condition: "true", Then: nested(depth - 1)}}}}
}

func nestedSavepoints(depth int) []*sagadv1.Node {
	if depth == 0 {
		return []*sagadv1.Node{read("a")}
	}
	return []*sagadv1.Node{{Kind: &sagadv1.Node_Savepoint{Savepoint: &sagadv1.Savepoint{
		Name: fmt.Sprintf("s_%d", depth), Body: nestedSavepoints(depth - 1), Alternatives: []*sagadv1.Alternative{{}}}}}}
}

func manyCases(n int) *sagadv1.Node {
	s := &sagadv1.Switch{Name: "s", Default: &sagadv1.Default{}}
	for range n {
		s.Cases = append(s.Cases, &sagadv1.Case{Condition: "true"})
	}
	return &sagadv1.Node{Kind: &sagadv1.Node_Switch{Switch: s}}
}

// manySignals waits for n signals.
func manySignals(n int) *sagadv1.Definition {
	d := small(read("a"))
	for i := range n {
		name := fmt.Sprintf("sig_%02d", i)
		d.Signals = append(d.Signals, &sagadv1.Signal{Name: name})
		d.Body = append(d.Body, &sagadv1.Node{Kind: &sagadv1.Node_Wait{Wait: &sagadv1.Wait{Name: "w_" + name, Signal: name, Timeout: durationpb.New(time.Second)}}})
	}
	return d
}

// TestDefinitionsMade verifies what is too large, or too wrong, to stand in a file.
func TestDefinitionsMade(t *testing.T) {
	many := func(n int, node func(i int) *sagadv1.Node) []*sagadv1.Node {
		var out []*sagadv1.Node
		for i := range n {
			out = append(out, node(i))
		}
		return out
	}
	steps := func(n int) []*sagadv1.Node {
		return many(n, func(i int) *sagadv1.Node { return read(fmt.Sprintf("s%d", i)) })
	}
	withTimeout := func(d *durationpb.Duration) *sagadv1.Definition {
		n := read("a")
		n.GetStep().Timeout = d
		return small(n)
	}
	withRetry := func(r *sagadv1.RetryPolicy) *sagadv1.Definition {
		n := read("a")
		n.GetStep().Retry = r
		return small(n)
	}
	withInput := func(m *sagadv1.Mapping) *sagadv1.Definition {
		n := read("a")
		n.GetStep().Input = m
		return small(n)
	}
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1)
	huge := strings.Repeat("h", 100_000)
	branches := func(n int) *sagadv1.Node {
		p := &sagadv1.Parallel{Name: "p"}
		for i := range n {
			p.Branches = append(p.Branches, &sagadv1.Branch{Body: []*sagadv1.Node{read(fmt.Sprintf("b%d", i))}})
		}
		return &sagadv1.Node{Kind: &sagadv1.Node_Parallel{Parallel: p}}
	}
	fields := map[string]string{}
	for i := range 257 {
		fields[fmt.Sprintf("f%d", i)] = "1"
	}
	manyActivities := small(steps(1)...)
	manyActivities.Activities = nil
	for i := range 257 {
		manyActivities.Activities = append(manyActivities.Activities, &sagadv1.Activity{Name: fmt.Sprintf("a%03d", i)})
	}
	for _, c := range []struct {
		name string
		def  *sagadv1.Definition
		// want is the rule and the place of the first problem, "" for none; and a part of its message.
		want, message string
	}{
		{"nil", nil, "name-legal name", `""`},
		{"zero", &sagadv1.Definition{}, "name-legal name", `""`},
		{"nil node", small(nil), "node body", "node 1 is empty"},
		{"nil step", small(&sagadv1.Node{Kind: &sagadv1.Node_Step{}}), "name-legal name", `""`},
		{"nil parallel", small(&sagadv1.Node{Kind: &sagadv1.Node_Parallel{}}), "name-legal name", `""`},
		{"nil if", small(&sagadv1.Node{Kind: &sagadv1.Node_If{}}), "name-legal name", `""`},
		{"nil sleep", small(&sagadv1.Node{Kind: &sagadv1.Node_Sleep{}}), "name-legal name", `""`},
		{"nil wait", small(&sagadv1.Node{Kind: &sagadv1.Node_Wait{}}), "name-legal name", `""`},
		{"nil switch", small(&sagadv1.Node{Kind: &sagadv1.Node_Switch{}}), "name-legal name", `""`},
		{"nil case", small(&sagadv1.Node{Kind: &sagadv1.Node_Switch{Switch: &sagadv1.Switch{Name: "s", Cases: []*sagadv1.Case{nil}}}}), "switch-default s default", "no case"},
		{"nil loop", small(&sagadv1.Node{Kind: &sagadv1.Node_Loop{}}), "name-legal name", `""`},
		{"nil map", small(&sagadv1.Node{Kind: &sagadv1.Node_Map{}}), "name-legal name", `""`},
		{"nil savepoint", small(&sagadv1.Node{Kind: &sagadv1.Node_Savepoint{}}), "name-legal name", `""`},
		{"nil alternative", small(&sagadv1.Node{Kind: &sagadv1.Node_Savepoint{Savepoint: &sagadv1.Savepoint{Name: "s", Alternatives: []*sagadv1.Alternative{nil}}}}), "block-empty s body", "nothing"},
		{"nil child", small(&sagadv1.Node{Kind: &sagadv1.Node_Child{}}), "name-legal name", `""`},
		{"nil signal", &sagadv1.Definition{Name: "test", Signals: []*sagadv1.Signal{nil}, Activities: []*sagadv1.Activity{{Name: "svc.a"}}, Body: steps(1)}, "name-legal signals", `""`},
		{"nil race", small(&sagadv1.Node{Kind: &sagadv1.Node_Parallel{Parallel: &sagadv1.Parallel{Name: "p", Join: sagadv1.Join_JOIN_ANY, Branches: []*sagadv1.Branch{nil, nil}}}}), "parallel-branches p branches[0]", "empty"},
		{"nil return", small(read("a"), &sagadv1.Node{Kind: &sagadv1.Node_Return{}}), "", ""},
		{"nil branch", small(&sagadv1.Node{Kind: &sagadv1.Node_Parallel{Parallel: &sagadv1.Parallel{Name: "p", Branches: []*sagadv1.Branch{nil, nil}}}}), "parallel-branches p branches[0]", "empty"},
		{"nil activity", &sagadv1.Definition{Name: "test", Activities: []*sagadv1.Activity{nil}, Body: steps(1)}, "name-legal activities", `""`},

		{"as many steps as may be", small(steps(256)...), "", ""},
		{"one step more", small(steps(257)...), "limit body", "257 steps; the limit is 256"},
		{"nested as deep as may be", small(nested(15)...), "", ""},
		{"nested deeper", small(nested(16)...), "limit body", "deeper than 15"},
		{"nested very deep", small(nested(5000)...), "limit body", "deeper than 15"},
		{"as many branches as may be", small(branches(64)), "", ""},
		{"one branch more", small(branches(65)), "limit p branches", "65 branches; the limit is 64"},
		{"many activities", manyActivities, "limit activities", "257 activities; the limit is 256"},
		{"many ifs", small(many(1001, func(i int) *sagadv1.Node { return &sagadv1.Node{Kind: &sagadv1.Node_If{}} })...), "limit body", "1001 nodes"},
		{"many cases", small(read("a"), manyCases(65)), "limit s cases", "65 cases; the limit is 64"},
		{"as many cases as may be", small(read("a"), manyCases(64)), "", ""},
		{"many signals", manySignals(65), "limit signals", "65 signals; the limit is 64"},
		{"as many signals as may be", manySignals(64), "", ""},
		{"many cases in all", small(many(16, func(int) *sagadv1.Node { return manyCases(64) })...), "limit body", "1056 nodes"},
		{"bodies nested as deep as may be", small(nestedSavepoints(15)...), "", ""},
		{"bodies nested deeper", small(nestedSavepoints(16)...), "limit body", "deeper than 15"},
		{"huge map name and items", small(&sagadv1.Node{Kind: &sagadv1.Node_Map{Map: &sagadv1.Map{Name: huge, Items: huge, Body: steps(1)}}}), "name-legal " + huge[:clipBytes] + "... name", "isn't legal"},
		{"huge signal", small(read("a"), &sagadv1.Node{Kind: &sagadv1.Node_Wait{Wait: &sagadv1.Wait{Name: "w", Signal: huge, Timeout: durationpb.New(time.Second)}}}), "signal-declared w signal", "isn't declared"},
		{"huge child", small(read("a"), &sagadv1.Node{Kind: &sagadv1.Node_Child{Child: &sagadv1.Child{Name: "w", Definition: huge, Kind: sagadv1.Kind_KIND_COMPENSATABLE}}}), "name-legal w definition", "isn't legal"},
		{"heartbeat of 300 years", func() *sagadv1.Definition {
			n := read("a")
			n.GetStep().Heartbeat = &durationpb.Duration{Seconds: 300 * 365 * 86400}
			return small(n)
		}(), "duration a heartbeat", "9460800000s is out of range"},
		{"sleep of 300 years", small(read("a"), &sagadv1.Node{Kind: &sagadv1.Node_Sleep{Sleep: &sagadv1.Sleep{Name: "z", Duration: &durationpb.Duration{Seconds: 300 * 365 * 86400}}}}), "duration z duration", "9460800000s is out of range"},
		{"many fields", withInput(&sagadv1.Mapping{Fields: fields}), "expression a input", "257 fields, the limit is 256"},
		{"too large", &sagadv1.Definition{Name: "test", Description: strings.Repeat("x", 300_000)}, "definition-size", "the limit is 262144"},
		{"large description", &sagadv1.Definition{Name: "test", Description: strings.Repeat("x", 5000), Activities: []*sagadv1.Activity{{Name: "svc.a"}}, Body: steps(1)}, "definition-size description", "5000 bytes"},
		{"large schema", &sagadv1.Definition{Name: "test", InputSchema: `{"description":"` + strings.Repeat("x", 70_000) + `"}`, Activities: []*sagadv1.Activity{{Name: "svc.a"}}, Body: steps(1)}, "limit input_schema", "the limit is 65536"},
		{"deep schema", &sagadv1.Definition{Name: "test", InputSchema: strings.Repeat(`{"items":`, 5000) + "true" + strings.Repeat("}", 5000), Activities: []*sagadv1.Activity{{Name: "svc.a"}}, Body: steps(1)}, "schema input_schema", "nested deeper than"},
		{"long expression", withInput(&sagadv1.Mapping{Value: "1" + strings.Repeat("+1", 5000)}), "expression a input", "10001 bytes, the limit is 8192"},
		{"deep expression", withInput(&sagadv1.Mapping{Value: strings.Repeat("(", 4000) + "1" + strings.Repeat(")", 4000)}), "expression a input", "64"},
		{"many problems", small(many(20_000, func(int) *sagadv1.Node { return &sagadv1.Node{} })...), "node body", "node 1 is empty"},

		{"huge definition name", &sagadv1.Definition{Name: huge, Activities: []*sagadv1.Activity{{Name: "svc.a"}}, Body: steps(1)}, "name-legal name", "isn't legal"},
		{"huge step name", small(read(huge)), "name-legal " + huge[:clipBytes] + "... name", "isn't legal"},
		{"huge activity", &sagadv1.Definition{Name: "test", Activities: []*sagadv1.Activity{{Name: huge}}, Body: steps(1)}, "name-legal activities", "isn't legal"},
		{"huge field", withInput(&sagadv1.Mapping{Fields: map[string]string{huge: "nosuch"}}), "expression a input." + huge[:clipBytes-6] + "...", "nosuch"},
		{"huge variable", withInput(&sagadv1.Mapping{Value: huge[:8000]}), "expression a input", "unknown name"},
		{"huge parallel name", small(&sagadv1.Node{Kind: &sagadv1.Node_Parallel{Parallel: &sagadv1.Parallel{Name: huge}}}), "name-legal " + huge[:clipBytes] + "... name", "isn't legal"},
		{"huge if name and condition", small(&sagadv1.Node{Kind: &sagadv1.Node_If{If: &sagadv1.If{Name: huge, Condition: huge}}}), "name-legal " + huge[:clipBytes] + "... name", "isn't legal"},

		{"text", &sagadv1.Definition{Name: "test", Description: "a\xff", Activities: []*sagadv1.Activity{{Name: "svc.a"}}, Body: steps(1)}, "text description", "isn't UTF-8"},
		{"text in a name", small(read("a\xff")), "text body[0].step.name", "isn't UTF-8"},
		{"text in an expression", withInput(&sagadv1.Mapping{Value: "'\xff'"}), "text body[0].step.input.value", "isn't UTF-8"},
		{"text in a map", withInput(&sagadv1.Mapping{Fields: map[string]string{"a": "'\xff'"}}), "text body[0].step.input.fields", "isn't UTF-8"},

		{"time: nothing", withTimeout(&durationpb.Duration{}), "duration a timeout", "0s is out of range"},
		{"time: too short", withTimeout(durationpb.New(500 * time.Microsecond)), "duration a timeout", "500µs is out of range"},
		{"time: too long", withTimeout(durationpb.New(31 * 24 * time.Hour)), "duration a timeout", "744h0m0s is out of range"},
		{"time: negative", withTimeout(durationpb.New(-time.Second)), "duration a timeout", "-1s is out of range"},
		{"time: 300 years", withTimeout(&durationpb.Duration{Seconds: 300 * 365 * 86400}), "duration a timeout", "9460800000s is out of range"},
		{"time: more than 10000 years", withTimeout(&durationpb.Duration{Seconds: math.MaxInt64}), "duration a timeout", "9223372036854775807s is out of range"},
		{"time: as negative", withTimeout(&durationpb.Duration{Seconds: math.MinInt64, Nanos: math.MinInt32}), "duration a timeout", "-9223372036854775808 s and -2147483648 ns is out of range"},
		{"time: nanoseconds of another sign", withTimeout(&durationpb.Duration{Seconds: 5, Nanos: -1}), "duration a timeout", "5 s and -1 ns is out of range"},
		{"time: too many nanoseconds", withTimeout(&durationpb.Duration{Nanos: 2_000_000_000}), "duration a timeout", "0 s and 2000000000 ns is out of range"},
		{"deadline of 300 years", &sagadv1.Definition{Name: "test", Deadline: &durationpb.Duration{Seconds: 300 * 365 * 86400}, Activities: []*sagadv1.Activity{{Name: "svc.a"}}, Body: steps(1)}, "duration deadline", "9460800000s is out of range"},
		{"retry: 300 years", withRetry(&sagadv1.RetryPolicy{Total: &durationpb.Duration{Seconds: 300 * 365 * 86400}}), "retry-policy a retry.total", "9460800000s is out of range"},
		{"retry: impossible", withRetry(&sagadv1.RetryPolicy{Max: &durationpb.Duration{Seconds: math.MinInt64}}), "retry-policy a retry.max", "-9223372036854775808s is out of range"},

		{"unknown field", func() *sagadv1.Definition {
			d := small(read("a"))
			d.ProtoReflect().SetUnknown(unknown)
			return d
		}(), "field-unknown (definition)", "doesn't know"},
		{"unknown field inside", func() *sagadv1.Definition {
			d := small(read("a"), read("b"))
			d.Body[1].GetStep().Timeout = durationpb.New(time.Second)
			d.Body[1].GetStep().Timeout.ProtoReflect().SetUnknown(unknown)
			return d
		}(), "field-unknown body[1].step.timeout", "doesn't know"},
	} {
		t.Run(c.name, func(t *testing.T) {
			start := time.Now()
			m, problems := Compile(c.def)
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
			checkProblems(t, c.def, problems)
			if (m == nil) != (c.want != "") {
				t.Fatalf("machine %v, problems:\n%s", m != nil, printProblems(problems))
			}
			if c.want == "" {
				return
			}
			p := problems[0]
			got := strings.Join(strings.Fields(p.GetRule()+" "+p.GetStep()+" "+p.GetField()), " ")
			if got != c.want || !strings.Contains(p.GetMessage(), c.message) {
				t.Errorf("got %s: %s\nwant %s: ...%s", got, p.GetMessage(), c.want, c.message)
			}
		})
	}
	_, problems := Compile(small(many(20_000, func(int) *sagadv1.Node { return &sagadv1.Node{} })...))
	if last := problems[len(problems)-1]; len(problems) != problemsMax+1 || !strings.Contains(last.GetMessage(), "more than 100 problems") {
		t.Errorf("%d problems, the last: %v", len(problems), last)
	}
}

// TestNamesAreVariables checks that a name which the verifier lets pass can be used as a variable in expressions, whatever
// words CEL reserves, and that all others are refused in so many words.
func TestNamesAreVariables(t *testing.T) {
	words := []string{
		"as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop", "package",
		"namespace", "null", "return", "true", "var", "void", "while", "int", "uint", "double", "bool", "string", "bytes", "list",
		"map", "type", "dyn", "google", "null_type", "timestamp", "duration", "has", "size", "all", "exists", "exists_one", "filter",
		"matches", "contains", "starts_with", "cel", "math", "strings", "sets", "optional", "self", "this", "input", "output", "error",
		"item", "now", "reserve", "a", "a_1", "get_full_year", "min", "max", "abs",
	}
	var refused []string
	for _, w := range words {
		def := small(read(w), read("after"))
		def.Body[1].GetStep().Input = &sagadv1.Mapping{Value: "{'v': " + w + "}"}
		_, problems := Compile(def)
		if len(problems) == 0 {
			continue
		}
		refused = append(refused, w)
		if p := problems[0]; p.GetRule() != "name-legal" || p.GetStep() != w || !strings.Contains(p.GetMessage(), w) {
			t.Errorf("%s: %v", w, p)
		}
	}
	sort.Strings(refused)
	want := make([]string, 0, len(reserved))
	for w := range reserved {
		want = append(want, w)
	}
	sort.Strings(want)
	if diff := cmp.Diff(want, refused); diff != "" {
		t.Errorf("reserved (-table +refused):\n%s", diff)
	}
}

// TestRulesAreTested checks that each rule which the verifier knows stands in the corpus or above, so that none goes untested.
func TestRulesAreTested(t *testing.T) {
	source := sourceOf(t, "verify.go")
	tested := sourceOf(t, "verify_test.go")
	datadriven.Walk(t, "testdata/definition/bad", func(t *testing.T, path string) { tested += sourceOf(t, path) })
	for _, part := range strings.Split(source, "v.problem(")[1:] {
		args := strings.SplitN(part, ", ", 4)
		if len(args) < 4 {
			continue
		}
		rule := strings.Trim(args[2], `"`)
		if strings.ContainsAny(rule, "( ") {
			continue // the definition of problem itself
		}
		if rule != "canonical" && !strings.Contains(tested, rule) {
			t.Errorf("no test of rule %s", rule)
		}
	}
}
