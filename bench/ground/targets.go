package ground

import (
	"fmt"
	"os/exec"
	"strings"

	"github.com/pdmesh/pdmesh/bench/target"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/fleet"
)

// Router is a target: a router and its policy.
type Router struct {
	Name    string
	command func(prefill, decode []string) string // nil for our proxy
	program string
	ready   string
	mode    fakevllm.Mode // how KV caches travel behind it
	flags   []string      // of our proxy
}

// Programs are those of the peers.
type Programs struct{ VLLMRouter, SMG string }

// Find returns the router of a name, which is that of one of our policies, or
// vllm-router:POLICY, or smg:POLICY. more goes to our proxy in addition.
func Find(name string, p Programs, more []string) (Router, error) {
	peer, chosen, ok := strings.Cut(name, ":")
	if !ok {
		// A name may be followed by flags, as in prefix+--disaggregate=auto.
		parts := strings.Split(name, "+")
		return Router{Name: name, mode: fakevllm.NIXL, flags: append(append([]string{"--prefill-policy", parts[0]}, parts[1:]...), more...)}, nil
	}
	r := Router{Name: name, ready: "/health", mode: fakevllm.NIXL}
	switch peer {
	case "vllm-router":
		r.program = p.VLLMRouter
		r.command = func(prefill, decode []string) string {
			return r.program + " --host 127.0.0.1 --port {port} --vllm-pd-disaggregation --prefill-policy " + chosen +
				" --decode-policy round_robin --max-concurrent-requests 100000 --log-level warning" + flags("--prefill", prefill) + flags("--decode", decode)
		}
	case "smg":
		r.program = p.SMG
		// To HTTP engines it says nothing of a transfer: it has prefill answer, then
		// decode. A pool that both share is what that form is for.
		r.mode = fakevllm.Plain
		r.command = func(prefill, decode []string) string {
			return r.program + " launch --host 127.0.0.1 --port {port} --pd-disaggregation --prefill-policy " + chosen +
				" --decode-policy round_robin --max-concurrent-requests 100000 --log-level warn" + flags("--prefill", prefill) + flags("--decode", decode)
		}
	default:
		return r, fmt.Errorf("target %q: use a policy, vllm-router:POLICY or smg:POLICY", name)
	}
	if _, err := exec.LookPath(r.program); err != nil {
		return r, fmt.Errorf("%s: %w", peer, target.ErrAbsent)
	}
	return r, nil
}

func flags(name string, addrs []string) string {
	var b strings.Builder
	for _, a := range addrs {
		b.WriteString(" " + name + " http://" + a)
	}
	return b.String()
}

// spec is how the lab starts it.
func (r *Router) spec(prefill, decode []string) (target.Spec, error) {
	if r.command == nil {
		return target.Spec{Name: "pdmesh", Kind: target.Mesh, Flags: r.flags}, nil
	}
	ports, err := fleet.FreePorts(1) // both have one for metrics, which may be taken
	if err != nil {
		return target.Spec{}, err
	}
	return target.Spec{
		Name: strings.ReplaceAll(r.Name, ":", "-"), Kind: target.Command, Ready: r.ready,
		Command: r.command(prefill, decode) + fmt.Sprintf(" --prometheus-host 127.0.0.1 --prometheus-port %d", ports[0]),
	}, nil
}
