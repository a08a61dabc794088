package scenario

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/sdk/client"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

// TestIdsAndNames: any text may be an id; names that could mean something to NATS are refused wherever they come in, with the rule; a
// worker gets the tasks of its own namespace.
func TestIdsAndNames(t *testing.T) {
	t.Parallel()
	say := saga.ReadOnly[string, string]{Name: "t.say"}
	other := saga.ReadOnly[string, string]{Name: "t.say.more"}
	def := saga.Define[string, string]("names", saga.Read("say", say, saga.Value("input")), saga.Read("more", other, saga.Value("say")), saga.Return(saga.Value("more")))
	r := newRig(t, nil)
	var mu sync.Mutex
	got := map[string][]string{} // by the namespace that the worker serves
	serve := func(namespace string) {
		r.serve(func(w *worker.Worker) {
			note := func(ctx context.Context, in string) (string, error) {
				mu.Lock()
				defer mu.Unlock()
				got[namespace] = append(got[namespace], saga.Namespace(ctx)+"/"+saga.SagaID(ctx)+"/"+saga.StepName(ctx))
				if in != saga.SagaID(ctx) {
					t.Errorf("the handler of %q got %q", saga.SagaID(ctx), in)
				}
				return in, nil
			}
			worker.ReadOnly(w, say, note)
			worker.ReadOnly(w, other, note)
		}, func(c *worker.Config) { c.Namespace = namespace })
	}

	ids := []string{"a b", "a.b", "*", ">", "t.*", "$SYS.x", "ünï", "日本", "../../etc", "%s%d", "x'; DROP TABLE saga; --", strings.Repeat("x", 255), "a/b/do/1", "-", "~"}
	namespaces := []string{"t1", "t1-x", "t1_x", "t"}
	for _, ns := range namespaces {
		serve(ns)
		c, err := client.New(r.node.URL(), client.WithNamespace(ns))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Register(r.ctx(), c, def); err != nil {
			t.Fatal(err)
		}
		some := ids
		if ns != "t1" {
			some = ids[:3]
		}
		var runs []*client.Run[string]
		for _, id := range some {
			run, err := client.Start(r.ctx(), c, def, id, id)
			if err != nil {
				t.Fatalf("id %q: %v", id, err)
			}
			runs = append(runs, run)
		}
		for _, run := range runs {
			if out, err := run.Wait(r.ctx()); err != nil || out != run.ID() {
				t.Errorf("id %q: %q %v", run.ID(), out, err)
			}
		}
		mu.Lock()
		seen := map[string]int{}
		for _, call := range got[ns] {
			seen[call]++
		}
		want := map[string]int{}
		for _, id := range some {
			want[ns+"/"+id+"/say"], want[ns+"/"+id+"/more"] = 1, 1
		}
		if d := cmp.Diff(want, seen); d != "" {
			t.Errorf("the worker of %s got: %s", ns, d)
		}
		mu.Unlock()
	}

	// Ids that are no text.
	for _, id := range []string{"", "x\r\nPUB x 0", "a\tb", "a\x00b", "\u007f", strings.Repeat("x", 256)} {
		_, err := client.Start(r.ctx(), r.client, def, id, "")
		var refused *client.Error
		if !errors.As(err, &refused) || refused.Code != "INVALID_ID" {
			t.Errorf("id %q: %v", id, err)
		}
	}
	// Names.
	for _, name := range []string{"a b", "*", ">", "a.>", "*.b", "x\r\nPUB x 0\r\n", "", "$SYS.x", "ünï", strings.Repeat("x", 300), "a..b", ".a", "a.", "A"} {
		if name != "" { // which means the default
			c, err := client.New(r.node.URL(), client.WithNamespace(name))
			if err == nil {
				_, err = client.Register(r.ctx(), c, def)
			}
			var refused *client.Error
			if !errors.As(err, &refused) || !errors.Is(err, client.ErrInvalid) || refused.Code != "INVALID_NAMESPACE" || !strings.Contains(refused.Message, "lower-case") {
				t.Errorf("namespace %q: %v", name, err)
			}
			if _, err := worker.New(worker.Config{URL: r.nats, Namespace: name}); err == nil {
				t.Errorf("a worker serves namespace %q", name)
			}
		}
		bad := def.Proto()
		bad.Body[0].GetStep().Activity = name
		bad.Activities[0].Name = name
		if _, err := r.defs.RegisterDefinition(r.ctx(), &sagadv1.RegisterDefinitionRequest{Definition: bad}); err == nil || !strings.Contains(err.Error(), "activity") {
			t.Errorf("activity %q: %v", name, err)
		}
		w, err := worker.New(worker.Config{URL: r.nats})
		if err != nil {
			t.Fatal(err)
		}
		worker.ReadOnly(w, saga.ReadOnly[string, string]{Name: name}, func(_ context.Context, in string) (string, error) { return in, nil })
		if err := w.Start(r.ctx()); err == nil {
			_ = w.Stop(context.Background())
			t.Errorf("a worker serves activity %q", name)
		}
	}
	for _, m := range []string{"sagad_bus_disconnects_total", "sagad_bus_errors_total", "sagad_bus_tasks_dropped_bad_total"} {
		if n := r.metric(m); n != 0 {
			t.Errorf("%s is %v", m, n)
		}
	}
}
