package engine

import (
	"github.com/sagad/sagad/statemachine"
)

// sent is an attempt that was given to the bus and has no result yet. The bus may have lost it, so it is sent again
// after a while, and each time after twice as long.
type sent struct {
	saga                *saga
	call                statemachine.Call
	generation, attempt int32
	// dispatch of the last sending.
	dispatch int32
	// again says how often it was sent again, at most redispatchDoublings.
	again int
	// due is when it is sent again.
	due statemachine.Micros

	prev, next *sent
}

// sends are the attempts that are out, those due first in front: a list for each waiting time, so that each list is in
// order of itself.
type sends struct {
	lists [redispatchDoublings + 1]struct{ first, last *sent }
	// free is a list of records to be used again.
	free *sent
}

func (q *sends) add(x *sent) {
	l := &q.lists[x.again]
	x.prev, x.next = l.last, nil
	if l.last != nil {
		l.last.next = x
	} else {
		l.first = x
	}
	l.last = x
}

func (q *sends) remove(x *sent) {
	l := &q.lists[x.again]
	if x.prev != nil {
		x.prev.next = x.next
	} else {
		l.first = x.next
	}
	if x.next != nil {
		x.next.prev = x.prev
	} else {
		l.last = x.prev
	}
	x.prev, x.next = nil, nil
}

// first is the attempt that is due next, or nil.
func (q *sends) first() *sent {
	var first *sent
	for i := range q.lists {
		if x := q.lists[i].first; x != nil && (first == nil || x.due < first.due) {
			first = x
		}
	}
	return first
}

func (q *sends) alloc() *sent {
	if x := q.free; x != nil {
		q.free = x.next
		x.next = nil
		return x
	}
	return new(sent)
}

func (q *sends) release(x *sent) {
	*x = sent{next: q.free}
	q.free = x
}
