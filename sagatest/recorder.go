package sagatest

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// recorder is a test that keeps what it is told instead of failing. What isn't here is that of the test it stands for.
type recorder struct {
	testing.TB

	mu       sync.Mutex
	failed   bool
	stopped  bool
	messages []string
	cleanups []func()
}

func (r *recorder) add(fail bool, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = r.failed || fail
	if fail && text != "" && len(r.messages) < 100 {
		r.messages = append(r.messages, strings.TrimRight(text, "\n"))
	}
}

// words are what it was told, one a line.
func (r *recorder) words() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed && len(r.messages) == 0 {
		return "it failed without a word"
	}
	return strings.Join(slices.Compact(slices.Clone(r.messages)), "\n")
}

func (r *recorder) Helper()                    {}
func (r *recorder) Error(args ...any)          { r.add(true, fmt.Sprintln(args...)) }
func (r *recorder) Errorf(f string, a ...any)  { r.add(true, fmt.Sprintf(f, a...)) }
func (r *recorder) Fail()                      { r.add(true, "") }
func (r *recorder) Log(args ...any)            {}
func (r *recorder) Logf(f string, args ...any) {}
func (r *recorder) Fatal(args ...any)          { r.Error(args...); r.FailNow() }
func (r *recorder) Fatalf(f string, a ...any)  { r.Errorf(f, a...); r.FailNow() }
func (r *recorder) Skip(args ...any) {
	r.Error(append([]any{"a world can't be skipped:"}, args...)...)
	r.SkipNow()
}
func (r *recorder) Skipf(f string, args ...any) { r.Skip(fmt.Sprintf(f, args...)) }
func (r *recorder) Skipped() bool               { return false }

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) FailNow() {
	r.add(true, "")
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
	runtime.Goexit()
}

func (r *recorder) SkipNow() { r.FailNow() }

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

// end runs the clean-ups, the last one first.
func (r *recorder) end() {
	for {
		r.mu.Lock()
		n := len(r.cleanups)
		if n == 0 {
			r.mu.Unlock()
			return
		}
		f := r.cleanups[n-1]
		r.cleanups = r.cleanups[:n-1]
		r.mu.Unlock()
		r.guard(f)
	}
}

// guard calls f in a goroutine of its own, which it may end, and says whether it came back.
func (r *recorder) guard(f func()) (ok bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				ok = false
				r.Errorf("panic: %v", p)
			}
		}()
		f()
		ok = true
	}()
	<-done
	return ok
}
