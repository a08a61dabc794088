package natsbus

import (
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/sagad/sagad/internal/wire"
)

// Tell sends a sealed message to whatever node serves the shard. It may be lost.
func (b *Bus) Tell(shard int, sealed []byte) {
	_ = b.nc.Publish(wire.NoteSubject(shard), sealed) // whoever needs an answer asks again
}

// ServeNotes gives handle the sealed messages for a shard until stop is called.
func (b *Bus) ServeNotes(shard int, handle func(sealed []byte)) (stop func(), err error) {
	sub, err := b.nc.Subscribe(wire.NoteSubject(shard), func(m *nats.Msg) { handle(m.Data) })
	if err != nil {
		return nil, fmt.Errorf("NATS: serve notes of shard %d: %w", shard, err)
	}
	if err := sub.SetPendingLimits(answeringMax, 64<<20); err != nil {
		return nil, fmt.Errorf("NATS: serve notes of shard %d: %w", shard, err)
	}
	return func() { _ = sub.Unsubscribe() }, nil
}
