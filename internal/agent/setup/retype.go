package setup

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/vllmargs"
)

// errNoRole is wrapped by the complaint that nothing says the role.
var errNoRole = errors.New("give --role prefill, --role decode, or --role both for an engine that is to stand in either (or PD_ROLE)")

// noAddressError is the error that nothing says the address of an engine that runs already.
type noAddressError struct{ etcdIsLocal bool }

func (e *noAddressError) Error() string {
	return "is missing: give the host:port by which proxies reach the engine"
}

// example returns an address that the agent accepts: with etcd on another machine it takes no
// loopback address.
func (e *noAddressError) example() string {
	if e.etcdIsLocal {
		return "127.0.0.1:8100"
	}
	return "10.0.0.7:8100"
}

// Retype adds to an error what to type instead of args, if nothing else is wrong than that
// role or address are missing. Secrets are masked: the line may go to a log.
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
		return "  " + shellLine(slices.Concat([]string{"agent"}, role, added, vllmargs.Masked(args)))
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
	if joined, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // this error itself
		var out []error
		for _, one := range joined.Unwrap() {
			out = append(out, flatten(one)...)
		}
		return out
	}
	return []error{err}
}

// shellLine is a command line as one types it into a shell.
func shellLine(argv []string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-"
	words := make([]string, len(argv))
	for i, a := range argv {
		if words[i] = a; a == "" || strings.Trim(a, plain) != "" {
			words[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}
