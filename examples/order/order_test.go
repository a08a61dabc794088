package main

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sagad/sagad/internal/acceptance"
)

func TestLineCents(t *testing.T) {
	for _, c := range []struct {
		l    Line
		want int64
	}{
		{Line{UnitPriceCents: 1290, Quantity: 10, DiscountPercent: 5}, 12255},
		{Line{UnitPriceCents: 333, Quantity: 1, DiscountPercent: 50}, 167}, // 166.5
		{Line{UnitPriceCents: 333, Quantity: 1, DiscountPercent: 51}, 163}, // 163.17
		{Line{UnitPriceCents: 5, Quantity: 3, DiscountPercent: 100}, 0},
	} {
		if got := c.l.cents(); got != c.want {
			t.Errorf("%+v costs %d cents, want %d", c.l, got, c.want)
		}
	}
}

// The story as its readers run it: sagad in one process, the example in another, twice.
func TestTheBundledOrders(t *testing.T) {
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
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 2 {
		var out, errs bytes.Buffer
		if err := run(ctx, []string{"-address", found[1], "-nats", found[2], "-data", filepath.Join(dir, "services")}, &out, &errs); err != nil {
			t.Fatalf("%v\n%s%s", err, out.String(), errs.String())
		}
		for _, want := range []string{
			"order order-1  completed    €", "order order-3  compensated  check was rejected: DISCONTINUED",
			"order order-4  compensated  check was rejected: IMPOSSIBLE_QUANTITY", "order order-5  compensated  authorize was rejected: CARD_DECLINED",
			"order order-7  compensated  reserve was rejected: OUT_OF_STOCK", "4 completed, 4 compensated, 0 stuck", "balance: exact",
		} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%q isn't in the output:\n%s", want, out.String())
			}
		}
	}
	// Services that know nothing of what this sagad did would be off for ever.
	err = run(ctx, []string{"-address", found[1], "-nats", found[2], "-data", filepath.Join(dir, "others")}, &bytes.Buffer{}, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "-id-prefix") {
		t.Errorf("%v, want a hint to choose another -id-prefix", err)
	}
}

// The services' data lies beside sagad's own, so that both are removed together.
func TestDataGoesWithSagads(t *testing.T) {
	o, err := parse(nil, &bytes.Buffer{})
	if err != nil || o.data != filepath.Join(".sagad", "example-order") {
		t.Errorf("data in %q, %v", o.data, err)
	}
	var help bytes.Buffer
	if _, err := parse([]string{"-h"}, &help); err == nil || !strings.Contains(help.String(), "-order string") || !strings.Contains(help.String(), "-role string") {
		t.Errorf("help shows odd names of values:\n%s", help.String())
	}
}

func TestWithoutSagadTheMessageSaysWhatToDo(t *testing.T) {
	err := run(t.Context(), []string{"-address", "http://127.0.0.1:1", "-data", t.TempDir()}, &bytes.Buffer{}, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "make dev") {
		t.Errorf("%v, want a hint to start sagad", err)
	}
}
