package wire

import (
	"errors"
	"fmt"
	"unicode"
	"unicode/utf8"
)

// ErrName is wrapped by every error about a name.
var ErrName = errors.New("not a legal name")

// The rules, in words, as errors state them.
const (
	NamespaceRule = "lower-case letters, digits, '-' and '_', starting with a letter or digit, 1 to 63 characters"
	ActivityRule  = "words of lower-case letters, digits, '-' and '_' joined by single dots, each starting with a letter or digit, 1 to 63 characters in all"
	SagaIDRule    = "1 to 255 bytes of UTF-8 without control characters"

	nameBytesMax = 63
)

func lower(c byte) bool { return 'a' <= c && c <= 'z' }
func digit(c byte) bool { return '0' <= c && c <= '9' }

func nameError(what, name, rule string) error {
	if len(name) > 80 {
		name = name[:80] + "..."
	}
	return fmt.Errorf("%s %q: %w: write %s", what, name, ErrName, rule)
}

// ValidNamespace says whether name may name a namespace. The error states the rule.
func ValidNamespace(name string) error { return plain("namespace", name) }

// ValidDefinition says whether name may name a definition; the rule is that of namespaces.
func ValidDefinition(name string) error { return plain("definition", name) }

func plain(what, name string) error {
	if len(name) == 0 || len(name) > nameBytesMax || !lower(name[0]) && !digit(name[0]) {
		return nameError(what, name, NamespaceRule)
	}
	for i := 1; i < len(name); i++ {
		if c := name[i]; !lower(c) && !digit(c) && c != '-' && c != '_' {
			return nameError(what, name, NamespaceRule)
		}
	}
	return nil
}

// ValidActivity says whether name may name an activity. The error states the rule.
func ValidActivity(name string) error {
	if len(name) == 0 || len(name) > nameBytesMax {
		return nameError("activity", name, ActivityRule)
	}
	first := true
	for i := range len(name) {
		switch c := name[i]; {
		case lower(c) || digit(c):
			first = false
		case (c == '-' || c == '_') && !first:
		case c == '.' && !first:
			first = true
		default:
			return nameError("activity", name, ActivityRule)
		}
	}
	if first {
		return nameError("activity", name, ActivityRule)
	}
	return nil
}

// ValidSagaID says whether id may name a saga. It never becomes part of a subject. The error states the rule.
func ValidSagaID(id string) error {
	ok := len(id) > 0 && len(id) <= SagaIDBytesMax && utf8.ValidString(id)
	for _, r := range id {
		ok = ok && !unicode.IsControl(r)
	}
	if !ok {
		return nameError("saga id", id, SagaIDRule)
	}
	return nil
}
