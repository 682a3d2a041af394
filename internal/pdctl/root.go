package pdctl

import (
	"context"
	"io"
	"os/user"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/settings"
)

const longHelp = `pdctl shows and changes which vLLM instances the proxies use.

It speaks to etcd directly: no proxy and no agent needs to run, but for route, which
asks a proxy. A proxy that was started without --etcd-endpoints embeds an etcd at
127.0.0.1:2379, which is where pdctl looks unless told otherwise by --etcd-endpoints or
PD_ETCD_ENDPOINTS.

-o wide is a table with all columns, -o json and -o yaml are for programs. --selector
picks instances by role, model, state or label, for commands that list and, in place of
addresses, for those that change. --dry-run of all that write prints what would be
written, as compared with etcd, and writes nothing.

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
	selectors []string // --selector
	dry       bool     // --dry-run, of commands that write
	rehearsal dryRun   // what it has kept from etcd
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
	fs.StringVarP(&a.output, "output", "o", outputTable, "table, wide (table with more columns), json or yaml")
	_ = root.RegisterFlagCompletionFunc("output", completeOutputs) // the flag is there
	all, one := []instance.Role{instance.Prefill, instance.Decode, instance.Both}, instance.Roles()
	intends := []*cobra.Command{a.removeCommand(), a.drainCommand(), a.undrainCommand(), a.cordonCommand(), a.uncordonCommand(), a.weightCommand()}
	for _, c := range intends {
		root.AddCommand(a.selects(a.writes(a.completes(c, all...))))
	}
	root.AddCommand(a.writes(a.addCommand()), a.writes(a.allowCommand()), a.writes(a.restoreCommand()), a.writes(a.forgetCommand()),
		a.waitCommand(), a.completes(a.historyCommand(), one...), a.selects(a.listCommand()), a.completes(a.getCommand(), one...),
		a.selects(a.watchCommand()), a.completes(a.eventsCommand(), one...), a.statusCommand(), a.routeCommand(),
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
		err := do(cmd, args)
		if cli.IsWrong(err) {
			return err
		}
		if said := a.printDry(); err == nil {
			err = said
		}
		return err
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
		variables := []string{settings.Variable(name)}
		if name == "engine-api-key" {
			variables = append(variables, "OPENAI_API_KEY")
		}
		if e, ok := settings.Lookup(a.lookupEnv).First(variables...); ok {
			if err := f.Value.Set(e.Value); err != nil {
				return usagef("%s: %w", e.Variable, err)
			}
		}
	}
	if err := a.checkOutput(); err != nil {
		return err
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

// actor is who changes something, for the audit trail.
func (a *app) actor() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return "pdctl:" + name
}
