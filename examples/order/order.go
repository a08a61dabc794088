package main

import (
	"bufio"
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
)

// Order is the saga's input. Money is in cents, discounts in whole percent of a line.
type Order struct {
	// ID is the saga's id, too: an order is placed once, however often it is sent.
	ID           string  `json:"id"`
	CustomerID   string  `json:"customer_id"`
	Card         string  `json:"card"`
	FreightCents int64   `json:"freight_cents"`
	ShipTo       Address `json:"ship_to"`
	Lines        []Line  `json:"lines"`
}

// Address is where an order goes.
type Address struct {
	Name       string `json:"name"`
	Street     string `json:"address"`
	City       string `json:"city"`
	Region     string `json:"region,omitempty"`
	PostalCode string `json:"postal_code,omitempty"`
	Country    string `json:"country"`
}

// Line is one product of an order.
type Line struct {
	ProductID       int64  `json:"product_id"`
	Product         string `json:"product"`
	UnitPriceCents  int64  `json:"unit_price_cents"`
	Quantity        int64  `json:"quantity"`
	DiscountPercent int64  `json:"discount_percent"`
}

// Product is what the stock starts with.
type Product struct {
	ProductID      int64  `json:"product_id"`
	Product        string `json:"product"`
	UnitPriceCents int64  `json:"unit_price_cents"`
	UnitsInStock   int64  `json:"units_in_stock"`
	UnitsOnOrder   int64  `json:"units_on_order"`
	Discontinued   bool   `json:"discontinued"`
}

// cents is what the line costs, its discount taken off and rounded half up to the cent.
func (l Line) cents() int64 {
	return (l.UnitPriceCents*l.Quantity*(100-l.DiscountPercent) + 50) / 100
}

// units sums the lines by product: an order may name one twice.
func units(lines []Line) map[int64]int64 {
	sum := make(map[int64]int64, len(lines))
	for _, l := range lines {
		sum[l.ProductID] += l.Quantity
	}
	return sum
}

//go:embed testdata/orders.jsonl testdata/stock.jsonl
var bundled embed.FS

// Limits of the files.
const (
	fileRowsMax  = 100_000
	fileRowBytes = 256 << 10
)

// fileOrder is an order as the files have it.
type fileOrder struct {
	OrderID      int64  `json:"order_id"`
	CustomerID   string `json:"customer_id"`
	Card         string `json:"card"`
	FreightCents int64  `json:"freight_cents"`
	ShipTo       struct {
		Name       string  `json:"name"`
		Street     string  `json:"address"`
		City       string  `json:"city"`
		Region     *string `json:"region"`
		PostalCode *string `json:"postal_code"`
		Country    string  `json:"country"`
	} `json:"ship_to"`
	Lines []Line `json:"lines"`
}

// loadOrders reads orders, one JSON document a line; the bundled ones if path is empty.
func loadOrders(path, idPrefix string) ([]Order, error) {
	rows, err := loadRows[fileOrder](path, "testdata/orders.jsonl")
	if err != nil {
		return nil, err
	}
	orders := make([]Order, len(rows))
	seen := make(map[int64]bool, len(rows))
	for i, r := range rows {
		if seen[r.OrderID] {
			return nil, fmt.Errorf("order %d stands twice in the file", r.OrderID)
		}
		seen[r.OrderID] = true
		orders[i] = Order{
			ID: idPrefix + strconv.FormatInt(r.OrderID, 10), CustomerID: r.CustomerID, Card: r.Card, FreightCents: r.FreightCents,
			ShipTo: Address{
				Name: r.ShipTo.Name, Street: r.ShipTo.Street, City: r.ShipTo.City, Country: r.ShipTo.Country,
				Region: orEmpty(r.ShipTo.Region), PostalCode: orEmpty(r.ShipTo.PostalCode),
			},
			Lines: r.Lines,
		}
		if orders[i].Card == "" {
			orders[i].Card = "card-of-" + r.CustomerID
		}
	}
	return orders, nil
}

// loadStock reads products, one JSON document a line; the bundled ones if path is empty.
func loadStock(path string) ([]Product, error) {
	return loadRows[Product](path, "testdata/stock.jsonl")
}

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func loadRows[T any](path, bundledPath string) ([]T, error) {
	var r io.Reader
	if path == "" {
		path = bundledPath
		data, err := bundled.ReadFile(bundledPath)
		if err != nil {
			return nil, err
		}
		r = bytes.NewReader(data)
	} else {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		r = f
	}
	var rows []T
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), fileRowBytes)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		if len(rows) == fileRowsMax {
			return nil, fmt.Errorf("%s: more than %d rows", path, fileRowsMax)
		}
		var row T
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, n, err)
		}
		rows = append(rows, row)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w (a row may have %d bytes)", path, err, fileRowBytes)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("%s: no rows", path)
	}
	return rows, nil
}
