package program

import (
	"bytes"
	"fmt"
	"net"
	"path/filepath"
	"slices"
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

// The port of the P2P tier is read from the same sources as by the engine.
func TestP2PPort(t *testing.T) {
	t.Parallel()
	const with = `{"kv_connector":"OffloadingConnector","kv_role":"kv_producer","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec","secondary_tiers":[{"type":"p2p"}]}}`
	ported := strings.Replace(with, `"p2p"`, `"p2p","port":5720`, 1)
	serve := func(config string) []string {
		return []string{"vllm", "serve", "M", "--host", "10.0.0.7", "--kv-transfer-config", config}
	}
	for _, tc := range []struct {
		name string
		args []string
		want string // of --print-config, or of the error
	}{
		{"default", append([]string{"--"}, serve(with)...), "p2p-port: 5710 # default"},
		{"tier", append([]string{"--"}, serve(ported)...), "p2p-port: 5720 # --kv-transfer-config of the command (secondary_tiers)"},
		{"environment of the command", append([]string{"--", "env", "VLLM_P2P_SIDE_CHANNEL_PORT=5730"}, serve(with)...), "p2p-port: 5730 # VLLM_P2P_SIDE_CHANNEL_PORT"},
		{"external load balancer", append([]string{"--"}, append(serve(with), "-dp=4", "--data-parallel-rank=2")...), "p2p-port: 5712 # default"},
		{"hybrid load balancer", append([]string{"--"}, append(serve(ported), "-dp=8", "-dpl=4", "-dpr=4", "-dph")...), "p2p-port: 5724 # --kv-transfer-config"},
		{"flag and rank", append([]string{"--p2p-port=5740", "--"}, append(serve(with), "-dp=4", "--data-parallel-rank=2")...), "p2p-port: 5740"},
		{"no port left", append([]string{"--", "env", "VLLM_P2P_SIDE_CHANNEL_PORT=65534"}, append(serve(with), "-dp=4", "--data-parallel-rank=2")...), `VLLM_P2P_SIDE_CHANNEL_PORT): invalid port "65536"`},
		{"flag", append([]string{"--p2p-port=5740", "--"}, serve(ported)...), "p2p-port: 5740"},
		{"beside an engine", []string{"--role=prefill", "--address=10.0.0.7:8100", "--connector=p2p"}, "p2p-port: 5710 # default"},
		{"by class", []string{"--role=decode", "--address=10.0.0.7:8100", "--connector=NixlPushConnector", "--p2p-port=1"}, "--p2p-port: a P2P port is for"},
		{"no port", []string{"--role=prefill", "--address=10.0.0.7:8100", "--connector=p2p", "--p2p-port=70000"}, `--p2p-port: invalid port "70000"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			run(t.Context(), slices.Concat([]string{"--print-config", "--host-id=h"}, tc.args), &out, &out)
			assert.Contains(t, out.String(), tc.want)
		})
	}
}
