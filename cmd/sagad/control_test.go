package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestVersionVerbs(t *testing.T) {
	p := dev(t, "--ephemeral")
	p.register(sleepy)
	p.register(echo)
	p.sagad("saga", "start", "sleepy", "order-1").want(t, 0)
	p.sagad("saga", "start", "sleepy", "order-2").want(t, 0)
	p.sagad("saga", "start", "echo", "done", "--wait").want(t, 0)
	longer := sleepy + "  - return: {output: {value: lonely}}\n"
	p.sagad("definition", "register", write(t, "longer.yaml", longer)).want(t, 0, "sleepy version 2")
	other := strings.ReplaceAll(sleepy, "name: lonely, activity", "name: alone, activity")
	p.sagad("definition", "register", write(t, "other.yaml", other)).want(t, 0, "sleepy version 3")

	p.sagad("definition", "usage", "sleepy").want(t, 0, "VERSION  UNFINISHED  SAGAS  FOR EXAMPLE", "3        0           0", "1        2           2", "order-1")
	p.sagad("definition", "usage", "sleepy", "--version", "2").want(t, 0, "2        0           0")
	usage := p.sagad("definition", "usage", "sleepy", "--version", "1", "-o", "json").want(t, 0).json(t)
	if v := usage["versions"].([]any)[0].(map[string]any); v["unfinished"] != "2" || v["sagas"] != "2" || len(v["examples"].([]any)) != 2 {
		t.Errorf("usage: %v", usage)
	}
	p.sagad("definition", "usage", "nobody").want(t, exitNotFound, "DEFINITION_NOT_FOUND")
	p.sagad("definition", "delete", "sleepy", "1").want(t, exitFailed, "2 unfinished sagas need version 1", "DEFINITION_IN_USE")
	p.sagad("definition", "delete", "sleepy").want(t, exitUsage, "version")
	p.sagad("definition", "delete", "sleepy", "0").want(t, exitUsage, "at least 1")
	p.sagad("definition", "delete", "sleepy", "9").want(t, exitNotFound, "version 9")
	if got := p.sagad("saga", "list", "--definition", "sleepy", "--version", "1", "-o", "json").json(t); len(got["sagas"].([]any)) != 2 {
		t.Errorf("sagas of version 1: %v", got)
	}
	p.sagad("saga", "list", "--definition", "sleepy", "--version", "2").want(t, 0, "no sagas")

	// Moving one saga, and then all others.
	p.sagad("saga", "migrate", "order-1", "--to", "2").want(t, exitUsage, "--reason is missing")
	p.sagad("saga", "migrate", "--to", "2").want(t, exitUsage, "name a saga")
	p.sagad("saga", "migrate", "--all", "--to", "2", "--reason", "x").want(t, exitUsage, "--all needs --definition and --from-version")
	p.sagad("saga", "migrate", "order-1", "--all", "--to", "2", "--reason", "x").want(t, exitUsage, "choose one")
	p.sagad("saga", "migrate", "order-1", "--definition", "sleepy", "--to", "2", "--reason", "x").want(t, exitUsage, "go with --all")
	p.sagad("saga", "migrate", "--all", "--definition", "sleepy", "--from-version", "2", "--to", "2", "--reason", "x").want(t, exitUsage, "same version")
	p.sagad("saga", "migrate", "order-1", "--to", "2", "--dry-run").want(t, 0, "saga order-1 can move to version 2")
	p.sagad("saga", "migrate", "order-1", "--to", "3", "--dry-run").want(t, exitFailed, "saga order-1 can't move to version 3\n  ", "lonely is under way")
	if got := p.sagad("saga", "migrate", "order-1", "--to", "3", "--dry-run", "-o", "json").want(t, exitFailed).json(t); len(got["obstacles"].([]any)) == 0 {
		t.Errorf("obstacles: %v", got)
	}
	p.sagad("saga", "migrate", "order-1", "--to", "3", "--names", "lonely=alone", "--reason", "x").want(t, exitFailed, "MIGRATION_REFUSED", "its name and activity can't change")
	p.sagad("saga", "migrate", "order-1", "--to", "9", "--reason", "x").want(t, exitNotFound, "version 9")
	p.sagad("saga", "migrate", "nobody", "--to", "2", "--reason", "x").want(t, exitNotFound, "nobody")
	p.sagad("saga", "migrate", "order-1", "--to", "2", "--reason", "the result is wanted", "--actor", "ann").want(t, 0, "saga order-1 runs under version 2")
	p.sagad("saga", "get", "order-1").want(t, 0, "sleepy version 2")
	p.sagad("saga", "history", "order-1").want(t, 0, "ann", "the result is wanted")
	all := []string{"saga", "migrate", "--all", "--definition", "sleepy", "--from-version", "1", "--reason", "x"}
	p.sagad(append(all, "--to", "3")...).want(t, exitFailed, "saga order-2 stays as it is: ", "lonely is under way", "1 saga of version 1: 0 moved to version 3, 1 can't")
	p.sagad(append(all, "--to", "2", "--dry-run")...).want(t, 0, "saga order-2 can move to version 2", "1 saga of version 1: 1 can move to version 2, 0 can't")
	moved := p.sagad(append(all, "--to", "2", "-o", "json")...).want(t, 0)
	var line struct {
		ID     string
		Answer struct {
			Migrated bool
			Version  int
		}
	}
	if err := json.Unmarshal([]byte(moved.out), &line); err != nil || line.ID != "order-2" || !line.Answer.Migrated || line.Answer.Version != 2 {
		t.Errorf("a line of --all: %+v %v\n%s", line, err, moved.out)
	}
	p.sagad(append(all, "--to", "2")...).want(t, 0, "0 sagas of version 1")

	p.sagad("definition", "delete", "sleepy", "1").want(t, 0, "sleepy version 1 is deleted")
	p.sagad("definition", "delete", "sleepy", "1", "-o", "json").want(t, 0).json(t)
	p.sagad("saga", "start", "sleepy", "order-3", "--version", "1").want(t, exitNotFound, "was deleted")
	p.sagad("definition", "list", "sleepy").want(t, 0, "sleepy  3", "sleepy  2")
	p.sagad("definition", "register", write(t, "sleepy.yaml", sleepy)).want(t, 0, "sleepy version 4 registered")
	p.sagad("saga", "get", "order-1").want(t, 0, "sleepy version 2")
}

