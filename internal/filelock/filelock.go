// Package filelock keeps a second process out of a folder.
package filelock

import "errors"

var (
	// ErrHeld: another process has the lock.
	ErrHeld = errors.New("held by another process")
	// ErrUnsupported: this system has no lock that ends with the process.
	ErrUnsupported = errors.New("this system has no file locks that end with the process")
)
