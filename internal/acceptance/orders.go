package acceptance

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// Orders writes n orders and a stock, in the form of examples/order/testdata, and gives the files' paths. One seed gives
// one set. Most orders can be fulfilled; some name a discontinued product, ask for more than there could ever be, or for
// more than is left.
func Orders(dir string, n int, seed uint64) (orders, stock string, err error) {
	type line struct {
		ProductID       int    `json:"product_id"`
		Product         string `json:"product"`
		UnitPriceCents  int    `json:"unit_price_cents"`
		Quantity        int    `json:"quantity"`
		DiscountPercent int    `json:"discount_percent"`
	}
	type product struct {
		ProductID      int    `json:"product_id"`
		Product        string `json:"product"`
		UnitPriceCents int    `json:"unit_price_cents"`
		UnitsInStock   int    `json:"units_in_stock"`
		UnitsOnOrder   int    `json:"units_on_order"`
		Discontinued   bool   `json:"discontinued"`
	}
	type address struct {
		Name       string  `json:"name"`
		Address    string  `json:"address"`
		City       string  `json:"city"`
		Region     *string `json:"region"`
		PostalCode string  `json:"postal_code"`
		Country    string  `json:"country"`
	}
	type order struct {
		OrderID      int     `json:"order_id"`
		CustomerID   string  `json:"customer_id"`
		FreightCents int     `json:"freight_cents"`
		ShipTo       address `json:"ship_to"`
		Lines        []line  `json:"lines"`
	}
	rnd := rand.New(rand.NewPCG(seed, 1))
	pick := func(from ...string) string { return from[rnd.IntN(len(from))] }

	products := make([]product, 20)
	for i := range products {
		products[i] = product{
			ProductID:      i + 1,
			Product:        pick("Crème", "Smörgås", "Äpfel", "Jalapeño", "Źurek", "Tea", "味噌") + fmt.Sprintf(" № %d", i+1),
			UnitPriceCents: 99 + rnd.IntN(9_900),
			// The orders together want about 0.7 n units of each.
			UnitsInStock: 10 + n/2 + rnd.IntN(n),
			UnitsOnOrder: 10 * rnd.IntN(3),
			Discontinued: i%20 == 7,
		}
	}
	all := make([]any, n)
	for i := range all {
		o := order{
			OrderID:      10_001 + i,
			CustomerID:   fmt.Sprintf("CUST%d", rnd.IntN(40)),
			FreightCents: rnd.IntN(5_000),
			ShipTo: address{
				Name: pick("Łódź Handel", "Oy Ääniä Ab", "O'Neill & Sons", "株式会社"), Address: fmt.Sprintf("Straße %d", rnd.IntN(100)),
				City: pick("München", "São Paulo", "Århus", "Cork"), PostalCode: fmt.Sprint(10_000 + rnd.IntN(80_000)), Country: pick("DE", "BR", "DK", "IE"),
			},
		}
		if region := pick("", "", "Co. Cork"); region != "" {
			o.ShipTo.Region = &region
		}
		for range 1 + rnd.IntN(4) {
			p := products[rnd.IntN(len(products))]
			l := line{
				ProductID: p.ProductID, Product: p.Product, UnitPriceCents: p.UnitPriceCents - p.UnitPriceCents*rnd.IntN(3)/10,
				Quantity: 1 + rnd.IntN(10), DiscountPercent: []int{0, 0, 0, 5, 10, 15, 20, 25}[rnd.IntN(8)],
			}
			if rnd.IntN(40) == 0 {
				l.Quantity = p.UnitsInStock + p.UnitsOnOrder + 1
			}
			o.Lines = append(o.Lines, l)
		}
		all[i] = o
	}
	orders, stock = filepath.Join(dir, "orders.jsonl"), filepath.Join(dir, "stock.jsonl")
	if err := writeRows(orders, all); err != nil {
		return "", "", err
	}
	return orders, stock, writeRows(stock, products)
}

func writeRows[T any](path string, rows []T) error {
	var data []byte
	for _, r := range rows {
		line, err := json.Marshal(r)
		if err != nil {
			return err
		}
		data = append(append(data, line...), '\n')
	}
	return os.WriteFile(path, data, 0o600)
}
