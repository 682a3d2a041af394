package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// members are the entries of the snapshot, pending adds left out.
func (p *Picture) members() (out []*instance.Instance) {
	if p.Snapshot == nil {
		return nil
	}
	for _, in := range p.Snapshot.All() {
		if in.View != instance.Pending {
			out = append(out, in)
		}
	}
	return out
}

// defaultConnector is what all proxies take for records that name none, "" if they differ.
func (p *Picture) defaultConnector() string {
	if len(p.Proxies) == 0 {
		return connector.Default
	}
	for i := range p.Proxies {
		if p.Proxies[i].Connector != p.Proxies[0].Connector {
			return ""
		}
	}
	return cmp.Or(p.Proxies[0].Connector, connector.Default)
}

// dialect is how an instance is spoken to, and why nobody does.
func (p *Picture) dialect(in *instance.Instance) (connector.Dialect, error) {
	d, err := connector.OfRecord(&in.Record, p.defaultConnector())
	if err == nil && in.Record.State != instance.Starting {
		err = d.Lacks(in)
	}
	return d, err
}

func (p *Picture) rejected(say func(Finding)) {
	for _, in := range p.members() {
		f := Finding{Severity: Error, Subject: in.Key.String(), What: "its value in etcd is rejected: no proxy uses it", Why: in.Reason}
		if in.View != instance.Rejected {
			_, err := p.dialect(in)
			if err == nil || in.Intent == instance.Removed {
				continue
			}
			f.What, f.Why = "its record is rejected by every proxy", err.Error()
		}
		show := p.pdctl("get", in.Key.String())
		if _, err := instance.ParseAddress(in.Address); err != nil {
			f.What = "its key is not that of an instance: no proxy uses it"
			f.Cure = "remove it; the program that writes it must name the engine by host:port"
			// Behind "--" whatever somebody has written is a word and no flag.
			f.Commands = []string{shell(slices.Concat([]string{"pdctl"}, p.Reach.Pdctl, []string{"remove", string(in.Role), "--", in.Address})...)}
			say(f)
			continue
		}
		if in.Static() {
			f.Cure = "remove the instance and add it again; pdctl add asks the engine for the facts"
			f.Commands = []string{show, p.pdctl("remove", string(in.Role), in.Address), p.pdctl("add", string(in.Role), in.Address)}
		} else {
			f.Cure = "the agent, or another program with its lease, has written it: correct or upgrade that program, and restart it"
			f.Commands = []string{show}
		}
		if strings.Contains(f.Why, "connector") {
			f.Cure += fmt.Sprintf("; --connector is one of %s", strings.Join(connector.Names(), ", "))
		}
		say(f)
	}
}

// wrongModel matches what agents and proxies say of an engine with another model.
var wrongModel = regexp.MustCompile(`serves .+, not `)

func (p *Picture) models(say func(Finding)) {
	found := func(subject, why string) Finding {
		return Finding{
			Severity: Error, Subject: subject, What: "it serves the wrong model, and gets no requests", Why: why,
			Cure: "start the engine with the right model (vllm serve MODEL, or --served-model-name), or correct --model of the agent or the proxies",
		}
	}
	tell := func(subject, why string, commands ...string) {
		f := found(subject, why)
		f.Commands = commands
		say(f)
	}
	members := p.members() // a proxy may tell of what is there no more
	for i := range p.Proxies {
		x := &p.Proxies[i]
		for _, in := range members {
			if reason := x.Unverified[in.Key.String()]; wrongModel.MatchString(reason) && x.Applied >= in.ModRevision {
				tell(in.Key.String(), x.name()+": "+reason, p.pdctl("get", in.Key.String()))
			}
		}
	}
	for _, c := range p.claimants() {
		if wrongModel.MatchString(c.reason) {
			f := found(c.subject(), "its agent "+c.where()+": "+c.reason)
			c.cured(&f, "status")
			say(f)
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(p.Models), compareKeys) {
		facts := p.Models[k]
		for _, in := range p.Snapshot.All() {
			if in.Key != k {
				continue
			}
			if want := missing(in.Record.Models, facts); want != "" {
				tell(k.String(), fmt.Sprintf("asked from here it serves %s, not %s", strings.Join(facts.Models, ", "), want), p.pdctl("get", k.String()))
			}
		}
	}
}

// missing is a model that the record lists and the engine does not serve.
func missing(models []string, facts instance.Facts) string {
	for _, m := range models {
		if !facts.Serves(m, false) {
			return m
		}
	}
	return ""
}

func compareKeys(a, b instance.Key) int { return cmp.Compare(a.String(), b.String()) }

func (p *Picture) engines(say func(Finding)) {
	for _, in := range p.members() {
		if in.View == instance.Rejected || in.Intent == instance.Removed {
			continue
		}
		host, _, _ := net.SplitHostPort(in.Address)
		look := []string{shell("curl", "-i", cmp.Or(in.Record.Scheme, "http")+"://"+in.Address+"/health"), p.pdctl("history", string(in.Role), in.Address)}
		probe, asked := p.Probes[in.Key]
		switch {
		case in.Record.State == instance.Down && !in.Static():
			what := "its engine is dead, and its agent is alive"
			why := "the agent renews the lease and reports down: the engine refuses probes, or answers with an error"
			if in.Record.Cause == instance.CauseSlow {
				what, why = "its engine does not answer, and its agent is alive", "the agent renews the lease and reports down (slow): the engine does not answer probes, because it is busy or hangs"
			}
			say(Finding{
				Severity: Error, Subject: in.Key.String(), What: what, Why: why,
				Cure: fmt.Sprintf("restart the engine on %s, after you have read its log; the agent registers it again by itself, without a restart", host), Commands: look,
			})
		case in.Record.State == instance.Down:
			say(Finding{
				Severity: Error, Subject: in.Key.String(), What: "its static record says down", Why: "no agent updates a static record: it stays down until somebody writes another record",
				Cure: "write the record again when the engine runs", Commands: []string{p.pdctl("remove", string(in.Role), in.Address), p.pdctl("add", string(in.Role), in.Address)},
			})
		case asked && probe != nil:
			say(Finding{
				Severity: Error, Subject: in.Key.String(), What: "it does not answer /health from here", Why: probe.Error(),
				Cure:     fmt.Sprintf("check that the engine runs on %s, and that a firewall lets this machine through; if the engine will not return, remove the instance", host),
				Commands: append(look, p.pdctl("remove", string(in.Role), in.Address)),
			})
		default:
			p.unverified(in, look, say)
		}
	}
}

// unverified tells of what proxies say of an instance that they have to ask themselves.
func (p *Picture) unverified(in *instance.Instance, look []string, say func(Finding)) {
	var by []string
	reason := ""
	for i := range p.Proxies {
		x := &p.Proxies[i]
		if why, no := x.Unverified[in.Key.String()]; no && !wrongModel.MatchString(why) && x.Applied >= in.ModRevision {
			by, reason = append(by, x.name()), why
		}
	}
	if len(by) == 0 {
		return
	}
	f := Finding{
		Severity: Error, Subject: in.Key.String(), What: fmt.Sprintf("%d of %d proxies cannot use it", len(by), len(p.Proxies)), Why: some(by) + ": " + reason,
		Cure: "check that the engine runs, and that the machines of these proxies can reach its address", Commands: look,
	}
	if len(by) < len(p.Proxies) {
		f.Severity = Warning
	}
	say(f)
}
