package intent

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const roleHelp = `role keeps an engine that is registered in both roles (--role both) in one of them:
proxies send it new requests in that role only. "both" lets it serve both again.

The engine does not restart: the other role is drained, with a mark, and pdctl list shows
it there as decode-only or prefill-only. Requests that run there go on. Proxies of an
earlier release see a drain. The role stays when the engine or the agent restarts; with
--for it ends after that time. "both" ends it also while the engine is not registered.
So do drain, cordon and undrain of the other role: afterwards the engine serves both.
While the engine is registered in one role only, the role has no effect.

It is an error (exit 1) if the engine has the record of one role only, if its connector
can't serve in the role, if its weight there is 0, if an operator has drained, cordoned or
removed it in one of the roles, or if no other usable instance of the role that it leaves
serves its models (--force allows that).

With --wait, role returns when no proxy has requests in flight in the role that the engine
leaves. The exit codes are those of "pdctl drain --wait".`

// Role returns the command role.
func Role(s *session.Session) *cobra.Command {
	var f intentFlags
	cmd := &cobra.Command{
		Use: "role prefill|decode|both host:port...", Short: "keep engines of both roles in one of them", Long: roleHelp,
		Example: "  pdctl role decode 10.0.0.6:8100 --reason \"long answers at night\" --wait\n" +
			"  pdctl role prefill 10.0.0.6:8100 --for 2h\n  pdctl role both 10.0.0.6:8100",
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			role, err := instance.ParseRoles(args[0])
			if err != nil {
				return cli.Wrong(err)
			}
			keys, err := s.Named(cmd.Context(), args, session.BothRoles)
			if err != nil {
				return err
			}
			if err := f.checkWait(s, cmd); err != nil {
				return err
			}
			if role == instance.Both && (f.options.For > 0 || f.options.Auto) {
				return cli.Wrongf("--for and --auto need the role prefill or decode")
			}
			return s.With(cmd.Context(), func(conn *session.Conn) error { return setRole(cmd.Context(), s, conn, keys, f) })
		},
	}
	f.add(cmd)
	fs := cmd.Flags()
	fs.BoolVar(&f.wait, "wait", false, "return when no proxy has requests in flight in the role that is left")
	settings.DurationVar(fs, &f.limit, "timeout", waitLimit, "how long to try to reach etcd, by default 2s; with --wait: how long to wait")
	fs.BoolVar(&f.options.Auto, "auto", false, "let proxies with --auto-roles on change the role again")
	fs.BoolVar(&f.options.Force, "force", false, "change it also if that leaves a role without an instance")
	return cmd
}

func setRole(ctx context.Context, s *session.Session, conn *session.Conn, keys []instance.Key, f intentFlags) error {
	proxies, err := conn.Store.Reader.Proxies(ctx)
	if err != nil {
		return s.Hint(err)
	}
	usual := session.DefaultConnector(proxies)
	f.options.Fits = func(k instance.Key, rec instance.Record) error { return connector.Lacks(k, rec, usual) }
	results, revision := apply(s, keys, func(k instance.Key) (store.IntentResult, error) {
		return conn.Store.Intents.SetRole(ctx, k.Address, k.Role, f.options)
	}, func(r *session.Result, done store.IntentResult) {
		if r.Outcome, r.Text = "role", string(r.Role)+" only"; r.Role == instance.Both {
			r.Text = "in both roles"
		}
		switch {
		case !done.Changed:
			r.Text += " already"
		case f.options.For > 0:
			r.Text += fmt.Sprintf(" for %s", f.options.For)
		}
	})
	var left []instance.Key
	for _, r := range results {
		if r.Outcome != "failed" && r.Role != instance.Both {
			left = append(left, instance.Key{Role: r.Role.Other(), Address: r.Address})
		}
	}
	if !f.wait || len(left) == 0 {
		return s.Finish(results)
	}
	waited := awaitFree(ctx, s, conn, revision, left, f.limit)
	for _, k := range left {
		if waited == nil {
			s.Line(session.Result{Role: k.Role, Address: k.Address, Text: idle})
		}
	}
	return cmp.Or(waited, s.Finish(results))
}
