// Command proxy serves the OpenAI API with a fleet of prefill and decode instances,
// which it finds in etcd.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/discovery/embedetcd/process"
	"github.com/pdmesh/pdmesh/internal/observe/logging"
	"github.com/pdmesh/pdmesh/internal/proxy"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/internal/proxy/memory"
	"github.com/pdmesh/pdmesh/internal/proxy/selfcheck"
)

func main() {
	// The default action of these signals is to exit. The log handles them later; the process
	// of the embedded etcd, which has the same name, ignores them.
	signal.Ignore(syscall.SIGUSR1, syscall.SIGUSR2)
	process.MaybeMain()
	if err := memory.Tune(); err != nil {
		fmt.Fprintf(os.Stderr, "pdmesh-proxy: cannot read the memory limit of the container, so none applies: %v\n", err)
	}
	logging.OutliveReader()
	cli.Main(func(ctx context.Context, args []string, stdout, stderr io.Writer) int {
		return run(cli.WithVariables(ctx, os.Environ()), args, settings.LookupEnv, stdout, stderr)
	})
}

// exitDamaged is the exit code for damaged files of the embedded etcd.
const exitDamaged = 3

func run(ctx context.Context, args []string, env func(string) (string, bool), stdout, stderr io.Writer) int {
	return cli.Run(ctx, newCommand(env), config.NormalizeArgs(args), stdout, stderr)
}

func newCommand(env func(string) (string, bool)) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pdmesh-proxy [flags]",
		Short: "One OpenAI-compatible address in front of a changing fleet of prefill and decode instances",
		Long: `pdmesh-proxy serves the OpenAI API. It sends each request to a prefill and a decode instance
of vLLM, and streams the answer. It finds the instances in etcd. While etcd is down, it
serves with the last membership that it knows.

Without --etcd-endpoints it runs an embedded etcd, for one machine.

The command lines of the example proxies of vLLM, vllm-ascend and LMCache work with this
program in place of "python3 x.py": elastic_proxy, disagg_proxy_demo,
load_balance_proxy_server_example (implies --connector nixl), and LMCache's
disagg_proxy_server (implies --connector lmcache). --help-all lists their flags.`,
		Example: `  pdmesh-proxy                                      a proxy with an embedded etcd
  pdmesh-proxy --etcd-endpoints 127.0.0.1:2379      a shared etcd
  pdmesh-proxy --prefill 127.0.0.1:8100 127.0.0.1:8101 --decode 127.0.0.1:8200
  pdmesh-proxy --prefiller-hosts 127.0.0.1 127.0.0.1 --prefiller-ports 8100 8101 \
               --decoder-hosts 127.0.0.1 --decoder-ports 8200
  pdmesh-proxy health                               is the proxy on this machine ready?`,
		Args: cli.NoArgs,
	}
	config.RegisterProxyFlags(cmd.Flags())
	cmd.AddCommand(healthCommand(env))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return serve(cmd, env) }
	return cmd
}

// serve reads the settings and runs the proxy, or only prints them.
func serve(cmd *cobra.Command, env func(string) (string, bool)) error {
	cfg, err := config.LoadProxy(cmd.Flags(), env)
	if err != nil {
		return cli.Wrong(err)
	}
	if cfg.PrintConfig {
		for _, notice := range cfg.Notices {
			fmt.Fprintf(cmd.ErrOrStderr(), "pdmesh-proxy: %s\n", notice)
		}
		return cfg.Print(cmd.OutOrStdout())
	}
	var log *logrus.Logger
	out := logging.NewQueue(cmd.ErrOrStderr(), func(lines int) { logging.Lost(log, lines) })
	defer out.Flush(logging.FlushLimit)
	log, err = logging.New(out, cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		return cli.Wrong(err)
	}
	for _, notice := range cfg.Notices {
		log.Warn(notice)
	}
	err = proxy.Serve(cmd.Context(), &cfg, log, cmd.OutOrStdout())
	if errors.Is(err, process.ErrDamaged) {
		return cli.Exit(err, exitDamaged)
	}
	return err
}

// healthCommand checks a running proxy. It has the same settings as the proxy, so that it
// finds the listener.
func healthCommand(env func(string) (string, bool)) *cobra.Command {
	var live bool
	cmd := &cobra.Command{
		Use:   "health",
		Short: "exit 0 if the proxy on this machine is ready",
		Long: `health is for scripts and for container health checks without a shell. It prints one
line. The exit code is 0 while the proxy answers /readyz (or /livez, with --live) with
200, otherwise 1 with the reason, after three seconds at most. /readyz fails while no request
can be served; for a check that restarts the proxy use --live. Host, port and certificate come
from the same flags, environment or file as for the proxy; other flags of the proxy are
accepted and not read. With --tls-client-ca, health uses the proxy's certificate, which must
then also be valid for clients, except with --live.`,
		Example: `  pdmesh-proxy health
  pdmesh-proxy health --port 9000 --live`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := config.LoadListen(cmd.Flags(), env)
			if err != nil {
				return cli.Wrong(err)
			}
			path := "/readyz"
			if live {
				path = "/livez"
			}
			answer, err := selfcheck.Ask(cmd.Context(), at, path)
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintln(cmd.OutOrStdout(), answer)
			return nil
		},
	}
	config.RegisterListenFlags(cmd.Flags())
	cmd.Flags().BoolVar(&live, "live", false, "check /livez instead of /readyz: whether the process responds")
	return cmd
}
