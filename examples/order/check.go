package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	sagadv1 "github.com/sagad/sagad/proto/gen/sagad/v1"
	"github.com/sagad/sagad/sdk/client"
)

// report is the balance: what the engine says became of each order, held against what the services did.
type report struct {
	completed, compensated, stuck, unfinished, abandoned, missing int
	byHand                                                        int
	capturedCents                                                 int64
	unitsShipped, unitsHeld                                       int64
	calls, effects                                                int64
	// problems are everything that is off.
	problems []string
}

func (r *report) off(format string, args ...any) {
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

// orderView is an order as the engine sees it.
type orderView struct {
	status      sagadv1.SagaStatus
	byHand      bool
	items       int
	totalCents  int64
	hasShipment bool
}

// check compares every order that is given, and all that the services know. Orders that go on in the meantime are taken
// as they stand; ones that are started in the meantime may be counted as not started.
func check(ctx context.Context, c *client.Client, s *Services, orders []Order) (*report, error) {
	views := map[string]orderView{}
	asked := make(map[string]bool, len(orders))
	lines := make(map[string][]Line, len(orders))
	var ids []string
	for _, o := range orders {
		lines[o.ID] = o.Lines
		asked[o.ID] = true
		ids = append(ids, o.ID)
	}
	for {
		// The engine first, the services after it: what the engine calls ended, the services know as ended.
		if err := engineViews(ctx, c, ids, views); err != nil {
			return nil, err
		}
		b, err := s.read(ctx)
		if err != nil {
			return nil, err
		}
		ids = ids[:0]
		for id := range b.orders {
			if !asked[id] {
				asked[id] = true
				ids = append(ids, id)
			}
		}
		if len(ids) == 0 {
			return balance(b, views, lines), nil
		}
	}
}

// engineViews asks the engine for sagas; those that it doesn't know are left out.
func engineViews(ctx context.Context, c *client.Client, ids []string, views map[string]orderView) error {
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for _, id := range ids {
		g.Go(func() error {
			run := client.Attach[Order, Receipt](c, nil, id)
			saga, err := run.Get(ctx)
			if errors.Is(err, client.ErrNotFound) {
				return nil
			}
			if err != nil {
				return err
			}
			v := orderView{status: saga.Summary.Status, byHand: saga.Summary.SettledByHand > 0, items: len(saga.Items)}
			if v.status == sagadv1.SagaStatus_SAGA_STATUS_COMPLETED {
				receipt, err := run.Wait(ctx)
				if err != nil {
					return err
				}
				v.totalCents, v.hasShipment = receipt.TotalCents, receipt.ShipmentID > 0
			}
			mu.Lock()
			views[id] = v
			mu.Unlock()
			return nil
		})
	}
	return g.Wait()
}

// balance is check without the asking.
func balance(b *book, views map[string]orderView, lines map[string][]Line) *report {
	r := &report{calls: b.calls, effects: b.effects}
	ids := map[string]bool{}
	for id := range views {
		ids[id] = true
	}
	for id := range b.orders {
		ids[id] = true
	}
	for id := range lines {
		ids[id] = true
	}
	// open are the units of each product that unfinished sagas may hold.
	open := map[int64]int64{}
	var totals int64
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		v, known := views[id]
		o := b.order(id)
		r.capturedCents += o.capturedCents
		if !known {
			if len(o.does) > 0 {
				r.off("order %s: the services did something for it, but sagad doesn't know it (is -data that of another sagad?)", id)
			}
			r.missing++
			continue
		}
		if v.byHand {
			r.byHand++
		}
		switch v.status {
		case sagadv1.SagaStatus_SAGA_STATUS_COMPLETED:
			r.completed++
			totals += v.totalCents
			r.completedOrder(id, o, v, lines[id])
		case sagadv1.SagaStatus_SAGA_STATUS_COMPENSATED:
			r.compensated++
			r.compensatedOrder(id, o)
		default:
			switch v.status {
			case sagadv1.SagaStatus_SAGA_STATUS_STUCK:
				r.stuck++
				if v.items == 0 {
					r.off("order %s: stuck without an operations item", id)
				}
			case sagadv1.SagaStatus_SAGA_STATUS_ABANDONED:
				r.abandoned++
			default:
				r.unfinished++
			}
			// Its captured money is no completed order's yet.
			totals += o.capturedCents
			for product, n := range o.held {
				open[product] += n
			}
		}
	}
	if r.capturedCents != totals {
		r.off("ledger: %s captured, but the orders come to %s", euros(r.capturedCents), euros(totals))
	}
	for _, p := range b.products {
		r.unitsShipped += p.shipped
		r.unitsHeld += p.held
		if p.now < 0 {
			r.off("product %d (%s): %d units in stock", p.id, p.name, p.now)
		}
		if sum := p.now + p.shipped + open[p.id]; sum != p.initial {
			r.off("product %d (%s): began with %d units, but %d are in stock + %d shipped + %d held by unfinished orders = %d",
				p.id, p.name, p.initial, p.now, p.shipped, open[p.id], sum)
		}
	}
	for _, k := range b.twice {
		r.off("key %s: its effect was done %d times", k.key, k.times)
	}
	return r
}

