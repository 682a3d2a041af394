package program

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

// KV transfer configurations of the engines in these tests.
const (
	nixlProducer     = `{"kv_connector":"NixlConnector","kv_role":"kv_producer"}`
	nixlBoth         = `{"kv_connector":"NixlConnector","kv_role":"kv_both","engine_id":"e1"}`
	mooncakeProducer = `{"kv_connector":"MooncakeConnector","kv_role":"kv_producer","engine_id":"base"}`
	seedEvents       = `{"enable_kv_cache_events": true, "publisher": "zmq", "topic": "kv-events"}`
)

func mooncakeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mooncake.json")
	testkit.WriteFile(t, path, text)
	return path
}

// taken listens at a port of this machine, and returns it.
func taken(t *testing.T) int {
	t.Helper()
	l := testkit.Listen(t)
	return l.Addr().(*net.TCPAddr).Port
}
