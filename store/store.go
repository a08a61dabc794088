// Package store declares how sagad persists sagas. The engine uses nothing but these interfaces; package storetest holds
// every implementation to them.
//
// History is append-only, one row per transition. A saga's row is written when it starts and when its lifecycle
// changes; its state is the fold of its history. Both are written by one fenced commit, see [Committer].
package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

var (
	// ErrNotFound: there is no such row.
	ErrNotFound = errors.New("not found")
	// ErrHeld: another node holds the shard's lease.
	ErrHeld = errors.New("shard is held by another node")
	// ErrSchema: the database's schema is newer than this binary, or older and not migrated.
	ErrSchema = errors.New("schema version")
)

// Store is everything that a node needs of its database.
type Store interface {
	Committer
	Leaser
	Loader
	Reader
	Definitions

	// Meta is what was fixed when the database was initialised.
	Meta(ctx context.Context) (Meta, error)
	// Now is the database's clock, which judges leases, due times and deadlines.
	Now(ctx context.Context) (time.Time, error)
	// Ping fails while the database can't take writes.
	Ping(ctx context.Context) error
	Close() error
}

// Meta is fixed when the database is initialised.
type Meta struct {
	// Shards is the number of shards.
	Shards int
	// ClusterID names this database, for ever.
	ClusterID uuid.UUID
	// TokenKey signs task tokens unless the configuration gives another key. 32 random bytes.
	TokenKey []byte
}

// Result is what is known of a commit.
type Result uint8

const (
	// Unknown: the outcome isn't known. The only safe thing to do is to send the very same batch again.
	Unknown Result = iota
	// Committed now.
	Committed
	// Already committed, by an earlier sending of the same batch.
	Already
	// Fenced: another owner has the shard. Nothing was written.
	Fenced
	// Regressed: the database lost commits that this owner knows of. Nothing was written.
	Regressed
	// Refused: the database answered that this batch can't be written (a constraint). Nothing was written.
	Refused
)

func (r Result) String() string {
	return [...]string{"unknown", "committed", "already", "fenced", "regressed", "refused"}[r]
}

// Grant is the right to write a shard. It is what commits are fenced by.
type Grant struct {
	Shard int
	// Epoch rises with each acquisition.
	Epoch int64
	// ID is random, new with each acquisition.
	ID uuid.UUID
	// LastSeq is the number of the last batch committed when the grant was given.
	LastSeq int64
}

// Batch is what one shard commits at once. Seq must be the shard's last sequence number plus one; one batch of a shard
// is in flight at a time.
type Batch struct {
	Grant       Grant
	Seq         int64
	Transitions []Transition
}

// Transition is one step of one saga. Those of one saga are in order.
type Transition struct {
	Run uuid.UUID
	// N is its number within the saga: 1, 2, ...
	N  int64
	At time.Time
	// Facts is a history.v1.Transition, encoded.
	Facts []byte
	// Saga is the saga's row as it is from now on; nil if it hasn't changed. With N == 1 it is inserted, else updated:
	// then Digest and StartedAt stay what they were.
	Saga *Saga
	// Items are operations items, as they are from now on: inserted or replaced.
	Items []Item
}

// Committer writes.
type Committer interface {
	// Commit writes each batch as a whole or not at all, all of them in one statement. A shard whose fence fails
	// drops out; the others are written. The results are in the order of the batches. The error tells why results are Unknown
	// or Refused; it is nil otherwise. ctx must not be a request's: a commit that has been sent isn't called back.
	// Implementations bound the time by themselves.
	Commit(ctx context.Context, batches []Batch) ([]Result, error)
}

// Status is a saga's lifecycle status. The numbers are stored.
type Status int16

const (
	Running      Status = 1
	Compensating Status = 2
	Stuck        Status = 3
	Completed    Status = 4
	Compensated  Status = 5
	Abandoned    Status = 6
)

// Terminal says that the status never changes again.
func (s Status) Terminal() bool { return s >= Completed }

