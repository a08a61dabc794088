// Package sqlite keeps sagas in one SQLite file. It is the store for development and for a single node: nothing needs to be
// installed. One process at a time has the file.
package sqlite

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/pressly/goose/v3"

	sagadsql "github.com/sagad/sagad/sql"
	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/sqlite/litedb"
)

const (
	fileName     = "sagad.db"
	lockName     = "sagad.lock"
	versionTable = "sagad_schema_version"
	// readersMax is how many reads run beside the writer.
	readersMax = 4
	shardsMax  = 4096
)

var (
	// ErrInUse: another process has the data folder.
	ErrInUse = errors.New("the data folder is in use by another process")
	// ErrBroken: an I/O error came between, or the file was taken away; what is in memory and what is on disk may differ.
	// Only a new start of the process mends that.
	ErrBroken = errors.New("the store is closed after an I/O error: check the disk, then restart sagad")
	errClosed = errors.New("the store is closed")
	// errGone: what is written to the open file is lost at the next start.
	errGone = errors.New("the database file was deleted, moved or replaced while it was open")
)

// Config of a store.
type Config struct {
	// Dir is the data folder; it is made if need be. It holds sagad.db and, while open, its companions.
	Dir string
	// Shards is how many shards a new file gets, 1 to 4096; [store.DefaultShards] if 0. An initialised one keeps its number.
	Shards int
	// Logger is [slog.Default] if nil.
	Logger *slog.Logger
}

// Store is a [store.Store].
type Store struct {
	log  *slog.Logger
	lock *os.File
	path string
	// file is the opened one; another may come into its place.
	file os.FileInfo
	q    *litedb.Queries
	meta store.Meta

	readers *sql.DB
	db      *sql.DB // the writer's
	closed  atomic.Bool
	broken  atomic.Pointer[error]

	mu sync.Mutex // held while writing
	w  *writer
}

var _ store.Store = (*Store)(nil)

// Open opens the folder's file, makes and initialises it if need be, and migrates it. The error is [ErrInUse] if another
// process has it, [store.ErrSchema] if a newer version wrote it.
func Open(ctx context.Context, c Config) (_ *Store, err error) {
	if c.Shards == 0 {
		c.Shards = store.DefaultShards
	}
	if c.Shards < 1 || c.Shards > shardsMax {
		return nil, fmt.Errorf("%d shards: choose 1 to %d", c.Shards, shardsMax)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Dir == "" {
		return nil, errors.New("the SQLite store needs a data folder")
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the data folder: %w", err)
	}
	s := &Store{log: c.Logger, q: litedb.New()}
	defer func() {
		if err != nil {
			_ = s.Close()
		}
	}()
	if s.lock, err = lock(filepath.Join(dir, lockName)); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, fileName)
	// Made here, so that nobody else can read it: it holds the key of task tokens.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the data file: %w", err)
	}
	s.path = path
	if s.file, err = f.Stat(); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("opening the data file: %w", err)
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	if s.db, err = dial(path, true); err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	if err := verify(s.db); err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	if err := migrate(ctx, s.db, c.Logger); err != nil {
		return nil, err
	}
	if s.readers, err = dial(path, false); err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	s.w = &writer{conn: conn, prepared: map[string]*sql.Stmt{}}
	if err := s.init(ctx, c.Shards); err != nil {
		return nil, fmt.Errorf("initialising %s: %w", path, err)
	}
	c.Logger.Info("sqlite store is open", "file", path, "shards", s.meta.Shards, "cluster", s.meta.ClusterID)
	return s, nil
}

func migrate(ctx context.Context, db *sql.DB, log *slog.Logger) error {
	migrations, err := fs.Sub(sagadsql.SQLite, "sqlite/migrations")
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, migrations, goose.WithTableName(versionTable),
		goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
	if err != nil {
		return fmt.Errorf("preparing migrations: %w", err)
	}
	current, newest, err := provider.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("reading the schema's version: %w", err)
	}
	if current > newest {
		return fmt.Errorf("%w: the file's is %d, this binary knows %d: run the newer release of sagad that wrote it",
			store.ErrSchema, current, newest)
	}
	applied, err := provider.Up(ctx)
	if err != nil {
		return fmt.Errorf("migrating the schema from version %d to %d: %w", current, newest, err)
	}
	if len(applied) > 0 {
		log.Info("schema migrated", "from", current, "to", newest)
	}
	return nil
}

