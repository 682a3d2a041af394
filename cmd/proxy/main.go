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

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/config"
	"github.com/pdmesh/pdmesh/internal/logging"
	"github.com/pdmesh/pdmesh/internal/version"
)

func main() {
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
	default:
		fmt.Fprintf(stderr, "proxy: %v\n", err)
		return exitFailure
	}
}

// usageError carries errUsage without its word in the message.
type usageError struct{ err error }

func (e usageError) Error() string        { return e.err.Error() }
func (e usageError) Unwrap() error        { return e.err }
func (e usageError) Is(target error) bool { return target == errUsage } //nolint:errorlint // identity is meant

func newCommand(env func(string) (string, bool)) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "proxy [flags]",
		Short: "One OpenAI-compatible address in front of a changing fleet of prefill and decode instances",
		Long: `proxy takes OpenAI requests, runs the prompt on a prefill instance and the answer on
a decode instance, and streams the answer. It finds the instances in etcd and keeps
serving with what it knows while etcd is away.

Without --etcd-endpoints it runs an etcd of its own, for one machine.`,
		Example: `  proxy                                             everything on this machine
  proxy --etcd-endpoints 127.0.0.1:2379             a shared etcd
  proxy --prefill 127.0.0.1:8100 127.0.0.1:8101 --decode 127.0.0.1:8200
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
			return cfg.Print(cmd.OutOrStdout())
		}
		log, err := logging.New(cmd.ErrOrStderr(), cfg.LogLevel, cfg.LogFormat)
		if err != nil {
			return usageError{err}
		}
		return serve(cmd.Context(), &cfg, log, cmd.OutOrStdout())
	}
	return cmd
}
