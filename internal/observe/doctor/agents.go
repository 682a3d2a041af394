package doctor

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/agent/agentctl"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// claimant is an agent that registers an instance: one of this machine, or one of another machine whose
// refusal is in etcd.
type claimant struct {
	instance.Key
	phase        string
	registration lease.Phase
	reason       string // of the agent: why the engine does not serve
	refusal      string // of etcd: why the instance is not registered
	host         string // "" for this machine
}

func (c *claimant) where() string {
	if c.host == "" {
		return "on this machine"
	}
	return "on " + c.host
}

// cured adds an agent command to a finding. For an agent on another machine, the command is part of the
// cure, because it cannot be run here.
func (c *claimant) cured(f *Finding, verb string) {
	command := shell("pdmesh-agent", verb, "--role", string(c.Role), "--address", c.Address)
	if c.host == "" {
		f.Commands = append(f.Commands, command)
		return
	}
	f.Cure += fmt.Sprintf(" (on %s: %s)", c.host, command)
}

// Agents are the agents that could be queried.
type Agents struct {
	Here []agentctl.Report // of this machine
	// Elsewhere are those of this machine that use another etcd or prefix.
	Elsewhere []agentctl.Report
	Silent    []Unseen // sockets of those of this machine that do not answer, each with the reason
	// Remote are the agents whose refusal is in etcd, including agents of this machine.
	Remote []lease.RefusedAgent
}

// claimants returns the agents of this machine, from their reports, and those of others, from etcd.
func (a *Agents) claimants() (out []claimant) {
	here := map[string]bool{}
	for _, r := range a.Here {
		here[r.ID] = true
		out = append(out, claimant{
			Key: instance.Key{Role: r.Role, Address: r.Address}, phase: r.Phase, reason: r.Reason,
			registration: lease.Phase(r.Registration.Phase), refusal: r.Registration.Reason,
		})
	}
	for i := range a.Remote {
		if one := &a.Remote[i]; !here[one.ID] {
			c := claimant{
				Key: instance.Key{Role: one.Role, Address: one.Address}, phase: instance.Printable(one.Phase, 40), registration: one.Registration,
				host: cmp.Or(instance.Printable(one.Host, 80), "another machine"),
			}
			if one.Registration == lease.Idle {
				c.reason = one.Reason
			} else {
				c.refusal = one.Reason
			}
			out = append(out, c)
		}
	}
	return out
}

// unregistered reports agents that are not registered; conflicts and wrong models have their
// own checks.
func (a *Agents) unregistered(m *Members, r *report) {
	for _, c := range a.claimants() {
		f := Finding{
			Severity: Warning, Subject: c.String(),
			What: fmt.Sprintf("its agent %s has the phase %s, and its registration the phase %s", c.where(), c.phase, instance.Printable(string(c.registration), 40)),
			Why:  cmp.Or(c.refusal, c.reason, "the agent reports no reason"),
		}
		switch {
		case wrongModel.MatchString(c.reason), c.registration == lease.Conflict, c.registration == lease.Registered:
			continue
		case c.registration == lease.Overridden:
			f.Severity, f.Cure = Note, "allow it again if it should serve"
			f.Commands = []string{r.pdctl("allow", string(c.Role), c.Address)}
		case c.registration == lease.StaticPresent:
			f.Severity, f.Cure = Note, "remove the static record if the agent should register the instance"
			f.Commands = []string{r.pdctl("remove", string(c.Role), c.Address), r.pdctl("allow", string(c.Role), c.Address)}
		case strings.Contains(f.Why, "denies this user"), strings.Contains(f.Why, "does not accept this user"):
			f.Cure = fmt.Sprintf("set the user of the agent's role with --etcd-username %s and --etcd-password-file; root of etcd creates users and their rights with this command", userOf(c.Role))
			f.Commands = []string{r.pdctl("auth", "init", "--dry-run")}
		default:
			f.Cure = "remove the cause: the engine must answer /health and /v1/models, and etcd must answer the agent"
			c.cured(&f, "status")
		}
		r.add(f)
	}
	a.elsewhere(m, r)
	for _, one := range a.Silent {
		r.add(Finding{
			Severity: Warning, Subject: "agent " + one.What, What: "it accepts connections and does not answer", Why: one.Why,
			Cure: "check whether its process is stopped (SIGCONT continues it) or hangs, and restart it: without it the lease of its instance ends",
		})
	}
}

