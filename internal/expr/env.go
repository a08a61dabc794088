// Package expr is CEL over JSON Schemas: it compiles the expressions of a definition against the schemas of its
// variables, and evaluates them over JSON documents without changing a digit. It is pure: no clock, no chance,
// no input or output; the same expression over the same documents gives the same bytes or the same error.
//
// # Types
//
// A schema's object becomes an object with typed fields (a field that the schema doesn't list is a compile
// error), array a list, string a string, boolean a bool, integer an int, number a double. Null in a list of types
// makes a nullable. Everything else (no schema, anyOf, oneOf, several types) is dyn: anything goes at compile time,
// and what doesn't fit is an EvalError.
//
// # Numbers
//
// A number that is only passed on keeps its digits: by path, inside objects and lists, in list and map literals,
// through conditions, dyn() and string(). So 12345678901234567890123, 1.0 and 1.50 arrive as they were written. (-0
// as an integer of its own may become 0.) Numbers are never rounded on the way into arithmetic: an integer beyond 64
// bits, or a decimal with more digits than a double tells apart, is an EvalError with CodeNumber as soon as
// something computes with it. Integer arithmetic that overflows is an error; doubles compute as doubles do, so money
// belongs in integers. == and in compare an int with a double by their exact values.
//
// # Functions
//
// CEL's standard functions and macros, and charAt, indexOf, join, lastIndexOf, lowerAscii, replace, reverse, split,
// strings.quote, substring, trim, upperAscii. There is no now(); time zones by name are left out, since their rules differ
// between machines. The pattern of matches() is a literal. Field names that aren't identifiers are written in
// backticks: input.`order-id`.
package expr

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/ast"
	celenv "cel.dev/cel-go/common/env"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/ext"
)

// Var is a variable that expressions may use.
type Var struct {
	// Name is an identifier that is neither one of CEL's reserved words nor the name of one of its types.
	Name string
	// Schema of its documents; nil means any.
	Schema *Schema
}

// Env is a set of variables to compile expressions against. It is safe for concurrent use.
type Env struct {
	vars  map[string]*Schema
	names []string // sorted
	types *provider
	env   *cel.Env
	base  *baseEnv
	mu    sync.Mutex // one check at a time, for types.missed
}

// base is what all environments share: building it takes milliseconds.
var base = sync.OnceValues(func() (*baseEnv, error) {
	var zones []*celenv.Overload
	for _, id := range zoneOverloads {
		zones = append(zones, &celenv.Overload{ID: id})
	}
	exclude := make([]*celenv.Function, 0, len(zoneFunctions))
	for _, f := range zoneFunctions {
		exclude = append(exclude, celenv.NewFunction(f, zones...))
	}
	env, err := cel.NewCustomEnv(
		cel.StdLib(cel.StdLibSubset(&celenv.LibrarySubset{ExcludeFunctions: exclude})),
		ext.Strings(ext.StringsVersion(5)),
		cel.EnableIdentifierEscapeSyntax(),
		cel.DefaultUTCTimeZone(true),
		cel.ParserExpressionSizeLimit(SourceBytesMax),
		cel.ParserRecursionLimit(parseDepthMax),
		cel.ParserErrorRecoveryLimit(parseErrorsMax),
		cel.ExpressionNodeLimit(astNodesMax),
		cel.ASTValidators(cel.ValidateComprehensionNestingLimit(comprehensionsMax)),
	)
	if err != nil {
		return nil, err
	}
	p, err := newPlanner(env)
	if err != nil {
		return nil, err
	}
	b := &baseEnv{env, p, map[string]bool{}}
	for name := range env.Functions() { // into a map: order doesn't matter
		if ns, _, ok := strings.Cut(name, "."); ok {
			b.namespaces[ns] = true
		}
	}
	return b, nil
})

type baseEnv struct {
	env        *cel.Env
	planner    *planner
	namespaces map[string]bool // strings in strings.quote
}

var zoneFunctions = []string{
	overloads.TimeGetFullYear, overloads.TimeGetMonth, overloads.TimeGetDayOfYear, overloads.TimeGetDayOfMonth, overloads.TimeGetDate,
	overloads.TimeGetDayOfWeek, overloads.TimeGetHours, overloads.TimeGetMinutes, overloads.TimeGetSeconds, overloads.TimeGetMilliseconds,
}

