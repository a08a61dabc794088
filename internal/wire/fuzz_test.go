package wire

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzNames: a subject or a consumer's name is a queue's, and then exactly that queue's, or an error; and what is built from it
// holds nothing that NATS would read otherwise.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"sagad.task.shop.do.inventory.reserve", "sagad.announce.shop.undo.a", "shop=do=inventory~reserve", "sagad.task.*.do.>", "sagad.task.shop.do.a..b",
		"shop=do=a.b", "a=b=c=d", "sagad.task.shop.DO.a", "", "$JS.API.>", "_INBOX.x.y", "sagad.task.s.do." + strings.Repeat("a", 64)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, c := range []struct {
			parse func(string) (Queue, error)
			build func(Queue) (string, error)
		}{
			{ParseTaskSubject, Queue.TaskSubject}, {ParseAnnounceSubject, Queue.AnnounceSubject}, {ParseConsumer, Queue.Consumer},
		} {
			q, err := c.parse(s)
			if err != nil {
				continue
			}
			if again, err := c.build(q); err != nil || again != s {
				t.Errorf("%q is read as %+v, which is %q, %v", s, q, again, err)
			}
			next, err := q.NextSubject()
			if err != nil || strings.ContainsAny(next, "*> \t\r\n\x00") {
				t.Errorf("%q leads to %q, %v", s, next, err)
			}
		}
		for _, err := range []error{ValidNamespace(s), ValidActivity(s), ValidDefinition(s), ValidSagaID(s)} {
			if err != nil && len(err.Error()) > 700 {
				t.Errorf("the error of a long name is long: %d bytes", len(err.Error()))
			}
		}
		if ValidNamespace(s) == nil && strings.ContainsAny(s, ".*> \t\r\n\x00") {
			t.Errorf("%q names a namespace", s)
		}
		if ReplyAllowed(s) && !strings.HasPrefix(s, InboxPrefix) {
			t.Errorf("%q is answered", s)
		}
		if word := itemWord(s); word == "" || strings.ContainsAny(word, "/# \r\n") || len(word) > 65 {
			t.Errorf("item %q is spelled %q", s, word)
		}
	})
}

// FuzzText: a text is made storable, and what can be stored stays as it is.
func FuzzText(f *testing.F) {
	for _, s := range []string{"plain", "\x00", "\xff\xfe", "žluťoučký kůň", "\u0000x", `"\u0000"`, `"\\u0000"`, `{"a":"\\\u0000"}`, "\xe2\x82", `[1,2`, "\"\xff\"", strings.Repeat("é", 40)} {
		f.Add([]byte(s), 8)
	}
	f.Fuzz(func(t *testing.T, b []byte, bytesMax int) {
		bytesMax = max(0, min(bytesMax, 1<<20))
		s := string(b)
		clean := CleanText(s, bytesMax)
		if len(clean) > bytesMax || !utf8.ValidString(clean) || strings.Contains(clean, "\x00") {
			t.Errorf("%q becomes %q, of %d bytes at most", s, clean, bytesMax)
		}
		if again := CleanText(clean, bytesMax); again != clean {
			t.Errorf("%q becomes %q, then %q", s, clean, again)
		}
		if len(s) <= bytesMax && utf8.ValidString(s) && !strings.Contains(s, "\x00") && clean != s {
			t.Errorf("%q becomes %q for no reason", s, clean)
		}
		if Storable(b) == nil {
			v, err := generic(b)
			if err != nil {
				t.Errorf("%q is said to be storable: %v", b, err)
			}
			if holdsNUL(v) {
				t.Errorf("%q holds a NUL", b)
			}
		} else if len(b) <= PayloadBytesMax && utf8.Valid(b) && json.Valid(b) && !strings.Contains(s, `\u0000`) {
			t.Errorf("%q isn't storable: %v", b, Storable(b))
		}
	})
}

// generic reads a document; numbers keep their digits.
func generic(doc []byte) (v any, err error) {
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	err = dec.Decode(&v)
	return v, err
}

func holdsNUL(v any) bool {
	switch v := v.(type) {
	case string:
		return strings.Contains(v, "\x00")
	case []any:
		for _, x := range v {
			if holdsNUL(x) {
				return true
			}
		}
	case map[string]any:
		for k, x := range v {
			if holdsNUL(k) || holdsNUL(x) {
				return true
			}
		}
	}
	return false
}
