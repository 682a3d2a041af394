package setup

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/engine/vllmargs"
	"github.com/pdmesh/pdmesh/internal/engine/zmq"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// The record has the endpoint of the command. A note warns if no proxy can follow it.
func TestKVEvents_EndpointOfCommand(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		events string
		more   []string
		want   map[string]instance.KVEvents
		note   string
	}{
		{name: "none", events: `{}`},
		{
			name: "given", events: `{"enable_kv_cache_events":true,"endpoint":"tcp://*:7000","replay_endpoint":"tcp://*:7100","topic":"t"}`,
			want: map[string]instance.KVEvents{"0": {Endpoint: "tcp://10.0.0.7:7000", ReplayEndpoint: "tcp://10.0.0.7:7100", Topic: "t"}},
		},
		{
			name: "ranks", events: `{"enable_kv_cache_events":true,"endpoint":"tcp://*:7000"}`, more: []string{"-dp=4", "--data-parallel-size-local=2", "--data-parallel-start-rank=2"},
			want: map[string]instance.KVEvents{"2": {Endpoint: "tcp://10.0.0.7:7002"}, "3": {Endpoint: "tcp://10.0.0.7:7003"}},
		},
		{name: "all ranks on headless nodes", events: `{"enable_kv_cache_events":true}`, more: []string{"-dp=4", "-dpl=0"}},
		{name: "it connects", events: `{"enable_kv_cache_events":true,"endpoint":"tcp://10.0.0.5:7000"}`, note: "connects to tcp://10.0.0.5:7000"},
		{name: "inside the machine", events: `{"enable_kv_cache_events":true,"endpoint":"ipc:///tmp/kv"}`, note: "ipc:///tmp/kv is reached from inside this machine only"},
		{name: "the system's port", events: `{"enable_kv_cache_events":true,"endpoint":"tcp://*:0"}`, note: "is known when it runs"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"--role=prefill", "--etcd-endpoints=10.0.0.1:1", "--", "vllm", "serve", "M", "--host=10.0.0.7", "--kv-events-config", tc.events}, tc.more...)
			c := mustLoad(t, nil, args...)
			defer c.Events.Release()
			assert.Empty(t, cmp.Diff(tc.want, c.Facts.KVEvents))
			assert.True(t, c.Events.Command == nil, "the command of the engine is %q", c.Events.Command)
			got := strings.Join(c.Notes, "\n")
			assert.True(t, (tc.note != "" || got == "") && strings.Contains(got, tc.note), "notes %q", got)
		})
	}
}

// An agent chooses neither ports that another agent has chosen
// for an engine that does not listen yet, nor ports in use.
func TestKVEvents_PortsOfTwoEngines(t *testing.T) {
	t.Parallel()
	var all []kvEvents
	for range 3 {
		e := kvEvents{Events: vllmargs.Events{Publishes: true}, ranks: vllmargs.Ranks{Total: 2, Local: 2}}
		e.choose("127.0.0.1:8777")
		defer e.Release()
		for _, other := range all {
			assert.True(t, e.Endpoint != other.Endpoint && e.Replay != other.Replay,
				"twice: %s, %s", e.Endpoint, e.Replay)
		}
		all = append(all, e)
	}
	last := all[2]
	p, q := vllmargs.EndpointPort(last.Endpoint), vllmargs.EndpointPort(last.Replay)
	assert.True(t, p >= eventsFirst && q == p+2, "%s, replay %s", last.Endpoint, last.Replay)
	last.Release()
	used, err := net.Listen("tcp", ":"+strconv.Itoa(vllmargs.EndpointPort(last.Replay)+1)) // of its second rank
	if err == nil {                                                                        // else another process has taken it, which is as good
		defer func() { _ = used.Close() }()
	}
	again := kvEvents{Events: vllmargs.Events{Publishes: true}, ranks: last.ranks}
	again.choose("127.0.0.1:8777")
	defer again.Release()
	assert.NotEqual(t, last.Endpoint, again.Endpoint, "an endpoint whose replay is taken")
}

// A publisher that would connect to its machine, where no subscriber listens, gets an endpoint to listen at.
// It serves subscribers at the endpoint in the record. Two engines with that line get different endpoints.
func TestKVEvents_ConnectingPublisher(t *testing.T) {
	t.Parallel()
	given := "tcp://" + testkit.FreePort(t)
	var seen []string
	for range 2 {
		c := wouldConnect(t, given)
		at := c.Facts.KVEvents["0"]
		if slices.Contains(seen, at.Endpoint) || !strings.HasPrefix(at.Endpoint, "tcp://127.0.0.1:") || at.ReplayEndpoint == "" || at.Topic != "kv" {
			t.Errorf("record %+v, others %v", at, seen)
		}
		seen = append(seen, at.Endpoint)
		testkit.Contains(t, strings.Join(c.Notes, "\n"), "would connect to "+given, "it listens at "+c.Events.Endpoint)
		published, err := vllmargs.ParseEvents(c.Argv()[len(c.Argv())-1])
		if err != nil || published.Endpoint != c.Events.Endpoint || !vllmargs.Binds(published.Endpoint) || published.Topic != "kv" {
			t.Fatalf("the command of the engine is %q, %v", c.Argv(), err)
		}
		python := testkit.PythonWithZMQ(t)
		pub := testkit.StartPython(t, python, "../../engine/zmq/testdata/events.py", "PUB", published.Endpoint, "1")
		pub.Line() // it listens
		conn, err := zmq.Dial(t.Context(), zmq.Sub, at.Endpoint, zmq.Bounds{}, nil)
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		require.NoError(t, conn.Subscribe("kv"))
		if m, err := conn.Receive(); err != nil || len(m) != 3 || string(m[0]) != "kv@1" {
			t.Errorf("%q, %v", m, err)
		}
	}
}

// If a subscriber listens, the publisher connects to it: a
// subscriber that waits for events must not lose them.
func TestKVEvents_SubscriberListening(t *testing.T) {
	t.Parallel()
	l := testkit.Listen(t)
	c := wouldConnect(t, "tcp://"+l.Addr().String())
	if c.Events.Command != nil || c.Facts.KVEvents != nil || !strings.Contains(strings.Join(c.Notes, "\n"), "connects to tcp://"+l.Addr().String()) {
		t.Errorf("command %q, record %v, notes %q", c.Events.Command, c.Facts.KVEvents, c.Notes)
	}
}

// wouldConnect loads the command of an engine whose publisher connects to an endpoint.
func wouldConnect(t *testing.T, endpoint string) Config {
	t.Helper()
	c, err := loadArgs(t, nil, "--role=prefill", "--etcd-endpoints=127.0.0.1:1", "--", "vllm", "serve", "M", "--host=127.0.0.1",
		"--kv-events-config", fmt.Sprintf(`{"enable_kv_cache_events":true,"publisher":"zmq","topic":"kv","endpoint":%q}`, endpoint))
	require.NoError(t, err)
	t.Cleanup(c.Events.Release)
	return c
}
