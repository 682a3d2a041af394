package member

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

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
