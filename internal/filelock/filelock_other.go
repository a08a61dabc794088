//go:build !unix

package filelock

import "os"

// Lock isn't to be had on this system.
func Lock(string) (*os.File, error) { return nil, ErrUnsupported }
