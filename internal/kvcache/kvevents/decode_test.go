package kvevents_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/kvcache/kvevents"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func decode(t testing.TB, p []byte) *kvevents.Batch {
	t.Helper()
	var b kvevents.Batch
	require.NoError(t, kvevents.Decode(p, &b))
	return &b
}

// hash returns the Hash of an engine's block name.
func hash(v any) kvevents.Hash {
	switch v := v.(type) {
	case int64:
		return kvevents.Hash(v) //nolint:gosec // as it is
	case uint64:
		return kvevents.Hash(v)
	case []byte:
		return kvevents.Hash(binary.BigEndian.Uint64(v[len(v)-8:]))
	}
	panic(fmt.Sprintf("%T", v))
}

func whole(v any) int64 {
	switch v := v.(type) {
	case int64:
		return v
	case uint64:
		return int64(v) //nolint:gosec // small
	}
	return kvevents.Absent
}

// check compares an event with the result of the msgp library alone.
func check(t *testing.T, e *kvevents.Event, want map[string]any) {
	t.Helper()
	kinds := map[string]kvevents.Kind{"BlockStored": kvevents.Stored, "BlockRemoved": kvevents.Removed, "AllBlocksCleared": kvevents.Cleared}
	fail := func(what string, got any) { t.Errorf("%s of %v is %v", what, want, got) }
	if e.Kind != kinds[want["type"].(string)] {
		fail("kind", e.Kind)
	}
	hashes, _ := want["block_hashes"].([]any)
	if len(hashes) != len(e.Hashes) {
		fail("hashes", e.Hashes)
		return
	}
	for i, h := range hashes {
		if e.Hashes[i] != hash(h) {
			fail("hash", e.Hashes[i])
		}
	}
	tokens, _ := want["token_ids"].([]any)
	if len(tokens) != len(e.Tokens) {
		fail("tokens", e.Tokens)
		return
	}
	for i, token := range tokens {
		if int64(e.Tokens[i]) != whole(token) {
			fail("token", e.Tokens[i])
		}
	}
	if parent := want["parent_block_hash"]; e.HasParent != (parent != nil) || parent != nil && e.Parent != hash(parent) {
		fail("parent", e.Parent)
	}
	if size, ok := want["block_size"]; ok && int64(e.BlockSize) != whole(size) {
		fail("block size", e.BlockSize)
	}
	if e.LoRAID != whole(want["lora_id"]) {
		fail("adapter's id", e.LoRAID)
	}
	if int64(e.Group) != whole(want["group_idx"]) {
		fail("group", e.Group)
	}
	for name, got := range map[string][]byte{"lora_name": e.LoRA, "medium": e.Medium, "kv_cache_spec_kind": e.Spec} {
		if text, _ := want[name].(string); text != string(got) {
			fail(name, string(got))
		}
	}
	extra, _ := want["extra_keys"].([]any)
	if len(extra) != len(e.Extra) {
		fail("extra keys", e.Extra)
		return
	}
	for i, x := range extra {
		if (x == nil) != (e.Extra[i] == nil) || x != nil && fmt.Sprint(generic(t, e.Extra[i])) != fmt.Sprint(x) {
			fail("extra key", e.Extra[i])
		}
	}
}

// TestRecorded: messages of a real vLLM, and their form in older versions, decode as with the library alone.
func TestRecorded(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"vllm-0.32.0", "vllm-0.32.0-replay", "vllm-0.32.0-nixl-decode-bytes", "vllm-0.32.0-nixl-decode-bytes-replay",
	} {
		events := 0
		for _, p := range payloads(t, name) {
			want := generic(t, p).([]any)
			asMap := map[string]any{"ts": want[0], "events": want[1], "something": map[string]any{"new": nil}}
			for _, p := range [][]byte{p, older(t, p, false), older(t, p, true), pack(t, asMap)} {
				b := decode(t, p)
				if b.Time != want[0] || b.Bad != 0 || len(b.Events) != len(want[1].([]any)) {
					t.Fatalf("%s: %+v", name, b)
				}
				for i, e := range want[1].([]any) {
					check(t, &b.Events[i], e.(map[string]any))
				}
				events += len(b.Events)
			}
		}
		assert.GreaterOrEqual(t, events, 9, "%s has %d events", name, events)
	}
}

// TestRecordedArrays: vLLM 0.23 publishes the same events as older
// computes, and they decode like the messages of the newer version.
func TestRecordedArrays(t *testing.T) {
	t.Parallel()
	newer := payloads(t, "vllm-0.32.0")
	for _, name := range []string{"vllm-0.23.0", "vllm-0.23.0-replay"} {
		all := payloads(t, name)
		require.Equal(t, len(newer), len(all), "batches of %s", name)
		for i, p := range all {
			assert.True(t, reflect.DeepEqual(generic(t, p), generic(t, older(t, newer[i], false))),
				"%s: batch %d is %v", name, i, generic(t, p))
			got, want := decode(t, p), decode(t, newer[i])
			assert.True(t, reflect.DeepEqual(got, want), "%s: batch %d reads as %+v, want %+v", name, i, got, want)
		}
	}
	for name, parts := range map[string]int{"vllm-0.23.0": 3, "vllm-0.23.0-replay": 3, "vllm-0.32.0-replay": 4} {
		for _, frames := range recorded(t, name) {
			assert.Len(t, frames, parts, "parts of a message of %s", name)
		}
	}
}

