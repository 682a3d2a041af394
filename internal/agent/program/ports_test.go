package program

import (
	"bytes"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/agent/setup"
	"github.com/pdmesh/pdmesh/internal/engine/vllmargs"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// Two engines with the same command line, which names no port,
// both publish, and their records have the endpoints.
func TestWrappedEnginesPublish(t *testing.T) {
	t.Parallel()
	first := &wrapped{etcd: etcdtest.Start(t)}
	first.cli = first.etcd.Client(t)
	second := &wrapped{etcd: first.etcd, cli: first.cli}
	seen := map[string]bool{}
	for _, w := range []*wrapped{first, second} {
		w.address, w.argv = testkit.FreePort(t), []string{"--kv-events-config", seedEvents}
		w.socket, w.key = filepath.Join(t.TempDir(), "a.sock"), key("decode", w.address)
		w.start(t, "serve")
	}
	for _, w := range []*wrapped{first, second} {
		_, rec := awaitState(t, w.cli, w.key, instance.Ready)
		is := rec.KVEvents["0"]
		if len(rec.KVEvents) != 1 || is.Topic != "kv-events" || seen[is.Endpoint] || seen[is.ReplayEndpoint] || is.Endpoint == is.ReplayEndpoint {
			t.Errorf("record %+v, others %v", rec.KVEvents, seen)
		}
		for _, endpoint := range []string{is.Endpoint, is.ReplayEndpoint} {
			seen[endpoint] = true
			conn, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://"))
			if err != nil {
				t.Errorf("no publisher: %v", err)
				continue
			}
			_ = conn.Close()
		}
		w.log.awaits(t, fmt.Sprintf(`engine's KV events {"enable_kv_cache_events":true,"endpoint":"tcp://*:%d"`, vllmargs.EndpointPort(is.Endpoint)))
	}
	for _, w := range []*wrapped{first, second} {
		w.send(t, syscall.SIGTERM)
		w.exits(t, 7)
	}
}

// An engine with a port in use would exit, or never answer, so it is not started.
func TestEnginePort_InUse(t *testing.T) {
	t.Parallel()
	used := strconv.Itoa(taken(t))
	for want, command := range map[string][]string{
		setup.ErrEventsTaken.Error() + " (:" + used + ")": {
			"/no/such/vllm", "--port", "1", "--kv-events-config", `{"enable_kv_cache_events":true,"endpoint":"tcp://*:` + used + `"}`,
		},
		setup.ErrSideTaken.Error() + " (localhost:" + used + ")": {
			"env", setup.EnvSidePort + "=" + used, "/no/such/vllm", "--port", "1", "--kv-transfer-config", nixlProducer,
		},
	} {
		var out bytes.Buffer
		args := append([]string{"--role=prefill", "--etcd-endpoints=127.0.0.1:1", "--socket=off", "--"}, command...)
		code := run(t.Context(), args, &out, &out)
		assert.True(t, code == 1 && strings.Contains(out.String(), want), "exit %d, want %s\n%s", code, want, &out)
	}
}

// The engine gets the side channel's port, and keeps an explicit setting.
func TestWrappedEngine_SideChannel(t *testing.T) {
	t.Parallel()
	w := wrapEngine(t, "serve", "--kv-transfer-config", strings.Replace(nixlBoth, `"e1"`, `"e2"`, 1))
	_, rec := awaitState(t, w.cli, w.key, instance.Ready)
	if rec.KVRole != "kv_both" || rec.Role != instance.Decode || rec.Connector != "nixl" || rec.EngineIDs["0"] != "e2" {
		t.Errorf("record %+v", rec)
	}
	w.log.awaits(t, setup.EnvSidePort+"=")
	_, rest, _ := strings.Cut(w.log.String(), setup.EnvSidePort+"=")
	port, _, _ := strings.Cut(rest, ":")
	w.log.awaits(t, "engine's side channel "+port+"\n")
	w.send(t, syscall.SIGTERM)
	w.exits(t, 7)
}

// Two Mooncake prefill engines with the same bootstrap port: the second is not
// started. A port at which the engine starts no bootstrap server may be in use.
func TestBootstrapPort_InUse(t *testing.T) {
	t.Parallel()
	used := strconv.Itoa(taken(t))
	outside := strings.Replace(mooncakeProducer, `"engine_id":"base"`, `"kv_connector_extra_config":{"bootstrap_server_address":"127.0.0.1:`+used+`"}`, 1)
	occupied := "VLLM_MOONCAKE_BOOTSTRAP_PORT=" + used
	free := "VLLM_MOONCAKE_BOOTSTRAP_PORT=" + testkit.FreePort(t)[len("127.0.0.1:"):]
	for _, tc := range []struct {
		name, transfer string
		env            string
		flags, more    []string
		taken          bool
	}{
		{name: "of the engine", transfer: mooncakeProducer, env: occupied, taken: true},
		{name: "another --bootstrap-port", transfer: mooncakeProducer, env: occupied, flags: []string{"--bootstrap-port=1"}, taken: true},
		{name: "--bootstrap-port", transfer: mooncakeProducer, env: free, flags: []string{"--bootstrap-port=" + used}},
		{name: "outside", transfer: outside, env: occupied},
		{name: "all ranks on headless nodes", transfer: mooncakeProducer, env: occupied, more: []string{"-dp=2", "-dpl=0"}},
		{name: "NIXL", transfer: nixlProducer, env: occupied},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			out := &lockedBuffer{} // output of env, too
			args := append([]string{"--role=prefill", "--etcd-endpoints=127.0.0.1:1", "--socket=off"}, tc.flags...)
			args = append(args, "--", "env", tc.env, "/no/such/vllm", "serve", "M", "--host=127.0.0.1", "--port=1", "--kv-transfer-config", tc.transfer)
			code := run(t.Context(), append(args, tc.more...), out, out)
			said := strings.Contains(out.String(), setup.ErrBootstrapTaken.Error()+" (0.0.0.0:"+used+")") && strings.Contains(out.String(), "VLLM_MOONCAKE_BOOTSTRAP_PORT")
			assert.Equal(t, tc.taken, said, "exit %d\n%s", code, out)
			assert.Equal(t, tc.taken, code == 1, "exit %d\n%s", code, out)
		})
	}
}
