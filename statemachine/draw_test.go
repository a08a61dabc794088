package statemachine

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// drawing makes random definitions that the verifier accepts: any nesting of sequences, parallels and ifs, with each kind
// wherever it is allowed; with flow, any nesting of all nodes that there are.
type drawing struct {
	t      *rapid.T
	def    *sagadv1.Definition
	left   int  // steps that may still be drawn
	names  int  // parallels and ifs
	exprs  bool // with expressions, which may fail
	inside []string
	flow   bool // with each kind of node, not just steps, parallels and ifs
	// values are expressions over what blocks and waits say, that may be read here. They never fail.
	values []string
	// closed: the pivot may not stand here; undoable: nothing that can't be undone may. turns are the maps and loops around.
	closed, undoable bool
	turns            int
	signals          map[string]bool
}

// pick draws one of n choices; 0 is the simplest.
func pick(t *rapid.T, n int, what string) int { return rapid.IntRange(0, n-1).Draw(t, what) }

func oneIn(t *rapid.T, n int, what string) bool { return pick(t, n, what) == n-1 }

const (
	// inputWhole fits all drawn expressions, inputPoor lets some of them fail.
	inputWhole = `{"a":true,"b":false,"x":{"n":1}}`
	inputPoor  = `{"a":true}`
	// outputWhole fits all drawn expressions and schemas.
	outputWhole = `{"ok":true,"v":[1]}`
)

func drawDefinition(t *rapid.T) *sagadv1.Definition { return drawWith(t, false) }

// drawFlow draws definitions with each kind of node.
func drawFlow(t *rapid.T) *sagadv1.Definition { return drawWith(t, true) }

func drawWith(t *rapid.T, flow bool) *sagadv1.Definition {
	g := &drawing{t: t, def: &sagadv1.Definition{Name: "drawn"}, left: 1 + pick(t, 7, "steps"), exprs: oneIn(t, 3, "expressions"), flow: flow, signals: map[string]bool{}}
	pivot := onNone
	g.def.Body = g.nodes(3, &pivot, false, true)
	if len(g.def.Activities) == 0 {
		g.def.Body = append(g.def.Body, g.step(&pivot, false))
	}
	if g.exprs && oneIn(t, 4, "return") {
		value := "1"
		if len(g.inside) > 0 {
			value = g.inside[pick(t, len(g.inside), "returned")] + ".v"
		}
		g.def.Body = append(g.def.Body, &sagadv1.Node{Kind: &sagadv1.Node_Return{Return: &sagadv1.Return{Output: &sagadv1.Mapping{Value: value}}}})
	}
	for _, name := range sortedKeys(g.signals) {
		g.def.Signals = append(g.def.Signals, &sagadv1.Signal{Name: name})
	}
	if oneIn(t, 4, "deadline?") {
		g.def.Deadline = durationpb.New(time.Duration(1+pick(t, 20, "deadline")) * time.Second)
	}
	if oneIn(t, 3, "undo limit?") {
		g.def.MaxParallelCompensations = int32(1 + pick(t, 3, "undo limit"))
	}
	return g.def
}

