package engine

import (
	"math/rand/v2"
	"testing"
	"time"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	define "github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// blockDefinitions are sagas with blocks, and blocks in blocks. Steps whose names begin with c change nothing.
func blockDefinitions() []*sagadv1.Definition {
	step := func(name string) define.Node {
		return define.Do(name, define.Compensatable[any, any]{Name: "x." + name}, define.Value("input"), define.Timeout(5*time.Second), define.Retry{MaxAttempts: 2, Initial: time.Second})
	}
	asked := define.Do("p", define.Compensatable[any, any]{Name: "x.p", Probe: true}, define.Value("input"), define.Timeout(5*time.Second), define.Retry{MaxAttempts: 1})
	look := define.Read("c", define.ReadOnly[any, any]{Name: "x.c"}, define.Value("input"))
	pivot := define.Pivot("z", define.Activity[any, any]{Name: "x.z"}, define.Value("input"), define.Retry{MaxAttempts: 2, Initial: time.Second})
	return []*sagadv1.Definition{
		define.Define[any, any]("map", step("a"), define.Map("m", "[1,2,3]", define.Window(2), define.Tolerate(1), step("b"), step("d")), pivot).Proto(),
		define.Define[any, any]("race", step("a"), define.Any("r", define.Branch(step("b"), step("d")), define.Branch(step("e")), define.Branch(look)), step("f")).Proto(),
		define.Define[any, any]("some", define.AtLeast(2, "r", define.Branch(step("b")), define.Branch(step("e")), define.Branch(asked)), pivot).Proto(),
		define.Define[any, any]("savepoint", step("a"), define.Savepoint("s", define.Body(step("b"), step("d")), define.AlternativeIf("s.code == 'X'", step("e")), define.Alternative(look)), step("f")).Proto(),
		define.Define[any, any]("loop", define.Loop("l", 3, step("b"), define.While("l.index < 1")), asked, step("f")).Proto(),
		define.Define[any, any]("deep", define.Savepoint("s", define.Body(define.Map("m", "[1,2]", define.Map("k", "[1,2]", step("b")), step("d"))),
			define.Alternative(define.Loop("l", 2, step("e"), define.While("false")))), define.Sleep("nap", 3*time.Second), pivot).Proto(),
	}
}

// TestBlocks walks at random through small worlds with blocks: two nodes over one shard, real doors, crashes, take-overs, commits of unknown
// outcome, lost and repeated messages, rejections, failures, cancels. In each state what must hold is checked; at the end every saga has ended, and the
// world is as it says.
func TestBlocks(t *testing.T) {
	ms, err := newMetrics(nil, gauges{})
	if err != nil {
		t.Fatal(err)
	}
	seeds := uint64(250)
	if testing.Short() || raceOn {
		seeds = 40
	}
	ends := map[store.Status]int{}
	steps, faults := 0, 0
	for _, def := range blockDefinitions() {
		m, problems := statemachine.Compile(def)
		if problems != nil {
			t.Fatalf("%s: %v", def.GetName(), problems)
		}
		for seed := range seeds {
			rng := rand.New(rand.NewPCG(seed, 3))
			b := bounds{sagas: 2, crashes: 2, takeovers: 2, unknown: 3, repeats: 3, losses: 3, rejections: int8(rng.IntN(4)), failures: int8(rng.IntN(4)), cancels: int8(rng.IntN(2)), early: 4}
			w := startSmallWorld(t, m, ms, b, `{"n":1}`)
			for turn := 0; ; turn++ {
				if turn == 150 {
					w.left = bounds{} // and now it comes to its end
				}
				cs := w.choices()
				if len(cs) == 0 {
					break
				}
				i := rng.IntN(len(cs))
				for tries := 0; cs[i].odd && rng.IntN(5) > 0 && tries < 20; tries++ {
					i = rng.IntN(len(cs))
				}
				if cs[i].odd {
					faults++
				}
				cs[i].do()
				steps++
				w.check()
				if w.violation != "" {
					t.Fatalf("%s, seed %d, turn %d: %s", def.GetName(), seed, turn, w.violation)
				}
				if turn > 5000 {
					t.Fatalf("%s, seed %d: the sagas don't end", def.GetName(), seed)
				}
			}
			w.end()
			if w.violation != "" {
				t.Fatalf("%s, seed %d: %s", def.GetName(), seed, w.violation)
			}
			rows, _ := w.st.Sagas(t.Context(), store.SagaFilter{Limit: 10})
			for _, s := range rows {
				ends[s.Status]++
			}
		}
	}
	t.Logf("%d steps, %d faults, ends %v", steps, faults, ends)
	if ends[store.Completed] == 0 || ends[store.Compensated] == 0 || faults < int(seeds) {
		t.Error("too little happens")
	}
}
