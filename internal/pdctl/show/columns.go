package show

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
)

// column is a column of the table of list: its head, whether only the wide table has it, its
// description in --help, and the function for the cell of one entry. A table always has the same
// columns.
type column struct {
	name string
	wide bool
	help string
	cell func(e *listed) string
}

// listed is the data of one line of the table.
type listed struct {
	in *instance.Instance // nil with --proxy
	instance.Listing
}

// columns returns the columns of the table, from left to right.
func columns() []column {
	return []column{
		{"ROLE", false, "prefill or decode", func(e *listed) string { return string(e.Role) }},
		{"ADDRESS", false, "host:port by which proxies reach it", func(e *listed) string { return instance.Printable(e.Address, 0) }},
		{"STATE", false, "its state in one word, as --selector state= has it: an operator's intent (draining, cordoned, removed; decode-only or prefill-only: pdctl role keeps it in that role), otherwise the proxies' view (pending: added, and does not answer yet; unverified: its record names no models, so each proxy probes it first, and at least one got no valid answer; ejected: at least one proxy does not use it, because it does not answer or fails; rejected: its record in etcd is invalid), otherwise the state in its record (starting, ready, draining, down). down (slow): its engine does not answer probes in time; proxies use it while no other of its role is ready. In the same way, parentheses have the view or the state in the record that an intent hides: draining (down)", state},
		{"AGE", false, "time since its engine started, or first answered if its metrics have no start time; by the clocks of its machine and of this one", func(e *listed) string { return age(e.StartedAt) }},
		{"IN FLIGHT", false, "requests of all proxies in flight there, by their load digests", func(e *listed) string {
			if e.InFlight == nil {
				return ""
			}
			return strconv.FormatInt(*e.InFlight, 10)
		}},
		{"WEIGHT", false, `its share of the requests of its role ("pdctl weight"). With 0 it gets no new requests`, func(e *listed) string { return output.Weight(e.Weight) }},
		{"KIND", false, "leased: its key is deleted with its lease. static: it stays until it is removed", kind},
		{"MODELS", false, "the first two model names, and the number of others", func(e *listed) string { return output.ShortModels(e.Models) }},
		{"CONNECTOR", false, "KV connector. (default): its record names none, and this is the --connector of the proxies", connector},
		{"REASON", false, "reason for its state, a problem of an instance that proxies use, and when an intent, a weight (--for) or a pending add (--wait) ends by itself", reason},
		{"RANKS", true, "number of data-parallel ranks, if it has several; proxies choose among ranks", func(e *listed) string {
			if e.Ranks == 0 {
				return ""
			}
			return strconv.Itoa(e.Ranks)
		}},
		{"SOURCE", true, "the program that wrote its record: agent, direct, admin, flags, import", func(e *listed) string { return e.Source }},
		{"PROXIES", true, "the proxies that have it on their command lines; only they use it. Empty: every proxy", func(e *listed) string { return strings.Join(e.Proxies, ",") }},
		{"REVISION", true, "etcd revision of the last change of its record", func(e *listed) string { return strconv.FormatInt(e.Revision, 10) }},
		{"VERSION", true, "version of the engine", func(e *listed) string { return e.Version }},
		{"ID", true, "id of this start of the engine", func(e *listed) string { return e.ID }},
		{"LABELS", true, "labels, for --selector", func(e *listed) string { return output.Labels(e.record().Labels) }},
		{"HOST", true, "id of its host and network namespace", func(e *listed) string { return instance.Printable(e.record().HostID, 80) }},
		{"LEASE", true, "the lease of its key", func(e *listed) string {
			if e.in == nil {
				return ""
			}
			return output.LeaseName(e.in.Lease)
		}},
	}
}

// started returns the time of the engine's registration in nanoseconds, 0 if it is not known.
func (e *listed) started() int64 {
	if e.StartedAt == nil {
		return 0
	}
	return e.StartedAt.UnixNano()
}

func (e *listed) record() *instance.Record {
	if e.in == nil {
		return &instance.Record{}
	}
	return &e.in.Record
}

// age returns the time since then, rounded as kubectl rounds it.
func age(then *time.Time) string {
	if then == nil {
		return ""
	}
	return output.Short(time.Since(*then))
}

func kind(e *listed) string {
	switch {
	case e.View == instance.Pending:
		return "pending"
	case e.Static:
		return "static"
	}
	return "leased"
}

func reason(e *listed) string {
	parts := []string{instance.Printable(e.Reason, 200), e.Warning}
	if e.Ends != nil {
		parts = append(parts, output.EndsIn(*e.Ends))
	}
	return instance.JoinReasons(parts...)
}

// state returns the status with its cause, or with the view or the state in the record that it
// hides.
func state(e *listed) string {
	hidden := e.Cause
	switch {
	case e.Status == string(e.State), e.View == instance.Pending, e.View == instance.Rejected:
	case e.View != "" && e.View != instance.Orphan && e.Status != string(e.View):
		hidden = string(e.View)
	case e.Status != string(e.View) && e.State != instance.Ready && e.State != "":
		hidden = string(e.State)
	default:
		hidden = ""
	}
	if hidden == "" {
		return e.Status
	}
	return fmt.Sprintf("%s (%s)", e.Status, hidden)
}

func connector(e *listed) string {
	if e.Connector == "" && e.DefaultConnector != "" {
		return e.DefaultConnector + " (default)"
	}
	return e.Connector
}

// columnsHelp returns the description of the columns for --help.
func columnsHelp(wide bool) string {
	const width, indent = 78, 12
	var b strings.Builder
	for _, c := range columns() {
		if c.wide != wide {
			continue
		}
		line := fmt.Sprintf("  %-*s", indent-2, c.name)
		for word := range strings.FieldsSeq(c.help) {
			if len(line)+len(word) >= width {
				b.WriteString(strings.TrimRight(line, " ") + "\n")
				line = strings.Repeat(" ", indent)
			}
			line += word + " "
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}
