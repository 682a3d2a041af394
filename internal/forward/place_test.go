package forward_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// While instances leave, come back in another incarnation and leave again, every leg goes to the
// instance that was picked, over a connection of its current incarnation.
func TestLegs_MembershipChanges(t *testing.T) {
	t.Parallel()
	r := start(t, fakevllm.NIXL, 2, 3, nil)
	rng := rand.New(rand.NewPCG(4, 7))
	engines := map[string]*fakevllm.Server{}
	for _, s := range append(append([]*fakevllm.Server{}, r.P...), r.D...) {
		engines[s.Address()] = s
	}
	lives := map[string]int{}
	some := func(role instance.Role, all []*fakevllm.Server) (list []*instance.Instance) {
		must := rng.IntN(len(all))
		for i, s := range all {
			if i != must && rng.IntN(2) == 0 {
				continue
			}
			one := instanceAt(role, s.Address(), fakevllm.NIXL)
			if rng.IntN(3) == 0 {
				lives[s.Address()]++
				r.up.Forget(s.Address())
			}
			one.Record.ID = fmt.Sprintf("%s#%d", s.Address(), lives[s.Address()])
			list = append(list, one)
		}
		return list
	}
	body := chatBody(false, "")
	seen := func(address string) int { return len(posted(engines[address])) }
	for step := range 60 {
		list := append(some(instance.Prefill, r.P), some(instance.Decode, r.D)...)
		r.members.set(list...)
		before := map[string]int{}
		for address := range engines {
			before[address] = seen(address)
		}
		r.checkComplete(r.post("/v1/chat/completions", body), true, body)
		e := r.entry()
		here := map[string]bool{}
		for _, one := range list {
			here[one.Address] = true
		}
		require.True(t, here[e.Prefill] && here[e.Decode],
			"step %d: %s and %s served, there were %v", step, e.Prefill, e.Decode, here)
		for address := range engines {
			want := before[address]
			if address == e.Prefill || address == e.Decode {
				want++
			}
			if got := seen(address); got != want {
				t.Fatalf("step %d: %s got %d legs more, picked were %s and %s", step, address, got-before[address], e.Prefill, e.Decode)
			}
		}
	}
	r.checkEngines()
}
