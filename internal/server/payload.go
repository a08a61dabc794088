package server

import (
	"errors"

	"connectrpc.com/connect/v2"

	"github.com/sagad/sagad/internal/expr"
)

// checkPayload refuses a document that is too large, or that can't be stored or would change on its way. what names it
// in the error, together with the place in it; the error never quotes a value.
func checkPayload(what, reason, text string) *connect.Error {
	if len(text) > payloadBytesMax {
		return fail(connect.CodeInvalidArgument, codePayloadTooLarge,
			"%s is %d bytes, the limit is %d: store large data elsewhere and pass a reference", what, len(text), payloadBytesMax)
	}
	if text == "" {
		return nil
	}
	if err := expr.CheckJSON([]byte(text)); err != nil {
		var doc *expr.DocumentError
		if errors.As(err, &doc) {
			return fail(connect.CodeInvalidArgument, reason, "%s %s", what, doc.Error())
		}
		return fail(connect.CodeInvalidArgument, reason, "%s isn't a JSON document that can be stored", what)
	}
	return nil
}
