package real_test

import (
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
)

// TestBothRoles tests two kv_both engines, each registered in both roles: a prompt is computed by one and
// fetched by the other, and the answers equal those of a single vLLM.
func TestBothRoles(t *testing.T) {
	r := newRig(t)
	list := slices.DeleteFunc(table(), func(q request) bool { return !q.short })
	want := r.reference(list)
	engines := r.startBoth()
	r.compare(t, list, want)

	const name = "vllm:prompt_tokens_by_source_total"
	type counts struct{ computed, received float64 }
	of := func(e *engine) counts {
		return counts{r.metric(e, name, `source="local_compute"`), r.metric(e, name, `source="external_kv_transfer"`)}
	}
	for i := range 2 { // each engine is prefill once
		before := []counts{of(engines[0]), of(engines[1])}
		tokens := float64(r.promptTokens(long("Counted " + strconv.Itoa(i) + ":")))
		got := make([]counts, len(engines))
		for i, e := range engines {
			now := of(e)
			got[i] = counts{now.computed - before[i].computed, now.received - before[i].received}
		}
		logf("of a prompt of %v tokens the engines computed and received %v", tokens, got)
		prefill, decode := counts{computed: tokens}, counts{received: tokens}
		if !slices.Equal(got, []counts{prefill, decode}) && !slices.Equal(got, []counts{decode, prefill}) {
			t.Errorf("of a prompt of %v tokens the engines computed and received %v", tokens, got)
		}
	}

	// A single engine computes prompt and answer, and transfers nothing.
	require.NoError(t, engines[1].agent.Stop(t.Context()))
	r.awaitDecodes(1)
	before := of(engines[0])
	tokens := float64(r.promptTokens(long("Alone:")))
	if now := of(engines[0]); now.computed-before.computed != tokens || now.received != before.received {
		t.Errorf("the single engine computed %v of %v tokens and received %v", now.computed-before.computed, tokens, now.received-before.received)
	}
}

// startBoth starts a proxy and two engines in both roles.
func (r *rig) startBoth() []*engine {
	t := r.t
	t.Helper()
	var err error
	r.proxy, err = r.fleet.StartProxy(r.t.Context(), fleet.ProxySpec{Name: "proxy"})
	require.NoError(t, err)
	engines, errs := make([]*engine, 2), make([]error, 2)
	var group sync.WaitGroup
	for i := range engines {
		group.Go(func() { engines[i], errs[i] = r.launch("both-"+strconv.Itoa(i), instance.Both) })
	}
	group.Wait()
	for i, err := range errs {
		require.NoError(t, err)
		r.startAgent(engines[i])
	}
	require.NoError(t, r.proxy.WaitFor(t.Context(), 2, 2))
	return engines
}

// TestRoleByIntent changes the roles of two engines under requests. The answers equal those of a single
// vLLM.
func TestRoleByIntent(t *testing.T) {
	r := newRig(t)
	list := slices.DeleteFunc(table(), func(q request) bool { return !q.short })
	want := r.reference(slices.Concat(list, list)) // the second time, the prompts are cached
	engines := r.startBoth()
	var group sync.WaitGroup
	done := make(chan struct{})
	group.Go(func() {
		defer close(done)
		r.compare(t, list, want[:len(list)])
	})
	changes := 0
	for running := true; running || changes < 2; changes++ {
		prefill, decode := engines[changes%2], engines[(changes+1)%2]
		r.pdctl("role", "both", prefill.address, decode.address)
		r.pdctl("role", "prefill", prefill.address)
		r.pdctl("role", "decode", decode.address, "--wait", "--timeout", "5m")
		select {
		case <-done:
			running = false
		default:
		}
	}
	group.Wait()
	logf("%d changes of both roles under requests", changes)
	r.compare(t, list, want[len(list):]) // the engines have their last roles
}
