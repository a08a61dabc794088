package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// definitions are the machines of registered definitions. A version never changes, so a machine is made once. What is
// the latest version does change: a node knows of its own registrations at once, of others' within latestMax.
type definitions struct {
	st    store.Definitions
	clock *clock
	// compile is [statemachine.Compile].
	compile func(*sagadv1.Definition) (*statemachine.Machine, []*sagadv1.Problem)

	mu       sync.RWMutex
	machines map[definitionKey]*machineEntry
	latest   map[definitionKey]latestEntry
}

type definitionKey struct {
	namespace, name string
	// version is 0 in latest.
	version int32
}

type machineEntry struct {
	def store.Definition
	// machine is made when it is first used.
	once    sync.Once
	machine *statemachine.Machine
	err     error
}

type latestEntry struct {
	version int32
	asked   time.Time
}

func newDefinitions(st store.Definitions, c *clock) *definitions {
	return &definitions{
		st: st, clock: c, compile: statemachine.Compile, machines: map[definitionKey]*machineEntry{}, latest: map[definitionKey]latestEntry{},
	}
}

// get returns a version's machine; 0 means the latest.
func (c *definitions) get(ctx context.Context, namespace, name string, version int32) (*statemachine.Machine, store.Definition, error) {
	e, err := c.entry(ctx, namespace, name, version)
	if err != nil {
		return nil, store.Definition{}, err
	}
	e.once.Do(func() {
		var body sagadv1.Definition
		if err := proto.Unmarshal(e.def.Body, &body); err != nil {
			e.err = fmt.Errorf("definition %q version %d can't be decoded: %w", name, e.def.Version, err)
			return
		}
		m, problems := c.compile(&body)
		if len(problems) > 0 {
			// It passed an earlier release's verifier.
			e.err = fmt.Errorf("definition %q version %d doesn't pass this release's verifier: %w", name, e.def.Version, &ProblemsError{Problems: problems})
			return
		}
		e.machine = m
	})
	return e.machine, e.def, e.err
}

// startable is as get, for what is to begin: a version that was deleted isn't there.
func (c *definitions) startable(ctx context.Context, namespace, name string, version int32) (*statemachine.Machine, store.Definition, error) {
	m, def, err := c.get(ctx, namespace, name, version)
	if err == nil && !def.DeletedAt.IsZero() {
		return nil, store.Definition{}, &NotFoundError{What: "definition", Namespace: namespace, Name: name, Version: def.Version, Deleted: true}
	}
	return m, def, err
}

// forget drops a version that was deleted: it is looked up when it is needed again, to read what ended under it.
func (c *definitions) forget(namespace, name string, version int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.machines, definitionKey{namespace, name, version})
	delete(c.latest, definitionKey{namespace, name, 0})
}

func (c *definitions) entry(ctx context.Context, namespace, name string, version int32) (*machineEntry, error) {
	key := definitionKey{namespace, name, version}
	c.mu.RLock()
	if version == 0 {
		if l, ok := c.latest[key]; ok && c.clock.since(l.asked) < latestMax {
			key.version = l.version
		}
	}
	e := c.machines[key]
	c.mu.RUnlock()
	if e != nil {
		return e, nil
	}
	asked := c.clock.local()
	def, err := c.st.Definition(ctx, namespace, name, version)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, &NotFoundError{What: "definition", Namespace: namespace, Name: name, Version: version}
	case err != nil:
		return nil, databaseError(fmt.Errorf("look up definition %q: %w", name, err))
	}
	return c.put(def, version == 0, asked), nil
}

// put takes in a definition that is registered; latest says that it was the latest when it was asked for.
func (c *definitions) put(def store.Definition, latest bool, asked time.Time) *machineEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	if latest {
		key := definitionKey{def.Namespace, def.Name, 0}
		// Registered versions only rise: a slower answer doesn't take back a newer one.
		if l, ok := c.latest[key]; !ok || def.Version >= l.version {
			bound(c.latest)
			c.latest[key] = latestEntry{version: def.Version, asked: asked}
		}
	}
	key := definitionKey{def.Namespace, def.Name, def.Version}
	if e := c.machines[key]; e != nil {
		return e
	}
	bound(c.machines)
	e := &machineEntry{def: def}
	c.machines[key] = e
	return e
}

// bound drops something from a full cache.
func bound[V any](m map[definitionKey]V) {
	if len(m) < machinesMax {
		return
	}
	for k := range m {
		delete(m, k)
		return
	}
}

// Register verifies a definition and stores it. The same content keeps the version that it has; other content gets the
// next one. created tells whether there is a new version. Errors: *[InvalidError], *[ProblemsError].
func (e *Engine) Register(ctx context.Context, namespace string, def *sagadv1.Definition) (_ store.Definition, created bool, _ error) {
	if err := checkNamespace(namespace); err != nil {
		return store.Definition{}, false, err
	}
	if _, problems := e.definitions.compile(def); len(problems) > 0 {
		return store.Definition{}, false, &ProblemsError{Problems: problems}
	}
	if problems, err := e.checkChildren(ctx, namespace, def); err != nil {
		return store.Definition{}, false, err
	} else if len(problems) > 0 {
		return store.Definition{}, false, &ProblemsError{Problems: problems}
	}
	hash, err := statemachine.Hash(def)
	if err != nil {
		return store.Definition{}, false, &InvalidError{Field: "definition", Message: err.Error()}
	}
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(def)
	if err != nil {
		return store.Definition{}, false, &InvalidError{Field: "definition", Message: err.Error()}
	}
	asked := e.clock.local()
	stored, created, err := e.st.PutDefinition(ctx, store.Definition{
		Namespace: namespace, Name: def.GetName(), Hash: hash[:], Body: body,
	})
	if err != nil {
		return store.Definition{}, false, databaseError(fmt.Errorf("register definition %q: %w", def.GetName(), err))
	}
	if len(stored.Body) == 0 {
		stored.Body = body
	}
	// A new version is the latest. An old one may not be.
	e.definitions.put(stored, created, asked)
	return stored, created, nil
}

// Machine returns a registered definition, ready to use; version 0 means the latest. Errors: *[NotFoundError].
func (e *Engine) Machine(ctx context.Context, namespace, name string, version int32) (*statemachine.Machine, store.Definition, error) {
	return e.definitions.get(ctx, namespace, name, version)
}
