package session

import (
	"errors"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Keys parses "role address...". Its error names every invalid argument.
func Keys(args []string) ([]instance.Key, error) {
	role, err := instance.ParseRole(args[0])
	if err != nil {
		return nil, cli.Wrong(err)
	}
	return Addresses(role, args[1:])
}

// Addresses parses the addresses of instances of a role, as Keys does.
func Addresses(role instance.Role, args []string) ([]instance.Key, error) {
	var keys []instance.Key
	var errs []error
	for _, s := range args {
		address, err := instance.ParseAddress(s)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		keys = append(keys, instance.Key{Role: role, Address: address})
	}
	if len(errs) > 0 {
		return nil, cli.Wrongf("%w; nothing was done", errors.Join(errs...))
	}
	return keys, nil
}
