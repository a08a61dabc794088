package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// binary is sagad, built once for all tests.
var binary string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "sagad-cli-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		binary = filepath.Join(dir, "sagad")
		build := exec.Command("go", "build", "-o", binary, ".")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "build:", err)
			return 1
		}
		return m.Run()
	}())
}

// process is a sagad that serves.
type process struct {
	t         *testing.T
	cmd       *exec.Cmd
	url, nats string
	logs      *logBuffer
	stdout    *logBuffer
	done      chan error
}

type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

var (
	apiLine  = regexp.MustCompile(`(?m)^\s*API\s+(http://\S+)`)
	natsLine = regexp.MustCompile(`(?m)^\s*NATS\s+(nats://\S+)`)
)

// environment is the test's own without what steers sagad.
func environment(extra ...string) []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "SAGAD_") && !strings.HasPrefix(e, "OTEL_") {
			env = append(env, e)
		}
	}
	return append(env, extra...)
}

// dev starts `sagad dev` on free ports and waits until it is ready.
func dev(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{t: t, logs: &logBuffer{}, stdout: &logBuffer{}, done: make(chan error, 1)}
	args = append([]string{"dev", "--listen", "127.0.0.1:0", "--nats-listen", "127.0.0.1:0", "--log-level", "debug", "--log-format", "json"}, args...)
	p.cmd = exec.Command(binary, args...)
	p.cmd.Env = environment()
	p.cmd.Stderr = p.logs
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			fmt.Fprintln(p.stdout, lines.Text())
			if strings.HasPrefix(lines.Text(), "Ctrl-C") {
				close(ready)
			}
		}
		p.done <- p.cmd.Wait()
	}()
	t.Cleanup(func() { p.stop() })
	select {
	case <-ready:
	case err := <-p.done:
		p.done <- err
		t.Fatalf("dev ended before it was ready: %v\n%s", err, p.logs)
	case <-time.After(30 * time.Second):
		t.Fatalf("dev isn't ready after 30 s\n%s", p.logs)
	}
	p.url = apiLine.FindStringSubmatch(p.stdout.String())[1]
	p.nats = natsLine.FindStringSubmatch(p.stdout.String())[1]
	return p
}

// stop asks it to stop and says how that went, and how long it took.
func (p *process) stop() (took time.Duration, err error) {
	start := time.Now()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-p.done:
		p.done <- err
		return time.Since(start), err
	case <-time.After(20 * time.Second):
		_ = p.cmd.Process.Kill()
		p.t.Errorf("sagad doesn't stop\n%s", p.logs)
		err := <-p.done
		p.done <- err
		return time.Since(start), err
	}
}

type result struct {
	code        int
	out, errOut string
}

// sagad runs a client verb.
func (p *process) sagad(args ...string) result {
	p.t.Helper()
	return p.sagadIn("", args...)
}

func (p *process) sagadIn(stdin string, args ...string) result {
	p.t.Helper()
	return execute(p.t, stdin, []string{"SAGAD_ADDRESS=" + p.url}, args...)
}

func execute(t *testing.T, stdin string, env []string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = environment(env...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if _, ok := err.(*exec.ExitError); err != nil && !ok {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}

// want checks a verb's exit code and what it says.
func (r result) want(t *testing.T, code int, says ...string) result {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d\n%s%s", r.code, code, r.out, r.errOut)
	}
	for _, s := range says {
		if !strings.Contains(r.out+r.errOut, s) {
			t.Errorf("it doesn't say %q:\n%s%s", s, r.out, r.errOut)
		}
	}
	return r
}

func (r result) json(t *testing.T) map[string]any {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(r.out))
	dec.UseNumber()
	var v map[string]any
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("not JSON: %v\n%s%s", err, r.out, r.errOut)
	}
	if _, err := dec.Token(); err != io.EOF {
		t.Errorf("more than one document:\n%s", r.out)
	}
	return v
}

