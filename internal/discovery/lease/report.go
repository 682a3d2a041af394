package lease

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/discovery/verify"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// A Report has the facts about the fleet that a proxy publishes with its presence: those that only
// this proxy knows and pdctl cannot read from records.
type Report struct {
	// Unverified has the instances that this proxy has not verified, by role/address, each with the
	// reason. Nil: the proxy does not report them, because it is of an older release or there are
	// too many.
	Unverified map[string]string `json:"unverified"`
	// Instances has the state of verified instances that is not in their records, by
	// role/address; those without an entry match their records. Nil: the proxy is of an
	// older release, which does not report this.
	Instances map[string]InstanceReport `json:"instances"`
	// LeftOut is the number of entries that did not fit into Instances.
	LeftOut int `json:"instances_left_out,omitempty"`
	// NotServing is the reason why the proxy can serve no request, "" if it can.
	NotServing string `json:"not_serving,omitempty"`
	// Notices are problems of the fleet, in sentences. In etcd they include NotServing, which
	// is removed when they are read.
	Notices []string `json:"notices,omitempty"`
	// Kept has the keys of a former etcd, below the root, that the proxy uses although etcd lacks
	// them, as returned by KeptKeys.
	Kept []string `json:"kept,omitempty"`
}

// An InstanceReport is the state of one instance at one proxy that is not in its record.
type InstanceReport struct {
	View   instance.View `json:"view,omitempty"` // such as ejected; "" if the proxy uses it
	Reason string        `json:"reason,omitempty"`
	// Models and Version are those of an instance whose record names none. The list may be
	// cut; ModelsLeftOut is the number of names that are missing.
	Models        []string `json:"models,omitempty"`
	ModelsLeftOut int      `json:"models_left_out,omitempty"`
	Version       string   `json:"version,omitempty"`
}

const (
	maxReport       = 48 << 10 // bytes of Instances and of Kept, about
	maxReportReason = 200      // bytes
	maxReportModels = 32       // names of one instance
	maxReportName   = 128      // bytes of a model's name or a version
	maxSeenReasons  = 3        // reasons of proxies that are shown for one instance
)

// NewInstanceReports returns the entries of a report about a snapshot, and the number of those that
// did not fit. Instances that the proxy does not use come first.
func NewInstanceReports(snap *instance.Snapshot, opinion func(instance.Key) instance.Opinion) (out map[string]InstanceReport, leftOut int) {
	out = map[string]InstanceReport{}
	space := maxReport
	add := func(k instance.Key, r InstanceReport) {
		size := len(k.Address) + len(r.View) + len(r.Reason) + len(r.Version) + 100 // with names and quotes
		for _, m := range r.Models {
			size += len(m) + 3
		}
		if space -= size; space < 0 {
			leftOut++
			return
		}
		out[k.String()] = r
	}
	var learned []*instance.Instance
	for _, in := range snap.All() {
		if in.View == instance.Pending || !in.Verified {
			continue
		}
		switch o := opinion(in.Key); {
		case o.View != "" || o.Reason != "":
			r := learnedReport(in)
			r.View, r.Reason = o.View, instance.Printable(o.Reason, maxReportReason)
			add(in.Key, r)
		case in.Learned:
			learned = append(learned, in)
		}
	}
	for _, in := range learned {
		add(in.Key, learnedReport(in))
	}
	return out, leftOut
}

// KeptKeys returns the keys that fit into a report, those of overrides first.
func KeptKeys(keys []string) (out []string) {
	space := maxReport
	for _, overrides := range []bool{true, false} {
		for _, key := range keys {
			if strings.HasPrefix(key, "override/") != overrides {
				continue
			}
			if space -= len(key) + 3; space < 0 {
				return out
			}
			out = append(out, key)
		}
	}
	return out
}

