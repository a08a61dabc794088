package expr

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/functions"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/interpreter"
)

// CEL's own functions compute with int64 and float64, compare the two through float64, iterate Go maps, and don't
// bound what they build. The planner below puts something between the expression and them:
//
//   - ==, != and in compare exactly (equal);
//   - other functions get plain numbers, or an error if a number can't be had without rounding;
//   - a few are replaced or guarded (hooks);
//   - map literals are put in order (sortMap).

// planner is a cel.CustomDecoratorV2: it sees each node of the plan, the inner ones first.
type planner struct {
	impls map[string]functions.FunctionOp // by overload id and by function name
}

func newPlanner(env *cel.Env) (*planner, error) {
	p := &planner{impls: map[string]functions.FunctionOp{}}
	for name, decl := range env.Functions() { // into a map: order doesn't matter
		bindings, err := decl.Bindings()
		if err != nil {
			return nil, err
		}
		for _, b := range bindings {
			if !b.NonStrict {
				p.impls[b.Operator] = guard(name, b)
			}
		}
	}
	return p, nil
}

func (p *planner) decorate(node interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	switch n := node.(type) {
	case interpreter.InterpretableAttribute, interpreter.InterpretableConst:
		return node, nil
	case interpreter.InterpretableCall:
		args := n.Args()
		switch n.Function() {
		case operators.Equals:
			return &comparison{id: n.ID(), left: args[0], right: args[1]}, nil
		case operators.NotEquals:
			return &comparison{id: n.ID(), left: args[0], right: args[1], negate: true}, nil
		case operators.In:
			return &comparison{id: n.ID(), left: args[0], right: args[1], in: true}, nil
		case "matches":
			c, ok := args[1].(interpreter.InterpretableConst)
			if !ok {
				return node, nil // refused by check
			}
			src, _ := c.Value().(types.String)
			re, err := parsePattern(string(src))
			if err != nil {
				return nil, err
			}
			return &match{id: n.ID(), arg: args[0], pattern: re}, nil
		}
		impl, ok := p.impls[n.OverloadID()]
		if !ok {
			impl, ok = p.impls[n.Function()]
		}
		if ok {
			return interpreter.NewCall(n.ID(), n.Function(), n.OverloadID(), args, impl), nil
		}
	case interpreter.InterpretableConstructor:
		if n.Type() == types.MapType {
			return &mapLiteral{node}, nil
		}
	}
	return node, nil
}

// guard wraps one implementation.
func guard(name string, b *functions.Overload) functions.FunctionOp {
	hook := hooks[name]
	if name == "dyn" {
		return func(args ...ref.Val) ref.Val { return args[0] }
	}
	return func(args ...ref.Val) ref.Val {
		if name == "string" {
			if n, ok := args[0].(*number); ok {
				return types.String(n.lit)
			}
		}
		for i, a := range args {
			if n, ok := a.(*number); ok {
				v := plain(n)
				if types.IsError(v) {
					return v
				}
				args[i] = v
			}
		}
		if hook != nil {
			if v := hook(args); v != nil {
				return v
			}
		}
		if b.OperandTrait != 0 && !args[0].Type().HasTrait(b.OperandTrait) {
			return types.NewErr("no such overload")
		}
		switch {
		case b.Unary != nil && len(args) == 1:
			return b.Unary(args[0])
		case b.Binary != nil && len(args) == 2:
			return b.Binary(args[0], args[1])
		case b.Function != nil:
			return b.Function(args...)
		}
		return types.NewErr("no such overload")
	}
}

// hooks run before a function, for all its overloads; a result other than nil is the function's.
var hooks = map[string]func(args []ref.Val) ref.Val{
	operators.Add:           hookAdd,
	operators.Less:          hookOrder(func(c int) bool { return c < 0 }),
	operators.LessEquals:    hookOrder(func(c int) bool { return c <= 0 }),
	operators.Greater:       hookOrder(func(c int) bool { return c > 0 }),
	operators.GreaterEquals: hookOrder(func(c int) bool { return c >= 0 }),
	"double":                hookDouble,
	"string":                hookString,
	"replace":               hookReplace,
	"join":                  hookJoin,
	"size":                  hookSize,
	"split":                 hookSplit,
	"indexOf":               hookIndexOf,
	"lastIndexOf":           hookLastIndexOf,
}

func tooLarge(what string, limit int, unit string) ref.Val {
	return types.WrapErr(&EvalError{Code: CodeTooLarge, Message: what + " would pass the limit of " + strconv.Itoa(limit) + " " + unit})
}

