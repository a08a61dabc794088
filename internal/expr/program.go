package expr

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

// Vars are the variables of an evaluation: JSON documents by name. Documents are expected to have passed CheckJSON
// once; one that isn't JSON at all is an EvalError. They aren't changed, and results may share their memory.
type Vars map[string]json.RawMessage

// Program is a compiled expression. It is safe for concurrent use.
type Program struct {
	env  *Env
	ast  *ast.AST
	prg  cel.Program
	want *Schema
	refs []string

	path     *path  // nil unless the expression is one
	constant []byte // the value of an expression that is a literal, nil otherwise
	have     *Schema
	fits     bool
}

// Refs lists the variables that the expression refers to, sorted. Only these are looked at. It isn't to be changed.
func (p *Program) Refs() []string { return p.refs }

// Fits says that the value is sure to fit the wanted schema, provided that the variables' documents fit theirs:
// there is nothing to find in a validation.
func (p *Program) Fits() bool { return p.fits }

// Eval returns the value as compact JSON, at most ResultBytesMax bytes. The error is an *EvalError.
func (p *Program) Eval(v Vars) (json.RawMessage, error) {
	var room [readerVars]json.RawMessage
	return p.run(v.docs(room[:0], p.refs), v)
}

// EvalDocs is Eval with the documents in the order of Refs. A nil one isn't there.
func (p *Program) EvalDocs(docs []json.RawMessage) (json.RawMessage, error) { return p.run(docs, nil) }

