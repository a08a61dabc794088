package saga

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAnswersSurviveWrapping(t *testing.T) {
	wrap := map[string]func(error) error{
		"bare": func(e error) error { return e }, "twice": func(e error) error { return fmt.Errorf("a: %w", fmt.Errorf("b: %w", e)) },
		"joined": func(e error) error { return errors.Join(io.EOF, e) }, "joined and wrapped": func(e error) error { return fmt.Errorf("x: %w", errors.Join(e, io.EOF)) },
		"two at once": func(e error) error { return fmt.Errorf("%w and %w", io.EOF, e) },
	}
	for _, c := range []struct {
		name string
		errs []error
		undo bool
		want Meaning
	}{
		{"reject", []error{Reject("NO", "no"), Rejection{"NO", "no"}, &Rejection{"NO", "no"}}, false, Meaning{Kind: Rejected, Code: "NO", Message: "no"}},
		{"reject an undo", []error{Reject("NO", "no"), &Rejection{"NO", "no"}}, true, Meaning{Kind: Unable, Code: "NO"}},
		{"later", []error{RetryAfter(time.Minute, io.EOF), &Later{time.Minute, io.EOF}, Later{After: time.Minute}}, false, Meaning{Kind: Failed, RetryAfter: time.Minute}},
		{"later, negative", []error{RetryAfter(-time.Minute, io.EOF)}, false, Meaning{Kind: Failed}},
		{"give up", []error{GiveUp(io.EOF), &Surrender{io.EOF}, GiveUp(nil)}, false, Meaning{Kind: Failed, GiveUp: true}},
		{"give up an undo", []error{GiveUp(io.EOF)}, true, Meaning{Kind: Failed, GiveUp: true}},
		{"nothing to undo", []error{NothingToUndo}, true, Meaning{Kind: NothingUndone}},
		{"nothing to undo, of an action", []error{NothingToUndo}, false, Meaning{Kind: Failed}},
		{"can't undo", []error{CantUndo(io.EOF), &Undoable{io.EOF}, CantUndo(nil)}, true, Meaning{Kind: Unable}},
		{"can't undo, of an action", []error{CantUndo(io.EOF)}, false, Meaning{Kind: Failed}},
		{"plain", []error{io.ErrUnexpectedEOF}, false, Meaning{Kind: Failed}},
		// The more careful one counts.
		{"reject and give up", []error{errors.Join(Reject("NO", "no"), GiveUp(io.EOF))}, false, Meaning{Kind: Failed, GiveUp: true}},
		{"nothing and can't", []error{errors.Join(NothingToUndo, CantUndo(io.EOF))}, true, Meaning{Kind: Unable}},
		{"reject later", []error{RetryAfter(time.Second, Reject("NO", "no"))}, false, Meaning{Kind: Rejected, Code: "NO", Message: "no"}},
	} {
		for how, w := range wrap {
			for _, err := range c.errs {
				got := MeaningOf(w(err), c.undo)
				want := c.want
				if want.Message == "" {
					want.Message = w(err).Error()
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s, %s, %T: %s", c.name, how, err, diff)
				}
			}
		}
	}
	if m := MeaningOf(Reject("NO", ""), false); m.Message != "NO" {
		t.Errorf("%+v", m)
	}
	var nobody *Rejection
	if m := MeaningOf(errors.Join(io.EOF, fmt.Errorf("%w", asError(nobody))), false); m.Kind != Failed {
		t.Errorf("%+v", m)
	}
}

// asError makes a nil pointer an error, as a careless handler does; its text can't be asked for.
func asError(r *Rejection) error { return nilSafe{r} }

type nilSafe struct{ r *Rejection }

func (nilSafe) Error() string   { return "careless" }
func (n nilSafe) Unwrap() error { return n.r }
