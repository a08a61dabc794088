package main

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"
)

// syncTime is how long it takes to make 8 kB durable on the disk that holds dir, the median of about a second: every commit of a
// database pays it once.
func syncTime(dir string) (time.Duration, error) {
	f, err := os.CreateTemp(dir, "sagad-sync-")
	if err != nil {
		return 0, err
	}
	defer func() {
		_ = f.Close()
		_ = os.Remove(f.Name())
	}()
	// Like a log file of a database: there already, then overwritten.
	const page, pages = 8 << 10, 256
	if _, err := f.Write(make([]byte, page*pages)); err != nil {
		return 0, err
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	buf := make([]byte, page)
	var took []time.Duration
	for begin := time.Now(); time.Since(begin) < time.Second; {
		at := time.Now()
		if _, err := f.WriteAt(buf, int64(len(took)%pages)*page); err != nil {
			return 0, err
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			return 0, fmt.Errorf("fdatasync: %w", err)
		}
		took = append(took, time.Since(at))
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}
