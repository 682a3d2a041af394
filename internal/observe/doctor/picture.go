package doctor

import (
	"cmp"
	"slices"
	"time"

	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// Picture is the state of a fleet. Data that was not available is zero, and listed in Unseen.
type Picture struct {
	Now     time.Time
	Reach   Reach
	Etcd    Etcd
	Members Members
	Proxies Proxies
	Agents  Agents
	// Certificates are those of the files in the settings of pdctl.
	Certificates []certs.Status
	Unseen       []Unseen
}

// Unseen is data that was not available. Without a Cure, the etcd user lacks a right.
type Unseen struct{ What, Why, Cure string }

// Check is one entry of Checks.
type Check struct {
	Name        string
	Description string // description of the check
	find        func(*Picture, *report)
}

// Checks returns all checks, in the order of findings with the same severity.
func Checks() []Check {
	return []Check{
		{"etcd", "each endpoint answers, there is a leader, the database is below its quota", func(p *Picture, r *report) { p.Etcd.members(r) }},
		{"space", "etcd's alarms: NOSPACE, CORRUPT", func(p *Picture, r *report) { p.Etcd.alarms(r) }},
		{"auth", "etcd accepts this user, and lets it read the keys of the fleet", func(p *Picture, r *report) { p.Etcd.auth(r) }},
		{"schema", "the keys are of a version that this program knows", func(p *Picture, r *report) { p.Etcd.schema(r) }},
		{"certificate", "certificates that have expired, or expire within a week: those of proxies, of agents of this machine, and the files given here", func(p *Picture, r *report) {
			p.Proxies.certificates(r)
			p.Agents.certificates(r)
			ofFiles(p.Certificates, p.Now, r)
		}},
		{"proxy", "each proxy follows the membership and renews its presence", (*Picture).proxies},
		{"serving", "each proxy has instances that can serve requests", func(p *Picture, r *report) { p.Proxies.notServing(r) }},
		{"rejected", "unusable values in etcd", func(p *Picture, r *report) {
			p.Members.rejected(p.Etcd.Root, p.Proxies.connector(), r)
			p.Members.limits(r)
		}},
		{"conflict", "addresses or engines that are registered twice", func(p *Picture, r *report) { p.Agents.conflicts(r); p.Members.twice(r) }},
		{"model", "engines that serve another model than they should", (*Picture).models},
		{"engine", "engines that are down, whose bootstrap server does not answer, that proxies cannot verify or have ejected, or that do not answer from here (--probe)", func(p *Picture, r *report) { p.Members.engines(p.Proxies, r) }},
		{"slow", "instances that take three times as long as the others of their role and model: for a token (decode), or for a prompt (prefill)", func(p *Picture, r *report) { p.Members.slow(r) }},
		{"ports", "side channels of two engines on one port of one machine", func(p *Picture, r *report) { p.Members.ports(r) }},
		{"pair", "connectors, transfer modes and builds that leave an instance without a partner", func(p *Picture, r *report) { p.Members.pairs(p.Proxies.connector(), r) }},
		{"kv_role", "NIXL engines of one role with kv_role kv_both, which vLLM 0.32 deprecates", func(p *Picture, r *report) { p.Members.kvRoles(p.Proxies.connector(), r) }},
		{"agent", "agents that do not answer, are not registered, or in another etcd: those of this machine, and others that wrote their reason to etcd", func(p *Picture, r *report) { p.Agents.unregistered(&p.Members, r) }},
		{"notification", "prefill instances whose LMCache notifications do not arrive", func(p *Picture, r *report) { p.Proxies.notifications(r) }},
		{"notice", "other notices of the proxies", func(p *Picture, r *report) { p.Proxies.notices(r) }},
		{"unseen", "what could not be checked", (*Picture).unseen},
	}
}

// Examine returns the findings of all checks, most severe first; none if nothing is wrong.
func (p *Picture) Examine() []Finding {
	r := report{Reach: p.Reach, findings: []Finding{}}
	for _, c := range Checks() {
		r.check = c.Name
		c.find(p, &r)
	}
	slices.SortStableFunc(r.findings, func(a, b Finding) int { return cmp.Compare(a.Severity.rank(), b.Severity.rank()) })
	return r.findings
}

func (p *Picture) proxies(r *report) {
	if p.Members.Snapshot != nil && len(p.Proxies) == 0 && len(p.Unseen) == 0 {
		r.add(Finding{
			Severity: Note, Subject: "proxies", What: "no proxy is registered in etcd",
			Why: "no proxy runs with this etcd and prefix, or none can write to this etcd", Cure: "start one with the same --etcd-endpoints and --etcd-prefix",
		})
	}
	p.Proxies.behind(p.Etcd.Root, r)
}

func (p *Picture) models(r *report) {
	p.Proxies.wrongModels(p.Members.all(), r)
	p.Agents.wrongModels(r)
	p.Members.wrongModels(r)
}

func (p *Picture) unseen(r *report) {
	for _, u := range p.Unseen {
		r.add(Finding{
			Severity: Note, Subject: u.What, What: "could not be checked", Why: u.Why,
			Cure: cmp.Or(u.Cure, "use an etcd user with the right: root sees alarms, the operator sees all keys below "+p.Etcd.Root),
		})
	}
}
