// Package show implements the commands that only read: list, get, watch, history and status.
package show

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

// listHelp has the columns as columns.go has them.
func listHelp() string {
	return `list shows all instances, whether proxies use them or not.

` + columnsHelp(func(w when) bool { return w != ifAsked }) + `
Columns without a value may be left out. Below the table are removals of instances that are
not registered ("pdctl allow"), except with --selector. A selector that no instance matches is
an error (exit 1).

-o wide has all of these columns, and:

` + columnsHelp(func(w when) bool { return w == ifAsked }) + `
-o json prints {"revision": N, "instances": [...], "removed": [...]}, each instance as
the /status of a proxy shows it.`
}

// List returns the command list.
func List(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use: "list [prefill|decode]", Short: "list the instances", Long: listHelp(),
		Example: "  pdctl list\n  pdctl list decode\n  pdctl list -o wide --selector state=ready --selector rack=3\n  pdctl list -o json | jq '.instances[] | select(.state == \"down\")'",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			roles := instance.Roles()
			if len(args) == 1 {
				role, err := instance.ParseRole(args[0])
				if err != nil {
					return cli.Wrong(err)
				}
				roles = []instance.Role{role}
			}
			return list(cmd.Context(), s, roles)
		},
	}
}

// listing is the JSON form of list.
type listing struct {
	Revision  int64              `json:"revision"`
	Instances []instance.Listing `json:"instances"`
	Removed   []Removal          `json:"removed"`
}

// Removal is an instance that an operator took out and that is not registered,
// in the JSON form of list.
type Removal struct {
	Role     instance.Role `json:"role"`
	Address  string        `json:"address"`
	By       string        `json:"by,omitempty"`
	Reason   string        `json:"reason,omitempty"`
	Revision int64         `json:"revision"` // mod_revision of the override
}

func list(ctx context.Context, s *session.Session, roles []instance.Role) error {
	sel, err := s.Selectors.Parse()
	if err != nil {
		return err
	}
	conn, err := s.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	snap, removals, err := conn.Store.Reader.List(ctx)
	if err != nil {
		return s.Hint(err)
	}
	proxies, err := conn.Store.Reader.Proxies(ctx)
	if err != nil {
		return s.Hint(err)
	}
	all := lease.Seen(snap, proxies)
	snap = sel.Filter(only(all, roles))
	removed := []Removal{}
	if len(sel) == 0 {
		removed = removedOf(removals, roles)
	}
	if s.Out.Structured() {
		out := listing{Revision: snap.Revision, Instances: []instance.Listing{}, Removed: removed}
		for _, in := range snap.All() {
			out.Instances = append(out.Instances, in.Listed(session.DefaultConnector(proxies)))
		}
		if err := s.Out.Write(out); err != nil {
			return err
		}
	}
	switch {
	case len(snap.All()) == 0 && len(sel) > 0:
		return s.Selectors.NoMatch("", all)
	case s.Out.Structured():
		return nil
	}
	if len(snap.All()) == 0 {
		if _, err := fmt.Fprintf(s.Out.Stdout, "No instances below %s. Add one with: pdctl add prefill host:port\n", conn.Layout.Root()); err != nil {
			return err
		}
	} else if err := output.Render(s.Out.Stdout, listTable(snap, session.DefaultConnector(proxies), s.Out.Wide())); err != nil {
		return err
	}
	return printRemoved(s, removed)
}

// removedOf returns the removals of some roles.
func removedOf(removals []store.Removal, roles []instance.Role) []Removal {
	out := []Removal{}
	for _, r := range removals {
		if slices.Contains(roles, r.Key.Role) {
			out = append(out, Removal{
				Role: r.Key.Role, Address: instance.Printable(r.Key.Address, 0), By: instance.Printable(r.By, 80),
				Reason: instance.Printable(r.Reason, 200), Revision: r.Revision,
			})
		}
	}
	return out
}

func printRemoved(s *session.Session, removed []Removal) error {
	for _, r := range removed {
		line := fmt.Sprintf("removed: %s/%s", r.Role, r.Address)
		if r.By != "" {
			line += " by " + r.By
		}
		if r.Reason != "" {
			line += ": " + r.Reason
		}
		if err := s.Out.Println(line); err != nil {
			return err
		}
	}
	return nil
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
