package pdctl

import (
	"context"
	"io"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/instance"
)

const longHelp = `pdctl shows and changes which vLLM instances the proxies use.

It speaks to etcd directly: no proxy and no agent needs to run, but for route, which
asks a proxy. A proxy that was started without --etcd-endpoints embeds an etcd at
127.0.0.1:2379, which is where pdctl looks unless told otherwise by --etcd-endpoints or
PD_ETCD_ENDPOINTS.

Exit codes: 0 done, 1 failed, 2 wrong usage; of drain --wait and wait also 3, a
proxy vanished before it had answered, and 4, the time has passed.

Environment, where the flag is not given: PD_ETCD_ENDPOINTS, PD_ETCD_PREFIX,
PD_ETCD_USERNAME, PD_ETCD_PASSWORD, PD_ETCD_PASSWORD_FILE, PD_ETCD_CA, PD_ETCD_CERT,
PD_ETCD_KEY, PD_ENGINE_API_KEY (or OPENAI_API_KEY), PD_ENGINE_CA, PD_ENGINE_CERT,
PD_ENGINE_KEY, PD_ENGINE_SERVER_NAME.`

const rootExamples = `  pdctl add prefill 10.0.0.7:8100 10.0.0.8:8100
  pdctl list
  pdctl list decode -o json | jq '.instances[].address'
  pdctl get prefill/10.0.0.7:8100
  pdctl watch
  pdctl status
  pdctl drain decode 10.0.0.8:8200 --wait
  pdctl remove prefill 10.0.0.7:8100 --reason "new disks"`

// app is one invocation.
type app struct {
	stdout, stderr io.Writer
	lookupEnv      func(string) (string, bool)

	endpoints []string
	prefix    string
	username  string
	password  string
	access    access
	timeout   time.Duration
	output    string
}

func usagef(format string, args ...any) error { return cli.Wrongf(format, args...) }

// Run executes one command line and returns the exit code. The end of ctx ends
// commands that wait or watch.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer, lookupEnv func(string) (string, bool)) int {
	a := &app{stdout: stdout, stderr: stderr, lookupEnv: lookupEnv}
	return cli.Run(ctx, a.root(), args, stdout, stderr)
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use: "pdctl", Short: "show and change which vLLM instances the proxies use",
		Long: longHelp, Example: rootExamples, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	fs := root.PersistentFlags()
	fs.StringSliceVar(&a.endpoints, "etcd-endpoints", []string{"127.0.0.1:2379"}, "host:port of each etcd member, comma separated, with https:// in front for TLS")
	fs.StringVar(&a.prefix, "etcd-prefix", "/pd", "root of all keys")
	fs.StringVar(&a.username, "etcd-username", "", "user of etcd")
	fs.StringVar(&a.password, "etcd-password", "", "its password; better given as PD_ETCD_PASSWORD")
	a.access.register(fs)
	fs.DurationVar(&a.timeout, "timeout", 2*time.Second, "how long to try to reach etcd (at least 2s), and limit of each call to an engine")
	fs.StringVarP(&a.output, "output", "o", "table", "table or json")
	all, one := []instance.Role{instance.Prefill, instance.Decode, instance.Both}, instance.Roles()
	root.AddCommand(a.addCommand(), a.completes(a.removeCommand(), all...), a.allowCommand(),
		a.completes(a.drainCommand(), all...), a.completes(a.undrainCommand(), all...),
		a.completes(a.cordonCommand(), all...), a.completes(a.uncordonCommand(), all...), a.completes(a.weightCommand(), all...),
		a.waitCommand(), a.completes(a.historyCommand(), one...),
		a.restoreCommand(), a.forgetCommand(), a.listCommand(), a.completes(a.getCommand(), one...), a.watchCommand(), a.completes(a.eventsCommand(), one...), a.statusCommand(), a.routeCommand(),
		a.exportCommand(), a.importCommand(), a.authCommand(), a.doctorCommand(), a.mooncakeCommand())
	for _, c := range root.Commands() {
		c.RunE = a.wrap(c.RunE)
	}
	return root
}

// wrap checks the global flags first.
func (a *app) wrap(do func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := a.settle(cmd); err != nil {
			return cli.Wrong(err)
		}
		return do(cmd, args)
	}
}

// settle fills flags that were not given from the environment and checks them.
func (a *app) settle(cmd *cobra.Command) error {
	fs := cmd.Flags()
	for _, name := range []string{"etcd-endpoints", "etcd-prefix", "etcd-username", "etcd-password", "etcd-password-file", "etcd-ca", "etcd-cert", "etcd-key",
		"engine-api-key", "engine-ca", "engine-cert", "engine-key", "engine-server-name"} {
		f := fs.Lookup(name)
		if f == nil || f.Changed {
			continue
		}
		names := []string{"PD_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))}
		if name == "engine-api-key" {
			names = append(names, "OPENAI_API_KEY")
		}
		for _, env := range names {
			if value, ok := a.lookupEnv(env); ok && value != "" {
				if err := f.Value.Set(value); err != nil {
					return usagef("%s: %w", env, err)
				}
				break
			}
		}
	}
	if a.output != "table" && a.output != "json" {
		return usagef("-o %q: use table or json", a.output)
	}
	if a.timeout <= 0 {
		return usagef("--timeout %s: must be more than zero", a.timeout)
	}
	if err := a.settleAccess(); err != nil {
		return err
	}
	if a.password != "" && a.username == "" {
		return usagef("--etcd-password without --etcd-username")
	}
	return a.settleEndpoints()
}

func (a *app) json() bool { return a.output == "json" }

// actor is who changes something, for the audit trail.
func (a *app) actor() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return "pdctl:" + name
}
