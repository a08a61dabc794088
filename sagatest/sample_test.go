package sagatest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/sagad/sagad/sagatest"
	"github.com/sagad/sagad/sdk/saga"
	"github.com/sagad/sagad/sdk/worker"
)

// books are a service's: numbers by name, and what was done under which key. They are what a database would be, in a test.
type books struct {
	mu      sync.Mutex
	numbers map[string]int
	// answers by the action's key; undone are keys whose action was undone, or never may happen any more.
	answers map[string]json.RawMessage
	undone  map[string]bool
	counter int
}

func newBooks(numbers map[string]int) *books {
	own := map[string]int{}
	maps.Copy(own, numbers)
	return &books{numbers: own, answers: map[string]json.RawMessage{}, undone: map[string]bool{}}
}

// tx is a transaction: all of f or, after an error, nothing.
func (b *books) tx(ctx context.Context, f func() error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	numbers, answers, undone := maps.Clone(b.numbers), maps.Clone(b.answers), maps.Clone(b.undone)
	err := f()
	if err != nil {
		b.numbers, b.answers, b.undone = numbers, answers, undone
	}
	return err
}

// add is a transaction that changes one number.
func (b *books) add(ctx context.Context, name string, n int) error {
	return b.tx(ctx, func() error { b.numbers[name] += n; return nil })
}

// once does an effect once for its key, unless that was undone before, and gives a repeat the same answer.
func once[Out any](ctx context.Context, b *books, key string, effect func() (Out, error)) (out Out, err error) {
	err = b.tx(ctx, func() error {
		if before, ok := b.answers[key]; ok {
			return json.Unmarshal(before, &out)
		}
		if b.undone[key] {
			return saga.Reject("UNDONE", "its undo came first")
		}
		if out, err = effect(); err != nil {
			return err
		}
		b.answers[key], err = json.Marshal(out)
		return err
	})
	return out, err
}

// undo takes an effect back, once, and leaves a mark.
func undo[Out any](ctx context.Context, b *books, key string, reverse func(Out)) error {
	err := b.tx(ctx, func() error {
		before, ok := b.answers[key]
		again := b.undone[key]
		b.undone[key] = true
		switch {
		case !ok:
			return nil
		case again:
			return nil
		}
		var out Out
		if err := json.Unmarshal(before, &out); err != nil {
			return err
		}
		reverse(out)
		return nil
	})
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.answers[key]; !ok {
		return saga.NothingToUndo
	}
	return nil
}

// keep holds the books to what they must be at the saga's end: as they were, or as after all of it.
func (b *books) keep(before, after map[string]int) func(testing.TB, *sagatest.Saga) {
	return func(t testing.TB, s *sagatest.Saga) {
		b.mu.Lock()
		defer b.mu.Unlock()
		want := before
		if s.Status == sagatest.Completed {
			want = after
		}
		for _, m := range []map[string]int{b.numbers, want} {
			for name := range m {
				if b.numbers[name] != want[name] {
					t.Errorf("%s is %d, want %d", name, b.numbers[name], want[name])
				}
			}
		}
	}
}

type (
	itemIn struct {
		SKU string `json:"sku"`
		Qty int    `json:"qty"`
	}
	moneyIn struct {
		Account string `json:"account"`
		Cents   int    `json:"cents"`
	}
	refOut struct {
		Ref string `json:"ref"`
	}
	none struct{}
)

// order reserves stock, holds money, takes it, ships and tells.
type orderIn struct {
	SKU     string `json:"sku"`
	Qty     int    `json:"qty"`
	Account string `json:"account"`
	Cents   int    `json:"cents"`
}