func (r *report) completedOrder(id string, o *bookOrder, v orderView, lines []Line) {
	if o.shipments != 1 || o.captures != 1 || o.notifications != 1 || !v.hasShipment {
		r.off("order %s completed with %d shipments, %d captures and %d notifications; each should be one", id, o.shipments, o.captures, o.notifications)
	}
	if o.capturedCents != v.totalCents {
		r.off("order %s completed over %s, but %s were captured", id, euros(v.totalCents), euros(o.capturedCents))
	}
	if o.holdsOpen != 0 || len(o.held) != 0 {
		r.off("order %s completed, but %d authorizations and units of %d products are still held", id, o.holdsOpen, len(o.held))
	}
	if lines != nil && !maps.Equal(units(lines), o.shipped) {
		r.off("order %s completed and shipped %v, but %v were ordered", id, o.shipped, units(lines))
	}
	for step, n := range o.does {
		if net := n - o.undoes[step]; net != 1 {
			r.off("order %s completed, but %s was done %d times and undone %d times", id, step, n, o.undoes[step])
		}
	}
}

func (r *report) compensatedOrder(id string, o *bookOrder) {
	if o.shipments != 0 || o.captures != 0 || o.notifications != 0 {
		r.off("order %s was undone, but %d shipments, %d captures and %d notifications stand", id, o.shipments, o.captures, o.notifications)
	}
	if o.holdsOpen != 0 {
		r.off("order %s was undone, but %s are still held on its card", id, euros(o.heldCents))
	}
	if len(o.held) != 0 {
		r.off("order %s was undone, but %v units are still reserved", id, o.held)
	}
	for step, n := range o.does {
		if n != o.undoes[step] {
			r.off("order %s was undone, but %s was done %d times and undone %d times", id, step, n, o.undoes[step])
		}
	}
}

// problemsShownMax bounds the list that is printed.
const problemsShownMax = 50

// print writes the report. It says whether all is in balance.
func (r *report) print(w io.Writer) bool {
	var rest strings.Builder
	for _, x := range []struct {
		n    int
		what string
	}{{r.unfinished, "still running"}, {r.abandoned, "abandoned"}, {r.missing, "not started"}, {r.byHand, "settled by hand"}} {
		if x.n > 0 {
			fmt.Fprintf(&rest, ", %d %s", x.n, x.what)
		}
	}
	fmt.Fprintf(w, "%d completed, %d compensated, %d stuck%s\n", r.completed, r.compensated, r.stuck, rest.String())
	fmt.Fprintf(w, "%d units shipped, %d still held; %s captured; %d calls led to %d effects\n",
		r.unitsShipped, r.unitsHeld, euros(r.capturedCents), r.calls, r.effects)
	if len(r.problems) == 0 {
		fmt.Fprintln(w, "balance: exact. Every unit and every cent is where it should be, and nothing was done twice")
		return true
	}
	for i, p := range r.problems {
		if i == problemsShownMax {
			fmt.Fprintf(w, "OFF: ... and %d more\n", len(r.problems)-i)
			break
		}
		fmt.Fprintln(w, "OFF:", p)
	}
	return false
}

// euros writes cents as money.
func euros(cents int64) string {
	sign := ""
	if cents < 0 {
		sign, cents = "-", -cents
	}
	return fmt.Sprintf("%s€%d.%02d", sign, cents/100, cents%100)
}
