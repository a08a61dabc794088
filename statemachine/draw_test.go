package statemachine

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// drawing makes random definitions that the verifier accepts: any nesting of sequences, parallels and ifs, with each kind
// wherever it is allowed.
type drawing struct {
	t      *rapid.T
	def    *sagadv1.Definition
	left   int  // steps that may still be drawn
	names  int  // parallels and ifs
	exprs  bool // with expressions, which may fail
	inside []string
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

func drawDefinition(t *rapid.T) *sagadv1.Definition {
	g := &drawing{t: t, def: &sagadv1.Definition{Name: "drawn"}, left: 1 + pick(t, 7, "steps"), exprs: oneIn(t, 3, "expressions")}
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
		kind := pick(g.t, 6, "node")
		if depth == 0 || g.left < 2 {
			kind = 0
		}
		outer := len(g.inside)
		switch kind {
		case 4:
			g.names++
			p := &sagadv1.Parallel{Name: fmt.Sprintf("p%d", g.names)}
			seen := g.inside[:outer:outer]
			for range 2 + pick(g.t, 2, "branches") {
				if g.left == 0 {
					break
				}
				g.inside = g.inside[:outer:outer]
				at := *pivot
				p.Branches = append(p.Branches, &sagadv1.Branch{Body: g.nodes(depth-1, &at, true, true)})
				seen = append(seen, g.inside[outer:]...)
			}
			g.inside = seen
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
			arms := [2]onWay{*pivot, *pivot}
			c.Then = g.nodes(depth-1, &arms[0], parallel, true)
			g.inside = g.inside[:outer:outer]
			c.Else = g.nodes(depth-1, &arms[1], parallel, false)
			g.inside = g.inside[:outer:outer]
			if *pivot = arms[0]; arms[0] != arms[1] {
				*pivot = onSome
			}
			out = append(out, &sagadv1.Node{Kind: &sagadv1.Node_If{If: c}})
		default:
			out = append(out, g.step(pivot, parallel))
		}
	}
	return out
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
	case *pivot == onAll:
		s.Kind = sagadv1.Kind_KIND_RETRIABLE
	case kind == 6 && !parallel:
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
			switch k := n.GetKind().(type) {
			case *sagadv1.Node_Step:
				here = []string{k.Step.GetName()}
			case *sagadv1.Node_Parallel:
				for _, b := range k.Parallel.GetBranches() {
					here = append(here, walk(b.GetBody())...)
				}
			case *sagadv1.Node_If:
				here = append(walk(k.If.GetThen()), walk(k.If.GetElse())...)
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
