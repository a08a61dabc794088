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

type edge struct{ from, label string }

func (g *grapher) line(format string, args ...any) { fmt.Fprintf(&g.b, format+"\n", args...) }

func (g *grapher) edges(from []edge, to string) {
	for _, e := range from {
		if e.label != "" {
			g.line(`  %s -->|"%s"| %s`, e.from, escape(e.label), to)
		} else {
			g.line("  %s --> %s", e.from, to)
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
			g.line(`  %s{{"all done"}}`, join)
			g.edges(out, join)
			in = []edge{{from: join}}
		case *sagadv1.Node_If:
			id := "i_" + k.If.GetName()
			g.line(`  %s{"%s"}`, id, escape(k.If.GetCondition()))
			g.edges(in, id)
			in = append(g.sequence(k.If.GetThen(), []edge{{id, "yes"}}), g.sequence(k.If.GetElse(), []edge{{id, "no"}})...)
		case *sagadv1.Node_Return:
			g.line(`  end_(["return"])`)
			g.edges(in, "end_")
			g.returned = true
		}
	}
	return in
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