// Saga is a saga's row.
type Saga struct {
	Shard     int
	Namespace string
	ID        string
	// Run is a UUIDv7 whose time is the start's.
	Run        uuid.UUID
	Definition string
	Version    int32
	Status     Status
	// Digest is of what the start asked for.
	Digest    []byte
	StartedAt time.Time
	ChangedAt time.Time
	// Deadline is zero if there is none.
	Deadline time.Time
	Labels   map[string]string
	// Cause is a history.v1.Cause, encoded; nil while nothing turned the saga back.
	Cause         []byte
	SettledByHand int32
	// N is the number of the transition that wrote the row.
	N int64
}

// Item is an operations item's row.
type Item struct {
	Namespace  string
	SagaID     string
	Run        uuid.UUID
	Number     int32
	Definition string
	// Kind, Status and Direction are history.v1's numbers.
	Kind        int16
	Status      int16
	Direction   int16
	Blocking    bool
	Step        string
	Code        string
	Message     string
	Fingerprint string
	Attempts    int32
	How         string
	OpenedAt    time.Time
	ChangedAt   time.Time
	// Version is the saga's transition number at the last change.
	Version int64
}

// Node is who takes leases.
type Node struct {
	// Name is unique among the nodes that run.
	Name string
	// Boot is random, new with each start of the process.
	Boot uuid.UUID
	// Address is where other nodes reach this one's API, for example http://10.0.0.3:7230.
	Address string
}

// Lease tells who owns a shard, for liveness only: what protects the data is the fence.
type Lease struct {
	Shard int
	Epoch int64
	Node  Node
	// Live: not expired, by the database's clock.
	Live bool
}

// Leaser hands out shards.
type Leaser interface {
	// Acquire takes shards that are free, whose lease has expired, or that the node with this boot holds already,
	// raising their epochs and writing a fresh grant id, and returns the grants of those that it got. Shards held by
	// others are left out. After it, no commit of an earlier owner can land. If it fails, shards may have been taken
	// all the same: acquire them again.
	Acquire(ctx context.Context, node Node, shards []int, ttl time.Duration) ([]Grant, error)
	// Renew prolongs the node's leases and returns the shards that it still holds. A lease that has expired is revived
	// unless another node took it.
	Renew(ctx context.Context, node Node, ttl time.Duration) ([]int, error)
	// Release gives shards back at once.
	Release(ctx context.Context, node Node, shards []int) error
	// Leases lists all shards' leases.
	Leases(ctx context.Context) ([]Lease, error)
	// Beat says that the node lives, for as long as ttl, and lists the nodes that do.
	Beat(ctx context.Context, node Node, ttl time.Duration) ([]Node, error)
}

// Key names a saga.
type Key struct {
	Shard     int
	Namespace string
	ID        string
}

// Row is a transition as it is stored.
type Row struct {
	Run   uuid.UUID
	N     int64
	Epoch int64
	Seq   int64
	At    time.Time
	Facts []byte
}

// Loaded is a saga with its whole history.
type Loaded struct {
	Saga    Saga
	History []Row
}

// Loader loads sagas for their owner.
type Loader interface {
	// Unfinished returns sagas of a shard that aren't terminal, ordered by run, after the given run, limit at most.
	Unfinished(ctx context.Context, shard int, after uuid.UUID, limit int) ([]Loaded, error)
	// Load returns those of the sagas that exist, in any order.
	Load(ctx context.Context, keys []Key) ([]Loaded, error)
}

// SagaFilter chooses sagas. Zero values choose all.
type SagaFilter struct {
	Namespace  string
	Statuses   []Status
	Definition string
	// Version of the definition.
	Version       int32
	StartedAfter  time.Time // inclusive
	StartedBefore time.Time // exclusive
	IDPrefix      string
	// After is the last run of the page before. Runs order sagas by start time, then randomly, and never tie.
	After       uuid.UUID
	OldestFirst bool
	Limit       int
}

// ItemFilter chooses operations items, oldest first.
type ItemFilter struct {
	Namespace     string
	Definition    string
	SagaID        string
	IncludeClosed bool
	AfterOpened   time.Time
	AfterRun      uuid.UUID
	AfterNumber   int32
	Limit         int
}

// Stray is a result for a saga, step or attempt that the engine doesn't know. It is kept without its payload.
type Stray struct {
	At        time.Time
	Namespace string
	SagaID    string
	Run       uuid.UUID
	Step      string
	Attempt   int32
	Outcome   int16
	Worker    string
	Why       string
}