func learnedReport(in *instance.Instance) (r InstanceReport) {
	if !in.Learned {
		return r
	}
	r.Version = instance.Printable(in.Record.Version, maxReportName)
	for _, m := range in.Record.Models[:min(len(in.Record.Models), maxReportModels)] {
		r.Models = append(r.Models, instance.Printable(m, maxReportName))
	}
	r.ModelsLeftOut = len(in.Record.Models) - len(r.Models)
	return r
}

// equalExceptNumbers reports whether two entries are equal except for numbers.
func (r InstanceReport) equalExceptNumbers(o InstanceReport) bool {
	return r.View == o.View && withoutDigits(r.Reason) == withoutDigits(o.Reason) && r.Version == o.Version &&
		r.ModelsLeftOut == o.ModelsLeftOut && slices.Equal(r.Models, o.Models)
}

// settled returns r, with the published entries of Instances in place of those that differ from
// them in numbers only, such as seconds of silence. So an idle fleet writes nothing to etcd.
func (r Report) settled(published *Report) Report {
	for k, is := range r.Instances {
		if was, ok := published.Instances[k]; ok && is.equalExceptNumbers(was) {
			r.Instances[k] = was
		}
	}
	return r
}

// isNotServing reports whether a notice says that the proxy serves nothing.
func isNotServing(text string) bool { return strings.HasSuffix(text, instance.NothingServed) }

// equalExceptNumbers reports whether two reports are equal except for numbers. Those in notices grow with every
// request; the published ones are at most a TTL old.
func (r *Report) equalExceptNumbers(o *Report) bool {
	same := func(a, b string) bool { return withoutDigits(a) == withoutDigits(b) }
	return maps.Equal(r.Unverified, o.Unverified) && slices.EqualFunc(r.Notices, o.Notices, same) && same(r.NotServing, o.NotServing) &&
		r.LeftOut == o.LeftOut && slices.Equal(r.Kept, o.Kept) && maps.EqualFunc(r.Instances, o.Instances, InstanceReport.equalExceptNumbers)
}

// Seen returns a snapshot of the records in etcd as the proxies see the instances: with their
// views, and with the models and versions that they have found. An instance counts as passed
// over if at least one proxy passes it over; the reason names the proxies.
func Seen(snap *instance.Snapshot, proxies []ProxyPresence) *instance.Snapshot {
	all := make([]*instance.Instance, 0, len(snap.All()))
	for _, in := range snap.All() {
		if in.View != instance.Pending && in.View != instance.Rejected {
			in = seenBy(in, proxies)
		}
		all = append(all, in)
	}
	return instance.NewSnapshot(snap.Revision, all)
}

// seenBy returns one instance as the proxies see it.
func seenBy(in *instance.Instance, proxies []ProxyPresence) *instance.Instance {
	out := *in
	if in.View == instance.Unverified {
		out.Reason = strings.TrimPrefix(strings.TrimPrefix(in.Reason, verify.NotVerified), "; ")
		o := unverifiedBy(in, proxies)
		out.Verified = o.View == ""
		out.View = o.View
		out.Reason = instance.JoinReasons(o.Reason, out.Reason)
	}
	learn(&out, proxies)
	return out.Seen(passedOverBy(in, proxies).opinion(len(proxies)))
}

// unverifiedBy returns the opinion of the proxies about an instance whose record names no models,
// so that each has to probe it. The zero value means that it has answered all of them.
func unverifiedBy(in *instance.Instance, proxies []ProxyPresence) instance.Opinion {
	verified, all := 0, 0 // of the proxies that use it
	var by objections
	for i := range proxies {
		p := &proxies[i]
		if p.elsewhere(in.Key) {
			continue
		}
		all++
		if p.Unverified == nil || p.Applied < in.ModRevision { // older release, or behind
			continue
		}
		if reason, no := p.Unverified[in.Key.String()]; no {
			by = append(by, objection{p.Address, instance.Unverified, reason})
		} else {
			verified++
		}
	}
	o := instance.Opinion{View: instance.Unverified, Reason: by.reasons()}
	switch {
	case all == 0:
		o.Reason = "no proxy is running that could probe it"
	case verified == all:
		return instance.Opinion{}
	case len(by) == 0:
		o.Reason = "each proxy probes it: see /status"
	}
	if verified > 0 {
		o.Reason += fmt.Sprintf(" (verified by %d of %d proxies)", verified, all)
	}
	return o
}

