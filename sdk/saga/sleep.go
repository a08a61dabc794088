package saga

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

type sleepNode struct {
	placed
	sleep *sagadv1.Sleep
}

// Sleep waits for d, 1 ms to 10 years. It needs no worker, and a restart doesn't make it longer.
func Sleep(name string, d time.Duration) Node {
	return sleepNode{sleep: &sagadv1.Sleep{Name: name, Duration: durationpb.New(d)}}
}

// SleepFor waits as long as a CEL expression says: a string such as "90m" or "1.5s".
func SleepFor(name, expression string) Node {
	return sleepNode{sleep: &sagadv1.Sleep{Name: name, For: expression}}
}

// SleepUntil waits until the time that a CEL expression says: a string of the form of RFC 3339. If it has passed, it goes on.
func SleepUntil(name, expression string) Node {
	return sleepNode{sleep: &sagadv1.Sleep{Name: name, Until: expression}}
}

func (s sleepNode) define(b *builder) { b.def.Body = append(b.def.Body, s.node(b)) }

func (s sleepNode) node(b *builder) *sagadv1.Node {
	b.used[s.sleep.Name] = true
	return &sagadv1.Node{Kind: &sagadv1.Node_Sleep{Sleep: s.sleep}}
}
