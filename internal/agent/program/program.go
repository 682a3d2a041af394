// Package program runs the agent: it starts the parts for a configuration of package setup,
// supervises the engine's process, handles signals, notifies systemd, and stops everything in
// order. Package agent maintains a registration, package wrap runs a process.
package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/agent/control"
	"github.com/pdmesh/pdmesh/internal/agent/setup"
	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/observe/logging"
)

const help = `pdmesh-agent registers one vLLM engine with the proxies, through etcd.

The agent registers the engine once it answers /health, and /v1/models with the
expected model. Then it renews the lease, and writes "down" when the engine fails
and "ready" when it is back. While etcd is down, the agent keeps trying with the
same lease. It never stops the engine because of etcd.

SIGTERM or SIGINT drains: proxies send no new requests. The agent waits until the
engine is idle, but not longer than --drain-timeout; a prefill engine also stays for
--kv-lease, so that decode can fetch KV caches. With --shutdown-delay, SIGTERM drains
at least that long, so that all proxies notice. Then the agent deregisters the engine and
exits. A second signal skips the wait. "pdmesh-agent drain" does the same from another shell.

With a command after "--" the agent starts the engine, waits until it has loaded,
and reads address, model, role, connector and key from the command. On SIGTERM it
drains, stops the engine and exits. The exit code is 0 if the engine exited with 0 or
because of that signal, otherwise the engine's exit code (128+n after signal n). If the
engine exits by itself, the agent deregisters it at once and exits too. With
--restart on-failure it starts a failed engine again.

With --zmq-register the agent has no engine of its own. vLLM engines with
MoRIIOConnector send pings to it, and it registers each one while its pings arrive. When
this agent exits, the registrations stay until their leases expire, so that the next
agent can take them over.

The agent looks for missing settings in the command, in --kv-transfer-config, in
VLLM_DISTRIBUTED_KV_ROLE, and in mooncake.json (MOONCAKE_CONFIG_PATH), which names
etcd. "pdmesh-agent --print-config" shows the values and where they were found.

Every setting is a flag, an environment variable (PD_ETCD_ENDPOINTS for --etcd-endpoints)
and a key of the YAML file of --config (etcd-endpoints). Flags win over variables,
variables over the file, and the file over what the agent finds.`

const examples = `  # register a prefill engine that runs on this machine
  pdmesh-agent --role prefill --address 127.0.0.1:8100 --model Qwen/Qwen2.5-7B-Instruct

  # proxies reach the engine at 10.0.0.7:8200, the agent at 127.0.0.1; etcd has three members
  pdmesh-agent --role decode --address 10.0.0.7:8200 --engine http://127.0.0.1:8200 \
        --connector nixl --etcd-endpoints 10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379

  # for MoRI-IO engines, which register themselves (proxy_ip, proxy_ping_port)
  pdmesh-agent --zmq-register tcp://10.0.0.5:36367 --etcd-endpoints 10.0.0.1:2379

  # start the engine; the agent reads everything except etcd from the command
  pdmesh-agent --etcd-endpoints 10.0.0.1:2379 -- \
        vllm serve Qwen/Qwen2.5-7B-Instruct --host 10.0.0.7 --port 8100 \
        --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'

  # Mooncake's file names etcd; start a failed engine again
  MOONCAKE_CONFIG_PATH=mooncake.json VLLM_DISTRIBUTED_KV_ROLE=producer \
        pdmesh-agent --restart on-failure -- vllm serve Qwen/Qwen2.5-7B-Instruct --port 8100`

// Main runs the agent as the whole process and returns its exit code.
func Main(args []string, stdout, stderr io.Writer) int {
	logging.OutliveReader()
	return program{ownsProcess: true}.run(cli.WithVariables(context.Background(), os.Environ()), args, stdout, stderr)
}

// program is the agent. ownsProcess reports whether this process runs nothing else, so that it may
// adopt and reap orphans of the engine.
type program struct{ ownsProcess bool }

// run runs the program. The end of ctx drains, like the first signal. It returns 0 after an
// orderly end, 1 for a failure, 2 for wrong usage. With a command it returns the exit code of
// the engine, or 0 if that is the result of the signal that stopped it.
func (p program) run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	code := cli.OK // of an orderly end
	cmd := &cobra.Command{
		Use: "pdmesh-agent [flags] [-- command ...]", Short: "register one vLLM engine", Long: help, Example: examples,
		Args: checkArgs,
		RunE: func(cmd *cobra.Command, behind []string) error {
			var command []string
			if len(behind) > 0 {
				command = behind
			}
			c, err := setup.Load(cmd.Flags(), settings.LookupEnv, command)
			if err != nil {
				return cli.Wrong(setup.Retype(err, args))
			}
			defer c.Events.Release()
			defer c.Side.Release()
			if c.PrintConfig {
				return c.Print(cmd.OutOrStdout())
			}
			var log *logrus.Logger
			out := logging.NewQueue(stderr, func(lines int) { logging.Lost(log, lines) })
			defer out.Flush(logging.FlushLimit)
			log, err = logging.New(out, c.LogLevel, c.LogFormat)
			if err != nil {
				return cli.Wrong(err)
			}
			code, err = serve(cmd.Context(), &service{Config: c, log: log, stdout: stdout, stderr: stderr, ownsProcess: p.ownsProcess})
			if err != nil {
				return cli.Exit(err, max(code, cli.Failure))
			}
			return nil
		},
	}
	setup.Settings().Register(cmd.Flags())
	cmd.AddCommand(control.Commands()...)
	if failed := cli.Run(ctx, cmd, args, stdout, stderr); failed != cli.OK {
		return failed
	}
	return code
}

// checkArgs accepts only a command after "--".
func checkArgs(cmd *cobra.Command, args []string) error {
	switch dash := cmd.ArgsLenAtDash(); {
	case dash < 0 && len(args) > 0, dash > 0:
		return fmt.Errorf("unknown command %q; the command of an engine follows --, as in pdmesh-agent ... -- vllm serve MODEL", args[0])
	case dash == 0 && len(args) == 0:
		return errors.New("no command after --; remove it to register an engine that runs already")
	case dash == 0 && args[0] == "":
		return errors.New("the command after -- is empty")
	}
	return nil
}
