package sqlite

import (
	"errors"
	"fmt"
	"os"

	"github.com/sagad/sagad/internal/filelock"
)

// lock takes the data folder for this process.
func lock(path string) (*os.File, error) {
	f, err := filelock.Lock(path)
	switch {
	case errors.Is(err, filelock.ErrHeld):
		return nil, fmt.Errorf("%w: %s is locked: stop the other sagad, or give this one another data folder", ErrInUse, path)
	case errors.Is(err, filelock.ErrUnsupported):
		return nil, fmt.Errorf("the SQLite store needs its data folder for itself, and %w; use Postgres here", err)
	}
	return f, err
}