var (
	reserveStock = saga.Compensatable[itemIn, refOut]{Name: "stock.reserve"}
	holdMoney    = saga.Compensatable[moneyIn, refOut]{Name: "money.hold"}
	takeMoney    = saga.Activity[moneyIn, none]{Name: "money.take"}
	sendMail     = saga.Activity[moneyIn, none]{Name: "mail.send"}

	placeOrder = saga.Define[orderIn, refOut]("sample-order",
		saga.Do("reserve", reserveStock, saga.Fields{"sku": "input.sku", "qty": "input.qty"}),
		saga.Do("hold", holdMoney, saga.Fields{"account": "input.account", "cents": "input.cents"}),
		saga.Pivot("take", takeMoney, saga.Fields{"account": "input.account", "cents": "input.cents"}),
		saga.Retriable("mail", sendMail, saga.Fields{"account": "input.account", "cents": "input.cents"}),
		saga.Return(saga.Fields{"ref": "reserve.ref"}))

	oneOrder    = orderIn{SKU: "tea", Qty: 2, Account: "ann", Cents: 500}
	orderBefore = map[string]int{"tea": 5, "ann": 1000}
	orderAfter  = map[string]int{"tea": 3, "ann": 500, "taken": 500, "mails": 1}
)

// limit is what no hold may be above.
const limit = 10_000

