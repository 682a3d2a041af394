package vllmargs_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/engine/vllmargs"
	"github.com/pdmesh/pdmesh/internal/instance"
)

func TestTransfer(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, text, dialect string
		role                instance.Role // "" if undecided
		describe            string
	}{
		{"NIXL", `{"kv_connector":"NixlConnector","kv_role":"kv_producer"}`, "nixl", instance.Prefill, "NixlConnector"},
		{"NIXL for both", `{"kv_connector":"NixlConnector","kv_role":"kv_both"}`, "nixl", "", "NixlConnector"},
		{"a store", `{"kv_connector":"MooncakeStoreConnector","kv_role":"kv_consumer"}`, "plain", instance.Decode, "MooncakeStoreConnector"},
		{"vllm-ascend's store", `{"kv_connector":"AscendStoreConnector","kv_role":"kv_consumer","kv_connector_extra_config":{"backend":"mooncake"}}`, "plain", instance.Decode, "AscendStoreConnector"},
		{"vllm-ascend's pull", `{"kv_connector":"MooncakeConnectorV1","kv_role":"kv_producer","kv_port":"30000"}`, "ascend", instance.Prefill, "MooncakeConnectorV1"},
		{"NIXL push", `{"kv_connector":"NixlPushConnector","kv_role":"kv_consumer"}`, "nixl_push", instance.Decode, "NixlPushConnector"},
		{"the P2P tier", p2pTier("OffloadingConnector"), "p2p", instance.Prefill, "OffloadingConnector"},
		{"another connector with tiers", p2pTier("SimpleCPUOffloadConnector"), "plain", instance.Prefill, "SimpleCPUOffloadConnector"},
		{"offloading without the tier", strings.Replace(p2pTier("OffloadingConnector"), `"p2p"`, `"fs"`, 1), "plain", instance.Prefill, "OffloadingConnector"},
		{"another spec", strings.Replace(p2pTier("OffloadingConnector"), "TieringOffloadingSpec", "CPUOffloadingSpec", 1), "plain", instance.Prefill, "OffloadingConnector"},
		{"the P2P tier and a store", `{"kv_connector":"MultiConnector","kv_role":"kv_producer","kv_connector_extra_config":{"connectors":[` + p2pTier("OffloadingConnector") + `,{"kv_connector":"FlexKVConnectorV1"}]}}`,
			"p2p", instance.Prefill, "MultiConnector(OffloadingConnector,FlexKVConnectorV1)"},
		{
			"the first Mooncake integration", `{"kv_connector":"MooncakeConnector","kv_role":"kv_producer","kv_rank":0,"kv_parallel_size":2,"kv_buffer_size":2e9}`,
			"plain", instance.Prefill, "MooncakeConnector",
		},
		{"Mooncake of today", `{"kv_connector":"MooncakeConnector","kv_role":"kv_producer"}`, "mooncake", instance.Prefill, "MooncakeConnector"},
		{
			"Mooncake and a store", `{"kv_connector":"MultiConnector","kv_role":"kv_consumer","kv_connector_extra_config":{"connectors":[
				{"kv_connector":"MooncakeConnector","kv_role":"kv_consumer"},{"kv_connector":"MooncakeStoreConnector","kv_role":"kv_both"}]}}`,
			"mooncake", instance.Decode, "MultiConnector(MooncakeConnector,MooncakeStoreConnector)",
		},
		{
			"several", `{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[
				{"kv_connector":"OffloadingConnector","kv_role":"kv_both"},{"kv_connector":"NixlConnector","kv_role":"kv_both"}]}}`,
			"nixl", "", "MultiConnector(OffloadingConnector,NixlConnector)",
		},
		{
			"several that are nested", `{"kv_connector":"MultiConnector","kv_role":"kv_producer","kv_connector_extra_config":{"connectors":[
				{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"},
				{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[{"kv_connector":"NixlConnector","kv_role":"kv_both"}]}}]}}`,
			"nixl", instance.Prefill, "MultiConnector(LMCacheConnectorV1,MultiConnector(NixlConnector))",
		},
		{
			"only offloading", `{"kv_connector":"MultiConnector","kv_role":"kv_consumer","kv_connector_extra_config":{"connectors":[{"kv_connector":"OffloadingConnector","kv_role":"kv_both"}]}}`,
			"plain", instance.Decode, "MultiConnector(OffloadingConnector)",
		},
		{"a role alone", `{"kv_role":"kv_consumer"}`, "", instance.Decode, ""},
		{"nulls", `{"kv_connector":null,"kv_role":null,"kv_rank":null}`, "", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := vllmargs.ParseTransfer(tc.text)
			require.NoError(t, err)
			dialect, err := got.Dialect()
			role, ok := got.Role()
			if err != nil || dialect != tc.dialect || role != tc.role || ok != (tc.role != "") || got.Describe() != tc.describe {
				t.Errorf("%q %v, role %q %v, %s", dialect, err, role, ok, got.Describe())
			}
			assert.False(t, dialect != "" && !slices.Contains(connector.Names(), dialect),
				"the proxy has no dialect %q", dialect)
		})
	}
}

