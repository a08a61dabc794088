package main

import (
	"strings"
	"testing"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
)

// The check must find whatever is off: each case starts from a world in balance and breaks one thing.
func TestTheCheckFindsWhatIsOff(t *testing.T) {
	const (
		done   = "done"
		undone = "undone"
		stuck  = "stuck"
	)
	lines := map[string][]Line{done: {{ProductID: 1, Quantity: 3}}, undone: {{ProductID: 1, Quantity: 2}}}
	world := func() (*book, map[string]orderView) {
		b := &book{orders: map[string]*bookOrder{}, products: []bookProduct{{id: 1, name: "Tee", initial: 10, now: 3, shipped: 3, held: 4}}}
		o := b.order(done)
		o.shipped[1], o.captures, o.capturedCents, o.shipments, o.notifications = 3, 1, 900, 1, 1
		o.does["capture"] = 1
		o = b.order(undone)
		o.does["reserve"], o.undoes["reserve"] = 1, 1
		b.order(stuck).held[1] = 4
		return b, map[string]orderView{
			done:   {status: sagadv1.SagaStatus_SAGA_STATUS_COMPLETED, totalCents: 900, hasShipment: true},
			undone: {status: sagadv1.SagaStatus_SAGA_STATUS_COMPENSATED},
			stuck:  {status: sagadv1.SagaStatus_SAGA_STATUS_STUCK, items: 1},
		}
	}
	for name, c := range map[string]struct {
		breakIt func(b *book, v map[string]orderView)
		want    []string
	}{
		"nothing":              {func(*book, map[string]orderView) {}, nil},
		"a unit is lost":       {func(b *book, _ map[string]orderView) { b.products[0].now-- }, []string{"began with 10 units"}},
		"a unit too many":      {func(b *book, _ map[string]orderView) { b.products[0].shipped++ }, []string{"began with 10 units"}},
		"money is lost":        {func(b *book, _ map[string]orderView) { b.orders[done].capturedCents-- }, []string{"€8.99 were captured", "ledger"}},
		"captured twice":       {func(b *book, _ map[string]orderView) { b.orders[done].captures = 2 }, []string{"2 captures"}},
		"shipped twice":        {func(b *book, _ map[string]orderView) { b.orders[done].shipments = 2 }, []string{"2 shipments"}},
		"not told":             {func(b *book, _ map[string]orderView) { b.orders[done].notifications = 0 }, []string{"0 notifications"}},
		"shipped another":      {func(b *book, _ map[string]orderView) { b.orders[done].shipped[1] = 2 }, []string{"were ordered"}},
		"hold left":            {func(b *book, _ map[string]orderView) { b.orders[undone].holdsOpen = 1 }, []string{"still held on its card"}},
		"hold left, completed": {func(b *book, _ map[string]orderView) { b.orders[done].holdsOpen = 1 }, []string{"still held"}},
		"units left":           {func(b *book, _ map[string]orderView) { b.orders[undone].held[1] = 2 }, []string{"still reserved"}},
		"undone twice":         {func(b *book, _ map[string]orderView) { b.orders[undone].undoes["reserve"] = 2 }, []string{"undone 2 times"}},
		"an effect twice":      {func(b *book, _ map[string]orderView) { b.twice = []bookKey{{"k", 2}} }, []string{"done 2 times"}},
		"stuck in silence":     {func(_ *book, v map[string]orderView) { v[stuck] = orderView{status: v[stuck].status} }, []string{"without an operations item"}},
		"engine lost it": {func(b *book, v map[string]orderView) { delete(v, done) },
			[]string{"sagad doesn't know it", "ledger"}},
	} {
		t.Run(name, func(t *testing.T) {
			b, v := world()
			c.breakIt(b, v)
			got := balance(b, v, lines).problems
			if len(got) != len(c.want) {
				t.Fatalf("problems %q, want %d", got, len(c.want))
			}
			for i, want := range c.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("problem %q, want %q in it", got[i], want)
				}
			}
		})
	}
}

func TestFaultsComeAtTheirRates(t *testing.T) {
	f := &faults{seed: 7, fail: 0.1, timeout: 0.05, loseReply: 0.05}
	counts := map[fault]int{}
	const n = 20_000
	for i := range n {
		counts[f.choose(strings.Repeat("x", i%7)+string(rune('a'+i%26)), "reserve", i)]++
	}
	for k, want := range map[fault]float64{faultFail: 0.1, faultHang: 0.025, faultLate: 0.025, faultLoseReply: 0.025, faultLoseReplyHang: 0.025} {
		if got := float64(counts[k]) / n; got < 0.8*want || got > 1.2*want {
			t.Errorf("fault %d: %.4f of all, want about %.4f", k, got, want)
		}
	}
	if first := f.choose("o", "ship", 1); first != f.choose("o", "ship", 1) {
		t.Error("the same attempt fares differently")
	}
}
