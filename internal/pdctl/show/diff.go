package show

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
)

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
