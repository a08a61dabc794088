# sagad. `make` explains itself.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Packages with goroutines: their tests run under the race detector too. The simulations are single-threaded, and long.
RACE := ./engine ./engine/enginetest ./sagatest/... ./internal/natsbus/... ./internal/server/... ./sdk/... ./store/memory/... ./store/sqlite/... ./store/postgres/...
BUF := tools/buf/node_modules/.bin/buf
SQLC := go tool -modfile=tools/sqlc/go.mod sqlc
STATICCHECK := go tool -modfile=tools/lint/go.mod staticcheck

.PHONY: help
help: ## What there is to make
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

.PHONY: dev
dev: ## Start everything in one process: store, NATS, engine, API. Needs Go alone
	go run ./cmd/sagad dev

.PHONY: build
build: ## Build bin/sagad
	go build -trimpath -o bin/sagad ./cmd/sagad

.PHONY: test
test: setup check ## Install what tests need, check the code, run all tests
	go test -race -count=1 $(RACE)
	SAGAD_MUTANTS=all go test -count=1 -timeout 25m ./...

.PHONY: quick
quick: ## Tests without what takes long (no Postgres, no processes)
	go test -short ./statemachine/... ./compensation/... ./internal/expr/... ./internal/retry/... ./internal/wire/... ./engine/... ./store/memory/... ./sdk/...

.PHONY: sim
sim: ## Simulate a cluster for long: 20 times what the tests do. A failing seed prints how to run it again
	go test -count=1 -v -timeout 90m -run "TestSim$$" ./engine/enginetest/sim -sim.first=1000000 -sim.seeds=200000

.PHONY: mutants
mutants: ## Test the tests: plant bugs, one after the other, and see that the simulation finds them
	SAGAD_MUTANTS=all go test -count=1 -v -timeout 60m ./engine/enginetest/mutant

.PHONY: setup
setup: ## Install what tests and checks need: PostgreSQL from Debian's packages, buf from npm
	go run ./tools/setup

.PHONY: check
check: ## gofmt, vet, staticcheck, generated code, go.mod
	@test -z "$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go'))" || { gofmt -l $$(git ls-files -co --exclude-standard '*.go'); echo "run gofmt -w on these"; exit 1; }
	go vet ./...
	$(STATICCHECK) ./...
	go mod tidy -diff
	go run ./tools/fresh

.PHONY: generate
generate: ## Make the generated code anew: protobuf, sqlc
	@test -x $(BUF) || npm ci --ignore-scripts --no-audit --no-fund --prefix tools/buf
	$(BUF) lint
	$(BUF) generate
	$(SQLC) generate

.PHONY: bench
bench: setup ## Compare with a peer on a private Postgres; about 10 minutes, prints a table
	go run ./bench

.PHONY: acceptance
acceptance: setup ## Run orders while workers and engines are killed. SAGAD_ORDERS, SAGAD_STOCK: files in the form of examples/order
	go test -count=1 -v -timeout 60m ./internal/acceptance

.PHONY: clean
clean: ## Remove what was built, and the data of `make dev`
	rm -rf bin .sagad