func (p *Program) run(docs []json.RawMessage, v Vars) (json.RawMessage, error) {
	switch {
	case p.constant != nil:
		return slices.Clone(p.constant), nil
	case p.path != nil:
		r := newReader(docs)
		out, ok := r.pass(nil, p.path, p.want)
		r.release()
		if ok {
			return out, nil
		}
	}
	s := scope{env: p.env, vars: v.or(docs, p.refs)}
	out, err := p.appendTo(nil, &s)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// docs appends the documents of refs.
func (v Vars) docs(dst []json.RawMessage, refs []string) []json.RawMessage {
	for _, name := range refs {
		dst = append(dst, v[name])
	}
	return dst
}

// or is v, or if that is nil the documents of refs by their names.
func (v Vars) or(docs []json.RawMessage, refs []string) Vars {
	if v == nil {
		v = make(Vars, len(refs))
		for i, name := range refs {
			if i < len(docs) && docs[i] != nil {
				v[name] = docs[i]
			}
		}
	}
	return v
}

// EvalBool returns the value of an expression that is true or false. The error is an *EvalError.
func (p *Program) EvalBool(v Vars) (bool, error) {
	s := scope{env: p.env, vars: v}
	out, err := p.eval(&s)
	if err != nil {
		return false, err
	}
	b, ok := out.(types.Bool)
	if !ok {
		return false, &EvalError{Code: CodeType, Line: 1, Column: 1, Message: "want true or false, got " + typeName(out.Type())}
	}
	return bool(b), nil
}

func (p *Program) appendTo(dst []byte, s *scope) (_ []byte, err *EvalError) {
	defer func() {
		if recover() != nil {
			err = errPanic()
		}
	}()
	v, err := p.eval(s)
	if err != nil {
		return nil, err
	}
	start := len(dst)
	dst, err = appendResult(dst, v, 0)
	if err != nil {
		return nil, err.at(1, 1)
	}
	if w := p.want; !w.allowsType(dst[start:]) {
		return nil, &EvalError{Code: CodeType, Line: 1, Column: 1, Message: "want " + w.String() + ", got " + typeOf(dst[start:]).String()}
	}
	return dst, nil
}

func (p *Program) eval(s *scope) (v ref.Val, err *EvalError) {
	defer func() {
		if recover() != nil {
			v, err = nil, errPanic()
		}
	}()
	v, _, everr := p.prg.Eval(s)
	if everr != nil {
		return nil, p.explain(everr)
	}
	return v, nil
}

func errPanic() *EvalError {
	return &EvalError{Code: CodeInternal, Message: "the evaluation broke off: a bug in the evaluator; please report it"}
}

// at returns a copy of e with a place, unless it has one.
func (e *EvalError) at(line, col int) *EvalError {
	c := *e
	if c.Line == 0 {
		c.Line, c.Column = line, col
	}
	return &c
}

// explain makes an EvalError of an error of the evaluator. CEL's own texts may quote values of the documents, so
// only what they begin with is used.
func (p *Program) explain(err error) *EvalError {
	var x ast.Expr
	line, col := 1, 1
	var cerr *types.Err
	if errors.As(err, &cerr) && cerr.NodeID() != 0 {
		line, col = position(p.ast, cerr.NodeID())
		x = find(p.ast.Expr(), cerr.NodeID())
	}
	var own *EvalError
	if errors.As(err, &own) {
		return own.at(line, col)
	}
	msg := err.Error()
	has := func(s string) bool { return strings.HasPrefix(msg, s) }
	out := &EvalError{Line: line, Column: col}
	switch {
	case has("no such key"):
		out.Code, out.Message = CodeNoField, "no such field"
		if path := missingPath(x, msg); path != "" {
			out.Message = "there is no " + path + "; test with has() if it may be missing"
		}
	case has("index out of bounds"), has("index out of range"), has("invalid substring range"):
		out.Code, out.Message = CodeIndex, "no such index in the list or string"
	case has("no such attribute"):
		out.Code, out.Message = CodeNoVariable, "a variable isn't there"
	case has("division by zero"), has("modulus by zero"):
		out.Code, out.Message = CodeDivision, "division by zero"
	case strings.Contains(msg, "overflow"):
		out.Code, out.Message = CodeOverflow, "the result doesn't fit into 64 bits"
	case has("operation cancelled: actual cost limit"):
		out.Code, out.Message = CodeCost, fmt.Sprintf("the evaluation takes too much work (limit %d)", CostMax)
	case has("no such overload"), has("invalid qualifier type"), has("got '"), has("unsupported index"):
		out.Code, out.Message = CodeType, what(x)+"an operand has the wrong type"
	case has("internal error") && strings.Contains(msg, "unhashable"):
		out.Code, out.Message = CodeType, "a key can be a string, an integer or a boolean"
	case has("internal error"):
		out.Code, out.Message = CodeInternal, errPanic().Message
	case x != nil && x.Kind() == ast.CallKind:
		out.Code, out.Message = CodeConversion, what(x)+"the value can't be used there"
	default:
		out.Code, out.Message = CodeEvaluation, "the evaluation failed"
	}
	return out
}

// what names the function or operator that failed.
func what(x ast.Expr) string {
	if x == nil || x.Kind() != ast.CallKind {
		return ""
	}
	name := x.AsCall().FunctionName()
	switch op, ok := operators.FindReverse(name); {
	case ok && op != "":
		name = op
	case name == operators.Conditional:
		name = "? :"
	case name == operators.Index:
		name = "[]"
	default:
		name += "()"
	}
	return name + ": "
}

// missingPath prints the fields that lead to the key which CEL says is missing. It quotes the source only.
func missingPath(x ast.Expr, msg string) string {
	key, _ := strings.CutPrefix(msg, "no such key: ")
	for x != nil && x.Kind() == ast.SelectKind {
		if sel := x.AsSelect(); sel.FieldName() == key {
			return pathOf(x)
		}
		x = x.AsSelect().Operand()
	}
	return ""
}

func pathOf(x ast.Expr) string {
	switch x.Kind() {
	case ast.IdentKind:
		return strings.TrimPrefix(x.AsIdent(), ".")
	case ast.SelectKind:
		return pathOf(x.AsSelect().Operand()) + keySegment([]byte(x.AsSelect().FieldName()))
	}
	return "(...)"
}

func find(root ast.Expr, id int64) (found ast.Expr) {
	ast.PostOrderVisit(root, ast.NewExprVisitor(func(x ast.Expr) {
		if x.ID() == id {
			found = x
		}
	}))
	return found
}

// scope is a cel.Activation over Vars. It reads a document when it is first asked for, once.
type scope struct {
	env  *Env
	vars Vars
	read []bound
	one  [2]bound // read's memory in the usual case
}

type bound struct {
	name string
	val  ref.Val
}

// ResolveName implements cel.Activation.
func (s *scope) ResolveName(name string) (any, bool) {
	for _, b := range s.read {
		if b.name == name {
			return b.val, true
		}
	}
	schema, ok := s.env.vars[name]
	if !ok {
		return nil, false
	}
	if s.read == nil {
		s.read = s.one[:0]
	}
	v := s.load(name, schema)
	s.read = append(s.read, bound{name, v})
	return v, true
}

// Parent implements cel.Activation.
func (s *scope) Parent() cel.Activation { return nil }

func (s *scope) load(name string, schema *Schema) ref.Val {
	doc, ok := s.vars[name]
	if !ok {
		return types.WrapErr(&EvalError{Code: CodeNoVariable, Message: name + " isn't there"})
	}
	if err := scan(doc, false); err != nil {
		return types.WrapErr(&EvalError{Code: CodeBadDocument, Message: "the document of " + name + " can't be read: " + err.Error()})
	}
	if !utf8.Valid(doc) {
		return types.WrapErr(&EvalError{Code: CodeBadDocument, Message: "the document of " + name + " isn't UTF-8"})
	}
	i := space(doc, 0)
	return valueOf(doc[i:skip(doc, i)], schema)
}