// orderWorld is the order's world with a bug, or with none if it is empty.
func orderWorld(bug string) sagatest.World {
	return func(testing.TB) (func(*worker.Worker), func(testing.TB, *sagatest.Saga)) {
		b := newBooks(orderBefore)
		keyOf := func(ctx context.Context) string {
			switch bug {
			case "key with the attempt":
				return fmt.Sprint(saga.IdempotencyKey(ctx), "#", saga.Attempt(ctx))
			case "counter as key":
				b.mu.Lock()
				defer b.mu.Unlock()
				b.counter++
				return fmt.Sprint("request-", b.counter)
			}
			return saga.IdempotencyKey(ctx)
		}
		reserve := func(ctx context.Context, in itemIn) (refOut, error) {
			ref := refOut{"reservation of " + in.SKU}
			switch bug {
			case "action isn't idempotent":
				return ref, b.add(ctx, in.SKU, -in.Qty)
			case "error swallowed":
				_ = b.add(ctx, "log", 0)
				out, err := once(ctx, b, saga.IdempotencyKey(ctx), func() (refOut, error) { b.numbers[in.SKU] -= in.Qty; return ref, nil })
				if err != nil {
					return ref, nil // it has surely worked
				}
				return out, nil
			case "attempt number read":
				if saga.Attempt(ctx) > 1 {
					return ref, nil // the first one did it
				}
			case "output too large":
				ref.Ref = strings.Repeat("tea", 100_000)
			case "other answer to a repeat":
				if _, err := once(ctx, b, saga.IdempotencyKey(ctx), func() (refOut, error) { b.numbers[in.SKU] -= in.Qty; return ref, nil }); err != nil {
					return ref, err
				}
				b.mu.Lock()
				defer b.mu.Unlock()
				b.counter++
				return refOut{fmt.Sprint("reservation ", b.counter)}, nil
			case "partial effect forgotten", "partial effect":
				// Two services, one after the other.
				key := saga.IdempotencyKey(ctx)
				if _, err := once(ctx, b, key+"/stock", func() (refOut, error) { b.numbers[in.SKU] -= in.Qty; return ref, nil }); err != nil {
					return ref, err
				}
				return once(ctx, b, key, func() (refOut, error) { b.numbers["labels"]++; return ref, nil })
			case "no tombstone":
				key := saga.IdempotencyKey(ctx)
				err := b.tx(ctx, func() error {
					if b.answers[key] == nil {
						b.numbers[in.SKU] -= in.Qty
						b.answers[key] = []byte(`{}`)
					}
					return nil
				})
				return ref, err
			}
			return once(ctx, b, keyOf(ctx), func() (refOut, error) {
				b.numbers[in.SKU] -= in.Qty
				return ref, nil
			})
		}
		release := func(ctx context.Context, u saga.Undo[itemIn, refOut]) error {
			back := func(refOut) { b.numbers[u.Input.SKU] += u.Input.Qty }
			switch bug {
			case "undo missing":
				return saga.NothingToUndo
			case "undo lies":
				return b.add(ctx, "released", 0)
			case "undo needs the output":
				if u.Output.Ref == "" {
					return errors.New("what reservation?")
				}
			case "undo refuses without the output":
				if u.Output == nil {
					return errors.New("what reservation?")
				}
			case "undo isn't idempotent":
				err := undo(ctx, b, u.ActionKey, func(refOut) {})
				if err != nil {
					return err
				}
				return b.add(ctx, u.Input.SKU, u.Input.Qty)
			case "undo undoes too much":
				return b.tx(ctx, func() error {
					if !b.undone[u.ActionKey] {
						b.undone[u.ActionKey] = true
						back(refOut{})
					}
					return nil
				})
			case "undo keyed by the attempt":
				return b.tx(ctx, func() error {
					if b.answers[u.ActionKey] == nil {
						b.undone[u.ActionKey] = true
						return saga.NothingToUndo
					}
					key := fmt.Sprint(saga.IdempotencyKey(ctx), "#", saga.Attempt(ctx))
					if !b.undone[key] {
						b.undone[key] = true
						back(refOut{})
					}
					return nil
				})
			case "partial effect forgotten":
				return undo(ctx, b, u.ActionKey, func(refOut) { b.numbers["labels"]--; b.numbers[u.Input.SKU] += u.Input.Qty })
			case "partial effect":
				first := undo(ctx, b, u.ActionKey, func(refOut) { b.numbers["labels"]-- })
				if first != nil && !errors.Is(first, saga.NothingToUndo) {
					return first
				}
				if err := undo(ctx, b, u.ActionKey+"/stock", back); err != nil && !errors.Is(err, saga.NothingToUndo) {
					return err
				}
				return nil
			case "no tombstone":
				return b.tx(ctx, func() error {
					if b.answers[u.ActionKey] == nil {
						return nil
					}
					if !b.undone[u.ActionKey] {
						b.undone[u.ActionKey] = true
						back(refOut{})
					}
					return nil
				})
			case "key with the attempt", "counter as key":
				return b.tx(ctx, func() error {
					for key := range b.answers {
						if !b.undone[key] && (strings.HasPrefix(key, u.ActionKey) || strings.HasPrefix(key, "request-")) {
							b.undone[key] = true
							back(refOut{})
							break
						}
					}
					return nil
				})
			case "action isn't idempotent":
				return b.tx(ctx, func() error {
					if !b.undone[u.ActionKey] && b.numbers[u.Input.SKU] < orderBefore[u.Input.SKU] {
						b.undone[u.ActionKey] = true
						back(refOut{})
					}
					return nil
				})
			}
			return undo(ctx, b, u.ActionKey, back)
		}
		hold := func(ctx context.Context, in moneyIn) (refOut, error) {
			switch bug {
			case "rejects after its effect":
				if err := b.add(ctx, in.Account, -in.Cents); err != nil {
					return refOut{}, err
				}
				b.mu.Lock()
				defer b.mu.Unlock()
				if b.numbers[in.Account] < 0 {
					return refOut{}, saga.Reject("NO_MONEY", "not enough")
				}
				return refOut{"hold"}, nil
			case "effect before the check":
				if _, err := once(ctx, b, saga.IdempotencyKey(ctx), func() (refOut, error) { b.numbers[in.Account] -= in.Cents; return refOut{"hold"}, nil }); err != nil {
					return refOut{}, err
				}
				if in.Cents > limit {
					return refOut{}, saga.Reject("LIMIT", "too much")
				}
				return refOut{"hold"}, nil
			}
			return once(ctx, b, saga.IdempotencyKey(ctx), func() (refOut, error) {
				switch {
				case in.Cents > limit:
					return refOut{}, saga.Reject("LIMIT", "too much")
				case b.numbers[in.Account] < in.Cents:
					return refOut{}, saga.Reject("NO_MONEY", "not enough")
				}
				b.numbers[in.Account] -= in.Cents
				return refOut{"hold"}, nil
			})
		}
		unhold := func(ctx context.Context, u saga.Undo[moneyIn, refOut]) error {
			if bug == "answers from memory" {
				// What it answered once it answers for ever.
				nothing := false
				err := b.tx(ctx, func() error {
					if b.undone["asked "+u.ActionKey] {
						nothing = true
						return nil
					}
					b.undone["asked "+u.ActionKey] = true
					if b.answers[u.ActionKey] == nil {
						nothing = true
						return nil
					}
					b.numbers[u.Input.Account] += u.Input.Cents
					return nil
				})
				if err == nil && nothing {
					return saga.NothingToUndo
				}
				return err
			}
			return undo(ctx, b, u.ActionKey, func(refOut) { b.numbers[u.Input.Account] += u.Input.Cents })
		}
		take := func(ctx context.Context, in moneyIn) (none, error) {
			return once(ctx, b, saga.IdempotencyKey(ctx), func() (none, error) { b.numbers["taken"] += in.Cents; return none{}, nil })
		}
		mail := func(ctx context.Context, in moneyIn) (none, error) {
			key := saga.IdempotencyKey(ctx)
			switch bug {
			case "retriable rejects":
				b.mu.Lock()
				sent := b.answers[key] != nil
				b.mu.Unlock()
				if sent {
					return none{}, saga.Reject("SENT", "it has been sent")
				}
			case "mail sent twice":
				return none{}, b.add(ctx, "mails", 1)
			}
			return once(ctx, b, key, func() (none, error) { b.numbers["mails"]++; return none{}, nil })
		}
		after := maps.Clone(orderAfter)
		if strings.HasPrefix(bug, "partial effect") {
			after["labels"] = 1
		}
		return func(w *worker.Worker) {
			if bug == "answer of another contract" {
				type oldOut struct {
					Reference int `json:"reference"`
				}
				old := saga.Compensatable[itemIn, oldOut]{Name: reserveStock.Name}
				worker.Compensatable(w, old,
					func(ctx context.Context, in itemIn) (oldOut, error) { return oldOut{7}, nil },
					func(ctx context.Context, u saga.Undo[itemIn, oldOut]) error { return nil })
			} else {
				worker.Compensatable(w, reserveStock, reserve, release)
			}
			worker.Compensatable(w, holdMoney, hold, unhold)
			worker.Activity(w, takeMoney, take)
			worker.Activity(w, sendMail, mail)
		}, b.keep(orderBefore, after)
	}
}