func (g *drawing) nodes(depth int, pivot *onWay, parallel, must bool) []*sagadv1.Node {
	var out []*sagadv1.Node
	for n := pick(g.t, 4, "nodes"); (n > 0 || must && len(out) == 0) && g.left > 0; n-- {
		kinds := 6
		if g.flow {
			kinds = 14
		}
		kind := pick(g.t, kinds, "node")
		if (depth == 0 || g.left < 2) && kind != 6 && kind != 13 {
			kind = 0
		}
		outer, said := len(g.inside), len(g.values)
		switch kind {
		case 4:
			g.names++
			p := &sagadv1.Parallel{Name: fmt.Sprintf("p%d", g.names)}
			seen, heard := g.inside[:outer:outer], g.values[:said:said]
			for range 2 + pick(g.t, 2, "branches") {
				if g.left == 0 {
					break
				}
				g.forget(outer, said)
				at := *pivot
				p.Branches = append(p.Branches, &sagadv1.Branch{Body: g.nodes(depth-1, &at, true, true)})
				seen, heard = append(seen, g.inside[outer:]...), append(heard, g.values[said:]...)
			}
			g.inside, g.values = seen, heard
			if len(p.Branches) < 2 {
				out = append(out, p.Branches[0].Body...)
				continue
			}
			out = append(out, &sagadv1.Node{Kind: &sagadv1.Node_Parallel{Parallel: p}})
		case 5:
			g.names++
			c := &sagadv1.If{Name: fmt.Sprintf("c%d", g.names), Condition: []string{"true", "false", "input.a", "input.b"}[pick(g.t, 4, "condition")]}
			if g.exprs && outer > 0 && oneIn(g.t, 2, "condition of an output") {
				c.Condition = g.inside[pick(g.t, outer, "output")] + ".ok"
			}
			arms := g.arms(depth, pivot, parallel, true, 2)
			c.Then, c.Else = arms[0], arms[1]
			out = append(out, &sagadv1.Node{Kind: &sagadv1.Node_If{If: c}})
		case 6:
			out = append(out, g.sleep())
		case 7:
			out = append(out, g.wait(depth, pivot, parallel))
		case 8:
			out = append(out, g.cases(depth, pivot, parallel))
		case 9, 10:
			if g.turns == 2 {
				out = append(out, g.step(pivot, parallel))
			} else if kind == 9 {
				out = append(out, g.loop(depth, pivot, parallel))
			} else {
				out = append(out, g.each(depth, pivot, parallel))
			}
		case 11:
			out = append(out, g.savepoint(depth, pivot, parallel))
		case 12:
			out = append(out, g.race(depth, pivot, parallel))
		case 13:
			out = append(out, g.child(pivot, parallel))
		default:
			out = append(out, g.step(pivot, parallel))
		}
	}
	return out
}

// forget makes what was said since then unreadable.
func (g *drawing) forget(outer, said int) {
	g.inside, g.values = g.inside[:outer:outer], g.values[:said:said]
}

// arms draws n sequences of which one is run; the first one isn't empty if it must not be.
func (g *drawing) arms(depth int, pivot *onWay, parallel, must bool, n int) (out [][]*sagadv1.Node) {
	outer, said := len(g.inside), len(g.values)
	after := *pivot
	for i := range n {
		at := *pivot
		out = append(out, g.nodes(depth-1, &at, parallel, must && i == 0))
		g.forget(outer, said)
		if i == 0 {
			after = at
		} else if after != at {
			after = onSome
		}
	}
	*pivot = after
	return out
}

// scope draws the body of a block: what is said there isn't read outside. reading are values that it reads besides.
func (g *drawing) scope(depth int, pivot onWay, parallel, undoable, turn, must bool, reading ...string) []*sagadv1.Node {
	outer, said, closed, could, turns := len(g.inside), len(g.values), g.closed, g.undoable, g.turns
	g.closed, g.undoable = true, g.undoable || undoable
	if turn {
		g.turns++
	}
	g.values = append(g.values[:said:said], reading...)
	out := g.nodes(depth-1, &pivot, parallel, must)
	g.closed, g.undoable, g.turns = closed, could, turns
	g.forget(outer, said)
	return out
}

func (g *drawing) named(prefix string) string {
	g.names++
	return fmt.Sprintf("%s%d", prefix, g.names)
}

