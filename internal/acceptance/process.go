package acceptance

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// tailLines are kept of a process's output.
	tailLines = 60
	lineBytes = 64 << 10
	// stopTimeout is how long a process may take to end by itself once it was asked to.
	stopTimeout = 30 * time.Second
)

// Process is a child process. Should the test's process die, it dies too.
type Process struct {
	name   string
	cmd    *exec.Cmd
	exited chan struct{}
	err    error // once exited

	mu      sync.Mutex
	tail    []string
	changed chan struct{} // closed and replaced at each line
	lines   []string      // of standard output only
}

// StartProcess starts a program. Its output is kept, not printed.
func StartProcess(name, program string, args ...string) (*Process, error) {
	p := &Process{name: name, cmd: exec.Command(program, args...), exited: make(chan struct{}), changed: make(chan struct{})}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, outWriter, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	stderr, errWriter, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stdout, p.cmd.Stderr = outWriter, errWriter
	var readers sync.WaitGroup
	readers.Go(func() { p.read(stdout, true) })
	readers.Go(func() { p.read(stderr, false) })
	started := make(chan error)
	go func() {
		// The child's life is tied to the thread that started it, so that thread must stay.
		runtime.LockOSThread()
		err := p.cmd.Start()
		_ = outWriter.Close()
		_ = errWriter.Close()
		started <- err
		if err != nil {
			return
		}
		p.err = p.cmd.Wait()
		readers.Wait()
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

func (p *Process) read(r io.ReadCloser, out bool) {
	defer func() { _ = r.Close() }()
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 4096), lineBytes)
	for s.Scan() {
		p.mu.Lock()
		if p.tail = append(p.tail, s.Text()); len(p.tail) > 2*tailLines {
			p.tail = append([]string(nil), p.tail[tailLines:]...)
		}
		if out {
			p.lines = append(p.lines, s.Text())
		}
		close(p.changed)
		p.changed = make(chan struct{})
		p.mu.Unlock()
	}
	_, _ = io.Copy(io.Discard, r) // a line that is too long: keep the process from blocking
}

// Tail is the end of what the process said.
func (p *Process) Tail() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	tail := p.tail[max(0, len(p.tail)-tailLines):]
	return fmt.Sprintf("--- %s (pid %d), last lines:\n%s\n", p.name, p.cmd.Process.Pid, strings.Join(tail, "\n"))
}

// Output is the process's standard output so far.
func (p *Process) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// Await waits until what the process printed on its standard output satisfies done, which is given all lines so far.
func (p *Process) Await(what string, limit time.Duration, done func(lines []string) bool) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		exited := false
		select {
		case <-p.exited:
			exited = true
		default:
		}
		p.mu.Lock()
		ok, changed := done(p.lines), p.changed
		p.mu.Unlock()
		switch {
		case ok:
			return nil
		case exited:
			return fmt.Errorf("%s ended (%v) before %s", p.name, p.err, what)
		}
		select {
		case <-changed:
		case <-p.exited:
		case <-timer.C:
			return fmt.Errorf("%s: waited %v for %s", p.name, limit, what)
		}
	}
}

// Kill ends the process as a crash does (SIGKILL) and waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	<-p.exited
}

// Stop asks the process to end and waits; it is killed, and that is an error, if it doesn't in time. A process that has
// ended is no error.
func (p *Process) Stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
		return nil
	case <-time.After(stopTimeout):
		p.Kill()
		return fmt.Errorf("%s didn't stop within %v of SIGTERM", p.name, stopTimeout)
	}
}

// Wait waits for the process's end. The error is that of a process that failed, or ran longer than limit.
func (p *Process) Wait(limit time.Duration) error {
	select {
	case <-p.exited:
		if p.err != nil {
			return fmt.Errorf("%s: %w", p.name, p.err)
		}
		return nil
	case <-time.After(limit):
		return fmt.Errorf("%s: still runs after %v", p.name, limit)
	}
}
