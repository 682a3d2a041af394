//go:build !linux

package awake

import "errors"

// Guard keeps the process awake until Stop.
type Guard struct{}

// Keep cannot.
func Keep() (*Guard, error) { return nil, errors.New("awake: only on Linux") }

// Stop has nothing to stop.
func (*Guard) Stop() error { return nil }

// Looks is nothing.
func (*Guard) Looks() uint64 { return 0 }
