package engines

import (
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

// A record that lacks facts that its dialect needs is refused. If its instance
// is still starting, it gets no requests and is shown as starting.
func TestUsableRecords(t *testing.T) {
	t.Parallel()
	prefill := instance.Key{Role: instance.Prefill, Address: "10.0.0.7:8100"}
	ports := map[string][]int{instance.PortBootstrap: {8998}}
	for _, tc := range []struct {
		name string
		rec  instance.Record
		says string // "" if usable
	}{
		{"whole", instance.Record{Connector: "mooncake", Ports: ports, EngineIDs: map[string]string{"0": "e"}, State: instance.Ready}, ""},
		{"ids are asked for", instance.Record{Connector: "mooncake", State: instance.Ready}, ""},
		{"ids are asked for, by the proxy's default", instance.Record{Ports: ports, State: instance.Ready}, ""},
		{"a rank has no id", instance.Record{DPSize: 2, EngineIDs: map[string]string{"0": "e"}, State: instance.Ready}, "connector mooncake: its record names no engine id of rank 1"},
		{"the other role", instance.Record{KVRole: "kv_consumer", State: instance.Ready}, "its engine is a kv_consumer"},
		{"too old", instance.Record{Version: "0.15.1", State: instance.Ready}, "before 0.16"},
		{"starting", instance.Record{Connector: "MooncakeConnector", Ports: ports, State: instance.Starting}, ""},
		{"unknown, starting", instance.Record{Connector: "teleport", State: instance.Starting}, "unknown connector"},
	} {
		if err := Usable("mooncake")(prefill, tc.rec); (err != nil) != (tc.says != "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func TestMain(m *testing.M) { leak.Main(m) }
