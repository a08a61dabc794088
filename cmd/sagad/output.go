package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/statemachine"
)

// json prints one document.
func (g *globals) json(m proto.Message) error {
	data, err := protojson.MarshalOptions{Multiline: true, Indent: "  "}.Marshal(m)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(g.stdout, "%s\n", data)
	return err
}

// jsonLine prints a document of a stream on a line of its own.
func (g *globals) jsonLine(m proto.Message) error {
	data, err := protojson.Marshal(m)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(g.stdout, "%s\n", data)
	return err
}

// jsonLineOf prints what a call about one saga of many answered, on a line of its own.
func (g *globals) jsonLineOf(id string, m proto.Message) error {
	answer, err := protojson.Marshal(m)
	if err != nil {
		return err
	}
	data, err := json.Marshal(struct {
		ID     string          `json:"id"`
		Answer json.RawMessage `json:"answer"`
	}{id, answer})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(g.stdout, "%s\n", data)
	return err
}

// table prints aligned columns. Cells are cleaned: what others wrote mustn't steer the terminal.
type table struct {
	w *tabwriter.Writer
}

func newTable(w io.Writer, heads ...string) *table {
	t := &table{tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)}
	if len(heads) > 0 {
		t.row(heads...)
	}
	return t
}

func (t *table) row(cells ...string) {
	for i := range cells {
		cells[i] = oneLine(cells[i])
	}
	fmt.Fprintln(t.w, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
}

func (t *table) end() error { return t.w.Flush() }

// oneLine makes text fit for one line of a terminal.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case unicode.IsControl(r) || !unicode.IsPrint(r) && r != ' ':
			return '\uFFFD'
		}
		return r
	}, s)
}

// cellRunesMax is how much of a text fits a list's cell; the saga's or item's own page shows all of it.
const cellRunesMax = 80

// cell cuts text to what a list has room for.
func cell(s string) string {
	if len(s) <= cellRunesMax {
		return s
	}
	runes := []rune(s)
	if len(runes) <= cellRunesMax {
		return s
	}
	return strings.TrimRight(string(runes[:cellRunesMax-3]), " ") + "..."
}

// when is a time for people, in their zone.
func when(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return t.AsTime().Local().Format("2006-01-02 15:04:05")
}

// clock is a time of day, in UTC like the times in a history's sentences.
func clock(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return t.AsTime().UTC().Format("15:04:05.000Z")
}

// ago is how long something has lasted.
func ago(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return span(time.Since(t.AsTime()))
}

func span(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute-50*time.Millisecond:
		return d.Round(100 * time.Millisecond).String()
	case d < 48*time.Hour:
		s := d.Round(time.Second).String()
		for _, zero := range [...]string{"m0s", "h0m"} {
			if strings.HasSuffix(s, zero) {
				s = s[:len(s)-2]
			}
		}
		return s
	default:
		return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
	}
}

// word is an enum's value without its prefix: COMPENSATING, in words that a person reads.
func word(s fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(s.String(), prefix), "_", " "))
}

func status(s sagadv1.SagaStatus) string { return strings.TrimPrefix(s.String(), "SAGA_STATUS_") }

func errorText(e *historyv1.Error) string {
	if e == nil {
		return ""
	}
	switch {
	case e.Code == "":
		return e.Message
	case e.Message == "":
		return e.Code
	}
	return e.Code + ": " + e.Message
}

func causeText(c *historyv1.Cause) string {
	if c == nil {
		return ""
	}
	return statemachine.CauseWords(c)
}

// payload is JSON text as it is, but for what would steer a terminal.
func payload(text string, max int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return '\uFFFD'
		}
		return r
	}, text)
	if max > 0 && len(text) > max {
		return strings.ToValidUTF8(text[:max], "") + fmt.Sprintf("... (%d bytes, -o json shows all)", len(text))
	}
	return text
}