// waits waits for a signal.
const waits = `
name: waits
activities:
  - {name: nobody.serves}
signals:
  - {name: paid, schema: '{"type":"integer"}'}
body:
  - if:
      name: never
      condition: "false"
      then:
        - step: {name: lonely, activity: nobody.serves, kind: KIND_READ_ONLY}
  - wait: {name: payment, signal: paid, timeout: 3600s}
  - return: {output: {value: payment}}
`

func TestControlVerbs(t *testing.T) {
	p := dev(t, "--ephemeral")
	p.register(sleepy)
	p.register(echo)
	p.register(waits)
	p.sagad("saga", "start", "sleepy", "order-1").want(t, 0)
	p.sagad("saga", "start", "echo", "done", "--wait").want(t, 0)

	p.sagad("saga", "explain", "order-1").want(t, 0, "explanation", "no worker listens for the action of nobody.serves", "step         lonely", "since", "until",
		"at the latest", "what helps   start a worker that serves the action of nobody.serves")
	if got := p.sagad("saga", "explain", "order-1", "-o", "json").want(t, 0).json(t); got["waitsFor"] != "WAITS_FOR_NO_WORKER" || got["what"] != "nobody.serves" {
		t.Errorf("explained: %v", got)
	}
	p.sagad("saga", "explain", "done").want(t, 0, "it has ended as COMPLETED")
	p.sagad("saga", "explain", "nobody").want(t, exitNotFound, "nobody")

	p.sagad("saga", "pause", "order-1").want(t, exitUsage, "--reason")
	p.sagad("saga", "pause", "order-1", "--reason", "maintenance", "--actor", "ann").want(t, 0, "saga order-1 is paused (RUNNING)", "sagad saga resume order-1")
	p.sagad("saga", "get", "order-1").want(t, 0, "RUNNING, paused")
	p.sagad("saga", "explain", "order-1").want(t, 0, "it is paused: maintenance", "what helps   sagad saga resume order-1")
	p.sagad("saga", "resume", "order-1", "--reason", "done with it", "-o", "json").want(t, 0).json(t)
	p.sagad("saga", "resume", "order-1").want(t, 0, "saga order-1 goes on (RUNNING)")
	p.sagad("saga", "history", "order-1").want(t, 0, "ann", "maintenance", "done with it")
	p.sagad("saga", "pause", "done", "--reason", "x").want(t, exitFailed, "NOT_ALLOWED", "has ended")
	p.sagad("saga", "resume", "done").want(t, exitFailed, "NOT_ALLOWED")
	p.sagad("saga", "pause", "nobody", "--reason", "x").want(t, exitNotFound, "nobody")

	p.sagad("saga", "signal", "order-1", "paid", "--payload", `{"amount":1}`).want(t, exitFailed, "INVALID_REQUEST", "paid")
	p.sagad("saga", "signal", "order-1", "paid", "--payload", `{`).want(t, exitFailed, "payload", "INVALID_INPUT")
	p.sagad("saga", "signal", "order-1", "paid", "--payload", "@no-such-file").want(t, exitUsage, "no-such-file")
	p.sagad("saga", "signal", "nobody", "paid").want(t, exitNotFound, "nobody")
	p.sagad("saga", "signal", "order-1").want(t, exitUsage, "signal")
	p.sagad("saga", "start", "waits", "order-2").want(t, 0)
	p.sagad("saga", "explain", "order-2").want(t, 0, "it waits in payment for a signal paid", "sagad saga signal order-2 paid --key KEY --payload JSON")
	p.sagad("saga", "signal", "order-2", "paid", "--payload", `"much"`).want(t, exitFailed, "INVALID_INPUT", "doesn't fit")
	p.sagad("saga", "signal", "order-2", "paid", "--key", "p1", "--payload", "7").want(t, 0, "saga order-2 has the signal paid (key p1)")
	p.sagad("saga", "signal", "order-2", "paid", "--key", "p1", "--payload", "7").want(t, 0, "had this signal before (key p1)")
	p.sagad("saga", "signal", "order-2", "paid", "--key", "p1", "--payload", "8").want(t, exitFailed, "KEY_TAKEN")
	p.sagad("saga", "wait", "order-2").want(t, 0, "COMPLETED", "7")
	p.sagadIn("7", "saga", "signal", "order-2", "paid", "--payload", "-").want(t, exitFailed, "NOT_ALLOWED")
	if got := p.sagad("saga", "signal", "order-2", "paid", "--key", "p1", "--payload", "7", "-o", "json").want(t, 0).json(t); got["fresh"] == true {
		t.Errorf("a repeat: %v", got)
	}
	// The client verbs' flags are shown for them.
	p.sagad("saga", "migrate", "--help").want(t, 0, "--address", "--namespace")
}
