package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"connectrpc.com/connect/v2"
	"google.golang.org/protobuf/types/known/timestamppb"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// defaultNamespace is meant when a request names none.
const defaultNamespace = "default"

// check refuses what sagad can say more about than the schema's rules, before they are applied, and fills in the
// default namespace.
func check(next connect.ServerFunc) connect.ServerFunc {
	return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
		return next(ctx, spec, checkedStream{stream, documents[spec.Procedure]})
	}
}

type checkedStream struct {
	connect.ServerStream
	// document says that the request carries one.
	document bool
}

func (s checkedStream) Receive(msg any) error {
	if err := s.ServerStream.Receive(msg); err != nil {
		// A request that can't be read is the caller's fault, never ours.
		var cerr *connect.Error
		if errors.As(err, &cerr) && cerr.Code() == connect.CodeResourceExhausted {
			if !s.document {
				return fail(connect.CodeResourceExhausted, codePayloadTooLarge, "the request can't be read: %s; this call needs no large one", cerr.Message())
			}
			return fail(connect.CodeResourceExhausted, codePayloadTooLarge,
				"the request can't be read: %s; a payload may have %d bytes: put large data elsewhere and pass a reference", cerr.Message(), payloadBytesMax)
		}
		if errors.As(err, &cerr) && (cerr.Code() == connect.CodeInternal || cerr.Code() == connect.CodeUnknown) && !errors.Is(err, io.EOF) {
			return fail(connect.CodeInvalidArgument, codeInvalidRequest, "the request can't be read: %s", cerr.Message())
		}
		return err
	}
	if err := checkRequest(msg); err != nil {
		return err
	}
	return nil
}

