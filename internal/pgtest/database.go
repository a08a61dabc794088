package pgtest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

var shared struct {
	main      atomic.Bool
	once      sync.Once
	server    *Server
	err       error
	databases atomic.Int64
}

// Main runs a package's tests and then stops the cluster that they started, if any:
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
func Main(m *testing.M) int {
	shared.main.Store(true)
	code := m.Run()
	if shared.server != nil {
		if err := shared.server.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping Postgres:", err)
			return max(code, 1)
		}
	}
	return code
}

// Start gives the test a fresh, empty database and returns its DSN. All tests of a process share one cluster, which
// doesn't sync to disk. Without Postgres the test fails: it isn't skipped.
func Start(t testing.TB) (dsn string) {
	t.Helper()
	if !shared.main.Load() {
		t.Fatal("the package needs func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }")
	}
	shared.once.Do(func() { shared.server, shared.err = Cluster(Options{Dir: quick()}) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	name := fmt.Sprintf("test_%d", shared.databases.Add(1))
	admin(t, "CREATE DATABASE "+name)
	t.Cleanup(func() { admin(t, "DROP DATABASE "+name+" WITH (FORCE)") })
	return shared.server.DSN(name)
}

func admin(t testing.TB, statement string) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, shared.server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// quick is a folder in memory, where there is one with room: databases are made and dropped several times faster there.
func quick() string {
	const dir, roomMin = "/dev/shm", 2 << 30
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil || int64(fs.Bavail)*fs.Bsize < roomMin {
		return ""
	}
	return dir
}
