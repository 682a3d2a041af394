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

const allowHelp = `allow undoes the removal of instances, and adds nothing.

After "pdctl remove", an instance stays removed, whatever registers at its address. After
"pdctl allow", its agent registers it again within seconds, with the same connector, lease
and drain. A node that registers with curl must write its key again. "pdctl add" undoes a
removal too, but writes a static instance: proxies then use that one, and the agent does
not register.

If an instance was removed and then added, and its agent should register it again, use
remove and then allow. Allowing an instance that is not removed is an error (exit 1).

A removal is a key in etcd without a time limit. If addresses never return, as those of
pods, end the removals from time to time, as in the second example, which ends all.
"both" allows an engine in both roles.`

// Allow returns the command allow.
func Allow(s *session.Session) *cobra.Command {
	return s.Audits(&cobra.Command{
		Use: "allow [ROLE/]HOST:PORT...", Short: "undo removals, so that agents register again", Long: allowHelp,
		Example: "  pdctl allow decode 10.0.0.8:8200 10.0.0.9:8200 --reason \"disks replaced\"\n" +
			`  pdctl allow $(pdctl list -o json | jq -r '.removed[] | .role + "/" + .address')`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			named, err := s.Named(cmd.Context(), args, session.BothRoles)
			if err != nil {
				return err
			}
			return s.With(cmd.Context(), func(conn *session.Conn) error {
				return allow(cmd.Context(), s, conn, instance.Memberships(named))
			})
		},
	})
}

func allow(ctx context.Context, s *session.Session, conn *session.Conn, keys []instance.Key) error {
	results := make([]session.Result, 0, len(keys))
	for _, k := range keys {
		r := session.Result{Role: k.Role, Address: k.Address}
		removed, err := conn.Store.Instances.Allow(ctx, k, s.Reason)
		switch {
		case err != nil:
			r = r.Failed("%w", err)
		case !removed:
			r = r.Failed("it is not removed; nothing changed")
		default:
			r.Outcome, r.Text = "allowed", "allowed; proxies use it again when it registers"
		}
		results = append(results, r)
		s.Line(r)
	}
	return s.Finish(results)
}
