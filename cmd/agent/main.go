// Command agent stands beside one vLLM engine and keeps its registration in
// etcd true: see internal/agent.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/logging"
	"github.com/pdmesh/pdmesh/internal/version"
)

const help = `agent registers one vLLM engine with the proxies, through etcd.

It registers nothing before the engine has answered /health and /v1/models with
the expected model. From then on it renews the registration, says "down" when
the engine fails and "ready" when it is back. An etcd that is away changes
nothing: the agent keeps trying with the same lease and never stops the engine.

SIGTERM or SIGINT drains: proxies send nothing new, the agent waits until the
engine is idle (a prefill instance also keeps finished prefills for --kv-lease)
or --drain-timeout has passed, then takes the registration back and ends.
A second signal skips the wait. agent drain does the same from another shell.

Every flag can be given by environment instead: --etcd-endpoints is
PD_ETCD_ENDPOINTS, and so on. Flags win.`

const examples = `  # beside a prefill engine on this machine
  agent --role prefill --address 127.0.0.1:8100 --model Qwen/Qwen2.5-7B-Instruct

  # reachable by others as 10.0.0.7:8200, asked locally; etcd has three members
  agent --role decode --address 10.0.0.7:8200 --engine http://127.0.0.1:8200 \
        --connector nixl --etcd-endpoints 10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379`

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

// run is the whole program. The end of ctx is what the first signal is: drain.
// It returns 0 after an orderly end, 1 for what fails at run time and 2 for
// wrong usage.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var failed error
	cmd := &cobra.Command{
		Use: "agent", Short: "register one vLLM engine", Long: help, Example: examples,
		Args: cobra.NoArgs, Version: version.String(),
		SilenceUsage: true, SilenceErrors: true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := load(cmd.Flags(), os.LookupEnv)
			if err != nil {
				return err
			}
			log, err := logging.New(stderr, c.logLevel, c.logFormat)
			if err != nil {
				return err
			}
			failed = serve(cmd.Context(), c, log)
			return nil
		},
	}
	registerFlags(cmd.Flags())
	cmd.AddCommand(controlCommands()...)
	cmd.SetVersionTemplate("agent {{.Version}}\n")
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	var run *runError
	if errors.As(err, &run) {
		failed, err = run, nil
	}
	if err != nil {
		fmt.Fprintf(stderr, "agent: %v\nSee agent --help.\n", err)
		return 2
	}
	if failed != nil {
		fmt.Fprintf(stderr, "agent: %v\n", failed)
		return 1
	}
	return 0
}