// echo returns its input; it needs no worker, since its step is never reached.
const echo = `
name: echo
description: Returns its input.
activities:
  - {name: nobody.serves}
body:
  - if:
      name: never
      condition: "false"
      then:
        - step: {name: lonely, activity: nobody.serves, kind: KIND_READ_ONLY}
  - return: {output: {value: input}}
`

// hold gets stuck at once: nobody serves its step, and it says to ask a person then.
const hold = `
name: hold
activities:
  - {name: nobody.serves}
body:
  - step:
      name: lonely
      activity: nobody.serves
      kind: KIND_COMPENSATABLE
      input: {value: input}
      timeout: 0.05s
      retry: {maxAttempts: 1}
      giveUp: GIVE_UP_HOLD
      compensation: {}
  - return: {output: {value: lonely}}
`

// sleepy waits for a worker that never comes.
const sleepy = `
name: sleepy
activities:
  - {name: nobody.serves}
body:
  - step: {name: lonely, activity: nobody.serves, kind: KIND_READ_ONLY, input: {value: input}, timeout: 3600s}
`

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (p *process) register(text string) {
	p.t.Helper()
	p.sagadIn(text, "definition", "register", "-").want(p.t, 0, "version 1")
}

func TestDefinitionVerbs(t *testing.T) {
	p := dev(t, "--ephemeral")
	p.sagad("definition", "list").want(t, 0, "no definitions", "definition register FILE")
	file := write(t, "echo.yaml", echo)
	p.sagad("definition", "verify", file).want(t, 0, "echo is fine")
	p.sagad("definition", "register", file).want(t, 0, "echo version 1 registered")
	p.sagad("definition", "register", file).want(t, 0, "before with this content")
	p.sagad("definition", "register", write(t, "echo2.yml", strings.Replace(echo, "Returns", "Gives back", 1))).want(t, 0, "echo version 2 registered")
	p.sagad("definition", "list").want(t, 0, "NAME", "echo  2")
	p.sagad("definition", "list", "echo").want(t, 0, "echo  2", "echo  1")
	p.sagad("definition", "graph", "echo").want(t, 0, "flowchart")
	// What get prints can be registered again.
	got := p.sagad("definition", "get", "echo", "--version", "1").want(t, 0)
	p.sagad("definition", "register", write(t, "echo.json", got.out)).want(t, 0, "echo version 1 had been registered before")
	whole := p.sagad("definition", "get", "echo", "--version", "1", "-o", "json").want(t, 0)
	p.sagad("definition", "register", write(t, "whole.json", whole.out)).want(t, 0, "echo version 1 had been registered before")
	p.sagad("definition", "get", "nobody").want(t, exitNotFound, `no definition "nobody"`, "register it first")

	bad := strings.Replace(hold, "kind: KIND_COMPENSATABLE", "kind: KIND_UNSPECIFIED", 1)
	p.sagadIn(bad, "definition", "verify", "-").want(t, exitFailed, "hold.lonely")
	p.sagadIn(bad, "definition", "register", "-").want(t, exitFailed, "isn't accepted", "hold.lonely")
	p.sagadIn("name: x\nnope: 1\n", "definition", "verify", "-").want(t, exitUsage, "nope")
	p.sagadIn("{", "definition", "verify", "-").want(t, exitUsage, "neither JSON nor YAML")
	p.sagad("definition", "verify", "no-such-file.yaml").want(t, exitUsage, "no-such-file.yaml")
}

