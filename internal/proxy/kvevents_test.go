package proxy

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/cli/background"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/internal/proxy/engines"
	"github.com/pdmesh/pdmesh/internal/transport/netguard"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// Engines of a role whose policy does not use KV events are followed only with --kv-events.
func TestKVEvents_FollowedRoles(t *testing.T) {
	t.Parallel()
	const p, d = "127.0.0.1:1", "127.0.0.1:2"
	for _, tc := range []struct {
		events          bool
		prefill, decode string
		want            []string
	}{
		{false, "prefix", "round_robin", nil},
		{false, "kv_aware", "round_robin", []string{p}},
		{false, "prefix", "kv_aware", nil}, // the same as prefix
		{false, "kv_aware", "kv_aware", []string{p}},
		{true, "kv_aware", "round_robin", []string{p, d}},
	} {
		cfg := &config.Proxy{Choice: config.Choice{KVEvents: tc.events, PrefillPolicy: tc.prefill, DecodePolicy: tc.decode}}
		index, guard := newKVIndex(cfg, nil), netguard.New(nil)
		snap := instance.NewSnapshot(1, []*instance.Instance{engine(instance.Prefill, p), engine(instance.Decode, d)})
		f := newKVEvents(cfg, index, func() *instance.Snapshot { return snap }, engines.NewProber(cfg, guard, nil), guard)
		if f == nil || tc.want == nil {
			assert.True(t, f == nil && tc.want == nil, "%+v: follows %t", tc, f != nil)
			continue
		}
		stop := background.Start(t.Context(), f.Run)
		var got []string
		testkit.Eventually(t, members.Soon, func() error {
			for _, s := range f.Status() {
				got = append(got, s.Address)
			}
			if len(got) == 0 {
				return errors.New("no engine is followed")
			}
			return nil
		})
		assert.Equal(t, tc.want, got, tc)
		stop()
	}
}

func engine(role instance.Role, address string) *instance.Instance {
	return &instance.Instance{
		Key: instance.Key{Role: role, Address: address}, Verified: true,
		Record: instance.Record{Address: address, Scheme: "http", State: instance.Ready, ID: "one"},
	}
}