// Reader answers questions. What it answers was committed. A limit of 0 means [LimitDefault]; none is above [LimitMax].
type Reader interface {
	Saga(ctx context.Context, key Key) (Saga, error)
	Sagas(ctx context.Context, f SagaFilter) ([]Saga, error)
	// History returns a saga's transitions from number from on, limit at most.
	History(ctx context.Context, shard int, run uuid.UUID, from int64, limit int) ([]Row, error)
	Items(ctx context.Context, f ItemFilter) ([]Item, error)
	// CountItems counts open items by kind.
	CountItems(ctx context.Context) (map[int16]int64, error)
	// KeepStray keeps a result that fits nothing. The newest [StraysMax] are kept.
	KeepStray(ctx context.Context, s Stray) error
	// Strays returns the newest of them, newest first.
	Strays(ctx context.Context, limit int) ([]Stray, error)
}

// Definition is a registered definition.
type Definition struct {
	Namespace    string
	Name         string
	Version      int32
	Hash         []byte
	RegisteredAt time.Time
	// Body is a sagad.v1.Definition, encoded.
	Body []byte
	// DeletedAt is zero unless the version was deleted. What ended under it is still read by it; nothing new may use it.
	DeletedAt time.Time
}

// Definitions keeps definitions. Their content is never changed.
type Definitions interface {
	// PutDefinition registers content under the next version, or returns the version that has the same hash and isn't
	// deleted. The number of a version that was deleted is never given out again. A zero RegisteredAt means now.
	PutDefinition(ctx context.Context, d Definition) (_ Definition, created bool, _ error)
	// Definition returns a version, also one that was deleted; 0 means the latest that wasn't.
	Definition(ctx context.Context, namespace, name string, version int32) (Definition, error)
	// Definitions lists without bodies and without those that were deleted: the latest version of each, by name, after the
	// name given; or, if name isn't empty, all versions of that one, newest first, older than the version given (in decimal).
	Definitions(ctx context.Context, namespace, name, after string, limit int) ([]Definition, error)
	// DefinitionsNaming lists the versions in whose body a word occurs, with their bodies and without those that were
	// deleted, by name and version, after the ones given. It is a first sieve for who may refer to a definition.
	DefinitionsNaming(ctx context.Context, namespace, word, afterName string, afterVersion int32, limit int) ([]Definition, error)
	// Usage tells who needs a version, for 0 all versions that aren't deleted, newest first, the newest
	// [UsageVersionsMax] of them. ErrNotFound if there is none.
	Usage(ctx context.Context, namespace, name string, version int32) ([]VersionUsage, error)
	// DeleteDefinition deletes a version that no unfinished saga needs. It is safe against starts at the same moment: either it
	// fails with an *[InUseError], or no commit lets a saga of that version begin, or move to it, any more: those are
	// Refused with a *[DeletedError]. Deleting it again does nothing. ErrNotFound if there never was such a version.
	DeleteDefinition(ctx context.Context, namespace, name string, version int32) error
}

// VersionUsage tells who needs a version of a definition.
type VersionUsage struct {
	Version int32
	// Unfinished counts the sagas that aren't terminal, Sagas all.
	Unfinished, Sagas int64
	// Examples are ids of unfinished ones, [UsageExamplesMax] at most, in no order.
	Examples []string
}

// InUseError: sagas still need a version.
type InUseError struct {
	Namespace, Name string
	Version         int32
	// Unfinished counts them.
	Unfinished int64
}

func (e *InUseError) Error() string {
	sagas := "1 unfinished saga needs"
	if e.Unfinished != 1 {
		sagas = fmt.Sprintf("%d unfinished sagas need", e.Unfinished)
	}
	return fmt.Sprintf("%s version %d of definition %q in namespace %q", sagas, e.Version, e.Name, e.Namespace)
}

// DeletedError: a saga would begin under a version that was deleted, or move to it.
type DeletedError struct {
	Namespace, Name string
	Version         int32
}

func (e *DeletedError) Error() string {
	return fmt.Sprintf("version %d of definition %q in namespace %q was deleted", e.Version, e.Name, e.Namespace)
}
