package program

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

func TestPrintBootstrap(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	code := run(t.Context(), []string{"--print-config", "--host-id=h", "--", "vllm", "serve", "M",
		"--kv-transfer-config", mooncakeProducer}, &out, &out)
	require.Equal(t, 0, code, "exit %d: %s", code, &out)
	testkit.Contains(t, out.String(),
		"connector: mooncake # --kv-transfer-config of the command\n", "bootstrap-port: 8998 # default\n")
}

// The record has the engine's id, a new one after each start.
func TestMooncakeEngine(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	cli := etcd.Client(t)
	s := fakevllm.StartTest(t, fakevllm.Options{Mode: fakevllm.Mooncake, Role: fakevllm.RolePrefill})
	log, stop := startAgent(t, fast(etcd.Endpoint(), "prefill", s.Address(), "--connector", "mooncake", "--bootstrap-port", strconv.Itoa(s.Bootstrap())))
	id := ""
	for range 2 {
		testkit.Eventually(t, patience, func() error {
			_, rec := look(t, cli, key("prefill", s.Address()))
			if rec.State != instance.Ready || rec.EngineIDs["0"] != s.EngineID() || !slices.Equal(rec.Ports[instance.PortBootstrap], []int{s.Bootstrap()}) || rec.ID == id {
				return fmt.Errorf("the engine is %s, the record %+v", s.EngineID(), rec)
			}
			return nil
		})
		_, rec := look(t, cli, key("prefill", s.Address()))
		id = rec.ID
		s.Kill()
		require.NoError(t, s.Restart(t.Context()))
	}
	assert.Equal(t, 0, stop(), "exit: %s", log)
}

// Until the bootstrap server answers, the instance is registered but not ready.
func TestMooncakeEngineWithoutBootstrap(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	cli := etcd.Client(t)
	s := fakevllm.StartTest(t, fakevllm.Options{})
	address := testkit.FreePort(t)
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	log, stop := startAgent(t, fast(etcd.Endpoint(), "prefill", s.Address(), "--connector", "mooncake", "--bootstrap-port", port))
	_, rec := awaitState(t, cli, key("prefill", s.Address()), instance.Starting)
	shown := (&instance.Instance{Key: instance.Key{Role: instance.Prefill, Address: s.Address()}, Record: rec}).List()
	assert.Equal(t, "its bootstrap server "+address+" does not return engine ids", shown.Reason)
	log.awaits(t, "engine answers, but is not ready: bootstrap server "+address+": ")
	log.awaits(t, "connection refused")

	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	require.NoError(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"0":{"engine_id":"e","worker_addr":{"0":{"0":"tcp://127.0.0.1:1"}}}}`))
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	t.Cleanup(func() { _ = server.Close(); <-served })

	_, rec = awaitState(t, cli, key("prefill", s.Address()), instance.Ready)
	assert.Empty(t, cmp.Diff(map[string]string{"0": "e"}, rec.EngineIDs))
	log.awaits(t, "bootstrap server answers: ready")
	assert.Equal(t, 0, stop(), "exit: %s", log)
	if got := history(t, cli, key("prefill", s.Address())); !slices.Equal(slices.Compact(got), []string{"starting", "ready", "draining", "deleted"}) {
		t.Errorf("history %q", got)
	}
}