// p2pTier returns the configuration of a prefill engine with a P2P tier.
func p2pTier(connector string) string {
	return `{"kv_connector":"` + connector + `","kv_role":"kv_producer","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec",
		"secondary_tiers":[{"type":"fs","root_dir":"/x"},{"type":"p2p","port":"5720","unbound_store_timeout_s":90}]}}`
}

// The lease and the port that the record gets from the engine's configuration.
func TestLeaseAndTier(t *testing.T) {
	t.Parallel()
	multi := func(inner string) string {
		return `{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[` + inner + `]}}`
	}
	lease := func(value string) string {
		return `{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_connector_extra_config":{"kv_lease_duration":` + value + `}}`
	}
	for _, tc := range []struct {
		text        string
		lease, port int
	}{
		{lease("60"), 60, 0}, {lease(`"60"`), 60, 0}, {lease("45.5"), 45, 0}, {lease("null"), 0, 0}, {lease("-1"), 0, 0}, {lease(`[1]`), 0, 0}, {lease("1e300"), 0, 0},
		{multi(lease("60")), 60, 0}, {p2pTier("OffloadingConnector"), 90, 5720}, {multi(p2pTier("OffloadingConnector")), 90, 5720},
	} {
		got, err := vllmargs.ParseTransfer(tc.text)
		require.NoError(t, err, tc.text)
		port := 0
		if tier := got.Offloading(); tier != nil {
			port = tier.Port
		}
		assert.Equal(t, tc.lease, got.LeaseSeconds())
		assert.Equal(t, tc.port, port)
	}
}

func TestUnknownConnectors(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"MoRIIOConnector", "P2pNcclConnector", "MooncakeLayerwiseConnector", "SfaRemoteD2HConnector", "Other\x1b[1m"} {
		inner := `{"kv_connector":` + quote(name) + `,"kv_role":"kv_both"}`
		for _, text := range []string{
			inner, `{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[{"kv_connector":"NixlConnector","kv_role":"kv_both"},` + inner + `]}}`,
		} {
			got, err := vllmargs.ParseTransfer(text)
			require.NoError(t, err)
			if d, err := got.Dialect(); !errors.Is(err, vllmargs.ErrConnector) || !strings.Contains(err.Error(), "set --connector") || strings.Contains(err.Error(), "\x1b") {
				t.Errorf("%s: %q, %v", name, d, err)
			}
		}
	}
}

// If two connectors of one engine both need the proxy, the engine has no dialect.
func TestTwoConnectors_Unsupported(t *testing.T) {
	t.Parallel()
	got, err := vllmargs.ParseTransfer(`{"kv_connector":"MultiConnector","kv_role":"kv_producer","kv_connector_extra_config":{"connectors":[
		{"kv_connector":"NixlConnector"},{"kv_connector":"MooncakeConnector"}]}}`)
	require.NoError(t, err)
	if d, err := got.Dialect(); !errors.Is(err, vllmargs.ErrConnector) || !strings.Contains(err.Error(), "nixl and mooncake both need") {
		t.Errorf("%q, %v", d, err)
	}
}

