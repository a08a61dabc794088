package engine

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	"github.com/sagad/sagad/engine/enginetest"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// TestVersionDeletedElsewhere: a node that still has a version in memory neither starts sagas of it nor moves any to it; what was in
// one batch with them goes through, and nobody is put aside for it.
func TestVersionDeletedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newManualWorld(t, 1)
		e := w.start("e1")
		ctx := context.Background()
		var gone *NotFoundError
		for v := int32(2); v <= 4; v++ {
			next := proto.CloneOf(enginetest.Transfer())
			next.Description = fmt.Sprint("version ", v)
			if d, created, err := e.Register(ctx, "default", next); err != nil || !created || d.Version != v {
				t.Fatal(d, created, err)
			}
		}
		e.mustStart(w, request("runs"))
		old := request("old")
		old.Version = 1
		e.mustStart(w, old)
		for v := int32(2); v <= 3; v++ {
			if _, _, err := e.Machine(ctx, "default", "transfer", v); err != nil {
				t.Fatal(err)
			}
			if err := w.st.DeleteDefinition(ctx, "default", "transfer", v); err != nil {
				t.Fatal(err)
			}
		}

		// Many at once: those of the deleted version fail, the others don't.
		const starts = 30
		errs := make(chan error, starts)
		for i := range starts {
			r := request(fmt.Sprint("new-", i))
			if i%3 == 0 {
				r.Version = 2
			}
			go func() {
				_, err := e.StartSaga(ctx, r)
				if refused := errors.As(err, new(*NotFoundError)); refused != (i%3 == 0) || err != nil && !refused {
					err = fmt.Errorf("start %d: %w", i, err)
				} else {
					err = nil
				}
				errs <- err
			}()
		}
		for range starts {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		for i := range starts {
			if _, there := w.saga(fmt.Sprint("new-", i)); there == (i%3 == 0) {
				t.Errorf("saga %d is there: %v", i, there)
			}
		}

		_, err := e.Migrate(ctx, "default", "old", MigrateRequest{Version: 3, Reason: "x"})
		if !errors.As(err, &gone) || !gone.Deleted || gone.Version != 3 {
			t.Errorf("a move to a deleted version: %v", err)
		}
		if _, err := e.Pause(ctx, "default", "old", statemachine.Pause{Reason: "to see that it goes on"}); err != nil {
			t.Errorf("after it: %v", err)
		}
		if s, ok := w.saga("old"); !ok || s.Version != 1 || len(e.Quarantined()) != 0 {
			t.Errorf("after it: %+v, quarantined %v", s, e.Quarantined())
		}
		if r, err := e.Migrate(ctx, "default", "old", MigrateRequest{Version: 4, Reason: "x"}); err != nil || !r.Migrated || r.Version != 4 {
			t.Errorf("a move to another version: %+v %v", r, err)
		}
		if s, _ := w.saga("old"); s.Version != 4 {
			t.Errorf("its row has version %d", s.Version)
		}

		// It is the latest, and sagas need it.
		var used *store.InUseError
		if err := e.DeleteDefinition(ctx, "default", "transfer", 4); !errors.As(err, &used) || used.Unfinished != 22 {
			t.Errorf("deleting what is needed: %v", err)
		}
		if err := e.DeleteDefinition(ctx, "default", "transfer", 1); err != nil {
			t.Errorf("deleting what isn't: %v", err)
		}
		// Its history began under a version that is gone.
		e.halt()
		next := w.start("e2")
		if _, s, m, err := next.Get(ctx, "default", "old"); err != nil || s.Version != 4 || s.Machine() != m || m.Definition().GetDescription() != "version 4" {
			t.Errorf("at the next node: %v", err)
		}
		w.bus.Close()
		next.halt()
	})
}

// TestControlLimits: what is over a limit is refused before anything else.
func TestControlLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newManualWorld(t, 1)
		e := w.start("e1")
		ctx := context.Background()
		long := func(n int) string { return string(make([]byte, n)) }
		many := map[string]string{}
		for i := range namesMax + 1 {
			many[fmt.Sprint(i)] = "x"
		}
		for name, err := range map[string]error{
			"no signal":     second(e.Signal(ctx, "default", "a", statemachine.Signal{Key: "k"})),
			"no key":        second(e.Signal(ctx, "default", "a", statemachine.Signal{Name: "s"})),
			"long signal":   second(e.Signal(ctx, "default", "a", statemachine.Signal{Name: long(64), Key: "k"})),
			"long key":      second(e.Signal(ctx, "default", "a", statemachine.Signal{Name: "s", Key: long(129)})),
			"no JSON":       second(e.Signal(ctx, "default", "a", statemachine.Signal{Name: "s", Key: "k", Payload: []byte("{")})),
			"large payload": second(e.Signal(ctx, "default", "a", statemachine.Signal{Name: "s", Key: "k", Payload: make([]byte, 256<<10+1)})),
			"bad namespace": second(e.Signal(ctx, "A", "a", statemachine.Signal{Name: "s", Key: "k"})),
			"no id":         second(e.Pause(ctx, "default", "", statemachine.Pause{Reason: "x"})),
			"long reason":   second(e.Pause(ctx, "default", "a", statemachine.Pause{Reason: long(4097)})),
			"long request":  second(e.Resume(ctx, "default", "a", statemachine.Resume{RequestID: long(129)})),
			"no version":    second(e.Migrate(ctx, "default", "a", MigrateRequest{})),
			"many names":    second(e.Migrate(ctx, "default", "a", MigrateRequest{Version: 1, Names: many})),
			"empty name":    second(e.Migrate(ctx, "default", "a", MigrateRequest{Version: 1, Names: map[string]string{"": "x"}})),
			"long name":     second(e.Migrate(ctx, "default", "a", MigrateRequest{Version: 1, Names: map[string]string{"x": long(64)}})),
			"delete none":   e.DeleteDefinition(ctx, "default", "transfer", 0),
			"delete a name": e.DeleteDefinition(ctx, "default", "", 1),
		} {
			var invalid *InvalidError
			if !errors.As(err, &invalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		var none *NotFoundError
		for name, err := range map[string]error{
			"signal":  second(e.Signal(ctx, "default", "a", statemachine.Signal{Name: "s", Key: "k"})),
			"pause":   second(e.Pause(ctx, "default", "a", statemachine.Pause{Reason: "x"})),
			"migrate": second(e.Migrate(ctx, "default", "a", MigrateRequest{Version: 1})),
			"delete":  e.DeleteDefinition(ctx, "default", "transfer", 9),
			"unknown": e.DeleteDefinition(ctx, "default", "nobody", 1),
		} {
			if !errors.As(err, &none) {
				t.Errorf("%s: %v", name, err)
			}
		}
		w.bus.Close()
		e.halt()
	})
}

func second[T any](_ T, err error) error { return err }
