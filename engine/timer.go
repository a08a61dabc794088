package engine

// timers is a heap of sagas by the time of their next timer. Sagas know their place in it.
type timers []*saga

// set puts the saga where its wake says, or takes it out if that is 0.
func (h *timers) set(g *saga) {
	switch {
	case g.wake == 0:
		h.remove(g)
	case g.place < 0:
		g.place = len(*h)
		*h = append(*h, g)
		h.up(g.place)
	default:
		h.fix(g.place)
	}
}

func (h *timers) remove(g *saga) {
	i := g.place
	if i < 0 {
		return
	}
	last := len(*h) - 1
	h.swap(i, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	g.place = -1
	if i < last {
		h.fix(i)
	}
}

func (h *timers) fix(i int) {
	if !h.down(i) {
		h.up(i)
	}
}

func (h *timers) swap(i, j int) {
	s := *h
	s[i], s[j] = s[j], s[i]
	s[i].place, s[j].place = i, j
}

func (h *timers) up(i int) {
	s := *h
	for i > 0 {
		parent := (i - 1) / 2
		if s[parent].wake <= s[i].wake {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h *timers) down(i int) bool {
	s := *h
	from := i
	for {
		child := 2*i + 1
		if child >= len(s) {
			break
		}
		if child+1 < len(s) && s[child+1].wake < s[child].wake {
			child++
		}
		if s[i].wake <= s[child].wake {
			break
		}
		h.swap(i, child)
		i = child
	}
	return i > from
}
