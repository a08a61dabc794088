package server

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect/v2"

	"github.com/sagad/sagad/statemachine"
)

// Every code of error.go stands in docs/errors.md, and no other.
func TestCodesAreDocumented(t *testing.T) {
	source, err := os.ReadFile("error.go")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	table, _, ok := strings.Cut(string(page), "Codes of what goes wrong within a saga")
	if !ok {
		t.Fatal("the page has no second part")
	}
	want := []string{statemachine.RefusedHistoryLimit}
	for _, m := range regexp.MustCompile(`(?m)^\tcode\w+\s+= "([A-Z_]+)"`).FindAllStringSubmatch(string(source), -1) {
		want = append(want, m[1])
	}
	var got []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\| `[A-Z_]+`").FindAllStringSubmatch(table, -1) {
		got = append(got, m[1])
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Errorf("the page lists\n%v\nthe code has\n%v", got, want)
	}
	for _, code := range []string{
		statemachine.CodeTimeout, statemachine.CodeNoWorker, statemachine.CodeNotStorable, statemachine.CodeTooLarge,
		statemachine.CodeResultInvalid, statemachine.CodeExpression, statemachine.CodeBadOutcome,
	} {
		if !strings.Contains(string(page), "`"+code+"`") {
			t.Errorf("the page doesn't tell what %s is", code)
		}
	}
}

// A wrong output has one code, whatever is wrong with it.
func TestRefusedCodes(t *testing.T) {
	for code, want := range map[string]string{
		statemachine.RefusedInput: codeInvalidInput, statemachine.RefusedOutput: codeInvalidOutput, statemachine.RefusedInvalid: codeInvalidRequest,
		statemachine.RefusedHistoryLimit: statemachine.RefusedHistoryLimit,
	} {
		var cerr *connect.Error
		if err := refused(&statemachine.Refusal{Code: code, Message: "m"}); !errors.As(err, &cerr) || reasonOf(err) != want {
			t.Errorf("%s is told as %q, want %q", code, reasonOf(err), want)
		}
	}
}