// transfer takes money here and brings it there.
type transferIn struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Cents int    `json:"cents"`
}

var (
	withdraw = saga.Compensatable[transferIn, none]{Name: "account.withdraw"}
	deposit  = saga.Compensatable[transferIn, none]{Name: "account.deposit"}
	confirm  = saga.Activity[transferIn, none]{Name: "transfer.confirm"}

	transferMoney = saga.Define[transferIn, any]("sample-transfer",
		saga.Do("withdraw", withdraw, saga.Value("input")),
		saga.Do("deposit", deposit, saga.Value("input")),
		saga.Pivot("confirm", confirm, saga.Value("input")))
)

func transferWorld(bug string) sagatest.World {
	return func(testing.TB) (func(*worker.Worker), func(testing.TB, *sagatest.Saga)) {
		before := map[string]int{"a": 100, "b": 100}
		b := newBooks(before)
		move := func(ctx context.Context, account string, cents int) (none, error) {
			return once(ctx, b, saga.IdempotencyKey(ctx), func() (none, error) { b.numbers[account] += cents; return none{}, nil })
		}
		back := func(ctx context.Context, key, account string, cents int) error {
			return undo(ctx, b, key, func(none) { b.numbers[account] += cents })
		}
		return func(w *worker.Worker) {
			worker.Compensatable(w, withdraw,
				func(ctx context.Context, in transferIn) (none, error) { return move(ctx, in.From, -in.Cents) },
				func(ctx context.Context, u saga.Undo[transferIn, none]) error {
					account := u.Input.From
					if bug == "input swapped" {
						account = u.Input.To
					}
					return back(ctx, u.ActionKey, account, u.Input.Cents)
				})
			worker.Compensatable(w, deposit,
				func(ctx context.Context, in transferIn) (none, error) { return move(ctx, in.To, in.Cents) },
				func(ctx context.Context, u saga.Undo[transferIn, none]) error {
					return back(ctx, u.ActionKey, u.Input.To, -u.Input.Cents)
				})
			worker.Activity(w, confirm, func(ctx context.Context, in transferIn) (none, error) { return move(ctx, "confirmed", 1) })
		}, b.keep(before, map[string]int{"a": 70, "b": 130, "confirmed": 1})
	}
}

