package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	"github.com/google/uuid"
	"golang.org/x/time/rate"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"

	"github.com/sagad/sagad/engine"
)

// Stable codes of errors. They travel as the reason of a google.rpc.ErrorInfo detail, domain sagad.
const (
	codeInvalidRequest     = "INVALID_REQUEST"
	codeInvalidNamespace   = "INVALID_NAMESPACE"
	codeInvalidID          = "INVALID_ID"
	codeInvalidLabel       = "INVALID_LABEL"
	codeInvalidInput       = "INVALID_INPUT"
	codeInvalidOutput      = "INVALID_OUTPUT"
	codeInvalidDefinition  = "INVALID_DEFINITION"
	codeInvalidPageToken   = "INVALID_PAGE_TOKEN"
	codePayloadTooLarge    = "PAYLOAD_TOO_LARGE"
	codeSagaNotFound       = "SAGA_NOT_FOUND"
	codeDefinitionNotFound = "DEFINITION_NOT_FOUND"
	codeItemNotFound       = "ITEM_NOT_FOUND"
	codeIDTaken            = "ID_TAKEN"
	codeKeyTaken           = "KEY_TAKEN"
	codeTooManySignals     = "TOO_MANY_SIGNALS"
	codeMigrationRefused   = "MIGRATION_REFUSED"
	codeDefinitionInUse    = "DEFINITION_IN_USE"
	codeStaleVersion       = "STALE_VERSION"
	codeNotAllowed         = "NOT_ALLOWED"
	codeTooManyWatches     = "TOO_MANY_WATCHES"
	codeOwnerUnreachable   = "OWNER_UNREACHABLE"
	codeNoOwner            = "NO_OWNER"
	codeUnavailable        = "UNAVAILABLE"
	codeStopping           = "STOPPING"
	codeQuarantined        = "QUARANTINED"
	codeInternal           = "INTERNAL"
)

// fail makes an error for a caller: the status, the stable code, and a sentence that says what to do.
func fail(code connect.Code, reason, format string, args ...any) *connect.Error {
	return withInfo(connect.Errorf(code, format, args...), reason, nil)
}

func withInfo(err *connect.Error, reason string, metadata map[string]string) *connect.Error {
	return withDetail(err, &errdetails.ErrorInfo{Reason: reason, Domain: "sagad", Metadata: metadata})
}

// hasReason says that an error has a stable code.
func hasReason(err *connect.Error) bool {
	for _, d := range err.Details() {
		if m, derr := connectproto.UnmarshalErrorDetail(d); derr == nil {
			if _, ok := m.(*errdetails.ErrorInfo); ok {
				return true
			}
		}
	}
	return false
}

func withDetail(err *connect.Error, detail proto.Message) *connect.Error {
	d, derr := connectproto.NewErrorDetail(detail)
	if derr != nil {
		// Only a message that can't be encoded, for example invalid UTF-8. The error itself matters more.
		return err
	}
	return err.WithDetail(d)
}

// guard is the outermost interceptor but for tracing: it bounds the call, gives it an id, recovers panics, and makes
// sure that what a caller sees of an error was meant for callers.
func guard(log *slog.Logger, stopping <-chan struct{}) connect.ServerInterceptor {
	return func(next connect.ServerFunc) connect.ServerFunc {
		return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) (err error) {
			start := time.Now()
			id := uuid.Must(uuid.NewV7()).String()
			ctx = context.WithValue(ctx, requestIDKey{}, id)
			info, ok := connect.CallInfoForServerContext(ctx)
			if ok {
				info.ResponseHeader().Set(HeaderRequestID, id)
			}
			if spec.StreamType == connect.StreamTypeUnary {
				timeout := callTimeout
				if waits(spec.Procedure) {
					timeout += waitMax
				}
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, timeout)
				defer cancel()
			}
			defer func() {
				if v := recover(); v != nil {
					// The value may quote a payload: its type and the stack have to do.
					log.Error("a handler panicked; this is a bug in sagad, please report it with the stack",
						"procedure", spec.Procedure, "request_id", id, "type", fmt.Sprintf("%T", v), "stack", string(debug.Stack()))
					err = internalError(id)
				}
				if log.Enabled(ctx, slog.LevelDebug) {
					code := "ok"
					if err != nil {
						code = connect.CodeOf(err).String()
					}
					log.Debug("call", "procedure", spec.Procedure, "code", code, "duration", time.Since(start), "request_id", id)
				}
			}()
			return shown(ctx, log, spec.Procedure, id, stopping, next(ctx, spec, stream))
		}
	}
}

var outages = rate.Sometimes{Interval: time.Second}

// shown is the error as the caller may see it.
func shown(ctx context.Context, log *slog.Logger, procedure, id string, stopping <-chan struct{}, err error) error {
	if err == nil {
		return nil
	}
	var cerr *connect.Error
	if errors.As(err, &cerr) && !cerr.IsRemote() {
		if cause := errors.Unwrap(cerr); cause != nil && cerr.Code() == connect.CodeInternal {
			log.Error("call failed", "procedure", procedure, "request_id", id, "error", cause)
		}
		if cerr.Code() == connect.CodeInvalidArgument && !hasReason(cerr) {
			// From the schema's rules, or a message that can't be decoded.
			return withInfo(cerr, codeInvalidRequest, nil)
		}
		return cerr
	}
	if v := verdict(err); v != nil {
		var unavailable *engine.UnavailableError
		if errors.As(err, &unavailable) && unavailable.Cause != nil && !errors.Is(err, context.Canceled) {
			// An outage fails all calls; one line a second tells it.
			outages.Do(func() {
				log.Warn("calls can't be answered", "procedure", procedure, "request_id", id, "reason", unavailable.Reason, "error", unavailable.Cause)
			})
		}
		return v
	}
	select {
	case <-stopping:
		return fail(connect.CodeUnavailable, codeStopping, "this node is stopping; ask again, another node or the next start answers")
	default:
	}
	switch {
	case errors.Is(err, context.Canceled):
		return connect.NewError(connect.CodeCanceled, "the caller went away")
	case errors.Is(err, context.DeadlineExceeded):
		return connect.NewError(connect.CodeDeadlineExceeded, "the call took too long; nothing is lost, ask again")
	}
	log.Error("call failed", "procedure", procedure, "request_id", id, "error", err)
	return internalError(id)
}

func internalError(id string) *connect.Error {
	return fail(connect.CodeInternal, codeInternal, "internal error; the log of this node says more under request id %s", id)
}

type requestIDKey struct{}

// requestID is the id that this node gave to the call.
func requestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}
