package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagad/sagad/internal/pgtest"
	"github.com/sagad/sagad/store/storetest"
)

// BenchmarkCommit runs on a cluster that syncs to disk, as in production. wal-B/saga is how much log a saga of 4
// transitions writes.
func BenchmarkCommit(b *testing.B) {
	server, err := pgtest.Cluster(pgtest.Options{Fsync: true, Settings: map[string]string{
		"max_wal_size": "8GB", "checkpoint_timeout": "1h", "shared_buffers": "512MB",
	}})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = server.Stop() }()
	ctx := context.Background()
	admin, err := pgx.Connect(ctx, server.DSN("postgres"))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = admin.Close(ctx) }()
	databases := 0
	for _, rows := range []int{1, 16, 128, 512} {
		b.Run(fmt.Sprint("rows=", rows), func(b *testing.B) {
			databases++
			name := fmt.Sprint("bench_", databases)
			if _, err := admin.Exec(ctx, "CREATE DATABASE "+name); err != nil {
				b.Fatal(err)
			}
			s, err := Open(ctx, Config{DSN: server.DSN(name), Node: "bench", Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = s.Close() }()
			lsn := func() (n int64) {
				if err := admin.QueryRow(ctx, "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").Scan(&n); err != nil {
					b.Fatal(err)
				}
				return n
			}
			wal, cpu := lsn(), cpuTicks(server.PID())
			storetest.Bench(b, s, rows, 2, func(sagas int) {
				if sagas > 0 {
					b.ReportMetric(float64(lsn()-wal)/float64(sagas), "wal-B/saga")
					// A tick is 10 ms.
					b.ReportMetric(float64(cpuTicks(server.PID())-cpu)*10_000/float64(sagas), "server-us/saga")
				}
			})
		})
	}
}

// cpuTicks is the CPU time of the server and its living children.
func cpuTicks(pid int) (ticks int64) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		f := strings.Fields(rest)
		if len(f) < 13 || f[1] != strconv.Itoa(pid) {
			continue
		}
		user, _ := strconv.ParseInt(f[11], 10, 64)
		system, _ := strconv.ParseInt(f[12], 10, 64)
		ticks += user + system
	}
	return ticks
}