// elsewhere notes agents of this machine that use another etcd or prefix, unless it is this one under
// another name.
func (a *Agents) elsewhere(m *Members, r *report) {
	for i := range a.Elsewhere {
		one := &a.Elsewhere[i]
		what, why := "not registered, and uses", one.Refused()
		if m.Snapshot != nil && one.Registration.Phase == string(lease.Registered) {
			what, why = "registered in", "proxies of this etcd and prefix do not use the instance"
		}
		if why == "" || slices.ContainsFunc(a.Remote, func(f lease.RefusedAgent) bool { return f.ID == one.ID }) ||
			one.Incarnation != "" && slices.ContainsFunc(m.all(), func(in *instance.Instance) bool { return in.Record.ID == one.Incarnation }) {
			continue
		}
		r.add(Finding{
			Severity: Note, Subject: string(one.Role) + "/" + one.Address,
			What: fmt.Sprintf("its agent on this machine is %s another etcd or prefix: %s, %s", what, strings.Join(one.Etcd, ","), one.EtcdPrefix),
			Why:  why, Cure: "nothing, if it belongs to another fleet; otherwise set its --etcd-endpoints and --etcd-prefix",
		})
	}
}

// userOf returns the etcd user for an agent of a role.
func userOf(role instance.Role) string {
	switch role {
	case instance.Prefill:
		return schema.RoleAgentPrefill
	case instance.Decode:
		return schema.RoleAgentDecode
	default:
		return fmt.Sprintf("a user with the roles %s and %s", schema.RoleAgentPrefill, schema.RoleAgentDecode)
	}
}

// conflicts reports agents whose address another agent has registered first.
func (a *Agents) conflicts(r *report) {
	for _, c := range a.claimants() {
		if c.registration != lease.Conflict {
			continue
		}
		f := Finding{
			Severity: Error, Subject: c.String(), What: "two agents claim this address: the one " + c.where() + " is not registered",
			Why: c.refusal,
			Cure: "stop one of the two agents, or set another --address for one of the two engines: the one by which proxies reach it; " +
				"the first command shows which agent has the key",
		}
		for _, one := range c.Each() {
			f.Commands = append(f.Commands, r.pdctl("get", one.String()))
		}
		c.cured(&f, "drain")
		r.add(f)
	}
}

// unnotified matches the notices of proxies about a prefill instance whose notifications do
// not arrive (package notice), with its address and the one at which they are expected.
var unnotified = regexp.MustCompile(`^prefill (\S+) is bypassed: its LMCache notifications do not arrive; they are expected at (.+)$`)

// notifications reports prefill instances whose notifications do not arrive at proxies.
func (x Proxies) notifications(r *report) {
	texts, by := x.reporters(func(p *Proxy) []string { return p.Notices }, unnotified.MatchString)
	for _, text := range texts {
		slices.Sort(by[text])
		m := unnotified.FindStringSubmatch(text)
		k := instance.Key{Role: instance.Prefill, Address: m[1]}
		r.add(Finding{
			Severity: Warning, Subject: k.String(), What: "its LMCache notifications do not arrive: requests bypass it",
			Why: "they are expected at " + m[2] + "; reported by " + instance.Some(by[text]),
			Cure: "set pd_proxy_host and pd_proxy_port in the engine's LMCache configuration to that address, leave pd_skip_proxy_notification off, " +
				"and restart the engine; a firewall must let the port through (docs/connectors/lmcache.md)",
			Commands: []string{r.pdctl("get", k.String())},
		})
	}
}
