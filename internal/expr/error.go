package expr

import (
	"fmt"
	"strings"
)

// Code says which kind of thing went wrong, for machines. The texts beside it are for people and may change.
type Code string

// Codes of Error: why an expression was refused.
const (
	CodeSyntax       Code = "syntax"        // it can't be parsed
	CodeTooLong      Code = "too_long"      // the source, its nesting or its number of parts passes a limit
	CodeUnknownName  Code = "unknown_name"  // no such variable, function or type
	CodeUnknownField Code = "unknown_field" // the schema has no such field
	CodeType         Code = "type"          // operands or the result have the wrong type; also of EvalError
	CodeCost         Code = "cost"          // too much work; also of EvalError
	CodePattern      Code = "pattern"       // a regular expression that is wrong, too large, or not a literal
	CodeMissingField Code = "missing_field" // a mapping leaves out a required field
	CodeInternal     Code = "internal"      // a bug of this package or of CEL's; also of EvalError
)

// Codes of EvalError: why an evaluation has no value.
const (
	CodeNoVariable  Code = "no_variable"   // a variable the expression refers to isn't there
	CodeNoField     Code = "no_field"      // the document has no such field
	CodeIndex       Code = "index"         // a list or string is shorter than that
	CodeOverflow    Code = "overflow"      // integer arithmetic beyond 64 bits
	CodeNumber      Code = "number"        // a number with more digits than 64 bits hold was computed with
	CodeDivision    Code = "division"      // by zero
	CodeTooLarge    Code = "too_large"     // the result, or a string or list on the way, passes a limit
	CodeNotJSON     Code = "not_json"      // the result can't be written as JSON
	CodeConversion  Code = "conversion"    // int("x") and the like
	CodeBadDocument Code = "bad_document"  // a variable's document isn't JSON; also of DocumentError
	CodeEvaluation  Code = "evaluation"    // anything else
	CodeDuplicate   Code = "duplicate_key" // of DocumentError: a key comes twice in one object
	CodeNUL         Code = "nul"           // of DocumentError: a string or key holds U+0000
	CodeUTF8        Code = "utf8"          // of DocumentError: invalid UTF-8, or half a surrogate pair
	CodeNesting     Code = "nesting"       // of DocumentError: deeper than NestingMax
	CodeSchema      Code = "schema"        // of DocumentError: the document doesn't fit its schema
)

// Error is why an expression doesn't compile.
type Error struct {
	Code Code
	// Line and Column say where in the source, both from 1; columns count characters. 0 if it is about no
	// place in an expression, such as a field that a mapping leaves out.
	Line, Column int
	// Message says what is wrong and what would be right. It may quote the source.
	Message string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.Message
	}
	return fmt.Sprintf("%d:%d: %s", e.Line, e.Column, e.Message)
}

// FieldError is why a field of an object mapping doesn't compile.
type FieldError struct {
	// Field is the name of the field in the mapping or in the wanted schema; empty if it is about the
	// mapping as a whole.
	Field string
	Err   *Error
}

func (e FieldError) Error() string {
	if e.Field == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("field %s: %s", shortKey(e.Field), e.Err.Error())
}

// EvalError is why an expression has no value for these variables. The same expression over the same
// documents always fails the same way, so trying again is of no use. It never holds values of the documents.
type EvalError struct {
	Code Code
	// Field is the mapping's field whose expression failed; empty for a lone expression.
	Field string
	// Line and Column say where in the source, both from 1; 0 if it isn't known.
	Line, Column int
	Message      string
}

func (e *EvalError) Error() string {
	var b strings.Builder
	if e.Field != "" {
		fmt.Fprintf(&b, "field %s: ", shortKey(e.Field))
	}
	if e.Line != 0 {
		fmt.Fprintf(&b, "%d:%d: ", e.Line, e.Column)
	}
	b.WriteString(e.Message)
	return b.String()
}

// DocumentError is why a JSON document is refused. It names the place but never the value found there.
type DocumentError struct {
	Code Code
	// Path leads to the place, such as $.lines[0].qty; $ is the document as a whole.
	Path    string
	Message string
}

func (e *DocumentError) Error() string { return e.Path + ": " + e.Message }

// shortKey prints a name for a message: as it is if it is a plain word, else quoted, never long.
func shortKey(key string) string {
	if len(key) > pathSegmentBytes {
		key = strings.ToValidUTF8(key[:pathSegmentBytes], "") + "..."
	}
	if isWord(key) {
		return key
	}
	return fmt.Sprintf("%q", key)
}

// isWord says whether s is an identifier.
func isWord(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

func shortMessage(s string) string {
	if len(s) <= messageBytesMax {
		return s
	}
	return strings.ToValidUTF8(s[:messageBytesMax], "") + "..."
}