func hookAdd(args []ref.Val) ref.Val {
	switch a := args[0].(type) {
	case types.String:
		if b, ok := args[1].(types.String); ok && len(a)+len(b) > ResultBytesMax {
			return tooLarge("the string", ResultBytesMax, "bytes")
		}
	case types.Bytes:
		if b, ok := args[1].(types.Bytes); ok && len(a)+len(b) > ResultBytesMax {
			return tooLarge("the bytes", ResultBytesMax, "bytes")
		}
	case traits.Lister:
		if b, ok := args[1].(traits.Lister); ok && sizeOf(a)+sizeOf(b) > listItemsMax {
			return tooLarge("the list", listItemsMax, "elements")
		}
	}
	return nil
}

func sizeOf(v traits.Sizer) int {
	n, ok := v.Size().(types.Int)
	if !ok || n > math.MaxInt32 {
		return math.MaxInt32
	}
	return int(n)
}

// hookOrder orders an integer and a double by their exact values; two of a kind are CEL's own business.
func hookOrder(holds func(int) bool) func([]ref.Val) ref.Val {
	return func(args []ref.Val) ref.Val {
		if args[0].Type() == args[1].Type() || !isNumber(args[0]) || !isNumber(args[1]) {
			return nil
		}
		c, ok := compareNumbers(args[0], args[1])
		if !ok {
			return types.NewErr("NaN values cannot be ordered")
		}
		return types.Bool(holds(c))
	}
}

// hookDouble refuses to round an integer.
func hookDouble(args []ref.Val) ref.Val {
	if len(args) != 1 {
		return nil
	}
	v, ok := args[0].(types.Int)
	if ok {
		if c, _ := compareIntDouble(v, types.Double(v)); c != 0 {
			return types.WrapErr(&EvalError{Code: CodeNumber, Message: "the integer has no double of the same value"})
		}
	}
	return nil
}

// hookString writes a double as JSON does, so that string(input.z) has the digits of the document.
func hookString(args []ref.Val) ref.Val {
	if len(args) == 1 {
		if d, ok := args[0].(types.Double); ok && !math.IsNaN(float64(d)) && !math.IsInf(float64(d), 0) {
			return types.String(appendDouble(nil, float64(d)))
		}
	}
	return nil
}

// hookSize counts characters without a copy.
func hookSize(args []ref.Val) ref.Val {
	if s, ok := args[0].(types.String); ok {
		return types.Int(utf8.RuneCountInString(string(s)))
	}
	return nil
}

// callCosts is a cost.ActualCostEstimator for calls on texts that CEL takes for constant work, or whose work it
// measures by copying the text.
type callCosts struct{}

// CallCost implements cost.ActualCostEstimator.
func (callCosts) CallCost(function, _ string, args []ref.Val, _ ref.Val) *uint64 {
	size := 0
	switch function {
	case "size", "int", "uint", "double", "bool", "string", "bytes", "timestamp", "duration":
		size = textSize(args[0])
	case "startsWith", "endsWith":
		if len(args) == 2 {
			size = textSize(args[1])
		}
	case "contains":
		if len(args) == 2 {
			size = textSize(args[0]) + textSize(args[1])
		}
	case operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals:
		if len(args) == 2 {
			size = min(textSize(args[0]), textSize(args[1]))
		}
	default:
		return nil
	}
	units := 1 + uint64(size)/10
	return &units
}

func textSize(v ref.Val) int {
	switch v := v.(type) {
	case types.String:
		return len(v)
	case types.Bytes:
		return len(v)
	case *number:
		return len(v.lit)
	}
	return 0
}

func stringArgs(args []ref.Val, n int) ([]string, bool) {
	if len(args) < n {
		return nil, false
	}
	out := make([]string, n)
	for i := range out {
		s, ok := args[i].(types.String)
		if !ok {
			return nil, false
		}
		out[i] = string(s)
	}
	return out, true
}

func hookReplace(args []ref.Val) ref.Val {
	s, ok := stringArgs(args, 3)
	if !ok {
		return nil
	}
	n := strings.Count(s[0], s[1])
	if len(args) == 4 {
		if limit, ok := args[3].(types.Int); ok && limit >= 0 {
			n = int(min(int64(n), int64(limit)))
		}
	}
	if len(s[0])+n*max(0, len(s[2])-len(s[1])) > ResultBytesMax {
		return tooLarge("the string", ResultBytesMax, "bytes")
	}
	return nil
}