func checkRequest(msg any) *connect.Error {
	if m, ok := msg.(interface{ GetNamespace() string }); ok {
		if err := checkNamespace(m.GetNamespace()); err != nil {
			return err
		}
	}
	switch m := msg.(type) {
	case *sagadv1.RegisterDefinitionRequest:
		m.Namespace = namespace(m.Namespace)
	case *sagadv1.GetDefinitionRequest:
		m.Namespace = namespace(m.Namespace)
		return checkText("name", m.Name, 63)
	case *sagadv1.ListDefinitionsRequest:
		m.Namespace = namespace(m.Namespace)
		return checkText("name", m.Name, 63)
	case *sagadv1.GetDefinitionGraphRequest:
		m.Namespace = namespace(m.Namespace)
		return checkText("name", m.Name, 63)
	case *sagadv1.StartSagaRequest:
		m.Namespace = namespace(m.Namespace)
		return first(
			checkID("id", m.Id),
			checkText("definition", m.Definition, 63),
			checkLabels(m.Labels),
			checkPayload("input", codeInvalidInput, m.Input))
	case *sagadv1.GetSagaRequest:
		m.Namespace = namespace(m.Namespace)
		return checkID("id", m.Id)
	case *sagadv1.ListSagasRequest:
		m.Namespace = namespace(m.Namespace)
		if f := m.Filter; f != nil {
			return first(
				checkText("filter.definition", f.Definition, 63),
				checkText("filter.id_prefix", f.IdPrefix, idBytesMax),
				checkTime("filter.started_after", f.StartedAfter),
				checkTime("filter.started_before", f.StartedBefore))
		}
	case *sagadv1.WatchSagaRequest:
		m.Namespace = namespace(m.Namespace)
		return checkID("id", m.Id)
	case *sagadv1.WaitSagaRequest:
		m.Namespace = namespace(m.Namespace)
		if err := checkID("id", m.Id); err != nil {
			return err
		}
		if m.Timeout != nil {
			if d := m.Timeout.AsDuration(); !m.Timeout.IsValid() || d < 0 || d > waitMax {
				return fail(connect.CodeInvalidArgument, codeInvalidRequest, "timeout must be from 0 to %s; to wait longer, ask again", waitMax)
			}
		}
	case *sagadv1.GetHistoryRequest:
		m.Namespace = namespace(m.Namespace)
		return checkID("id", m.Id)
	case *sagadv1.CancelSagaRequest:
		m.Namespace = namespace(m.Namespace)
		return first(
			checkID("id", m.Id),
			checkText("reason", m.Reason, textBytesMax),
			checkText("request_id", m.RequestId, 128))
	case *sagadv1.SignalSagaRequest:
		m.Namespace = namespace(m.Namespace)
		return first(
			checkID("id", m.Id),
			checkNamed("signal", m.Signal, 63, "name a signal of the definition"),
			checkNamed("key", m.Key, 128, "give each signal a key of its own, so that a repeat is known"),
			checkPayload("payload", codeInvalidInput, m.Payload))
	case *sagadv1.PauseSagaRequest:
		m.Namespace = namespace(m.Namespace)
		if strings.TrimSpace(m.Reason) == "" {
			return fail(connect.CodeInvalidArgument, codeInvalidRequest, "reason is empty: say why you do this, it stays in the saga's history")
		}
		return first(
			checkID("id", m.Id),
			checkText("reason", m.Reason, textBytesMax),
			checkText("request_id", m.RequestId, 128))
	case *sagadv1.ResumeSagaRequest:
		m.Namespace = namespace(m.Namespace)
		return first(
			checkID("id", m.Id),
			checkText("reason", m.Reason, textBytesMax),
			checkText("request_id", m.RequestId, 128))
	case *sagadv1.ExplainSagaRequest:
		m.Namespace = namespace(m.Namespace)
		return checkID("id", m.Id)
	case *sagadv1.MigrateSagaRequest:
		m.Namespace = namespace(m.Namespace)
		if strings.TrimSpace(m.Reason) == "" && !m.DryRun {
			return fail(connect.CodeInvalidArgument, codeInvalidRequest, "reason is empty: say why you do this, it stays in the saga's history")
		}
		return first(
			checkID("id", m.Id),
			checkVersion(m.Version),
			checkNames(m.Names),
			checkText("reason", m.Reason, textBytesMax),
			checkText("request_id", m.RequestId, 128))
	case *sagadv1.GetDefinitionUsageRequest:
		m.Namespace = namespace(m.Namespace)
		return checkNamed("name", m.Name, 63, "name the definition")
	case *sagadv1.DeleteDefinitionRequest:
		m.Namespace = namespace(m.Namespace)
		return first(
			checkNamed("name", m.Name, 63, "name the definition"),
			checkVersion(m.Version))
	case *sagadv1.ListItemsRequest:
		m.Namespace = namespace(m.Namespace)
		return first(
			checkText("definition", m.Definition, 63),
			checkText("saga_id", m.SagaId, idBytesMax))
	case *sagadv1.GetItemRequest:
		m.Namespace = namespace(m.Namespace)
		return checkID("saga_id", m.SagaId)
	case *sagadv1.ActOnItemRequest:
		m.Namespace = namespace(m.Namespace)
		if strings.TrimSpace(m.Reason) == "" {
			return fail(connect.CodeInvalidArgument, codeInvalidRequest, "reason is empty: say why you do this, it stays in the saga's history")
		}
		return first(
			checkID("saga_id", m.SagaId),
			checkText("reason", m.Reason, textBytesMax),
			checkText("evidence", m.Evidence, textBytesMax),
			checkText("request_id", m.RequestId, 128),
			checkPayload("output", codeInvalidOutput, m.Output))
	}
	return nil
}

func first(errs ...*connect.Error) *connect.Error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func namespace(ns string) string {
	if ns == "" {
		return defaultNamespace
	}
	return ns
}

func checkNamespace(ns string) *connect.Error {
	if ns == "" || legalNamespace(ns) {
		return nil
	}
	return fail(connect.CodeInvalidArgument, codeInvalidNamespace,
		"namespace must be lower-case letters, digits, '-' and '_', begin with a letter or digit, and have 63 characters at most; leave it out for %q", defaultNamespace)
}

func legalNamespace(ns string) bool {
	if len(ns) == 0 || len(ns) > 63 {
		return false
	}
	for i := range len(ns) {
		c := ns[i]
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || i > 0 && (c == '_' || c == '-') {
			continue
		}
		return false
	}
	return true
}