// init writes what a new file needs, and frees all leases: who had them is dead, since we have the file.
func (s *Store) init(ctx context.Context, shards int) error {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	cluster := uuid.New()
	return s.write(ctx, func(ctx context.Context, w *writer) error {
		err := s.q.InitMeta(ctx, w, litedb.InitMetaParams{Shards: int64(shards), ClusterID: cluster[:], TokenKey: key})
		if err != nil {
			return err
		}
		meta, err := s.q.Meta(ctx, w)
		if err != nil {
			return err
		}
		s.meta = store.Meta{Shards: int(meta.Shards), ClusterID: uuid.UUID(meta.ClusterID), TokenKey: meta.TokenKey}
		for i := range meta.Shards {
			if err := s.q.InitShard(ctx, w, i); err != nil {
				return err
			}
			if err := s.q.InitLease(ctx, w, i); err != nil {
				return err
			}
		}
		return s.q.ReleaseAll(ctx, w)
	})
}

// Meta is what was fixed when the file was initialised.
func (s *Store) Meta(context.Context) (store.Meta, error) {
	m := s.meta
	m.TokenKey = append([]byte(nil), m.TokenKey...)
	return m, nil
}

// Now is the process's clock: it alone has the file.
func (s *Store) Now(context.Context) (time.Time, error) { return now(), nil }

func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// Ping fails once an I/O error has closed the store, or the file is gone.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.present(); err != nil {
		return err
	}
	return s.read(ctx, func(ctx context.Context, db litedb.DBTX) error {
		_, err := s.q.Health(ctx, db)
		return err
	})
}

// Close ends what is under way and gives the folder back. It may be called twice.
func (s *Store) Close() error {
	if !s.closed.CompareAndSwap(false, true) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	if s.readers != nil {
		errs = append(errs, s.readers.Close())
	}
	if s.w != nil {
		errs = append(errs, s.w.close())
	}
	if s.db != nil {
		errs = append(errs, s.db.Close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// ok fails once the store is closed, by Close or by an I/O error.
func (s *Store) ok() error {
	if s.closed.Load() {
		return errClosed
	}
	if err := s.broken.Load(); err != nil {
		return *err
	}
	return nil
}

// see closes the store if the error says that the file can't be relied on.
func (s *Store) see(err error) error {
	if err == nil || judge(err) != broken && !errors.Is(err, errUnended) {
		return err
	}
	return s.breakOff(err, "an I/O error closes the store: check the disk, then restart sagad")
}

// breakOff closes the store for good, and says why once.
func (s *Store) breakOff(err error, why string) error {
	err = fmt.Errorf("%w (%w)", ErrBroken, err)
	if s.broken.CompareAndSwap(nil, &err) {
		s.log.Error(why, "file", s.path, "error", err)
	}
	return err
}

// present closes the store if the path doesn't lead to the opened file any more: the system lets a deleted file be written
// on, and all of that is lost at the next start.
func (s *Store) present() error {
	if err := s.ok(); err != nil {
		return err
	}
	info, err := os.Stat(s.path)
	if err == nil && os.SameFile(info, s.file) || err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		return nil // other errors say nothing of the file
	}
	return s.breakOff(errGone, "the database file was deleted, moved or replaced under sagad, which closes the store: "+
		"put the data folder back as it was or from a backup, then restart sagad; a new start without it begins with an empty database")
}

// read runs reads in one snapshot.
func (s *Store) read(ctx context.Context, do func(ctx context.Context, db litedb.DBTX) error) error {
	if err := s.ok(); err != nil {
		return err
	}
	tx, err := s.readers.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return s.see(err)
	}
	defer func() { _ = tx.Rollback() }()
	return s.see(do(ctx, tx))
}

// write runs writes in one transaction, which takes the file's write lock at once. The caller's context doesn't end it.
func (s *Store) write(ctx context.Context, do func(ctx context.Context, w *writer) error) error {
	ctx = context.WithoutCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ok(); err != nil {
		return err
	}
	if err := s.see(s.w.transact(ctx, do)); err != nil {
		return err
	}
	// After it, each time: nothing may be acknowledged that went into a deleted file. It costs a microsecond or two.
	return s.present()
}
