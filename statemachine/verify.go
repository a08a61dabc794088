package statemachine

import (
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sagad/sagad/internal/expr"
	"github.com/sagad/sagad/internal/retry"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

var (
	definitionName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)
	activityName   = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*(\.[a-z0-9][a-z0-9_-]*)*$`)
	stepName       = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)
)

// reserved names would clash with variables or words of CEL.
var reserved = map[string]bool{
	"input": true, returnStep: true, "true": true, "false": true, "null": true, "in": true, "as": true, "break": true,
	"const": true, "continue": true, "else": true, "for": true, "function": true, "if": true, "import": true, "let": true,
	"loop": true, "package": true, "namespace": true, "void": true, "var": true, "while": true, "int": true, "uint": true,
	"double": true, "bool": true, "string": true, "bytes": true, "list": true, "map": true, "type": true, "dyn": true,
	"size": true, "has": true, "duration": true, "timestamp": true, "null_type": true, "google": true,
}

// verifier refuses whatever can be known to be wrong, and builds the machine on the way.
type verifier struct {
	def      *sagadv1.Definition
	m        *Machine
	problems []*sagadv1.Problem

	activities map[string]*activity
	names      map[string]bool
	// places are all names of the definition, and what they name.
	places map[string]nodeKind
}

type activity struct {
	in, out *expr.Schema
	used    bool
	// first is the first step that calls it, and undone whether that one is compensatable.
	first  string
	undone bool
}

// scope is what is known at a place of the definition.
type scope struct {
	// vars may be read here, by name.
	vars []expr.Var
	// before are the steps settled here.
	before []int
	// pivot says whether the pivot lies on the way here: on none, some or all ways.
	pivot    onWay
	parallel bool
}

type onWay uint8

const (
	onNone onWay = iota
	onSome
	onAll
)

func (v *verifier) problem(step, field, rule, message, mend string) {
	v.add(&sagadv1.Problem{Step: step, Field: field, Rule: rule, Message: message, Mend: mend})
}

// add notes a problem, unless there are enough of them.
func (v *verifier) add(p *sagadv1.Problem) {
	p.Definition, p.Step, p.Field = clip(v.def.GetName()), clip(p.Step), clip(p.Field)
	p.Message = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' ' // it quotes the expression
		}
		return r
	}, p.Message)
	switch n := len(v.problems); {
	case n < problemsMax:
		v.problems = append(v.problems, p)
	case n == problemsMax:
		v.problems = append(v.problems, &sagadv1.Problem{
			Definition: p.Definition, Rule: "limit", Message: fmt.Sprintf("there are more than %d problems; the rest isn't listed", problemsMax),
			Mend: "mend these first, and verify again",
		})
	}
}

// enough says that looking further is of no use.
func (v *verifier) enough() bool { return len(v.problems) > problemsMax }

func (v *verifier) expression(step, field, source string, err *expr.Error) {
	p := &sagadv1.Problem{
		Step: step, Field: field, Expression: source, Line: int32(err.Line), Column: int32(err.Column),
		Rule: "expression", Message: err.Message, Mend: "correct the expression; it may read input and the outputs of steps that come before it",
	}
	if len(source) > expr.SourceBytesMax {
		p.Expression = clip(source)
	}
	switch err.Code {
	case expr.CodeMissingField:
		if p.Mend = "add the field"; err.Line > 0 {
			p.Mend = "add the field to the expression"
		}
	case expr.CodeUnknownField:
		if p.Mend = "remove the field, or correct its name or the schema"; err.Line == 0 {
			p.Expression = ""
		}
	case expr.CodeCost, expr.CodeTooLong:
		p.Mend = "make the expression smaller, or let an activity do the work"
	case expr.CodeUnknownName:
		v.unreadable(p, word(source, err.Line, err.Column))
	}
	v.add(p)
}

// unreadable says why a step's output can't be read at a place where its name is unknown.
func (v *verifier) unreadable(p *sagadv1.Problem, name string) {
	kind, ok := v.places[name]
	if !ok {
		return
	}
	_, seen := v.m.byName[name]
	p.Mend = "read the input, or the output of a step that is sure to have run before this place"
	switch {
	case kind != stepNode:
		p.Message = fmt.Sprintf("%s isn't a step, so it has no output", name)
	case name == p.Step:
		p.Message = fmt.Sprintf("%s can't read its own output", name)
	case seen:
		p.Message = fmt.Sprintf("the output of %s may not be there: %s is in another branch of a parallel, or in an arm of an if that may not be taken", name, name)
	default:
		p.Message = fmt.Sprintf("the output of %s isn't there yet: %s comes later", name, name)
	}
}

// word is the identifier at a place of an expression.
func word(source string, line, column int) string {
	lines := strings.Split(source, "\n")
	if line < 1 || line > len(lines) {
		return ""
	}
	r := []rune(lines[line-1])
	if column < 1 || column > len(r) {
		return ""
	}
	r = r[column-1:]
	n := slices.IndexFunc(r, func(c rune) bool {
		return c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9')
	})
	if n < 0 {
		n = len(r)
	}
	return string(r[:n])
}

func (v *verifier) definition() {
	d := v.def
	if n := proto.Size(d); n > definitionMax {
		v.problem("", "", "definition-size", fmt.Sprintf("the definition has %d bytes; the limit is %d", n, definitionMax), "split it, or make the schemas smaller")
		return
	}
	if !v.size() {
		return
	}
	if !definitionName.MatchString(d.GetName()) {
		v.problem("", "name", "name-legal", fmt.Sprintf("definition name %q isn't legal", clip(d.GetName())),
			"use lower-case letters, digits, '-' and '_', starting with a letter or digit, 63 at most")
	}
	if len(d.GetDescription()) > descriptionMax {
		v.problem("", "description", "definition-size", fmt.Sprintf("the description has %d bytes; the limit is %d", len(d.GetDescription()), descriptionMax), "shorten it")
	}
	if path := unknownField(d.ProtoReflect(), ""); path != "" {
		v.problem("", clip(path), "field-unknown", "it has fields that this version doesn't know", "register it with a release that knows them, or remove them")
		return
	}
	if path := badText(d.ProtoReflect(), ""); path != "" {
		v.problem("", clip(path), "text", "the text isn't UTF-8", "write it in UTF-8")
		return
	}
	v.m.input = v.schema("", "input_schema", d.GetInputSchema())
	v.m.output = v.schema("", "output_schema", d.GetOutputSchema())
	v.m.deadline = v.duration("", "deadline", d.GetDeadline(), 0, deadlineMin, deadlineMax)
	v.m.undoMax = undoDefault
	if n := d.GetMaxParallelCompensations(); n < 0 || n > parallelUndoMax {
		v.problem("", "max_parallel_compensations", "limit", fmt.Sprintf("%d compensations at a time is out of range", n), fmt.Sprintf("use 1 to %d, or leave it out for %d", parallelUndoMax, undoDefault))
	} else if n > 0 {
		v.m.undoMax = int(n)
	}
	v.contracts()
	v.names = map[string]bool{}
	if len(d.GetBody()) == 0 {
		v.problem("", "body", "body-empty", "the definition has no steps", "add at least one step")
	}
	sc := scope{vars: []expr.Var{{Name: "input", Schema: v.m.input}}}
	v.m.body = v.sequence(d.GetBody(), &sc, true)
	for _, a := range d.GetActivities() {
		if act := v.activities[a.GetName()]; act != nil && !act.used {
			v.problem("", "activities", "activity-unused", fmt.Sprintf("activity %q is declared but no step calls it", clip(a.GetName())), "remove it, or call it")
		}
	}
	if len(v.m.steps) == 0 && len(d.GetBody()) > 0 && len(v.problems) == 0 {
		v.problem("", "body", "body-empty", "the definition has no steps", "add at least one step")
	}
	if len(v.problems) > 0 {
		return
	}
	hash, err := Hash(d)
	if err != nil {
		v.problem("", "", "canonical", err.Error(), "send a definition made for this version, with schemas that are JSON")
	}
	v.m.hash, v.m.hashText = hash, hex.EncodeToString(hash[:])
}

// size looks how large the definition is before anything costly is done with it, and learns its names.
func (v *verifier) size() bool {
	v.places = map[string]nodeKind{}
	steps, nodes, depthMax := 0, 0, 0
	var walk func(body []*sagadv1.Node, depth int)
	walk = func(body []*sagadv1.Node, depth int) {
		if depthMax = max(depthMax, depth); depth > nestingMax {
			return
		}
		for _, n := range body {
			switch k := n.GetKind().(type) {
			case *sagadv1.Node_Step:
				steps++
				v.places[k.Step.GetName()] = stepNode
			case *sagadv1.Node_Parallel:
				nodes += 1 + len(k.Parallel.GetBranches())
				v.places[k.Parallel.GetName()] = parallelNode
				for _, b := range k.Parallel.GetBranches() {
					walk(b.GetBody(), depth+1)
				}
			case *sagadv1.Node_If:
				nodes++
				v.places[k.If.GetName()] = ifNode
				walk(k.If.GetThen(), depth+1)
				walk(k.If.GetElse(), depth+1)
			}
		}
	}
	walk(v.def.GetBody(), 1)
	if depthMax > nestingMax {
		v.problem("", "body", "limit", fmt.Sprintf("parallels and ifs are nested deeper than %d", nestingMax-1), "flatten them, or split the definition")
	}
	if steps > stepsMax {
		v.problem("", "body", "limit", fmt.Sprintf("the definition has %d steps; the limit is %d", steps, stepsMax), "split it")
	}
	if nodes > nodesMax {
		v.problem("", "body", "limit", fmt.Sprintf("the definition has %d parallels, branches and ifs; the limit is %d", nodes, nodesMax), "split it")
	}
	return len(v.problems) == 0
}

func (v *verifier) contracts() {
	v.activities = map[string]*activity{}
	if n := len(v.def.GetActivities()); n > activitiesMax {
		v.problem("", "activities", "limit", fmt.Sprintf("%d activities; the limit is %d", n, activitiesMax), "split the definition")
		return
	}
	for i, a := range v.def.GetActivities() {
		name := a.GetName()
		switch {
		case len(name) > nameBytesMax || !activityName.MatchString(name):
			v.problem("", "activities", "name-legal", fmt.Sprintf("activity name %q isn't legal", clip(name)),
				"use lower-case words of letters, digits, '-' and '_', joined by '.', 63 characters at most, for example inventory.reserve")
			continue
		case v.activities[name] != nil:
			v.problem("", "activities", "name-unique", fmt.Sprintf("activity %q is declared twice", name), "declare it once")
			continue
		case i > 0 && name < v.def.GetActivities()[i-1].GetName():
			v.problem("", "activities", "order", fmt.Sprintf("activity %q comes after a greater name", name), "sort the activities by name, so that equal definitions are equal")
		}
		v.activities[name] = &activity{
			in:  v.schema("", "activities."+name+".input_schema", a.GetInputSchema()),
			out: v.schema("", "activities."+name+".output_schema", a.GetOutputSchema()),
		}
	}
}

func (v *verifier) schema(step, field, source string) *expr.Schema {
	if source != "" && strings.TrimSpace(source) == "" {
		v.problem(step, field, "schema", "the schema is blank", "leave it out to allow anything")
		return expr.Any
	}
	if len(source) > schemaBytesMax {
		v.problem(step, field, "limit", fmt.Sprintf("the schema has %d bytes; the limit is %d", len(source), schemaBytesMax), "make it smaller")
		return expr.Any
	}
	s, err := expr.ParseSchema([]byte(source))
	if err != nil {
		v.problem(step, field, "schema", err.Error(), "use JSON Schema, draft 2020-12")
		return expr.Any
	}
	return s
}

// duration checks a duration and returns it in microseconds.
func (v *verifier) duration(step, field string, d *durationpb.Duration, unset, low, high time.Duration) int64 {
	if d == nil {
		return unset.Microseconds()
	}
	if err := d.CheckValid(); err != nil || d.AsDuration() < low || d.AsDuration() > high {
		mend := fmt.Sprintf("use %s to %s", period(low), period(high))
		if unset > 0 {
			mend += ", or leave it out for " + period(unset)
		}
		v.problem(step, field, "duration", written(d)+" is out of range", mend)
		return unset.Microseconds()
	}
	return d.AsDuration().Microseconds()
}

// written is a duration as it was given, however impossible.
func written(d *durationpb.Duration) string {
	const safe = 1 << 33 // seconds; about 272 years
	switch s, n := d.GetSeconds(), d.GetNanos(); {
	case n <= -1e9 || n >= 1e9 || s > 0 && n < 0 || s < 0 && n > 0:
		return fmt.Sprintf("%d s and %d ns", s, n)
	case s <= -safe || s >= safe:
		return fmt.Sprintf("%ds", s)
	default:
		return d.AsDuration().String()
	}
}

// period writes a limit as people do.
func period(d time.Duration) string {
	const day, year = 24 * time.Hour, 365 * 24 * time.Hour
	switch {
	case d >= year && d%year == 0:
		return fmt.Sprintf("%d years", d/year)
	case d > day && d%day == 0:
		return fmt.Sprintf("%d days", d/day)
	default:
		return d.String()
	}
}

// sequence checks nodes one after another. sc becomes what is known after them.
func (v *verifier) sequence(nodes []*sagadv1.Node, sc *scope, top bool) []node {
	var out []node
	for i, n := range nodes {
		if v.enough() {
			return nil
		}
		switch k := n.GetKind().(type) {
		case *sagadv1.Node_Step:
			out = append(out, v.step(k.Step, sc))
		case *sagadv1.Node_Parallel:
			out = append(out, v.parallel(k.Parallel, sc))
		case *sagadv1.Node_If:
			out = append(out, v.branch(k.If, sc))
		case *sagadv1.Node_Return:
			if !top || i != len(nodes)-1 {
				v.problem(returnStep, "", "return-last", "return isn't the last node of the body", "move it to the end of the definition")
				continue
			}
			out = append(out, node{kind: returnNode, output: v.mapping(returnStep, "output", k.Return.GetOutput(), v.m.output, sc)})
		default:
			v.problem("", "body", "node", fmt.Sprintf("node %d is empty or of a kind that this version doesn't know", i+1), "make it a step, parallel, if or return")
		}
	}
	if top && (len(nodes) == 0 || nodes[len(nodes)-1].GetReturn() == nil) && v.def.GetOutputSchema() != "" && v.m.output.Validate([]byte("null")) != nil {
		v.problem("", "output_schema", "return-missing", "the definition declares an output but returns nothing", "end it with a return, or leave the output schema out")
	}
	return out
}

func (v *verifier) name(kind, name string) bool {
	switch {
	case !stepName.MatchString(name):
		v.problem(name, "name", "name-legal", fmt.Sprintf("%s name %q isn't legal", kind, clip(name)),
			"use lower-case letters, digits and '_', starting with a letter, 63 at most, so that expressions can name it")
	case reserved[name]:
		v.problem(name, "name", "name-legal", fmt.Sprintf("%q is a word that expressions use for something else", name), "choose another name")
	case v.names[name]:
		v.problem(name, "name", "name-unique", fmt.Sprintf("the name %q is used twice", name), "give each step, parallel and if a name of its own")
	default:
		v.names[name] = true
		return true
	}
	return false
}

func (v *verifier) step(s *sagadv1.Step, sc *scope) node {
	name := s.GetName()
	legal := v.name("step", name)
	st := step{
		name: name, activity: s.GetActivity(), kind: s.GetKind(),
		inSchema: expr.Any, outSchema: expr.Any, before: slices.Clone(sc.before),
	}
	if act := v.activities[s.GetActivity()]; act != nil {
		// A worker serves an activity with a compensation, or without: the kinds of its steps must agree on that.
		switch undone := s.GetKind() == sagadv1.Kind_KIND_COMPENSATABLE; {
		case !act.used:
			act.first, act.undone = name, undone
		case act.undone != undone && s.GetKind() != sagadv1.Kind_KIND_UNSPECIFIED:
			has, hasNot := clip(act.first), clip(name)
			if undone {
				has, hasNot = hasNot, has
			}
			v.problem(name, "kind", "activity-kind", fmt.Sprintf("activity %q is compensatable in step %s, and not in step %s", clip(s.GetActivity()), has, hasNot),
				"give the steps one kind, or call an activity of another name")
		}
		act.used = true
		st.inSchema, st.outSchema = act.in, act.out
	} else {
		v.problem(name, "activity", "activity-declared", fmt.Sprintf("activity %q isn't declared", clip(s.GetActivity())), "add its contract to the definition's activities")
	}
	v.place(s, sc)
	must := s.GetKind() == sagadv1.Kind_KIND_RETRIABLE || s.GetKind() == sagadv1.Kind_KIND_READ_ONLY && sc.pivot == onAll
	attempts := attemptsDefault
	if must {
		attempts = attemptsMust
	}
	st.timeout = v.duration(name, "timeout", s.GetTimeout(), timeoutDefault, timeoutMin, timeoutMax)
	st.retry = v.retry(name, "retry", s.GetRetry(), attempts)
	switch s.GetGiveUp() {
	case sagadv1.GiveUp_GIVE_UP_UNSPECIFIED, sagadv1.GiveUp_GIVE_UP_UNWIND:
	case sagadv1.GiveUp_GIVE_UP_HOLD:
		st.hold = true
	default:
		v.problem(name, "give_up", "enum", fmt.Sprintf("%d is no value that this version knows", s.GetGiveUp()), "use GIVE_UP_UNWIND or GIVE_UP_HOLD")
	}
	if s.GetGiveUp() == sagadv1.GiveUp_GIVE_UP_UNWIND && sc.pivot != onNone {
		v.problem(name, "give_up", "give-up-after-pivot", "a step after the pivot can't unwind the saga", "leave give_up out: a saga past its pivot is held for a person")
	}
	if c := s.GetCompensation(); c != nil && s.GetKind() != sagadv1.Kind_KIND_COMPENSATABLE {
		v.problem(name, "compensation", "compensation-misplaced", "only a compensatable step has a compensation", "make the step compensatable, or remove the compensation")
	} else {
		st.undoTimeout = v.duration(name, "compensation.timeout", c.GetTimeout(), timeoutDefault, timeoutMin, timeoutMax)
		st.undoRetry = v.retry(name, "compensation.retry", c.GetRetry(), attemptsMust)
		st.letPass = c.GetLetPass()
	}
	st.in = v.mapping(name, "input", s.GetInput(), st.inSchema, sc)

	index := len(v.m.steps)
	v.m.steps = append(v.m.steps, st)
	if legal {
		v.m.byName[name] = index
		sc.vars = append(slices.Clip(sc.vars), expr.Var{Name: name, Schema: st.outSchema})
	}
	sc.before = append(slices.Clip(sc.before), index)
	if s.GetKind() == sagadv1.Kind_KIND_PIVOT {
		sc.pivot = onAll
	}
	return node{kind: stepNode, index: index}
}

// place checks that the step's kind fits where it stands.
func (v *verifier) place(s *sagadv1.Step, sc *scope) {
	name := s.GetName()
	switch s.GetKind() {
	case sagadv1.Kind_KIND_READ_ONLY:
	case sagadv1.Kind_KIND_COMPENSATABLE:
		switch sc.pivot {
		case onSome:
			v.problem(name, "kind", "compensatable-after-pivot", "only one arm of the if before it has the pivot, so it might be never undone",
				"move it before the if or into the arm without the pivot, or make it read-only")
		case onAll:
			v.problem(name, "kind", "compensatable-after-pivot", "a step after the pivot is never undone, so it can't be compensatable",
				"move it before the pivot, or make it retriable")
		}
	case sagadv1.Kind_KIND_PIVOT:
		if sc.pivot != onNone {
			v.problem(name, "kind", "pivot-once", "there is a pivot on the way already", "keep one pivot on each way; what follows it is retriable")
		}
		if sc.parallel {
			v.problem(name, "kind", "pivot-in-parallel", "a pivot in a parallel would leave its siblings unsettled", "move it after the parallel")
		}
	case sagadv1.Kind_KIND_RETRIABLE:
		switch sc.pivot {
		case onNone:
			v.problem(name, "kind", "retriable-before-pivot", "a retriable step can't be undone, and here the saga may yet have to unwind",
				"move it after the pivot, or make it compensatable")
		case onSome:
			v.problem(name, "kind", "retriable-before-pivot", "only one arm of the if before it has the pivot, so here the saga may yet have to unwind, and a retriable step can't be undone",
				"move it into the arm with the pivot, or move the pivot out of the if")
		}
	case sagadv1.Kind_KIND_UNSPECIFIED:
		v.problem(name, "kind", "kind-declared", "the step doesn't say what undoing it means", "make it compensatable, read-only, pivot or retriable")
	default:
		v.problem(name, "kind", "enum", fmt.Sprintf("kind %d is none that this version knows", s.GetKind()), "make it compensatable, read-only, pivot or retriable")
	}
}

func (v *verifier) retry(step, field string, r *sagadv1.RetryPolicy, attempts int) retry.Policy {
	if n := r.GetMaxAttempts(); n < 0 || n > attemptsMax {
		v.problem(step, field+".max_attempts", "retry-policy", fmt.Sprintf("%d attempts is out of range", n), fmt.Sprintf("use 1 to %d, or leave it out for %d", attemptsMax, attempts))
	} else if n > 0 {
		attempts = int(n)
	}
	p := retry.Policy{Factor: r.GetFactor(), Attempts: attempts}
	for _, d := range []struct {
		field string
		from  *durationpb.Duration
		to    *time.Duration
	}{{"initial", r.GetInitial(), &p.Initial}, {"max", r.GetMax(), &p.Max}, {"total", r.GetTotal(), &p.Total}} {
		if d.from == nil {
			continue
		}
		if err := d.from.CheckValid(); err != nil || d.from.GetSeconds() > int64(deadlineMax/time.Second) || d.from.GetSeconds() < 0 {
			v.problem(step, field+"."+d.field, "retry-policy", written(d.from)+" is out of range", "use a time from 0s to "+period(deadlineMax))
			return p.WithDefaults()
		}
		*d.to = d.from.AsDuration()
	}
	if err := p.Validate(); err != nil {
		for _, line := range strings.Split(err.Error(), "\n") {
			message, mend, ok := strings.Cut(strings.TrimPrefix(line, retry.ErrInvalid.Error()+": "), ": write ")
			if ok {
				mend = "write " + mend
			} else {
				mend = "correct the policy"
			}
			v.problem(step, field, "retry-policy", message, mend)
		}
		return p.WithDefaults()
	}
	return p.WithDefaults()
}

func (v *verifier) mapping(step, field string, mp *sagadv1.Mapping, want *expr.Schema, sc *scope) mapping {
	switch {
	case len(mp.GetFields()) > 0 && mp.GetValue() != "":
		v.problem(step, field, "mapping", "both fields and a value are given", "give fields, or one expression for the whole value")
		return mapping{}
	case mp.GetValue() != "":
		env, ok := v.env(step, field, sc)
		if !ok {
			return mapping{}
		}
		p, err := env.Compile(mp.GetValue(), want)
		if err != nil {
			v.expression(step, field, mp.GetValue(), asExprError(err))
			return mapping{}
		}
		return mapping{value: p, fits: p.Fits()}
	case mp == nil:
		if err := want.Validate([]byte("null")); err != nil {
			v.problem(step, field, "mapping", "there is no "+field+", but the schema wants one", "add fields, or one expression for the whole value")
		}
		return mapping{}
	default:
		env, ok := v.env(step, field, sc)
		if !ok {
			return mapping{}
		}
		fields := make([]expr.Field, 0, len(mp.GetFields()))
		for name, source := range mp.GetFields() { // sorted below
			fields = append(fields, expr.Field{Name: name, Source: source})
		}
		sort.Slice(fields, func(i, j int) bool { return fields[i].Name < fields[j].Name })
		o, errs := env.CompileObject(fields, want)
		for _, e := range errs {
			place := field
			if e.Field != "" {
				place += "." + e.Field
			}
			v.expression(step, place, mp.GetFields()[e.Field], e.Err)
		}
		if len(errs) > 0 {
			return mapping{}
		}
		return mapping{object: o, fits: o.Fits()}
	}
}

func (v *verifier) env(step, field string, sc *scope) (*expr.Env, bool) {
	env, err := expr.NewEnv(sc.vars...)
	if err != nil {
		v.problem(step, field, "expression", err.Error(), "correct the schemas of what comes before")
		return nil, false
	}
	return env, true
}

func (v *verifier) parallel(p *sagadv1.Parallel, sc *scope) node {
	v.name("parallel", p.GetName())
	switch n := len(p.GetBranches()); {
	case n < 2:
		v.problem(p.GetName(), "branches", "parallel-branches", "a parallel needs two branches or more", "put the steps into the sequence instead")
	case n > branchesMax:
		v.problem(p.GetName(), "branches", "limit", fmt.Sprintf("%d branches; the limit is %d", n, branchesMax), "use fewer branches")
		return node{kind: parallelNode}
	}
	out := node{kind: parallelNode}
	after := *sc
	after.vars, after.before = slices.Clip(sc.vars), slices.Clip(sc.before)
	for i, b := range p.GetBranches() {
		if len(b.GetBody()) == 0 {
			v.problem(p.GetName(), fmt.Sprintf("branches[%d]", i), "parallel-branches", "the branch is empty", "remove it")
		}
		inner := *sc
		inner.vars, inner.before, inner.parallel = slices.Clip(sc.vars), slices.Clip(sc.before), true
		out.branches = append(out.branches, v.sequence(b.GetBody(), &inner, false))
		after.vars = append(after.vars, inner.vars[len(sc.vars):]...)
		after.before = append(after.before, inner.before[len(sc.before):]...)
	}
	*sc = after
	return out
}

func (v *verifier) branch(n *sagadv1.If, sc *scope) node {
	v.name("if", n.GetName())
	out := node{kind: ifNode, index: len(v.m.ifs)}
	v.m.ifs = append(v.m.ifs, n.GetName())
	if env, ok := v.env(n.GetName(), "condition", sc); ok {
		p, err := env.Compile(n.GetCondition(), expr.Bool)
		if err != nil {
			v.expression(n.GetName(), "condition", n.GetCondition(), asExprError(err))
		}
		out.condition = p
	}
	if len(n.GetThen()) == 0 {
		v.problem(n.GetName(), "then", "if-empty", "there is nothing to do if the condition holds", "turn the condition around, or remove the if")
	}
	arms := [2]scope{*sc, *sc}
	for i, body := range [][]*sagadv1.Node{n.GetThen(), n.GetElse()} {
		arms[i].vars, arms[i].before = slices.Clip(sc.vars), slices.Clip(sc.before)
		out.branches = append(out.branches, v.sequence(body, &arms[i], false))
	}
	// What follows comes after the steps of both arms, sees the outputs of neither, and knows of a pivot only what both
	// arms agree on.
	before := append(slices.Clip(sc.before), arms[0].before[len(sc.before):]...)
	sc.before = append(before, arms[1].before[len(sc.before):]...)
	if sc.pivot = arms[0].pivot; arms[0].pivot != arms[1].pivot {
		sc.pivot = onSome
	}
	return out
}

func asExprError(err error) *expr.Error {
	if e, ok := err.(*expr.Error); ok {
		return e
	}
	return &expr.Error{Message: err.Error()}
}

// clip keeps what was sent from filling the answer.
func clip(s string) string {
	if len(s) > clipBytes {
		s = strings.ToValidUTF8(s[:clipBytes], "") + "..."
	}
	return strings.ToValidUTF8(s, "?")
}
