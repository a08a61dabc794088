package wire

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
)

const do, undo, probe = workerv1.Direction_DIRECTION_DO, workerv1.Direction_DIRECTION_UNDO, workerv1.Direction_DIRECTION_PROBE

// hostile are names that clients of NATS have choked on.
var hostile = []string{"a b", "*", ">", "x\r\nPUB x 0\r\n", "\r\n", "", "$SYS.x", "ünï", strings.Repeat("x", 300), "a\x00b", "a\tb",
	".", "..", "a..b", ".a", "a.", "A", "t1.*", "t1.>", "a=b", "a~b", "a/b", "a#b", "-a", "_a", "a.-b", "\xff"}

func TestHostileNamesAreRefusedWithTheRule(t *testing.T) {
	for _, name := range hostile {
		for what, check := range map[string]struct {
			valid func(string) error
			rule  string
		}{
			"namespace": {ValidNamespace, NamespaceRule}, "definition": {ValidDefinition, NamespaceRule},
			"activity": {ValidActivity, ActivityRule},
		} {
			err := check.valid(name)
			if !errors.Is(err, ErrName) || !strings.Contains(err.Error(), check.rule) || !strings.Contains(err.Error(), what) {
				t.Errorf("%s %.40q: %v; want it refused with its rule", what, name, err)
			}
			if err != nil && len(err.Error()) > 500 {
				t.Errorf("%s %.40q: the error is %d bytes long", what, name, len(err.Error()))
			}
		}
		for _, q := range []Queue{{name, "a", do}, {"n", name, do}, {"n", name, undo}} {
			if s, err := q.TaskSubject(); err == nil {
				t.Errorf("%q: subject %q", q, s)
			}
			if s, err := q.AnnounceSubject(); err == nil {
				t.Errorf("%q: subject %q", q, s)
			}
			if s, err := q.Consumer(); err == nil {
				t.Errorf("%q: consumer %q", q, s)
			}
			if s, err := q.NextSubject(); err == nil {
				t.Errorf("%q: next subject %q", q, s)
			}
		}
	}
	if ValidNamespace("a.b") == nil {
		t.Error("a dotted namespace is accepted")
	}
	for name, err := range map[string]error{
		"namespace": ValidNamespace("t1-x_9"), "activity": ValidActivity("inventory.reserve-all.v2"),
		"63": ValidNamespace(strings.Repeat("x", 63)),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if ValidActivity(strings.Repeat("x", 64)) == nil {
		t.Error("an activity of 64 bytes is accepted")
	}
}

func TestSagaIDs(t *testing.T) {
	for _, id := range []string{"order-42", "a b", "*", ">", "ünï", strings.Repeat("x", 255), "$SYS.x"} {
		if err := ValidSagaID(id); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
	for _, id := range []string{"", strings.Repeat("x", 256), "a\nb", "a\x00", "\xff", "\u0085"} {
		if err := ValidSagaID(id); !errors.Is(err, ErrName) || !strings.Contains(err.Error(), SagaIDRule) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func queues() *rapid.Generator[Queue] {
	return rapid.Custom(func(t *rapid.T) Queue {
		return Queue{
			Namespace: rapid.StringMatching(`[a-z0-9][a-z0-9_-]{0,5}`).Draw(t, "namespace"),
			Activity:  rapid.StringMatching(`[a-z0-9][a-z0-9_-]{0,3}(\.[a-z0-9][a-z0-9_-]{0,3}){0,3}`).Draw(t, "activity"),
			Direction: rapid.SampledFrom([]workerv1.Direction{do, undo, probe}).Draw(t, "direction"),
		}
	})
}

func TestSubjectsAndConsumersGoBackAndForth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := queues().Draw(t, "queue")
		subject, err := q.TaskSubject()
		if err != nil {
			t.Fatal(err)
		}
		announce, _ := q.AnnounceSubject()
		consumer, _ := q.Consumer()
		if got, err := ParseTaskSubject(subject); err != nil || got != q {
			t.Fatalf("%s: %v, %v", subject, got, err)
		}
		if got, err := ParseAnnounceSubject(announce); err != nil || got != q {
			t.Fatalf("%s: %v, %v", announce, got, err)
		}
		if got, err := ParseConsumer(consumer); err != nil || got != q {
			t.Fatalf("%s: %v, %v", consumer, got, err)
		}
		if strings.ContainsAny(consumer, ".*> /\\") || strings.ContainsAny(subject, "*> ") {
			t.Fatalf("%s, %s: NATS refuses such names", subject, consumer)
		}
	})
}

func TestParsersRefuse(t *testing.T) {
	for _, s := range []string{"", "sagad.task.", "sagad.task.n.do", "sagad.task.n.it.a", "sagad.task.n.do.", "sagad.task.N.do.a", "x.task.n.do.a", "sagad.task.n.do.a..b", "sagad.announce.n.do.a"} {
		if q, err := ParseTaskSubject(s); err == nil {
			t.Errorf("%q: %v", s, q)
		}
	}
	for _, s := range []string{"", "n=do", "n=it=a", "n=do=a=b", "n=do=a.b", "n=do=", "=do=a", "n=do=~"} {
		if q, err := ParseConsumer(s); err == nil {
			t.Errorf("%q: %v", s, q)
		}
	}
}

func TestOnlyInboxesAreAnswered(t *testing.T) {
	for subject, want := range map[string]bool{
		"_INBOX.abc.1": true, "_INBOX_w1.abc": true,
		"": false, "$JS.API.STREAM.DELETE.SAGAD_TASKS": false, "sagad.result.1": false, "sagad.task.n.do.a": false, "_INBOX.>": false, "_INBOX.*.a": false, "_INBOX.a b": false,
	} {
		if got := ReplyAllowed(subject); got != want {
			t.Errorf("%q: %v", subject, got)
		}
	}
}

func TestIdempotencyKeys(t *testing.T) {
	const run = "01890a5d-ac96-774b-bcce-b302099a8057"
	if got, want := IdempotencyKey(run, "pay", "", do, 2), run+"/pay/-/do/2"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := IdempotencyKey(run, "pay", "a/b-%", undo, 1), run+"/pay/a%2Fb%2D%25/undo/1"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := IdempotencyKey(run, "pay", strings.Repeat("/", 300), do, 1); len(got) > 128 {
		t.Errorf("a long item makes a key of %d bytes: %s", len(got), got)
	}
	items := append([]string{"-", "~", "%2D", "%", "a", "A", "a.b"}, hostile...)
	seen := map[string]string{}
	for _, item := range items {
		key := IdempotencyKey(run, "pay", item, do, 1)
		if other, dup := seen[key]; dup && other != item {
			t.Errorf("items %q and %q share the key %s", item, other, key)
		}
		seen[key] = item
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.String().Draw(t, "a"), rapid.String().Draw(t, "b")
		if (a == b) != (IdempotencyKey(run, "s", a, do, 1) == IdempotencyKey(run, "s", b, do, 1)) {
			t.Fatalf("%q, %q", a, b)
		}
	})
}

