package saga_test

import (
	"fmt"
	"time"

	"github.com/sagad/sagad/sdk/saga"
)

type (
	Payment struct {
		Cents int64 `json:"cents"`
	}
	Decision struct {
		Yes bool   `json:"yes"`
		Why string `json:"why,omitempty"`
	}
	Basket struct {
		Orders []Order `json:"orders"`
	}
	Invoice struct {
		Number string `json:"number"`
	}
)

var (
	Paid       = saga.Signal[Payment]{Name: "paid"}
	AskCarrier = saga.ReadOnly[struct{}, Score]{Name: "carrier.ask"}
	// BookTruck can be asked whether it happened, and never runs twice at once.
	BookTruck = saga.Compensatable[struct{}, Reserved]{Name: "carrier.book", Probe: true, Claimed: true}
)

func ExampleSleep() {
	fmt.Println(saga.Define[Order, any]("patient",
		saga.Sleep("cooling_off", 14*24*time.Hour),
		saga.SleepFor("a_little", "input.qty > 10 ? '2h' : '10m'"),
		saga.SleepUntil("monday", "'2026-06-01T08:00:00Z'"),
		saga.Read("score", ScoreRisk, saga.Fields{"card": "input.card"})).Verify())
	// Output: <nil>
}

// If nothing comes in time, the saga unwinds.
func ExampleWait() {
	fmt.Println(saga.Define[Order, any]("prepaid",
		saga.Do("reserve", ReserveStock, saga.Fields{"sku": "input.sku", "qty": "input.qty"}),
		saga.Wait("payment", Paid, saga.Timeout(72*time.Hour)),
		saga.Pivot("charge", ChargeCard, saga.Fields{"card": "input.card", "cents": "payment.cents"})).Verify())
	// Output: <nil>
}

// With two ways, only what runs when the signal was received reads its payload.
func ExampleWaitNode_Otherwise() {
	score := func(name string) saga.Node {
		return saga.Read(name, ScoreRisk, saga.Fields{"card": "input.card"})
	}
	fmt.Println(saga.Define[Order, any]("prepaid",
		saga.Wait("payment", Paid, saga.Timeout(72*time.Hour)).
			Then(saga.If("payment.cents < input.cents", score("too_little"))).
			Otherwise(score("reminder"))).Verify())
	// Output: <nil>
}

func ExampleApprove() {
	fmt.Println(saga.Define[Order, any]("approved",
		saga.Approve[Decision]("ok", saga.Title("'Sell ' + string(input.qty) + ' of ' + input.sku + '?'"), saga.Timeout(24*time.Hour)),
		saga.If("ok.yes",
			saga.Pivot("charge", ChargeCard, saga.Fields{"card": "input.card", "cents": "input.cents"}))).Verify())
	// Output: <nil>
}

func ExampleSwitch() {
	reserve := func(name string) saga.Node {
		return saga.Do(name, ReserveStock, saga.Fields{"sku": "input.sku", "qty": "input.qty"})
	}
	fmt.Println(saga.Define[Order, any]("sized",
		saga.Switch("packing",
			saga.Case("input.qty > 100", reserve("pallet")),
			saga.Case("input.qty > 10", reserve("box")),
			saga.Default(reserve("bag")))).Verify())
	// Output: <nil>
}

// A carrier is asked until it answers with a low risk, at most ten times.
func ExampleLoop() {
	fmt.Println(saga.Define[Order, any]("polling",
		saga.Loop("poll", 10,
			saga.Initial(saga.Fields{"risk": "100"}),
			saga.Read("ask", AskCarrier, saga.Fields{}),
			saga.Sleep("pause", time.Minute),
			saga.Next(saga.Fields{"risk": "ask.risk"}),
			saga.While("ask.risk > 50")),
		saga.Return(saga.Value("poll.rounds"))).Verify())
	// Output: <nil>
}

func ExampleMap() {
	fmt.Println(saga.Define[Basket, any]("basket",
		saga.Map("lines", "input.orders",
			saga.Do("reserve", ReserveStock, saga.Fields{"sku": "lines.item.sku", "qty": "lines.item.qty"}),
			saga.Window(8), saga.Tolerate(1),
			saga.Output(saga.Fields{"id": "reserve.id"})),
		saga.Return(saga.Value("lines.results.filter(r, r.ok).map(r, r.output.id)"))).Verify())
	// Output: <nil>
}

// The first warehouse that has it.
func ExampleAny() {
	reserve := func(name string) saga.BranchOf {
		return saga.Branch(
			saga.Do(name, ReserveStock, saga.Fields{"sku": "input.sku", "qty": "input.qty"}),
			saga.Output(saga.Fields{"id": name + ".id"}))
	}
	fmt.Println(saga.Define[Order, any]("anywhere",
		saga.Any("stock", reserve("north"), reserve("south")),
		saga.Return(saga.Value("stock[0].output.id"))).Verify())
	// Output: <nil>
}

func ExampleAtLeast() {
	score := func(name string) saga.Node {
		return saga.Read(name, ScoreRisk, saga.Fields{"card": "input.card"})
	}
	fmt.Println(saga.Define[Order, any]("quorum",
		saga.AtLeast(2, "votes", score("first"), score("second"), score("third")),
		saga.Return(saga.Value("votes.map(v, v.branch)"))).Verify())
	// Output: <nil>
}

func ExampleSavepoint() {
	reserve := func(name string) saga.Node {
		return saga.Do(name, ReserveStock, saga.Fields{"sku": "input.sku", "qty": "input.qty"})
	}
	fmt.Println(saga.Define[Order, any]("stubborn",
		saga.Savepoint("stock",
			saga.Body(reserve("preferred")),
			saga.AlternativeIf("stock.code == 'OUT_OF_STOCK'", reserve("second_best")),
			saga.Alternative()), // on without
		saga.Return(saga.Value("stock.path"))).Verify())
	// Output: <nil>
}

// The child's output has its definition's type.
func ExampleChild() {
	invoice := saga.Define[Order, Invoice]("invoice",
		saga.Do("number", ReserveStock, saga.Fields{"sku": "input.sku", "qty": "input.qty"}),
		saga.Return(saga.Fields{"number": "number.id"}))
	def := saga.Define[Order, any]("parent",
		saga.Child("invoice", invoice, saga.Value("input")),
		saga.Pivot("charge", ChargeCard, saga.Fields{"card": "input.card", "cents": "input.cents"}),
		saga.RetriableChild("mail", saga.Named("send-mail"), saga.Fields{"about": "invoice.nummer"}))
	for _, p := range saga.Problems(def.Verify()) {
		fmt.Println(p.Step, p.Field+":", p.Message)
	}
	// Output:
	// mail input.about: invoice has no field nummer; did you mean number?
}

func ExampleHeartbeat() {
	fmt.Println(saga.Define[Order, any]("slow",
		saga.Do("truck", BookTruck, saga.Fields{}, saga.Timeout(2*time.Hour), saga.Heartbeat(10*time.Second))).Verify())
	// Output: <nil>
}
