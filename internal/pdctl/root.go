package pdctl

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/auth"
	"github.com/pdmesh/pdmesh/internal/pdctl/diagnose"
	"github.com/pdmesh/pdmesh/internal/pdctl/events"
	"github.com/pdmesh/pdmesh/internal/pdctl/fleet"
	"github.com/pdmesh/pdmesh/internal/pdctl/intent"
	"github.com/pdmesh/pdmesh/internal/pdctl/limit"
	"github.com/pdmesh/pdmesh/internal/pdctl/member"
	"github.com/pdmesh/pdmesh/internal/pdctl/model"
	"github.com/pdmesh/pdmesh/internal/pdctl/mooncake"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/route"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
	"github.com/pdmesh/pdmesh/internal/pdctl/show"
	"github.com/pdmesh/pdmesh/internal/pdctl/top"
)

const longHelp = `pdctl shows and changes which vLLM instances the proxies use.

pdctl uses etcd directly; no proxy or agent needs to run. route, ratio, usage, top, debug and
"model ls" also query proxies. While etcd is down, list, get and status can read the fleet
from one, with --proxy URL.
The default etcd is 127.0.0.1:2379, the embedded etcd of a proxy without --etcd-endpoints.
--etcd-endpoints or PD_ETCD_ENDPOINTS names another one.

An instance is decode/10.0.0.8:8200, as list prints it with -o name, or two words. The role
can be left out if the address has one only. --selector selects instances by role, model,
state or label, for commands that list them, and in place of names for commands that change
them.

-o wide prints a table with all columns; -o json and -o yaml are for programs, -o name for
xargs. Lists have --watch. Every command that writes has --dry-run: it compares with etcd,
prints what would be written, and writes nothing. A command that would leave a role without
a usable instance asks for confirmation; without a terminal it needs --yes.

"doctor" finds problems; "top --once --sort-by ttft" finds slow instances, for decode with
"per-token". "drain --wait" stops new requests and waits for the running ones; "cordon" does
not wait. Every change can be undone: undrain, uncordon, allow (of remove), or revert for
changes that history lists.
"model route" maps a name to models; "route" explains where a request would go.

Exit codes: 0 done, 1 failed, 2 wrong usage. "drain --wait" and "wait" also have 3 (a
proxy disappeared before it confirmed) and 4 (timed out). doctor has 5 (it
found errors or warnings).

The settings for etcd and engines, and --timeout, are flags, environment variables
(PD_ETCD_ENDPOINTS for --etcd-endpoints) and keys of a YAML file (etcd-endpoints). Flags
win over variables, and variables over the file. --config or PD_PDCTL_CONFIG names the
file; the default is pdmesh/pdctl.yaml in $XDG_CONFIG_HOME or ~/.config, if it exists.
"pdctl --print-config" prints all values and their sources.`

const rootExamples = `  pdctl add prefill 10.0.0.7:8100 10.0.0.8:8100
  pdctl list
  pdctl list decode -o json | jq '.instances[].address'
  pdctl get prefill/10.0.0.7:8100
  pdctl watch
  pdctl status
  pdctl drain decode 10.0.0.8:8200 --wait
  pdctl wait --for state=ready --count 2
  pdctl remove prefill 10.0.0.7:8100 --reason "new disks"`

// Run executes one command line and returns the exit code. Commands that wait or
// watch return when ctx is done.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer, lookupEnv func(string) (string, bool)) int {
	return cli.Run(ctx, root(session.New(stdout, stderr, lookupEnv)), args, stdout, stderr)
}

// root returns the tree of all commands. It adds the features that several commands share:
// --selector, --dry-run and completion.
func root(s *session.Session) *cobra.Command {
	root := &cobra.Command{
		Use: "pdctl", Short: "show and change which vLLM instances the proxies use",
		Long: longHelp, Example: rootExamples, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("print-config") {
				return s.Wrap(func(cmd *cobra.Command, _ []string) error { return cmd.Help() })(cmd, args)
			}
			return cmd.Help()
		},
	}
	s.Register(root.PersistentFlags())
	_ = root.RegisterFlagCompletionFunc("output", output.Complete) // the flag is there
	all, one := []instance.Role{instance.Prefill, instance.Decode, instance.Both}, instance.Roles()
	for _, c := range []*cobra.Command{
		s.Confirms(member.Remove(s)), s.Confirms(intent.Drain(s)), intent.Undrain(s), s.Confirms(intent.Cordon(s)), intent.Uncordon(s), s.Confirms(intent.Weight(s)),
	} {
		root.AddCommand(s.Names(s.Selects(s.Writes(s.Completes(c, all...)))))
	}
	root.AddCommand(
		s.Names(s.Writes(member.Add(s))), s.Names(s.Writes(member.Allow(s))), s.Writes(member.Restore(s)), s.Writes(member.Forget(s)),
		s.Writes(s.Completes(intent.Role(s), all...)), s.Names(s.Selects(s.Completes(intent.Wait(s), all...))), show.Version(s),
		s.ReadsProxy(s.Completes(show.Get(s), one...)), s.Watches(s.Completes(show.History(s), one...)), s.Names(s.ReadsProxy(s.Watches(s.Selects(show.List(s))))),
		s.Selects(show.Watch(s)), s.ReadsProxy(s.Watches(show.Status(s))), s.Selects(s.Writes(top.Command(s))),
		s.Watches(fleet.Diff(s)), s.Confirms(s.Writes(fleet.Revert(s))), s.Confirms(s.Writes(fleet.Apply(s))), fleet.Export(s),
		diagnose.Command(s), debugCommand(s), s.Completes(events.Command(s), one...), route.Command(s), s.Watches(route.Ratio(s)),
		auth.Command(s), mooncake.Command(s), limit.Command(s), s.Watches(limit.Usage(s)), model.Command(s),
	)
	for _, c := range root.Commands() {
		c.RunE = s.Wrap(c.RunE)
		for _, sub := range c.Commands() { // limit list, model ls
			if sub.Name() == "list" || sub.Name() == "ls" {
				s.Watches(sub)
			}
		}
	}
	return root
}