func TestSagaVerbs(t *testing.T) {
	p := dev(t, "--ephemeral")
	p.register(echo)
	p.register(sleepy)

	// Digits stay as they are, through start, output and both forms of printing.
	const doc = `{"acct":9007199254740993,"big":123456789012345678901234567890,"amt":0.10,"z":1.0}`
	p.sagad("saga", "start", "echo", "order-1", "--input", doc, "-l", "city=Rome", "-l", "shop=7").want(t, 0, "saga order-1 started (echo version 1")
	p.sagad("saga", "wait", "order-1").want(t, 0, "COMPLETED", "123456789012345678901234567890", "city=Rome shop=7")
	got := p.sagad("saga", "get", "order-1", "-o", "json").want(t, 0).json(t)
	if saga := got["saga"].(map[string]any); saga["input"] != doc || !strings.Contains(saga["output"].(string), "9007199254740993") {
		t.Errorf("the documents have changed: %v", saga)
	}
	p.sagad("saga", "start", "echo", "order-1", "--input", doc, "-l", "city=Rome", "-l", "shop=7").want(t, 0, "had been started before")
	p.sagad("saga", "start", "echo", "order-1", "--input", "{}").want(t, exitFailed, "other content", "ID_TAKEN")
	p.sagad("saga", "start", "nobody", "order-2").want(t, exitNotFound, "register it first")
	p.sagad("saga", "start", "echo", "order-2", "--input", `{"memo":"\u0000"}`).want(t, exitFailed, "input $.memo", "INVALID_INPUT")
	p.sagad("saga", "start", "echo", "order-2", "--input", "{").want(t, exitFailed, "not JSON")
	p.sagad("saga", "start", "echo", "").want(t, exitFailed, "id is empty")
	p.sagad("saga", "start", "echo", "order-3", "--input", "@"+write(t, "in.json", `[1]`), "--wait").want(t, 0, "COMPLETED", "[1]")
	p.sagadIn(`[2]`, "saga", "start", "echo", "order-4", "--input", "-", "-w", "-o", "json").want(t, 0).json(t)
	p.sagad("saga", "start", "echo", "order-5", "--input", "@no-such-file").want(t, exitUsage, "no-such-file")

	p.sagad("saga", "watch", "order-1").want(t, 0, "   1  ", "COMPLETED")
	// One zone for the clock and for the sentences, with the date.
	history := p.sagad("saga", "history", "order-1").want(t, 0, "started by", time.Now().UTC().Format("2006-01-02")+" (UTC)")
	if !regexp.MustCompile(`(?m)^   1  \d\d:\d\d:\d\d\.\d\d\dZ  echo`).MatchString(history.out) {
		t.Errorf("the history is\n%s", history.out)
	}
	if got := p.sagad("saga", "history", "order-1", "-o", "json").json(t); len(got["entries"].([]any)) == 0 {
		t.Error("the history is empty")
	}
	p.sagad("saga", "get", "nobody").want(t, exitNotFound, `"nobody"`, "check id and namespace")

	p.sagad("saga", "start", "sleepy", "sleeper")
	p.sagad("saga", "wait", "sleeper", "--timeout", "10ms").want(t, exitNotCompleted, "still RUNNING after 10ms")
	p.sagad("saga", "cancel", "sleeper").want(t, exitUsage, "--reason")
	p.sagad("saga", "cancel", "sleeper", "--reason", "tired", "--actor", "ann").want(t, 0, "saga sleeper unwinds: what it did will be undone")
	p.sagad("saga", "cancel", "sleeper", "--reason", "tired").want(t, 0, "unwinding already")
	p.sagad("saga", "cancel", "order-1", "--reason", "tired").want(t, exitFailed, "too late")
	p.sagad("saga", "get", "sleeper").want(t, 0, "cause", "cancelled by ann")

	p.sagad("saga", "list").want(t, 0, "order-1", "order-3", "order-4", "sleeper")
	if got := p.sagad("saga", "list", "--status", "completed", "-o", "json").json(t); len(got["sagas"].([]any)) != 3 {
		t.Errorf("completed sagas: %v", got)
	}
	p.sagad("saga", "list", "--limit", "1").want(t, 0, "--all")
	if got := p.sagad("saga", "list", "--limit", "1", "--all", "-o", "json").json(t); len(got["sagas"].([]any)) != 4 {
		t.Errorf("all sagas: %v", got)
	}
	p.sagad("saga", "list", "--status", "odd").want(t, exitUsage, "compensating")
	p.sagad("saga", "list", "-n", "other").want(t, 0, "no sagas")
	p.sagad("saga", "list", "-n", "BAD").want(t, exitFailed, "lower-case")
	p.sagad("saga", "bogus").want(t, exitUsage, "Try `sagad saga --help`")
	p.sagad("saga", "cancel", "x").want(t, exitUsage, "Try `sagad saga cancel --help`")
}