func TestMessageIDsDiffer(t *testing.T) {
	seen := map[string]bool{}
	for _, key := range []string{"k", "k2"} {
		for attempt := range int32(3) {
			for dispatch := range int32(3) {
				for tasks := 1; tasks <= 16; tasks++ {
					id := MessageID(key, attempt, dispatch, tasks)
					if seen[id] {
						t.Errorf("%s twice", id)
					}
					seen[id] = true
				}
			}
		}
	}
	if got := MessageID("k", 2, 1, 1); got != "k#2#1" {
		t.Error(got)
	}
	if got := MessageID("k", 2, 3, 16); got != "k#2#3+16" {
		t.Error(got)
	}
}

func TestCleanText(t *testing.T) {
	for _, c := range []struct {
		in   string
		max  int
		want string
	}{
		{"fine", 10, "fine"}, {"a\x00b", 10, "a\u2400b"}, {"a\xff\xfeb", 10, "a\uFFFDb"}, {"0123456789", 8, "01234..."},
		{"üüüü", 7, "üü..."}, {"üüüü", 6, "ü..."}, {"abcdef", 2, ".."}, {strings.Repeat("x", 1000), 10, "xxxxxxx..."},
	} {
		if got := CleanText(c.in, c.max); got != c.want {
			t.Errorf("%q at %d: %q, want %q", c.in, c.max, got, c.want)
		}
	}
}
