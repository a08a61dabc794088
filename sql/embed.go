// Package sql holds the schema and the queries of each database. Migrations are goose's; they are applied in order and
// never edited once released. Queries become Go code by sqlc (see sqlc.yaml at the root): change them here, then
// generate.
package sql

import "embed"

// Postgres holds postgres/migrations.
//
//go:embed postgres/migrations/*.sql
var Postgres embed.FS

// SQLite holds sqlite/migrations.
//
//go:embed sqlite/migrations/*.sql
var SQLite embed.FS