func TestOpsVerbs(t *testing.T) {
	p := dev(t, "--ephemeral")
	p.register(hold)
	p.sagad("ops", "list").want(t, 0, "nothing waits for a person")
	stuck := func(id string) {
		t.Helper()
		p.sagad("saga", "start", "hold", id, "--input", `{"n":1}`).want(t, 0)
		// The watch prints until the end; what is waited for is the item's line.
		cmd := exec.Command(binary, "saga", "watch", id)
		cmd.Env = environment("SAGAD_ADDRESS=" + p.url)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timeout := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		defer timeout.Stop()
		seen := false
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if strings.Contains(strings.ToLower(lines.Text()), "item 1") {
				seen = true
				_ = cmd.Process.Kill()
			}
		}
		_ = cmd.Wait()
		if !seen {
			t.Fatalf("saga %s doesn't get stuck", id)
		}
	}
	stuck("order-1")
	p.sagad("saga", "get", "order-1").want(t, 0, "STUCK", "needs a person: item 1", "sagad ops show order-1 1")
	// A wait says once that the saga is stuck, and goes on.
	if w := p.sagad("saga", "wait", "order-1", "--timeout", "3500ms").want(t, exitNotCompleted, "still STUCK"); strings.Count(w.errOut, "waits for a person, see `sagad ops list --saga order-1`") != 1 {
		t.Errorf("the wait said\n%s", w.errOut)
	}
	p.sagad("ops", "list").want(t, 0, "order-1", "lonely", "held", "NO_WORKER")
	shown := p.sagad("ops", "show", "order-1", "1").want(t, 0, "what broke", "since", "attempts", "NO_WORKER",
		"effects in the world", "lonely", "unknown", "/lonely/-/do/1", "what you can do", "retry", "resolve", "complete", "abandon",
		"lonely: a step is given up", "open, the saga waits for it", "for example: sagad ops retry order-1 1 --reason '...'\n", "calls nobody.serves again",
		"no worker for nobody.serves (action) in namespace default")
	if strings.Contains(shown.out, "%!") {
		t.Errorf("a format is wrong:\n%s", shown.out)
	}
	item := p.sagad("ops", "show", "order-1", "1", "-o", "json").want(t, 0).json(t)["item"].(map[string]any)
	version := fmt.Sprint(item["version"])

	p.sagad("ops", "complete", "order-1", "1").want(t, exitUsage, "--reason")
	p.sagad("ops", "complete", "order-1", "1", "--reason", "did it", "--evidence", "ticket 7", "--output", `{"by":"hand"}`, "--item-version", version+"00").want(t, exitFailed, "STALE_VERSION")
	p.sagad("ops", "complete", "order-1", "1", "--reason", "did it", "--output", `{"by":"hand"}`, "--item-version", version).want(t, exitFailed, "evidence is needed", "[INVALID_REQUEST]")
	p.sagad("ops", "complete", "order-1", "1", "--reason", "did it", "--evidence", "ticket 7", "--output", `{"by":"hand"}`, "--item-version", version, "--actor", "ann").
		want(t, 0, "item 1 is closed", "order-1 is COMPLETED")
	p.sagad("saga", "wait", "order-1").want(t, 0, "COMPLETED (settled by hand: 1 effect)", `{"by":"hand"}`)
	p.sagad("saga", "history", "order-1").want(t, 0, "ann", "ticket 7")
	if shown := p.sagad("ops", "show", "order-1", "1").want(t, 0, "closed"); strings.Contains(shown.out, "the saga waits for it") || strings.Contains(shown.out, "for example") {
		t.Errorf("a closed item is shown as\n%s", shown.out)
	}

	stuck("order-2")
	p.sagad("ops", "ack", "order-2", "1", "--reason", "seen").want(t, exitFailed, "NOT_ALLOWED")
	p.sagad("ops", "retry", "order-2", "1", "--reason", "again", "-o", "json").want(t, 0).json(t)
	stuck("order-3")
	p.sagad("ops", "resolve", "order-3", "1", "--reason", "never happened", "--evidence", "looked").want(t, 0, "item 1 is closed", "COMPENSATED.\n")
	stuck("order-4")
	p.sagad("ops", "abandon", "order-4", "1", "--reason", "enough").want(t, 0, "ABANDONED.\n")
	p.sagad("saga", "wait", "order-4").want(t, exitNotCompleted, "ABANDONED", "left behind", "lonely  nobody.serves  unknown")
	p.sagad("ops", "list", "--closed", "--saga", "order-4").want(t, 0, "closed")
	p.sagad("ops", "show", "order-4", "9").want(t, exitNotFound, "no operations item 9")
}

