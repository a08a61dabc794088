package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// drawing makes random definitions that the verifier accepts: any nesting of sequences, parallels and ifs, with each kind of
// step wherever it is allowed.
//
// A new kind of node is drawn by one more entry of nodeKinds. It must also be known to the model: see model.walk, and
// model.fact for what it leaves in the history.
type drawing struct {
	*chance
	def *sagadv1.Definition
	// left are steps that may still be drawn, names the parallels and ifs so far.
	left, names int
	// exprs: with expressions that read outputs, and which may fail.
	exprs bool
	// inside are the steps whose outputs can be read here.
	inside []string
	// second is what times are counted in.
	second time.Duration
}

// way says whether a pivot lies on the way to a place.
type way int

const (
	noPivot way = iota
	maybePivot
	pastPivot
)

// nodeKind draws one kind of node. It adds to the body what it drew.
type nodeKind struct {
	name   string
	weight int
	// steps that it needs, and whether it nests.
	steps int
	nests bool
	draw  func(g *drawing, body []*sagadv1.Node, depth int, pivot *way, parallel bool) []*sagadv1.Node
}

// nodeKinds are the kinds of nodes that definitions are made of. Loops, maps, savepoints, races and child sagas belong here, too,
// once the model knows scopes.
var nodeKinds []nodeKind

func init() {
	nodeKinds = []nodeKind{
		{name: "step", weight: 8, steps: 1, draw: (*drawing).stepNode},
		{name: "parallel", weight: 2, steps: 2, nests: true, draw: (*drawing).parallelNode},
		{name: "if", weight: 2, steps: 2, nests: true, draw: (*drawing).ifNode},
		{name: "switch", weight: 1, steps: 2, nests: true, draw: (*drawing).switchNode},
		{name: "sleep", weight: 1, draw: (*drawing).sleepNode},
		{name: "wait", weight: 1, draw: (*drawing).waitNode},
	}
}

const (
	// inputWhole fits all drawn expressions, inputPoor lets some of them fail.
	inputWhole = `{"a":true,"b":false,"x":{"n":1},"pad":%q}`
	inputPoor  = `{"a":true,"pad":%q}`
	// outputWhole fits all drawn expressions and schemas, outputPoor only some.
	outputWhole = `{"ok":true,"v":[1],"pad":%q}`
	outputPoor  = `{"v":7,"pad":%q}`
)

func drawDefinition(c *chance, name string, leisurely bool) *sagadv1.Definition {
	g := &drawing{chance: c, def: &sagadv1.Definition{Name: name}, left: 1 + c.upTo(7), exprs: c.oneIn(3), second: time.Second}
	switch {
	case leisurely && !c.oneIn(4):
		g.second = 2 * time.Minute // such sagas leave memory while they wait
	case c.oneIn(8):
		g.second = 20 * time.Second
	}
	pivot := noPivot
	g.def.Body = g.nodes(3, &pivot, false, true)
	if len(g.def.Activities) == 0 {
		g.def.Body = g.stepNode(g.def.Body, 0, &pivot, false)
	}
	if g.exprs && g.oneIn(4) {
		value := "1"
		if len(g.inside) > 0 {
			value = g.inside[g.upTo(len(g.inside))] + ".v"
		}
		g.def.Body = append(g.def.Body, &sagadv1.Node{Kind: &sagadv1.Node_Return{Return: &sagadv1.Return{Output: &sagadv1.Mapping{Value: value}}}})
	}
	if g.oneIn(3) {
		g.def.Deadline = durationpb.New(time.Duration(2+g.upTo(40)) * g.second)
	}
	if g.oneIn(3) {
		g.def.MaxParallelCompensations = int32(1 + g.upTo(3))
	}
	return g.def
}

func (g *drawing) nodes(depth int, pivot *way, parallel, must bool) []*sagadv1.Node {
	var out []*sagadv1.Node
	for n := g.upTo(4); (n > 0 || must && len(out) == 0) && g.left > 0; n-- {
		out = g.node(out, depth, pivot, parallel)
	}
	return out
}

