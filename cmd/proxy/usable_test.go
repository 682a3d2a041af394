package main

import (
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// A record that lacks what its dialect needs is refused, unless its instance is only
// starting: then it gets no requests, and is shown as what it is.
func TestUsableRecords(t *testing.T) {
	t.Parallel()
	prefill := instance.Key{Role: instance.Prefill, Address: "10.0.0.7:8100"}
	ports := map[string][]int{instance.PortBootstrap: {8998}}
	for _, tc := range []struct {
		name string
		rec  instance.Record
		says string // "" if it can be used
	}{
		{"whole", instance.Record{Connector: "mooncake", Ports: ports, EngineIDs: map[string]string{"0": "e"}, State: instance.Ready}, ""},
		{"by the proxy's default", instance.Record{Ports: ports, State: instance.Ready}, "connector mooncake: its record names no engine id"},
		{"starting", instance.Record{Connector: "MooncakeConnector", Ports: ports, State: instance.Starting}, ""},
		{"down", instance.Record{Connector: "mooncake", Ports: ports, State: instance.Down}, "no engine id"},
		{"unknown, starting", instance.Record{Connector: "teleport", State: instance.Starting}, "unknown connector"},
	} {
		if err := usable("mooncake")(prefill, tc.rec); (err != nil) != (tc.says != "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}