func hookJoin(args []ref.Val) ref.Val {
	l, ok := args[0].(traits.Lister)
	if !ok {
		return nil
	}
	if sizeOf(l) > listItemsMax {
		return tooLarge("the list", listItemsMax, "elements")
	}
	sep := ""
	if len(args) == 2 {
		s, ok := args[1].(types.String)
		if !ok {
			return nil
		}
		sep = string(s)
	}
	total := 0
	for it := l.Iterator(); it.HasNext() == types.True; {
		s, ok := it.Next().(types.String)
		if !ok {
			return nil
		}
		if total += len(s) + len(sep); total > ResultBytesMax+len(sep) {
			return tooLarge("the string", ResultBytesMax, "bytes")
		}
	}
	return nil
}

func hookSplit(args []ref.Val) ref.Val {
	s, ok := stringArgs(args, 2)
	if !ok {
		return nil
	}
	n := strings.Count(s[0], s[1]) + 1
	if len(args) == 3 {
		if limit, ok := args[2].(types.Int); ok && limit >= 0 {
			n = int(min(int64(n), int64(limit)))
		}
	}
	if n > listItemsMax {
		return tooLarge("the list", listItemsMax, "elements")
	}
	return nil
}

// hookIndexOf and hookLastIndexOf do in linear time what the library does in quadratic time.
func hookIndexOf(args []ref.Val) ref.Val {
	s, ok := stringArgs(args, 2)
	if !ok || s[1] == "" {
		return nil
	}
	skipped := 0
	rest := s[0]
	if len(args) == 3 {
		off, ok := args[2].(types.Int)
		if !ok || off < 0 {
			return nil
		}
		for skipped < int(min(off, math.MaxInt32)) && rest != "" {
			_, n := utf8.DecodeRuneInString(rest)
			rest = rest[n:]
			skipped++
		}
	}
	i := strings.Index(rest, s[1])
	if i < 0 {
		return types.Int(-1)
	}
	return types.Int(skipped + utf8.RuneCountInString(rest[:i]))
}

func hookLastIndexOf(args []ref.Val) ref.Val {
	s, ok := stringArgs(args, 2)
	if !ok || s[1] == "" {
		return nil
	}
	head := s[0]
	if len(args) == 3 {
		off, ok := args[2].(types.Int)
		if !ok || off < 0 {
			return nil
		}
		if off >= types.Int(utf8.RuneCountInString(head)) {
			return types.Int(-1)
		}
		end := 0
		for range off {
			_, n := utf8.DecodeRuneInString(head[end:])
			end += n
		}
		head = head[:min(len(head), end+len(s[1]))]
	}
	i := strings.LastIndex(head, s[1])
	if i < 0 {
		return types.Int(-1)
	}
	return types.Int(utf8.RuneCountInString(head[:i]))
}

// charge adds to the cost of the evaluation before work is done. It ends the evaluation, by the panic that
// cel.Program recovers, if that passes the limit.
func charge(frame *interpreter.ExecutionFrame, units int) {
	costs := frame.CostTracker()
	if costs == nil {
		return
	}
	for ; units >= cost.ListCreateBaseCost; units -= cost.ListCreateBaseCost {
		costs.CreateList(0, nil) // the tracker has no plain "add"; this one adds ListCreateBaseCost
	}
	for range units {
		costs.Qualify(0) // adds 1
	}
}

// comparison is left == right, left != right, or left in right.
type comparison struct {
	id          int64
	left, right interpreter.InterpretableV2
	negate, in  bool
}

// ID implements interpreter.Interpretable.
func (c *comparison) ID() int64 { return c.id }

// Eval implements interpreter.Interpretable.
func (c *comparison) Eval(vars interpreter.Activation) ref.Val {
	return interpreter.EvalActivation(vars, c.Exec)
}

// Exec implements interpreter.InterpretableV2.
func (c *comparison) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	left := c.left.Exec(frame)
	if types.IsUnknownOrError(left) {
		return left
	}
	right := c.right.Exec(frame)
	if types.IsUnknownOrError(right) {
		return right
	}
	var res ref.Val
	if c.in {
		charge(frame, 1+weight(right, 0)/10)
		switch r := right.(type) {
		case traits.Lister:
			res = containsVal(r, left)
		case traits.Mapper:
			_, found := r.Find(plain(left))
			res = types.Bool(found)
		default:
			res = types.NewErr("no such overload")
		}
	} else {
		charge(frame, 1+min(weight(left, 0), weight(right, 0))/10)
		res = equalVals(left, right)
		if b, ok := res.(types.Bool); ok && c.negate {
			res = !b
		}
	}
	return types.LabelErrNode(c.id, res)
}

