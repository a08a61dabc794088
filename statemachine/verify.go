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
	// kinds are all names of the definition, and what they name. inside are the blocks that they stand in.
	kinds  map[string]nodeKind
	inside map[string]string
	// signalled are the signals that some wait waits for.
	signalled map[string]bool
}

type activity struct {
	in, out        *expr.Schema
	probe, claimed bool
	used           bool
	// changes: some step that calls it isn't read-only.
	changes bool
	// first is the first step that calls it, and undone whether that one is compensatable.
	first  string
	undone bool
}

// scope is what is known at a place of the definition.
type scope struct {
	// vars may be read here, by name.
	vars []expr.Var
	// body is the one that nodes here belong to. indexed: it is, at any depth, in a map or a loop; turns tells in how many.
	body    int
	indexed bool
	turns   int
	// block is the kind of the innermost map, loop, savepoint or race here. undoable: some block here may have to undo
	// what is in it while the saga goes on; undoer is its name.
	block    nodeKind
	undoable bool
	undoer   string
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

// unreadable says why a name can't be read at a place where it is unknown as a variable.
func (v *verifier) unreadable(p *sagadv1.Problem, name string) {
	kind, ok := v.kinds[name]
	if !ok {
		return
	}
	_, seen := v.m.byName[name]
	if _, isPlace := v.m.placeOf[name]; isPlace {
		seen = true
	}
	p.Mend = "read the input, or the output of a step that is sure to have run before this place"
	switch {
	case kind == parallelNode || kind == ifNode || kind == switchNode || kind == sleepNode:
		p.Message = fmt.Sprintf("%s isn't a step, so it has no output", name)
	case name == p.Step:
		p.Message = fmt.Sprintf("%s can't read its own output", name)
	case v.inside[name] != "" && !v.within(p.Step, v.inside[name]):
		p.Message = fmt.Sprintf("the output of %s can't be read here: %s is inside %s", name, name, v.inside[name])
		p.Mend = fmt.Sprintf("let %s say what is needed, and read it by that name", v.inside[name])
		if k := v.kinds[v.inside[name]]; k == savepointNode {
			p.Mend = fmt.Sprintf("move what reads it into %s", v.inside[name])
		}
	case kind == savepointNode && v.within(p.Step, name):
		p.Message = fmt.Sprintf("what went wrong in %s can be read in its alternatives only", name)
		p.Mend = "move what reads it into an alternative"
	case kind == raceNode && v.within(p.Step, name):
		p.Message = fmt.Sprintf("what the branches of %s say can be read after it only", name)
		p.Mend = "move what reads it to where the branches are done"
	case kind == waitNode && seen:
		p.Message = fmt.Sprintf("what %s got may not be there: only what runs when it was received may read it", name)
		p.Mend = "move what reads it to where it was received"
	case seen:
		p.Message = fmt.Sprintf("the output of %s may not be there: %s is in another branch, or in an arm that may not be taken", name, name)
	default:
		p.Message = fmt.Sprintf("the output of %s isn't there yet: %s comes later", name, name)
	}
}

// within says whether a node is a block, or stands in it at any depth.
func (v *verifier) within(name, block string) bool {
	for ; name != ""; name = v.inside[name] {
		if name == block {
			return true
		}
	}
	return false
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
	v.signals()
	v.names = map[string]bool{}
	if len(d.GetBody()) == 0 {
		v.problem("", "body", "body-empty", "the definition has no steps", "add at least one step")
	}
	sc := scope{vars: []expr.Var{{Name: "input", Schema: v.m.input}}}
	v.m.bodies = []body{{owner: -1}}
	v.m.bodies[0].nodes = v.sequence(d.GetBody(), &sc, true)
	for _, a := range d.GetActivities() {
		switch act := v.activities[a.GetName()]; {
		case act == nil:
		case !act.used:
			v.problem("", "activities", "activity-unused", fmt.Sprintf("activity %q is declared but no step calls it", clip(a.GetName())), "remove it, or call it")
		case act.probe && !act.changes:
			v.problem("", "activities."+a.GetName()+".probe", "probe-unused", fmt.Sprintf("activity %q has a probe, but all steps that call it are read-only", clip(a.GetName())),
				"remove the probe: nobody asks whether something happened that changes nothing")
		}
	}
	for _, sig := range d.GetSignals() {
		if v.m.signals[sig.GetName()] != nil && !v.signalled[sig.GetName()] {
			v.problem("", "signals", "signal-unused", fmt.Sprintf("signal %q is declared but nothing waits for it", clip(sig.GetName())), "remove it, or wait for it")
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
	v.kinds, v.inside = map[string]nodeKind{}, map[string]string{}
	steps, nodes, depthMax := 0, 0, 0
	var walk func(body []*sagadv1.Node, block string, depth int)
	walk = func(body []*sagadv1.Node, block string, depth int) {
		if depthMax = max(depthMax, depth); depth > nestingMax {
			return
		}
		for _, n := range body {
			name, kind := nodeName(n)
			v.kinds[name] = kind
			if block != "" {
				v.inside[name] = block
			}
			switch kind {
			case returnNode:
				continue
			case stepNode:
				steps++
				continue
			}
			inner := Bodies(n)
			if nodes++; kind == parallelNode || kind == raceNode || kind == savepointNode || kind == switchNode {
				nodes += len(inner)
			}
			for _, b := range inner {
				if isBlock(kind) {
					walk(b, name, depth+1)
				} else {
					walk(b, block, depth+1)
				}
			}
		}
	}
	walk(v.def.GetBody(), "", 1)
	if depthMax > nestingMax {
		v.problem("", "body", "limit", fmt.Sprintf("nodes are nested deeper than %d", nestingMax-1), "flatten them, or split the definition")
	}
	if steps > stepsMax {
		v.problem("", "body", "limit", fmt.Sprintf("the definition has %d steps; the limit is %d", steps, stepsMax), "split it")
	}
	if nodes > nodesMax {
		v.problem("", "body", "limit", fmt.Sprintf("the definition has %d nodes, branches and cases besides its steps; the limit is %d", nodes, nodesMax), "split it")
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
			in:    v.schema("", "activities."+name+".input_schema", a.GetInputSchema()),
			out:   v.schema("", "activities."+name+".output_schema", a.GetOutputSchema()),
			probe: a.GetProbe(), claimed: a.GetClaimed(),
		}
	}
}

func (v *verifier) signals() {
	v.m.signals, v.signalled = map[string]*expr.Schema{}, map[string]bool{}
	if n := len(v.def.GetSignals()); n > signalsMax {
		v.problem("", "signals", "limit", fmt.Sprintf("%d signals; the limit is %d", n, signalsMax), "split the definition, or give signals of one kind a common name and tell them apart by a field")
		return
	}
	for i, s := range v.def.GetSignals() {
		name := s.GetName()
		switch {
		case !stepName.MatchString(name):
			v.problem("", "signals", "name-legal", fmt.Sprintf("signal name %q isn't legal", clip(name)), "use lower-case letters, digits and '_', starting with a letter, 63 at most")
			continue
		case v.m.signals[name] != nil:
			v.problem("", "signals", "name-unique", fmt.Sprintf("signal %q is declared twice", name), "declare it once")
			continue
		case i > 0 && name < v.def.GetSignals()[i-1].GetName():
			v.problem("", "signals", "order", fmt.Sprintf("signal %q comes after a greater name", name), "sort the signals by name, so that equal definitions are equal")
		}
		v.m.signals[name] = v.schema("", "signals."+name+".schema", s.GetSchema())
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
		case *sagadv1.Node_Child:
			out = append(out, v.child(k.Child, sc))
		case *sagadv1.Node_Parallel:
			if isRace(k.Parallel) {
				out = append(out, v.race(k.Parallel, sc))
			} else {
				out = append(out, v.parallel(k.Parallel, sc))
			}
		case *sagadv1.Node_If:
			out = append(out, v.branch(k.If, sc))
		case *sagadv1.Node_Switch:
			out = append(out, v.cases(k.Switch, sc))
		case *sagadv1.Node_Sleep:
			out = append(out, v.sleep(k.Sleep, sc))
		case *sagadv1.Node_Wait:
			out = append(out, v.wait(k.Wait, sc))
		case *sagadv1.Node_Loop:
			out = append(out, v.loop(k.Loop, sc))
		case *sagadv1.Node_Map:
			out = append(out, v.each(k.Map, sc))
		case *sagadv1.Node_Savepoint:
			out = append(out, v.savepoint(k.Savepoint, sc))
		case *sagadv1.Node_Return:
			if !top || i != len(nodes)-1 {
				v.problem(returnStep, "", "return-last", "return isn't the last node of the body", "move it to the end of the definition")
				continue
			}
			out = append(out, node{kind: returnNode, output: v.mapping(returnStep, "output", k.Return.GetOutput(), v.m.output, sc)})
		default:
			v.problem("", "body", "node", fmt.Sprintf("node %d is empty or of a kind that this version doesn't know", i+1), "make it one of the nodes that there are, such as a step, an if or a return")
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
		v.problem(name, "name", "name-unique", fmt.Sprintf("the name %q is used twice", name), "give each node a name of its own")
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
		inSchema: expr.Any, outSchema: expr.Any,
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
		act.changes = act.changes || s.GetKind() != sagadv1.Kind_KIND_READ_ONLY
		st.inSchema, st.outSchema, st.probe, st.claimed = act.in, act.out, act.probe, act.claimed
	} else {
		v.problem(name, "activity", "activity-declared", fmt.Sprintf("activity %q isn't declared", clip(s.GetActivity())), "add its contract to the definition's activities")
	}
	v.stands(name, s.GetKind(), sc)
	must := s.GetKind() == sagadv1.Kind_KIND_RETRIABLE || s.GetKind() == sagadv1.Kind_KIND_READ_ONLY && sc.pivot == onAll
	attempts := attemptsDefault
	if must {
		attempts = attemptsMust
	}
	st.timeout = v.duration(name, "timeout", s.GetTimeout(), timeoutDefault, timeoutMin, timeoutMax)
	v.heartbeat(s, &st)
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

	n := v.addStep(st, legal, sc)
	if s.GetKind() == sagadv1.Kind_KIND_PIVOT {
		sc.pivot = onAll
	}
	return n
}

// addStep puts a step into the machine.
func (v *verifier) addStep(st step, legal bool, sc *scope) node {
	index := len(v.m.steps)
	b := &v.m.bodies[sc.body]
	st.body, st.slot, st.indexed = sc.body, len(b.steps), sc.indexed
	b.steps = append(b.steps, index)
	v.m.steps = append(v.m.steps, st)
	if legal {
		v.m.byName[st.name] = index
		sc.know(st.name, st.outSchema)
	}
	return node{kind: stepNode, index: index}
}

// know lets a name be read from here on.
func (sc *scope) know(name string, schema *expr.Schema) {
	sc.vars = append(slices.Clip(sc.vars), expr.Var{Name: name, Schema: schema})
}

// heartbeat checks how often an attempt must be heard of.
func (v *verifier) heartbeat(s *sagadv1.Step, st *step) {
	d := s.GetHeartbeat()
	if d == nil {
		if st.claimed {
			v.problem(st.name, "heartbeat", "claimed-heartbeat", fmt.Sprintf("attempts of activity %q are claimed, so the step needs a heartbeat", clip(st.activity)),
				"give the step a heartbeat: without one a lost worker would keep its claim until the timeout")
		}
		return
	}
	problems := len(v.problems)
	st.heartbeat = v.duration(st.name, "heartbeat", d, 0, heartbeatMin, timeoutMax)
	switch {
	case len(v.problems) > problems:
	case st.heartbeat > st.timeout:
		v.problem(st.name, "heartbeat", "heartbeat", fmt.Sprintf("%s is longer than the timeout, %v", written(d), time.Duration(st.timeout)*time.Microsecond), "make it shorter, or the timeout longer")
	case st.timeout/st.heartbeat > heartbeatsMax:
		v.problem(st.name, "heartbeat", "heartbeat", fmt.Sprintf("%s fits into the timeout, %v, more than %d times", written(d), time.Duration(st.timeout)*time.Microsecond, heartbeatsMax),
			"make it longer, so that a long attempt can't fill the saga's history")
	}
}

// child checks a step that runs another saga.
func (v *verifier) child(c *sagadv1.Child, sc *scope) node {
	name := c.GetName()
	legal := v.name("child", name)
	st := step{
		name: name, activity: c.GetDefinition(), kind: c.GetKind(), child: true, childVersion: c.GetVersion(),
		inSchema: expr.Any, outSchema: v.schema(name, "output_schema", c.GetOutputSchema()),
	}
	v.m.children = true
	if !definitionName.MatchString(c.GetDefinition()) {
		v.problem(name, "definition", "name-legal", fmt.Sprintf("definition name %q isn't legal", clip(c.GetDefinition())), "name the definition that the child runs, of the same namespace")
	}
	if c.GetVersion() < 0 {
		v.problem(name, "version", "child-version", fmt.Sprintf("version %d is out of range", c.GetVersion()), "use a version that is registered, or leave it out for the latest when the child starts")
	}
	attempts := attemptsDefault
	switch c.GetKind() {
	case sagadv1.Kind_KIND_RETRIABLE:
		attempts = attemptsMust
		fallthrough
	case sagadv1.Kind_KIND_COMPENSATABLE:
		v.stands(name, c.GetKind(), sc)
	default:
		v.problem(name, "kind", "child-kind", "a child is compensatable or retriable", "make it compensatable before the pivot: then it unwinds if this saga does; make it retriable after the pivot")
	}
	st.retry = v.retry(name, "retry", nil, attempts)
	st.undoRetry = v.retry(name, "compensation.retry", nil, attemptsMust)
	st.in = v.mapping(name, "input", c.GetInput(), st.inSchema, sc)
	return v.addStep(st, legal, sc)
}

// stands checks that a step's kind fits where it stands.
func (v *verifier) stands(name string, kind sagadv1.Kind, sc *scope) {
	if sc.undoable && kind == sagadv1.Kind_KIND_RETRIABLE && sc.pivot == onAll {
		v.problem(name, "kind", "retriable-in-block", fmt.Sprintf("%s may have to undo what is in it, and a retriable step can't be undone", sc.undoer),
			fmt.Sprintf("move it out of %s, or make it read-only", sc.undoer))
	}
	switch kind {
	case sagadv1.Kind_KIND_READ_ONLY:
	case sagadv1.Kind_KIND_COMPENSATABLE:
		switch sc.pivot {
		case onSome:
			v.problem(name, "kind", "compensatable-after-pivot", "only some ways here have the pivot, so it might be never undone",
				"move it before the pivot or into an arm without it, or make it read-only")
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
		switch sc.block {
		case mapNode, loopNode:
			v.problem(name, "kind", "pivot-in-block", "a pivot in a map or a loop would be passed more than once", "move it after the map or the loop")
		case savepointNode, raceNode:
			v.problem(name, "kind", "pivot-in-block", fmt.Sprintf("%s may have to undo what is in it, and what is before a pivot can't be undone after it", sc.undoer), fmt.Sprintf("move it after %s", sc.undoer))
		}
	case sagadv1.Kind_KIND_RETRIABLE:
		switch sc.pivot {
		case onNone:
			v.problem(name, "kind", "retriable-before-pivot", "a retriable step can't be undone, and here the saga may yet have to unwind",
				"move it after the pivot, or make it compensatable")
		case onSome:
			v.problem(name, "kind", "retriable-before-pivot", "only some ways here have the pivot, so here the saga may yet have to unwind, and a retriable step can't be undone",
				"move it into the arm with the pivot, or move the pivot out of the arm")
		}
	case sagadv1.Kind_KIND_UNSPECIFIED:
		v.problem(name, "kind", "kind-declared", "the step doesn't say what undoing it means", "make it compensatable, read-only, pivot or retriable")
	default:
		v.problem(name, "kind", "enum", fmt.Sprintf("kind %d is none that this version knows", kind), "make it compensatable, read-only, pivot or retriable")
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

// join checks how a parallel joins, and how many branches it has. The number that it needs is 0 if there is no use in looking further.
func (v *verifier) join(p *sagadv1.Parallel) int {
	name, n := p.GetName(), len(p.GetBranches())
	switch {
	case n < 2:
		v.problem(name, "branches", "parallel-branches", "a parallel needs two branches or more", "put the steps into the sequence instead")
	case n > branchesMax:
		v.problem(name, "branches", "limit", fmt.Sprintf("%d branches; the limit is %d", n, branchesMax), "use fewer branches")
		return 0
	}
	for i, b := range p.GetBranches() {
		if len(b.GetBody()) == 0 {
			v.problem(name, fmt.Sprintf("branches[%d]", i), "parallel-branches", "the branch is empty", "remove it")
		}
		if b.GetOutput() != nil && !isRace(p) {
			v.problem(name, fmt.Sprintf("branches[%d].output", i), "branch-output", "what follows a parallel that joins all reads the outputs of its steps, so its branches say nothing", "remove it")
		}
	}
	if p.GetCount() != 0 && p.GetJoin() != sagadv1.Join_JOIN_COUNT {
		v.problem(name, "count", "join-count", "only a parallel that joins a count has one", "remove it, or use JOIN_COUNT")
	}
	switch p.GetJoin() {
	case sagadv1.Join_JOIN_UNSPECIFIED, sagadv1.Join_JOIN_ALL:
		return max(n, 1)
	case sagadv1.Join_JOIN_ANY:
		return 1
	case sagadv1.Join_JOIN_COUNT:
		if c := int(p.GetCount()); c < 1 || n > 1 && c > n {
			v.problem(name, "count", "join-count", fmt.Sprintf("%d of %d branches is out of range", c, n), fmt.Sprintf("use 1 to %d", max(n-1, 1)))
		} else if c == n {
			v.problem(name, "count", "join-count", fmt.Sprintf("%d of %d branches are all of them", c, n), "use JOIN_ALL: then what follows reads the outputs of all steps")
		} else {
			return c
		}
	default:
		v.problem(name, "join", "enum", fmt.Sprintf("join %d is none that this version knows", p.GetJoin()), "use JOIN_ALL, JOIN_ANY or JOIN_COUNT")
	}
	return 1
}

func (v *verifier) parallel(p *sagadv1.Parallel, sc *scope) node {
	v.name("parallel", p.GetName())
	out := node{kind: parallelNode}
	if v.join(p) == 0 {
		return out
	}
	after := *sc
	after.vars = slices.Clip(sc.vars)
	for _, b := range p.GetBranches() {
		inner := *sc
		inner.vars, inner.parallel = slices.Clip(sc.vars), true
		out.branches = append(out.branches, v.sequence(b.GetBody(), &inner, false))
		after.vars = append(after.vars, inner.vars[len(sc.vars):]...)
	}
	*sc = after
	return out
}

func (v *verifier) branch(n *sagadv1.If, sc *scope) node {
	legal := v.name("if", n.GetName())
	out := node{kind: ifNode, index: v.addPlace(place{name: n.GetName(), kind: ifNode}, legal, sc)}
	out.conditions = append(out.conditions, v.program(n.GetName(), "condition", n.GetCondition(), expr.Bool, sc))
	if len(n.GetThen()) == 0 {
		v.problem(n.GetName(), "then", "if-empty", "there is nothing to do if the condition holds", "turn the condition around, or remove the if")
	}
	out.branches = v.arms(sc, nil, n.GetThen(), n.GetElse())
	return out
}

// arms checks sequences of which one is run. more, if it isn't nil, is called with the first arm's scope.
//
// What follows sees the outputs of none, and knows of a pivot only what all arms agree on.
func (v *verifier) arms(sc *scope, more func(*scope), bodies ...[]*sagadv1.Node) (out [][]node) {
	pivot := sc.pivot
	for i, b := range bodies {
		arm := *sc
		arm.vars = slices.Clip(sc.vars)
		if i == 0 && more != nil {
			more(&arm)
		}
		out = append(out, v.sequence(b, &arm, false))
		if i == 0 {
			pivot = arm.pivot
		} else if pivot != arm.pivot {
			pivot = onSome
		}
	}
	sc.pivot = pivot
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

// What is read by the names of blocks: by a map's and a loop's inside it and after it, by a savepoint's in its alternatives and after
// it, by a race's after it.
var (
	elementSchema  = documented(`{"type":"object","properties":{"index":{"type":"integer","minimum":0},"item":true},"required":["index","item"],"additionalProperties":false}`)
	mappedSchema   = documented(`{"type":"object","properties":{"done":{"type":"integer","minimum":0},"failed":{"type":"integer","minimum":0}},"required":["done","failed"],"additionalProperties":false}`)
	resultsSchema  = documented(`{"type":"object","properties":{"done":{"type":"integer","minimum":0},"failed":{"type":"integer","minimum":0},"results":{"type":"array","items":{"type":"object","properties":{"ok":{"type":"boolean"},"output":true,"code":{"type":"string"},"message":{"type":"string"}},"required":["ok"],"additionalProperties":false}}},"required":["done","failed","results"],"additionalProperties":false}`)
	roundSchema    = documented(`{"type":"object","properties":{"index":{"type":"integer","minimum":0},"value":true},"required":["index","value"],"additionalProperties":false}`)
	loopedSchema   = documented(`{"type":"object","properties":{"rounds":{"type":"integer","minimum":1},"value":true},"required":["rounds","value"],"additionalProperties":false}`)
	wrongSchema    = documented(`{"type":"object","properties":{"step":{"type":"string"},"code":{"type":"string"},"message":{"type":"string"}},"required":["step","code","message"],"additionalProperties":false}`)
	pathSchema     = documented(`{"type":"object","properties":{"path":{"type":"integer","minimum":0}},"required":["path"],"additionalProperties":false}`)
	branchesSchema = documented(`{"type":"array","items":{"type":"object","properties":{"branch":{"type":"integer","minimum":0},"output":true},"required":["branch","output"],"additionalProperties":false}}`)
	listSchema     = documented(`{"type":"array"}`)
	stringSchema   = documented(`{"type":"string"}`)
)

func documented(source string) *expr.Schema {
	s, err := expr.ParseSchema([]byte(source))
	if err != nil {
		panic(err) // it stands above
	}
	return s
}

// program compiles one expression. It is nil if there is a problem.
func (v *verifier) program(step, field, source string, want *expr.Schema, sc *scope) *expr.Program {
	env, ok := v.env(step, field, sc)
	if !ok {
		return nil
	}
	p, err := env.Compile(source, want)
	if err != nil {
		v.expression(step, field, source, asExprError(err))
		return nil
	}
	return p
}

// addPlace puts a node with a state of its own into the machine, and gives its index.
func (v *verifier) addPlace(p place, legal bool, sc *scope) int {
	index := len(v.m.places)
	b := &v.m.bodies[sc.body]
	p.body, p.slot, p.indexed = sc.body, len(b.places), sc.indexed
	b.places = append(b.places, index)
	v.m.places = append(v.m.places, p)
	if legal {
		v.m.placeOf[p.name] = index
	}
	return index
}

// scoped checks a body that is run in scopes of a block. It gives the body's index; sc becomes what is known at its end.
func (v *verifier) scoped(block int, nodes []*sagadv1.Node, sc *scope) int {
	index := len(v.m.bodies)
	p := &v.m.places[block]
	v.m.bodies = append(v.m.bodies, body{owner: block, index: len(p.bodies), depth: v.m.bodies[p.body].depth + 1})
	p.bodies = append(p.bodies, index)
	sc.body = index
	out := v.sequence(nodes, sc, false) // it may add bodies
	v.m.bodies[index].nodes = out
	return index
}

// inside is what is known at the beginning of a block's body.
func (sc *scope) inside(name string, kind nodeKind) scope {
	inner := *sc
	inner.vars, inner.block = slices.Clip(sc.vars), kind
	if kind == savepointNode || kind == raceNode {
		inner.undoable, inner.undoer = true, name
	}
	return inner
}

// turn is what is known at the beginning of the body of a map or a loop.
func (v *verifier) turn(name string, kind nodeKind, sc *scope) scope {
	inner := sc.inside(name, kind)
	inner.indexed = true
	if inner.turns++; inner.turns == turnsMax+1 {
		v.problem(name, "body", "limit", fmt.Sprintf("maps and loops are nested deeper than %d", turnsMax), "let a child saga do the inner ones")
	}
	return inner
}

func (v *verifier) sleep(s *sagadv1.Sleep, sc *scope) node {
	name := s.GetName()
	legal := v.name("sleep", name)
	p := place{name: name, kind: sleepNode}
	given := 0
	if s.GetDuration() != nil {
		given++
		p.duration = v.duration(name, "duration", s.GetDuration(), 0, deadlineMin, deadlineMax)
	}
	if s.GetFor() != "" {
		given++
		p.lasts = v.program(name, "for", s.GetFor(), stringSchema, sc)
	}
	if s.GetUntil() != "" {
		given++
		p.until = v.program(name, "until", s.GetUntil(), stringSchema, sc)
	}
	switch {
	case given == 0:
		v.problem(name, "duration", "sleep-time", "the sleep doesn't say how long", `give one of duration, for (an expression such as "'90m'") and until (an expression of a time, RFC 3339)`)
	case given > 1:
		v.problem(name, "duration", "sleep-time", "the sleep says more than once how long", "keep one of duration, for and until")
	}
	return node{kind: sleepNode, index: v.addPlace(p, legal, sc)}
}

func (v *verifier) wait(w *sagadv1.Wait, sc *scope) node {
	name := w.GetName()
	legal := v.name("wait", name)
	p := place{name: name, kind: waitNode, signal: w.GetSignal(), otherwise: w.GetHasOtherwise(), schema: expr.Any}
	switch schema := v.m.signals[w.GetSignal()]; {
	case w.GetApproval() != nil && w.GetSignal() != "":
		v.problem(name, "signal", "wait-source", "the wait is for a signal and for a person's answer", "keep one of the two")
	case w.GetApproval() != nil:
		if title := w.GetApproval().GetTitle(); title == "" {
			v.problem(name, "approval.title", "wait-source", "the wait doesn't say what a person is asked", "add a title: an expression of the question, for example \"'Is order ' + input.id + ' fine?'\"")
		} else {
			p.title = v.program(name, "approval.title", title, stringSchema, sc)
		}
		p.schema = v.schema(name, "approval.form_schema", w.GetApproval().GetFormSchema())
	case w.GetSignal() == "":
		v.problem(name, "signal", "wait-source", "the wait doesn't say what for", "name a signal of the definition, or add an approval")
	case schema == nil:
		v.problem(name, "signal", "signal-declared", fmt.Sprintf("signal %q isn't declared", clip(w.GetSignal())), "add it to the definition's signals")
	default:
		p.schema = schema
		v.signalled[w.GetSignal()] = true
	}
	p.timeout = v.duration(name, "timeout", w.GetTimeout(), 0, deadlineMin, deadlineMax)
	switch {
	case p.otherwise && w.GetTimeout() == nil:
		v.problem(name, "timeout", "wait-arms", "there is a way to go when the time is up, but no timeout", "give a timeout, or leave the way out")
	case !p.otherwise && len(w.GetReceived())+len(w.GetOtherwise()) > 0:
		v.problem(name, "has_otherwise", "wait-arms", "the wait has arms, but doesn't say that there is a way to go when the time is up", "set has_otherwise, or put what follows after the wait")
	case w.GetTimeout() == nil && v.def.GetDeadline() == nil:
		v.problem(name, "timeout", "wait-unbounded", "neither the wait nor the definition ends it if nothing comes", "give the wait a timeout, or the definition a deadline")
	case !p.otherwise && w.GetTimeout() != nil && sc.pivot != onNone:
		v.problem(name, "timeout", "wait-after-pivot", "after the pivot nothing can be undone when the time is up", "say what is done otherwise, or leave the timeout out and give the definition a deadline")
	}
	out := node{kind: waitNode, index: v.addPlace(p, legal, sc)}
	know := func(sc *scope) {
		if legal {
			sc.know(name, p.schema)
		}
	}
	if !p.otherwise {
		know(sc)
		return out
	}
	out.branches = v.arms(sc, know, w.GetReceived(), w.GetOtherwise())
	return out
}

func (v *verifier) cases(s *sagadv1.Switch, sc *scope) node {
	name := s.GetName()
	legal := v.name("switch", name)
	out := node{kind: switchNode, index: v.addPlace(place{name: name, kind: switchNode}, legal, sc)}
	switch n := len(s.GetCases()); {
	case n == 0:
		v.problem(name, "cases", "switch-cases", "the switch has no cases", "add one, or put the default into the sequence instead")
	case n > casesMax:
		v.problem(name, "cases", "limit", fmt.Sprintf("%d cases; the limit is %d", n, casesMax), "use fewer cases")
		return out
	}
	if s.GetDefault() == nil {
		v.problem(name, "default", "switch-default", "the switch doesn't say what happens when no case's condition holds", "add a default; it may be empty")
	}
	var bodies [][]*sagadv1.Node
	for i, c := range s.GetCases() {
		out.conditions = append(out.conditions, v.program(name, fmt.Sprintf("cases[%d].condition", i), c.GetCondition(), expr.Bool, sc))
		bodies = append(bodies, c.GetBody())
	}
	out.branches = v.arms(sc, nil, append(bodies, s.GetDefault().GetBody())...)
	return out
}

func (v *verifier) loop(l *sagadv1.Loop, sc *scope) node {
	name := l.GetName()
	legal := v.name("loop", name)
	p := place{name: name, kind: loopNode, rounds: int(l.GetMaxRounds()), keep: l.GetNext() == nil}
	if n := l.GetMaxRounds(); n < 1 || n > roundsMax {
		v.problem(name, "max_rounds", "limit", fmt.Sprintf("%d rounds is out of range", n), fmt.Sprintf("use 1 to %d", roundsMax))
	}
	p.initial = v.mapping(name, "initial", l.GetInitial(), expr.Any, sc)
	v.filled(name, "body", l.GetBody())
	index := v.addPlace(p, legal, sc)
	inner := v.turn(name, loopNode, sc)
	if legal {
		inner.know(name, roundSchema)
	}
	v.scoped(index, l.GetBody(), &inner)
	if l.GetNext() != nil {
		next := v.mapping(name, "next", l.GetNext(), expr.Any, &inner)
		v.m.places[index].next = next
	}
	if l.GetWhile() == "" {
		v.problem(name, "while", "loop-while", "the loop doesn't say when there is another round", "add a condition, for example \""+sampleCondition(name, legal)+"\"")
	} else {
		while := v.program(name, "while", l.GetWhile(), expr.Bool, &inner)
		v.m.places[index].while = while
	}
	if legal {
		sc.know(name, loopedSchema)
	}
	return node{kind: loopNode, index: index}
}

func sampleCondition(name string, legal bool) string {
	if !legal {
		return "true"
	}
	return name + ".index < 9"
}

func (v *verifier) each(m *sagadv1.Map, sc *scope) node {
	name := m.GetName()
	legal := v.name("map", name)
	p := place{name: name, kind: mapNode, window: windowDefault, tolerate: int(m.GetTolerate()), results: m.GetOutput() != nil}
	if m.GetItems() == "" {
		v.problem(name, "items", "map-items", "the map doesn't say what list it is over", "add items: an expression of a list")
	} else {
		p.items = v.program(name, "items", m.GetItems(), listSchema, sc)
	}
	if n := m.GetWindow(); n < 0 || n > windowMax {
		v.problem(name, "window", "limit", fmt.Sprintf("%d elements at a time is out of range", n), fmt.Sprintf("use 1 to %d, or leave it out for %d", windowMax, windowDefault))
	} else if n > 0 {
		p.window = int(n)
	}
	if n := m.GetTolerate(); n < 0 || n > elementsMax {
		v.problem(name, "tolerate", "limit", fmt.Sprintf("%d failed elements is out of range", n), fmt.Sprintf("use 0 to %d", elementsMax))
	}
	v.filled(name, "body", m.GetBody())
	index := v.addPlace(p, legal, sc)
	inner := v.turn(name, mapNode, sc)
	if m.GetTolerate() > 0 {
		inner.undoable, inner.undoer = true, name // the element that failed, while the others go on
	}
	if legal {
		inner.know(name, elementSchema)
	}
	b := v.scoped(index, m.GetBody(), &inner)
	if m.GetOutput() != nil {
		output := v.mapping(name, "output", m.GetOutput(), expr.Any, &inner)
		v.m.bodies[b].output = output
	}
	if legal && m.GetOutput() != nil {
		sc.know(name, resultsSchema)
	} else if legal {
		sc.know(name, mappedSchema)
	}
	return node{kind: mapNode, index: index}
}

func (v *verifier) savepoint(s *sagadv1.Savepoint, sc *scope) node {
	name := s.GetName()
	legal := v.name("savepoint", name)
	index := v.addPlace(place{name: name, kind: savepointNode}, legal, sc)
	out := node{kind: savepointNode, index: index}
	v.filled(name, "body", s.GetBody())
	switch n := len(s.GetAlternatives()); {
	case n == 0:
		v.problem(name, "alternatives", "savepoint-alternatives", "the savepoint has no alternative", "add one, or put the body into the sequence instead")
	case n > alternativesMax:
		v.problem(name, "alternatives", "limit", fmt.Sprintf("%d alternatives; the limit is %d", n, alternativesMax), "use fewer")
		return out
	}
	inner := sc.inside(name, savepointNode)
	v.scoped(index, s.GetBody(), &inner)
	for i, a := range s.GetAlternatives() {
		field := fmt.Sprintf("alternatives[%d]", i)
		inner := sc.inside(name, savepointNode)
		if legal {
			inner.know(name, wrongSchema)
		}
		var condition *expr.Program
		if a.GetCondition() != "" {
			condition = v.program(name, field+".condition", a.GetCondition(), expr.Bool, &inner)
		} else if i < len(s.GetAlternatives())-1 {
			v.problem(name, field, "savepoint-alternatives", "the alternative is always taken, so those after it never are", "give it a condition, or make it the last")
		}
		v.m.places[index].conditions = append(v.m.places[index].conditions, condition)
		v.scoped(index, a.GetBody(), &inner)
	}
	if legal {
		sc.know(name, pathSchema)
	}
	return out
}

func (v *verifier) race(p *sagadv1.Parallel, sc *scope) node {
	name := p.GetName()
	legal := v.name("parallel", name)
	need := v.join(p)
	index := v.addPlace(place{name: name, kind: raceNode, need: need}, legal, sc)
	if need == 0 {
		return node{kind: raceNode, index: index}
	}
	for i, b := range p.GetBranches() {
		inner := sc.inside(name, raceNode)
		at := v.scoped(index, b.GetBody(), &inner)
		if b.GetOutput() != nil {
			output := v.mapping(name, fmt.Sprintf("branches[%d].output", i), b.GetOutput(), expr.Any, &inner)
			v.m.bodies[at].output = output
		}
	}
	if legal {
		sc.know(name, branchesSchema)
	}
	return node{kind: raceNode, index: index}
}

// filled refuses a body without nodes.
func (v *verifier) filled(name, field string, nodes []*sagadv1.Node) {
	if len(nodes) == 0 {
		v.problem(name, field, "block-empty", "there is nothing in it", "add nodes, or remove it")
	}
}
