package statemachine

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// TestScripts runs the scripts in testdata/script. Each prints what an event led to: facts, commands and the state after. Run
// with -rewrite to write the output anew, and read the difference.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		r := &script{t: t, name: filepath.Base(path)}
		datadriven.RunTest(t, path, r.run)
		r.keep()
	})
}

type script struct {
	t       *testing.T
	name    string
	sagas   int
	m       *Machine
	s       *State
	now     Micros
	chance  uint64
	history []*historyv1.Transition
}

func (r *script) run(t *testing.T, d *datadriven.TestData) string {
	r.t = t
	arg := func(i int) string {
		if i < len(d.CmdArgs) {
			return d.CmdArgs[i].Key
		}
		return ""
	}
	opt := func(name string, unset string) string {
		for _, a := range d.CmdArgs {
			if a.Key == name && len(a.Vals) == 1 {
				return a.Vals[0]
			}
		}
		return unset
	}
	number := func(name string, unset int32) int32 {
		n, err := strconv.Atoi(opt(name, strconv.Itoa(int(unset))))
		if err != nil {
			t.Fatal(err)
		}
		return int32(n)
	}
	switch d.Cmd {
	case "define":
		def, err := parseDefinition(d.Input)
		if err != nil {
			t.Fatal(err)
		}
		m, problems := Compile(def)
		if len(problems) > 0 {
			var b strings.Builder
			for _, p := range problems {
				fmt.Fprintf(&b, "%s %s: %s: %s (%s)\n", p.GetStep(), p.GetField(), p.GetRule(), p.GetMessage(), p.GetMend())
			}
			return b.String()
		}
		r.keep()
		*r = script{t: t, name: r.name, sagas: r.sagas + 1, m: m, now: 1_000_000_000}
		return "ok\n"
	case "start":
		return r.apply(Start{Namespace: "default", SagaID: "s-1", Version: 1, Input: []byte(orText(d.Input, "{}"))})
	case "succeed", "reject", "fail", "nothing":
		call := Call{Step: arg(0), Dir: do}
		if arg(0) == "undo" {
			call = Call{Step: arg(1), Dir: undo}
		}
		c := r.s.Call(call)
		if c == nil {
			c = &CallState{}
		}
		e := Result{
			Call: call, Generation: number("generation", c.Generation), Attempt: number("attempt", c.Attempt), Worker: "w",
			RetryAfter: int64(number("after", 0)) * 1_000_000, GiveUp: opt("giveup", "") != "",
		}
		switch d.Cmd {
		case "succeed":
			e.Outcome, e.Output = historyv1.Outcome_OUTCOME_SUCCEEDED, []byte(d.Input)
		case "reject":
			e.Outcome, e.Error = historyv1.Outcome_OUTCOME_REJECTED, &historyv1.Error{Code: opt("code", "NO")}
		case "fail":
			e.Outcome, e.Error = historyv1.Outcome_OUTCOME_FAILED, &historyv1.Error{Code: opt("code", "ERR")}
		case "nothing":
			e.Outcome = historyv1.Outcome_OUTCOME_NOTHING_TO_UNDO
		}
		return r.apply(e)
	case "tick":
		dur, err := time.ParseDuration(arg(0))
		if err != nil {
			t.Fatal(err)
		}
		r.now += dur.Microseconds()
		return r.apply(Tick{NoWorker: func(Call) bool { return opt("noworker", "") != "" }})
	case "cancel":
		return r.apply(Cancel{Actor: "ann", Reason: "changed my mind", RequestID: opt("request", "")})
	case "operator":
		a := historyv1.OperatorAction(historyv1.OperatorAction_value["OPERATOR_ACTION_"+strings.ToUpper(arg(0))])
		return r.apply(Act{
			Item: number("item", 1), Version: int64(number("version", 0)), Action: a, Actor: "bob", Reason: opt("reason", "because"),
			Evidence: opt("evidence", "ticket-1"), RequestID: opt("request", ""), Output: []byte(d.Input),
		})
	case "actions":
		var b strings.Builder
		for _, a := range r.m.Allowed(r.s, number("item", 1)) {
			fmt.Fprintf(&b, "%-11s %-5v %s\n", actionWord(a.GetAction()), a.GetAllowed(), a.GetConsequence())
		}
		return b.String()
	case "effects":
		var b strings.Builder
		for _, e := range r.m.Effects(r.s) {
			fmt.Fprintf(&b, "%s %s by hand: %v\n", e.GetStep(), strings.TrimPrefix(e.GetState().String(), "EFFECT_STATE_"), e.GetByHand())
		}
		return b.String()
	case "task":
		call := Call{Step: arg(0), Dir: do}
		if arg(0) == "undo" {
			call = Call{Step: arg(1), Dir: undo}
		}
		task, err := r.m.Task(r.s, call)
		if err != nil {
			return err.Error() + "\n"
		}
		s := fmt.Sprintf("%s generation %d attempt %d input %s timeout %v", task.GetActivity(), task.GetGeneration(), task.GetAttempt(), task.GetInput(), time.Duration(task.GetTimeoutUs())*time.Microsecond)
		if u := task.GetUndo(); u != nil {
			s += fmt.Sprintf(" undo output known: %v %s cause %s %s", u.GetOutputKnown(), u.GetOutput(), u.GetCauseStep(), u.GetCauseCode())
		}
		return s + "\n"
	case "mermaid":
		return Mermaid(r.m.Definition())
	default:
		t.Fatalf("unknown command %q", d.Cmd)
		return ""
	}
}