// booking books a flight and a hotel at the same time, then a car.
type tripIn struct {
	Trip string `json:"trip"`
}

var (
	bookFlight = saga.Compensatable[tripIn, refOut]{Name: "flight.book"}
	bookHotel  = saga.Compensatable[tripIn, refOut]{Name: "hotel.book"}
	bookCar    = saga.Compensatable[tripIn, refOut]{Name: "car.book"}
	issue      = saga.Activity[tripIn, none]{Name: "ticket.issue"}

	bookTrip = saga.Define[tripIn, any]("sample-booking",
		saga.Parallel(saga.Name("both"),
			saga.Do("flight", bookFlight, saga.Value("input")),
			saga.Do("hotel", bookHotel, saga.Value("input"))),
		saga.Do("car", bookCar, saga.Value("input")),
		saga.Pivot("issue", issue, saga.Value("input")))
)

func bookingWorld(bug string) sagatest.World {
	return func(testing.TB) (func(*worker.Worker), func(testing.TB, *sagatest.Saga)) {
		before := map[string]int{"flight": 9, "hotel": 9, "car": 9}
		b := newBooks(before)
		book := func(what string) func(context.Context, tripIn) (refOut, error) {
			return func(ctx context.Context, in tripIn) (refOut, error) {
				key := saga.IdempotencyKey(ctx)
				if bug == "branches share a key" && what != "car" {
					key = saga.SagaID(ctx)
				}
				return once(ctx, b, key, func() (refOut, error) { b.numbers[what]--; return refOut{what}, nil })
			}
		}
		cancel := func(what string) func(context.Context, saga.Undo[tripIn, refOut]) error {
			return func(ctx context.Context, u saga.Undo[tripIn, refOut]) error {
				if bug == "undo order assumed" && what == "hotel" {
					b.mu.Lock()
					closed := b.undone["trip "+u.Input.Trip]
					b.mu.Unlock()
					if closed {
						return nil // the trip is gone, and all that belongs to it
					}
				}
				key := u.ActionKey
				if bug == "branches share a key" && what != "car" {
					key = saga.SagaID(ctx)
				}
				return undo(ctx, b, key, func(refOut) {
					b.numbers[what]++
					if what == "flight" {
						b.undone["trip "+u.Input.Trip] = true
					}
				})
			}
		}
		return func(w *worker.Worker) {
			worker.Compensatable(w, bookFlight, book("flight"), cancel("flight"))
			worker.Compensatable(w, bookHotel, book("hotel"), cancel("hotel"))
			worker.Compensatable(w, bookCar, book("car"), cancel("car"))
			worker.Activity(w, issue, func(ctx context.Context, in tripIn) (none, error) {
				return once(ctx, b, saga.IdempotencyKey(ctx), func() (none, error) { b.numbers["tickets"]++; return none{}, nil })
			})
		}, b.keep(before, map[string]int{"flight": 8, "hotel": 8, "car": 8, "tickets": 1})
	}
}

// moving changes an address, which needs the old one to be undone, and tells the authorities, who can be asked.
type movingIn struct {
	Person string `json:"person"`
	Street int    `json:"street"`
}

type moved struct {
	Old int `json:"old"`
}

var (
	setAddress = saga.Compensatable[movingIn, moved]{Name: "address.set"}
	tellState  = saga.Activity[movingIn, none]{Name: "state.tell", Probe: true}

	move = saga.Define[movingIn, any]("sample-moving",
		saga.Do("address", setAddress, saga.Value("input")),
		saga.Pivot("tell", tellState, saga.Value("input")))
)

