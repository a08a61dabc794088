package outbox

import (
	"context"

	"github.com/sagad/sagad/sdk/client"
)

// CrashAt lets a relay's process die where crash says so.
func (r *Relay) CrashAt(crash func(point string) bool) { r.crash = crash }

// Round takes one batch and delivers it.
func (r *Relay) Round(ctx context.Context) (int, error) { return r.round(ctx) }

var ErrCrash = errCrash

// Deliver delivers what stands in a row. code is empty if it was delivered.
func Deliver(ctx context.Context, c *client.Client, sagaID, definition string, version int64, input, labels string) (code, message string, final bool) {
	o, bad := orderOf(sagaID, definition, version, input, labels)
	if no := deliver(ctx, c, o, bad); no != nil {
		return no.code, no.message, no.final
	}
	return "", "", false
}
