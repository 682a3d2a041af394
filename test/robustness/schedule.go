package robustness

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Plan has everything about a run that its seed determines.
type Plan struct {
	Seed    uint64
	For     time.Duration
	Engines []EngineSpec // the last one is the spare: it has no agent and is not registered at first
	// Adapters reports whether the engines of ModelA load Adapter at run time.
	Adapters bool
	// Queue reports whether the proxies run with --queue on, and a load above the engines' capacity.
	Queue bool
	// Continue reports whether the proxies run with --continue-streams.
	Continue bool
	Proxies  int
	Lanes    []Lane
}

// EngineSpec is an engine of a run.
type EngineSpec struct {
	Name      string
	Role      string // prefill, decode or both
	Connector string
	Models    []string
}

// Lane is a list of actions that are executed one after the other. Lanes run at the same time.
type Lane struct {
	Name    string
	Actions []Action
}

// Action is a fault, or an operator's change; it is undone after a while.
type Action struct {
	At     time.Duration // since the start of the run; later if the previous action takes longer
	For    time.Duration // until it is undone
	Kind   string
	Target string // name of a process; for operators the name of an engine
	Via    string // of operators: pdctl, or the name of a proxy
	Alone  bool   // no other lane acts at the same time
}

// Suffixes of fault targets that are not whole processes: the link between a proxy and its clients, and the
// link between a prefill engine and the engines that read its KV caches.
const (
	ClientLink   = "-clients"
	TransferLink = "-transfers"
	// ofAdapter is the target suffix of actions that unload an adapter.
	ofAdapter = "-adapter"
)

// The names of models.
const (
	ModelA = "sim/first"
	ModelB = "sim/second"
	// Adapter is a LoRA adapter of ModelA.
	Adapter = "sim/first-adapter"
)

// The kinds of faults of each kind of process.
var (
	engineFaults = []string{
		"kill", "kill-node", "stop", "cut", "refuse", "to-server", "to-client", "freeze", "delay", "slow", "503", "500", "429",
		"reset", "close", "hang", "hung-core", "error-event", "abort", "kill-agent", "stop-agent", "deregister", "other-model",
	}
	proxyFaults = []string{"kill", "kill-forget", "stop", "term", "cut-etcd", "to-etcd", "from-etcd", "delay-etcd", "compact-behind", "compact-behind"}
	// streamFaults end answers in the middle.
	streamFaults = []string{"reset", "close", "cut", "kill", "error-event"}
	// linkFaults are network faults: the link is cut, refuses connections, or passes nothing, one
	// direction only, with a delay, or few bytes per second.
	linkFaults = []string{"cut", "refuse", "freeze", "to-server", "to-client", "delay", "slow"}
	etcdFaults = []string{"kill", "stop", "cut", "to-client", "delay", "peer-freeze", "move-leader", "compact", "garbage"}
	// exclusive faults affect the whole fleet; no other fault happens at the same time.
	exclusive = []string{"wipe", "no-space", "stall", "no-quorum"}
	operators = []string{"drain", "drain-wait", "drain-wait", "cordon", "weight-0", "weight", "remove"}
	spareOps  = []string{"add", "add-pending", "add-pending"}
)

