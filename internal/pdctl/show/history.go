package show

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const historyHelp = `history shows the changes of the fleet, or of one instance, oldest first.

It combines two sources, ordered by revision. Every change by an operator or a proxy has an
audit entry for 30 days: who, what, why. etcd has the changes of the membership that it
has not compacted yet: registrations, states, ends of leases. These have no time and no
author; --since leaves out the audit entries up to the first one since that time, and what is
before them. Later entries with an older time, of a clock that is wrong, are shown.`

// History returns the command history.
func History(s *session.Session) *cobra.Command {
	var limit int
	var text string
	cmd := &cobra.Command{
		Use: "history [[ROLE/]HOST:PORT]", Short: "show who changed what, and what happened", Long: historyHelp,
		Example: "  pdctl history\n  pdctl history --since 2h\n  pdctl history decode 10.0.0.8:8200 --limit 20\n  pdctl history -o json | jq '.events[] | select(.who)'  # without registrations",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 2 {
				return fmt.Errorf("too many arguments: use none, or one instance as role/host:port")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit <= 0 {
				return cli.Wrongf("--limit %d: must be 1 or more", limit)
			}
			from, err := sinceTime(text, time.Now())
			if err != nil {
				return err
			}
			var of *instance.Key
			if len(args) > 0 {
				k, err := s.One(cmd.Context(), args)
				if err != nil {
					return err
				}
				of = &k
			}
			return s.With(cmd.Context(), func(conn *session.Conn) error { return history(cmd.Context(), s, conn, of, from, limit) })
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 100, "show at most this many, the newest")
	cmd.Flags().StringVar(&text, "since", "", "only events since a time (2026-11-27T09:00:00Z, 2026-11-27), or since a duration ago (2h)")
	return cmd
}

// sinceTime returns the time that the flag --since names, the zero time for "".
func sinceTime(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := settings.Duration(text); err == nil && d > 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return time.Time{}, cli.Wrongf("--since %q: use a duration such as 2h, or a time such as 2026-11-27T09:00:00Z or 2026-11-27 (UTC)", instance.Printable(text, 40))
}

// event is one line of the history.
type event struct {
	Revision int64         `json:"revision"`
	At       *time.Time    `json:"at,omitempty"` // by the clock of the writer
	Who      string        `json:"who,omitempty"`
	What     string        `json:"what"`
	Role     instance.Role `json:"role,omitempty"`
	Address  string        `json:"address,omitempty"`
	Why      string        `json:"why,omitempty"`
	For      string        `json:"for,omitempty"`
	Weight   *int          `json:"weight,omitempty"`
}

// about reports whether the event concerns this instance; nil matches every event.
func (h *event) about(k *instance.Key) bool {
	if k == nil {
		return true
	}
	address, err := instance.ParseAddress(h.Address)
	if err != nil {
		address = h.Address
	}
	return address == k.Address && (h.Role == k.Role || h.Role == instance.Both)
}

func history(ctx context.Context, s *session.Session, conn *session.Conn, of *instance.Key, from time.Time, limit int) error {
	events, since, err := pastEvents(ctx, s, conn, of, from, limit)
	if err != nil {
		return err
	}
	if s.Out.Structured() {
		return s.Out.Write(map[string]any{"events": events, "remembered_since": since})
	}
	if len(events) == 0 {
		return s.Out.Println("There is no history.")
	}
	if printEvents(s, events); since > 1 {
		s.Out.Printf("\netcd has registrations only since revision %d.\n", since)
	}
	return nil
}

// pastEvents returns the newest events since a time, at most limit, oldest first, and the first revision
// that etcd has not compacted.
func pastEvents(ctx context.Context, s *session.Session, conn *session.Conn, of *instance.Key, from time.Time, limit int) ([]event, int64, error) {
	entries, err := conn.Store.Reader.AuditLog(ctx, 0)
	if err != nil {
		return nil, 0, s.Hint(err)
	}
	changes, since, err := conn.Store.Reader.Past(ctx)
	if err != nil {
		return nil, 0, s.Hint(err)
	}
	events := []event{}
	audited := map[int64]bool{}
	older := int64(0) // revision of the last entry before the first one since from
	for _, e := range slices.Backward(entries) {
		audited[e.Revision] = true
		if len(events) == 0 && e.At.Before(from) {
			older = e.Revision
			continue
		}
		one := event{
			Revision: e.Revision, At: &e.At, Who: instance.Printable(e.Who, 80), What: instance.Printable(e.What, 40), Role: e.Role,
			Address: instance.Printable(e.Address, 300), Why: instance.Printable(e.Why, 300), For: instance.Printable(e.For, 40), Weight: e.Weight,
		}
		if e.Role != "" || len(e.Changes) == 0 {
			events = append(events, one)
			continue
		}
		seen := map[instance.Key]bool{}
		for _, c := range e.Changes { // several keys; an instance may have two of them
			n := conn.Layout.Parse(conn.Layout.Root() + c.Key)
			if k := (n.Key); !seen[k] {
				seen[k] = true
				one.Role, one.Address = n.Role, instance.Printable(n.Address, 300)
				events = append(events, one)
			}
		}
	}
	for _, p := range changes {
		if !audited[p.Revision] && p.Revision > older {
			events = append(events, event{Revision: p.Revision, What: describe(p), Role: p.Key.Role, Address: instance.Printable(p.Key.Address, 300)})
		}
	}
	events = slices.DeleteFunc(events, func(h event) bool { return !h.about(of) })
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.Revision, b.Revision) })
	return events[max(0, len(events)-limit):], since, nil
}