// TestShapes: forms that no recording has.
func TestShapes(t *testing.T) {
	t.Parallel()
	digest := append(make([]byte, 24), 0, 0, 0, 0, 0, 0, 1, 2)
	for name, tc := range map[string]struct {
		batch any
		want  string
	}{
		"no rank":        {[]any{1.5, []any{}}, `{"Time":1.5,"Events":null,"Bad":0}`},
		"time is whole":  {[]any{2, []any{}, 3}, `{"Time":2,"Events":null,"Bad":0}`},
		"more items":     {[]any{2, []any{}, nil, "more"}, `{"Time":2,"Events":null,"Bad":0}`},
		"unknown events": {[]any{2, []any{[]any{"New", 1}, map[string]any{"type": "New"}, map[string]any{}, []any{}}, 0}, `{"Time":2,"Events":null,"Bad":0}`},
		"bad events": {
			[]any{2, []any{7, []any{7}, []any{"BlockStored", []any{1}, nil, []any{1, 2}, 3}, []any{"BlockRemoved", []any{"x"}}}, 0},
			`{"Time":2,"Events":null,"Bad":4}`,
		},
		"hashes": {
			[]any{2, []any{[]any{"BlockRemoved", []any{int64(-1), uint64(math.MaxUint64), uint64(1 << 63), digest, 0}}}},
			`{"Time":2,"Events":[{"Kind":2,"Hashes":[18446744073709551615,18446744073709551615,9223372036854775808,258,0],"Parent":0,"HasParent":false,"Tokens":null,"BlockSize":0,"LoRAID":-1,"LoRA":null,"Extra":null,"Spec":null,"Medium":null,"Remote":false,"Group":-1}],"Bad":0}`,
		},
		"a tier without tokens": {
			[]any{2, []any{map[string]any{"type": "BlockStored", "block_hashes": []any{5}, "token_ids": []any{}, "block_size": 16, "medium": "CPU", "locality": "REMOTE"}}},
			`{"Time":2,"Events":[{"Kind":1,"Hashes":[5],"Parent":0,"HasParent":false,"Tokens":null,"BlockSize":16,"LoRAID":-1,"LoRA":null,"Extra":null,"Spec":null,"Medium":"Q1BV","Remote":true,"Group":-1}],"Bad":0}`,
		},
	} {
		got, err := json.Marshal(decode(t, pack(t, tc.batch)))
		require.NoError(t, err, name)
		assert.Equal(t, tc.want, string(got), name)
	}
	for name, p := range map[string][]byte{
		"nothing": nil, "a number": pack(t, 1), "events are a number": pack(t, []any{1.0, 2}), "cut short": {0x93, 0xcb},
		"a huge array": {0xdd, 0xff, 0xff, 0xff, 0xff}, "a deep one": append([]byte{0x92, 1}, deep(1<<18)...),
	} {
		assert.ErrorIs(t, kvevents.Decode(p, new(kvevents.Batch)), kvevents.ErrBatch, name)
	}
}

// Nested values are printed up to a bounded depth.
func TestText_Nested(t *testing.T) {
	t.Parallel()
	text := func(value []byte) (string, error) {
		return kvevents.Text(append([]byte{0x92, 1, 0x91, 0x92, 0xa1, 'X'}, value...), "")
	}
	got, err := text(pack(t, map[string]any{"a": []any{1, nil}}))
	assert.True(t, err == nil && strings.Contains(got, "X(field_1={'a': [1, None]})"), "%q, %v", got, err)
	for _, nest := range []string{"\x91", "\x81\xa1a"} {
		got, err := text([]byte(strings.Repeat(nest, 50_000) + "\xc0"))
		assert.Error(t, err, "%d bytes for values within %q", len(got), nest)
	}
}

func deep(n int) (p []byte) {
	for range n {
		p = append(p, 0x91)
	}
	return append(p, 0xc0)
}

// FuzzDecode: any bytes decode to a consistent batch or to an error.
// The result does not depend on earlier contents of the batch.
func FuzzDecode(f *testing.F) {
	for _, name := range []string{"vllm-0.32.0", "vllm-0.32.0-nixl-decode-bytes"} {
		for _, p := range payloads(f, name) {
			if len(p) < 1000 {
				f.Add(p)
				f.Add(older(f, p, false))
			}
		}
	}
	f.Add(append([]byte{0x92, 1}, deep(100)...))
	used := decode(f, payloads(f, "vllm-0.32.0")[6])
	f.Fuzz(func(t *testing.T, p []byte) {
		var fresh kvevents.Batch
		err := kvevents.Decode(p, &fresh)
		require.Equal(t, err == nil, (kvevents.Decode(p, used) == nil), "%v, then", err)
		a, b := fmt.Sprintf("%+v", fresh.Events), fmt.Sprintf("%+v", used.Events)
		require.False(t, a != b && !(len(fresh.Events) == 0 && len(used.Events) == 0), "%s\n%s", a, b)
		for _, e := range fresh.Events {
			if e.Kind == 0 || e.Kind == kvevents.Stored && len(e.Tokens) > 0 && len(e.Tokens) != e.BlockSize*len(e.Hashes) {
				t.Errorf("%+v", e)
			}
		}
	})
}
