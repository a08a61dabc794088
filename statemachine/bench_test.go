package statemachine

import (
	"testing"

	"google.golang.org/protobuf/proto"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
)

// BenchmarkSaga decides a whole saga of three steps: its start and three results. The expressions are as small as usual ones.
func BenchmarkSaga(b *testing.B) {
	for _, c := range []struct{ name, def string }{
		{"plain", "comp t1\npivot t2\nretriable t3"},
		{"mapped", "comp t1 in={'order':input.order,'qty':input.qty}\npivot t2 in={'of':t1.id,'amount':input.amount}\nretriable t3 in={'to':input.mail}\nreturn {'id':t1.id}"},
	} {
		b.Run(c.name, func(b *testing.B) {
			m := machineOf(b, c.def)
			input := []byte(`{"order":"o-1","qty":3,"amount":12345,"mail":"ann@example.com"}`)
			output := []byte(`{"id":"r-17"}`)
			b.ReportAllocs()
			for b.Loop() {
				d, err := m.Decide(nil, Start{Namespace: "default", SagaID: "s-1", Version: 1, Input: input}, 1_000_000, 1)
				for _, step := range []string{"t1", "t2", "t3"} {
					if err == nil {
						d, err = m.Decide(d.State, Result{
							Call: Call{Step: step, Dir: do}, Generation: 1, Attempt: 1, Outcome: historyv1.Outcome_OUTCOME_SUCCEEDED, Output: output, Worker: "w-1",
						}, 2_000_000, 2)
					}
				}
				if err != nil || d.State.Status != Completed {
					b.Fatal(err, d.State.Status)
				}
			}
		})
	}
}

// BenchmarkFold folds the history of a saga of three steps, from its stored form.
func BenchmarkFold(b *testing.B) {
	m := machineOf(b, "comp t1\ncomp t2\ncomp t3")
	var stored [][]byte
	keep := func(d Decision, err error) *State {
		if err != nil {
			b.Fatal(err)
		}
		raw, err := proto.Marshal(d.Transition)
		if err != nil {
			b.Fatal(err)
		}
		stored = append(stored, raw)
		return d.State
	}
	s := keep(m.Decide(nil, Start{Input: []byte("{}")}, 1, 1))
	for _, step := range []string{"t1", "t2", "t3"} {
		s = keep(m.Decide(s, Result{Call: Call{Step: step, Dir: do}, Generation: 1, Attempt: 1, Outcome: historyv1.Outcome_OUTCOME_SUCCEEDED}, 2, 2))
	}
	b.ReportAllocs()
	for b.Loop() {
		var s *State
		for _, raw := range stored {
			t := &historyv1.Transition{}
			err := proto.Unmarshal(raw, t)
			if err == nil {
				s, err = m.Evolve(s, t)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		if s.Status != Completed {
			b.Fatal(s.Status)
		}
	}
}

func machineOf(t testing.TB, source string) *Machine {
	t.Helper()
	def, err := parseDefinition(source)
	if err != nil {
		t.Fatal(err)
	}
	m, problems := Compile(def)
	if len(problems) > 0 {
		t.Fatal(printProblems(problems))
	}
	return m
}
