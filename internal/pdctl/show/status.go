package show

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/loaddigest"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const statusHelp = `status shows the health of etcd, the registered instances, and the running proxies.

IN FLIGHT is the number of requests in flight in the proxy's load digest. DIGEST AGE is
measured by the clocks of the proxy and of this machine. A proxy without requests writes
no further digest.

With the etcd alarm NOSPACE no instance can register; "pdctl doctor" has the remedy. A
proxy whose APPLIED stays lower than "membership revision", the newest of all keys that
exist, does not follow etcd.

STATES counts the states that pdctl list shows.

An error is a proxy that cannot serve any request. A notice is another problem of the fleet
that a proxy reports, such as a role whose instances are not used, or a connector that
transfers nothing. Its numbers can be some seconds old; the proxy's /status has the current ones.
-o json has both under "proxies".

The exit code is 1 when etcd does not answer, or has an alarm, or when a proxy reports that
nothing is served.`

// Status returns the command status.
func Status(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "show the health of etcd, the instances and the proxies", Long: statusHelp,
		Example: "  pdctl status\n  pdctl status --proxy http://10.0.0.1:8000\n  pdctl status -o json | jq .proxies",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s.Proxy != "" {
				return proxyState(cmd.Context(), s)
			}
			return s.With(cmd.Context(), func(conn *session.Conn) error { return status(cmd.Context(), s, conn) })
		},
	}
}

// statusReport is the JSON form of status.
type statusReport struct {
	Endpoints  []endpointReport          `json:"endpoints"`
	Alarms     []string                  `json:"alarms"`
	Prefix     string                    `json:"prefix"`
	Revision   int64                     `json:"revision"`
	Membership int64                     `json:"membership_revision"` // highest mod_revision of the keys that proxies follow
	Counts     map[string]map[string]int `json:"counts"`              // role → state → number of instances
	Proxies    []proxyReport             `json:"proxies"`
	Notes      notes                     `json:"notes,omitempty"`
}

type endpointReport struct {
	Endpoint string `json:"endpoint"`
	Version  string `json:"version,omitempty"`
	DBSize   int64  `json:"db_size,omitempty"` // bytes
	Leader   bool   `json:"leader,omitempty"`
	Error    string `json:"error,omitempty"`
}

type proxyReport struct {
	ID      string `json:"id"`
	Address string `json:"address,omitempty"`
	Version string `json:"version,omitempty"`
	Applied int64  `json:"applied"`
	// Load is its load digest; nil if it publishes none.
	Load *loadReport `json:"load,omitempty"`
	// NotServing is why the proxy can serve no request, "" if it can.
	NotServing string `json:"not_serving,omitempty"`
	// Notices are the other problems that the proxy reports.
	Notices []string `json:"notices,omitempty"`
}

// loadReport is a proxy's load digest.
type loadReport struct {
	Applied   int64      `json:"applied"` // revision of the membership that picks use
	At        *time.Time `json:"at,omitempty"`
	Instances int        `json:"instances"` // with something in flight
	InFlight  int64      `json:"in_flight"`
	Ignored   string     `json:"ignored,omitempty"`
}

func loadReports(loads []*loaddigest.ProxyLoad) map[string]*loadReport {
	out := map[string]*loadReport{}
	for _, l := range loads {
		r := &loadReport{Applied: l.Applied, At: l.At, Instances: len(l.Load) + l.LeftOut, Ignored: l.Ignored}
		for _, c := range l.Engines {
			r.InFlight += c.InFlight
		}
		out[l.ID] = r
	}
	return out
}

// age returns the age of the digest, by the clocks of the proxy and of this machine.
func (r *loadReport) age(now time.Time) string {
	switch {
	case r == nil:
		return "-"
	case r.Ignored != "":
		return "not usable"
	case r.At == nil:
		return "?"
	}
	return max(0, now.Sub(*r.At)).Round(100 * time.Millisecond).String()
}

func status(ctx context.Context, s *session.Session, conn *session.Conn) error {
	snap, err := conn.Store.Reader.Snapshot(ctx)
	if err != nil {
		return s.Hint(err)
	}
	rep := statusReport{
		Endpoints: askEndpoints(ctx, s, conn), Prefix: conn.Layout.Root(), Revision: snap.Revision, Proxies: []proxyReport{},
	}
	instances, documents, err := conn.Store.Reader.Newest(ctx)
	rep.Membership = max(instances, documents)
	rep.Notes.add("membership revision", err)
	// A user who may read only the keys of pdmesh cannot read the alarms. That is not a failure.
	rep.Alarms, err = askAlarms(ctx, s, conn)
	rep.Notes.add("alarms", err)
	proxies, err := conn.Store.Reader.Proxies(ctx)
	rep.Notes.add("proxies", err)
	loads, err := conn.Store.Reader.Loads(ctx)
	rep.Notes.add("load digests", err)
	digests := loadReports(loads)
	rep.Counts = counts(lease.Seen(snap, proxies))
	unserving := 0
	for _, p := range proxies {
		if p.NotServing != "" {
			unserving++
		}
		rep.Proxies = append(rep.Proxies, proxyReport{
			ID: instance.Printable(p.ID, 64), Address: instance.Printable(p.Address, 100),
			Version: instance.Printable(p.Version, 40), Applied: p.Applied,
			NotServing: p.NotServing, Notices: p.Notices, Load: digests[p.ID],
		})
	}
	if s.Out.Structured() {
		err = s.Out.Write(rep)
	} else {
		err = printStatus(s, rep)
	}
	switch {
	case err != nil:
	case len(rep.Alarms) > 0:
		err = fmt.Errorf("etcd has an alarm: %s", strings.Join(rep.Alarms, ", "))
	case unserving > 0:
		err = fmt.Errorf("nothing is served by %d of %d proxies", unserving, len(rep.Proxies))
	}
	return err
}

func askEndpoints(ctx context.Context, s *session.Session, conn *session.Conn) []endpointReport {
	var out []endpointReport
	for _, e := range conn.Client.Endpoints() {
		r := endpointReport{Endpoint: e}
		cctx, cancel := context.WithTimeout(ctx, min(s.Timeout, 2*time.Second))
		st, err := conn.Client.Status(cctx, e)
		cancel()
		if err != nil {
			r.Error = instance.Printable(err.Error(), 200)
		} else {
			r.Version, r.DBSize = st.Version, st.DbSize
			r.Leader = st.Leader != 0 && st.Leader == st.Header.MemberId
		}
		out = append(out, r)
	}
	return out
}

// askAlarms returns the alarms of etcd, an empty list with an error.
func askAlarms(ctx context.Context, s *session.Session, conn *session.Conn) ([]string, error) {
	cctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	out := []string{}
	resp, err := conn.Client.AlarmList(cctx)
	if err != nil {
		return out, err
	}
	for _, al := range resp.Alarms {
		out = append(out, fmt.Sprintf("%s on member %x", al.Alarm, al.MemberID))
	}
	slices.Sort(out)
	return out, nil
}

// counts returns the number of entries of each role by instance.Status.
func counts(snap *instance.Snapshot) map[string]map[string]int {
	out := make(map[string]map[string]int)
	for _, role := range instance.Roles() {
		out[string(role)] = make(map[string]int)
	}
	for _, in := range snap.All() {
		out[string(in.Role)][in.Status()]++
	}
	return out
}

func printStatus(s *session.Session, rep statusReport) error {
	printMembers(s, rep.Endpoints)
	s.Out.Printf("\nalarms: %s\nkeys below: %s\nrevision: %d\nmembership revision: %d\n\n",
		cmp.Or(strings.Join(rep.Alarms, ", "), "none"), rep.Prefix, rep.Revision, rep.Membership)
	printCounts(s, rep.Counts)
	s.Out.Printf("\n")
	printProxies(s, rep.Proxies)
	printNotices(s, "error", rep.Proxies, func(p *proxyReport) []string {
		if p.NotServing == "" {
			return nil
		}
		return []string{p.NotServing}
	})
	printNotices(s, "notice", rep.Proxies, func(p *proxyReport) []string { return p.Notices })
	rep.Notes.print(s)
	return s.Out.Err()
}

// printMembers prints the members of etcd.
func printMembers(s *session.Session, members []endpointReport) {
	t := output.NewTable("ETCD", "VERSION", "DB SIZE", "MEMBER")
	for _, e := range members {
		member := "follower"
		if e.Leader {
			member = "leader"
		}
		if e.Error != "" {
			t.AppendRow([]any{e.Endpoint, "-", "-", "no answer: " + e.Error})
			continue
		}
		t.AppendRow([]any{e.Endpoint, e.Version, output.ByteSize(e.DBSize), member})
	}
	s.Out.Printf("%s\n", t.Render())
}

func printCounts(s *session.Session, counts map[string]map[string]int) {
	t := output.NewTable("ROLE", "INSTANCES", "STATES")
	for _, role := range instance.Roles() {
		total := 0
		var parts []string
		for _, state := range slices.Sorted(maps.Keys(counts[string(role)])) {
			n := counts[string(role)][state]
			total += n
			parts = append(parts, fmt.Sprintf("%d %s", n, state))
		}
		t.AppendRow([]any{role, total, cmp.Or(strings.Join(parts, ", "), "-")})
	}
	s.Out.Printf("%s\n", t.Render())
}

func printProxies(s *session.Session, proxies []proxyReport) {
	if len(proxies) == 0 {
		s.Out.Printf("No proxy is registered in etcd.\n")
		return
	}
	t := output.NewTable("PROXY", "ADDRESS", "VERSION", "APPLIED", "IN FLIGHT", "DIGEST AGE")
	for _, p := range proxies {
		inFlight := any("-")
		if p.Load != nil && p.Load.Ignored == "" {
			inFlight = p.Load.InFlight
		}
		t.AppendRow([]any{p.ID, p.Address, p.Version, p.Applied, inFlight, p.Load.age(time.Now())})
	}
	s.Out.Printf("%s\n", t.Render())
}

// printNotices prints each notice once, with the proxies that report it.
func printNotices(s *session.Session, kind string, proxies []proxyReport, of func(*proxyReport) []string) {
	texts, by := instance.Reporters(len(proxies), func(i int) (string, []string) {
		return cmp.Or(proxies[i].Address, proxies[i].ID), of(&proxies[i])
	})
	for i, text := range texts {
		if i == 0 {
			s.Out.Printf("\n")
		}
		who := strings.Join(by[text], ", ")
		if len(by[text]) == len(proxies) && len(proxies) > 1 {
			who = "every proxy"
		}
		s.Out.Printf("%s (%s): %s\n", kind, who, text)
	}
}
