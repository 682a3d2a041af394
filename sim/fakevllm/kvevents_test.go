package fakevllm_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tinylib/msgp/msgp"

	"github.com/pdmesh/pdmesh/internal/engine/zmq"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// kvMessage is a message of a publisher, with its payload as JSON.
type kvMessage struct {
	topic string
	seq   uint64
	batch string
}

func readKV(t *testing.T, frames [][]byte) kvMessage {
	t.Helper()
	require.True(t, len(frames) == 3 && len(frames[1]) == 8, "frames %q", frames)
	m := kvMessage{topic: string(frames[0]), seq: binary.BigEndian.Uint64(frames[1])}
	if len(frames[2]) > 0 {
		var b bytes.Buffer
		if _, err := msgp.UnmarshalAsJSON(&b, frames[2]); err != nil {
			t.Fatal(err)
		}
		m.batch = b.String()
	}
	return m
}

// replayed requests all messages from a sequence number on.
func replayed(t *testing.T, endpoint string, from uint64) []kvMessage {
	t.Helper()
	c, err := zmq.Dial(t.Context(), zmq.Dealer, endpoint, zmq.Bounds{Bytes: 1 << 20}, nil)
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	require.NoError(t, c.Send(nil, binary.BigEndian.AppendUint64(nil, from)))
	var list []kvMessage
	for {
		frames, err := c.Receive()
		require.NoError(t, err)
		if len(frames) == 3 { // before vLLM 0.26 without the topic
			frames = slices.Insert(frames, 1, []byte(nil))
		}
		m := readKV(t, frames[1:])
		if m.seq == 1<<64-1 {
			return list
		}
		list = append(list, m)
	}
}

func publishing(t *testing.T, version string) *fakevllm.Server {
	t.Helper()
	replay := "tcp://127.0.0.1:0"
	return fakevllm.StartTest(t, fakevllm.Options{
		Version: version, CacheBlocks: 8, BlockSize: 4, Mode: fakevllm.NIXL,
		KVEvents: &fakevllm.KVEvents{Enabled: true, Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: &replay, Topic: "kv-events"},
	})
}

func tokens(t *testing.T, s *fakevllm.Server, ids []int, more string) {
	t.Helper()
	r := post(t, client(t), s.URL()+"/v1/completions", "", `{"prompt":`+jsonText(ids)+`,"max_tokens":1`+more+`}`)
	require.Equal(t, 200, r.status, r.body)
}

func TestKVEvents(t *testing.T) {
	t.Parallel()
	s := publishing(t, "0.33.0")
	var sources map[string]fakevllm.KVEvents
	require.NoError(t, json.Unmarshal([]byte(get(t, client(t), s.URL()+"/kv_event_sources").body), &sources))
	source := sources["0"]
	if len(sources) != 1 || !source.Enabled || source.Publisher != "zmq" || source.BufferSteps != 10000 || source.Topic != "kv-events" {
		t.Fatalf("sources %+v", sources)
	}
	sub, err := zmq.Dial(t.Context(), zmq.Sub, source.Endpoint, zmq.Bounds{Bytes: 1 << 20}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = sub.Close() })
	require.NoError(t, sub.Subscribe("kv-"))

	tokens(t, s, []int{20, 21, 22, 23, 24, 25, 26, 27, 28}, `,"cache_salt":"pepper"`)
	list := replayed(t, *source.ReplayEndpoint, 0)
	require.True(t, len(list) == 1 && list[0].topic == "kv-events" && list[0].seq == 0, "replayed %+v", list)
	require.True(t, testkit.Contains(t, list[0].batch, // as recorded from vLLM 0.32
		`[{"type":"BlockStored","block_hashes":[`, `],"parent_block_hash":null,"token_ids":[20,21,22,23,24,25,26,27],"block_size":4,"lora_id":null,"medium":"GPU","lora_name":null,`,
		`"extra_keys":[["pepper"],null],"group_idx":0,"kv_cache_spec_kind":"full_attention"}],0]`,
	))

	tokens(t, s, []int{20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32}, "") // without the salt, no block is found
	tokens(t, s, []int{40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56}, "")
	list = replayed(t, *source.ReplayEndpoint, 1)
	var removed, stored int
	for i, m := range list {
		assert.Equal(t, uint64(1+i), m.seq, "message %d follows %d", m.seq, i)
		switch {
		case strings.Contains(m.batch, `[{"type":"BlockRemoved","block_hashes":[`) && strings.HasSuffix(m.batch, `],"medium":"GPU"}],0]`):
			removed++
		case strings.Contains(m.batch, `"type":"BlockStored"`):
			stored++
		default:
			t.Errorf("batch %s", m.batch)
		}
	}
	assert.True(t, removed != 0 && stored == 2, "%d batches of removed and %d of stored blocks", removed, stored)
	// Subscribers receive the same messages, perhaps without the first ones.
	published := make(chan [][]byte, 1000)
	go func() {
		defer close(published)
		for {
			frames, err := sub.Receive()
			if err != nil {
				return // the end of the test
			}
			published <- frames
		}
	}()
	id := 1000
	eventually(t, func() error {
		id += 10
		tokens(t, s, []int{id, id + 1, id + 2, id + 3, id + 4}, "")
		if len(published) < 3 {
			return errors.New("few messages were published")
		}
		return nil
	})
	list = replayed(t, *source.ReplayEndpoint, 0)
	for range 3 {
		m := readKV(t, <-published)
		assert.True(t, m == list[m.seq], "published %+v, replayed %+v", m, list[m.seq])
	}

	s.Kill()
	require.NoError(t, s.Restart(t.Context()))
	tokens(t, s, []int{20, 21, 22, 23, 24}, "")
	if list := replayed(t, *s.KVEventSources().ReplayEndpoint, 0); len(list) != 1 || list[0].seq != 0 {
		t.Errorf("the next life replays %+v", list)
	}
}

// TestKVEventsOfOldVersions: events are arrays, replays have no topic, and no
// route reports the endpoints.
func TestKVEventsOfOldVersions(t *testing.T) {
	t.Parallel()
	s := publishing(t, "0.20.0")
	r := get(t, client(t), s.URL()+"/kv_event_sources")
	assert.Equal(t, 404, r.status, "sources: %s", r.body)
	tokens(t, s, []int{20, 21, 22, 23, 24}, "")
	list := replayed(t, *s.KVEventSources().ReplayEndpoint, 0)
	if len(list) != 1 || list[0].topic != "" || !strings.Contains(list[0].batch, `,null,[20,21,22,23],4,null,"GPU",null,[null]]],0]`) {
		t.Errorf("replayed %+v", list)
	}
}

func TestKVEventOptions(t *testing.T) {
	t.Parallel()
	if _, err := fakevllm.ParseKVEvents(`{"enable_kv_cache_events":true,"colour":"red"}`); err == nil {
		t.Error("an unknown member was taken")
	}
	k, err := fakevllm.ParseKVEvents(`{"enable_kv_cache_events":true,"endpoint":"tcp://*:0"}`)
	require.NoError(t, err)
	if _, err := fakevllm.Start(t.Context(), fakevllm.Options{KVEvents: k}); err == nil {
		t.Error("an engine without a cache publishes what is in it")
	}
	s := fakevllm.StartTest(t, fakevllm.Options{Version: "0.33.0"})
	r := get(t, client(t), s.URL()+"/kv_event_sources")
	assert.Equal(t, "{}", r.body, "sources of an engine without events")
}
