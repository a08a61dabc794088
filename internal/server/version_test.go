package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectinprocess"
	"connectrpc.com/connect/v2/connectproto"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/sagad/sagad/engine"
	"github.com/sagad/sagad/internal/server/servertest"
	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/proto/gen/sagad/v1/sagadv1connect"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// stuck starts a saga that ends up with a person.
func (r *rig) stuck(id string) {
	r.t.Helper()
	r.start(id, orderInput{Reject: "charge", CantUndo: "reserve"})
	r.until(id, sagadv1.SagaStatus_SAGA_STATUS_STUCK)
}

func (r *rig) abandon(id string) {
	r.t.Helper()
	if _, err := r.operations.ActOnItem(r.t.Context(), &sagadv1.ActOnItemRequest{
		SagaId: id, Number: 1, Action: historyv1.OperatorAction_OPERATOR_ACTION_ABANDON, Reason: "enough",
	}); err != nil {
		r.t.Fatal(err)
	}
	r.end(id)
}

func (r *rig) usage(version int32) []*sagadv1.VersionUsage {
	r.t.Helper()
	res, err := r.definitions.GetDefinitionUsage(r.t.Context(), &sagadv1.GetDefinitionUsageRequest{Name: "order", Version: version})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, v := range res.Versions {
		slices.Sort(v.Examples)
	}
	return res.Versions
}

func (r *rig) registerAs(description string, version int32) {
	r.t.Helper()
	def := orderDefinition()
	def.Description = description
	res, err := r.definitions.RegisterDefinition(r.t.Context(), &sagadv1.RegisterDefinitionRequest{Definition: def})
	if err != nil {
		r.t.Fatal(err)
	}
	if res.Version.Version != version || !res.Created {
		r.t.Fatalf("%q is version %d (new: %v), want %d", description, res.Version.Version, res.Created, version)
	}
}

func infoOf(err error) *errdetails.ErrorInfo {
	var cerr *connect.Error
	if errors.As(err, &cerr) {
		for _, d := range cerr.Details() {
			if m, err := connectproto.UnmarshalErrorDetail(d); err == nil {
				if info, ok := m.(*errdetails.ErrorInfo); ok {
					return info
				}
			}
		}
	}
	return nil
}

