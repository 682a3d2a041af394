package program

import (
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

func TestRegistersAndDrains(t *testing.T) {
	t.Parallel()
	etcd, cli, engine, k := site(t, "decode", fakevllm.Options{Models: []string{"org/m", "lora"}, MaxModelLen: 4096, TTFT: time.Hour})
	log, stop := startAgent(t, fast(etcd.Endpoint(), "decode", engine.Address(), "--model", "m", "--connector", "nixl",
		"--label", "zone=a", "--host-id", "h1"))
	kv, rec := awaitState(t, cli, k, instance.Ready)
	assert.True(t, kv.Lease != 0 && rec.StartedAt != nil && len(rec.ID) == 26, "lease %d, record %+v", kv.Lease, rec)
	want := instance.Record{
		V: 1, ID: rec.ID, Role: instance.Decode, Address: engine.Address(), Scheme: rec.Scheme, Models: []string{"org/m", "lora"},
		Connector: "nixl", KVRole: "kv_consumer", MaxModelLen: 4096, Version: "0.24.0", State: instance.Ready,
		StartedAt: rec.StartedAt, Source: "agent", HostID: "h1", Agent: "pd-agent/0.1.0", Labels: map[string]string{"zone": "a"},
	}
	assert.Empty(t, cmp.Diff(want, rec))

	// A running request delays the drain; the record is "draining" meanwhile.
	leave := longRequest(t, engine)
	code := make(chan int, 1)
	go func() { code <- stop() }()
	now, _ := awaitState(t, cli, k, instance.Draining)
	assert.Equal(t, kv.Lease, now.Lease, "draining under another lease")
	assert.Equal(t, kv.CreateRevision, now.CreateRevision, "draining under another lease")
	log.awaits(t, "still draining: 1 running, 0 waiting")
	leave()
	assert.Equal(t, 0, <-code, "exit")
	kv, _ = look(t, cli, k)
	assert.True(t, kv == nil, "the key outlives the agent")
	assert.Empty(t, cmp.Diff([]string{"ready", "draining", "deleted"}, history(t, cli, k)))
	log.awaits(t, "drained: the engine is idle")
}

// longRequest starts a completion that runs until leave is called.
func longRequest(t *testing.T, engine *fakevllm.Server) (leave func()) {
	t.Helper()
	leave = beginRequest(t, engine.URL())
	testkit.EventuallyTrue(t, patience, func() bool { return len(engine.Requests()) != 0 },
		"the engine has not seen the request")
	return leave
}

func TestEngine_KilledAndRestarted(t *testing.T) {
	t.Parallel()
	etcd, cli, engine, k := site(t, "prefill", fakevllm.Options{Addr: testkit.FreePort(t)}) // no other process gets this port while the engine is down
	_, stop := startAgent(t, fast(etcd.Endpoint(), "prefill", engine.Address()))
	first, was := awaitState(t, cli, k, instance.Ready)
	engine.Kill()
	down, rec := awaitState(t, cli, k, instance.Down)
	assert.True(t, down.Lease == first.Lease && down.CreateRevision == first.CreateRevision && rec.ID == was.ID,
		"down: %+v, was %+v", rec, was)
	require.NoError(t, engine.Restart(t.Context()))
	back, rec := awaitState(t, cli, k, instance.Ready)
	assert.True(t, back.Lease == first.Lease && rec.ID != was.ID,
		"lease %x, was %x; incarnation %s, was %s", back.Lease, first.Lease, rec.ID, was.ID)
	assert.Equal(t, 0, stop(), "exit")
	assert.Empty(t, cmp.Diff([]string{"ready", "down", "ready", "draining", "deleted"}, history(t, cli, k)))
}

func TestEngine_APIKeyRequired(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	engine := fakevllm.StartTest(t, fakevllm.Options{APIKey: "k"})
	log, _ := startAgent(t, fast(etcd.Endpoint(), "prefill", engine.Address()))
	log.awaits(t, "HTTP 401: the engine wants an API key (--engine-api-key)")
	startAgent(t, fast(etcd.Endpoint(), "decode", engine.Address(), "--engine-api-key", "k"))
	awaitState(t, etcd.Client(t), key("decode", engine.Address()), instance.Ready)
}

func TestEtcdDownAtStart(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	etcd.Kill()
	engine := fakevllm.StartTest(t, fakevllm.Options{})
	log, _ := startAgent(t, fast(etcd.Endpoint(), "prefill", engine.Address()))
	log.awaits(t, "engine answers: registering")
	etcd.Restart()
	awaitState(t, etcd.Client(t), key("prefill", engine.Address()), instance.Ready)
}

func TestEtcdUnavailable_WholeRun(t *testing.T) {
	t.Parallel()
	engine := fakevllm.StartTest(t, fakevllm.Options{})
	log, stop := startAgent(t, fast(testkit.FreePort(t), "prefill", engine.Address()))
	log.awaits(t, "engine answers: registering")
	log.awaits(t, "not registered yet; retrying")
	log.awaits(t, "connection refused")
	assert.Equal(t, 0, stop(), "exit")
	// A user name changes nothing, and the password is not logged.
	log, stop = startAgent(t, fast(testkit.FreePort(t), "prefill", engine.Address(), "--etcd-username", "u", "--etcd-password", "topsecret"))
	log.awaits(t, "not registered yet; retrying")
	code := stop()
	assert.True(t, code == 0 && !strings.Contains(log.String(), "topsecret"), "exit %d", code)
}

func TestOneAgentPerInstance(t *testing.T) {
	t.Parallel()
	etcd, cli, engine, k := site(t, "decode", fakevllm.Options{})
	args := fast(etcd.Endpoint(), "decode", engine.Address())
	_, stopFirst := startAgent(t, args)
	before, was := awaitState(t, cli, k, instance.Ready)
	log, _ := startAgent(t, args)
	log.awaits(t, "another agent of decode/"+engine.Address()+" runs here already")
	third, stopThird := startAgent(t, args)
	third.awaits(t, "runs here already")
	assert.Equal(t, 0, stopThird(), "waiting agent: exit")
	after, _ := look(t, cli, k)
	assert.True(t, after != nil && after.ModRevision == before.ModRevision, "before %v\nafter  %v", before, after)
	assert.Equal(t, 0, stopFirst(), "exit")
	// The successor finds the same engine process.
	_, rec := awaitState(t, cli, k, instance.Ready)
	assert.Equal(t, was.ID, rec.ID, "incarnation")
}
