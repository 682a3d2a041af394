package ground

import (
	"fmt"
	"os/exec"
	"strings"

	"github.com/pdmesh/pdmesh/bench/target"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// Router is our proxy or another router, with a policy.
type Router struct {
	Name string
	spec target.Spec
	mode fakevllm.Mode // KV transfer of its engines
}

// Programs are the programs of other routers.
type Programs struct{ VLLMRouter, SMG string }

// Find returns the router with a name: one of our policies, which may be followed by flags
// as in prefix+--disaggregate=auto, or vllm-router:POLICY, or smg:POLICY. Our proxy also
// gets the flags more.
func Find(name string, p Programs, more []string) (Router, error) {
	peer, policy, ok := strings.Cut(name, ":")
	if !ok {
		parts := strings.Split(name, "+")
		flags := append(append([]string{"--prefill-policy", parts[0]}, parts[1:]...), more...)
		return Router{Name: name, mode: fakevllm.NIXL, spec: target.Spec{Name: "pdmesh", Kind: target.Mesh, Flags: flags}}, nil
	}
	r := Router{Name: name, mode: fakevllm.NIXL, spec: target.Spec{Name: peer + "-" + policy, Policy: policy}}
	switch peer {
	case "vllm-router":
		r.spec.Kind, r.spec.Program = target.VLLMRouter, p.VLLMRouter
	case "smg":
		r.spec.Kind, r.spec.Program = target.SMG, p.SMG
		// smg sends no transfer params to HTTP engines. It waits for prefill, then it sends
		// the request to decode, as for engines that share a cache.
		r.mode = fakevllm.Plain
	default:
		return r, fmt.Errorf("target %q: must be a policy, vllm-router:POLICY or smg:POLICY", name)
	}
	if _, err := exec.LookPath(r.spec.Program); err != nil {
		return r, fmt.Errorf("%s: %w", peer, target.ErrAbsent)
	}
	return r, nil
}