// The bootstrap server is found wherever the engine's configuration has it.
func TestMooncake(t *testing.T) {
	t.Parallel()
	const own = `{"kv_connector":"MooncakeConnector","kv_role":"kv_producer","kv_connector_extra_config":{"bootstrap_server_address":" 10.0.0.1:9000 ","mooncake_protocol":"tcp"}}`
	for _, tc := range []struct {
		text, bootstrap string
		is              bool
	}{
		{own, "10.0.0.1:9000", true},
		{`{"kv_connector":"MultiConnector","kv_connector_extra_config":{"connectors":[{"kv_connector":"OffloadingConnector"},` + own + `]}}`, "10.0.0.1:9000", true},
		{`{"kv_connector":"mooncakeconnector","kv_role":"kv_consumer"}`, "", true},
		{`{"kv_connector":"MooncakeConnector","kv_rank":0,"kv_parallel_size":2}`, "", false},
		{`{"kv_connector":"MooncakeStoreConnector"}`, "", false},
		{`{"kv_role":"kv_producer"}`, "", false},
	} {
		got, err := vllmargs.ParseTransfer(tc.text)
		require.NoError(t, err)
		m := got.Mooncake()
		assert.True(t, (m != nil) == tc.is && (m == nil || m.Bootstrap == tc.bootstrap), "%s: %+v", tc.text, m)
	}
}

func quote(s string) string { return `"` + strings.ReplaceAll(s, "\x1b", `\u001b`) + `"` }

func TestBadTransfers(t *testing.T) {
	t.Parallel()
	deep := `{"kv_connector":"NixlConnector"}`
	for range 8 {
		deep = `{"kv_connector":"MultiConnector","kv_connector_extra_config":{"connectors":[` + deep + `]}}`
	}
	for _, tc := range []struct{ name, text, says string }{
		{"nothing", "", "not a JSON object: quote it as one argument"},
		{"split by the shell", "{kv_connector:NixlConnector}", "quote it as one argument"},
		{"cut", `{"kv_connector":"Nixl`, "quote it as one argument"},
		{"a file", "config.json", `"config.json" is not a JSON object`},
		{"role", `{"kv_connector":"NixlConnector","kv_role":"prefill"}`, `kv_role "prefill": vLLM knows kv_producer, kv_consumer and kv_both`},
		{"inner role", `{"kv_connector":"MultiConnector","kv_connector_extra_config":{"connectors":[{"kv_role":"x"}]}}`, `kv_role "x"`},
		{"a number", `{"kv_connector":1}`, "kv_connector must not be a number"},
		{"empty MultiConnector", `{"kv_connector":"MultiConnector","kv_role":"kv_both"}`, "without kv_connector_extra_config.connectors"},
		{"deep", deep, "deep"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := vllmargs.ParseTransfer(tc.text)
			assert.True(t, errors.Is(err, vllmargs.ErrTransfer) && strings.Contains(err.Error(), tc.says),
				"%+v, %v", got, err)
		})
	}
}

func TestEnvRole(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]instance.Role{"producer": instance.Prefill, "consumer": instance.Decode, "both": "", "kv_producer": instance.Prefill, " Consumer ": instance.Decode} {
		kv, err := vllmargs.ParseEnvRole(value)
		role, _ := vllmargs.RoleOf(kv)
		assert.True(t, err == nil && role == want, "%q: %q, %v", value, role, err)
	}
	for _, value := range []string{"prefill", "", "kv_", "producer,consumer"} {
		if kv, err := vllmargs.ParseEnvRole(value); err == nil || !strings.Contains(err.Error(), "producer, consumer and both") {
			t.Errorf("%q: %q, %v", value, kv, err)
		}
	}
}