// elsewhere reports whether an instance belongs to the fleet of other proxies than p.
func (p *ProxyPresence) elsewhere(k instance.Key) bool {
	return strings.HasPrefix(p.Unverified[k.String()], verify.OtherFleet)
}

// objection is the reason why one proxy does not use an instance, or a problem that it reports.
type objection struct {
	proxy  string
	view   instance.View
	reason string
}

type objections []objection

// reasons returns the reasons, each with the addresses of the proxies that report it. Of reasons that
// differ in numbers only, such as durations, it returns the first.
func (by objections) reasons() string {
	reasons, who := instance.Reporters(len(by), func(i int) (string, []string) {
		first := slices.IndexFunc(by, func(o objection) bool { return withoutDigits(o.reason) == withoutDigits(by[i].reason) })
		return by[i].proxy, []string{by[first].reason}
	})
	var parts []string
	for i, reason := range reasons {
		if i == maxSeenReasons {
			parts = append(parts, fmt.Sprintf("and %d more", len(reasons)-i))
			break
		}
		parts = append(parts, instance.Printable(instance.Some(who[reason])+": "+reason, 300))
	}
	return strings.Join(parts, "; ")
}

// opinion joins the objections of some of n proxies to one opinion.
func (by objections) opinion(n int) (o instance.Opinion) {
	passing := 0
	for _, one := range by {
		if one.view != "" {
			o.View = cmp.Or(o.View, one.view)
			passing++
		}
	}
	o.Reason = by.reasons()
	if passing > 0 && passing < n {
		o.Reason += fmt.Sprintf(" (%s by %d of %d proxies)", o.View, passing, n)
	}
	return o
}

// passedOverBy returns the objections to an instance that proxies publish.
func passedOverBy(in *instance.Instance, proxies []ProxyPresence) (by objections) {
	for i := range proxies {
		p := &proxies[i]
		// Its record names models, but the proxy expects others, or cannot use it.
		if why, no := p.Unverified[in.Key.String()]; no && in.View != instance.Unverified && p.Applied >= in.ModRevision && !p.elsewhere(in.Key) {
			by = append(by, objection{p.Address, instance.Unverified, why})
		}
		if r, ok := p.about(in); ok && (r.View != "" || r.Reason != "") {
			by = append(by, objection{p.Address, r.View, r.Reason})
		}
	}
	return by
}

// about returns the report of a proxy about an instance, if the proxy has applied the current
// record.
func (p *ProxyPresence) about(in *instance.Instance) (InstanceReport, bool) {
	r, ok := p.Instances[in.Key.String()]
	return r, ok && p.Applied >= in.ModRevision
}

// Opinion returns a proxy's view of an instance, "" if the proxy uses it, and the reason for that
// view, or a problem of the instance. Both are printable, and "" if the proxy reports nothing about
// the instance.
func (p *ProxyPresence) Opinion(k instance.Key) (view instance.View, reason string) {
	if why, no := p.Unverified[k.String()]; no {
		if p.elsewhere(k) {
			return instance.Elsewhere, instance.Printable(why, 300)
		}
		return instance.Unverified, instance.Printable(why, 300)
	}
	r := p.Instances[k.String()]
	return r.View, instance.Printable(r.Reason, 300)
}

// learn completes the record of an instance with the models and the version that a proxy
// has found.
func learn(in *instance.Instance, proxies []ProxyPresence) {
	for i := range proxies {
		r, ok := proxies[i].about(in)
		if !ok || len(in.Record.Models) > 0 {
			continue
		}
		in.Record.Models, in.Learned = r.Models, len(r.Models) > 0
		in.Record.Version = cmp.Or(in.Record.Version, r.Version)
	}
}
