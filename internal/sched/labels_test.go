package sched

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// tiers returns instances of each role, half with the label tier=canary and half with tier=stable.
func tiers(n int) []*instance.Instance {
	var all []*instance.Instance
	for _, role := range instance.Roles() {
		for i := range n {
			all = append(all, &instance.Instance{
				Key: instance.Key{Role: role, Address: fmt.Sprintf("10.0.0.%d:%d", i, 8000+len(all))}, Verified: true,
				Record: instance.Record{
					Models: []string{"m"}, State: instance.Ready, Connector: "plain", Labels: map[string]string{"tier": []string{"stable", "canary"}[i%2]},
				},
			})
		}
	}
	return all
}

// A request with labels goes to instances that have them, in both
// roles; only such instances take over its legs.
func TestLabels(t *testing.T) {
	t.Parallel()
	src := &fixed{instance.NewSnapshot(1, tiers(4))}
	s := schedulerOf(src)
	canary, _ := instance.ParseSelector("tier=canary")
	none, _ := instance.ParseSelector("tier=none")
	for range 8 {
		p, err := s.Pick(Request{Role: instance.Prefill, Model: "m", Labels: canary})
		require.True(t, err == nil && p.Instance.Record.Labels["tier"] == "canary", "%v %v", p, err)
		d, err := s.Pick(Request{Role: instance.Decode, Model: "m", Labels: canary, Partner: p})
		require.True(t, err == nil && d.Instance.Record.Labels["tier"] == "canary", "%v %v", d, err)
	}
	if _, err := s.Pick(Request{Role: instance.Decode, Model: "m", Labels: none}); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
	if !s.CanServe("m", canary) || s.CanServe("m", none) || s.CanServe("other", nil) || !s.Lists("m") || s.Lists("other") {
		t.Error("CanServe or Lists is wrong")
	}
	e := s.Explain(Request{Role: instance.Decode, Model: "m", Labels: canary})
	for _, c := range e.Candidates {
		in, _ := src.Snapshot().Lookup(instance.Key{Role: instance.Decode, Address: c.Address})
		want := map[string]string{"stable": OutLabels}[in.Record.Labels["tier"]]
		assert.Equal(t, want, c.Out, "%s is out for", c.Address)
	}
	p, err := s.Pick(Request{Role: instance.Decode, Model: "m", Labels: canary})
	require.NoError(t, err)
	assert.True(t, s.Legs.hasAlternative(p.Instance, p.wanted), "no other instance takes over")
	p.wanted.labels = none
	assert.False(t, s.Legs.hasAlternative(p.Instance, p.wanted), "an instance with other labels takes over")
}