func movingWorld(bug string) sagatest.World {
	return func(testing.TB) (func(*worker.Worker), func(testing.TB, *sagatest.Saga)) {
		before := map[string]int{"ann": 7}
		b := newBooks(before)
		set := func(ctx context.Context, in movingIn) (moved, error) {
			key := saga.IdempotencyKey(ctx)
			var was moved
			var done bool
			err := b.tx(ctx, func() error {
				was.Old = b.numbers[in.Person]
				if doc, ok := b.answers[key]; ok {
					done = true
					return json.Unmarshal(doc, &was)
				}
				return nil
			})
			if err != nil || done {
				return was, err
			}
			if bug != "checkpoint forgotten" {
				if err := saga.Checkpoint(ctx, was); err != nil {
					return was, err
				}
			}
			// The address service keeps no notes of what was.
			return was, b.tx(ctx, func() error {
				if b.undone[key] {
					return saga.Reject("UNDONE", "its undo came first")
				}
				b.numbers[in.Person], b.answers[key] = in.Street, fmt.Appendf(nil, `{"old":%d}`, was.Old)
				return nil
			})
		}
		reset := func(ctx context.Context, u saga.Undo[movingIn, moved]) error {
			was := moved{-1}
			if u.Output != nil {
				was = *u.Output
			} else if _, err := u.Checkpoint.Decode(&was); err != nil {
				return err
			}
			return b.tx(ctx, func() error {
				if !b.undone[u.ActionKey] && b.numbers[u.Input.Person] == u.Input.Street && was.Old >= 0 {
					b.numbers[u.Input.Person] = was.Old
				}
				b.undone[u.ActionKey] = true
				return nil
			})
		}
		tell := func(ctx context.Context, in movingIn) (none, error) {
			return once(ctx, b, saga.IdempotencyKey(ctx), func() (none, error) { b.numbers["told"]++; return none{}, nil })
		}
		told := func(ctx context.Context, in movingIn) (found saga.ProbeAnswer[none], err error) {
			err = b.tx(ctx, func() error {
				if b.answers[saga.ActionKey(ctx)] != nil {
					found = saga.Happened(none{})
					return nil
				}
				if bug != "probe doesn't hold its word" {
					b.undone[saga.ActionKey(ctx)] = true
				}
				found = saga.DidNotHappen[none]()
				return nil
			})
			return found, err
		}
		return func(w *worker.Worker) {
			worker.Compensatable(w, setAddress, set, reset)
			worker.Activity(w, tellState, tell, worker.Probe(told))
		}, b.keep(before, map[string]int{"ann": 9, "told": 1})
	}
}

func unwindMoving(t testing.TB, bug string) {
	sagatest.Unwind(t, move, movingIn{"ann", 9}, movingWorld(bug))
}

// sample is a saga with a bug that can be switched on.
type sample struct {
	bug string
	// good is the bug's name in a world of the same shape without it; empty: none.
	good string
	run  string // of runs
	// finds is in the finding; in is the run that finds it.
	finds, in string
}

// runs are the ways to test the samples, by name.
var runs = map[string]func(t testing.TB, bug string){
	"unwind order": unwindOrder(oneOrder), "unwind poor order": unwindOrder(poor), "unwind greedy order": unwindOrder(greedy), "repeat order": repeatOrder,
	"unwind transfer": unwindTransfer, "unwind trip": unwindTrip, "unwind moving": unwindMoving,
}

func unwindOrder(input orderIn) func(testing.TB, string) {
	return func(t testing.TB, bug string) { sagatest.Unwind(t, placeOrder, input, orderWorld(bug)) }
}

func repeatOrder(t testing.TB, bug string) {
	sagatest.Repeat(t, placeOrder, oneOrder, orderWorld(bug))
}

func unwindTransfer(t testing.TB, bug string) {
	sagatest.Unwind(t, transferMoney, transferIn{"a", "b", 30}, transferWorld(bug))
}

func unwindTrip(t testing.TB, bug string) {
	sagatest.Unwind(t, bookTrip, tripIn{"rome"}, bookingWorld(bug))
}

var (
	poor   = orderIn{SKU: "tea", Qty: 2, Account: "ann", Cents: 5000}
	greedy = orderIn{SKU: "tea", Qty: 2, Account: "ann", Cents: limit + 1}
)

