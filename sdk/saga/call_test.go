package saga

import "testing"

func TestCallInContext(t *testing.T) {
	c := &Call{Namespace: "n", SagaID: "s", RunID: "r", Step: "st", Generation: 2, Attempt: 3, IdempotencyKey: "k", ActionKey: "a"}
	ctx := WithCall(t.Context(), c)
	got := [...]any{Namespace(ctx), SagaID(ctx), RunID(ctx), StepName(ctx), Generation(ctx), Attempt(ctx), IdempotencyKey(ctx), ActionKey(ctx)}
	if want := [...]any{"n", "s", "r", "st", 2, 3, "k", "a"}; got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if back, ok := CallOf(ctx); !ok || back != c {
		t.Error(back, ok)
	}
	if _, ok := CallOf(t.Context()); ok || IdempotencyKey(t.Context()) != "" || Attempt(t.Context()) != 0 {
		t.Error("there is a call outside of handlers")
	}
}
