package vllmargs_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/vllmargs"
)

func TestTransfer(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, text, dialect string
		role                instance.Role // "" when it is left open
		describe            string
	}{
		{"NIXL", `{"kv_connector":"NixlConnector","kv_role":"kv_producer"}`, "nixl", instance.Prefill, "NixlConnector"},
		{"NIXL for both", `{"kv_connector":"NixlConnector","kv_role":"kv_both"}`, "nixl", "", "NixlConnector"},
		{"a store", `{"kv_connector":"MooncakeStoreConnector","kv_role":"kv_consumer"}`, "plain", instance.Decode, "MooncakeStoreConnector"},
		{"vllm-ascend's store", `{"kv_connector":"AscendStoreConnector","kv_role":"kv_consumer","kv_connector_extra_config":{"backend":"mooncake"}}`, "plain", instance.Decode, "AscendStoreConnector"},
		{"vllm-ascend's pull", `{"kv_connector":"MooncakeConnectorV1","kv_role":"kv_producer","kv_port":"30000"}`, "nixl", instance.Prefill, "MooncakeConnectorV1"},
		{
			"the first Mooncake integration", `{"kv_connector":"MooncakeConnector","kv_role":"kv_producer","kv_rank":0,"kv_parallel_size":2,"kv_buffer_size":2e9}`,
			"plain", instance.Prefill, "MooncakeConnector",
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
			if err != nil {
				t.Fatal(err)
			}
			dialect, err := got.Dialect()
			role, ok := got.Role()
			if err != nil || dialect != tc.dialect || role != tc.role || ok != (tc.role != "") || got.Describe() != tc.describe {
				t.Errorf("%q %v, role %q %v, %s", dialect, err, role, ok, got.Describe())
			}
			if dialect != "" && !slices.Contains(connector.Names(), dialect) {
				t.Errorf("the proxy has no dialect %q", dialect)
			}
		})
	}
}

func TestUnknownConnectors(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"MooncakeConnector", "MoRIIOConnector", "P2pNcclConnector", "MooncakeLayerwiseConnector", "NixlPushConnector", "Other\x1b[1m"} {
		inner := `{"kv_connector":` + quote(name) + `,"kv_role":"kv_both"}`
		for _, text := range []string{
			inner, `{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[{"kv_connector":"NixlConnector","kv_role":"kv_both"},` + inner + `]}}`,
		} {
			got, err := vllmargs.ParseTransfer(text)
			if err != nil {
				t.Fatal(err)
			}
			if d, err := got.Dialect(); !errors.Is(err, vllmargs.ErrConnector) || !strings.Contains(err.Error(), "say so with --connector") || strings.Contains(err.Error(), "\x1b") {
				t.Errorf("%s: %q, %v", name, d, err)
			}
		}
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
		{"nothing", "", "no JSON object: quote it as one argument"},
		{"split by the shell", "{kv_connector:NixlConnector}", "quote it as one argument"},
		{"cut", `{"kv_connector":"Nixl`, "quote it as one argument"},
		{"a file", "config.json", `"config.json" is no JSON object`},
		{"role", `{"kv_connector":"NixlConnector","kv_role":"prefill"}`, `kv_role "prefill": vLLM knows kv_producer, kv_consumer and kv_both`},
		{"inner role", `{"kv_connector":"MultiConnector","kv_connector_extra_config":{"connectors":[{"kv_role":"x"}]}}`, `kv_role "x"`},
		{"a number", `{"kv_connector":1}`, "kv_connector must not be a number"},
		{"empty MultiConnector", `{"kv_connector":"MultiConnector","kv_role":"kv_both"}`, "without kv_connector_extra_config.connectors"},
		{"deep", deep, "deep"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := vllmargs.ParseTransfer(tc.text)
			if !errors.Is(err, vllmargs.ErrTransfer) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

func TestEnvRole(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]instance.Role{"producer": instance.Prefill, "consumer": instance.Decode, "both": "", "kv_producer": instance.Prefill, " Consumer ": instance.Decode} {
		kv, err := vllmargs.ParseEnvRole(value)
		if role, _ := vllmargs.EnvRole(kv); err != nil || role != want {
			t.Errorf("%q: %q, %v", value, role, err)
		}
	}
	for _, value := range []string{"prefill", "", "kv_", "producer,consumer"} {
		if kv, err := vllmargs.ParseEnvRole(value); err == nil || !strings.Contains(err.Error(), "producer, consumer and both") {
			t.Errorf("%q: %q, %v", value, kv, err)
		}
	}
}
