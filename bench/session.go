package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	_ "modernc.org/sqlite"             // the driver sqlite

	"github.com/sagad/sagad/store"
)

// sqliteFile is what the store on SQLite calls its file.
const sqliteFile = "sagad.db"

// session is sagad at work: an engine's process and a worker's, on a database of their own.
type session struct {
	s        *suite
	store    string
	mode     string
	dir      string
	database string // on Postgres
	engine   *process
	worker   *process
	// profiles is where profiles of the next load go: a file name without process and ending.
	profiles string
	total    int64
}

func (s *suite) open(ctx context.Context, storeKind, mode string) (_ *session, err error) {
	x := &session{s: s, store: storeKind, mode: mode}
	defer func() {
		if err != nil {
			err = errors.Join(err, x.close(ctx, err))
		}
	}()
	if x.dir, err = os.MkdirTemp(s.dir, "run-"); err != nil {
		return nil, err
	}
	cfg := engineConfig{Dir: filepath.Join(x.dir, "nats"), Store: "sqlite:" + filepath.Join(x.dir, "sqlite")}
	if storeKind == onPostgres {
		if x.database, cfg.Store, err = s.db.create(ctx); err != nil {
			return nil, err
		}
	}
	var ready engineReady
	if x.engine, err = spawn(ctx, roleEngine, cfg, &ready, s.stderr); err != nil {
		return nil, err
	}
	if x.worker, err = spawn(ctx, roleWorker, workerConfig{NATS: ready.NATS, Refuse: mode == partUnwind}, &workerAnswer{}, s.stderr); err != nil {
		return nil, err
	}
	return x, nil
}

// load runs a load and measures from outside what it costs.
func (x *session) load(ctx context.Context, cmd loadCommand) (figures, error) {
	f := figures{
		System: "sagad", Store: x.store, Part: cmd.Mode, Via: cmd.Via, InFlight: cmd.InFlight, Rate: cmd.Rate, Runs: 1,
	}
	if x.profiles != "" {
		cmd.Profile = x.profiles + "-engine"
	}
	if err := x.engine.send(cmd); err != nil {
		return f, err
	}
	pids := map[string]int{"engine": x.engine.pid(), "worker": x.worker.pid()}
	var before, after snapshot
	var first, last loadAnswer
	for _, m := range []struct {
		name    string
		taken   *snapshot
		answer  *loadAnswer
		profile string
	}{{"begin", &before, &first, x.profiles}, {"end", &after, &last, ""}} {
		if err := x.engine.receive(ctx, m.answer); err != nil {
			return f, err
		}
		if m.answer.Mark != m.name {
			return f, fmt.Errorf("the engine process said %+v, should be %s", *m.answer, m.name)
		}
		var err error
		if *m.taken, err = x.s.snapshot(ctx, pids, x.database); err != nil {
			return f, err
		}
		if x.profiles != "" {
			if m.profile != "" {
				m.profile += "-worker"
			}
			if err := x.worker.ask(ctx, workerCommand{Profile: &m.profile}, &workerAnswer{}); err != nil {
				return f, err
			}
		}
	}
	var done loadAnswer
	if err := x.engine.receive(ctx, &done); err != nil {
		return f, err
	}
	x.total = done.Total
	if done.Sagas == 0 {
		return f, errors.New("nothing was measured: no saga ended within the measured time, make it longer")
	}
	f.Sagas, f.PerSecond, f.P50ms, f.P99ms = float64(done.Sagas), float64(done.Sagas)/cmd.Seconds, done.P50ms, done.P99ms
	f.Commits = (last.Commits - first.Commits) / f.Sagas
	after.since(before, &f)
	return f, nil
}

