package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sagad/sagad/internal/filelock"
)

// lockFolder makes a folder and keeps a second process out of it until unlock is called, or this process ends. Where the
// system has no such locks it only makes the folder.
func lockFolder(dir string) (unlock func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := filelock.Lock(filepath.Join(dir, "lock"))
	switch {
	case errors.Is(err, filelock.ErrUnsupported):
		return func() error { return nil }, nil
	case errors.Is(err, filelock.ErrHeld):
		return nil, fmt.Errorf("%s is in use by another process: stop that, or choose another folder", dir)
	case err != nil:
		return nil, err
	}
	return f.Close, nil
}
