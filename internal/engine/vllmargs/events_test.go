package vllmargs_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/engine/vllmargs"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// seed is the configuration in vLLM's example of KV events.
const seed = `{"enable_kv_cache_events": true, "publisher": "zmq", "topic": "kv-events"}`

func TestParseCommand_KVEvents(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		args []string
		want vllmargs.Events
	}{
		{"none", nil, vllmargs.Events{}},
		{"the seed's", []string{"--kv-events-config", seed}, vllmargs.Events{Publishes: true, Topic: "kv-events"}},
		{"joined, underscores", []string{"--kv_events_config=" + seed}, vllmargs.Events{Publishes: true, Topic: "kv-events"}},
		{
			"endpoints", []string{"--kv-events-config", `{"enable_kv_cache_events":true,"endpoint":"tcp://*:7000","replay_endpoint":"tcp://*:7001","buffer_steps":5}`},
			vllmargs.Events{Publishes: true, Endpoint: "tcp://*:7000", Replay: "tcp://*:7001"},
		},
		{"off", []string{"--kv-events-config", `{"enable_kv_cache_events":false,"publisher":"zmq"}`}, vllmargs.Events{}},
		{"published nowhere", []string{"--kv-events-config", `{"enable_kv_cache_events":true,"publisher":"null"}`}, vllmargs.Events{}},
		{
			"fields, which count instead of the whole", []string{"--kv-events-config", seed, "--kv-events-config.enable_kv_cache_events", "true", "--kv-events-config.endpoint=tcp://*:9"},
			vllmargs.Events{Publishes: true, Endpoint: "tcp://*:9"},
		},
	} {
		c, err := vllmargs.ParseCommand(append([]string{"vllm", "serve", "M"}, tc.args...))
		require.NoError(t, err, tc.name)
		assert.Equal(t, tc.want, c.Events, tc.name)
	}
	for _, bad := range []string{"", "true", "{", `{"endpoint":5}`} {
		if _, err := vllmargs.ParseCommand([]string{"vllm", "serve", "M", "--kv-events-config=" + bad}); err == nil || !strings.Contains(err.Error(), "--kv-events-config of the command") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestEventSources(t *testing.T) {
	t.Parallel()
	one, some := vllmargs.Ranks{}, vllmargs.Ranks{Total: 8, First: 2, Local: 2}
	for _, tc := range []struct {
		name string
		e    vllmargs.Events
		r    vllmargs.Ranks
		want map[string]instance.KVEvents
	}{
		{"nothing", vllmargs.Events{Endpoint: "tcp://*:5557"}, one, nil},
		{"one rank", vllmargs.Events{Publishes: true, Endpoint: "tcp://*:5557", Topic: "t"}, one, map[string]instance.KVEvents{"0": {Endpoint: "tcp://10.0.0.7:5557", Topic: "t"}}},
		{
			"ranks in the middle of a group", vllmargs.Events{Publishes: true, Endpoint: "tcp://*:5557", Replay: "tcp://0.0.0.0:6557"}, some,
			map[string]instance.KVEvents{
				"2": {Endpoint: "tcp://10.0.0.7:5559", ReplayEndpoint: "tcp://10.0.0.7:6559"},
				"3": {Endpoint: "tcp://10.0.0.7:5560", ReplayEndpoint: "tcp://10.0.0.7:6560"},
			},
		},
		{"IPv6", vllmargs.Events{Publishes: true, Endpoint: "tcp://[::]:5557", Replay: "tcp://:::1"}, one, map[string]instance.KVEvents{"0": {Endpoint: "tcp://10.0.0.7:5557", ReplayEndpoint: "tcp://10.0.0.7:1"}}},
		{"loopback of IPv6", vllmargs.Events{Publishes: true, Endpoint: "tcp://[::1]:5557"}, one, map[string]instance.KVEvents{"0": {Endpoint: "tcp://[::1]:5557"}}},
		{"it connects", vllmargs.Events{Publishes: true, Endpoint: "tcp://10.0.0.5:5557"}, one, nil},
		{"the system's port", vllmargs.Events{Publishes: true, Endpoint: "tcp://*:0"}, one, nil},
		{"no network", vllmargs.Events{Publishes: true, Endpoint: "ipc:///tmp/e"}, one, nil},
	} {
		d := cmp.Diff(tc.want, tc.e.Sources("10.0.0.7", tc.r))
		assert.Equal(t, "", d, "%s: %s", tc.name, d)
	}
}

// ParseCommand returns the endpoints that SetIn has set, and the other settings are unchanged.
func TestEventsSetIn(t *testing.T) {
	t.Parallel()
	e := vllmargs.Events{Publishes: true, Endpoint: "tcp://*:7", Replay: "tcp://*:8", Topic: "kv-events"}
	for _, args := range [][]string{
		{"--kv-events-config", seed, "--port", "1"},
		{"--kv-events-config=" + seed, "--port", "1"},
		{"--kv-events-config={}", "--kv_events_config", seed, "--port", "1"},
		{"--port", "1", "--kv-events-config.enable_kv_cache_events", "true", "--kv-events-config.topic=kv-events"},
		{"--port", "1", "--kv-events-config.enable_kv_cache_events", "true", "--kv-events-config.topic=kv-events", "--kv-events-config.endpoint", "tcp://127.0.0.1:5"},
		{"--kv-events-config.enable_kv_cache_events", "true", "--kv-events-config.topic=kv-events", "--kv-events-config.endpoint=tcp://127.0.0.1:5", "--port", "1"},
	} {
		argv := append([]string{"vllm", "serve", "M"}, args...)
		was := slices.Clone(argv)
		set, err := e.SetIn(argv)
		require.NoError(t, err, args)
		c, err := vllmargs.ParseCommand(set)
		assert.True(t, err == nil && c.Events == e && c.Port == 1 && c.Model == "M", "%q: %+v, %v", set, c, err)
		assert.Empty(t, cmp.Diff(was, argv))
	}
	_, err := e.SetIn([]string{"vllm", "serve", "M"})
	assert.Error(t, err, "no error without the flag")
}
