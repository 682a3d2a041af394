package flow

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/sched"
)

// unmarkTried does not change the list of an earlier pick, which may be in use in another goroutine.
func TestAttempts_UntryKeepsLists(t *testing.T) {
	t.Parallel()
	in := func(address string) *instance.Instance {
		return &instance.Instance{Key: instance.Key{Role: instance.Prefill, Address: address}, Record: instance.Record{DPSize: 2}}
	}
	a, b := in("a:1"), in("b:1")
	tried := attempts{}
	for _, in := range []*instance.Instance{a, b} {
		tried.skip(in)
		tried.triedRanks.prefill = append(tried.triedRanks.prefill, sched.Target{Key: in.Key})
	}
	keys, ranks := tried.tried.prefill, tried.triedRanks.prefill
	tried.unmarkTried(&sched.Assignment{Instance: a})
	want := []instance.Key{a.Key, b.Key}
	assert.True(t, slices.Equal(keys, want), "the list of an earlier pick is %v, want %v", keys, want)
	if want := []sched.Target{{Key: a.Key}, {Key: b.Key}}; !slices.Equal(ranks, want) {
		t.Errorf("its ranks are %v, want %v", ranks, want)
	}
	want = []instance.Key{b.Key}
	assert.True(t, slices.Equal(tried.tried.prefill, want), "tried %v, want %v", tried.tried.prefill, want)
}

// The same holds for the additional attempt of a request whose decode legs failed with a KV transfer.
func TestAttempts_ExtraKeepsLists(t *testing.T) {
	t.Parallel()
	list := decodes()
	c := streaming(t, openai.Completion, list)
	c.s.MaxAttempts = 1
	tried := &c.r.attempts
	tried.counted, c.spent = 1, []instance.Key{list[0].Key}
	for _, in := range list {
		tried.skip(in)
	}
	keys, want := tried.tried.decode, []instance.Key{list[0].Key, list[1].Key}
	require.True(t, c.allowExtra(&sched.Assignment{Instance: list[1]}, &leg.Failure{Rule: leg.Status5xx.Rule()}))
	assert.Equal(t, want, keys, "the list of an earlier pick")
	assert.Equal(t, want[1:], tried.tried.decode, "tried")
}