func printEvents(s *session.Session, events []event) {
	t := output.NewTable("REVISION", "AT", "WHO", "WHAT", "INSTANCE", "WHY")
	for _, h := range events {
		at := "-"
		if h.At != nil {
			at = h.At.UTC().Format(time.RFC3339)
		}
		what, in := h.What, "-"
		switch {
		case h.Weight != nil:
			what += fmt.Sprintf(" %d", *h.Weight)
		case h.What == "weight":
			what += " default"
		}
		if h.For != "" {
			what += " for " + h.For
		}
		if h.Address != "" {
			in = string(h.Role) + "/" + h.Address
		}
		t.AppendRow([]any{h.Revision, at, cmp.Or(h.Who, "-"), what, in, cmp.Or(h.Why, "-")})
	}
	s.Out.Printf("%s\n", t.Render())
}

// describe returns the text for a past change without an audit entry.
func describe(p store.Past) string {
	switch {
	case p.Kind == schema.KindPending && p.Deleted:
		return "pending add ended"
	case p.Kind == schema.KindPending:
		return "pending add"
	case p.Kind == schema.KindOverride && p.Deleted:
		return "intent ended" // with its lease, or by hand
	case p.Kind == schema.KindOverride:
		return "intent written by hand"
	case p.Deleted:
		return "registration ended"
	}
	var rec struct {
		State instance.State `json:"state"`
		Cause string         `json:"cause"`
	}
	what := "record changed"
	if p.Created {
		what = "registered"
	}
	if json.Unmarshal(p.Value, &rec) == nil && rec.State != "" {
		what += ": " + instance.Printable(string(rec.State), 32)
		if rec.Cause != "" {
			what += " (" + instance.Printable(rec.Cause, 32) + ")"
		}
	}
	return what
}

// change is one difference between two snapshots.
type change struct {
	kind     string // "+", "-" or "~"
	revision int64
	in       *instance.Instance // as it is now, or for "-" as it was
	what     []string           // for "~": the differences, printable
}

// diff returns the changes from one snapshot to next, in the order of the snapshots, but with the
// removals last.
func diff(prev, next *instance.Snapshot) []change {
	var out, removed []change
	instance.Changes(prev, next, func(was, is *instance.Instance) {
		switch {
		case was == nil:
			out = append(out, change{kind: "+", revision: is.ModRevision, in: is})
		case is == nil:
			removed = append(removed, change{kind: "-", revision: next.Revision, in: was})
		default:
			what, revision := differences(was, is), is.ModRevision
			if was.ModRevision == is.ModRevision { // an override changes an instance without changing its key
				revision = next.Revision
			}
			if len(what) > 0 {
				out = append(out, change{kind: "~", revision: revision, in: is, what: what})
			}
		}
	})
	return append(out, removed...)
}

func differences(was, is *instance.Instance) []string {
	var out []string
	differ := func(name, a, b string) {
		if a != b {
			out = append(out, fmt.Sprintf("%s %s -> %s", name, output.Shown(a), output.Shown(b)))
		}
	}
	a, b := was.Record, is.Record
	differ("state", string(a.State), string(b.State))
	differ("cause", a.Cause, b.Cause)
	differ("view", string(was.View), string(is.View))
	differ("intent", string(was.Intent), string(is.Intent))
	differ("id", was.Incarnation(), is.Incarnation())
	differ("models", strings.Join(a.Models, ","), strings.Join(b.Models, ","))
	differ("connector", a.Connector, b.Connector)
	differ("kv_role", a.KVRole, b.KVRole)
	differ("weight", output.Weight(a.Weight), output.Weight(b.Weight))
	differ("version", a.Version, b.Version)
	differ("max_model_len", strconv.Itoa(a.MaxModelLen), strconv.Itoa(b.MaxModelLen))
	differ("scheme", a.Scheme, b.Scheme)
	differ("source", a.Source, b.Source)
	differ("for", strings.Join(a.Proxies, ","), strings.Join(b.Proxies, ","))
	differ("host_id", a.HostID, b.HostID)
	differ("agent", a.Agent, b.Agent)
	differ("reason", was.Reason, is.Reason)
	if !maps.Equal(a.Labels, b.Labels) {
		out = append(out, "labels "+output.Labels(a.Labels)+" -> "+output.Labels(b.Labels))
	}
	if was.Lease != is.Lease {
		out = append(out, fmt.Sprintf("lease %s -> %s", output.LeaseName(was.Lease), output.LeaseName(is.Lease)))
	}
	if len(out) == 0 && was.ModRevision != is.ModRevision {
		out = append(out, "rewritten")
	}
	return out
}
