package show

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
)

// when is the condition under which a table has a column.
type when int

const (
	always  when = iota
	ifAny        // some entry has a value for it, or the table is wide
	ifAsked      // the table is wide
)

// column is a column of the table of list: its head, its description in --help, and the function
// for the cell of one entry.
type column struct {
	name string
	when when
	help string
	cell func(e *listed) string
}

// listed is the data of one line of the table.
type listed struct {
	in *instance.Instance
	instance.Listing
}

// columns are the columns of the table, from left to right.
func columns() []column {
	return []column{
		{"ROLE", always, "prefill or decode", func(e *listed) string { return string(e.Role) }},
		{"ADDRESS", always, "host:port by which proxies reach it", func(e *listed) string { return instance.Printable(e.Address, 0) }},
		{"STATE", always, "its state in one word, as --selector state= has it: an operator's intent (drain, cordon, removed; decode-only or prefill-only: pdctl role keeps it in that role), otherwise the proxies' view, otherwise the state in its record (starting, ready, draining, down). down (slow): its engine does not answer probes in time; proxies use it while no other of its role is ready", state},
		{"VIEW", ifAny, "the proxies' view where STATE is an intent. pending: added, and does not answer yet. unverified: its record names no models, so each proxy asks it first, and at least one got no valid answer. ejected: at least one proxy does not use it, because it does not answer or fails. rejected: its record in etcd is invalid. REASON names the proxies and the cause", func(e *listed) string { return unless(e.Status, string(e.View)) }},
		{"RECORD", ifAny, "the state in its record, where it is not ready and not STATE", record},
		{"KIND", always, "leased: its key is deleted with its lease. static: it stays until it is removed", func(e *listed) string { return output.Kind(e.in) }},
		{"MODELS", always, "the first two model names, and the number of others", func(e *listed) string { return output.ShortModels(e.Models) }},
		{"CONNECTOR", ifAny, "KV connector. (default): its record names none, and this is the --connector of the proxies", connector},
		{"RANKS", ifAny, "number of data-parallel ranks, if it has several; proxies choose among ranks", func(e *listed) string {
			if e.Ranks == 0 {
				return ""
			}
			return strconv.Itoa(e.Ranks)
		}},
		{"WEIGHT", ifAny, `its share of the requests of its role ("pdctl weight"); 100 if none is set. With 0 it gets no new requests`, func(e *listed) string {
			if e.Weight == nil {
				return ""
			}
			return output.Weight(e.Weight)
		}},
		{"SOURCE", always, "the program that wrote its record: agent, direct, admin, flags, import", func(e *listed) string { return e.Source }},
		{"PROXIES", ifAny, "the proxies that have it on their command lines; only they use it. Empty: every proxy", func(e *listed) string { return strings.Join(e.Proxies, ",") }},
		{"REVISION", always, "etcd revision of the last change of its record", func(e *listed) string { return strconv.FormatInt(e.Revision, 10) }},
		{"REASON", ifAny, "reason for its view or intent", func(e *listed) string { return instance.Printable(e.Reason, 200) }},
		{"WARNING", ifAny, "a problem of an instance that proxies use", func(e *listed) string { return e.Warning }},
		{"VERSION", ifAsked, "version of the engine", func(e *listed) string { return e.Version }},
		{"ID", ifAsked, "id of this start of the engine", func(e *listed) string { return e.ID }},
		{"LABELS", ifAsked, "labels, for --selector", func(e *listed) string { return output.Labels(e.in.Record.Labels) }},
		{"HOST", ifAsked, "id of its host and network namespace", func(e *listed) string { return instance.Printable(e.in.Record.HostID, 80) }},
		{"LEASE", ifAsked, "the lease of its key", func(e *listed) string { return output.LeaseName(e.in.Lease) }},
	}
}

func state(e *listed) string {
	if e.Status == string(e.State) && e.Cause != "" {
		return fmt.Sprintf("%s (%s)", e.Status, e.Cause)
	}
	return e.Status
}

// record returns the state in the record if STATE hides a state that matters.
func record(e *listed) string {
	switch {
	case e.State == instance.Ready, e.View == instance.Pending, e.View == instance.Rejected:
		return ""
	case e.Cause != "" && e.Status != string(e.State):
		return fmt.Sprintf("%s (%s)", e.State, e.Cause)
	}
	return unless(e.Status, string(e.State))
}

// unless returns the text, or "" if it is the same as shown.
func unless(shown, text string) string {
	if text == shown {
		return ""
	}
	return text
}

func connector(e *listed) string {
	if e.Connector == "" && e.DefaultConnector != "" {
		return e.DefaultConnector + " (default)"
	}
	return e.Connector
}

// columnsHelp returns the description of the columns for --help.
func columnsHelp(of func(when) bool) string {
	const width, indent = 78, 12
	var b strings.Builder
	for _, c := range columns() {
		if !of(c.when) {
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
