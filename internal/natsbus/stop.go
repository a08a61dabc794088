package natsbus

import (
	"google.golang.org/protobuf/proto"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"

	"github.com/sagad/sagad/internal/wire"
)

// Stop tells the workers of an activity which attempts aren't wanted any more. It is a hint: nobody answers, and what can't be sent
// now is dropped and counted. It doesn't block.
func (b *Bus) Stop(namespace, activity string, stops []*workerv1.Stop) {
	subject, err := wire.StopSubject(namespace, activity)
	if err != nil {
		b.counters.droppedStops.Add(int64(len(stops)))
		return
	}
	for len(stops) > 0 {
		n := min(len(stops), wire.StopsMax)
		data, err := proto.Marshal(&workerv1.StopPack{Stops: stops[:n]})
		if err == nil {
			err = b.nc.Publish(subject, data) // fails at once while there is no connection
		}
		if err != nil {
			b.counters.droppedStops.Add(int64(n))
		} else {
			b.counters.stops.Add(int64(n))
		}
		stops = stops[n:]
	}
}
