// Package pgtest runs a private Postgres: one cluster per test process, a fresh database per test. Benchmarks use
// [Cluster] by itself. Nothing that is already running is touched.
package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Options of a cluster.
type Options struct {
	// Fsync keeps Postgres's durability on, as benchmarks need. Off, tests run several times faster.
	Fsync bool
	// Dir is where the cluster's folder is made; the system's temporary folder by default. Benchmarks name a real disk.
	// If this process is root, the user postgres must be able to reach it.
	Dir string
	// Settings are more server settings, for example {"max_wal_size": "8GB"}.
	Settings map[string]string
}

// Server is a running cluster.
type Server struct {
	port   int
	dir    string
	cmd    *exec.Cmd
	exited chan struct{}
	stop   sync.Once
	err    error
}

// errNoPostgres tells how to get what is missing.
var errNoPostgres = errors.New("no Postgres server binaries found (initdb, postgres): install them, for example " +
	"`apt-get install postgresql`, or set SAGAD_PG_BIN to the folder that holds them")

// binaries is the folder of initdb and postgres: $SAGAD_PG_BIN, else Debian's newest, else where PATH has them.
func binaries() (string, error) {
	if dir := os.Getenv("SAGAD_PG_BIN"); dir != "" {
		if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
			return "", fmt.Errorf("SAGAD_PG_BIN=%s holds no initdb", dir)
		}
		return dir, nil
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) > 0 {
		slices.SortFunc(found, func(a, b string) int { return version(a) - version(b) })
		return filepath.Dir(found[len(found)-1]), nil
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path), nil
	}
	return "", errNoPostgres
}

func version(initdb string) int {
	v, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(initdb))))
	return v
}

// Cluster makes a cluster and starts it, on loopback at a port of its own choice. Stop removes it. Should this process
// die first, the server dies with it.
func Cluster(o Options) (*Server, error) {
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(o.Dir, "sagad-pg-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, exited: make(chan struct{})}
	if err := s.start(bin, o); err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return s, nil
}

func (s *Server) start(bin string, o Options) error {
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
	// initdb and postgres refuse to run as root.
	if os.Geteuid() == 0 {
		u, err := user.Lookup("postgres")
		if err != nil {
			return fmt.Errorf("postgres doesn't run as root, and there is no user postgres: %w", err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(s.dir, uid, gid); err != nil {
			return err
		}
	}
	data := filepath.Join(s.dir, "data")
	initdb := exec.Command(filepath.Join(bin, "initdb"), "--pgdata", data, "--username", "postgres", "--auth", "trust",
		"--encoding", "UTF8", "--locale", "C", "--no-sync")
	initdb.SysProcAttr, initdb.Dir = &syscall.SysProcAttr{Credential: attr.Credential}, s.dir
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	var err error
	for range 5 { // another process may take the port between the choice and the start
		if err = s.serve(bin, data, attr, o); err == nil {
			return nil
		}
	}
	return err
}

// serve starts postgres and waits until it answers.
func (s *Server) serve(bin, data string, attr *syscall.SysProcAttr, o Options) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.port = l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return err
	}
	args := []string{"-D", data, "-p", strconv.Itoa(s.port), "-h", "127.0.0.1", "-k", "", "-c", "max_connections=200",
		"-c", "log_min_messages=fatal"}
	if !o.Fsync {
		args = append(args, "-c", "fsync=off", "-c", "full_page_writes=off")
	}
	for k, v := range o.Settings {
		args = append(args, "-c", k+"="+v)
	}
	var output bytes.Buffer
	s.cmd = exec.Command(filepath.Join(bin, "postgres"), args...)
	s.cmd.SysProcAttr, s.cmd.Dir = attr, s.dir
	s.cmd.Stdout, s.cmd.Stderr = &output, &output
	exited, started := make(chan struct{}), make(chan error)
	go func() {
		// The server's life is tied to the thread that started it, so that thread must stay.
		runtime.LockOSThread()
		err := s.cmd.Start()
		started <- err
		if err == nil {
			s.err = s.cmd.Wait()
			close(exited)
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	s.exited = exited
	deadline := time.Now().Add(30 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		conn, err := pgx.Connect(ctx, s.DSN("postgres"))
		if err == nil {
			err = conn.Close(ctx)
		}
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-exited:
			return fmt.Errorf("postgres ended at once: %w\n%s", s.err, output.Bytes())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			_ = s.cmd.Process.Signal(syscall.SIGQUIT)
			<-exited
			return fmt.Errorf("postgres doesn't answer: %w", err)
		}
	}
}

// DSN of a database of the cluster. The database postgres always exists; make others with CREATE DATABASE.
func (s *Server) DSN(database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", s.port, database)
}

// PID is the server's process.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Stop stops the server and removes its folder. It may be called twice.
func (s *Server) Stop() error {
	var err error
	s.stop.Do(func() {
		_ = s.cmd.Process.Signal(syscall.SIGINT) // fast shutdown
		select {
		case <-s.exited:
		case <-time.After(10 * time.Second):
			_ = s.cmd.Process.Signal(syscall.SIGQUIT)
			<-s.exited
		}
		err = os.RemoveAll(s.dir)
	})
	return err
}
