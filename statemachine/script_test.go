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
	t     *testing.T
	name  string
	sagas int
	m     *Machine
	// versions of the definition; the first one is version 1.
	versions []*Machine
	s        *State
	now      Micros
	chance   uint64
	history  []*historyv1.Transition
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
		*r = script{t: t, name: r.name, sagas: r.sagas + 1, m: m, versions: []*Machine{m}, now: 1_000_000_000}
		return "ok\n"
	case "start":
		e := Start{Namespace: "default", SagaID: "s-1", Version: 1, Input: []byte(orText(d.Input, "{}"))}
		if arg(0) == "child" {
			e.Parent = &historyv1.Parent{SagaId: "p-1", Step: "kid", Generation: 1}
		}
		return r.apply(e)
	case "succeed", "reject", "fail", "nothing", "happened", "didnot", "canttell":
		call := callAt(arg(0), arg(1))
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
		case "happened":
			e.Outcome, e.Output = historyv1.Outcome_OUTCOME_HAPPENED, []byte(d.Input)
		case "didnot":
			e.Outcome = historyv1.Outcome_OUTCOME_DID_NOT_HAPPEN
		case "canttell":
			e.Outcome = historyv1.Outcome_OUTCOME_CANT_TELL
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
	case "signal":
		return r.apply(Signal{Name: arg(0), Key: arg(1), Payload: []byte(d.Input), Actor: "ann"})
	case "pause":
		return r.apply(Pause{Actor: "bob", Reason: "because", RequestID: opt("request", "")})
	case "resume":
		return r.apply(Resume{Actor: "bob", Reason: "because", RequestID: opt("request", "")})
	case "claim", "checkpoint", "progress":
		call := callAt(arg(0), arg(1))
		c := r.s.Call(call)
		e := Report{Call: call, Generation: number("generation", c.Generation), Attempt: number("attempt", c.Attempt), Kind: ReportClaim, Data: []byte(d.Input), Worker: "w"}
		if d.Cmd == "checkpoint" {
			e.Kind = ReportCheckpoint
		} else if d.Cmd == "progress" {
			e.Kind = ReportProgress
		}
		return r.apply(e)
	case "unwind":
		return r.apply(Unwind{})
	case "parent":
		return r.apply(ParentEnded{Status: map[string]Status{"completed": Completed, "compensated": Compensated, "abandoned": Abandoned}[arg(0)]})
	case "explain":
		e := r.m.Explain(r.s, r.now)
		return fmt.Sprintf("%s: %s\nhelp: %s\nabout: %q %q %q since %d until %d\n", strings.TrimPrefix(e.For.String(), "WAITS_FOR_"), e.Text, e.Help, e.Call.Step, e.Call.Item, e.What, e.Since, e.Until)
	case "migrate":
		def, err := parseDefinition(d.Input)
		if err != nil {
			t.Fatal(err)
		}
		to, problems := Compile(def)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		names := map[string]string{}
		for _, a := range d.CmdArgs {
			if len(a.Vals) == 1 {
				names[a.Key] = a.Vals[0]
			}
		}
		r.versions = append(r.versions, to)
		return r.apply(Migrate{To: to, Version: int32(len(r.versions)), Names: names, Actor: "bob", Reason: "because"})
	case "order":
		return fmt.Sprintln(r.m.Order(r.s))
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
		call := callAt(arg(0), arg(1))
		task, err := r.m.Task(r.s, call)
		if err != nil {
			return err.Error() + "\n"
		}
		s := fmt.Sprintf("%s generation %d attempt %d input %s timeout %v", task.GetActivity(), task.GetGeneration(), task.GetAttempt(), task.GetInput(), time.Duration(task.GetTimeoutUs())*time.Microsecond)
		if task.GetProgress() != nil {
			s += fmt.Sprintf(" progress %s", task.GetProgress())
		}
		if u := task.GetUndo(); u != nil {
			if u.GetCheckpoint() != nil {
				s += fmt.Sprintf(" checkpoint %s", u.GetCheckpoint())
			}
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

// callAt reads "step", "undo step", "probe step"; a step in a map or a loop is written step@item.
func callAt(first, second string) Call {
	c := Call{Dir: do}
	switch first {
	case "undo":
		c.Dir, first = undo, second
	case "probe":
		c.Dir, first = probe, second
	}
	c.Step, c.Item, _ = strings.Cut(first, "@")
	return c
}

// keep stores the saga's history as a golden one, if asked to.
func (r *script) keep() {
	if len(r.history) > 0 {
		keepHistory(r.t, fmt.Sprintf("%s-%d", r.name, r.sagas), "The saga of that number in the script of that name.", r.versions, r.history)
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
		if fingerprint(before) != fingerprint(r.s) {
			r.t.Fatalf("decide changed the state before (-want +got):\n%s", cmp.Diff(describe(before), describe(r.s)))
		}
	}
	var b strings.Builder
	if err != nil {
		fmt.Fprintf(&b, "refused: %v\n", err)
		for i, o := range d.Reply.Obstacles {
			if i > 0 {
				fmt.Fprintf(&b, "and: %s\n", o)
			}
		}
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
		r.m = r.s.Machine()
		if folded := r.fold(); fingerprint(folded) != fingerprint(r.s) {
			r.t.Fatalf("fold differs from decide (-fold +decide):\n%s", cmp.Diff(describe(folded), describe(r.s)))
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
	case Result, Report:
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
	s, err := FoldAll(r.history, func(version int32) (*Machine, error) { return r.versions[version-1], nil })
	if err != nil {
		r.t.Fatal(err)
	}
	return s
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
	p := defParser{def: def, activities: activities, probes: map[string]bool{}, claimed: map[string]bool{}}
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
		def.Activities = append(def.Activities, &sagadv1.Activity{Name: name, Probe: p.probes[name], Claimed: p.claimed[name]})
	}
	return def, nil
}

type defParser struct {
	def        *sagadv1.Definition
	lines      []string
	activities map[string]bool
	probes     map[string]bool
	claimed    map[string]bool
	err        error
}

func (p *defParser) nodes() []*sagadv1.Node {
	var out []*sagadv1.Node
	for len(p.lines) > 0 && p.err == nil {
		line := p.lines[0]
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "end", "else", "branch", "case", "default", "alternative", "received", "otherwise", "output", "next", "while":
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
			name, need, _ := strings.Cut(rest, " need=")
			par := &sagadv1.Parallel{Name: name}
			switch n, _ := strconv.Atoi(need); {
			case need == "any":
				par.Join = sagadv1.Join_JOIN_ANY
			case n > 0:
				par.Join, par.Count = sagadv1.Join_JOIN_COUNT, int32(n)
			}
			for p.take("branch") {
				b := &sagadv1.Branch{Body: p.nodes()}
				if out, ok := p.word("output"); ok {
					b.Output = &sagadv1.Mapping{Value: out}
				}
				par.Branches = append(par.Branches, b)
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
		case "signal":
			name, schema, _ := strings.Cut(rest, " ")
			p.def.Signals = append(p.def.Signals, &sagadv1.Signal{Name: name, Schema: schema})
		case "sleep":
			name, length, _ := strings.Cut(rest, " ")
			n := &sagadv1.Sleep{Name: name}
			if cel, ok := strings.CutPrefix(length, "for "); ok {
				n.For = cel
			} else if cel, ok := strings.CutPrefix(length, "until "); ok {
				n.Until = cel
			} else {
				d, err := time.ParseDuration(length)
				p.err = err
				n.Duration = durationpb.New(d)
			}
			out = append(out, &sagadv1.Node{Kind: &sagadv1.Node_Sleep{Sleep: n}})
		case "wait", "ask":
			// wait NAME SIGNAL [D] or ask NAME D TITLE; with arms: received ... otherwise ... end
			words := strings.SplitN(rest, " ", 3)
			n := &sagadv1.Wait{Name: words[0]}
			length := ""
			if word == "ask" {
				n.Approval = &sagadv1.Approval{Title: words[2]}
				length = words[1]
			} else if n.Signal = words[1]; len(words) > 2 {
				length = words[2]
			}
			if length != "" && length != "-" {
				d, err := time.ParseDuration(length)
				p.err = err
				n.Timeout = durationpb.New(d)
			}
			if p.take("received") {
				n.HasOtherwise, n.Received = true, p.nodes()
				if p.take("otherwise") {
					n.Otherwise = p.nodes()
				}
				p.end()
			}
			out = append(out, &sagadv1.Node{Kind: &sagadv1.Node_Wait{Wait: n}})
		case "switch":
			n := &sagadv1.Switch{Name: rest}
			for {
				cond, ok := p.word("case")
				if !ok {
					break
				}
				n.Cases = append(n.Cases, &sagadv1.Case{Condition: cond, Body: p.nodes()})
			}
			if p.take("default") {
				n.Default = &sagadv1.Default{Body: p.nodes()}
			}
			p.end()
			out = append(out, &sagadv1.Node{Kind: &sagadv1.Node_Switch{Switch: n}})
		case "loop":
			// loop NAME MAX [INITIAL] ... [next CEL] while CEL end
			words := strings.SplitN(rest, " ", 3)
			limit, _ := strconv.Atoi(words[1])
			n := &sagadv1.Loop{Name: words[0], MaxRounds: int32(limit)}
			if len(words) > 2 {
				n.Initial = &sagadv1.Mapping{Value: words[2]}
			}
			n.Body = p.nodes()
			if next, ok := p.word("next"); ok {
				n.Next = &sagadv1.Mapping{Value: next}
			}
			n.While, _ = p.word("while")
			p.end()
			out = append(out, &sagadv1.Node{Kind: &sagadv1.Node_Loop{Loop: n}})
		case "map":
			// map NAME [window=N] [tolerate=N] CEL ... [output CEL] end
			words := strings.SplitN(rest, " ", 2)
			n := &sagadv1.Map{Name: words[0]}
			rest := words[1]
			for {
				head, tail, _ := strings.Cut(rest, " ")
				k, val, ok := strings.Cut(head, "=")
				number, err := strconv.Atoi(val)
				if !ok || err != nil {
					break
				}
				if rest = tail; k == "window" {
					n.Window = int32(number)
				} else {
					n.Tolerate = int32(number)
				}
			}
			n.Items = rest
			n.Body = p.nodes()
			if output, ok := p.word("output"); ok {
				n.Output = &sagadv1.Mapping{Value: output}
			}
			p.end()
			out = append(out, &sagadv1.Node{Kind: &sagadv1.Node_Map{Map: n}})
		case "savepoint":
			n := &sagadv1.Savepoint{Name: rest, Body: p.nodes()}
			for {
				cond, ok := p.word("alternative")
				if !ok {
					break
				}
				n.Alternatives = append(n.Alternatives, &sagadv1.Alternative{Condition: cond, Body: p.nodes()})
			}
			p.end()
			out = append(out, &sagadv1.Node{Kind: &sagadv1.Node_Savepoint{Savepoint: n}})
		case "child":
			// child NAME DEFINITION [retriable]
			words := strings.Fields(rest)
			n := &sagadv1.Child{Name: words[0], Definition: words[1], Kind: sagadv1.Kind_KIND_COMPENSATABLE}
			if len(words) > 2 {
				n.Kind = sagadv1.Kind_KIND_RETRIABLE
			}
			out = append(out, &sagadv1.Node{Kind: &sagadv1.Node_Child{Child: n}})
		default:
			out = append(out, &sagadv1.Node{Kind: &sagadv1.Node_Step{Step: p.step(word, rest)}})
		}
	}
	return out
}

// take takes a line that is one word.
func (p *defParser) take(word string) bool {
	_, ok := p.word(word)
	return ok
}

// word takes a line that begins with a word, and gives the rest of it.
func (p *defParser) word(word string) (string, bool) {
	if len(p.lines) == 0 {
		return "", false
	}
	head, rest, _ := strings.Cut(p.lines[0], " ")
	if head != word {
		return "", false
	}
	p.lines = p.lines[1:]
	return rest, true
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
		case "probe":
			p.probes[s.Activity] = true
		case "claimed":
			p.claimed[s.Activity] = true
		case "heartbeat":
			s.Heartbeat = durationpb.New(d)
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
