package postgres

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// unreachableError says in one line why the database can't be reached, and what to do.
type unreachableError struct {
	text  string
	cause error
}

func (e *unreachableError) Error() string { return e.text }

func (e *unreachableError) Unwrap() error { return e.cause }

// explained is err, or, if it is that no connection can be made, an error that says what to do. pgx tells every try, with and
// without TLS, on a line of its own, also if they failed alike.
func explained(err error) error {
	var failed *pgconn.ConnectError
	if !errors.As(err, &failed) {
		return err
	}
	var why []string
	for line := range strings.SplitSeq(failed.Unwrap().Error(), "\n") {
		if line = strings.TrimSpace(line); line != "" && !slices.Contains(why, line) {
			why = append(why, line)
		}
	}
	advice := "check user, password and database of --store"
	var dial *net.OpError
	if errors.As(err, &dial) {
		advice = "is it running? Check host and port of --store"
	}
	return &unreachableError{fmt.Sprintf("no connection to Postgres (user %s, database %s): %s: %s",
		failed.Config.User, failed.Config.Database, strings.Join(why, "; "), advice), err}
}
