package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sagad/sagad/internal/expr"
	"github.com/sagad/sagad/internal/wire"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// Signal tells a saga something, once for each key. fresh is false if this signal had come before. Errors:
// *[statemachine.Refusal] with the reason, and those of Cancel.
func (e *Engine) Signal(ctx context.Context, namespace, id string, what statemachine.Signal) (fresh bool, _ error) {
	ev, err := signalEvent(namespace, id, what)
	if err != nil {
		return false, err
	}
	a, err := e.ask(ctx, ev)
	if err != nil {
		return false, err
	}
	return !a.reply.Duplicate, nil
}

func signalEvent(namespace, id string, what statemachine.Signal) (*event, error) {
	if err := checkKey(namespace, id); err != nil {
		return nil, err
	}
	switch {
	case what.Name == "":
		return nil, &InvalidError{Field: "signal", Message: "is empty: name a signal of the definition"}
	case what.Key == "":
		return nil, &InvalidError{Field: "key", Message: "is empty: give each signal a key of its own, so that a repeat is known"}
	}
	if err := checkTexts(text{"signal", what.Name, signalBytesMax}, text{"key", what.Key, signalKeyBytesMax},
		text{"actor", what.Actor, actorBytesMax}); err != nil {
		return nil, err
	}
	if len(what.Payload) == 0 {
		what.Payload = []byte("null")
	}
	if len(what.Payload) > wire.PayloadBytesMax {
		return nil, &InvalidError{Field: "payload", Message: fmt.Sprintf(
			"has %d bytes; the limit is %d: put large data elsewhere and pass a reference", len(what.Payload), wire.PayloadBytesMax)}
	}
	if err := checkDocument(what.Payload); err != nil {
		return nil, &InvalidError{Field: "payload", Message: err.Error()}
	}
	return &event{key: sagaKey{namespace, id}, what: what}, nil
}

// checkDocument refuses what isn't JSON that can be stored.
func checkDocument(document []byte) error {
	buf := scratch.Get().(*[]byte)
	canonical, err := expr.AppendCanonicalJSON((*buf)[:0], document)
	if err != nil {
		scratch.Put(buf)
		return err
	}
	keepScratch(buf, canonical)
	return nil
}

// Pause lets a saga send nothing more out until it is resumed. The status is the saga's after it. Errors:
// *[statemachine.Refusal] if the saga has ended, and those of Cancel.
func (e *Engine) Pause(ctx context.Context, namespace, id string, what statemachine.Pause) (statemachine.Status, error) {
	return e.control(ctx, namespace, id, what, what.Actor, what.Reason, what.RequestID)
}

// Resume lets a paused saga go on. One that isn't paused stays as it is. The status is the saga's after it. Errors: those of
// Pause.
func (e *Engine) Resume(ctx context.Context, namespace, id string, what statemachine.Resume) (statemachine.Status, error) {
	return e.control(ctx, namespace, id, what, what.Actor, what.Reason, what.RequestID)
}

func (e *Engine) control(ctx context.Context, namespace, id string, what statemachine.Event, actor, reason, requestID string) (statemachine.Status, error) {
	ev, err := controlEvent(namespace, id, what, actor, reason, requestID)
	if err != nil {
		return 0, err
	}
	a, err := e.ask(ctx, ev)
	if err != nil {
		return 0, err
	}
	return a.state.Status, nil
}

func controlEvent(namespace, id string, what statemachine.Event, actor, reason, requestID string) (*event, error) {
	if err := checkKey(namespace, id); err != nil {
		return nil, err
	}
	if err := checkTexts(text{"reason", reason, reasonBytesMax}, text{"request id", requestID, requestIDBytesMax},
		text{"actor", actor, actorBytesMax}); err != nil {
		return nil, err
	}
	return &event{key: sagaKey{namespace, id}, what: what}, nil
}

// MigrateRequest asks to move a saga to another version of its definition.
type MigrateRequest struct {
	Version int32
	// Names that differ between the versions, old to new. 1000 at most.
	Names map[string]string
	// DryRun: only say whether it could be.
	DryRun                   bool
	Actor, Reason, RequestID string
}

