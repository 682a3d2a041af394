// Command bench measures what the way through a proxy costs, and writes the
// report. See bench/README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/bench/floor"
	"github.com/pdmesh/pdmesh/bench/target"
	"github.com/pdmesh/pdmesh/internal/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// errUsage marks what the command line got wrong.
var errUsage = errors.New("usage")

// run is the whole program: 0 after a clean end, 1 for a failure or a wrong
// answer, 2 for a wrong command line.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cmd := &cobra.Command{
		Use:           "bench",
		Short:         "What the way through a proxy costs, side by side with the limit of the machine",
		Version:       version.String(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.AddCommand(runCommand(), reportCommand(), soakCommand(), floorCommand())
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w: %w", errUsage, err) })
	switch err := cmd.ExecuteContext(ctx); {
	case err == nil:
		return 0
	case errors.Is(err, errUsage), errors.Is(err, target.ErrSpec):
		fmt.Fprintf(stderr, "bench: %v\nSee bench --help.\n", err)
		return 2
	default:
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return 1
	}
}

// floorCommand is the floor, which the benchmark starts as a target. No other
// goroutine shall run there and nothing is allocated for a request, so the
// collector stays off.
func floorCommand() *cobra.Command {
	var o floor.Options
	cmd := &cobra.Command{
		Use: "floor", Hidden: true, Args: cobra.NoArgs,
		Short: "what two hops cost in system calls: a yardstick for the fast engine's answers, no proxy",
		RunE: func(cmd *cobra.Command, _ []string) error {
			debug.SetGCPercent(-1)
			f, err := floor.Listen(o)
			if err != nil {
				return err
			}
			return f.Serve(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&o.Listen, "listen", "127.0.0.1:0", "address")
	cmd.Flags().StringSliceVar(&o.Prefill, "prefill", nil, "addresses of the prefill instances, by comma")
	cmd.Flags().StringSliceVar(&o.Decode, "decode", nil, "addresses of the decode instances, by comma")
	return cmd
}
