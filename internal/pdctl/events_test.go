package pdctl_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

func publisher(t *testing.T, version, endpoint, replay string) *fakevllm.Server {
	t.Helper()
	return fakevllm.StartTest(t, fakevllm.Options{
		Version: version, CacheBlocks: 64, BlockSize: 4, MaxModelLen: 200, Mode: fakevllm.Plain,
		KVEvents: &fakevllm.KVEvents{Enabled: true, Endpoint: endpoint, ReplayEndpoint: &replay, Topic: "kv-events"},
	})
}

// completes sends a completion, so that an engine stores blocks.
func completes(t *testing.T, s *fakevllm.Server, ids ...int) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"prompt": ids, "max_tokens": 1})
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL()+"/v1/completions", bytes.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	require.NoError(t, err)
	_ = resp.Body.Close()
	require.Equal(t, http.StatusOK, resp.StatusCode, resp.Status)
}

// record writes the record of an engine that does not report where it publishes, and returns its address.
func (r *rig) record(s *fakevllm.Server, kv map[string]instance.KVEvents) (address string) {
	r.t.Helper()
	address = s.Address()
	b, err := json.Marshal(instance.Record{V: 1, Address: address, KVEvents: kv})
	require.NoError(r.t, err)
	r.put("/pd/prefill/"+address, string(b))
	return address
}

var printed = regexp.MustCompile(`^Listening for KV cache events on topic: kv-events
Received event batch at \d{10}\.\d+:
  - BlockStored\(block_hashes=\[\d+, \d+\], parent_block_hash=None, token_ids=\[20, 21, 22, 23, 24, 25, 26, 27\], block_size=4, lora_id=None, medium='GPU', lora_name=None, extra_keys=\[None, None\](, group_idx=0, kv_cache_spec_kind='full_attention')?\)
Received event batch at \d{10}\.\d+:
  - BlockStored\(block_hashes=\[\d+\], parent_block_hash=\d+, token_ids=\[28, 29, 30, 31\], block_size=4, .*\)
$`)

// Past and new events are printed, from engines with either encoding whose endpoints are
// in their answer or in their record. The command ends after a number of batches.
func TestEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, version := range []string{"0.33.0", "0.22.0"} {
		s := publisher(t, version, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
		var kv map[string]instance.KVEvents
		if version == "0.22.0" { // this version does not report its endpoints
			conf := s.KVEventSources()
			kv = map[string]instance.KVEvents{"0": {Endpoint: conf.Endpoint, ReplayEndpoint: *conf.ReplayEndpoint, Topic: conf.Topic}}
		}
		address := r.record(s, kv)
		completes(t, s, 20, 21, 22, 23, 24, 25, 26, 27, 28)
		completes(t, s, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32)
		code, out, errs := r.run("events", "prefill", address, "--past", "--count", "2")
		assert.Equal(t, 0, code, "%s: exit\n%s", version, errs)
		assert.True(t, printed.MatchString(out), "%s: exit\n%s", version, errs)
	}
}

// If an engine restarts, the command listens again. The end of the context (Ctrl-C) ends it with exit code 0.
func TestEventsUntilInterrupted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	at := testkit.FreePort(t)
	_, port, err := net.SplitHostPort(at)
	require.NoError(t, err)
	s := publisher(t, "0.33.0", "tcp://*:"+port, "tcp://"+testkit.FreePort(t))
	address := r.record(s, nil)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var out, errs lockedBuffer
	done := make(chan int, 1)
	go func() {
		done <- pdctl.Run(ctx, []string{"events", "prefill", address, "--past", "--etcd-endpoints", r.etcd.Endpoint()}, &out, &errs, func(string) (string, bool) { return "", false })
	}()
	next := 100
	prints := func() { // events published before the command listens are lost
		t.Helper()
		before := strings.Count(out.String(), "BlockStored(")
		testkit.Eventually(t, time.Minute, func() error {
			completes(t, s, next, next+1, next+2, next+3, next+4)
			next += 4
			if s := out.String(); strings.Count(s, "BlockStored(") == before {
				return errors.New(s)
			}
			return nil
		})
	}
	prints()
	s.Kill()
	testkit.Eventually(t, patience, func() error { return errs.has("trying again") })
	require.NoError(t, s.Restart(t.Context()))
	prints()
	interrupt()
	assert.Equal(t, 0, <-done, "exit\n%s", errs.String())
}

// The key of an engine's record may have a non-canonical address.
func TestEventsOtherSpelling(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := publisher(t, "0.33.0", "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
	_, port, err := net.SplitHostPort(s.Address())
	require.NoError(t, err)
	r.put("/pd/prefill/localhost:"+port, `{"v":1,"state":"ready","models":["m"]}`)
	completes(t, s, 20, 21, 22, 23, 24)
	code, out, errs := r.run("events", "prefill", s.Address(), "--past", "--count", "1")
	assert.True(t, code == 0 && strings.Contains(out, "BlockStored("), "exit %d\n%s%s", code, out, errs)
}

// An event that cannot be printed is an error.
func TestEvents_UnprintableValue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	silent := fakevllm.StartTest(t, fakevllm.Options{Mode: fakevllm.Plain})
	address := r.record(silent, nil)
	connects := publisher(t, "0.33.0", "tcp://"+testkit.FreePort(t), "tcp://127.0.0.1:0")
	other := r.record(connects, nil)
	for _, tc := range []struct {
		code int
		says string
		args []string
	}{
		{1, "publishes no KV events", []string{"prefill", address}},
		{1, "no instance decode/" + address, []string{"decode", address}},
		{1, "publishes no events of rank 3; ranks that it publishes: [0]", []string{"prefill", other, "--rank", "3"}},
		{1, "has no wildcard: its publisher connects there", []string{"prefill", other, "--rank", "3"}},
		{2, "unknown role", []string{"both", address}},
		{2, "--count -1", []string{"prefill", address, "--count=-1"}},
		{2, "text only", []string{"prefill", address, "-o", "json"}},
	} {
		code, out, errs := r.run(append([]string{"events"}, tc.args...)...)
		assert.True(t, code == tc.code && strings.Contains(errs, tc.says) && out == "",
			"%q: exit %d\n%s%s", tc.args, code, out, errs)
	}
}
