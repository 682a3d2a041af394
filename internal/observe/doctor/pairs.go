package doctor

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// group is the instances of one role that have the same PairKey.
type group struct {
	connector.PairKey
	members []*instance.Instance
}

// groups returns the instances of a role that requests could be sent to.
func (m *Members) groups(role instance.Role, byDefault string) (out []group) {
	for _, in := range m.all() {
		d, err := dialect(in, byDefault)
		if in.Role != role || err != nil || in.View == instance.Rejected || in.Intent != "" ||
			in.Record.State == instance.Down || in.Record.State == instance.Draining {
			continue
		}
		k := connector.PairKeyOf(d, in)
		i := slices.IndexFunc(out, func(g group) bool { return g.PairKey == k })
		if i < 0 {
			i, out = len(out), append(out, group{PairKey: k})
		}
		out[i].members = append(out[i].members, in)
	}
	return out
}

// canPair reports whether a group can be paired with one of the other role.
func (g group) canPair(others []group) bool {
	return slices.ContainsFunc(others, func(o group) bool { return g.Mismatch(o.PairKey) == "" })
}

// pairs reports instances that have no partner. byDefault is the connector of records that
// name none.
func (m *Members) pairs(byDefault string, r *report) {
	prefill, decode := m.groups(instance.Prefill, byDefault), m.groups(instance.Decode, byDefault)
	if len(prefill) == 0 || len(decode) == 0 {
		return // the proxies report a missing role
	}
	anyPair := slices.ContainsFunc(prefill, func(g group) bool { return g.canPair(decode) })
	for _, side := range []struct {
		role      instance.Role
		own, them []group
	}{{instance.Prefill, prefill, decode}, {instance.Decode, decode, prefill}} {
		for _, g := range side.own {
			if g.canPair(side.them) {
				continue
			}
			f := unpaired(side.role, g, side.them, r)
			if !anyPair {
				f.Severity = Error
			}
			r.say(f)
		}
	}
}

// unpaired returns the finding that a group of one role has no partner among those of the other.
func unpaired(role instance.Role, g group, them []group, r *report) Finding {
	first := g.members[0]
	f := Finding{
		Severity: Warning, Subject: first.Key.String(), Commands: []string{r.pdctl("list")},
		What: fmt.Sprintf("no %s instance can be paired with %s", role.Other(), keys(g.members)),
	}
	// closest has the same connector if any has.
	closest := them[max(0, slices.IndexFunc(them, func(o group) bool { return g.Mismatch(o.PairKey) != bypass.ConnectorMismatch }))]
	switch mismatch := g.Mismatch(closest.PairKey); {
	case mismatch == bypass.BlockMismatch:
		f.Why = fmt.Sprintf("their KV blocks differ: connector %s transfers nothing between blocks of %d tokens and of %d (%s)",
			g.Connector, g.Blocks, closest.Blocks, keys(closest.members))
		f.Cure = "start both engines with the same --block-size"
	case mismatch == bypass.VersionMismatch:
		f.Why = fmt.Sprintf("they are two builds: connector %s pairs only engines of one vLLM build, and these are %s and %s (%s)",
			g.Connector, g.Build, closest.Build, keys(closest.members))
		f.Cure = fmt.Sprintf("run the same vLLM build in both roles: upgrade one side, %s %s or %s %s; during an upgrade keep one pair of each build",
			role, g.Build, role.Other(), closest.Build)
	case first.Record.TransferMode != closest.members[0].Record.TransferMode:
		f.Why = fmt.Sprintf("their transfer modes differ: %s speaks %s (mode %s), %s %s (mode %s)", role, g.Connector, cmp.Or(first.Record.TransferMode, "none"),
			role.Other(), closest.Connector, cmp.Or(closest.members[0].Record.TransferMode, "none"))
		f.Cure = "start both engines with the same transfer mode"
	default:
		var names []string
		for _, o := range them {
			names = append(names, o.Connector)
		}
		slices.Sort(names)
		f.Why = fmt.Sprintf("%s speaks %s, %s %s", role, g.Connector, role.Other(), instance.Some(slices.Compact(names)))
		f.Cure = "start both engines with the same connector (--kv-transfer-config), or set the right one with --connector of agent or pdctl add"
	}
	return f
}