var samples = []sample{
	{bug: "undo missing", run: "unwind order", finds: "look at the compensation of reserve", in: "hold/rejected"},
	{bug: "undo lies", run: "unwind order", finds: "look at the compensation of reserve", in: "hold/rejected"},
	{bug: "undo needs the output", run: "unwind order", finds: "the compensation of reserve panics if the action's output isn't known", in: "reserve/"},
	{bug: "undo refuses without the output", run: "unwind order", finds: "the compensation of reserve can't do without the action's output", in: "reserve/"},
	{bug: "key with the attempt", run: "unwind order", finds: "never holds the attempt", in: "reserve/error-after"},
	{bug: "counter as key", run: "repeat order", finds: "tea is 1, want 3", in: "duplicate/always"},
	{bug: "action isn't idempotent", run: "repeat order", finds: "tea is 1, want 3", in: "duplicate/always"},
	{bug: "undo isn't idempotent", run: "unwind order", finds: "undo once per u.ActionKey", in: "reserve/undo/"},
	{bug: "undo isn't idempotent", run: "repeat order", finds: "tea is", in: "duplicate/always/"},
	{bug: "undo keyed by the attempt", run: "unwind order", finds: "undo once per u.ActionKey", in: "reserve/undo/"},
	{bug: "undo undoes too much", run: "unwind order", finds: "nothing was done: the compensation is called all the same", in: "reserve/unknown-not-done/always"},
	{bug: "rejects after its effect", run: "unwind poor order", finds: "step hold was rejected by its own handler", in: "undisturbed"},
	{bug: "effect before the check", run: "unwind greedy order", finds: "step hold was rejected by its own handler", in: "undisturbed"},
	{bug: "partial effect forgotten", good: "partial effect", run: "unwind order", finds: "the handler ended halfway", in: "reserve/interrupted-2/always"},
	{bug: "no tombstone", run: "unwind order", finds: "a tombstone", in: "reserve/late/always"},
	{bug: "answers from memory", run: "unwind order", finds: "ann is", in: "hold/late/always"},
	{bug: "input swapped", run: "unwind transfer", finds: "look at the compensation of withdraw", in: "deposit/rejected"},
	{bug: "error swallowed", run: "unwind order", finds: "never answer with success after an error", in: "reserve/interrupted-"},
	{bug: "attempt number read", run: "unwind order", finds: "tea is 5, want 3", in: "reserve/"},
	{bug: "undo order assumed", run: "unwind trip", finds: "No action or compensation may count on what another branch has done or undone", in: "reversed/car/rejected"},
	{bug: "branches share a key", run: "unwind trip", finds: "handlers that share a key", in: "undisturbed"},
	{bug: "checkpoint forgotten", run: "unwind moving", finds: "ann is 9, want 7", in: "address/"},
	{bug: "probe doesn't hold its word", run: "unwind moving", finds: "and so must a probe", in: "tell/late/always"},
	{bug: "retriable rejects", run: "repeat order", finds: "step mail is retriable, and may not reject", in: "duplicate/always"},
	{bug: "mail sent twice", run: "unwind order", finds: "mails is 2, want 1", in: "mail/error-after"},
	{bug: "output too large", run: "unwind order", finds: "RESULT_NOT_STORABLE", in: "undisturbed"},
	{bug: "answer of another contract", run: "unwind order", finds: "RESULT_INVALID", in: "undisturbed"},
	{bug: "other answer to a repeat", run: "repeat order", finds: "answers one request (the same idempotency key) with two outputs", in: "duplicate/always"},
}

// TestSamples: each bug is found, where and as it should be, and without it nothing is.
func TestSamples(t *testing.T) {
	type good struct{ run, world string }
	clean := map[good]bool{}
	for _, s := range samples {
		t.Run(strings.ReplaceAll(s.bug, " ", "_"), func(t *testing.T) {
			rec := sagatest.Record(t, func(t testing.TB) { runs[s.run](t, s.bug) })
			if !rec.Failed || !strings.Contains(rec.Text, s.finds) || !strings.Contains(rec.Text, `sagatest.Only("`+s.in) {
				t.Errorf("want a finding with %q in run %s..., got\n%s", s.finds, s.in, rec.Text)
			}
			if g := (good{s.run, s.good}); !clean[g] {
				clean[g] = true
				if rec := sagatest.Record(t, func(t testing.TB) { runs[s.run](t, s.good) }); rec.Failed {
					t.Errorf("without the bug there are findings:\n%s", rec.Text)
				}
			}
		})
	}
}