// A second start goes on where the first one stopped, whether it was asked to stop or killed.
func TestDevGoesOn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	p := dev(t, "--data-dir", dir)
	p.register(sleepy)
	p.register(echo)
	p.sagad("saga", "start", "echo", "done", "--wait").want(t, 0)
	p.sagad("saga", "start", "sleepy", "open").want(t, 0)
	second := execute(t, "", nil, "dev", "--listen", "127.0.0.1:0", "--nats-listen", "127.0.0.1:0", "--data-dir", dir)
	second.want(t, exitFailed, dir)
	if took, err := p.stop(); err != nil || took > 10*time.Second {
		t.Errorf("it stopped with %v after %v\n%s", err, took, p.logs)
	}

	p = dev(t, "--data-dir", dir)
	p.sagad("saga", "get", "done").want(t, 0, "COMPLETED")
	p.sagad("saga", "start", "echo", "more", "--wait").want(t, 0, "COMPLETED")
	_ = p.cmd.Process.Kill()
	<-p.done
	p.done <- nil

	p = dev(t, "--data-dir", dir)
	p.sagad("saga", "get", "more").want(t, 0, "COMPLETED")
	p.sagad("saga", "cancel", "open", "--reason", "over").want(t, 0, "unwinds")
}

// A watch goes on, from the next number, when the server was killed and is back.
func TestWatchOutlivesAKill(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	p := dev(t, "--data-dir", dir)
	p.register(sleepy)
	p.sagad("saga", "start", "sleepy", "open").want(t, 0)
	var out, errOut logBuffer
	watch := exec.Command(binary, "saga", "watch", "open")
	watch.Env = environment("SAGAD_ADDRESS=" + p.url)
	watch.Stdout, watch.Stderr = &out, &errOut
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- watch.Wait() }()
	defer func() { _ = watch.Process.Kill() }()
	shown := func(b *logBuffer, text string) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !strings.Contains(b.String(), text); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("it doesn't say %q:\n%s%s", text, &out, &errOut)
			}
		}
	}
	shown(&out, "   1  ")
	_ = p.cmd.Process.Kill()
	<-p.done
	p.done <- nil
	shown(&errOut, "reconnecting")

	address := strings.TrimPrefix(p.url, "http://")
	p = dev(t, "--data-dir", dir, "--listen", address)
	p.sagad("saga", "cancel", "open", "--reason", "over").want(t, 0, "unwinds")
	shown(&out, "cancel")
	select {
	case err := <-ended:
		t.Errorf("the watch of an open saga ended: %v\n%s%s", err, &out, &errOut)
	default:
	}
	if n := strings.Count(out.String(), "   1  "); n != 1 {
		t.Errorf("the first entry is shown %d times:\n%s", n, &out)
	}
	if n := strings.Count(errOut.String(), "reconnecting"); n != 1 {
		t.Errorf("said %d times that it reconnects:\n%s", n, &errOut)
	}
}