// NewPlan returns the plan of a seed. It is deterministic.
func NewPlan(seed uint64, duration time.Duration) Plan {
	rnd := rand.New(rand.NewPCG(seed, 0x70646d657368)) //nolint:gosec // a seed repeats a run
	p := Plan{Seed: seed, For: duration, Proxies: 3, Engines: engines(rnd), Queue: seed%4 == 3, Continue: seed%2 == 0}
	names := func(roles ...string) []string {
		var out []string
		for _, e := range p.Engines[:len(p.Engines)-1] {
			if slices.Contains(roles, e.Role) {
				out = append(out, e.Name)
			}
		}
		return out
	}
	every := func(name string, mean, longest time.Duration, kinds, targets []string) Lane {
		return Lane{name, actions(rnd, duration, mean, longest, kinds, targets)}
	}
	proxies, members := numbered("proxy", p.Proxies), numbered("etcd", 3)
	p.Lanes = []Lane{
		every("prefill", time.Second, 3*time.Second, engineFaults, names("prefill")),
		every("decode", time.Second, 3*time.Second, engineFaults, names("decode", "both")),
		every("proxies", 2*time.Second, 3*time.Second, proxyFaults, proxies),
		every("clients", 2*time.Second, 2*time.Second, linkFaults, suffixed(proxies, ClientLink)),
		every("streams", time.Second, time.Second, streamFaults, names("decode", "both")),
		every("restarts", 3*time.Second, time.Second, []string{"restart-behind"}, p.nixl("prefill")),
		every("etcd", 2*time.Second, 3*time.Second, etcdFaults, members),
		every("operator-1", time.Second, 3*time.Second, operators, names("decode", "both")),
		every("operator-2", time.Second, 3*time.Second, operators, names("prefill")),
		every("spare", 2*time.Second, 3*time.Second, spareOps, []string{p.Engines[len(p.Engines)-1].Name}),
	}
	for i := range p.Lanes {
		if l := &p.Lanes[i]; l.Name[0] == 'o' || l.Name == "spare" {
			for j := range l.Actions {
				l.Actions[j].Via = append([]string{"pdctl", "pdctl"}, proxies...)[rnd.IntN(2+len(proxies))]
			}
		}
	}
	// The run begins with a drain without any fault, which should succeed. Then each 20 s have one
	// exclusive fault, in the middle third.
	third := 20 * time.Second / 3
	decodes := names("decode")
	alone := []Action{{For: 500 * time.Millisecond, Kind: "drain-wait", Target: decodes[rnd.IntN(len(decodes))], Via: "pdctl", Alone: true}}
	for at := time.Duration(0); at+20*time.Second <= duration; at += 20 * time.Second {
		a := Action{At: at + third + time.Duration(rnd.Int64N(int64(third))), Kind: exclusive[rnd.IntN(len(exclusive))], Target: "etcd", Alone: true}
		a.For = 2*time.Second + time.Duration(rnd.Int64N(int64(3*time.Second)))
		switch a.Kind {
		case "stall":
			a.Target, a.For = "machine", min(15*time.Second, duration/4)
		case "wipe":
			a.For += 3 * time.Second // proxies read the empty store
		}
		alone = append(alone, a)
	}
	p.Lanes = append(p.Lanes, Lane{"exclusive", alone})
	if duration >= time.Minute {
		p.Lanes = append(p.Lanes, every("transfers", 2*time.Second, 2*time.Second, linkFaults, suffixed(p.nixl("prefill"), TransferLink)))
	}
	if p.Adapters = rnd.IntN(3) == 0; p.Adapters {
		p.Lanes = append(p.Lanes, every("adapters", time.Second, 2*time.Second, []string{"unload-adapter"}, names("prefill", "decode", "both")))
	}
	return p
}

// engines returns four prefill and four decode engines and the spare. Some seeds have an engine in
// both roles, a second connector, or a second model.
func engines(rnd *rand.Rand) []EngineSpec {
	var out []EngineSpec
	for _, role := range []string{"prefill", "decode"} {
		for i := range 4 {
			out = append(out, EngineSpec{Name: fmt.Sprintf("%s-%d", role, i+1), Role: role, Connector: "nixl", Models: []string{ModelA}})
		}
	}
	if rnd.IntN(3) == 0 {
		out[4].Name, out[4].Role = "both-1", "both"
	}
	if rnd.IntN(3) == 0 { // two pairs of the second connector
		for _, i := range []int{2, 3, 6, 7} {
			out[i].Connector = "mooncake"
		}
	}
	if rnd.IntN(2) == 0 { // two engines of each role serve both models
		for _, i := range []int{1, 2, 5, 6} {
			out[i].Models = []string{ModelA, ModelB}
		}
	}
	return append(out, EngineSpec{Name: "spare", Role: "decode", Connector: "nixl", Models: []string{ModelA}})
}

// actions returns actions of random kinds on random targets, with a mean pause between them.
func actions(rnd *rand.Rand, duration, mean, longest time.Duration, kinds, targets []string) []Action {
	var out []Action
	at := time.Duration(rnd.Int64N(int64(mean)))
	for at < duration-longest/2 {
		a := Action{At: at, Kind: kinds[rnd.IntN(len(kinds))], Target: targets[rnd.IntN(len(targets))]}
		a.For = 300*time.Millisecond + time.Duration(rnd.Int64N(int64(longest)))
		out = append(out, a)
		at += a.For + mean/2 + time.Duration(rnd.Int64N(int64(mean)))
	}
	return out
}

// nixl returns the names of the engines of one role that transfer KV caches with NIXL.
func (p *Plan) nixl(role string) (out []string) {
	for _, e := range p.Engines[:len(p.Engines)-1] {
		if e.Role == role && e.Connector == "nixl" {
			out = append(out, e.Name)
		}
	}
	return out
}

func suffixed(names []string, suffix string) []string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = name + suffix
	}
	return out
}

func numbered(name string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s-%d", name, i+1)
	}
	return out
}
