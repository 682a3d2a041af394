package member

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const removeHelp = `remove takes instances and pending adds out of the fleet permanently.

Every proxy stops sending requests to them at once; requests that run there go on. The
removal is stored in etcd and takes precedence over registrations at that address, so a
running agent is refused: "pdmesh-agent health" fails within a second, with the reason. "pdctl allow"
undoes it and lets the agent register again; "pdctl add" undoes it and adds a static instance.

Removing an instance that is not in etcd is an error (exit 1) and changes nothing.
--force removes it anyway: an instance that has lost its lease has no key, and proxies
use it while it answers (view "orphan" in their /status). An entry whose address is not
well formed is removed by the address that list shows.

"both" removes an engine from both roles, in one transaction. It must have both.`

// Remove returns the command remove.
func Remove(s *session.Session) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "remove [ROLE/]HOST:PORT...", Aliases: []string{"rm"}, SuggestFor: []string{"delete"}, Short: "remove instances", Long: removeHelp,
		Example: "  pdctl remove prefill 10.0.0.7:8100\n  pdctl remove decode 10.0.0.8:8200 10.0.0.9:8200 --reason \"new disks\"",
		Args:    s.NamedOrSelected(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.WithChosen(cmd.Context(), args, session.Malformed, func(conn *session.Conn, keys []instance.Key) error {
				return remove(cmd.Context(), s, conn, keys, force)
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "remove it even if it is not in etcd")
	return s.Audits(cmd)
}

func remove(ctx context.Context, s *session.Session, conn *session.Conn, keys []instance.Key, force bool) error {
	if err := s.Confirm(ctx, conn, keys); err != nil {
		return err
	}
	var results []session.Result
	for _, k := range keys {
		r := session.Result{Role: k.Role, Address: k.Address}
		remove := conn.Store.Instances.Remove
		if force {
			remove = conn.Store.Instances.ForceRemove
		}
		existed, err := remove(ctx, k, s.Reason)
		switch {
		case err != nil:
			r = r.Failed("%w", err)
		case !existed && force:
			r.Outcome, r.Text = "forbidden", "was not there; forbidden until it is added"
		case !existed:
			r = r.Failed("there is no such instance; see pdctl list")
		default:
			r.Outcome, r.Text = "removed", "removed"
		}
		for _, one := range k.Each() {
			r.Role = one.Role
			if r.Outcome == "removed" && store.CheckKey(one) == nil {
				r.Text = fmt.Sprintf("removed; an agent there is refused until: pdctl allow %s %s", one.Role, one.Address)
			}
			results = append(results, r)
			s.Line(r)
		}
	}
	return s.Finish(results)
}