// keep stores the saga's history as a golden one, if asked to.
func (r *script) keep() {
	if len(r.history) > 0 {
		keepHistory(r.t, fmt.Sprintf("%s-%d", r.name, r.sagas), "The saga of that number in the script of that name.", r.m, r.history)
	}
}

// apply decides, and checks that folding the facts gives the state that was decided on, and that the state before is as it
// was.
func (r *script) apply(e Event) string {
	var before *State
	if r.s != nil {
		before = r.fold()
	}
	d, err := r.m.Decide(r.s, e, r.now, r.chance)
	r.chance++
	if before != nil {
		if diff := cmp.Diff(before, r.s, stateCmp...); diff != "" {
			r.t.Fatalf("decide changed the state before (-want +got):\n%s", diff)
		}
	}
	var b strings.Builder
	if err != nil {
		fmt.Fprintf(&b, "refused: %v\n", err)
		return b.String()
	}
	if d.Transition != nil {
		// As stored.
		raw, err := proto.Marshal(d.Transition)
		if err != nil {
			r.t.Fatal(err)
		}
		var t historyv1.Transition
		if err := proto.Unmarshal(raw, &t); err != nil {
			r.t.Fatal(err)
		}
		r.history = append(r.history, &t)
		r.s = d.State
		if diff := cmp.Diff(r.fold(), r.s, stateCmp...); diff != "" {
			r.t.Fatalf("fold differs from decide (-fold +decide):\n%s", diff)
		}
		for _, f := range d.Transition.GetFacts() {
			fmt.Fprintf(&b, "  %s\n", strings.ReplaceAll(Sentence(f), "1970-01-01 ", ""))
		}
	} else {
		b.WriteString("  nothing changes\n")
	}
	for _, c := range d.Dispatch {
		fmt.Fprintf(&b, "send %s\n", c)
	}
	for _, c := range d.Stop {
		fmt.Fprintf(&b, "stop %s\n", c)
	}
	switch e.(type) {
	case Result:
		fmt.Fprintf(&b, "verdict %s\n", strings.TrimPrefix(d.Reply.Verdict.String(), "VERDICT_"))
	case Cancel:
		fmt.Fprintf(&b, "answer %s\n", strings.TrimPrefix(d.Reply.Cancel.String(), "CANCEL_ANSWER_"))
	}
	fmt.Fprintf(&b, "%s", r.s.Status)
	if next, ok := r.s.NextWake(); ok {
		fmt.Fprintf(&b, ", wakes in %v", time.Duration(next-r.now)*time.Microsecond)
	}
	if r.s.Status == Completed {
		fmt.Fprintf(&b, ", output %s", r.s.Output)
	}
	if r.s.SettledByHand > 0 {
		fmt.Fprintf(&b, ", settled by hand: %d", r.s.SettledByHand)
	}
	if !r.s.Waits() {
		b.WriteString(", LOST")
	}
	b.WriteByte('\n')
	return b.String()
}

func (r *script) fold() *State {
	s, err := r.m.Fold(r.history)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

var stateCmp = []cmp.Option{
	cmp.AllowUnexported(State{}, StepState{}, CallState{}, endedAttempt{}), protocmp.Transform(),
	cmp.FilterValues(func(a, b []byte) bool { return len(a) == 0 && len(b) == 0 }, cmp.Comparer(func([]byte, []byte) bool { return true })),
	cmp.FilterValues(func(a, b []string) bool { return len(a) == 0 && len(b) == 0 }, cmp.Comparer(func([]string, []string) bool { return true })),
	cmp.FilterValues(func(a, b map[string]string) bool { return len(a) == 0 && len(b) == 0 }, cmp.Comparer(func(map[string]string, map[string]string) bool { return true })),
}

func orText(s, unset string) string {
	if s == "" {
		return unset
	}
	return s
}

// parseDefinition reads the small language of the scripts: a node a line, indentation ignored.
//
//	comp|read|pivot|retriable NAME [attempts=N] [undo=N] [timeout=D] [hold] [pass] [in=CEL]
//	parallel NAME / branch / end        if NAME CEL / else / end        return CEL        deadline D
func parseDefinition(source string) (*sagadv1.Definition, error) {
	def := &sagadv1.Definition{Name: "test"}
	activities := map[string]bool{}
	p := defParser{def: def, activities: activities}
	for _, line := range strings.Split(source, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			p.lines = append(p.lines, line)
		}
	}
	def.Body = p.nodes()
	if p.err != nil {
		return nil, p.err
	}
	for _, name := range sortedKeys(activities) {
		def.Activities = append(def.Activities, &sagadv1.Activity{Name: name})
	}
	return def, nil
}

