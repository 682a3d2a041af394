package pdctl

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/instance"
)

const keptHelp = `%s tells every proxy what to do with what it keeps of a former etcd.

When etcd is wiped, or another takes its place, proxies keep the static
instances and the overrides that the new one lacks, and show in /status that
they do. "pdctl restore" has them write these back to the new etcd, where that
has nothing of its own; "pdctl forget" has them let go.

It works on the instances named, or on everything with --all. pdctl does not
wait for the proxies; their /status shows what came of it.`

func (a *app) restoreCommand() *cobra.Command {
	return a.keptCommand("restore", "write back what a wiped etcd has lost")
}

func (a *app) forgetCommand() *cobra.Command {
	return a.keptCommand("forget", "let go of what a wiped etcd has lost")
}

func (a *app) keptCommand(verb, short string) *cobra.Command {
	var reason string
	var all bool
	cmd := &cobra.Command{
		Use: verb + " --all | prefill|decode host:port...", Short: short, Long: fmt.Sprintf(keptHelp, verb),
		Example: "  pdctl " + verb + " --all\n  pdctl " + verb + " prefill 10.0.0.7:8100",
		RunE: func(cmd *cobra.Command, args []string) error {
			var keys []instance.Key
			switch {
			case all && len(args) > 0:
				return usagef("give --all or instances, not both")
			case all:
			case len(args) < 2:
				return usagef("name a role and instances, or give --all")
			default:
				var err error
				if keys, err = a.keys(args); err != nil {
					return err
				}
			}
			return a.kept(cmd.Context(), verb, keys, reason)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit trail")
	cmd.Flags().BoolVar(&all, "all", false, "everything that proxies keep")
	return cmd
}

func (a *app) kept(ctx context.Context, verb string, keys []instance.Key, reason string) error {
	s, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	do := s.store.Restore
	if verb == "forget" {
		do = s.store.Forget
	}
	if err := do(ctx, keys, reason); err != nil {
		return err
	}
	proxies, err := s.store.Proxies(ctx)
	if err != nil {
		return err
	}
	switch {
	case a.dry && a.structured():
		return a.write(map[string]any{"proxies": len(proxies), "dry_run": a.rehearsal.planned()})
	case a.structured():
		return a.write(map[string]any{"proxies": len(proxies)})
	case a.dry:
		return a.println(fmt.Sprintf("would tell %d proxies to %s what they keep", len(proxies), verb))
	}
	return a.println(fmt.Sprintf("told %d proxies to %s what they keep; see their /status", len(proxies), verb))
}
