package setup

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/engine/vllmargs"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// errNoRole is wrapped by the error about a missing role.
var errNoRole = errors.New("set --role prefill, --role decode, or --role both for an engine in both roles (or PD_ROLE)")

// noAddressError is the error about a missing address of an engine that already runs.
type noAddressError struct{ etcdIsLocal bool }

func (e *noAddressError) Error() string {
	return "is missing: set it to the host:port by which proxies reach the engine"
}

// example returns an address that the agent accepts; with etcd on another machine that is not
// a loopback address.
func (e *noAddressError) example() string {
	if e.etcdIsLocal {
		return "127.0.0.1:8100"
	}
	return "10.0.0.7:8100"
}

// Retype adds command lines that work to an error about args, if only role or address are
// missing. It masks secrets, because the error may be logged.
func Retype(err error, args []string) error {
	var added []string
	noRole, intro := false, "That is"
	for _, one := range flatten(err) {
		var noAddress *noAddressError
		switch {
		case errors.Is(one, errNoRole):
			noRole = true
		case errors.As(one, &noAddress):
			added = []string{"--address", noAddress.example()}
			intro = "For an engine at " + noAddress.example() + " that is"
		default:
			return err
		}
	}
	line := func(role ...string) string {
		words := slices.Concat([]string{"pdmesh-agent"}, role, added, vllmargs.Masked(args))
		for i, w := range words {
			words[i] = cli.ShellWord(w)
		}
		return "  " + strings.Join(words, " ")
	}
	lines := []string{line()}
	if noRole {
		lines = nil
		for _, role := range append(instance.Roles(), instance.Both) {
			lines = append(lines, line("--role", string(role)))
		}
	}
	return fmt.Errorf("%w\n%s\n%s", err, intro, strings.Join(lines, "\nor\n"))
}

// flatten returns the errors that errors.Join has joined.
func flatten(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []error
		for _, one := range joined.Unwrap() {
			out = append(out, flatten(one)...)
		}
		return out
	}
	return []error{err}
}