func (g *drawing) node(body []*sagadv1.Node, depth int, pivot *way, parallel bool) []*sagadv1.Node {
	total := 0
	fits := func(k *nodeKind) bool { return k.steps <= g.left && (depth > 0 || !k.nests) }
	for i := range nodeKinds {
		if k := &nodeKinds[i]; fits(k) {
			total += k.weight
		}
	}
	at := g.upTo(total)
	for i := range nodeKinds {
		if k := &nodeKinds[i]; fits(k) {
			if at -= k.weight; at < 0 {
				return k.draw(g, body, depth, pivot, parallel)
			}
		}
	}
	panic("no kind of node fits")
}

func (g *drawing) parallelNode(body []*sagadv1.Node, depth int, pivot *way, _ bool) []*sagadv1.Node {
	g.names++
	p := &sagadv1.Parallel{Name: fmt.Sprintf("p%d", g.names)}
	outer := len(g.inside)
	seen := g.inside[:outer:outer]
	for range 2 + g.upTo(2) {
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
		return append(body, p.Branches[0].Body...)
	}
	return append(body, &sagadv1.Node{Kind: &sagadv1.Node_Parallel{Parallel: p}})
}

func (g *drawing) ifNode(body []*sagadv1.Node, depth int, pivot *way, parallel bool) []*sagadv1.Node {
	g.names++
	outer := len(g.inside)
	c := &sagadv1.If{Name: fmt.Sprintf("c%d", g.names), Condition: []string{"true", "false", "input.a", "input.b"}[g.upTo(4)]}
	if g.exprs && outer > 0 && g.oneIn(2) {
		c.Condition = g.inside[g.upTo(outer)] + ".ok"
	}
	arms := [2]way{*pivot, *pivot}
	c.Then = g.nodes(depth-1, &arms[0], parallel, true)
	g.inside = g.inside[:outer:outer]
	c.Else = g.nodes(depth-1, &arms[1], parallel, false)
	g.inside = g.inside[:outer:outer]
	if *pivot = arms[0]; arms[0] != arms[1] {
		*pivot = maybePivot
	}
	return append(body, &sagadv1.Node{Kind: &sagadv1.Node_If{If: c}})
}

// arms draws two ways to go, of which one is taken.
func (g *drawing) arms(depth int, pivot *way, parallel, must bool) (one, other []*sagadv1.Node) {
	outer := len(g.inside)
	arms := [2]way{*pivot, *pivot}
	one = g.nodes(depth-1, &arms[0], parallel, must)
	g.inside = g.inside[:outer:outer]
	other = g.nodes(depth-1, &arms[1], parallel, false)
	g.inside = g.inside[:outer:outer]
	if *pivot = arms[0]; arms[0] != arms[1] {
		*pivot = maybePivot
	}
	return one, other
}

func (g *drawing) switchNode(body []*sagadv1.Node, depth int, pivot *way, parallel bool) []*sagadv1.Node {
	g.names++
	sw := &sagadv1.Switch{Name: fmt.Sprintf("w%d", g.names)}
	before := *pivot
	first, rest := g.arms(depth, pivot, parallel, true)
	sw.Cases = append(sw.Cases, &sagadv1.Case{Condition: []string{"true", "false", "input.a", "input.b"}[g.upTo(4)], Body: first})
	if g.oneIn(2) && g.left > 0 && before == *pivot {
		second, _ := g.arms(0, &before, parallel, false)
		if before == *pivot {
			sw.Cases = append(sw.Cases, &sagadv1.Case{Condition: []string{"true", "input.b"}[g.upTo(2)], Body: second})
		}
	}
	sw.Default = &sagadv1.Default{Body: rest}
	return append(body, &sagadv1.Node{Kind: &sagadv1.Node_Switch{Switch: sw}})
}

func (g *drawing) sleepNode(body []*sagadv1.Node, _ int, _ *way, _ bool) []*sagadv1.Node {
	g.names++
	sl := &sagadv1.Sleep{Name: fmt.Sprintf("z%d", g.names), Duration: durationpb.New(time.Duration(1+g.upTo(8)) * g.second)}
	if g.oneIn(6) {
		sl.Duration, sl.For = nil, "'1500ms'"
	}
	return append(body, &sagadv1.Node{Kind: &sagadv1.Node_Sleep{Sleep: sl}})
}

