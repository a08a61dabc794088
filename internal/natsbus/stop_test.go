package natsbus

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/internal/wire"
)

func TestStops(t *testing.T) {
	r := newRig(t, nil)
	sub, err := r.admin.SubscribeSync("sagad.stop.shop.inventory.reserve")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.admin.Flush(); err != nil {
		t.Fatal(err)
	}
	var stops []*workerv1.Stop
	for i := range wire.StopsMax + 1 {
		stops = append(stops, &workerv1.Stop{IdempotencyKey: fmt.Sprint("k", i), Attempt: int32(i)})
	}
	r.bus.Stop("shop", "inventory.reserve", stops)
	r.bus.Stop("shop", "other", stops[:1])
	r.bus.Stop("shop", "*", stops[:1])
	got := 0
	for got < len(stops) {
		m, err := sub.NextMsg(5 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		pack := new(workerv1.StopPack)
		if err := proto.Unmarshal(m.Data, pack); err != nil || len(pack.Stops) > wire.StopsMax {
			t.Fatalf("%v, %d stops", err, len(pack.Stops))
		}
		for _, s := range pack.Stops {
			if !proto.Equal(s, stops[got]) {
				t.Errorf("%v, want %v", s, stops[got])
			}
			got++
		}
	}
	if s := r.bus.Stats(); s.Stops != int64(len(stops))+1 || s.DroppedStops != 1 {
		t.Errorf("%+v", s)
	}
}

// A probe's queue is one like the others: an announcement makes its consumer.
func TestProbesHaveQueues(t *testing.T) {
	r := newRig(t, nil)
	task := r.task("card.charge", 1)
	task.Direction = workerv1.Direction_DIRECTION_PROBE
	if _, err := r.admin.RequestWithContext(r.ctx(), "sagad.announce."+task.Namespace+".probe.card.charge", nil); err != nil {
		t.Fatal(err)
	}
	c, err := r.js.Consumer(r.ctx(), wire.Stream, task.Namespace+"=probe=card~charge")
	if err != nil {
		t.Fatal(err)
	}
	r.bus.Publish([]*workerv1.Task{task})
	m, err := c.Next()
	if err != nil || m.Subject() != "sagad.task."+task.Namespace+".probe.card.charge" {
		t.Errorf("%v %v", m, err)
	}
}
