package doctor

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// half is what of an instance decides whom it is paired with, by the connector's own
// rules.
type half struct {
	dialect, build string
	blocks         int
}

// goes reports whether two are a pair: an empty build goes with any, and blocks of a size
// that nobody states.
func (h half) goes(o half) bool {
	return h.dialect == o.dialect && (h.build == o.build || h.build == "" || o.build == "") &&
		(h.blocks == o.blocks || h.blocks == 0 || o.blocks == 0)
}

// group are the instances of one role that are alike.
type group struct {
	half
	members []*instance.Instance
}

// groups are those of a role that requests could go to.
func (m *Members) groups(role instance.Role, byDefault string) (out []group) {
	for _, in := range m.all() {
		d, err := dialect(in, byDefault)
		if in.Role != role || err != nil || in.View == instance.Rejected || in.Intent != "" ||
			in.Record.State == instance.Down || in.Record.State == instance.Draining {
			continue
		}
		t := d.Terms(in)
		h := half{d.Name(), t.Build, t.Blocks}
		i := slices.IndexFunc(out, func(g group) bool { return g.half == h })
		if i < 0 {
			i, out = len(out), append(out, group{half: h})
		}
		out[i].members = append(out[i].members, in)
	}
	return out
}

// pairs reports of instances that have no partner. byDefault is the connector of records that
// name none.
func (m *Members) pairs(byDefault string, r *report) {
	prefill, decode := m.groups(instance.Prefill, byDefault), m.groups(instance.Decode, byDefault)
	if len(prefill) == 0 || len(decode) == 0 {
		return // of a role that is missing the proxies tell
	}
	some := false
	for _, g := range prefill {
		some = some || slices.ContainsFunc(decode, func(o group) bool { return g.goes(o.half) })
	}
	for _, side := range []struct {
		role      instance.Role
		own, them []group
	}{{instance.Prefill, prefill, decode}, {instance.Decode, decode, prefill}} {
		for _, g := range side.own {
			if !slices.ContainsFunc(side.them, func(o group) bool { return g.goes(o.half) }) {
				f := lonely(side.role, g, side.them, r)
				if !some {
					f.Severity = Error
				}
				r.say(f)
			}
		}
	}
}

// lonely words that a group of one role has no partner among the other.
func lonely(role instance.Role, g group, them []group, r *report) Finding {
	first := g.members[0]
	f := Finding{
		Severity: Warning, Subject: first.Key.String(), Commands: []string{r.pdctl("list")},
		What: fmt.Sprintf("no %s instance can be paired with %s", role.Other(), keys(g.members)),
	}
	at := slices.IndexFunc(them, func(o group) bool { return o.dialect == g.dialect })
	switch {
	case at >= 0 && (g.build == them[at].build || g.build == "" || them[at].build == ""):
		f.Why = fmt.Sprintf("their KV blocks differ: connector %s hands nothing over between blocks of %d tokens and of %d (%s)",
			g.dialect, g.blocks, them[at].blocks, keys(them[at].members))
		f.Cure = "start both engines with the same --block-size"
	case at >= 0:
		f.Why = fmt.Sprintf("they are two builds: connector %s pairs only engines of one vLLM build, and these are %s and %s (%s)",
			g.dialect, g.build, them[at].build, keys(them[at].members))
		f.Cure = fmt.Sprintf("run the same vLLM build in both roles: upgrade one side, %s %s or %s %s; during an upgrade keep one pair of each build",
			role, g.build, role.Other(), them[at].build)
	case first.Record.TransferMode != them[0].members[0].Record.TransferMode:
		f.Why = fmt.Sprintf("their transfer modes differ: %s speaks %s (mode %s), %s %s (mode %s)", role, g.dialect, cmp.Or(first.Record.TransferMode, "none"),
			role.Other(), them[0].dialect, cmp.Or(them[0].members[0].Record.TransferMode, "none"))
		f.Cure = "start both engines with the same transfer mode"
	default:
		var names []string
		for _, o := range them {
			names = append(names, o.dialect)
		}
		slices.Sort(names)
		f.Why = fmt.Sprintf("%s speaks %s, %s %s", role, g.dialect, role.Other(), some(slices.Compact(names)))
		f.Cure = "start both engines with the same connector (--kv-transfer-config), or set the right one with --connector of agent or pdctl add"
	}
	return f
}