func (g *drawing) waitNode(body []*sagadv1.Node, depth int, pivot *way, parallel bool) []*sagadv1.Node {
	g.names++
	w := &sagadv1.Wait{Name: fmt.Sprintf("v%d", g.names), Timeout: durationpb.New(time.Duration(1+g.upTo(20)) * g.second)}
	if g.oneIn(3) {
		w.Approval = &sagadv1.Approval{Title: "'Is it fine?'"}
	} else {
		w.Signal = fmt.Sprint("go", g.upTo(2))
		if !slices.ContainsFunc(g.def.Signals, func(x *sagadv1.Signal) bool { return x.Name == w.Signal }) {
			g.def.Signals = append(g.def.Signals, &sagadv1.Signal{Name: w.Signal})
			slices.SortFunc(g.def.Signals, func(a, b *sagadv1.Signal) int { return strings.Compare(a.Name, b.Name) })
		}
	}
	if w.HasOtherwise = *pivot != noPivot || g.oneIn(2); w.HasOtherwise && depth > 0 {
		w.Received, w.Otherwise = g.arms(depth, pivot, parallel, false)
	}
	return append(body, &sagadv1.Node{Kind: &sagadv1.Node_Wait{Wait: w}})
}

func (g *drawing) stepNode(body []*sagadv1.Node, _ int, pivot *way, parallel bool) []*sagadv1.Node {
	g.left--
	n := len(g.def.Activities)
	s := &sagadv1.Step{Name: fmt.Sprintf("s%d", n), Activity: fmt.Sprintf("act.%03d", n)}
	act := &sagadv1.Activity{Name: s.Activity}
	if g.oneIn(3) {
		act.OutputSchema = `{"type":"object","properties":{"ok":{"type":"boolean"},"v":{}},"required":["ok"]}`
	}
	g.def.Activities = append(g.def.Activities, act)
	kind := g.upTo(8)
	switch {
	case *pivot == maybePivot || kind == 7:
		s.Kind = sagadv1.Kind_KIND_READ_ONLY
	case *pivot == pastPivot:
		s.Kind = sagadv1.Kind_KIND_RETRIABLE
	case kind == 6 && !parallel:
		s.Kind, *pivot = sagadv1.Kind_KIND_PIVOT, pastPivot
	default:
		s.Kind = sagadv1.Kind_KIND_COMPENSATABLE
		if g.oneIn(2) {
			s.Compensation = &sagadv1.Compensation{Retry: g.retry(), LetPass: g.oneIn(3), Timeout: g.timeout()}
		}
	}
	s.Retry, s.Timeout = g.retry(), g.timeout()
	if g.oneIn(4) {
		s.GiveUp = sagadv1.GiveUp_GIVE_UP_HOLD
	}
	if g.exprs && g.oneIn(3) {
		s.Input = &sagadv1.Mapping{Fields: map[string]string{"x": "input.x.n"}}
		if len(g.inside) > 0 && g.oneIn(2) {
			s.Input = &sagadv1.Mapping{Value: g.inside[g.upTo(len(g.inside))] + ".v"}
		}
	}
	g.inside = append(g.inside, s.Name)
	return append(body, &sagadv1.Node{Kind: &sagadv1.Node_Step{Step: s}})
}

func (g *drawing) timeout() *durationpb.Duration {
	if g.oneIn(3) {
		return nil // 30 s
	}
	return durationpb.New(time.Duration(1+g.upTo(6)) * g.second)
}

func (g *drawing) retry() *sagadv1.RetryPolicy {
	switch g.upTo(5) {
	case 0:
		return nil
	case 1:
		return &sagadv1.RetryPolicy{MaxAttempts: 1}
	case 2:
		return &sagadv1.RetryPolicy{MaxAttempts: int32(1 + g.upTo(4)), Initial: durationpb.New(50 * time.Millisecond), Factor: 1}
	case 3:
		return &sagadv1.RetryPolicy{MaxAttempts: 6, Initial: durationpb.New(g.second / 2), Factor: 3, Max: durationpb.New(10 * g.second)}
	default:
		return &sagadv1.RetryPolicy{MaxAttempts: 50, Total: durationpb.New(time.Duration(1+g.upTo(20)) * g.second)}
	}
}
