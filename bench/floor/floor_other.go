//go:build !linux

package floor

import (
	"context"
	"errors"
)

// errLinux is all that there is elsewhere.
var errLinux = errors.New("the floor needs Linux")

// Floor does not exist here.
type Floor struct{}

// Listen cannot.
func Listen(Options) (*Floor, error) { return nil, errLinux }

// Address is nowhere.
func (*Floor) Address() string { return "" }

// Serve cannot.
func (*Floor) Serve(context.Context) error { return errLinux }
