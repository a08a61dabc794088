package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is one of ours that was started again with a role. It reads one JSON value per line: first its configuration, then
// commands; it ends when there are no more. It answers in the same way.
type process struct {
	role   string
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	exited chan struct{}
	err    error
}

// stopWait is how long a process may take to stop.
const stopWait = 20 * time.Second

// spawn starts a process and waits until it says that it is ready; that answer goes to ready.
func spawn(ctx context.Context, role string, config, ready any, stderr io.Writer) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{role: role, cmd: exec.Command(self, "-role="+role), exited: make(chan struct{})}
	p.cmd.Env = measuredEnv()
	p.cmd.Stderr = stderr
	// A group of its own: an interrupt at the terminal is ours to handle.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.out, p.cmd.Stdout = bufio.NewReader(r), w
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	_ = w.Close()
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	if err := p.ask(ctx, config, ready); err != nil {
		_ = p.stop()
		return nil, err
	}
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) send(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if _, err := p.in.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("%s process: %w", p.role, err)
	}
	return nil
}

// receive takes the process's next answer. If ctx ends, the process is told to stop.
func (p *process) receive(ctx context.Context, v any) error {
	stop := context.AfterFunc(ctx, func() { _ = p.cmd.Process.Kill() })
	defer stop()
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		<-p.exited
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("the %s process ended: %w; its reason is above", p.role, errors.Join(p.err, err))
	}
	return json.Unmarshal(line, v)
}

func (p *process) ask(ctx context.Context, v, answer any) error {
	if err := p.send(v); err != nil {
		return err
	}
	return p.receive(ctx, answer)
}

// stop lets the process end by itself, and kills it if it doesn't.
func (p *process) stop() error {
	_ = p.in.Close()
	select {
	case <-p.exited:
		return p.err
	case <-time.After(stopWait):
		_ = p.cmd.Process.Kill()
		<-p.exited
		return fmt.Errorf("the %s process didn't stop within %v and was killed", p.role, stopWait)
	}
}

// tick is the unit of the times in /proc/<pid>/stat. Linux has told user space hundredths of a second for ever.
const tick = 10 * time.Millisecond

// stat is what /proc/<pid>/stat says of a process.
type stat struct {
	parent int
	// own is user and system time of the process, reaped that of its children that have ended.
	own, reaped time.Duration
}

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	// The name, in parentheses, may hold anything. What follows is: state, parent, ...
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 15 {
		return stat{}, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(f))
	}
	var n [5]int64
	for i, field := range []int{1, 11, 12, 13, 14} {
		if n[i], err = strconv.ParseInt(f[field], 10, 64); err != nil {
			return stat{}, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
	}
	return stat{parent: int(n[0]), own: time.Duration(n[1]+n[2]) * tick, reaped: time.Duration(n[3]+n[4]) * tick}, nil
}

// cpuOf is the processor time that a process has used so far; with its children, those that have ended included, if family
// is set.
func cpuOf(pid int, family bool) (time.Duration, error) {
	var sum time.Duration
	if family {
		dirs, err := filepath.Glob("/proc/[0-9]*")
		if err != nil {
			return 0, err
		}
		for _, d := range dirs {
			child, _ := strconv.Atoi(filepath.Base(d))
			if s, err := readStat(child); err == nil && s.parent == pid {
				sum += s.own + s.reaped
			}
		}
	}
	s, err := readStat(pid)
	if err != nil {
		return 0, err
	}
	sum += s.own
	if family {
		sum += s.reaped
	}
	return sum, nil
}

// busy is the processor time that the whole machine has used so far.
func busy() (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(b), "\n")
	f := strings.Fields(line)
	var ticks int64
	for _, i := range []int{1, 2, 3, 6, 7} { // user, nice, system, irq, softirq
		if i >= len(f) {
			return 0, errors.New("/proc/stat can't be read: is this Linux?")
		}
		n, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}

// measuredEnv is the environment of all processes that are measured, ours and the peer's: with the garbage collector set as a
// sagad node sets it for itself.
func measuredEnv() []string {
	env := os.Environ()
	if os.Getenv("GOGC") == "" {
		env = append(env, "GOGC=400")
	}
	return env
}
