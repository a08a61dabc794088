package sim

import "time"

// injector lets something happen to a node or the bus every so often.
func (s *sim) injector() {
	total := 0
	for _, w := range s.injected {
		total += w
	}
	if total == 0 {
		return
	}
	s.later(s.between(s.every/4, 2*s.every), "injector", 0, func() {
		if s.calm {
			return
		}
		at := s.upTo(total)
		for kind, w := range s.injected {
			if at -= w; at < 0 {
				s.inject(kind)
				break
			}
		}
		s.injector()
	})
}

func (s *sim) inject(kind int) {
	n := s.nodes[s.upTo(len(s.nodes))]
	p := n.process
	switch kind {
	case injectWipe:
		s.fault("bus wiped")
		s.wipe()
		return
	case injectPoison:
		m := s.someone()
		if m == nil {
			return
		}
		s.fault("the database refuses a saga")
		id := m.id
		s.poison[id] = true
		s.later(s.between(time.Second, 2*time.Minute), "a saga can be written again", 0, func() { delete(s.poison, id) })
		return
	case injectBusDown:
		s.fault("bus down")
		s.busDown = max(s.busDown, s.now+s.between(100*time.Millisecond, time.Minute).Microseconds())
		return
	case injectWorkersDown:
		s.fault("workers down")
		s.workersDown = max(s.workersDown, s.now+s.between(100*time.Millisecond, time.Minute).Microseconds())
		return
	case injectOutage:
		s.fault("database down")
		d := s.between(50*time.Millisecond, 3*s.ttl)
		for _, p := range s.processes {
			p.dbDown = max(p.dbDown, s.now+d.Microseconds())
		}
		return
	case injectJump:
		d := s.between(time.Second, 30*time.Minute)
		if s.oneIn(2) {
			d = -d
		}
		s.fault("database clock jumps")
		s.jump += d.Microseconds()
		waits := false
		for _, m := range s.order {
			waits = waits || m.end == 0
		}
		if waits && d > 0 {
			s.sometimes("the database's clock jumps forward with timers pending")
		} else if waits {
			s.sometimes("the database's clock jumps back with timers pending")
		}
		return
	}
	if p == nil || p.dead {
		return
	}
	switch kind {
	case injectCrash:
		s.fault("process killed")
		p.die()
	case injectPause:
		s.fault("process paused")
		p.pause(s.between(time.Millisecond, s.ttl), s.oneIn(3))
	case injectLongPause:
		s.fault("process paused for long")
		p.pause(s.ttl+s.between(time.Second, 4*s.ttl), s.oneIn(2))
	case injectReplace:
		if p.paused > s.now {
			return
		}
		s.fault("process replaced while it stands still")
		p.pause(s.between(time.Second, 3*s.ttl), s.oneIn(2))
		p.replaced = true
		n.process = nil
		s.boot(n)
		// Two processes under one name aren't meant to be, and somebody sees to it.
		s.later(time.Duration(p.paused-s.now)*time.Microsecond+s.between(10*time.Millisecond, 2*s.ttl), "the replaced process ends", p.number, p.die)
	case injectDrain:
		if p.draining || p.paused > s.now {
			return
		}
		s.fault("process stopped cleanly")
		if p.step.Frozen() || s.open > 0 {
			s.sometimes("a clean stop with work under way")
		}
		p.draining = true
		p.step.Stop()
		p.poke(0)
	case injectPartition:
		s.fault("node cut off the database")
		p.dbDown = max(p.dbDown, s.now+s.between(50*time.Millisecond, 3*s.ttl).Microseconds())
	}
}

// someone is a saga that hasn't ended, or nil.
func (s *sim) someone() *model {
	for range 10 {
		if len(s.order) == 0 {
			return nil
		}
		if m := s.order[s.upTo(len(s.order))]; m.end == 0 {
			return m
		}
	}
	return nil
}
