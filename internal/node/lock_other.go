//go:build !unix

package node

import "os"

// lockFolder only makes the folder: this system has no lock that ends with the process.
func lockFolder(dir string) (unlock func() error, err error) {
	return func() error { return nil }, os.MkdirAll(dir, 0o700)
}