var zoneOverloads = []string{
	overloads.TimestampToYearWithTz, overloads.TimestampToMonthWithTz, overloads.TimestampToDayOfYearWithTz,
	overloads.TimestampToDayOfMonthZeroBasedWithTz, overloads.TimestampToDayOfMonthOneBasedWithTz, overloads.TimestampToDayOfWeekWithTz,
	overloads.TimestampToHoursWithTz, overloads.TimestampToMinutesWithTz, overloads.TimestampToSecondsWithTz, overloads.TimestampToMillisecondsWithTz,
}

// refusedFunctions are declared by the libraries but not to be used, with what to do instead.
var refusedFunctions = map[string]string{
	"format": "format isn't available; put strings together with + and string(...)",
}

// reserved are words that can't be variables: CEL's reserved words, and the names of its types.
var reserved = map[string]bool{
	"as": true, "break": true, "const": true, "continue": true, "else": true, "false": true, "for": true, "function": true,
	"if": true, "import": true, "in": true, "let": true, "loop": true, "namespace": true, "null": true, "package": true,
	"return": true, "true": true, "var": true, "void": true, "while": true,
	"bool": true, "bytes": true, "double": true, "dyn": true, "google": true, "int": true, "list": true, "map": true,
	"null_type": true, "string": true, "type": true, "uint": true,
}

// NewEnv makes an environment. It refuses names that aren't identifiers, are reserved in CEL, or come twice, and
// more than VarsMax variables.
func NewEnv(vars ...Var) (*Env, error) {
	if len(vars) > VarsMax {
		return nil, fmt.Errorf("%d variables, the limit is %d", len(vars), VarsMax)
	}
	b, err := base()
	if err != nil {
		return nil, fmt.Errorf("CEL: %w", err)
	}
	e := &Env{vars: make(map[string]*Schema, len(vars)), base: b}
	for _, v := range vars {
		switch {
		case !isWord(v.Name):
			return nil, fmt.Errorf("variable %s: want a name of letters, digits and _", shortKey(v.Name))
		case reserved[v.Name]:
			return nil, fmt.Errorf("variable %s: the word is reserved in CEL; choose another name", v.Name)
		}
		if _, twice := e.vars[v.Name]; twice {
			return nil, fmt.Errorf("variable %s: it comes twice", v.Name)
		}
		e.vars[v.Name] = v.Schema
		e.names = append(e.names, v.Name)
	}
	slices.Sort(e.names)
	e.types = newProvider(b.env.CELTypeProvider(), vars)
	opts := []cel.EnvOption{cel.CustomTypeProvider(e.types)}
	for _, n := range e.names {
		opts = append(opts, cel.Variable(n, e.types.celType(e.vars[n], 0)))
	}
	if e.env, err = b.env.Extend(opts...); err != nil {
		return nil, fmt.Errorf("CEL: %w", err)
	}
	return e, nil
}

