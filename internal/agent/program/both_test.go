package program

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// An engine in both roles has two keys, with the same contents at each revision.
func TestBothRoles(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	cli := etcd.Client(t)
	engine := fakevllm.StartTest(t, fakevllm.Options{Addr: testkit.FreePort(t), Models: []string{"org/m"}, TTFT: time.Hour})
	p, d := key("prefill", engine.Address()), key("decode", engine.Address())
	socket := filepath.Join(t.TempDir(), "a.sock")
	log, stop := startAgent(t, fast(etcd.Endpoint(), "both", engine.Address(), "--connector", "nixl", "--socket", socket, "--kv-lease", "0s"))
	alike := func(want instance.State) (id string) {
		t.Helper()
		pk, pr := awaitState(t, cli, p, want)
		dk, dr := awaitState(t, cli, d, want)
		if pk.Lease == 0 || pk.Lease != dk.Lease || pk.ModRevision != dk.ModRevision || pk.CreateRevision != dk.CreateRevision {
			t.Errorf("%s: not one lease and one transaction: %+v, %+v", want, pk, dk)
		}
		if pr.ID != dr.ID || pr.KVRole != "kv_both" || dr.KVRole != "kv_both" || pr.Role != instance.Prefill || dr.Role != instance.Decode {
			t.Errorf("%s: prefill %+v, decode %+v", want, pr, dr)
		}
		return pr.ID
	}
	first := alike(instance.Ready)
	for _, where := range [][]string{{"--socket", socket}, {"--socket", socket, "-o", "json"}} {
		testkit.Eventually(t, patience, func() error { // etcd has the transaction before the agent gets its result
			code, out, errs := ask(t, append([]string{"status"}, where...)...)
			if code != 0 || !strings.Contains(out, "both") || !strings.Contains(out, engine.Address()) || !strings.Contains(out, "registered") {
				return fmt.Errorf("status: %d %s\n%s", code, errs, out)
			}
			return nil
		})
	}
	if code, out, errs := ask(t, "health", "--socket", socket); code != 0 || !strings.Contains(out, "both/"+engine.Address()) {
		t.Errorf("health: %d %s %s", code, out, errs)
	}

	engine.Kill()
	alike(instance.Down)
	require.NoError(t, engine.Restart(t.Context()))
	assert.NotEqual(t, first, alike(instance.Ready), "a new life of the engine has the old incarnation")

	leave := longRequest(t, engine)
	code := make(chan int, 1)
	go func() { code <- stop() }()
	alike(instance.Draining)
	log.awaits(t, "still draining: 1 running, 0 waiting")
	leave()
	assert.Equal(t, 0, <-code, "exit")
	want := []string{"ready", "down", "ready", "draining", "deleted"}
	for _, k := range []string{p, d} {
		diff := cmp.Diff(want, history(t, cli, k))
		assert.Equal(t, "", diff, "%s: %s", k, diff)
	}
}

// A drain of both roles waits for KV caches that decode instances may still pull.
func TestBothRoles_DrainWaitsForPulls(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	cli := etcd.Client(t)
	engine := fakevllm.StartTest(t, fakevllm.Options{Models: []string{"m"}})
	log, stop := startAgent(t, fast(etcd.Endpoint(), "both", engine.Address(), "--kv-lease", "1s"))
	awaitState(t, cli, key("prefill", engine.Address()), instance.Ready)
	resp, err := testkit.Ask(t.Context(), http.DefaultClient, http.MethodPost, engine.URL()+"/v1/completions", `{"model":"m","prompt":"hi","max_tokens":1}`)
	require.NoError(t, err)
	_ = resp.Body.Close()
	code := make(chan int, 1)
	go func() { code <- stop() }()
	log.awaits(t, "finished prefills may still be pulled by decode")
	assert.Equal(t, 0, <-code, "exit")
}
