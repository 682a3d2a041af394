package cli_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// childError is like the exit error of a child process.
type childError struct{}

func (childError) Error() string { return "exit status 3" }
func (childError) ExitCode() int { return 3 }

func TestRun(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args   string
		err    error
		code   int
		stdout string
		stderr string
	}{
		{"do", nil, cli.OK, "", ""},
		{"--version", nil, cli.OK, "prog ", ""},
		{"--help", nil, cli.OK, "do it", ""},
		{"do", errors.New("no luck"), cli.Failure, "", "prog: no luck\n"},
		{"do", fmt.Errorf("wrapped: %w", cli.Wrongf("--n %d: too many", 9)), cli.Usage, "", "prog: wrapped: --n 9: too many\nSee prog do --help.\n"},
		{"do", fmt.Errorf("it is %w", cli.Exit(errors.New("too late"), 4)), 4, "", "prog: it is too late\n"},
		{"do", childError{}, cli.Failure, "", "prog: exit status 3\n"},
		{"do more", nil, cli.Usage, "", "prog: unexpected argument \"more\"\nSee prog do --help.\n"},
		{"do --what", nil, cli.Usage, "", "prog: unknown flag: --what\nSee prog do --help.\n"},
		{"do --hepl", nil, cli.Usage, "", "prog: unknown flag: --hepl; did you mean --help?\nSee prog do --help.\n"},
		{"do -x", nil, cli.Usage, "", "prog: unknown shorthand flag: 'x' in -x\nSee prog do --help.\n"},
		{"do --times many", nil, cli.Usage, "", "prog: --times: bad value \"many\": must be a whole number\nSee prog do --help.\n"},
		{"do --times 9e9", nil, cli.Usage, "", "prog: --times: bad value \"9e9\": must be a whole number\nSee prog do --help.\n"},
		{"do --now=maybe", nil, cli.Usage, "", "prog: --now: bad value \"maybe\": must be true or false\nSee prog do --help.\n"},
		{"do --after x", nil, cli.Usage, "", "prog: --after: bad value \"x\": must be a duration"},
		{"--what", nil, cli.Usage, "", "prog: unknown flag: --what\nSee prog --help.\n"},
		{"undo", nil, cli.Usage, "", "unknown command \"undo\" for \"prog\""},
		{"help", nil, cli.OK, "do it", ""},
		{"help do", nil, cli.OK, "--times", ""},
		{"help completion bash", nil, cli.OK, "prog completion bash", ""},
		{"help od", nil, cli.Usage, "", "prog: unknown command \"od\" for \"prog\"; did you mean do?\nSee prog help --help.\n"},
		{"help do more", nil, cli.Usage, "", "prog: unknown command \"more\" for \"prog do\"\n"},
		{"completion", nil, cli.OK, "Available Commands:\n  bash ", ""},
		{"completion zsh", nil, cli.OK, "#compdef prog", ""},
		{"completion bahs", nil, cli.Usage, "", "prog: unknown command \"bahs\" for \"prog completion\"; did you mean bash?\nSee prog completion --help.\n"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			t.Parallel()
			root := &cobra.Command{Use: "prog", Short: "a program"}
			do := &cobra.Command{
				Use: "do", Short: "do it", Args: cli.NoArgs,
				RunE: func(*cobra.Command, []string) error { return tc.err },
			}
			do.Flags().Int64("times", 1, "how often")
			do.Flags().Bool("now", false, "at once")
			var after time.Duration
			settings.DurationVar(do.Flags(), &after, "after", 0, "wait")
			root.AddCommand(do)
			var out, errs bytes.Buffer
			code := cli.Run(t.Context(), root, strings.Fields(tc.args), &out, &errs)
			if code != tc.code || !strings.Contains(out.String(), tc.stdout) || !strings.Contains(errs.String(), tc.stderr) || tc.stderr == "" && errs.Len() > 0 {
				t.Errorf("exit %d\n%s\n%s", code, &out, &errs)
			}
		})
	}
}

func TestWrong(t *testing.T) {
	t.Parallel()
	assert.NoError(t, cli.Wrong(nil), "nothing is wrong, and yet")
	inner := errors.New("inner")
	if err := fmt.Errorf("outer: %w", cli.Wrong(inner)); !cli.IsWrong(err) || !errors.Is(err, inner) || cli.IsWrong(inner) {
		t.Error("errors of usage are not recognized")
	}
}
