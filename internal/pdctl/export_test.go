package pdctl

import (
	"fmt"
	"io"
)

// Parse reads a command line as Run does, and does nothing.
func Parse(args []string) error {
	a := &app{stdout: io.Discard, stderr: io.Discard, lookupEnv: func(string) (string, bool) { return "", false }}
	cmd, rest, err := a.root().Find(args)
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

// AllExamples gives the text of every command's examples.
func AllExamples() map[string]string {
	out := map[string]string{}
	root := (&app{stdout: io.Discard, stderr: io.Discard}).root()
	out[root.Name()] = root.Example
	for _, c := range root.Commands() {
		if c.Name() != "help" && c.Name() != "completion" {
			out[c.CommandPath()] = c.Example
		}
	}
	return out
}
