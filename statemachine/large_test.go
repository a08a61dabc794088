package statemachine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
)

// TestLargeMap runs a map over as many elements as there may be, forward and then back, and folds its history.
func TestLargeMap(t *testing.T) {
	def, err := parseDefinition("comp a\nmap m window=100 input.items\ncomp b in=m.item\ncomp c\nend\ncomp d")
	if err != nil {
		t.Fatal(err)
	}
	m, problems := Compile(def)
	if len(problems) > 0 {
		t.Fatal(printProblems(problems))
	}
	n := 10_000
	if testing.Short() {
		n = 1000
	}
	items := make([]string, n)
	for i := range items {
		items[i] = fmt.Sprint(i)
	}
	began := time.Now()
	var history []*historyv1.Transition
	now := Micros(1_000_000)
	d, err := m.Decide(nil, Start{Namespace: "n", SagaID: "s", Version: 1, Input: []byte(`{"items":[` + strings.Join(items, ",") + `]}`)}, now, 1)
	if err != nil {
		t.Fatal(err)
	}
	queue := d.Dispatch
	history = append(history, d.Transition)
	s, undone, forward := d.State, 0, time.Duration(0)
	for len(queue) > 0 {
		c := queue[0]
		queue = queue[1:]
		now++
		e := Result{Call: c, Generation: 1, Attempt: 1, Outcome: historyv1.Outcome_OUTCOME_SUCCEEDED, Output: []byte("{}")}
		if c.Step == "d" && c.Dir == do {
			e.Outcome = historyv1.Outcome_OUTCOME_REJECTED
			forward = time.Since(began)
		}
		if c.Dir == undo {
			undone++
		}
		if d, err = m.Decide(s, e, now, 1); err != nil || d.Transition == nil {
			t.Fatal(c, err)
		}
		s, queue, history = d.State, append(queue, d.Dispatch...), append(history, d.Transition)
	}
	if s.Status != Compensated || undone != 2*n+1 {
		t.Fatalf("%s after %d compensations", s.Status, undone)
	}
	run := time.Since(began)
	folded, err := m.Fold(history)
	if err != nil {
		t.Fatal(err)
	}
	if fingerprint(folded) != fingerprint(s) {
		t.Error("the fold differs from what was decided on")
	}
	t.Logf("%d elements, %d transitions: forward %v, back %v, fold %v", n, len(history), forward, run-forward, time.Since(began)-run)
}
