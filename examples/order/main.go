// Command order is the story of an order: check, reserve the stock, hold the money while the freight is quoted, take the
// money, ship, tell the customer. It defines the saga place-order, serves its activities, sends a handful of orders
// through a running sagad, and then checks to the unit and to the cent that nothing was lost and nothing done twice.
//
//	make dev                      (in another terminal)
//	go run ./examples/order
//
// See its README for faults that can be turned on, and for the parts as processes of their own.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sagad/sagad/sdk/client"
	"github.com/sagad/sagad/sdk/saga"
)

type options struct {
	role          string
	address, nats string
	namespace     string
	orders, stock string
	data          string
	idPrefix      string
	concurrency   int
	stepTimeout   time.Duration
	retryInitial  time.Duration
	ackWait       time.Duration
	wait          time.Duration
	order         string
	faults        faults
}

var errOff = errors.New("the balance is off")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	default:
		fmt.Fprintln(os.Stderr, "order:", err)
		os.Exit(1)
	}
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("order", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.role, "role", "all", "what to be: 'all', 'worker' (serve the activities), 'client' (send the orders), 'check' (only the balance) or 'release' (see -order)")
	f.StringVar(&o.address, "address", "http://127.0.0.1:7230", "where sagad answers")
	f.StringVar(&o.nats, "nats", "nats://127.0.0.1:4222", "its NATS server")
	f.StringVar(&o.namespace, "namespace", "default", "the sagas' namespace")
	f.StringVar(&o.orders, "orders", "", "orders, a JSON document a line, as in testdata/orders.jsonl; needs -stock (default: the bundled eight)")
	f.StringVar(&o.stock, "stock", "", "what the stock begins with, as in testdata/stock.jsonl")
	f.StringVar(&o.data, "data", "", "folder of the services' database (default: .sagad/example-order, beside the data of 'make dev')")
	f.StringVar(&o.idPrefix, "id-prefix", "order-", "what the sagas' ids begin with; the same again is the same orders again")
	f.IntVar(&o.concurrency, "concurrency", 16, "how many orders, or activities, are under way at once")
	f.DurationVar(&o.stepTimeout, "step-timeout", 10*time.Second, "how long one attempt of a step may take")
	f.DurationVar(&o.retryInitial, "retry-initial", time.Second, "the first back-off between two attempts")
	f.DurationVar(&o.ackWait, "ack-wait", 30*time.Second, "sagad's setting of the same name")
	f.DurationVar(&o.wait, "wait", 10*time.Minute, "how long to wait for the orders")
	f.StringVar(&o.order, "order", "", "with -role release: put the units reserved for this order back, as a person does before 'sagad ops resolve'")
	f.Float64Var(&o.faults.reject, "reject-rate", 0, "share of orders whose card is declined, 0 to 1")
	f.Float64Var(&o.faults.fail, "error-rate", 0, "share of attempts that fail before they do anything")
	f.Float64Var(&o.faults.timeout, "timeout-rate", 0, "share of attempts that hang past their deadline; half of them then do their work all the same")
	f.Float64Var(&o.faults.loseReply, "lose-reply-rate", 0, "share of attempts that do their work, but whose answer is lost")
	f.StringVar(&o.faults.breakUndo, "break-compensation", "", "a `step` whose compensation always fails: reserve or authorize")
	f.Uint64Var(&o.faults.seed, "seed", 1, "chooses which attempts are hit")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("%q is no flag", f.Arg(0))
	case (o.orders == "") != (o.stock == ""):
		return o, errors.New("-orders and -stock go together")
	case o.concurrency < 1 || o.concurrency > 1000:
		return o, fmt.Errorf("-concurrency %d: 1 to 1000", o.concurrency)
	case o.stepTimeout < 100*time.Millisecond || o.retryInitial < 10*time.Millisecond || o.wait <= 0 || o.ackWait <= 0:
		return o, errors.New("-step-timeout must be at least 100ms, -retry-initial at least 10ms, -wait and -ack-wait above 0")
	case o.faults.breakUndo != "" && o.faults.breakUndo != "reserve" && o.faults.breakUndo != "authorize":
		return o, fmt.Errorf("-break-compensation %s: only reserve and authorize have one", o.faults.breakUndo)
	case (o.role == "release") != (o.order != ""):
		return o, errors.New("-role release and -order go together")
	}
	for _, rate := range []float64{o.faults.reject, o.faults.fail, o.faults.timeout, o.faults.loseReply, o.faults.fail + o.faults.timeout + o.faults.loseReply} {
		if math.IsNaN(rate) || rate < 0 || rate > 1 {
			return o, errors.New("a rate is from 0 to 1, and those of errors, timeouts and lost replies together are not above 1")
		}
	}
	if o.data == "" {
		// With what `make dev` keeps: the two belong together, and `make clean` removes both.
		o.data = filepath.Join(".sagad", "example-order")
	}
	return o, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	orders, err := loadOrders(o.orders, o.idPrefix)
	if err != nil {
		return err
	}
	stock, err := loadStock(o.stock)
	if err != nil {
		return err
	}
	def := placeOrder(o.stepTimeout, o.retryInitial)
	switch o.role {
	case "all", "worker", "client":
		if err := register(ctx, o, def); err != nil {
			return err
		}
	}
	if o.role == "client" {
		return send(ctx, o, def, orders, stdout)
	}
	s, err := openServices(ctx, o.data, stock)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	switch o.role {
	case "worker":
		return work(ctx, o, s, stdout, stderr)
	case "check":
		return balanced(ctx, o, s, orders, stdout)
	case "release":
		return releaseByHand(ctx, s, o.order, stdout)
	}
	if err := sameStory(ctx, o, s, orders); err != nil {
		return err
	}
	return all(ctx, o, s, def, orders, stdout, stderr)
}