func (g *drawing) sleep() *sagadv1.Node {
	s := &sagadv1.Sleep{Name: g.named("z")}
	switch pick(g.t, 3, "sleep") {
	case 0:
		s.Duration = durationpb.New(time.Duration(1+pick(g.t, 5, "seconds")) * time.Second)
	case 1:
		s.For = []string{"'1s'", "'0s'", "'2500ms'"}[pick(g.t, 3, "for")]
	default:
		s.Until = []string{"'1970-01-01T00:00:10Z'", "'1970-01-01T00:01:00Z'"}[pick(g.t, 2, "until")]
	}
	return &sagadv1.Node{Kind: &sagadv1.Node_Sleep{Sleep: s}}
}

func (g *drawing) wait(depth int, pivot *onWay, parallel bool) *sagadv1.Node {
	w := &sagadv1.Wait{Name: g.named("w"), Timeout: durationpb.New(time.Duration(1+pick(g.t, 5, "timeout")) * time.Second)}
	if oneIn(g.t, 3, "approval?") {
		w.Approval = &sagadv1.Approval{Title: "'fine?'"}
	} else {
		w.Signal = fmt.Sprintf("sig%d", 1+pick(g.t, 2, "signal"))
		g.signals[w.Signal] = true
	}
	if *pivot == onNone && oneIn(g.t, 2, "without a way out") {
		g.values = append(g.values, w.Name)
		return &sagadv1.Node{Kind: &sagadv1.Node_Wait{Wait: w}}
	}
	w.HasOtherwise = true
	arms := g.arms(depth, pivot, parallel, false, 2)
	w.Received, w.Otherwise = arms[0], arms[1]
	return &sagadv1.Node{Kind: &sagadv1.Node_Wait{Wait: w}}
}

func (g *drawing) cases(depth int, pivot *onWay, parallel bool) *sagadv1.Node {
	s := &sagadv1.Switch{Name: g.named("k")}
	n := 1 + pick(g.t, 2, "cases")
	arms := g.arms(depth, pivot, parallel, false, n+1)
	for i := range n {
		s.Cases = append(s.Cases, &sagadv1.Case{Condition: []string{"false", "true", "input.a"}[pick(g.t, 3, "case")], Body: arms[i]})
	}
	s.Default = &sagadv1.Default{Body: arms[n]}
	return &sagadv1.Node{Kind: &sagadv1.Node_Switch{Switch: s}}
}

func (g *drawing) loop(depth int, pivot *onWay, parallel bool) *sagadv1.Node {
	l := &sagadv1.Loop{Name: g.named("l"), MaxRounds: int32(1 + pick(g.t, 3, "rounds"))}
	if oneIn(g.t, 2, "initial?") {
		l.Initial = &sagadv1.Mapping{Value: "[1]"}
	}
	if oneIn(g.t, 2, "next?") {
		l.Next = &sagadv1.Mapping{Fields: map[string]string{"was": l.Name + ".value", "n": l.Name + ".index + 1"}}
	}
	l.While = []string{"false", l.Name + ".index < 1", "true"}[pick(g.t, 3, "while")]
	l.Body = g.scope(depth, *pivot, parallel, false, true, true, l.Name+".index", l.Name+".value", l.Name)
	g.values = append(g.values, l.Name+".rounds", l.Name+".value")
	return &sagadv1.Node{Kind: &sagadv1.Node_Loop{Loop: l}}
}

func (g *drawing) each(depth int, pivot *onWay, parallel bool) *sagadv1.Node {
	m := &sagadv1.Map{Name: g.named("m"), Items: []string{"[1]", "[1, 2, 3]", "[]", "[{'a': 1}, null]"}[pick(g.t, 4, "items")]}
	m.Window, m.Tolerate = int32(pick(g.t, 3, "window")), int32(max(0, pick(g.t, 4, "tolerate")-1))
	m.Body = g.scope(depth, *pivot, parallel, m.Tolerate > 0, true, true, m.Name+".index", m.Name+".item")
	g.values = append(g.values, m.Name+".done", m.Name)
	if oneIn(g.t, 2, "output?") {
		m.Output = &sagadv1.Mapping{Value: m.Name + ".index"}
		g.values = append(g.values, m.Name+".results")
	}
	return &sagadv1.Node{Kind: &sagadv1.Node_Map{Map: m}}
}

