package session

import (
	"bytes"
	"fmt"
	"os"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
)

// repeatGap is the interval of --watch.
const repeatGap = 2 * time.Second

// names is the annotation of commands that accept -o name.
const names = "names"

// Names marks commands that accept -o name.
func (s *Session) Names(cmd *cobra.Command) *cobra.Command {
	annotate(cmd, names)
	return cmd
}

func annotate(cmd *cobra.Command, name string) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[name] = "true"
}

// Watches adds the flag --watch to a command that lists something.
func (s *Session) Watches(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVarP(&s.again, "watch", "w", false, "print it again every 2s if it has changed, until Ctrl-C; on a terminal in place")
	return cmd
}

// repeat runs a command once, or with --watch until its context ends. After the first run it prints
// errors and continues.
func (s *Session) repeat(cmd *cobra.Command, args []string, do func(*cobra.Command, []string) error) error {
	if !s.again {
		return do(cmd, args)
	}
	stdout, stderr := s.Out.Stdout, s.Out.Stderr
	defer func() { s.Out.Stdout, s.Out.Stderr = stdout, stderr }()
	file, ok := stdout.(*os.File)
	terminal := ok && isatty.IsTerminal(file.Fd())
	var last, lastErrs string
	for first := true; ; first = false {
		var out, errs bytes.Buffer
		s.Out.Stdout, s.Out.Stderr = &out, &out
		if s.Out.Structured() || !terminal && s.Out.Format == output.Name { // programs read only stdout
			s.Out.Stderr = &errs
		}
		err := do(cmd, args)
		switch {
		case cmd.Context().Err() != nil:
			return nil
		case err != nil && first:
			fmt.Fprint(stderr, errs.String())
			fmt.Fprint(stdout, out.String())
			return err
		case err != nil:
			fmt.Fprintf(s.Out.Stderr, "%s: %v\n", cmd.CommandPath(), err)
		}
		if text := errs.String(); text != lastErrs {
			fmt.Fprint(stderr, text)
			lastErrs = text
		}
		if text := out.String(); text != last && (text != "" || err == nil && !s.Out.Structured()) {
			switch {
			case s.Out.Format == output.YAML && last != "":
				text = "---\n" + text
			case s.Out.Structured():
			case terminal:
				text = "\x1b[H\x1b[2J" + text
			case !first:
				text = "\n" + text
			}
			if _, err := fmt.Fprint(stdout, text); err != nil {
				return fmt.Errorf("write output: %w", err)
			}
			last = out.String()
		}
		if !sleep.For(cmd.Context(), repeatGap) {
			return nil
		}
	}
}