type defParser struct {
	def        *sagadv1.Definition
	lines      []string
	activities map[string]bool
	err        error
}

func (p *defParser) nodes() []*sagadv1.Node {
	var out []*sagadv1.Node
	for len(p.lines) > 0 && p.err == nil {
		line := p.lines[0]
		word, rest, _ := strings.Cut(line, " ")
		if word == "end" || word == "else" || word == "branch" {
			return out
		}
		p.lines = p.lines[1:]
		switch word {
		case "deadline":
			d, err := time.ParseDuration(rest)
			p.err = err
			p.def.Deadline = durationpb.New(d)
		case "undo-limit":
			n, err := strconv.Atoi(rest)
			p.err = err
			p.def.MaxParallelCompensations = int32(n)
		case "return":
			out = append(out, &sagadv1.Node{Kind: &sagadv1.Node_Return{Return: &sagadv1.Return{Output: &sagadv1.Mapping{Value: rest}}}})
		case "parallel":
			par := &sagadv1.Parallel{Name: rest}
			for len(p.lines) > 0 && p.lines[0] == "branch" {
				p.lines = p.lines[1:]
				par.Branches = append(par.Branches, &sagadv1.Branch{Body: p.nodes()})
			}
			p.end()
			out = append(out, &sagadv1.Node{Kind: &sagadv1.Node_Parallel{Parallel: par}})
		case "if":
			name, cond, _ := strings.Cut(rest, " ")
			n := &sagadv1.If{Name: name, Condition: cond, Then: p.nodes()}
			if len(p.lines) > 0 && p.lines[0] == "else" {
				p.lines = p.lines[1:]
				n.Else = p.nodes()
			}
			p.end()
			out = append(out, &sagadv1.Node{Kind: &sagadv1.Node_If{If: n}})
		default:
			out = append(out, &sagadv1.Node{Kind: &sagadv1.Node_Step{Step: p.step(word, rest)}})
		}
	}
	return out
}

func (p *defParser) end() {
	if len(p.lines) == 0 || p.lines[0] != "end" {
		p.err = fmt.Errorf("end is missing")
		return
	}
	p.lines = p.lines[1:]
}

func (p *defParser) step(kind, rest string) *sagadv1.Step {
	words := strings.Fields(rest)
	if len(words) == 0 {
		p.err = fmt.Errorf("%s needs a name", kind)
		return nil
	}
	s := &sagadv1.Step{Name: words[0], Activity: "svc." + strings.ReplaceAll(words[0], "_", "-")}
	p.activities[s.Activity] = true
	switch kind {
	case "comp":
		s.Kind = sagadv1.Kind_KIND_COMPENSATABLE
		s.Compensation = &sagadv1.Compensation{}
	case "read":
		s.Kind = sagadv1.Kind_KIND_READ_ONLY
	case "pivot":
		s.Kind = sagadv1.Kind_KIND_PIVOT
	case "retriable":
		s.Kind = sagadv1.Kind_KIND_RETRIABLE
	default:
		p.err = fmt.Errorf("unknown node %q", kind)
	}
	for _, w := range words[1:] {
		k, val, _ := strings.Cut(w, "=")
		n, _ := strconv.Atoi(val)
		d, _ := time.ParseDuration(val)
		switch k {
		case "attempts":
			s.Retry = &sagadv1.RetryPolicy{MaxAttempts: int32(n)}
		case "undo":
			s.Compensation.Retry = &sagadv1.RetryPolicy{MaxAttempts: int32(n)}
		case "timeout":
			s.Timeout = durationpb.New(d)
		case "hold":
			s.GiveUp = sagadv1.GiveUp_GIVE_UP_HOLD
		case "pass":
			s.Compensation.LetPass = true
		case "in":
			s.Input = &sagadv1.Mapping{Value: val}
		default:
			p.err = fmt.Errorf("unknown option %q", k)
		}
	}
	return s
}

func sortedKeys(m map[string]bool) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	for i := range out {
		for j := i + 1; j < len(out); j++ {
			if out[j] < out[i] {
				out[i], out[j] = out[j], out[i]
			}
		}
	}
	return out
}

func sourceOf(t testing.TB, path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