// Compile checks an expression and makes a program of it. want is the schema its value is for, nil if any JSON will
// do; what the types leave open is checked when it is evaluated. The error is an *Error.
func (e *Env) Compile(src string, want *Schema) (*Program, error) {
	p, err := e.compile(src, want)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (e *Env) compile(src string, want *Schema) (p *Program, err *Error) {
	defer func() {
		if r := recover(); r != nil {
			p, err = nil, &Error{CodeInternal, 1, 1, "the expression can't be compiled: a bug in the compiler; please report it"}
		}
	}()
	if want == nil {
		want = Any
	}
	switch {
	case len(src) > SourceBytesMax:
		return nil, &Error{CodeTooLong, 1, 1, fmt.Sprintf("the expression has %d bytes, the limit is %d", len(src), SourceBytesMax)}
	case strings.TrimSpace(src) == "":
		return nil, &Error{CodeSyntax, 1, 1, "the expression is empty"}
	case !utf8.ValidString(src):
		return nil, &Error{CodeSyntax, 1, 1, "the expression isn't UTF-8"}
	}
	parsed, issues := e.env.Parse(src)
	if issues.Err() != nil {
		return nil, e.explain(src, issues, nil)
	}
	if err := e.unknown(parsed.NativeRep()); err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.types.missed = nil
	checked, issues := e.env.Check(parsed)
	missed := e.types.missed
	e.mu.Unlock()
	if issues.Err() != nil {
		return nil, e.explain(src, issues, missed)
	}
	root := checked.NativeRep()
	c := checker{Env: e, ast: root}
	if err := c.walk(root.Expr()); err != nil {
		return nil, err
	}
	if err := c.fits(root.Expr(), want, 0); err != nil {
		return nil, err
	}
	est, cerr := e.env.EstimateCost(checked, estimator{e.vars})
	if cerr != nil {
		return nil, &Error{CodeCost, 1, 1, "the cost of the expression can't be estimated"}
	}
	if est.Max > CostEstimateMax {
		return nil, &Error{CodeCost, 1, 1, "the expression may take too much work: loop over fewer lists at once, or bound them with maxItems and maxLength in the schema"}
	}
	prg, perr := e.env.PlanProgram(root, cel.CostTracking(callCosts{}), cel.CostLimit(CostMax), cel.CustomDecoratorV2(e.base.planner.decorate))
	if perr != nil {
		return nil, &Error{CodeInternal, 1, 1, "the expression can't be planned"}
	}
	p = &Program{env: e, ast: root, prg: prg, want: want.typing(), refs: e.refs(root)}
	p.shorten(want)
	return p, nil
}

// shorten finds out whether an evaluation needs the evaluator at all.
func (p *Program) shorten(want *Schema) {
	if variable, fields, ok := p.env.plainPath(p.ast); ok && len(p.refs) == 1 && p.refs[0] == variable {
		p.path = &path{fields: fields}
		p.have = p.env.vars[variable]
		for _, f := range fields {
			p.have = p.have.field(f)
		}
	} else if p.ast.Expr().Kind() == ast.LiteralKind {
		out, err := p.appendTo(nil, &scope{env: p.env})
		if err != nil {
			return
		}
		p.constant = out
		p.have = &Schema{types: typeOf(out), maxProps: -1, maxItems: -1, maxLength: -1}
		p.have.addEnum(out)
		if p.have.types&(typeInteger|typeNumber) != 0 && len(out) <= numberDigitsMax {
			d := parseDecimal(out) // of its few digits
			p.have.minimum, p.have.maximum = &d, &d
		}
	} else {
		return
	}
	p.fits = want.covers(p.have)
}

// unknown finds the first name that is neither a variable, a loop's variable, a type nor a function. The checker
// would find it too, but spends some 50 us on suggestions for each.
func (e *Env) unknown(a *ast.AST) (first *Error) {
	local := map[string]bool{}
	ast.PostOrderVisit(a.Expr(), ast.NewExprVisitor(func(x ast.Expr) {
		if x.Kind() == ast.ComprehensionKind {
			c := x.AsComprehension()
			local[c.IterVar()], local[c.IterVar2()], local[c.AccuVar()] = true, true, true
		}
	}))
	found := func(x ast.Expr, format, name, hint string) {
		line, col := position(a, x.ID())
		if first == nil || line < first.Line || line == first.Line && col < first.Column {
			first = &Error{CodeUnknownName, line, col, fmt.Sprintf(format, shortKey(name)) + hint}
		}
	}
	ast.PostOrderVisit(a.Expr(), ast.NewExprVisitor(func(x ast.Expr) {
		switch x.Kind() {
		case ast.IdentKind:
			name := strings.TrimPrefix(x.AsIdent(), ".")
			if _, ok := e.vars[name]; ok || local[name] || e.base.namespaces[name] {
				return
			}
			if _, ok := e.types.FindIdent(name); !ok {
				found(x, "unknown name %s", name, hint(name, e.names))
			}
		case ast.CallKind:
			call := x.AsCall()
			name := call.FunctionName()
			if e.env.HasFunction(name) {
				return
			}
			if call.IsMemberFunction() && call.Target().Kind() == ast.IdentKind && e.env.HasFunction(call.Target().AsIdent()+"."+name) {
				return
			}
			found(x, "there is no function %s", name, "")
		}
	}))
	return first
}

// explain makes an Error of the first of CEL's issues.
func (e *Env) explain(src string, issues *cel.Issues, misses []missed) *Error {
	errs := slices.Clone(issues.Errors())
	if len(errs) == 0 {
		return &Error{CodeSyntax, 1, 1, "the expression doesn't compile"}
	}
	slices.SortStableFunc(errs, func(a, b *common.Error) int {
		if a.Location.Line() != b.Location.Line() {
			return a.Location.Line() - b.Location.Line()
		}
		return a.Location.Column() - b.Location.Column()
	})
	first := errs[0]
	out := &Error{Line: max(1, first.Location.Line()), Column: max(1, first.Location.Column()+1)}
	rest := after(src, out.Line, out.Column)
	out.Code, out.Message = e.message(first.Message, rest, misses)
	if out.Code == CodeUnknownField { // CEL points at the dot, or at has(
		_, name, _ := strings.Cut(first.Message, "'")
		line, _, _ := strings.Cut(rest, "\n")
		if i := strings.Index(line, strings.TrimSuffix(name, "'")); i > 0 {
			out.Column += utf8.RuneCountInString(line[:i])
		}
	}
	if n := len(errs) - 1; n > 0 {
		out.Message += fmt.Sprintf(" (and %d more)", n)
	}
	return out
}

// after is the source from a place on.
func after(src string, line, col int) string {
	for ; line > 1; line-- {
		_, src, _ = strings.Cut(src, "\n")
	}
	for i := range src {
		if col--; col == 0 {
			return src[i:]
		}
	}
	return ""
}

func (e *Env) message(msg, rest string, misses []missed) (Code, string) {
	quoted := func(prefix string) (string, bool) {
		rest, ok := strings.CutPrefix(msg, prefix+"'")
		if !ok {
			return "", false
		}
		name, _, ok := strings.Cut(rest, "'")
		return name, ok
	}
	if name, ok := quoted("undefined field "); ok {
		for _, m := range misses {
			if m.field == name {
				where := strings.TrimPrefix(m.typeName, objectPrefix)
				return CodeUnknownField, fmt.Sprintf("%s has no field %s%s", where, shortKey(name), hint(name, e.types.schemas[m.typeName].propNames))
			}
		}
		return CodeUnknownField, "no such field: " + shortKey(name)
	}
	if name, ok := quoted("undeclared reference to "); ok {
		if rest = strings.TrimSpace(strings.TrimPrefix(rest, name)); strings.HasPrefix(rest, "(") {
			return CodeUnknownName, "there is no function " + shortKey(name)
		}
		return CodeUnknownName, "unknown name " + shortKey(name) + hint(name, e.names)
	}
	if name, ok := quoted("found no matching overload for "); ok {
		_, args, _ := strings.Cut(msg, " applied to '")
		what := "function " + name
		if op, ok := operators.FindReverse(name); ok && op != "" {
			what = "operator " + op
		} else if name == operators.Conditional {
			what = "operator ? :"
		} else if name == operators.Index {
			what = "operator []"
		}
		return CodeType, shortMessage(fmt.Sprintf("no %s for %s", what, plainNames(strings.TrimSuffix(args, "'"))))
	}
	switch {
	case strings.HasPrefix(msg, "Syntax error:"):
		msg, _, _ = strings.Cut(msg, " expecting {")
		return CodeSyntax, shortMessage("syntax error:" + strings.ReplaceAll(strings.TrimPrefix(msg, "Syntax error:"), "'<EOF>'", "end"))
	case strings.HasPrefix(msg, "invalid "), strings.HasPrefix(msg, "unsupported "):
		return CodeSyntax, shortMessage(msg)
	case strings.Contains(msg, "recursion"), strings.Contains(msg, "limit"), strings.Contains(msg, "depth"), strings.Contains(msg, "exceeds"):
		return CodeTooLong, shortMessage("the expression is too complex: " + msg)
	case strings.Contains(msg, "type"):
		return CodeType, shortMessage(plainNames(msg))
	}
	return CodeSyntax, shortMessage(plainNames(msg))
}

// checker looks at a checked expression for what CEL lets pass.
type checker struct {
	*Env
	ast *ast.AST
	// guarded: within a condition, which may have tested for null
	guarded bool
}

func (c checker) at(x ast.Expr, code Code, format string, args ...any) *Error {
	line, col := position(c.ast, x.ID())
	return &Error{code, line, col, shortMessage(fmt.Sprintf(format, args...))}
}

func position(a *ast.AST, id int64) (line, col int) {
	loc := a.SourceInfo().GetStartLocation(id)
	return max(1, loc.Line()), max(1, loc.Column()+1)
}

// walk finds refused functions and patterns, and keys that no map can have.
func (c checker) walk(root ast.Expr) (err *Error) {
	ast.PostOrderVisit(root, ast.NewExprVisitor(func(x ast.Expr) {
		if err != nil {
			return
		}
		if x.Kind() == ast.MapKind {
			for _, entry := range x.AsMap().Entries() {
				key := entry.AsMapEntry().Key()
				switch t := c.ast.GetType(key.ID()); t.Kind() {
				case types.StringKind, types.IntKind, types.UintKind, types.BoolKind, types.DynKind, types.TypeParamKind:
				default:
					err = c.at(key, CodeType, "a key can be a string, an integer or a boolean, not %s", c.types.show(t))
				}
			}
		}
		if x.Kind() != ast.CallKind {
			return
		}
		call := x.AsCall()
		if instead := refusedFunctions[call.FunctionName()]; instead != "" {
			err = c.at(x, CodeUnknownName, "%s", instead)
			return
		}
		if call.FunctionName() != overloads.Matches {
			return
		}
		args := call.Args()
		p := args[len(args)-1]
		src, ok := "", false
		if p.Kind() == ast.LiteralKind {
			var s types.String
			s, ok = p.AsLiteral().(types.String)
			src = string(s)
		}
		if !ok {
			err = c.at(p, CodePattern, "the pattern of matches() must be a string literal")
			return
		}
		if _, perr := parsePattern(src); perr != nil {
			err = c.at(p, CodePattern, "%s", perr)
		}
	}))
	return err
}

// fits checks an expression against a wanted schema, looking into literals and conditions, since the types of
// map literals don't say which keys they have.
func (c checker) fits(x ast.Expr, want *Schema, depth int) *Error {
	w := want.typing()
	switch {
	case depth > typeDepthMax:
		return nil
	case x.Kind() == ast.CallKind && x.AsCall().FunctionName() == operators.Conditional:
		args := x.AsCall().Args()
		c.guarded = true
		if err := c.fits(args[1], want, depth+1); err != nil {
			return err
		}
		return c.fits(args[2], want, depth+1)
	case x.Kind() == ast.ListKind && (w.kind == kindList || w.kind == kindAny):
		if why := c.types.fits(types.NewListType(types.DynType), w, depth); why != "" {
			return c.at(x, CodeType, "%s", why)
		}
		for _, elem := range x.AsList().Elements() {
			if err := c.fits(elem, w.element(), depth+1); err != nil {
				return err
			}
		}
		return nil
	case x.Kind() == ast.MapKind && (w.kind == kindObject || w.kind == kindMap || w.kind == kindAny):
		if why := c.types.fits(types.NewMapType(types.StringType, types.DynType), w, depth); why != "" {
			return c.at(x, CodeType, "%s", why)
		}
		return c.fitsMap(x, w, depth)
	}
	t := c.ast.GetType(x.ID())
	if c.guarded && t.Kind() != types.NullTypeKind && t.IsAssignableType(types.NullType) {
		t = withoutNull(t)
	}
	if why := c.types.fits(t, w, depth); why != "" {
		return c.at(x, CodeType, "%s", why)
	}
	return nil
}

func withoutNull(t *types.Type) *types.Type {
	switch t.Kind() {
	case types.BoolKind:
		return types.BoolType
	case types.IntKind:
		return types.IntType
	case types.DoubleKind:
		return types.DoubleType
	case types.StringKind:
		return types.StringType
	}
	return t
}

func (c checker) fitsMap(x ast.Expr, w *Schema, depth int) *Error {
	given := map[string]bool{}
	constant := true
	for _, entry := range x.AsMap().Entries() {
		m := entry.AsMapEntry()
		if kt := c.ast.GetType(m.Key().ID()); kt.Kind() != types.StringKind && kt.Kind() != types.DynKind {
			return c.at(m.Key(), CodeType, "the keys of a JSON object are strings; use string(key)")
		}
		var key types.String
		ok := m.Key().Kind() == ast.LiteralKind
		if ok {
			key, ok = m.Key().AsLiteral().(types.String)
		}
		if !ok {
			constant = false
			if err := c.fits(m.Value(), Any, depth+1); err != nil {
				return err
			}
			continue
		}
		given[string(key)] = true
		f := w.property(string(key))
		if f == nil {
			return c.at(m.Key(), CodeUnknownField, "no field %s is wanted%s", shortKey(string(key)), hint(string(key), w.propNames))
		}
		if err := c.fits(m.Value(), f, depth+1); err != nil {
			return err
		}
	}
	if constant {
		for _, r := range w.required {
			if !given[r] {
				return c.at(x, CodeMissingField, "the field %s is required, but missing", shortKey(r))
			}
		}
	}
	return nil
}

// refs lists the variables that an expression refers to, sorted.
func (e *Env) refs(a *ast.AST) []string {
	var out []string
	for _, r := range a.ReferenceMap() { // sorted below
		name := strings.TrimPrefix(r.Name, ".")
		if _, ok := e.vars[name]; ok && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
