// Package show implements the commands list, get, watch, history, status and version, which only read.
package show

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/loaddigest"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

// listHelp returns the help of list, with the columns that columns returns.
func listHelp() string {
	return `list shows all instances, whether proxies use them or not.

` + columnsHelp(false) + `
Below the table are the newest 20 removals of instances that are not registered ("pdctl
allow"), except with --selector. A selector that no instance matches is an error (exit 1).

-o wide has all of these columns, and:

` + columnsHelp(true) + `
-o json prints {"revision": N, "instances": [...], "removed": [...]}, each instance as
the /status of a proxy shows it: "status" is the column STATE without what is in
parentheses, and "state" is the state in the record of the instance.`
}

// List returns the command list.
func List(s *session.Session) *cobra.Command {
	var order string
	cmd := &cobra.Command{
		Use: "list [prefill|decode]", Aliases: []string{"ls"}, Short: "list the instances", Long: listHelp(),
		Example: "  pdctl list\n  pdctl list decode --sort-by in-flight\n  pdctl list --proxy http://10.0.0.1:8000\n  pdctl list -o wide --selector state=ready --selector rack=3\n  pdctl list -o json | jq '.instances[] | select(.status == \"down\")'",
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
			if err := sortBy(nil, order); err != nil {
				return err
			}
			return list(cmd.Context(), s, roles, order)
		},
	}
	cmd.Flags().StringVar(&order, "sort-by", "", "column to sort by, smallest first, e.g. age, in-flight or state (default: role and address)")
	return cmd
}

// listing is the JSON form of list.
type listing struct {
	Revision  int64              `json:"revision"`
	Instances []instance.Listing `json:"instances"`
	Removed   []Removal          `json:"removed"`
}

// Removal is an instance that an operator removed and that is not registered,
// in the JSON form of list.
type Removal struct {
	Role     instance.Role `json:"role"`
	Address  string        `json:"address"`
	By       string        `json:"by,omitempty"`
	Reason   string        `json:"reason,omitempty"`
	Revision int64         `json:"revision"` // mod_revision of the override
}

func list(ctx context.Context, s *session.Session, roles []instance.Role, order string) error {
	if s.Proxy != "" {
		return proxyList(ctx, s, roles, order)
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
	loads, err := conn.Store.Reader.Loads(ctx)
	if err != nil && !session.RefusedUser(err) { // a user may have no rights for them
		return s.Hint(err)
	}
	ends, err := conn.Store.Reader.Ends(ctx, conn.Layout.Overrides(),
		conn.Layout.Pending(instance.Key{Role: instance.Prefill}), conn.Layout.Pending(instance.Key{Role: instance.Decode}))
	if err != nil && !session.RefusedUser(err) {
		return s.Hint(err)
	}
	s.NoteKept(proxies, "")
	all := lease.Seen(snap, proxies)
	removed := []Removal{}
	if len(s.Selector) == 0 {
		removed = removedOf(removals, roles)
	}
	entries := []*listed{}
	for _, in := range s.Selector.Filter(all).All() {
		if !slices.Contains(roles, in.Role) {
			continue
		}
		e := &listed{in, in.Listed(session.DefaultConnector(proxies))}
		e.InFlight = inFlight(loads, in.Key)
		if at, ok := ends[in.Key]; ok {
			e.Ends = &at
		}
		entries = append(entries, e)
	}
	return printList(s, entries, order, removed, all, conn.Layout.Root())
}

// inFlight returns the number of requests that proxies have in flight at an instance, nil if none
// publishes it.
func inFlight(loads []*loaddigest.ProxyLoad, k instance.Key) *int64 {
	var sum *int64
	for _, l := range loads {
		c, known := l.Load[k.String()]
		if l.Ignored != "" || !known && l.LeftOut > 0 {
			continue
		}
		if sum == nil {
			sum = new(int64)
		}
		*sum += c.InFlight
	}
	return sum
}

// printList prints entries of a snapshot, and removals, in the format of -o.
func printList(s *session.Session, entries []*listed, order string, removed []Removal, snap *instance.Snapshot, root string) error {
	if err := sortBy(entries, order); err != nil {
		return err
	}
	var none error
	if len(entries) == 0 && len(s.Selector) > 0 {
		none = s.NoMatch("", snap)
	}
	switch {
	case s.Out.Structured():
		out := listing{Revision: snap.Revision, Instances: []instance.Listing{}, Removed: removed}
		for _, e := range entries {
			out.Instances = append(out.Instances, e.Listing)
		}
		return cmp.Or(s.Out.Write(out), none)
	case s.Out.Format == output.Name:
		for _, e := range entries {
			s.Out.Printf("%s/%s\n", e.Role, instance.Printable(e.Address, 0))
		}
		return none
	case none != nil:
		return none
	case len(entries) == 0:
		s.Out.Printf("No instances below %s. Add one with: pdctl add prefill host:port\n", root)
	default:
		s.Out.Printf("%s\n", listTable(entries, s.Out.Format == output.Wide).Render())
	}
	printRemoved(s, removed)
	return nil
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

// maxRemoved bounds the removals that are printed.
const maxRemoved = 20

func printRemoved(s *session.Session, removed []Removal) {
	slices.SortFunc(removed, func(a, b Removal) int { return cmp.Compare(b.Revision, a.Revision) })
	for i, r := range removed {
		if i == maxRemoved {
			s.Out.Printf("removed: %d older; pdctl list -o json shows all, pdctl allow ends them\n", len(removed)-i)
			return
		}
		line := fmt.Sprintf("removed: %s/%s", r.Role, r.Address)
		if r.By != "" {
			line += " by " + r.By
		}
		if r.Reason != "" {
			line += ": " + r.Reason
		}
		s.Out.Printf("%s\n", line)
	}
}

func listTable(entries []*listed, wide bool) table.Writer {
	var header table.Row
	rows := make([]table.Row, len(entries))
	for _, c := range columns() {
		if c.wide && !wide {
			continue
		}
		header = append(header, c.name)
		for i, e := range entries {
			rows[i] = append(rows[i], cmp.Or(c.cell(e), "-"))
		}
	}
	t := output.NewTable(header...)
	t.AppendRows(rows)
	return t
}

// sortBy sorts entries by a column, numbers and ages by size, otherwise in the order of the text.
func sortBy(entries []*listed, name string) error {
	if name == "" {
		return nil
	}
	wanted := strings.NewReplacer("-", " ", "_", " ").Replace(strings.ToUpper(name))
	var known []string
	for _, c := range columns() {
		if c.name != wanted {
			known = append(known, strings.ReplaceAll(strings.ToLower(c.name), " ", "-"))
			continue
		}
		slices.SortStableFunc(entries, func(a, b *listed) int {
			if c.name == "AGE" { // the youngest first, those without an age last
				return cmp.Compare(b.started(), a.started())
			}
			x, y := c.cell(a), c.cell(b)
			n, errX := strconv.ParseInt(x, 10, 64)
			m, errY := strconv.ParseInt(y, 10, 64)
			if errX == nil && errY == nil {
				return cmp.Compare(n, m)
			}
			return cmp.Compare(x, y)
		})
		return nil
	}
	return cli.Wrongf("--sort-by %q: use one of %s", name, strings.Join(known, ", "))
}