// MigrateReply tells what became of it.
type MigrateReply struct {
	// Obstacles say why the saga can't be moved; none if it can, or was.
	Obstacles []string
	// Migrated: it runs under the version that was asked for.
	Migrated bool
	// Version of the saga after it.
	Version int32
}

// Migrate moves a saga to another version of its definition, unless there are obstacles: then nothing changes. A dry run
// looks at what is committed, at any node, and changes nothing. Errors: *[NotFoundError], also if there is no such version or
// it was deleted, and those of Cancel.
func (e *Engine) Migrate(ctx context.Context, namespace, id string, r MigrateRequest) (MigrateReply, error) {
	if err := r.check(); err != nil {
		return MigrateReply{}, err
	}
	what := statemachine.Migrate{Version: r.Version, Names: r.Names, Actor: r.Actor, Reason: r.Reason, RequestID: r.RequestID}
	ev, err := controlEvent(namespace, id, what, r.Actor, r.Reason, r.RequestID)
	if err != nil {
		return MigrateReply{}, err
	}
	if !r.DryRun {
		if _, err := e.shard(ev.key); err != nil {
			return MigrateReply{}, err // the owner will look
		}
	}
	_, state, machine, err := e.Get(ctx, namespace, id)
	if err != nil {
		return MigrateReply{}, err
	}
	if state.Version == r.Version {
		return MigrateReply{Migrated: !r.DryRun, Version: r.Version}, nil
	}
	if what.To, _, err = e.definitions.startable(ctx, namespace, state.Definition, r.Version); err != nil {
		if problems, ok := errors.AsType[*ProblemsError](err); ok {
			return MigrateReply{Obstacles: []string{problems.Error()}, Version: state.Version}, nil
		}
		return MigrateReply{}, err
	}
	if r.DryRun {
		if what.Reason == "" {
			what.Reason = "dry run"
		}
		d, _, err := decideSafely(machine, state, what, e.clock.now(), e.chance())
		return migrateReply(&what, state, d.Reply, err, false)
	}
	ev.what = what
	a, err := e.ask(ctx, ev)
	if a.state == nil {
		a.state = state
	}
	return migrateReply(&what, a.state, a.reply, e.startRefused(err), true)
}

// migrateReply tells what a decision about a migration means; commits says whether it was committed.
func migrateReply(what *statemachine.Migrate, after *statemachine.State, reply statemachine.Reply, err error, commits bool) (MigrateReply, error) {
	if refusal, ok := errors.AsType[*statemachine.Refusal](err); ok && refusal.Code == statemachine.RefusedNotAllowed {
		err = nil
		if len(reply.Obstacles) == 0 {
			reply.Obstacles = []string{refusal.Message} // it has ended, for example
		}
	}
	if err != nil {
		return MigrateReply{}, err
	}
	r := MigrateReply{Obstacles: reply.Obstacles, Version: after.Version}
	r.Migrated = commits && len(r.Obstacles) == 0 && after.Version == what.Version
	return r, nil
}

func (r *MigrateRequest) check() error {
	if r.Version < 1 {
		return &InvalidError{Field: "version", Message: "must be at least 1: name the version to move to"}
	}
	if len(r.Names) > namesMax {
		return &InvalidError{Field: "names", Message: fmt.Sprintf("are %d; the limit is %d", len(r.Names), namesMax)}
	}
	for old, name := range r.Names {
		if old == "" || name == "" {
			return &InvalidError{Field: "names", Message: "hold an empty one: leave out what isn't renamed"}
		}
		if err := checkTexts(text{"name", old, definitionBytesMax}, text{"name", name, definitionBytesMax}); err != nil {
			return err
		}
	}
	return nil
}

// NamedError: other definitions run a definition as a child saga.
type NamedError struct {
	Namespace, Name string
	Version         int32
	// By are those that name it, as "name version 3": some of them if there are many.
	By []string
}

