package lease_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// A report lists the proxy's views first, then the facts learned from engines, and is bounded in size.
func TestInstanceReports(t *testing.T) {
	t.Parallel()
	verified := func(i int, learned bool) *instance.Instance {
		return &instance.Instance{
			Key: members.Decode(fmt.Sprintf("10.0.%d.%d:8200", i/200, i%200)), Verified: true, Learned: learned,
			Record: instance.Record{State: instance.Ready, Models: []string{"org/model", "lora"}, Version: "0.12.0"},
		}
	}
	dead := verified(1999, true)
	opinion := func(k instance.Key) instance.Opinion {
		if k == dead.Key {
			return instance.Opinion{View: instance.Ejected, Reason: strings.Repeat("x", 1000)}
		}
		return instance.Opinion{}
	}
	out, left := lease.NewInstanceReports(instance.NewSnapshot(1, []*instance.Instance{verified(0, false), verified(1, true), dead}), opinion)
	require.Len(t, out, 2, "left out")
	require.Equal(t, 0, left, "left out")
	r := out[verified(1, true).String()]
	assert.True(t, r.View == "" && r.Version == "0.12.0" && strings.Join(r.Models, ",") == "org/model,lora", "%+v", r)
	r = out[dead.String()]
	assert.True(t, r.View == instance.Ejected && len(r.Reason) <= 250 && len(r.Models) == 2, "%+v", r)
	var many []*instance.Instance
	for i := range 2000 {
		many = append(many, verified(i, true))
	}
	out, left = lease.NewInstanceReports(instance.NewSnapshot(1, many), opinion)
	raw, err := json.Marshal(out)
	if err != nil || len(raw) > 64<<10 || len(out)+left != 2000 || out[dead.String()].View != instance.Ejected {
		t.Errorf("%d bytes, %d entries, %d left out, %v", len(raw), len(out), left, err)
	}
}

// The kept keys of a report are bounded in size. Overrides come first, because intents depend on them.
func TestKeptKeys(t *testing.T) {
	t.Parallel()
	var keys []string
	for i := range 5000 {
		keys = append(keys, fmt.Sprintf("decode/10.0.%d.%d:8200", i/200, i%200))
	}
	keys = append(keys, "override/decode/10.1.0.1:8200")
	out := lease.KeptKeys(keys)
	raw, err := json.Marshal(out)
	if err != nil || len(raw) > 48<<10 || len(out) < 1000 || out[0] != keys[len(keys)-1] || out[1] != keys[0] {
		t.Errorf("%d bytes, %d keys, %v", len(raw), len(out), err)
	}
	assert.Len(t, lease.KeptKeys(keys[:2]), 2)
}