// sameStory refuses services and a sagad that don't belong together: the balance could never be right.
func sameStory(ctx context.Context, o options, s *Services, orders []Order) error {
	c, err := client.New(o.address, client.WithNamespace(o.namespace))
	if err != nil {
		return err
	}
	b, err := s.read(ctx)
	if err != nil {
		return err
	}
	known := func(id string) (bool, error) {
		_, err := client.Attach[Order, Receipt](c, nil, id).Get(ctx)
		if errors.Is(err, client.ErrNotFound) {
			return false, nil
		}
		return err == nil, err
	}
	for id := range b.orders {
		there, err := known(id)
		if err != nil {
			return err
		}
		if !there {
			return fmt.Errorf("the services' data in %s is about orders that this sagad doesn't know, such as %s. Was sagad started anew, with --ephemeral or other data? Then delete that folder, or choose another with -data", o.data, id)
		}
	}
	if len(b.orders) > 0 {
		return nil
	}
	there, err := known(orders[0].ID)
	if err == nil && there {
		err = fmt.Errorf("this sagad has seen order %s, but the services' data in %s is new: choose another -id-prefix, or the -data of that time", orders[0].ID, o.data)
	}
	return err
}

// all is everything in one process.
func all(ctx context.Context, o options, s *Services, def *saga.Definition[Order, Receipt], orders []Order, stdout, stderr io.Writer) error {
	working, stop := context.WithCancel(ctx)
	defer stop()
	serving, worked := make(chan struct{}), make(chan error, 1)
	go func() { worked <- work(working, o, s, announce(serving), stderr) }()
	select {
	case <-serving:
	case err := <-worked:
		return err
	}
	err := send(ctx, o, def, orders, stdout)
	stop()
	if err := errors.Join(err, <-worked); err != nil {
		return err
	}
	return balanced(ctx, o, s, orders, stdout)
}

// announce is a writer that closes a channel when something is written.
type announce chan struct{}

func (a announce) Write(b []byte) (int, error) {
	close(a)
	return len(b), nil
}

// register registers the definition; sagad must be there.
func register(ctx context.Context, o options, def *saga.Definition[Order, Receipt]) error {
	c, err := client.New(o.address, client.WithNamespace(o.namespace), client.WithRetryFor(3*time.Second))
	if err != nil {
		return err
	}
	_, err = client.Register(ctx, c, def)
	if errors.Is(err, client.ErrUnavailable) {
		return fmt.Errorf("no sagad answers at %s. Start it with `make dev` in another terminal, or say with -address where it is: %w", o.address, err)
	}
	return err
}

// balanced runs the check and prints it.
func balanced(ctx context.Context, o options, s *Services, orders []Order, stdout io.Writer) error {
	c, err := client.New(o.address, client.WithNamespace(o.namespace))
	if err != nil {
		return err
	}
	r, err := check(ctx, c, s, orders)
	if err != nil {
		return err
	}
	if !r.print(stdout) {
		return errOff
	}
	return nil
}

// releaseByHand puts an order's reserved units back without the saga: the person who does it then tells sagad.
func releaseByHand(ctx context.Context, s *Services, orderID string, stdout io.Writer) error {
	var key string
	err := s.db.QueryRowContext(ctx, "SELECT key FROM request WHERE order_id = ? AND step = 'reserve' AND state = 'done'", orderID).Scan(&key)
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("nothing is reserved for order %s", orderID)
	}
	if err != nil {
		return err
	}
	r := request{key: "by-hand/" + key, orderID: orderID, step: "reserve"}
	if err := undo(ctx, s, r, key, func(tx *sql.Tx, done Reserved) error { return release(ctx, tx, done.ReservationID) }); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "the units reserved for order %s are back in stock; now say so: sagad ops resolve %s ITEM --reason ... --evidence ...\n", orderID, orderID)
	return nil
}

// logger writes warnings and worse.
func logger(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn}))
}
