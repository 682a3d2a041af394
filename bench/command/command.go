// Package command is the program bench: it measures what the way through a proxy costs,
// and writes the report. See bench/README.md.
package command

import (
	"context"
	"io"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/bench/floor"
	"github.com/pdmesh/pdmesh/internal/cli"
)

// Run is the whole program: 0 after a clean end, 1 for a failure or a wrong
// answer, 2 for a wrong command line.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure what a request through a proxy costs, beside the limit of the machine",
	}
	cmd.AddCommand(runCommand(), reportCommand(), soakCommand(), floorCommand())
	cmd.CompletionOptions.DisableDefaultCmd = true
	return cli.Run(ctx, cmd, args, stdout, stderr)
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