func (g *drawing) savepoint(depth int, pivot *onWay, parallel bool) *sagadv1.Node {
	s := &sagadv1.Savepoint{Name: g.named("v")}
	s.Body = g.scope(depth, *pivot, parallel, true, false, true)
	wrong := []string{s.Name + ".code", s.Name}
	if oneIn(g.t, 2, "with a condition") {
		s.Alternatives = append(s.Alternatives, &sagadv1.Alternative{
			Condition: []string{"true", "false", s.Name + ".code == 'NO'"}[pick(g.t, 3, "condition")], Body: g.scope(depth, *pivot, parallel, true, false, false, wrong...)})
	}
	if len(s.Alternatives) == 0 || oneIn(g.t, 2, "another") {
		s.Alternatives = append(s.Alternatives, &sagadv1.Alternative{Body: g.scope(depth, *pivot, parallel, true, false, false, wrong...)})
	}
	g.values = append(g.values, s.Name+".path")
	return &sagadv1.Node{Kind: &sagadv1.Node_Savepoint{Savepoint: s}}
}

func (g *drawing) race(depth int, pivot *onWay, parallel bool) *sagadv1.Node {
	p := &sagadv1.Parallel{Name: g.named("r"), Join: sagadv1.Join_JOIN_ANY}
	for range 2 + pick(g.t, 2, "branches") {
		b := &sagadv1.Branch{Body: g.scope(depth, *pivot, parallel, true, false, true)}
		if len(b.Body) == 0 {
			b.Body = []*sagadv1.Node{g.sleep()}
		}
		if oneIn(g.t, 2, "output?") {
			b.Output = &sagadv1.Mapping{Value: "1"}
		}
		p.Branches = append(p.Branches, b)
	}
	if oneIn(g.t, 2, "count?") {
		p.Join, p.Count = sagadv1.Join_JOIN_COUNT, int32(1+pick(g.t, len(p.Branches)-1, "count"))
	}
	g.values = append(g.values, p.Name)
	return &sagadv1.Node{Kind: &sagadv1.Node_Parallel{Parallel: p}}
}

func (g *drawing) child(pivot *onWay, parallel bool) *sagadv1.Node {
	if *pivot == onSome || *pivot == onAll && g.undoable {
		return g.step(pivot, parallel)
	}
	g.left--
	c := &sagadv1.Child{Name: g.named("h"), Definition: "drawn-child", Kind: sagadv1.Kind_KIND_COMPENSATABLE, Version: int32(pick(g.t, 2, "version"))}
	if *pivot == onAll {
		c.Kind = sagadv1.Kind_KIND_RETRIABLE
	}
	if len(g.values) > 0 && oneIn(g.t, 2, "input of a value") {
		c.Input = &sagadv1.Mapping{Value: g.values[pick(g.t, len(g.values), "value")]}
	}
	g.values = append(g.values, c.Name)
	return &sagadv1.Node{Kind: &sagadv1.Node_Child{Child: c}}
}

