package instance

import (
	"fmt"
	"slices"
	"strings"
)

// An Opinion is one proxy's assessment of an instance, in addition to the record and the
// operator's intent. The zero value means that the proxy has no objection.
type Opinion struct {
	// View is why the proxy passes the instance over, such as Ejected; "" if it does not.
	View View
	// Reason explains View. Without a view, it describes a problem of an instance that is
	// picked nevertheless. It is printable.
	Reason string
	// Reachable reports, with a View, that the instance accepts connections: it is still
	// picked while most of its role is passed over.
	Reachable bool
}

// Seen returns the instance as a proxy with this opinion sees it: i itself if the opinion
// adds nothing, otherwise a changed copy. It ignores an opinion about an instance that its
// record or another view already keeps out of use.
func (i *Instance) Seen(o Opinion) *Instance {
	if o.View == "" && o.Reason == "" || i.Record.State != Ready || !i.Verified || i.View != "" && i.View != Orphan {
		return i
	}
	c := *i
	if o.View != "" {
		c.View = o.View
	}
	c.Reason = JoinReasons(o.Reason, c.Reason)
	return &c
}

// Cordoned is the status of an instance with the intent Cordon. The status for the intent Drain is
// Draining, as if the agent had drained the instance.
const Cordoned = "cordoned"

// Status returns the state of an instance in one word, for pdctl, /status and the dashboard. An
// engine in both roles that is kept in one of them is shown as "decode-only" or "prefill-only" in
// the other. The operator's intent takes precedence over the proxies' view, and the view over the
// record. The views Pending and Rejected take precedence over the intent. Apply Seen first.
func (i *Instance) Status() string {
	switch {
	case i.View == Pending, i.View == Rejected:
		return string(i.View)
	case i.OnlyRole != "":
		return string(i.OnlyRole) + "-only"
	case i.Intent != "":
		return EffectiveState(string(i.Intent))
	case i.View != "" && i.View != Orphan:
		return string(i.View)
	case i.Record.State == Ready && i.View == Orphan:
		return string(Orphan)
	}
	return string(i.Record.State)
}

// NothingServed ends the sentence in which a proxy reports that it can serve no request.
const NothingServed = ": nothing is served"

// CanServe reports whether a proxy with this opinion sends requests to the instance. For a
// slow instance, or one that is ejected and still accepts connections, this means only
// while no better one is left.
func (i *Instance) CanServe(o Opinion) bool {
	return i.Usable() && (o.View == "" || o.Reachable) || i.Slow() && o.View != Sleeping && o.View != Paused
}

// Reporters returns the texts of n reporters, each text once and in order, and the names of its
// reporters by text.
func Reporters(n int, of func(i int) (name string, texts []string)) (texts []string, by map[string][]string) {
	by = map[string][]string{}
	for i := range n {
		name, all := of(i)
		for _, text := range all {
			if by[text] == nil {
				texts = append(texts, text)
			}
			by[text] = append(by[text], name)
		}
	}
	return texts, by
}

// JoinReasons returns the reasons that are not "" as one text.
func JoinReasons(reasons ...string) string {
	return strings.Join(slices.DeleteFunc(reasons, func(s string) bool { return s == "" }), "; ")
}

// Some returns up to four names and the number of others.
func Some(names []string) string {
	const most = 4
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// Advice is the recommended number of instances for a role of a model.
type Advice struct {
	Model     string  `json:"model"`
	Role      Role    `json:"role"`
	Instances float64 `json:"instances"` // usable; one in both roles counts half in each
	Pressure  float64 `json:"pressure"`  // in units of the target; above 1 the target is missed
	Fewer     float64 `json:"pressure_with_one_fewer"`
	Wanted    int     `json:"wanted"`
	Known     bool    `json:"known"` // whether enough requests were measured; if not, Wanted is Instances
	Reason    string  `json:"reason"`
}

// Warning returns a problem of an instance that serves, "" if there is none. connector is
// the dialect of instances whose record names none.
func (i *Instance) Warning(connector string) string {
	if i.Record.Connector != "" {
		connector = i.Record.Connector
	}
	if i.Record.Transfer != TransferNIXL || connector == "" || strings.Contains(strings.ToLower(connector), TransferNIXL) {
		return ""
	}
	return "its engine transfers KV caches by NIXL, but the proxy uses the connector " + Printable(connector, 40) +
		": no cache is transferred, and decode computes each prompt again; set --connector nixl"
}
