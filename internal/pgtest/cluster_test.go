package pgtest

import (
	"context"
	"os"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

func TestDatabasesAreFreshAndApart(t *testing.T) {
	ctx := context.Background()
	for range 2 {
		conn, err := pgx.Connect(ctx, Start(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(ctx, "CREATE TABLE only_here (x int)"); err != nil {
			t.Error(err)
		}
		if err := conn.Close(ctx); err != nil {
			t.Error(err)
		}
	}
}

func TestStopLeavesNothing(t *testing.T) {
	s, err := Cluster(Options{Fsync: true})
	if err != nil {
		t.Fatal(err)
	}
	pid, dir := s.PID(), s.dir
	for range 2 {
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
		t.Errorf("process %d: %v, want it gone", pid, err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("folder %s: %v, want it gone", dir, err)
	}
}

func TestMissingBinariesSayWhatToDo(t *testing.T) {
	t.Setenv("SAGAD_PG_BIN", t.TempDir())
	if _, err := Cluster(Options{}); err == nil {
		t.Error("no error for a folder without initdb")
	}
}
