package doctor

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// group has the instances of one role with the same PairKey.
type group struct {
	connector.PairKey
	members []*instance.Instance
}

// pool has the instances of one role that could get requests, in groups.
type pool struct {
	role    instance.Role
	all     []group
	unknown []group            // instances whose models are not all known
	serving map[string][]group // by model
	models  []string           // keys of serving, in the order of the instances
}

func (m *Members) pool(role instance.Role, byDefault string) *pool {
	p := &pool{role: role, serving: map[string][]group{}}
	for _, in := range m.all() {
		d, err := dialect(in, byDefault)
		if in.Role != role || err != nil || in.View == instance.Rejected || in.Intent != "" ||
			in.Record.State == instance.Down || in.Record.State == instance.Draining {
			continue
		}
		k := connector.PairKeyOf(d, in)
		p.all = add(p.all, k, in)
		if len(in.Record.Models) == 0 || in.Record.ModelsTruncated {
			p.unknown = add(p.unknown, k, in)
		}
		for _, model := range in.Record.Models {
			if p.serving[model] == nil {
				p.models = append(p.models, model)
			}
			p.serving[model] = add(p.serving[model], k, in)
		}
	}
	return p
}

// add adds an instance to the group with its PairKey.
func add(list []group, k connector.PairKey, in *instance.Instance) []group {
	i := slices.IndexFunc(list, func(g group) bool { return g.PairKey == k })
	if i < 0 {
		i, list = len(list), append(list, group{PairKey: k})
	}
	list[i].members = append(list[i].members, in)
	return list
}

// canPair reports whether a group can be paired with one of the other role.
func (g group) canPair(others []group) bool {
	return slices.ContainsFunc(others, func(o group) bool { return g.Mismatch(o.PairKey) == "" })
}

// pairs reports instances that have no partner for a model, although the other role serves it; the
// proxies report a missing role or model. byDefault is the connector of records that name none.
func (m *Members) pairs(byDefault string, r *report) {
	prefill, decode := m.pool(instance.Prefill, byDefault), m.pool(instance.Decode, byDefault)
	var findings []Finding
	anyPair := false
	for _, side := range [][2]*pool{{prefill, decode}, {decode, prefill}} {
		own, them := side[0], side[1]
		reported := map[*instance.Instance]bool{}
		check := func(model string, groups, partners []group) {
			for _, g := range groups {
				if g.canPair(partners) {
					anyPair = true
					continue
				}
				g.members = slices.DeleteFunc(slices.Clone(g.members), func(in *instance.Instance) bool { return reported[in] })
				if len(partners) == 0 || len(g.members) == 0 {
					continue
				}
				for _, in := range g.members {
					reported[in] = true
				}
				findings = append(findings, unpaired(own.role, model, g, partners, r))
			}
		}
		for _, model := range own.models {
			check(model, own.serving[model], slices.Concat(them.serving[model], them.unknown))
		}
		check("", own.unknown, them.all)
	}
	for _, f := range findings {
		if !anyPair {
			f.Severity = Error
		}
		r.add(f)
	}
}

// unpaired returns the finding that a group has no partner for a model in them, the groups of the other
// role that serve it. model is "" if it is not known.
func unpaired(role instance.Role, model string, g group, them []group, r *report) Finding {
	first := g.members[0]
	if model != "" {
		model = " with model " + instance.Printable(model, 80)
	}
	f := Finding{
		Severity: Warning, Subject: first.Key.String(), Commands: []string{r.pdctl("list")},
		What: fmt.Sprintf("no %s instance%s can be paired with %s", role.Other(), model, keys(g.members)),
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
