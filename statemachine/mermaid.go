package statemachine

import (
	"fmt"
	"strings"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// Mermaid draws a definition as a flow chart: the forward path, under each compensatable step its compensation (dashed), the
// pivot with a thick line.
func Mermaid(def *sagadv1.Definition) string {
	g := grapher{}
	g.line("flowchart TD")
	g.line(`  start_(["%s"])`, escape(def.GetName()))
	ends := g.sequence(def.GetBody(), []edge{{from: "start_"}})
	if !g.returned {
		g.line(`  end_(["completed"])`)
		g.edges(ends, "end_")
	}
	g.line("  classDef pivot stroke-width:4px")
	g.line("  classDef undo stroke-dasharray:4 4")
	return g.b.String()
}

type grapher struct {
	b        strings.Builder
	returned bool
}

type edge struct {
	from, label string
	// failing: it is taken when something failed.
	failing bool
}

func (g *grapher) line(format string, args ...any) { fmt.Fprintf(&g.b, format+"\n", args...) }

func (g *grapher) edges(from []edge, to string) {
	for _, e := range from {
		arrow := "-->"
		if e.failing {
			arrow = "-.->"
		}
		if e.label != "" {
			g.line(`  %s %s|"%s"| %s`, e.from, arrow, escape(e.label), to)
		} else {
			g.line("  %s %s %s", e.from, arrow, to)
		}
	}
}

// sequence draws nodes after the given edges and returns the edges that leave them.
func (g *grapher) sequence(nodes []*sagadv1.Node, in []edge) []edge {
	for _, n := range nodes {
		switch k := n.GetKind().(type) {
		case *sagadv1.Node_Step:
			s := k.Step
			id := "s_" + s.GetName()
			g.line(`  %s["%s<br/><i>%s</i>"]`, id, escape(s.GetName()), escape(kindWord(s.GetKind())+" "+s.GetActivity()))
			g.edges(in, id)
			switch s.GetKind() {
			case sagadv1.Kind_KIND_PIVOT:
				g.line("  class %s pivot", id)
			case sagadv1.Kind_KIND_COMPENSATABLE:
				g.line(`  u_%s["undo %s"]:::undo`, s.GetName(), escape(s.GetName()))
				g.line("  %s -.- u_%s", id, s.GetName())
			}
			in = []edge{{from: id}}
		case *sagadv1.Node_Parallel:
			fork, join := "p_"+k.Parallel.GetName(), "j_"+k.Parallel.GetName()
			g.line(`  %s{{"%s"}}`, fork, escape(k.Parallel.GetName()))
			g.edges(in, fork)
			var out []edge
			for _, b := range k.Parallel.GetBranches() {
				out = append(out, g.sequence(b.GetBody(), []edge{{from: fork}})...)
			}
			g.line(`  %s{{"%s"}}`, join, joinWords(k.Parallel))
			g.edges(out, join)
			in = []edge{{from: join}}
		case *sagadv1.Node_If:
			id := "i_" + k.If.GetName()
			g.line(`  %s{"%s"}`, id, escape(k.If.GetCondition()))
			g.edges(in, id)
			in = append(g.sequence(k.If.GetThen(), []edge{{from: id, label: "yes"}}), g.sequence(k.If.GetElse(), []edge{{from: id, label: "no"}})...)
		case *sagadv1.Node_Switch:
			id := "i_" + k.Switch.GetName()
			g.line(`  %s{"%s"}`, id, escape(k.Switch.GetName()))
			g.edges(in, id)
			in = nil
			for _, c := range k.Switch.GetCases() {
				in = append(in, g.sequence(c.GetBody(), []edge{{from: id, label: c.GetCondition()}})...)
			}
			in = append(in, g.sequence(k.Switch.GetDefault().GetBody(), []edge{{from: id, label: "otherwise"}})...)
		case *sagadv1.Node_Sleep:
			id := "t_" + k.Sleep.GetName()
			g.line(`  %s[/"%s"/]`, id, escape(sleepWords(k.Sleep)))
			g.edges(in, id)
			in = []edge{{from: id}}
		case *sagadv1.Node_Wait:
			id := "w_" + k.Wait.GetName()
			g.line(`  %s[/"%s<br/><i>%s</i>"/]`, id, escape(k.Wait.GetName()), escape(waitWords(k.Wait)))
			g.edges(in, id)
			if in = []edge{{from: id}}; k.Wait.GetHasOtherwise() {
				in = append(g.sequence(k.Wait.GetReceived(), []edge{{from: id, label: "received"}}), g.sequence(k.Wait.GetOtherwise(), []edge{{from: id, label: "time is up"}})...)
			}
		case *sagadv1.Node_Loop:
			id, again := "l_"+k.Loop.GetName(), "e_"+k.Loop.GetName()
			g.line(`  %s{{"%s<br/><i>at most %d rounds</i>"}}`, id, escape(k.Loop.GetName()), k.Loop.GetMaxRounds())
			g.edges(in, id)
			out := g.sequence(k.Loop.GetBody(), []edge{{from: id}})
			g.line(`  %s{"%s"}`, again, escape(k.Loop.GetWhile()))
			g.edges(out, again)
			g.edges([]edge{{from: again, label: "yes"}}, id)
			in = []edge{{from: again, label: "no"}}
		case *sagadv1.Node_Map:
			id, join := "m_"+k.Map.GetName(), "j_"+k.Map.GetName()
			g.line(`  %s{{"%s<br/><i>for each of %s</i>"}}`, id, escape(k.Map.GetName()), escape(k.Map.GetItems()))
			g.edges(in, id)
			out := g.sequence(k.Map.GetBody(), []edge{{from: id}})
			words := "all done"
			if n := k.Map.GetTolerate(); n > 0 {
				words = fmt.Sprintf("all done but %d at most", n)
			}
			g.line(`  %s{{"%s"}}`, join, words)
			g.edges(out, join)
			in = []edge{{from: join}}
		case *sagadv1.Node_Savepoint:
			id, join := "v_"+k.Savepoint.GetName(), "j_"+k.Savepoint.GetName()
			g.line(`  %s{{"%s<br/><i>savepoint</i>"}}`, id, escape(k.Savepoint.GetName()))
			g.edges(in, id)
			out := g.sequence(k.Savepoint.GetBody(), []edge{{from: id}})
			for i, a := range k.Savepoint.GetAlternatives() {
				label := "if that fails"
				if i > 0 {
					label = "if that fails too"
				}
				if c := a.GetCondition(); c != "" {
					label += ": " + c
				}
				out = append(out, g.sequence(a.GetBody(), []edge{{from: id, label: label, failing: true}})...)
			}
			g.line(`  %s{{"done"}}`, join)
			g.edges(out, join)
			in = []edge{{from: join}}
		case *sagadv1.Node_Child:
			id := "s_" + k.Child.GetName()
			g.line(`  %s[["%s<br/><i>%s</i>"]]`, id, escape(k.Child.GetName()), escape(kindWord(k.Child.GetKind())+" saga "+k.Child.GetDefinition()))
			g.edges(in, id)
			if k.Child.GetKind() == sagadv1.Kind_KIND_COMPENSATABLE {
				g.line(`  u_%s["undo %s"]:::undo`, k.Child.GetName(), escape(k.Child.GetName()))
				g.line("  %s -.- u_%s", id, k.Child.GetName())
			}
			in = []edge{{from: id}}
		case *sagadv1.Node_Return:
			g.line(`  end_(["return"])`)
			g.edges(in, "end_")
			g.returned = true
		}
	}
	return in
}

func joinWords(p *sagadv1.Parallel) string {
	switch n := len(p.GetBranches()); p.GetJoin() {
	case sagadv1.Join_JOIN_ANY:
		return fmt.Sprintf("1 of %d done", n)
	case sagadv1.Join_JOIN_COUNT:
		return fmt.Sprintf("%d of %d done", p.GetCount(), n)
	default:
		return "all done"
	}
}

func sleepWords(s *sagadv1.Sleep) string {
	switch {
	case s.GetFor() != "":
		return "sleep for " + s.GetFor()
	case s.GetUntil() != "":
		return "sleep until " + s.GetUntil()
	default:
		return "sleep " + written(s.GetDuration())
	}
}

func waitWords(w *sagadv1.Wait) string {
	words := "wait for signal " + w.GetSignal()
	if w.GetApproval() != nil {
		words = "ask " + w.GetApproval().GetTitle()
	}
	if w.GetTimeout() != nil {
		words += ", at most " + written(w.GetTimeout())
	}
	return words
}

func kindWord(k sagadv1.Kind) string {
	switch k {
	case sagadv1.Kind_KIND_COMPENSATABLE:
		return "compensatable"
	case sagadv1.Kind_KIND_READ_ONLY:
		return "read-only"
	case sagadv1.Kind_KIND_PIVOT:
		return "pivot"
	case sagadv1.Kind_KIND_RETRIABLE:
		return "retriable"
	default:
		return "unspecified"
	}
}

func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", `"`, "&quot;", "<", "&lt;", ">", "&gt;", "\n", " ").Replace(s)
}
