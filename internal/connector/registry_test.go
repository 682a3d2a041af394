package connector_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/pdmesh/pdmesh/internal/connector"
)

// A class leads to a dialect that there is, or to a reason.
func TestClasses(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]connector.Class{
		"NixlConnector": {Dialect: "nixl"}, "MOONCAKECONNECTOR": {Dialect: "mooncake"}, "MooncakeStoreConnector": {Dialect: "plain"},
		"MooncakeConnectorV1": {Dialect: "nixl"}, "OffloadingConnector": {Dialect: "plain", Local: true},
	} {
		got, ok := connector.OfClass(name)
		if !ok || got != want || !slices.Contains(connector.Names(), got.Dialect) {
			t.Errorf("%s is %+v, %v", name, got, ok)
		}
	}
	for name, want := range map[string]string{"NixlPullConnector": "nixl", "mooncakeconnector": "mooncake", "LMCacheConnectorV1": "plain", "MoRIIOConnector": "moriio", "": ""} {
		if got, err := connector.Canonical(name); got != want || err != nil {
			t.Errorf("Canonical(%q) = %q, %v", name, got, err)
		}
	}
	for _, name := range []string{"NixlPushConnector", "MoRIIOConnector", "P2pNcclConnector", "MooncakeLayerwiseConnector"} {
		if got, ok := connector.OfClass(name); !ok || got.Dialect != "" || got.Refused == "" {
			t.Errorf("%s is %+v, %v", name, got, ok)
		}
		if name == "MoRIIOConnector" {
			continue // its records are written by others than the engine's own agent
		}
		if got, err := connector.Canonical(name); !errors.Is(err, connector.ErrUnknown) {
			t.Errorf("Canonical(%q) = %q, %v", name, got, err)
		}
	}
	if got, ok := connector.OfClass("nixl"); ok {
		t.Errorf("a dialect is the class %+v", got)
	}
}
