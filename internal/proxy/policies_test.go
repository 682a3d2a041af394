package proxy

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
)

// Sessions are read if a policy uses them, from the configured header or by the identifiers of known clients.
func TestSessions_WhenRead(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		bound                bool
		key, prefill, decode string
		want                 forward.Sessions
	}{
		{false, "x-chat", "round_robin", "least_loaded", forward.Sessions{}},
		{false, "", "round_robin", "least_loaded", forward.Sessions{}},
		{true, "x-chat", "round_robin", "least_loaded", forward.Sessions{Header: "x-chat"}},
		{true, "", "round_robin", "least_loaded", forward.Sessions{Known: true}},
		{false, "x-chat", "session", "least_loaded", forward.Sessions{Header: "x-chat"}},
		{false, "", "random", "session", forward.Sessions{Known: true}},
		{false, "", "prefix", "round_robin", forward.Sessions{Known: true}},
		{false, "x-chat", "kv_aware", "round_robin", forward.Sessions{Header: "x-chat"}},
	} {
		cfg := &config.Proxy{Choice: config.Choice{ClientBound: tc.bound, ClientBoundKey: tc.key, PrefillPolicy: tc.prefill, DecodePolicy: tc.decode}}
		assert.Equal(t, tc.want, sessions(cfg), tc)
		if kinds := policies(cfg); kinds[instance.Prefill].Name != tc.prefill || kinds[instance.Decode].Name != tc.decode {
			t.Errorf("%+v: %v", tc, kinds)
		}
	}
}
