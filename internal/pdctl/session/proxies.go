package session

import (
	"fmt"
	"strings"

	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// SeenByProxies adds what the proxies say of unverified instances, whose records name no
// models: each proxy has asked them itself. An instance that answers to every proxy counts
// as verified.
func SeenByProxies(snap *instance.Snapshot, proxies []lease.ProxyPresence) *instance.Snapshot {
	all := make([]*instance.Instance, 0, len(snap.All()))
	for _, in := range snap.All() {
		if in.View == instance.Unverified {
			in = seenByProxies(in, proxies)
		}
		all = append(all, in)
	}
	return instance.NewSnapshot(snap.Revision, all)
}

// maxReasons bounds the proxies whose reasons are shown.
const maxReasons = 3

// seenByProxies is an unverified instance as the proxies see it.
func seenByProxies(in *instance.Instance, proxies []lease.ProxyPresence) *instance.Instance {
	out := *in
	verified, unknown := 0, 0
	var reasons []string
	for _, p := range proxies {
		reason, no := p.Unverified[in.Key.String()]
		switch {
		case p.Unverified == nil || p.Applied < in.ModRevision: // of an older version, or behind
			unknown++
		case !no:
			verified++
		case len(reasons) < maxReasons:
			reasons = append(reasons, p.Address+": "+instance.Printable(reason, 200))
		}
	}
	switch {
	case len(proxies) == 0:
		out.Reason = "no proxy is running that could ask it"
	case verified == len(proxies):
		out.View, out.Verified, out.Reason = "", true, ""
	case len(reasons) > 0:
		out.Reason = strings.Join(reasons, "; ")
	default:
		out.Reason = "each proxy asks it: see /status"
	}
	if out.View != "" && verified > 0 {
		out.Reason += fmt.Sprintf(" (verified by %d of %d proxies)", verified, len(proxies))
	}
	return &out
}

// DefaultConnector is the connector that all proxies assume for records that name none. It
// is "" if they differ or do not say it.
func DefaultConnector(proxies []lease.ProxyPresence) string {
	for _, p := range proxies {
		if p.Connector != proxies[0].Connector {
			return ""
		}
	}
	if len(proxies) == 0 {
		return ""
	}
	return proxies[0].Connector
}
