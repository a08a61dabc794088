package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
)

// line is the most that a command or an answer may have.
const lineBytesMax = 1 << 20

// child is the life of a process with a role. It ends when stdin does, so that none outlives the coordinator.
func child(ctx context.Context, role string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &conversation{commands: make(chan []byte), out: json.NewEncoder(stdout)}
	go func() {
		defer cancel()
		defer close(c.commands)
		s := bufio.NewScanner(stdin)
		s.Buffer(nil, lineBytesMax)
		for s.Scan() {
			c.commands <- append([]byte(nil), s.Bytes()...)
		}
	}()
	var err error
	switch role {
	case roleEngine:
		err = engineRole(ctx, c, stderr)
	case roleWorker:
		err = workerRole(ctx, c, stderr)
	default:
		err = errors.New("there is no such role")
	}
	if err != nil && !errors.Is(err, io.EOF) {
		fmt.Fprintf(stderr, "bench, %s process: %v\n", role, err)
		return 1
	}
	return 0
}

const (
	roleEngine = "engine"
	roleWorker = "worker"
)

// conversation is what a process with a role has with the coordinator.
type conversation struct {
	commands chan []byte
	out      *json.Encoder
}

// next waits for a command; io.EOF if there will be none.
func (c *conversation) next(v any) error {
	b, ok := <-c.commands
	if !ok {
		return io.EOF
	}
	return json.Unmarshal(b, v)
}

func (c *conversation) say(v any) error { return c.out.Encode(v) }

// profile writes a CPU profile to file until the function that it returns is called, and then what was allocated so far beside it.
// Without a file it does nothing.
func profile(file string) (stop func() error, err error) {
	if file == "" {
		return func() error { return nil }, nil
	}
	cpu, err := os.Create(file + ".cpu.pprof")
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return nil, errors.Join(err, cpu.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		allocs, err := os.Create(file + ".allocs.pprof")
		if err != nil {
			return errors.Join(err, cpu.Close())
		}
		return errors.Join(pprof.Lookup("allocs").WriteTo(allocs, 0), allocs.Close(), cpu.Close())
	}, nil
}
