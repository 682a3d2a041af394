package pdctl

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/instance"
)

const listHelp = `list shows every entry there is, usable or not.

  STATE   what the instance's own record says: starting, ready, draining, down
  VIEW    pending: waits to answer; unverified: not probed yet;
          rejected: its value in etcd cannot be used, REASON says why
  INTENT  what an operator asked for: drain, cordon, removed
  KIND    leased: goes away with its lease; static: stays until removed

-o json prints {"revision": N, "instances": [...]}, each instance as the
proxies' /status shows it.`

func (a *app) listCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list [prefill|decode]", Short: "list the instances", Long: listHelp,
		Example: "  pdctl list\n  pdctl list decode\n  pdctl list -o json | jq '.instances[] | select(.state == \"down\")'",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			roles := instance.Roles()
			if len(args) == 1 {
				role, err := instance.ParseRole(args[0])
				if err != nil {
					return &usageError{err}
				}
				roles = []instance.Role{role}
			}
			return a.list(cmd.Context(), roles)
		},
	}
}

// listing is the JSON form of list.
type listing struct {
	Revision  int64              `json:"revision"`
	Instances []instance.Listing `json:"instances"`
}

func (a *app) list(ctx context.Context, roles []instance.Role) error {
	s, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	snap, err := s.store.Snapshot(ctx)
	if err != nil {
		return a.hint(err)
	}
	snap = only(snap, roles)
	if a.json() {
		out := listing{Revision: snap.Revision, Instances: []instance.Listing{}}
		for _, in := range snap.All() {
			out.Instances = append(out.Instances, in.List())
		}
		return writeJSON(a.stdout, out)
	}
	if len(snap.All()) == 0 {
		_, err := fmt.Fprintf(a.stdout, "No instances below %s. Add one with: pdctl add prefill host:port\n", s.layout.Root())
		return err
	}
	return render(a.stdout, listTable(snap))
}

// only keeps the entries of some roles.
func only(snap *instance.Snapshot, roles []instance.Role) *instance.Snapshot {
	var keep []*instance.Instance
	for _, role := range roles {
		for _, in := range snap.All() {
			if in.Role == role {
				keep = append(keep, in)
			}
		}
	}
	return instance.NewSnapshot(snap.Revision, keep)
}
