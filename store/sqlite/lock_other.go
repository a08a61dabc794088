//go:build !unix

package sqlite

import (
	"errors"
	"os"
)

func lock(string) (*os.File, error) {
	return nil, errors.New("the SQLite store needs a Unix system, where a data folder can be locked; use Postgres here")
}
