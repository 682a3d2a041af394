package proxy

import (
	"testing"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
)

// Sessions are read from the header where anybody goes by them, and only there.
func TestWhoReadsSessions(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		bound           bool
		prefill, decode string
		want            string
	}{
		{false, "round_robin", "least_loaded", ""},
		{true, "round_robin", "least_loaded", "x-chat"},
		{false, "session", "least_loaded", "x-chat"},
		{false, "random", "session", "x-chat"},
	} {
		cfg := &config.Proxy{Choice: config.Choice{ClientBound: tc.bound, ClientBoundKey: "x-chat", PrefillPolicy: tc.prefill, DecodePolicy: tc.decode}}
		if got := sessionHeader(cfg); got != tc.want {
			t.Errorf("%+v: %q", tc, got)
		}
		kinds, err := policies(cfg)
		if err != nil || kinds[instance.Prefill].Name != tc.prefill || kinds[instance.Decode].Name != tc.decode {
			t.Errorf("%+v: %v, %v", tc, kinds, err)
		}
	}
	if _, err := policies(&config.Proxy{Choice: config.Choice{PrefillPolicy: "round_robin", DecodePolicy: "best"}}); err == nil {
		t.Error("an unknown policy is taken")
	}
}
