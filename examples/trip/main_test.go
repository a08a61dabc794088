package main

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sagad/sagad/internal/acceptance"
)

// The example as its readers run it: sagad in one process, the trips in another. Whatever is refused, what isn't needed is given back.
func TestTrips(t *testing.T) {
	for _, err := range []error{BookTrip.Verify(), Insurance.Verify()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "sagad"), "github.com/sagad/sagad/cmd/sagad")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	sagad, err := acceptance.StartProcess("sagad", filepath.Join(dir, "sagad"), "dev", "--ephemeral", "--listen", "127.0.0.1:0", "--nats-listen", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(sagad.Tail())
		}
		if err := sagad.Stop(); err != nil {
			t.Error(err)
		}
	})
	addresses := regexp.MustCompile(`(?s)(http://\S+).*(nats://\S+)`)
	var found []string
	if err := sagad.Await("its addresses", time.Minute, func(lines []string) bool {
		found = addresses.FindStringSubmatch(strings.Join(lines, "\n"))
		return found != nil
	}); err != nil {
		t.Fatal(err)
	}
	const unpaid = `Oslo: "", saga "x-Oslo" was undone: payment failed: SIGNAL_TIMEOUT`
	for _, tt := range []struct {
		fail string
		// oslo never pays, so all that was booked for it is given back.
		rome, oslo string
	}{
		{"", `Rome: "2 seats, 99000 cents charged to 4711", <nil>`, unpaid},
		{"seat", `saga "x-Rome" was undone: seat was rejected: NONE_LEFT`, `saga "x-Oslo" was undone: seat was rejected: NONE_LEFT`},
		{"hotel", `saga "x-Rome" was undone: hotel failed: BRANCHES_FAILED`, `saga "x-Oslo" was undone: hotel failed: BRANCHES_FAILED`},
		{"car", `Rome: "2 seats, 99000 cents charged to 4711", <nil>`, unpaid},
		{"insure", `saga "x-Rome" was undone: insurance was rejected: NONE_LEFT`, `saga "x-Oslo" was undone: insurance was rejected: NONE_LEFT`},
		{"charge", `saga "x-Rome" was undone: charge was rejected: REFUSED`, unpaid},
	} {
		t.Run("fail "+tt.fail, func(t *testing.T) {
			var out bytes.Buffer
			prefix := tt.fail + "x-"
			if err := run(t.Context(), &out, found[1], found[2], prefix, tt.fail); err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			got := strings.ReplaceAll(out.String(), prefix, "x-")
			for _, want := range []string{tt.rome, tt.oslo} {
				if !strings.Contains(got, want) {
					t.Errorf("it doesn't say %q:\n%s", want, got)
				}
			}
			// What was booked and what was given back, for those who don't travel.
			booked := len(regexp.MustCompile(`(?m)^  (seat|inn|palace|car|train|insurance)\b.* for Oslo$|^  seat to Oslo for \w+$`).FindAllString(got, -1))
			back := strings.Count(got, "for Oslo is given back") + len(regexp.MustCompile(`seat to Oslo for \w+ is given back`).FindAllString(got, -1))
			if booked != back {
				t.Errorf("%d were booked for Oslo, %d given back:\n%s", booked, back, got)
			}
		})
	}
}
