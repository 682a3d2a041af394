// Command proxy is the OpenAI-compatible address in front of a fleet of
// prefill and decode instances that it finds in etcd.
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

	"github.com/pdmesh/pdmesh/internal/config"
	"github.com/pdmesh/pdmesh/internal/embedetcd/process"
	"github.com/pdmesh/pdmesh/internal/logging"
	"github.com/pdmesh/pdmesh/internal/proxy"
	"github.com/pdmesh/pdmesh/internal/version"
)

func main() {
	// Until the log is there, and for good in the process of the own etcd, which has the
	// same name: else they would end it.
	signal.Ignore(syscall.SIGUSR1, syscall.SIGUSR2)
	process.MaybeMain()
	if err := proxy.TuneMemory(); err != nil {
		fmt.Fprintf(os.Stderr, "proxy: the container's memory limit is not known, so none is kept to: %v\n", err)
	}
	logging.OutliveReader()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := run(ctx, os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// The exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitDamaged = 3 // the files of the proxy's own etcd
)

// errUsage marks what the person at the command line can mend.
var errUsage = errors.New("usage")

func run(ctx context.Context, args []string, env func(string) (string, bool), stdout, stderr io.Writer) int {
	cmd := newCommand(env)
	cmd.SetArgs(config.NormalizeArgs(args))
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errUsage):
		fmt.Fprintf(stderr, "proxy: %v\nTry 'proxy --help'.\n", errors.Unwrap(err))
		return exitUsage
	case errors.Is(err, process.ErrDamaged):
		fmt.Fprintf(stderr, "proxy: %v\n", err)
		return exitDamaged
	default:
		fmt.Fprintf(stderr, "proxy: %v\n", err)
		return exitFailure
	}
}

// usageError carries errUsage without its word in the message.
type usageError struct{ err error }

func (e usageError) Error() string        { return e.err.Error() }
func (e usageError) Unwrap() error        { return e.err }
func (e usageError) Is(target error) bool { return target == errUsage }

func newCommand(env func(string) (string, bool)) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "proxy [flags]",
		Short: "One OpenAI-compatible address in front of a changing fleet of prefill and decode instances",
		Long: `proxy takes OpenAI requests, runs the prompt on a prefill instance and the answer on
a decode instance, and streams the answer. It finds the instances in etcd and keeps
serving with what it knows while etcd is away.

Without --etcd-endpoints it runs an etcd of its own, for one machine.

The command lines of the example proxies of vLLM, vllm-ascend and LMCache work as
they are, with this program in place of "python3 x.py":
  elastic_proxy, disagg_proxy_demo  --model --prefill A B --decode C D --port
        --check-interval --check-times --retry-times
  load_balance_proxy_server_example --prefiller-hosts --prefiller-ports
        --decoder-hosts --decoder-ports --max-retries --retry-delay
        --max-waiting-retries --waiting-retry-interval (means --connector nixl)
  disagg_proxy_server of LMCache    --prefiller-host A,B --prefiller-port 8100
        --decoder-host C --decoder-port 8200,8201 --decoder-init-port
        --decoder-alloc-port --num-prefillers --num-decoders --proxy-host --proxy-port`,
		Example: `  proxy                                             everything on this machine
  proxy --etcd-endpoints 127.0.0.1:2379             a shared etcd
  proxy --prefill 127.0.0.1:8100 127.0.0.1:8101 --decode 127.0.0.1:8200
  proxy --prefiller-hosts 127.0.0.1 127.0.0.1 --prefiller-ports 8100 8101 \
        --decoder-hosts 127.0.0.1 --decoder-ports 8200
  proxy health                                      is the one that runs here ready?`,
		Version:       version.String(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unexpected argument %q", args[0])}
			}
			return nil
		},
	}
	config.RegisterProxyFlags(cmd.Flags())
	cmd.AddCommand(healthCommand(env))
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.SetVersionTemplate("pdmesh proxy {{.Version}}\n")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.LoadProxy(cmd.Flags(), env)
		if err != nil {
			return usageError{err}
		}
		if cfg.PrintConfig {
			for _, notice := range cfg.Notices {
				fmt.Fprintf(cmd.ErrOrStderr(), "proxy: %s\n", notice)
			}
			return cfg.Print(cmd.OutOrStdout())
		}
		var log *logrus.Logger
		out := logging.NewQueue(cmd.ErrOrStderr(), func(lines int) { logging.Lost(log, lines) })
		defer out.Flush(logging.FlushLimit)
		log, err = logging.New(out, cfg.LogLevel, cfg.LogFormat)
		if err != nil {
			return usageError{err}
		}
		for _, notice := range cfg.Notices {
			log.Warn(notice)
		}
		return proxy.Serve(cmd.Context(), &cfg, log, cmd.OutOrStdout())
	}
	return cmd
}