// A version is deleted once no saga needs it. What ended under it is still read, and its number never comes back.
func TestUsageAndDeletion(t *testing.T) {
	r := newRig(t)
	r.register()
	ctx := t.Context()
	r.stuck("old-1")
	r.stuck("old-2")
	r.start("old-3", orderInput{})
	r.end("old-3")
	r.registerAs("second", 2)
	r.start("new-1", orderInput{})
	r.end("new-1")
	want := []*sagadv1.VersionUsage{
		{Version: 2, Sagas: 1}, {Version: 1, Unfinished: 2, Sagas: 3, Examples: []string{"old-1", "old-2"}},
	}
	if d := cmp.Diff(want, r.usage(0), protocmp.Transform()); d != "" {
		t.Errorf("usage (-want +got):\n%s", d)
	}
	if d := cmp.Diff(want[1:], r.usage(1), protocmp.Transform()); d != "" {
		t.Errorf("usage of version 1 (-want +got):\n%s", d)
	}
	list, err := r.sagas.ListSagas(ctx, &sagadv1.ListSagasRequest{Filter: &sagadv1.SagaFilter{Definition: "order", Version: 2}})
	if err != nil || len(list.Sagas) != 1 || list.Sagas[0].Id != "new-1" {
		t.Errorf("sagas of version 2: %v %v", list, err)
	}

	remove := func(version int32) error {
		_, err := r.definitions.DeleteDefinition(ctx, &sagadv1.DeleteDefinitionRequest{Name: "order", Version: version})
		return err
	}
	err = remove(1)
	wantError(t, err, connect.CodeFailedPrecondition, codeDefinitionInUse, "2 unfinished sagas need version 1")
	if got := infoOf(err).GetMetadata()["unfinished"]; got != "2" {
		t.Errorf("the error's metadata count %q", got)
	}
	r.abandon("old-1")
	wantError(t, remove(1), connect.CodeFailedPrecondition, codeDefinitionInUse, "1 unfinished saga needs version 1")
	r.abandon("old-2")
	for range 2 {
		if err := remove(1); err != nil {
			t.Fatal(err)
		}
	}
	wantError(t, remove(7), connect.CodeNotFound, codeDefinitionNotFound, `no definition "order" version 7`)

	// Ended sagas are read as before.
	got, err := r.sagas.GetSaga(ctx, &sagadv1.GetSagaRequest{Id: "old-3"})
	if err != nil || got.Saga.Summary.Version != 1 || got.Saga.Output != `{"shipped":"ship"}` || len(got.Saga.Steps) != 3 {
		t.Errorf("a saga of a deleted version: %v %v", got, err)
	}
	if again := r.start("old-3", orderInput{}); again.Created || again.Version != 1 {
		t.Errorf("its start again: %v", again)
	}

	for name, err := range map[string]error{
		"start": func() error {
			_, err := r.sagas.StartSaga(ctx, &sagadv1.StartSagaRequest{Id: "late", Definition: "order", Version: 1, Input: "{}"})
			return err
		}(),
		"get": func() error {
			_, err := r.definitions.GetDefinition(ctx, &sagadv1.GetDefinitionRequest{Name: "order", Version: 1})
			return err
		}(),
		"graph": func() error {
			_, err := r.definitions.GetDefinitionGraph(ctx, &sagadv1.GetDefinitionGraphRequest{Name: "order", Version: 1})
			return err
		}(),
		"usage": func() error {
			_, err := r.definitions.GetDefinitionUsage(ctx, &sagadv1.GetDefinitionUsageRequest{Name: "order", Version: 1})
			return err
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			wantError(t, err, connect.CodeNotFound, codeDefinitionNotFound, "was deleted: use another version")
		})
	}
	_, err = r.sagas.GetSaga(ctx, &sagadv1.GetSagaRequest{Id: "late"})
	wantError(t, err, connect.CodeNotFound, codeSagaNotFound, "late")
	versions, err := r.definitions.ListDefinitions(ctx, &sagadv1.ListDefinitionsRequest{Name: "order"})
	if err != nil || len(versions.Definitions) != 1 || versions.Definitions[0].Version != 2 {
		t.Errorf("versions: %v %v", versions, err)
	}

	// The same content again is another version.
	r.registerAs("", 3)
	if got := r.start("new-2", orderInput{}); got.Version != 3 {
		t.Errorf("started under version %d", got.Version)
	}
	r.end("new-2")
	for _, v := range []int32{2, 3} {
		if err := remove(v); err != nil {
			t.Fatal(err)
		}
	}
	_, err = r.sagas.StartSaga(ctx, &sagadv1.StartSagaRequest{Id: "late", Definition: "order", Input: "{}"})
	wantError(t, err, connect.CodeNotFound, codeDefinitionNotFound, "")
	_, err = r.definitions.GetDefinitionUsage(ctx, &sagadv1.GetDefinitionUsageRequest{Name: "order"})
	wantError(t, err, connect.CodeNotFound, codeDefinitionNotFound, "register it first")
}

// A node that has a version in memory doesn't start it once another node has deleted it.
func TestDeletionAtAnotherNode(t *testing.T) {
	a := newRig(t)
	b := newRigOn(t, a.store, "node-b")
	servertest.Join(a.bus, b.bus)
	a.register()
	a.registerAs("second", 2)
	ctx := t.Context()
	for i, version := range []int32{0, 1, 2} {
		if _, err := a.sagas.StartSaga(ctx, &sagadv1.StartSagaRequest{Id: fmt.Sprint("first-", i), Definition: "order", Version: version, Input: "{}"}); err != nil {
			t.Fatal(err)
		}
		a.end(fmt.Sprint("first-", i))
	}
	if _, err := b.definitions.DeleteDefinition(ctx, &sagadv1.DeleteDefinitionRequest{Name: "order", Version: 2}); err != nil {
		t.Fatal(err)
	}
	// The latest is another one now, at once.
	started, err := a.sagas.StartSaga(ctx, &sagadv1.StartSagaRequest{Id: "late-0", Definition: "order", Input: "{}"})
	if err != nil || started.Version != 1 {
		t.Errorf("the latest: %v %v", started, err)
	}
	for range 2 {
		_, err = a.sagas.StartSaga(ctx, &sagadv1.StartSagaRequest{Id: "late-2", Definition: "order", Version: 2, Input: "{}"})
		wantError(t, err, connect.CodeNotFound, codeDefinitionNotFound, "was deleted")
	}
	// Nothing is left of it, and others start as before.
	if got := a.start("late-3", orderInput{}); got.Version != 1 {
		t.Errorf("started under version %d", got.Version)
	}
	a.end("late-3")
	if _, err := a.sagas.GetSaga(ctx, &sagadv1.GetSagaRequest{Id: "first-2"}); err != nil {
		t.Errorf("what ended under it: %v", err)
	}
}

