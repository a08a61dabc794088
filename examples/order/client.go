package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sagad/sagad/sdk/client"
	"github.com/sagad/sagad/sdk/saga"
)

// send starts the orders, waits for them, and prints a line for each as it ends, or needs a person. Orders that were
// sent before are only waited for. It outlives restarts of sagad.
func send(ctx context.Context, o options, def *saga.Definition[Order, Receipt], orders []Order, stdout io.Writer) error {
	c, err := client.New(o.address, client.WithNamespace(o.namespace), client.WithActor("examples/order"), client.WithRetryFor(o.wait))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.wait, fmt.Errorf("-wait %v is over", o.wait))
	defer cancel()
	began := time.Now()
	var mu sync.Mutex
	var completed, compensated, stuck, abandoned, before int
	parent := ctx
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(o.concurrency)
	for _, order := range orders {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			start := time.Now()
			run, err := client.Start(ctx, c, def, order.ID, order)
			if err != nil {
				return err
			}
			receipt, err := run.Wait(ctx, client.StopWhenStuck())
			mu.Lock()
			defer mu.Unlock()
			if !run.Created() {
				before++
			}
			var undone *client.CompensatedError
			var waits *client.StuckError
			var left *client.AbandonedError
			var what string
			switch {
			case err == nil:
				completed++
				what = fmt.Sprintf("completed    %s, shipment %d", euros(receipt.TotalCents), receipt.ShipmentID)
			case errors.As(err, &undone):
				compensated++
				what = fmt.Sprintf("compensated  %s", undone.Cause)
			case errors.As(err, &waits):
				stuck++
				items := "1 operations item waits"
				if len(waits.Items) != 1 {
					items = fmt.Sprintf("%d operations items wait", len(waits.Items))
				}
				what = fmt.Sprintf("stuck        %s for a person, see `sagad ops list --saga %s`", items, order.ID)
			case errors.As(err, &left):
				abandoned++
				what = "abandoned    by a person"
			default:
				return err
			}
			_, err = fmt.Fprintf(stdout, "order %s  %s  (%v)\n", order.ID, what, time.Since(start).Round(time.Millisecond))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if parent.Err() != nil {
		return context.Cause(parent)
	}
	fmt.Fprintf(stdout, "%d orders in %v: %d completed, %d compensated, %d stuck", len(orders), time.Since(began).Round(time.Millisecond),
		completed, compensated, stuck)
	if abandoned > 0 {
		fmt.Fprintf(stdout, ", %d abandoned", abandoned)
	}
	if before > 0 {
		fmt.Fprintf(stdout, "; %d of them had been sent before", before)
	}
	_, err = fmt.Fprintln(stdout)
	return err
}