func (e *NamedError) Error() string {
	by := e.By[0]
	if n := len(e.By) - 1; n > 0 {
		by += fmt.Sprintf(" (and %d more)", n)
	}
	return fmt.Sprintf("version %d of definition %q in namespace %q is run as a child saga by %s", e.Version, e.Name, e.Namespace, by)
}

// DeleteDefinition deletes a version that no saga and no other definition needs. What ended under it can still be read.
// Errors: *[NotFoundError] if there never was such a version, *[store.InUseError], *[NamedError], *[InvalidError],
// *[UnavailableError].
func (e *Engine) DeleteDefinition(ctx context.Context, namespace, name string, version int32) error {
	if err := checkNamespace(namespace); err != nil {
		return err
	}
	if err := wire.ValidDefinition(name); err != nil {
		return &InvalidError{Field: "name", Message: err.Error()}
	}
	if version < 1 {
		return &InvalidError{Field: "version", Message: "must be at least 1: name the version to delete"}
	}
	by, err := e.parents(ctx, namespace, name, version)
	if err != nil {
		return err
	}
	if len(by) > 0 {
		return &NamedError{Namespace: namespace, Name: name, Version: version, By: by}
	}
	err = e.st.DeleteDefinition(ctx, namespace, name, version)
	if _, used := errors.AsType[*store.InUseError](err); used {
		return err
	}
	switch {
	case errors.Is(err, store.ErrNotFound):
		return &NotFoundError{What: "definition", Namespace: namespace, Name: name, Version: version}
	case err != nil:
		return databaseError(fmt.Errorf("delete definition %q version %d: %w", name, version, err))
	}
	e.definitions.forget(namespace, name, version)
	return nil
}

// parents lists versions of other definitions that run this one as a child: those that name it, and, if it is the latest,
// those that want the latest.
func (e *Engine) parents(ctx context.Context, namespace, name string, version int32) ([]string, error) {
	latest, err := e.st.Definition(ctx, namespace, name, 0)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, databaseError(fmt.Errorf("look up definition %q: %w", name, err))
	}
	var by []string
	var last store.Definition
	for read := 0; ; {
		page, err := e.st.DefinitionsNaming(ctx, namespace, name, last.Name, last.Version, namersPage)
		if err != nil {
			return nil, databaseError(fmt.Errorf("search for definitions that name %q: %w", name, err))
		}
		for i := range page {
			last = page[i]
			if last.Name == name && last.Version == version {
				continue
			}
			def := new(sagadv1.Definition)
			if err := proto.Unmarshal(last.Body, def); err != nil {
				return nil, fmt.Errorf("definition %q version %d can't be decoded: %w", last.Name, last.Version, err)
			}
			if slices.ContainsFunc(children(def.ProtoReflect(), nil), func(c *sagadv1.Child) bool {
				return c.GetDefinition() == name && (c.GetVersion() == version || c.GetVersion() == 0 && version == latest.Version)
			}) {
				by = append(by, fmt.Sprintf("%s version %d", last.Name, last.Version))
			}
		}
		read += len(page)
		if len(page) < namersPage || len(by) >= namersShown {
			return by, nil
		}
		if read >= namersMax {
			return nil, unavailable(fmt.Sprintf("more than %d versions of definitions mention %q, too many to search: delete old ones first", namersMax, name))
		}
	}
}

// children finds all child sagas in a message, however deep.
func children(m protoreflect.Message, found []*sagadv1.Child) []*sagadv1.Child {
	if c, ok := m.Interface().(*sagadv1.Child); ok {
		return append(found, c)
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				found = children(v.List().Get(i).Message(), found)
			}
		default:
			found = children(v.Message(), found)
		}
		return true
	})
	return found
}

// Listening says whether some worker waits for tasks of an activity. It may be some seconds old.
func (e *Engine) Listening(namespace, activity string, dir workerv1.Direction) bool {
	return e.bus.Listening(namespace, activity, dir)
}

// HasOwner says whether some node serves a saga's shard, as far as this one knows.
func (e *Engine) HasOwner(namespace, id string) bool {
	_, err := e.shard(sagaKey{namespace, id})
	_, elsewhere := errors.AsType[*NotOwnerError](err)
	return err == nil || elsewhere
}