func (g *drawing) step(pivot *onWay, parallel bool) *sagadv1.Node {
	g.left--
	n := len(g.def.Activities)
	s := &sagadv1.Step{Name: fmt.Sprintf("s%d", n), Activity: fmt.Sprintf("act.%03d", n)}
	act := &sagadv1.Activity{Name: s.Activity}
	if oneIn(g.t, 4, "output schema") {
		act.OutputSchema = `{"type":"object","properties":{"ok":{"type":"boolean"},"v":{}},"required":["ok"]}`
	}
	g.def.Activities = append(g.def.Activities, act)
	kind := pick(g.t, 8, "kind")
	switch {
	case *pivot == onSome || kind == 7:
		s.Kind = sagadv1.Kind_KIND_READ_ONLY
	case *pivot == onAll && g.undoable:
		s.Kind = sagadv1.Kind_KIND_READ_ONLY
	case *pivot == onAll:
		s.Kind = sagadv1.Kind_KIND_RETRIABLE
	case kind == 6 && !parallel && !g.closed:
		s.Kind, *pivot = sagadv1.Kind_KIND_PIVOT, onAll
	default:
		s.Kind = sagadv1.Kind_KIND_COMPENSATABLE
		if oneIn(g.t, 2, "compensation?") {
			s.Compensation = &sagadv1.Compensation{Retry: g.retry(), LetPass: oneIn(g.t, 3, "let pass"), Timeout: g.timeout()}
		}
	}
	s.Retry, s.Timeout = g.retry(), g.timeout()
	if oneIn(g.t, 4, "hold") {
		s.GiveUp = sagadv1.GiveUp_GIVE_UP_HOLD
	}
	if g.exprs && oneIn(g.t, 3, "input") {
		s.Input = &sagadv1.Mapping{Fields: map[string]string{"x": "input.x.n"}}
		if len(g.inside) > 0 && oneIn(g.t, 2, "input of an output") {
			s.Input = &sagadv1.Mapping{Value: g.inside[pick(g.t, len(g.inside), "output")] + ".v"}
		}
	}
	if s.Input == nil && len(g.values) > 0 && oneIn(g.t, 3, "input of a value") {
		s.Input = &sagadv1.Mapping{Value: g.values[pick(g.t, len(g.values), "value")]}
	}
	if g.flow && oneIn(g.t, 5, "heartbeat") {
		s.Heartbeat = durationpb.New(500 * time.Millisecond)
	}
	g.inside = append(g.inside, s.Name)
	return &sagadv1.Node{Kind: &sagadv1.Node_Step{Step: s}}
}

func (g *drawing) timeout() *durationpb.Duration {
	if oneIn(g.t, 2, "timeout?") {
		return durationpb.New(time.Duration(1+pick(g.t, 5, "timeout")) * time.Second)
	}
	return nil
}

func (g *drawing) retry() *sagadv1.RetryPolicy {
	switch pick(g.t, 4, "retry") {
	case 0:
		return nil
	case 1:
		return &sagadv1.RetryPolicy{MaxAttempts: 1}
	case 2:
		return &sagadv1.RetryPolicy{MaxAttempts: int32(1 + pick(g.t, 3, "attempts")), Initial: durationpb.New(10 * time.Millisecond), Factor: 1}
	default:
		return &sagadv1.RetryPolicy{MaxAttempts: 50, Total: durationpb.New(time.Duration(1+pick(g.t, 10, "total")) * time.Second)}
	}
}

// ordered says for each pair of steps, by name, whether the first is over before the second starts. It is read off the tree:
// what stands earlier in a sequence comes before what stands later in it.
func ordered(def *sagadv1.Definition) map[[2]string]bool {
	before := map[[2]string]bool{}
	var walk func(nodes []*sagadv1.Node) []string
	walk = func(nodes []*sagadv1.Node) []string {
		var earlier []string
		for _, n := range nodes {
			var here []string
			if name, kind := nodeName(n); kind == stepNode {
				here = []string{name}
			}
			for _, b := range Bodies(n) {
				here = append(here, walk(b)...)
			}
			for _, a := range earlier {
				for _, b := range here {
					before[[2]string{a, b}] = true
				}
			}
			earlier = append(earlier, here...)
		}
		return earlier
	}
	walk(def.GetBody())
	return before
}

// stepsOf lists all steps of a definition.
func stepsOf(nodes []*sagadv1.Node) []*sagadv1.Step {
	var out []*sagadv1.Step
	for _, n := range nodes {
		if s := n.GetStep(); s != nil {
			out = append(out, s)
		}
		for _, b := range Bodies(n) {
			out = append(out, stepsOf(b)...)
		}
	}
	return out
}
