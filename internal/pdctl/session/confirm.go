package session

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Confirms adds the flag --yes to a command that calls Confirm.
func (s *Session) Confirms(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVarP(&s.yes, "yes", "y", false, "do not ask, also if a role has no usable instance afterwards")
	return cmd
}

// Confirm asks the operator before a change that takes the last usable instance of a role out of
// use. Without a terminal and without --yes it returns an error of usage.
func (s *Session) Confirm(ctx context.Context, conn *Conn, keys []instance.Key) error {
	if s.yes || s.Dry.On {
		return nil
	}
	seen, _, err := s.Seen(ctx, conn)
	if err != nil {
		return err
	}
	taken := instance.Memberships(keys)
	for _, role := range instance.Roles() {
		usable := seen.Usable(role)
		if len(usable) == 0 || slices.ContainsFunc(usable, func(in *instance.Instance) bool { return !slices.Contains(taken, in.Key) }) {
			continue
		}
		return s.ask(ctx, fmt.Sprintf("%s would have no usable instance left", role))
	}
	return nil
}

// ConfirmGap asks the operator before a change that relies on incomplete data; gap describes it.
// With --yes or in a dry run it is a warning.
func (s *Session) ConfirmGap(ctx context.Context, gap string) error {
	if s.yes || s.Dry.On {
		fmt.Fprintf(s.Out.Stderr, "warning: %s\n", gap)
		return nil
	}
	return s.ask(ctx, gap)
}

// ask asks a question on the terminal.
func (s *Session) ask(ctx context.Context, effect string) error {
	if !isatty.IsTerminal(os.Stdin.Fd()) {
		return cli.Wrongf("%s; nothing was done. Repeat the command with --yes if that is intended", effect)
	}
	fmt.Fprintf(s.Out.Stderr, "%s. Continue? [y/N] ", effect)
	// An end of input is a no, and so is an interrupt.
	answer, _ := await(ctx, func() ([]byte, error) { return bufio.NewReader(os.Stdin).ReadBytes('\n') })
	if a := strings.ToLower(strings.TrimSpace(string(answer))); a != "y" && a != "yes" {
		return cli.Wrongf("%s; nothing was done", effect)
	}
	return nil
}
