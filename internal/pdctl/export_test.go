package pdctl

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

// Parse parses a command line as Run does, without running the command.
func Parse(args []string) error {
	s := session.New(io.Discard, io.Discard, func(string) (string, bool) { return "", false })
	cmd, rest, err := root(s).Find(args)
	if err != nil {
		return err
	}
	if !cmd.HasParent() && len(rest) > 0 && rest[0] != "--help" && rest[0] != "--version" {
		return fmt.Errorf("no command: %q", args)
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

// AllExamples returns the examples of every command.
func AllExamples() map[string]string {
	out := map[string]string{}
	root := root(session.New(io.Discard, io.Discard, nil))
	var add func(c *cobra.Command)
	add = func(c *cobra.Command) {
		if !c.HasSubCommands() || c.Example != "" {
			out[c.CommandPath()] = c.Example
		}
		for _, sub := range c.Commands() {
			if sub.Name() != "help" && sub.Name() != "completion" {
				add(sub)
			}
		}
	}
	add(root)
	return out
}
