package sqlite

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/sagad/sagad/store/storetest"
)

// BenchmarkCommit: one committer, since SQLite has one writer. cpu-us/saga is this process's CPU time for a saga of 4
// transitions, file-B/saga what the file grows by.
func BenchmarkCommit(b *testing.B) {
	for _, rows := range []int{1, 16, 128, 512} {
		b.Run(fmt.Sprint("rows=", rows), func(b *testing.B) {
			dir := b.TempDir()
			s, err := Open(b.Context(), Config{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				b.Fatal(err)
			}
			cpu := cpuTime()
			storetest.Bench(b, s, rows, 1, func(sagas int) {
				cpu = cpuTime() - cpu
				if err := s.Close(); err != nil {
					b.Error(err)
				}
				info, err := os.Stat(filepath.Join(dir, fileName))
				if err != nil || sagas == 0 {
					return
				}
				b.ReportMetric(float64(cpu.Microseconds())/float64(sagas), "cpu-us/saga")
				b.ReportMetric(float64(info.Size())/float64(sagas), "file-B/saga")
			})
		})
	}
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
