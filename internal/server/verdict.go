package server

import (
	"errors"
	"fmt"
	"strconv"

	"connectrpc.com/connect/v2"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sagad/sagad/engine"
	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/statemachine"
	"github.com/sagad/sagad/store"
)

// problemsMax bounds the problems of a definition that an error carries: details travel in headers with gRPC.
const problemsMax = 20

// verdict is what the engine's errors mean to a caller. It is nil for errors that aren't a caller's business.
func verdict(err error) *connect.Error {
	var (
		notFound    *engine.NotFoundError
		conflict    *engine.ConflictError
		invalid     *engine.InvalidError
		problems    *engine.ProblemsError
		unavailable *engine.UnavailableError
		quarantined *engine.QuarantinedError
		elsewhere   *engine.NotOwnerError
		refusal     *statemachine.Refusal
		used        *store.InUseError
		named       *engine.NamedError
	)
	switch {
	case errors.As(err, &notFound):
		reason := codeSagaNotFound
		hint := "check id and namespace"
		if notFound.What == "definition" {
			reason, hint = codeDefinitionNotFound, "register it first, or check name, version and namespace"
		}
		if notFound.Deleted {
			hint = "use another version, or register it again: that gives a new one"
		}
		return fail(connect.CodeNotFound, reason, "%s: %s", notFound, hint)
	case errors.As(err, &conflict):
		return fail(connect.CodeAlreadyExists, codeIDTaken, "%s", conflict)
	case errors.As(err, &invalid):
		return fail(connect.CodeInvalidArgument, codeInvalidRequest, "%s", invalid)
	case errors.As(err, &problems):
		return definitionProblems(problems.Problems)
	case errors.As(err, &unavailable):
		return withDetail(fail(connect.CodeUnavailable, codeUnavailable, "%s", unavailable),
			&errdetails.RetryInfo{RetryDelay: durationpb.New(unavailable.RetryIn)})
	case errors.As(err, &quarantined):
		return fail(connect.CodeFailedPrecondition, codeQuarantined, "%s", quarantined)
	case errors.As(err, &elsewhere):
		return fail(connect.CodeUnavailable, codeNoOwner,
			"the saga's shard %d is moving to another node; nothing is lost, ask again in a second", elsewhere.Shard)
	case errors.As(err, &refusal):
		return refused(refusal)
	case errors.As(err, &used):
		return withInfo(connect.Errorf(connect.CodeFailedPrecondition,
			"%s: wait for their end or move them to another version; GetDefinitionUsage names some, ListSagas with a filter for definition and version all", used),
			codeDefinitionInUse, map[string]string{"unfinished": strconv.FormatInt(used.Unfinished, 10)})
	case errors.As(err, &named):
		return withInfo(connect.Errorf(connect.CodeFailedPrecondition, "%s: delete that first, or let it run another version", named),
			codeDefinitionInUse, map[string]string{"unfinished": "0"})
	}
	return nil
}

func refused(r *statemachine.Refusal) *connect.Error {
	switch r.Code {
	case statemachine.RefusedNotFound:
		return fail(connect.CodeNotFound, codeItemNotFound, "%s", r.Message)
	case statemachine.RefusedStale:
		return fail(connect.CodeAborted, codeStaleVersion, "%s", r.Message)
	case statemachine.RefusedNotAllowed:
		return fail(connect.CodeFailedPrecondition, codeNotAllowed, "%s", r.Message)
	case statemachine.CodeTooLarge:
		return fail(connect.CodeInvalidArgument, codePayloadTooLarge, "%s", r.Message)
	case statemachine.RefusedConflict:
		return fail(connect.CodeAlreadyExists, codeKeyTaken, "%s", r.Message)
	case statemachine.RefusedFull:
		return fail(connect.CodeResourceExhausted, codeTooManySignals, "%s", r.Message)
	case statemachine.RefusedHistoryLimit:
		return fail(connect.CodeResourceExhausted, r.Code, "%s", r.Message)
	case statemachine.RefusedInput:
		return fail(connect.CodeInvalidArgument, codeInvalidInput, "%s", r.Message)
	case statemachine.RefusedOutput:
		return fail(connect.CodeInvalidArgument, codeInvalidOutput, "%s", r.Message)
	case statemachine.RefusedInvalid:
		return fail(connect.CodeInvalidArgument, codeInvalidRequest, "%s", r.Message)
	}
	return fail(connect.CodeFailedPrecondition, r.Code, "%s", r.Message)
}

func definitionProblems(problems []*sagadv1.Problem) *connect.Error {
	text := "the definition can't be accepted"
	if len(problems) > 0 {
		text = fmt.Sprintf("the definition has %s: %s", count(len(problems), "problem"), problemLine(problems[0]))
		if n := len(problems) - 1; n > 0 {
			text += fmt.Sprintf(" (and %d more, in this error's details; VerifyDefinition lists all)", n)
		}
	}
	err := fail(connect.CodeInvalidArgument, codeInvalidDefinition, "%s", text)
	for i, p := range problems {
		if i == problemsMax {
			break
		}
		err = withDetail(err, p)
	}
	return err
}

func problemLine(p *sagadv1.Problem) string {
	where := p.Definition
	if p.Step != "" {
		where += "." + p.Step
	}
	if p.Field != "" {
		where += "." + p.Field
	}
	if p.Line > 0 {
		where += fmt.Sprintf(" (%d:%d)", p.Line, p.Column)
	}
	line := fmt.Sprintf("%s: %s [%s]", where, p.Message, p.Rule)
	if p.Mend != "" {
		line += ": " + p.Mend
	}
	return line
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