// When the data folder is deleted under it, nothing more is acknowledged, and it says that it isn't ready.
func TestDevNoticesThatItsDataIsGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	p := dev(t, "--data-dir", dir)
	p.register(echo)
	p.sagad("saga", "start", "echo", "kept").want(t, 0)
	if err := os.RemoveAll(filepath.Join(dir, "store")); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		res, err := http.Get(p.url + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode == http.StatusServiceUnavailable {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it is still ready")
		}
	}
	if !strings.Contains(p.logs.String(), "deleted, moved or replaced under sagad") {
		t.Errorf("it doesn't say what happened:\n%s", p.logs)
	}
}

func TestDevCleansUpAndSaysWhatIsWrong(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	p := dev(t, "--ephemeral")
	if left, _ := os.ReadDir(temp); len(left) == 0 {
		t.Error("the temporary folder isn't where it should be, so this test proves nothing")
	}
	_, port, _ := strings.Cut(strings.TrimPrefix(p.url, "http://"), ":")
	execute(t, "", nil, "dev", "--ephemeral", "--listen", "127.0.0.1:"+port, "--nats-listen", "127.0.0.1:0").want(t, exitFailed, "in use", "--listen")
	_, port, _ = strings.Cut(strings.TrimPrefix(p.nats, "nats://"), ":")
	execute(t, "", nil, "dev", "--ephemeral", "--listen", "127.0.0.1:0", "--nats-listen", "127.0.0.1:"+port).want(t, exitFailed, "in use", "--nats-listen")
	if took, err := p.stop(); err != nil || took > 10*time.Second {
		t.Errorf("it stopped with %v after %v\n%s", err, took, p.logs)
	}
	if left, _ := os.ReadDir(temp); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestServeRefusesWhatIsUnsafe(t *testing.T) {
	dir := t.TempDir()
	execute(t, "", nil, "serve", "--store", "sqlite:"+dir, "--nats-embedded", dir, "--listen", "0.0.0.0:0").
		want(t, exitFailed, "no authentication", "--allow-unauthenticated")
	execute(t, "", nil, "serve", "--store", "mysql://user:hunter2@db", "--nats-embedded", dir, "--listen", "127.0.0.1:0").
		want(t, exitFailed, "postgres://")
	if got := execute(t, "", nil, "serve", "--store", "mysql://user:hunter2@db", "--listen", "127.0.0.1:0"); strings.Contains(got.errOut, "hunter2") {
		t.Errorf("a password is shown: %s", got.errOut)
	}
	// Nothing is made before that is known.
	execute(t, "", nil, "serve", "--store", "sqlite:"+filepath.Join(dir, "none"), "--listen", "127.0.0.1:0").want(t, exitFailed, "--nats")
	if _, err := os.Stat(filepath.Join(dir, "none")); !os.IsNotExist(err) {
		t.Errorf("serve without a broker made a database: %v", err)
	}
	execute(t, "", nil, "serve").want(t, exitUsage, "--store")
	execute(t, "", nil, "migrate", "--store", "sqlite:"+filepath.Join(dir, "new")).want(t, 0, "up to date", "64 shards")
	if again := execute(t, "", nil, "migrate", "--store", "sqlite:"+filepath.Join(dir, "new")).want(t, 0, "64 shards"); strings.Contains(again.errOut, "--shards") {
		t.Errorf("a warning without a cause: %s", again.errOut)
	}
	execute(t, "", nil, "migrate", "--store", "sqlite:"+filepath.Join(dir, "new"), "--shards", "9").want(t, 0, "64 shards", "--shards changes nothing")
	execute(t, "", nil, "version").want(t, 0, "sagad ")
	if v := execute(t, "", nil, "-o", "json", "version").want(t, 0).json(t); v["version"] == "" || v["go"] == nil {
		t.Errorf("version as JSON is %v", v)
	}
	execute(t, "", nil).want(t, exitUsage, "ops ", "saga ", "dev ")
	for command, want := range map[string][]string{
		"dev": {"Default: 127.0.0.1:7230", "Default: 127.0.0.1:4222", "Default: .sagad"}, "serve": {"Default: 127.0.0.1:7230"}, "migrate": {"Default: 64"},
	} {
		help := execute(t, "", nil, command, "--help").want(t, 0)
		help.out = strings.Join(strings.Fields(help.out), " ") // it is wrapped
		if help.want(t, 0, want...); strings.Contains(help.out, "--actor") || strings.Contains(help.out, "--address") || strings.Contains(help.out, "--format") {
			t.Errorf("%s --help shows what it doesn't use:\n%s", command, help.out)
		}
	}
	execute(t, "", nil, "saga", "list", "--help").want(t, 0, "--address", "--actor")
	execute(t, "", nil, "saga", "list", "--address", "http://127.0.0.1:1").want(t, exitUnreachable, "Is it running?", "sagad dev")
	execute(t, "", nil, "saga", "list", "--address", "ftp://x").want(t, exitUsage, "http://127.0.0.1:7230")
}

// Flags win over the environment, that over the file, that over defaults; a misspelled name is an error.
func TestConfiguration(t *testing.T) {
	const closed = "http://127.0.0.1:1"
	file := write(t, "sagad.yaml", "address: http://127.0.0.2:1\nserve:\n  store: sqlite:from-file\n")
	for _, c := range []struct {
		name string
		env  []string
		args []string
		says string
	}{
		{"file", nil, []string{"--config", file}, "http://127.0.0.2:1"},
		{"file from the environment", []string{"SAGAD_CONFIG=" + file}, nil, "http://127.0.0.2:1"},
		{"environment over file", []string{"SAGAD_ADDRESS=" + closed}, []string{"--config=" + file}, closed},
		{"flag over environment", []string{"SAGAD_ADDRESS=" + closed}, []string{"--config", file, "--address", "http://127.0.0.3:1"}, "http://127.0.0.3:1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			execute(t, "", c.env, append(c.args, "saga", "list")...).want(t, exitUnreachable, "at "+c.says+" ")
		})
	}
	// Whatever may answer at the default address of this machine, it is what the help says.
	execute(t, "", nil, "saga", "list", "--help").want(t, 0, "http://127.0.0.1:7230")
	execute(t, "", nil, "--config", write(t, "bad.yaml", "adress: x\n"), "saga", "list").want(t, exitUsage, "no flag adress")
	execute(t, "", nil, "--config", write(t, "bad.yaml", "serve:\n  stoer: x\n"), "saga", "list").want(t, exitUsage, "no flag serve.stoer")
	execute(t, "", nil, "--config", "no-such.yaml", "saga", "list").want(t, exitUsage, "no-such.yaml")
	// A nested value reaches its command: the store's folder is bad, which only the file says.
	execute(t, "", nil, "--config", write(t, "c.yaml", "serve:\n  store: \"nosuch:x\"\n  nats-embedded: /tmp\n  listen: 127.0.0.1:0\n"), "serve").want(t, exitFailed, "sqlite:DIR")
}

// What sagas carry doesn't get into logs, even at debug.
func TestLogsHoldNoPayload(t *testing.T) {
	const canary = "canary-4111111111111111"
	p := dev(t, "--ephemeral")
	p.register(echo)
	p.sagad("saga", "start", "echo", "order-1", "--input", `{"card":"`+canary+`"}`, "--wait").want(t, 0, canary)
	p.sagad("saga", "start", "echo", "order-1", "--input", `{"card":"`+canary+`","x":1}`).want(t, exitFailed)
	p.sagad("saga", "start", "echo", "order-2", "--input", `{"card":"`+canary+`\u0000"}`).want(t, exitFailed)
	p.sagad("saga", "cancel", "order-1", "--reason", canary).want(t, exitFailed)
	_, _ = p.stop()
	logs := p.logs.String()
	if !strings.Contains(logs, "StartSaga") {
		t.Fatalf("the debug log lacks calls, so this test proves nothing:\n%s", logs)
	}
	if strings.Contains(logs, canary) {
		t.Error("a payload is in the log")
	}
}