// close proves that what was counted is what was done, unless the load failed already, and ends everything.
func (x *session) close(ctx context.Context, failed error) error {
	var errs []error
	var counts workerAnswer
	if x.worker != nil && failed == nil {
		errs = append(errs, x.worker.ask(ctx, workerCommand{}, &counts))
	}
	// The worker first: it waits for answers of the engine.
	for _, p := range []*process{x.worker, x.engine} {
		if p != nil {
			errs = append(errs, p.stop())
		}
	}
	if failed == nil && errors.Join(errs...) == nil {
		if err := x.verify(ctx, counts); err != nil {
			errs = append(errs, fmt.Errorf("the figures are void: %w", err))
		}
	}
	if x.database != "" {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		errs = append(errs, x.s.db.drop(ctx, x.database))
	}
	if x.dir != "" {
		errs = append(errs, os.RemoveAll(x.dir))
	}
	return errors.Join(errs...)
}

// verify holds the counts against each other: the ends that the load saw, the calls that the worker executed, and the rows in the
// database. Nothing may be missing, and nothing done twice.
func (x *session) verify(ctx context.Context, worker workerAnswer) error {
	status, undone, transitions := store.Completed, int64(0), 4*x.total
	if x.mode == partUnwind {
		status, undone, transitions = store.Compensated, x.total, 6*x.total
	}
	want := workerAnswer{Reserved: x.total, Charged: x.total, Shipped: x.total, Released: undone, Refunded: undone}
	if worker != want {
		return fmt.Errorf("the worker executed %+v, should be %+v", worker, want)
	}
	driver, source := "sqlite", filepath.Join(x.dir, "sqlite", sqliteFile)
	if x.database != "" {
		driver, source = "pgx", x.s.db.url(x.database)
	}
	db, err := sql.Open(driver, source)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	for _, q := range []struct {
		what, query string
		want        int64
	}{
		{"sagas", "SELECT count(*) FROM saga", x.total},
		{"sagas that ended as they should", fmt.Sprintf("SELECT count(*) FROM saga WHERE status = %d", status), x.total},
		{"transitions", "SELECT count(*) FROM history", transitions},
		{"operations items", "SELECT count(*) FROM ops_item", 0},
		{"results that fitted nothing", "SELECT count(*) FROM stray", 0},
	} {
		var got int64
		if err := db.QueryRowContext(ctx, q.query).Scan(&got); err != nil {
			return fmt.Errorf("count %s: %w", q.what, err)
		}
		if got != q.want {
			return fmt.Errorf("the database holds %d %s, should be %d", got, q.what, q.want)
		}
	}
	return nil
}

// snapshot is what is counted from outside at one moment.
type snapshot struct {
	at                time.Time
	cpu               map[string]time.Duration
	busy              time.Duration
	log, transactions int64
}

// snapshot counts the processes given and, if there is a database, Postgres.
func (s *suite) snapshot(ctx context.Context, pids map[string]int, database string) (snapshot, error) {
	t := snapshot{at: time.Now(), cpu: map[string]time.Duration{}}
	var err error
	for name, pid := range pids {
		if t.cpu[name], err = cpuOf(pid, false); err != nil {
			return t, fmt.Errorf("the processor time of %s: %w", name, err)
		}
	}
	if database != "" {
		if t.cpu["postgres"], err = cpuOf(s.db.server.PID(), true); err != nil {
			return t, fmt.Errorf("the processor time of Postgres: %w", err)
		}
		if t.log, t.transactions, err = s.db.log(ctx, database); err != nil {
			return t, err
		}
	}
	t.busy, err = busy()
	return t, err
}

// since writes what happened since before, per saga.
func (t snapshot) since(before snapshot, f *figures) {
	f.CPUms = map[string]float64{}
	ours := time.Duration(0)
	for name, now := range t.cpu {
		used := now - before.cpu[name]
		ours += used
		f.CPUms[name] = ms(used) / f.Sagas
	}
	f.LogBytes = float64(t.log-before.log) / f.Sagas
	f.Transactions = float64(t.transactions-before.transactions) / f.Sagas
	f.Others = max(0, (t.busy-before.busy-ours).Seconds()/t.at.Sub(before.at).Seconds())
}
