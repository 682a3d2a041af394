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

// Retype adds to an error what to type instead of args, where that is known. Secrets
// are masked: the line may go to a log.
func Retype(err error, args []string) error {
	if !errors.Is(err, errNoRole) {
		return err
	}
	var lines []string
	for _, role := range append(instance.Roles(), instance.Both) {
		lines = append(lines, "  "+shellLine(slices.Concat([]string{"agent", "--role", string(role)}, vllmargs.Masked(args))))
	}
	return fmt.Errorf("%w\nThat is\n%s", err, strings.Join(lines, "\nor\n"))
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
