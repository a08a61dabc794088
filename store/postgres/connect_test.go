package postgres

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagad/sagad/internal/pgtest"
)

// A database that can't be reached is told in one line, with what to do.
func TestUnreachable(t *testing.T) {
	for dsn, want := range map[string]string{
		"postgres://u@127.0.0.1:1/db":                               "is it running? Check host and port of --store",
		strings.Replace(pgtest.Start(t), "postgres@", "nobody@", 1): "check user, password and database of --store",
	} {
		_, err := Open(t.Context(), Config{DSN: dsn})
		var failed *pgconn.ConnectError
		if !errors.As(err, &failed) || !strings.HasSuffix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want one line that ends with %q", err, want)
			continue
		}
		if dial := "connection refused"; strings.Count(err.Error(), dial) > 1 {
			t.Errorf("it says so twice: %v", err)
		}
	}
}