// A definition that another one runs as a child saga isn't deleted.
func TestChildrenKeepTheirDefinitions(t *testing.T) {
	r := newRig(t)
	r.register()
	r.registerAs("second", 2)
	put := func(name string, body ...*sagadv1.Node) {
		t.Helper()
		encoded, err := proto.Marshal(&sagadv1.Definition{Name: name, Body: body})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := r.store.PutDefinition(t.Context(), store.Definition{Namespace: "default", Name: name, Hash: encoded, Body: encoded, RegisteredAt: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	child := func(definition string, version int32) *sagadv1.Node {
		return &sagadv1.Node{Kind: &sagadv1.Node_Child{Child: &sagadv1.Child{Name: "sub", Definition: definition, Version: version}}}
	}
	remove := func(name string, version int32) error {
		_, err := r.definitions.DeleteDefinition(t.Context(), &sagadv1.DeleteDefinitionRequest{Name: name, Version: version})
		return err
	}
	put("order-mentioned", child("reorder", 1))
	put("pinned", &sagadv1.Node{Kind: &sagadv1.Node_If{If: &sagadv1.If{Then: []*sagadv1.Node{
		{Kind: &sagadv1.Node_Parallel{Parallel: &sagadv1.Parallel{Branches: []*sagadv1.Branch{{Body: []*sagadv1.Node{child("order", 1)}}}}}},
	}}}})
	put("latest", child("order", 0))
	wantError(t, remove("order", 1), connect.CodeFailedPrecondition, codeDefinitionInUse, "child saga by pinned version 1")
	wantError(t, remove("order", 2), connect.CodeFailedPrecondition, codeDefinitionInUse, "child saga by latest version 1")
	if err := remove("pinned", 1); err != nil {
		t.Fatal(err)
	}
	if err := remove("order", 1); err != nil {
		t.Errorf("version 1 once nobody names it: %v", err)
	}
	if err := remove("latest", 1); err != nil {
		t.Fatal(err)
	}
	if err := remove("order", 2); err != nil {
		t.Errorf("version 2 once nobody names it: %v", err)
	}
}

func TestExplain(t *testing.T) {
	r := newRig(t)
	r.register()
	ctx := t.Context()
	explain := func(id string) *sagadv1.ExplainSagaResponse {
		t.Helper()
		res, err := r.sagas.ExplainSaga(ctx, &sagadv1.ExplainSagaRequest{Id: id})
		if err != nil {
			t.Fatal(err)
		}
		if res.Explanation == "" || strings.Contains(res.Explanation, "%!") {
			t.Errorf("%s: %q", id, res.Explanation)
		}
		return res
	}
	r.start("done", orderInput{})
	r.end("done")
	if got := explain("done"); got.WaitsFor != sagadv1.WaitsFor_WAITS_FOR_NOTHING || got.Status != sagadv1.SagaStatus_SAGA_STATUS_COMPLETED || got.Help != "" {
		t.Errorf("an ended saga: %v", got)
	}
	r.stuck("stuck")
	if got := explain("stuck"); got.WaitsFor != sagadv1.WaitsFor_WAITS_FOR_PERSON || got.What != "1" || got.Step != "reserve" ||
		got.Help != "sagad ops show stuck 1" || got.Since == nil || got.Status != sagadv1.SagaStatus_SAGA_STATUS_STUCK {
		t.Errorf("a stuck saga: %v", got)
	}
	r.start("hangs", orderInput{Hang: "charge"})
	got := explain("hangs")
	for range 500 { // until it is there
		if got = explain("hangs"); got.Step == "charge" {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if got.WaitsFor != sagadv1.WaitsFor_WAITS_FOR_WORKER || got.Step != "charge" || got.What != "t.charge" || got.Since == nil || got.Until == nil {
		t.Errorf("a saga whose worker hangs: %v", got)
	}
	r.bus.Deaf(true)
	if got := explain("hangs"); got.WaitsFor != sagadv1.WaitsFor_WAITS_FOR_NO_WORKER || !strings.Contains(got.Help, "t.charge") {
		t.Errorf("a saga whose worker is gone: %v", got)
	}
	_, err := r.sagas.ExplainSaga(ctx, &sagadv1.ExplainSagaRequest{Id: "nobody"})
	wantError(t, err, connect.CodeNotFound, codeSagaNotFound, "nobody")
	// Another node says the same.
	b := newRigOn(t, r.store, "node-b")
	if res, err := b.sagas.ExplainSaga(ctx, &sagadv1.ExplainSagaRequest{Id: "stuck"}); err != nil || res.WaitsFor != sagadv1.WaitsFor_WAITS_FOR_PERSON {
		t.Errorf("at another node: %v %v", res, err)
	}
}

// What the new calls refuse before anything is looked up.
func TestControlRefusals(t *testing.T) {
	r := newRig(t)
	r.register()
	ctx := t.Context()
	long := func(n int) string { return strings.Repeat("x", n) }
	signal := func(change func(*sagadv1.SignalSagaRequest)) error {
		req := &sagadv1.SignalSagaRequest{Id: "nobody", Signal: "paid", Key: "1"}
		change(req)
		_, err := r.sagas.SignalSaga(ctx, req)
		return err
	}
	migrate := func(change func(*sagadv1.MigrateSagaRequest)) error {
		req := &sagadv1.MigrateSagaRequest{Id: "nobody", Version: 1, Reason: "x"}
		change(req)
		_, err := r.sagas.MigrateSaga(ctx, req)
		return err
	}
	pause := func(change func(*sagadv1.PauseSagaRequest)) error {
		req := &sagadv1.PauseSagaRequest{Id: "nobody", Reason: "x"}
		change(req)
		_, err := r.sagas.PauseSaga(ctx, req)
		return err
	}
	resume := func(change func(*sagadv1.ResumeSagaRequest)) error {
		req := &sagadv1.ResumeSagaRequest{Id: "nobody"}
		change(req)
		_, err := r.sagas.ResumeSaga(ctx, req)
		return err
	}
	names := map[string]string{}
	for i := range 1001 {
		names[fmt.Sprint("a", i)] = "b"
	}
	remove := func(name string, version int32) error {
		_, err := r.definitions.DeleteDefinition(ctx, &sagadv1.DeleteDefinitionRequest{Name: name, Version: version})
		return err
	}
	usage := func(name string, version int32) error {
		_, err := r.definitions.GetDefinitionUsage(ctx, &sagadv1.GetDefinitionUsageRequest{Name: name, Version: version})
		return err
	}
	for _, c := range []struct {
		name   string
		err    error
		code   connect.Code
		reason string
		text   string
	}{
		{"signal to nobody", signal(func(*sagadv1.SignalSagaRequest) {}), connect.CodeNotFound, codeSagaNotFound, "nobody"},
		{"signal without a name", signal(func(r *sagadv1.SignalSagaRequest) { r.Signal = "" }), connect.CodeInvalidArgument, codeInvalidRequest, "signal is empty"},
		{"signal with a long name", signal(func(r *sagadv1.SignalSagaRequest) { r.Signal = long(64) }), connect.CodeInvalidArgument, codeInvalidRequest, "64 bytes, the limit is 63"},
		{"signal without a key", signal(func(r *sagadv1.SignalSagaRequest) { r.Key = "" }), connect.CodeInvalidArgument, codeInvalidRequest, "key is empty"},
		{"signal with a long key", signal(func(r *sagadv1.SignalSagaRequest) { r.Key = long(129) }), connect.CodeInvalidArgument, codeInvalidRequest, "129 bytes, the limit is 128"},
		{"NUL in a key", signal(func(r *sagadv1.SignalSagaRequest) { r.Key = "a\x00" }), connect.CodeInvalidArgument, codeInvalidRequest, "U+0000"},
		{"no JSON", signal(func(r *sagadv1.SignalSagaRequest) { r.Payload = "{" }), connect.CodeInvalidArgument, codeInvalidInput, "payload"},
		{"NUL in a payload", signal(func(r *sagadv1.SignalSagaRequest) { r.Payload = `"\u0000"` }), connect.CodeInvalidArgument, codeInvalidInput, "payload"},
		{"large payload", signal(func(r *sagadv1.SignalSagaRequest) { r.Payload = `"` + long(256<<10) + `"` }), connect.CodeInvalidArgument, codePayloadTooLarge, "the limit is 262144"},
		{"signal to no id", signal(func(r *sagadv1.SignalSagaRequest) { r.Id = "" }), connect.CodeInvalidArgument, codeInvalidID, "id is empty"},
		{"pause of nobody", pause(func(*sagadv1.PauseSagaRequest) {}), connect.CodeNotFound, codeSagaNotFound, "nobody"},
		{"pause without a reason", pause(func(r *sagadv1.PauseSagaRequest) { r.Reason = " " }), connect.CodeInvalidArgument, codeInvalidRequest, "say why"},
		{"pause with a long reason", pause(func(r *sagadv1.PauseSagaRequest) { r.Reason = long(4097) }), connect.CodeInvalidArgument, codeInvalidRequest, "the limit is 4096"},
		{"pause with a long request id", pause(func(r *sagadv1.PauseSagaRequest) { r.RequestId = long(129) }), connect.CodeInvalidArgument, codeInvalidRequest, "the limit is 128"},
		{"resume of nobody", resume(func(*sagadv1.ResumeSagaRequest) {}), connect.CodeNotFound, codeSagaNotFound, "nobody"},
		{"resume with a long reason", resume(func(r *sagadv1.ResumeSagaRequest) { r.Reason = long(4097) }), connect.CodeInvalidArgument, codeInvalidRequest, "the limit is 4096"},
		{"migration of nobody", migrate(func(*sagadv1.MigrateSagaRequest) {}), connect.CodeNotFound, codeSagaNotFound, "nobody"},
		{"dry run of nobody", migrate(func(r *sagadv1.MigrateSagaRequest) { r.DryRun, r.Reason = true, "" }), connect.CodeNotFound, codeSagaNotFound, "nobody"},
		{"migration to version 0", migrate(func(r *sagadv1.MigrateSagaRequest) { r.Version = 0 }), connect.CodeInvalidArgument, codeInvalidRequest, "version is 0"},
		{"migration without a reason", migrate(func(r *sagadv1.MigrateSagaRequest) { r.Reason = "" }), connect.CodeInvalidArgument, codeInvalidRequest, "say why"},
		{"migration with too many names", migrate(func(r *sagadv1.MigrateSagaRequest) { r.Names = names }), connect.CodeInvalidArgument, codeInvalidRequest, "1001 names, the limit is 1000"},
		{"migration with an empty name", migrate(func(r *sagadv1.MigrateSagaRequest) { r.Names = map[string]string{"a": ""} }), connect.CodeInvalidArgument, codeInvalidRequest, "names hold an empty one"},
		{"migration with a long name", migrate(func(r *sagadv1.MigrateSagaRequest) { r.Names = map[string]string{"a": long(64)} }), connect.CodeInvalidArgument, codeInvalidRequest, "the limit is 63"},
		{"deletion of nothing", remove("nobody", 1), connect.CodeNotFound, codeDefinitionNotFound, "nobody"},
		{"deletion of version 0", remove("order", 0), connect.CodeInvalidArgument, codeInvalidRequest, "version is 0"},
		{"deletion without a name", remove("", 1), connect.CodeInvalidArgument, codeInvalidRequest, "name is empty"},
		{"usage of nothing", usage("nobody", 0), connect.CodeNotFound, codeDefinitionNotFound, "nobody"},
		{"usage of no version", usage("order", 9), connect.CodeNotFound, codeDefinitionNotFound, "version 9"},
		{"usage with a long name", usage(long(64), 0), connect.CodeInvalidArgument, codeInvalidRequest, "the limit is 63"},
		{"explain without an id", func() error {
			_, err := r.sagas.ExplainSaga(ctx, &sagadv1.ExplainSagaRequest{})
			return err
		}(), connect.CodeInvalidArgument, codeInvalidID, "id is empty"},
	} {
		t.Run(c.name, func(t *testing.T) { wantError(t, c.err, c.code, c.reason, c.text) })
	}
	// As many names as there may be get through.
	delete(names, "a0")
	wantError(t, migrate(func(r *sagadv1.MigrateSagaRequest) { r.Names = names }), connect.CodeNotFound, codeSagaNotFound, "nobody")
}

// unwell is an engine that can't work on any saga.
type unwell struct {
	Engine
	orphaned bool
}

func (u unwell) Get(ctx context.Context, namespace, id string) (store.Saga, *statemachine.State, *statemachine.Machine, error) {
	if u.orphaned {
		return u.Engine.Get(ctx, namespace, id)
	}
	return store.Saga{}, nil, nil, &engine.QuarantinedError{Namespace: namespace, ID: id, Why: "its history has a gap"}
}

func (u unwell) HasOwner(string, string) bool { return !u.orphaned }

// What only a node knows: that a saga is put aside, or that nobody serves its shard.
func TestExplainWhatNodesKnow(t *testing.T) {
	r := newRig(t)
	r.register()
	r.stuck("stuck")
	r.start("done", orderInput{})
	r.end("done")
	ctx := t.Context()
	for _, c := range []struct {
		id       string
		orphaned bool
		waitsFor sagadv1.WaitsFor
		text     string
	}{
		{"stuck", false, sagadv1.WaitsFor_WAITS_FOR_PERSON, "it is quarantined, and tried again each minute: its history has a gap"},
		{"done", false, sagadv1.WaitsFor_WAITS_FOR_NOTHING, "it has ended as COMPLETED; its history can't be read by this release: its history has a gap"},
		{"stuck", true, sagadv1.WaitsFor_WAITS_FOR_PERSON, "no node serves its shard at the moment"},
		{"done", true, sagadv1.WaitsFor_WAITS_FOR_NOTHING, "it has ended as COMPLETED"},
	} {
		s, err := New(ctx, Config{}, unwell{r.engine, c.orphaned}, r.store)
		if err != nil {
			t.Fatal(err)
		}
		sagas := sagadv1connect.NewSagaServiceClient(connect.NewClient(connectinprocess.New(s.RPC())))
		res, err := sagas.ExplainSaga(ctx, &sagadv1.ExplainSagaRequest{Id: c.id})
		if err != nil || res.WaitsFor != c.waitsFor || !strings.HasPrefix(res.Explanation, c.text) {
			t.Errorf("%s (orphaned %v): %v %v", c.id, c.orphaned, res, err)
		}
		if res.GetWaitsFor() != sagadv1.WaitsFor_WAITS_FOR_NOTHING && (res.GetHelp() == "" || res.GetStatus() != sagadv1.SagaStatus_SAGA_STATUS_STUCK) {
			t.Errorf("%s (orphaned %v): %v", c.id, c.orphaned, res)
		}
		if _, err := sagas.ExplainSaga(ctx, &sagadv1.ExplainSagaRequest{Id: "nobody"}); !c.orphaned && connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("nobody: %v", err)
		}
	}
}

// What a refusal of the machine means to callers.
func TestControlCodes(t *testing.T) {
	for code, want := range map[string]struct {
		code   connect.Code
		reason string
	}{
		statemachine.RefusedConflict:   {connect.CodeAlreadyExists, codeKeyTaken},
		statemachine.RefusedFull:       {connect.CodeResourceExhausted, codeTooManySignals},
		statemachine.RefusedNotAllowed: {connect.CodeFailedPrecondition, codeNotAllowed},
	} {
		wantError(t, refused(&statemachine.Refusal{Code: code, Message: "m"}), want.code, want.reason, "m")
	}
	if got := obstacles(slices.Repeat([]string{"x"}, 22)); !strings.HasSuffix(got, "x; and 2 more obstacles that a dry run lists") {
		t.Errorf("many obstacles: %s", got)
	}
}
