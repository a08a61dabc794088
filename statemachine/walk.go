package statemachine

import sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"

// Bodies are the sequences inside a node of a definition, in order; none of steps, sleeps, children and returns. Of an if they are then
// and else, of a switch its cases and, last, the default, of a wait received and otherwise, of a savepoint its body and the alternatives.
func Bodies(n *sagadv1.Node) [][]*sagadv1.Node {
	switch k := n.GetKind().(type) {
	case *sagadv1.Node_Parallel:
		out := make([][]*sagadv1.Node, 0, len(k.Parallel.GetBranches()))
		for _, b := range k.Parallel.GetBranches() {
			out = append(out, b.GetBody())
		}
		return out
	case *sagadv1.Node_If:
		return [][]*sagadv1.Node{k.If.GetThen(), k.If.GetElse()}
	case *sagadv1.Node_Switch:
		out := make([][]*sagadv1.Node, 0, len(k.Switch.GetCases())+1)
		for _, c := range k.Switch.GetCases() {
			out = append(out, c.GetBody())
		}
		return append(out, k.Switch.GetDefault().GetBody())
	case *sagadv1.Node_Wait:
		return [][]*sagadv1.Node{k.Wait.GetReceived(), k.Wait.GetOtherwise()}
	case *sagadv1.Node_Loop:
		return [][]*sagadv1.Node{k.Loop.GetBody()}
	case *sagadv1.Node_Map:
		return [][]*sagadv1.Node{k.Map.GetBody()}
	case *sagadv1.Node_Savepoint:
		out := make([][]*sagadv1.Node, 0, len(k.Savepoint.GetAlternatives())+1)
		out = append(out, k.Savepoint.GetBody())
		for _, a := range k.Savepoint.GetAlternatives() {
			out = append(out, a.GetBody())
		}
		return out
	default:
		return nil
	}
}

// nodeName is a node's name and kind. Nodes of an unknown kind are taken for returns, which have neither a name nor anything inside.
func nodeName(n *sagadv1.Node) (string, nodeKind) {
	switch k := n.GetKind().(type) {
	case *sagadv1.Node_Step:
		return k.Step.GetName(), stepNode
	case *sagadv1.Node_Child:
		return k.Child.GetName(), stepNode
	case *sagadv1.Node_Parallel:
		if isRace(k.Parallel) {
			return k.Parallel.GetName(), raceNode
		}
		return k.Parallel.GetName(), parallelNode
	case *sagadv1.Node_If:
		return k.If.GetName(), ifNode
	case *sagadv1.Node_Switch:
		return k.Switch.GetName(), switchNode
	case *sagadv1.Node_Sleep:
		return k.Sleep.GetName(), sleepNode
	case *sagadv1.Node_Wait:
		return k.Wait.GetName(), waitNode
	case *sagadv1.Node_Loop:
		return k.Loop.GetName(), loopNode
	case *sagadv1.Node_Map:
		return k.Map.GetName(), mapNode
	case *sagadv1.Node_Savepoint:
		return k.Savepoint.GetName(), savepointNode
	default:
		return returnStep, returnNode
	}
}

// isBlock says that what is inside runs in scopes of its own.
func isBlock(k nodeKind) bool {
	return k == mapNode || k == loopNode || k == savepointNode || k == raceNode
}

// isRace says that a parallel goes on before all of its branches are done.
func isRace(p *sagadv1.Parallel) bool {
	return p.GetJoin() == sagadv1.Join_JOIN_ANY || p.GetJoin() == sagadv1.Join_JOIN_COUNT
}
