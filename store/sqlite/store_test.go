package sqlite

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/storetest"
)

// childDir makes this test binary a child that commits until it is killed.
const childDir = "SAGAD_TEST_SQLITE_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		child(dir)
	}
	os.Exit(m.Run())
}

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Config{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func acquire(t *testing.T, s *Store, name string, shards ...int) []store.Grant {
	t.Helper()
	grants, err := s.Acquire(t.Context(), store.Node{Name: name, Boot: uuid.New()}, shards, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return grants
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store { return open(t, quick(t)) })
}

// quick is a folder in memory where there is one: 10,000 syncs to a slow disk take long and show nothing.
func quick(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "sagad-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// child commits one transition after another, and says which are committed.
func child(dir string) {
	fail := func(err error) {
		fmt.Println("error", err)
		os.Exit(1)
	}
	ctx := context.Background()
	s, err := Open(ctx, Config{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fail(err)
	}
	grants, err := s.Acquire(ctx, store.Node{Name: "child", Boot: uuid.New()}, []int{0}, time.Hour)
	if err != nil || len(grants) != 1 {
		fail(fmt.Errorf("acquired %v: %w", grants, err))
	}
	run := uuid.UUID{15: 1}
	for seq := grants[0].LastSeq + 1; ; seq++ {
		tr := store.Transition{Run: run, N: seq, At: time.Now(), Facts: make([]byte, 500)}
		if seq == 1 {
			tr.Saga = &store.Saga{Namespace: "default", ID: "saga", Run: run, Definition: "order", Version: 1, Status: store.Running, N: 1}
		}
		got, err := s.Commit(ctx, []store.Batch{{Grant: grants[0], Seq: seq, Transitions: []store.Transition{tr}}})
		if err != nil || got[0] != store.Committed {
			fail(fmt.Errorf("%v: %w", got, err))
		}
		fmt.Println("committed", seq)
	}
}

// startChild starts a child and returns its output.
func startChild(t *testing.T, dir string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(out)
}

// TestKilled kills the process that has the file, several times. What it said was committed is there, whole.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	said := int64(0)
	for round := range 5 {
		cmd, lines := startChild(t, dir)
		for n := 0; lines.Scan(); n++ {
			text, ok := strings.CutPrefix(lines.Text(), "committed ")
			if !ok {
				t.Fatal("the child: ", lines.Text())
			}
			seq, err := strconv.ParseInt(text, 10, 64)
			if err != nil || seq < said+1 || n > 0 && seq != said+1 {
				t.Fatalf("round %d: committed %q after %d", round, text, said)
			}
			said = seq
			if n == 40+round*17 {
				if _, err := Open(t.Context(), Config{Dir: dir}); !errors.Is(err, ErrInUse) {
					t.Errorf("opening what the child has: %v, want ErrInUse", err)
				}
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait()
	}
	s := open(t, dir)
	loaded, err := s.Load(t.Context(), []store.Key{{Namespace: "default", ID: "saga"}})
	if err != nil || len(loaded) != 1 {
		t.Fatal(loaded, err)
	}
	rows := loaded[0].History
	for i, r := range rows {
		if r.N != int64(i+1) || r.Seq != r.N || len(r.Facts) != 500 {
			t.Fatalf("transition %d: number %d of batch %d, %d bytes", i+1, r.N, r.Seq, len(r.Facts))
		}
	}
	// The last commit may have been cut off before it was said.
	if n := int64(len(rows)); n < said || n > said+1 {
		t.Errorf("%d transitions, %d said", n, said)
	}
	grants := acquire(t, s, "next", 0)
	if len(grants) != 1 || grants[0].Epoch != 6 || grants[0].LastSeq != int64(len(rows)) {
		t.Errorf("a dead process's lease: %+v, want it free, with epoch 6 and number %d", grants, len(rows))
	}
}

func TestOneProcess(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if _, err := Open(t.Context(), Config{Dir: dir}); !errors.Is(err, ErrInUse) {
		t.Errorf("a second store: %v, want ErrInUse", err)
	}
	cmd, lines := startChild(t, dir)
	if !lines.Scan() || !strings.Contains(lines.Text(), "in use by another process") {
		t.Errorf("a second process says %q", lines.Text())
	}
	if err := cmd.Wait(); err == nil {
		t.Error("a second process got the folder")
	}
	first := acquire(t, s, "a", 0)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), []store.Batch{{Grant: first[0], Seq: 1}}); !errors.Is(err, errClosed) {
		t.Errorf("a commit to a closed store: %v", err)
	}
	if _, err := s.Leases(t.Context()); !errors.Is(err, errClosed) {
		t.Errorf("a read of a closed store: %v", err)
	}
	// Whoever has the folder now has all shards.
	s = open(t, dir)
	second := acquire(t, s, "b", 0)
	if len(second) != 1 || second[0].Epoch <= first[0].Epoch {
		t.Errorf("%+v after %+v", second, first)
	}
	got, err := s.Commit(t.Context(), []store.Batch{{Grant: first[0], Seq: 1}})
	if err != nil || got[0] != store.Fenced {
		t.Errorf("the old grant: %v, %v", got, err)
	}
}

// TestBroken takes the log from under the store, as a failing disk does.
func TestBroken(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	grants := acquire(t, s, "a", 0)
	b := []store.Batch{{Grant: grants[0], Seq: 1}}
	if err := os.Truncate(filepath.Join(dir, fileName+"-wal"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Leases(t.Context()); !errors.Is(err, ErrBroken) {
		t.Fatalf("reading: %v, want ErrBroken", err)
	}
	got, err := s.Commit(t.Context(), b)
	if got[0] != store.Unknown || !errors.Is(err, ErrBroken) {
		t.Errorf("commit: %v, %v; want it unknown", got, err)
	}
	if err := s.Ping(t.Context()); !errors.Is(err, ErrBroken) {
		t.Errorf("ping: %v, want ErrBroken", err)
	}
	_ = s.Close()
}

// TestGone takes the file away under the store: nothing that is lost at the next start may be acknowledged.
func TestGone(t *testing.T) {
	for name, take := range map[string]func(dir string) error{
		"deleted folder": os.RemoveAll,
		"moved folder":   func(dir string) error { return os.Rename(dir, dir+".moved") },
		"replaced file": func(dir string) error {
			path := filepath.Join(dir, fileName)
			return errors.Join(os.Rename(path, path+".old"), os.WriteFile(path, nil, 0o600))
		},
	} {
		for _, first := range []string{"commit", "ping"} {
			t.Run(name+", "+first, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "data")
				var logs bytes.Buffer
				s, err := Open(t.Context(), Config{Dir: dir, Logger: slog.New(slog.NewTextHandler(&logs, nil))})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = s.Close() }()
				grants := acquire(t, s, "a", 0)
				if err := s.Ping(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := take(dir); err != nil {
					t.Fatal(err)
				}
				if first == "ping" {
					if err := s.Ping(t.Context()); !errors.Is(err, ErrBroken) {
						t.Errorf("ping: %v, want ErrBroken", err)
					}
				}
				for range 2 {
					got, err := s.Commit(t.Context(), []store.Batch{{Grant: grants[0], Seq: 1}})
					if got[0] != store.Unknown || !errors.Is(err, ErrBroken) {
						t.Errorf("commit: %v, %v; want it unknown", got, err)
					}
				}
				if err := s.Ping(t.Context()); !errors.Is(err, ErrBroken) {
					t.Errorf("ping: %v, want ErrBroken", err)
				}
				if n := strings.Count(logs.String(), "deleted, moved or replaced under sagad"); n != 1 {
					t.Errorf("said %d times what happened: %s", n, &logs)
				}
			})
		}
	}
}

func TestFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a folder", "50%?#")
	s := open(t, dir)
	for name, want := range map[string]os.FileMode{".": 0o700, fileName: 0o600, fileName + "-wal": 0o600, lockName: 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s: permissions %o, want %o", name, got, want)
		}
	}
	var version string
	if err := s.readers.QueryRow("SELECT sqlite_version()").Scan(&version); err != nil {
		t.Fatal(err)
	}
	var major, minor, patch int
	if _, err := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); err != nil || major*1_000_000+minor*1000+patch < 3_051_003 {
		t.Errorf("SQLite %s (%v), want 3.51.3 or newer", version, err)
	}
}

func TestNewerSchema(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if _, err := s.w.ExecContext(t.Context(), "INSERT INTO "+versionTable+" (version_id, is_applied) VALUES (999, 1)"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{Dir: dir}); !errors.Is(err, store.ErrSchema) {
		t.Errorf("opening a newer schema: %v, want ErrSchema", err)
	}
	// A failed opening gives the folder back.
	if f, err := lock(filepath.Join(dir, lockName)); err != nil {
		t.Error(err)
	} else if err := f.Close(); err != nil {
		t.Error(err)
	}
}
