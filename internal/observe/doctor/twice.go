package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// twice reports engines with two keys in etcd.
func (m *Members) twice(r *report) {
	engines, engineAt := map[string][]*instance.Instance{}, m.engineAt()
	for _, in := range m.all() {
		if in.View != instance.Rejected {
			at := engineAt(in)
			engines[at] = append(engines[at], in)
		}
	}
	for _, at := range slices.Sorted(maps.Keys(engines)) {
		oneEngine(at, engines[at], r)
	}
}

// engineAt returns a function for the address of an instance's engine: the first address if several
// records describe one process.
func (m *Members) engineAt() func(*instance.Instance) string {
	type process struct {
		host, port string
		started    int64
	}
	first, same := map[process]string{}, map[string]string{}
	address := func(in *instance.Instance) string { return cmp.Or(in.Record.Address, in.Address) }
	for _, in := range m.all() {
		rec, at := &in.Record, address(in)
		_, port, err := net.SplitHostPort(at)
		// Engines on different machines have one host id if they register with one --zmq-register.
		if err != nil || rec.HostID == "" || rec.StartedAt == nil || strings.Contains(rec.HostID, "/zmq:") {
			continue
		}
		p := process{rec.HostID, port, rec.StartedAt.UnixNano()}
		if one := cmp.Or(first[p], at); one == at {
			first[p] = at
		} else {
			same[at] = one
		}
	}
	return func(in *instance.Instance) string { return cmp.Or(same[address(in)], address(in)) }
}

// oneEngine reports several keys of one engine.
func oneEngine(at string, list []*instance.Instance, r *report) {
	byRole := map[instance.Role][]*instance.Instance{}
	for _, in := range list {
		byRole[in.Role] = append(byRole[in.Role], in)
	}
	for _, role := range instance.Roles() {
		if same := byRole[role]; len(same) > 1 {
			var commands, removals []string
			for _, in := range same[:min(len(same), 4)] {
				commands = append(commands, r.pdctl("get", in.Key.String()))
				// Keep the record at the address itself: another record that names it may be wrong.
				if in.Static() && in.Address != at {
					removals = append(removals, r.pdctl("remove", string(role), in.Address))
				}
			}
			r.add(Finding{
				Severity: Error, Subject: string(role) + "/" + at, What: fmt.Sprintf("one engine is registered %d times: %s", len(same), keys(same)),
				Why:      "two agents, or an agent and a static record, register it under two addresses: it gets a share of the requests for each",
				Cure:     "stop one of the two agents, or remove the static record; set one --address for the engine",
				Commands: append(commands, removals...),
			})
		}
	}
	ps, ds := byRole[instance.Prefill], byRole[instance.Decode]
	if len(ps) != 1 || len(ds) != 1 || fine(ps[0]) && fine(ds[0]) {
		return
	}
	f := Finding{
		Severity: Warning, Subject: at, What: "it is registered as prefill and as decode, and its records do not say that one engine is both",
		Why:      "two agents have registered one address, or one was started with the wrong --role",
		Cure:     "stop one of the two agents; for an engine in both roles, run one agent with --role both",
		Commands: []string{r.pdctl("get", ps[0].Key.String()), r.pdctl("get", ds[0].Key.String())},
	}
	if a, b := ps[0].Record, ds[0].Record; a.HostID != "" && b.HostID != "" && a.HostID != b.HostID {
		f.Severity, f.Why = Error, "two agents on different machines have registered one address, so one of them registers an engine that is not its own"
		f.Cure = "stop one of the two agents, or set its --address to that of its own engine"
	}
	r.add(f)
}

// fine reports whether a record may share its address with the other role.
func fine(in *instance.Instance) bool { return in.Static() || in.Record.KVRole == "kv_both" }

func keys(list []*instance.Instance) string {
	var out []string
	for _, in := range list {
		out = append(out, in.Key.String())
	}
	return instance.Some(out)
}

// side is a port on one machine.
type side struct {
	host string
	port int
}

// ports reports peer ports that two engines on one machine share: the later engine cannot
// listen, and connections for it reach the other engine or hang.
func (m *Members) ports(r *report) {
	type use struct {
		in   *instance.Instance
		name string
	}
	used, engineAt := map[side][]use{}, m.engineAt()
	for _, in := range m.all() {
		if in.View == instance.Rejected || in.Record.State == instance.Down {
			continue
		}
		host, _, err := net.SplitHostPort(in.Address)
		if err != nil {
			continue
		}
		host = cmp.Or(in.Record.HostID, host)
		for _, name := range slices.Sorted(maps.Keys(in.Record.Ports)) {
			for _, port := range in.Record.Ports[name] {
				at := side{host, port}
				if !slices.ContainsFunc(used[at], func(u use) bool { return engineAt(u.in) == engineAt(in) }) {
					used[at] = append(used[at], use{in, name})
				}
			}
		}
	}
	order := slices.SortedFunc(maps.Keys(used), func(a, b side) int { return cmp.Or(cmp.Compare(a.host, b.host), cmp.Compare(a.port, b.port)) })
	for _, at := range order {
		list := used[at]
		if len(list) < 2 {
			continue
		}
		var who, commands []string
		for _, u := range list {
			who = append(who, u.in.Key.String()+" ("+u.name+")")
			commands = append(commands, r.pdctl("get", u.in.Key.String()))
		}
		r.add(Finding{
			Severity: Error, Subject: list[1].in.Key.String(),
			What:     fmt.Sprintf("port %d is the side channel of %d engines on one machine: %s", at.port, len(list), instance.Some(who)),
			Why:      "only one of them can listen there: KV transfers of the other reach the wrong engine, or none",
			Cure:     cureOfPort(list[1].name),
			Commands: commands[:min(len(commands), 4)],
		})
	}
}

// cureOfPort returns the setting that changes this port of an engine.
func cureOfPort(name string) string {
	by := map[string]string{
		instance.PortNIXL:         "VLLM_NIXL_SIDE_CHANNEL_PORT (an agent that starts the engine chooses a free one where it is not set)",
		instance.PortBootstrap:    "VLLM_MOONCAKE_BOOTSTRAP_PORT",
		instance.PortP2P:          "VLLM_P2P_SIDE_CHANNEL_PORT and --p2p-port",
		instance.PortLMCacheInit:  "pd_peer_init_port in LMCache's configuration",
		instance.PortLMCacheAlloc: "pd_peer_alloc_port in LMCache's configuration",
		instance.PortLMCachePull:  "pd_proxy_port in LMCache's configuration, which is --lmcache-notify of the agent",
	}[name]
	return strings.TrimSuffix("set a different port for each engine with "+cmp.Or(by, "its settings of "+name)+", and restart the later one", " ")
}
