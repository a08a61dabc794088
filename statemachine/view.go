package statemachine

// StepView is a step, or one of its runs in a map or a loop, as people see it.
type StepView struct {
	*StepState
	// Item is its place in maps and loops; empty outside of them.
	Item     string
	Activity string
	// Child: it runs another saga; Activity is that one's definition.
	Child bool
	// Skipped: it stands where the saga didn't go.
	Skipped bool
	// Undone: it stands in a part that was undone while the saga went on.
	Undone bool
}

// Views lists the saga's steps in the definition's order, those of maps and loops once for each element or round that began, limit at
// most. total counts all.
func (m *Machine) Views(s *State, limit int) (views []StepView, total int) {
	var walk func(f *Frame, nodes []node, skipped, undone bool)
	walk = func(f *Frame, nodes []node, skipped, undone bool) {
		for i := range nodes {
			n := &nodes[i]
			switch n.kind {
			case stepNode:
				if total++; len(views) < limit {
					st := &m.steps[n.index]
					v := StepView{StepState: &StepState{Name: st.name}, Activity: st.activity, Child: st.child, Skipped: skipped, Undone: undone}
					if f != nil {
						v.StepState, v.Item = &f.Steps[st.slot], f.Item
					}
					views = append(views, v)
				}
			case parallelNode:
				for _, b := range n.branches {
					walk(f, b, skipped, undone)
				}
			case ifNode, switchNode, waitNode:
				arm := ArmOpen
				if f != nil {
					arm = f.Places[m.places[n.index].slot].Arm
				}
				for k, b := range n.branches {
					walk(f, b, skipped || arm != ArmOpen && Arm(k) != arm-ArmThen, undone)
				}
			case mapNode, loopNode, savepointNode, raceNode:
				p := &m.places[n.index]
				var ps *PlaceState
				if f != nil {
					ps = &f.Places[p.slot]
					for _, in := range ps.frames {
						if in != nil {
							walk(in, m.bodies[in.body].nodes, skipped, undone || in.Phase == FrameUndone || in.Phase == FrameUnwinding)
						}
					}
				}
				if p.kind == savepointNode || p.kind == raceNode {
					// Paths that weren't taken.
					for k, b := range p.bodies {
						if ps == nil || k >= len(ps.frames) || ps.frames[k] == nil {
							walk(nil, m.bodies[b].nodes, skipped || ps != nil && ps.Phase == PlaceDone, undone)
						}
					}
				}
			}
		}
	}
	walk(&s.Frame, m.bodies[0].nodes, false, false)
	return views, total
}