// weight is about how many bytes a comparison has to look at.
func weight(v ref.Val, depth int) int {
	switch v := v.(type) {
	case types.String:
		return len(v)
	case types.Bytes:
		return len(v)
	case *object:
		return len(v.raw)
	case *list:
		return len(v.raw)
	case *number:
		return len(v.lit)
	case traits.Lister:
		n := sizeOf(v)
		if depth > NestingMax || n > listItemsMax {
			return compareNodesMax
		}
		sum := 0
		for it := v.Iterator(); it.HasNext() == types.True && sum < compareNodesMax; {
			sum += 1 + weight(it.Next(), depth+1)
		}
		return sum
	case traits.Mapper:
		if depth > NestingMax {
			return compareNodesMax
		}
		sum := 0
		for it := v.Iterator(); it.HasNext() == types.True && sum < compareNodesMax; {
			k := it.Next()
			e, _ := v.Find(k)
			if e == nil {
				continue
			}
			sum += 1 + weight(k, depth+1) + weight(e, depth+1)
		}
		return sum
	}
	return 1
}

// equalVals compares two values exactly: numbers by value whatever their types, lists and maps by their content.
func equalVals(a, b ref.Val) ref.Val {
	e := equality{left: compareNodesMax}
	same := e.equal(a, b, 0)
	if e.left < 0 {
		return types.WrapErr(&EvalError{Code: CodeCost, Message: "the values are too large to be compared"})
	}
	return types.Bool(same)
}

func containsVal(l traits.Lister, v ref.Val) ref.Val {
	e := equality{left: compareNodesMax}
	for it := l.Iterator(); it.HasNext() == types.True; {
		if e.equal(it.Next(), v, 0) && e.left >= 0 {
			return types.True
		}
		if e.left < 0 {
			return types.WrapErr(&EvalError{Code: CodeCost, Message: "the list is too large to be searched"})
		}
	}
	return types.False
}

type equality struct{ left int } // visits left; below 0 the answer means nothing

func (e *equality) equal(a, b ref.Val, depth int) bool {
	if e.left--; e.left < 0 || depth > 2*NestingMax {
		e.left = -1
		return false
	}
	if isNumber(a) || isNumber(b) {
		c, ok := compareNumbers(a, b)
		return ok && c == 0
	}
	switch a := a.(type) {
	case traits.Lister:
		b, ok := b.(traits.Lister)
		if !ok || a.Size() != b.Size() {
			return false
		}
		x, y := a.Iterator(), b.Iterator()
		for x.HasNext() == types.True && y.HasNext() == types.True {
			if !e.equal(x.Next(), y.Next(), depth+1) {
				return false
			}
		}
		return true
	case traits.Mapper:
		b, ok := b.(traits.Mapper)
		if !ok || a.Size() != b.Size() {
			return false
		}
		for it := a.Iterator(); it.HasNext() == types.True; {
			k := it.Next()
			x, _ := a.Find(k)
			y, found := b.Find(k)
			if !found || x == nil || !e.equal(x, y, depth+1) {
				return false
			}
		}
		return true
	}
	if _, ok := b.(traits.Lister); ok {
		return false
	}
	if _, ok := b.(traits.Mapper); ok {
		return false
	}
	return types.Equal(a, b) == types.True
}

// match is arg.matches(pattern).
type match struct {
	id      int64
	arg     interpreter.InterpretableV2
	pattern *pattern
}

// ID implements interpreter.Interpretable.
func (m *match) ID() int64 { return m.id }

// Eval implements interpreter.Interpretable.
func (m *match) Eval(vars interpreter.Activation) ref.Val {
	return interpreter.EvalActivation(vars, m.Exec)
}

// Exec implements interpreter.InterpretableV2.
func (m *match) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	arg := m.arg.Exec(frame)
	if types.IsUnknownOrError(arg) {
		return arg
	}
	s, ok := arg.(types.String)
	if !ok {
		return types.NewErrWithNodeID(m.id, "no such overload")
	}
	work := m.pattern.work(len(s))
	if work > matchWorkMax {
		return types.LabelErrNode(m.id, types.WrapErr(&EvalError{Code: CodeTooLarge, Message: "the string is too long to be matched with the pattern"}))
	}
	charge(frame, 1+work/10)
	return types.Bool(m.pattern.re.MatchString(string(s)))
}

// mapLiteral is {...} in an expression.
type mapLiteral struct{ interpreter.InterpretableV2 }

// Eval implements interpreter.Interpretable.
func (m *mapLiteral) Eval(vars interpreter.Activation) ref.Val {
	return interpreter.EvalActivation(vars, m.Exec)
}

// Exec implements interpreter.InterpretableV2.
func (m *mapLiteral) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	v := m.InterpretableV2.Exec(frame)
	if mp, ok := v.(traits.Mapper); ok {
		return sortMap(mp)
	}
	return v
}