// checkID holds a saga's id to its rule: 1 to 255 bytes of UTF-8 without control characters.
func checkID(field, id string) *connect.Error {
	switch {
	case id == "":
		return fail(connect.CodeInvalidArgument, codeInvalidID, "%s is empty: name the saga, for example by your order's number", field)
	case len(id) > idBytesMax:
		return fail(connect.CodeInvalidArgument, codeInvalidID, "%s is %d bytes, the limit is %d", field, len(id), idBytesMax)
	}
	if why := badRune(id); why != "" {
		return fail(connect.CodeInvalidArgument, codeInvalidID, "%s %s", field, why)
	}
	return nil
}

func badRune(s string) string {
	if !utf8.ValidString(s) {
		return "isn't UTF-8"
	}
	for i, r := range s {
		if unicode.IsControl(r) {
			return fmt.Sprintf("holds the control character %U at byte %d; remove it", r, i)
		}
	}
	return ""
}

func checkLabels(labels map[string]string) *connect.Error {
	if len(labels) > 16 {
		return fail(connect.CodeInvalidArgument, codeInvalidLabel, "%d labels, the limit is 16", len(labels))
	}
	for k, v := range labels {
		switch {
		case k == "":
			return fail(connect.CodeInvalidArgument, codeInvalidLabel, "a label's key is empty")
		case len(k) > labelBytesMax || len(v) > labelBytesMax:
			return fail(connect.CodeInvalidArgument, codeInvalidLabel, "label %s: key and value have %d bytes at most", quoted(k), labelBytesMax)
		}
		if why := badRune(k); why != "" {
			return fail(connect.CodeInvalidArgument, codeInvalidLabel, "label %s: the key %s", quoted(k), why)
		}
		if why := badRune(v); why != "" {
			return fail(connect.CodeInvalidArgument, codeInvalidLabel, "label %s: the value %s", quoted(k), why)
		}
	}
	return nil
}

// quoted is a key as an error shows it: short, and without anything that a terminal would obey.
func quoted(key string) string {
	if len(key) > labelBytesMax {
		key = strings.ToValidUTF8(key[:labelBytesMax], "") + "..."
	}
	return strconv.QuoteToGraphic(key)
}

// checkText is for words that are stored: lines and tabs are welcome, other control characters aren't.
func checkText(field, s string, max int) *connect.Error {
	if len(s) > max {
		return fail(connect.CodeInvalidArgument, codeInvalidRequest, "%s is %d bytes, the limit is %d", field, len(s), max)
	}
	for i, r := range s {
		if unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t' {
			return fail(connect.CodeInvalidArgument, codeInvalidRequest, "%s holds the control character %U at byte %d; remove it", field, r, i)
		}
	}
	return nil
}

// checkNamed is for words that must be there.
func checkNamed(field, s string, max int, hint string) *connect.Error {
	if s == "" {
		return fail(connect.CodeInvalidArgument, codeInvalidRequest, "%s is empty: %s", field, hint)
	}
	return checkText(field, s, max)
}

func checkVersion(version int32) *connect.Error {
	if version < 1 {
		return fail(connect.CodeInvalidArgument, codeInvalidRequest, "version is %d: name one, they begin at 1", version)
	}
	return nil
}

// namesMax bounds how many names a migration may change.
const namesMax = 1000

func checkNames(names map[string]string) *connect.Error {
	if len(names) > namesMax {
		return fail(connect.CodeInvalidArgument, codeInvalidRequest, "%d names, the limit is %d", len(names), namesMax)
	}
	for from, to := range names {
		if from == "" || to == "" {
			return fail(connect.CodeInvalidArgument, codeInvalidRequest, "names hold an empty one: leave out what isn't renamed")
		}
		if err := first(checkText("a name", from, 63), checkText("the name for "+quoted(from), to, 63)); err != nil {
			return err
		}
	}
	return nil
}

func checkTime(field string, t *timestamppb.Timestamp) *connect.Error {
	if t == nil {
		return nil
	}
	if err := t.CheckValid(); err != nil {
		return fail(connect.CodeInvalidArgument, codeInvalidRequest, "%s isn't a time between the years 1 and 9999", field)
	}
	return nil
}
