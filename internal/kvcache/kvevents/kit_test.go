package kvevents_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tinylib/msgp/msgp"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

// recorded returns the messages of a real vLLM from a file in testdata: for each
// message the number of frames, then the length and bytes of each frame.
func recorded(t testing.TB, name string) [][][]byte {
	t.Helper()
	data := testkit.ReadFile(t, filepath.Join("testdata", name+".frames"))
	r := bytes.NewReader(data)
	number := func() uint32 {
		var n uint32
		require.NoError(t, binary.Read(r, binary.BigEndian, &n))
		return n
	}
	var out [][][]byte
	for r.Len() > 0 {
		frames := make([][]byte, number())
		for i := range frames {
			frames[i] = make([]byte, number())
			_, err := io.ReadFull(r, frames[i])
			require.NoError(t, err)
		}
		out = append(out, frames)
	}
	return out
}

// payloads returns the batches of a recording.
func payloads(t testing.TB, name string) (out [][]byte) {
	t.Helper()
	for _, frames := range recorded(t, name) {
		if p := frames[len(frames)-1]; len(p) > 0 {
			out = append(out, p)
		}
	}
	return out
}

// generic decodes a value with the library alone.
func generic(t testing.TB, p []byte) any {
	t.Helper()
	v, rest, err := msgp.ReadIntfBytes(p)
	require.True(t, err == nil && len(rest) == 0, "%d bytes after the value, %v", len(rest), err)
	return v
}

func pack(t testing.TB, v any) []byte {
	t.Helper()
	p, err := msgp.AppendIntf(nil, v)
	require.NoError(t, err)
	return p
}

// older converts a batch to the form of vLLM 0.23: each event is an array, with null
// for absent fields. Earlier versions had fewer fields: cut removes trailing nulls.
func older(t testing.TB, p []byte, cut bool) []byte {
	t.Helper()
	batch := generic(t, p).([]any)
	var events []any
	for _, e := range batch[1].([]any) {
		e := e.(map[string]any)
		var names []string
		switch e["type"] {
		case "BlockStored":
			names = []string{
				"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
				"lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window",
			}
		case "BlockRemoved":
			names = []string{"type", "block_hashes", "medium", "group_idx"}
		default:
			names = []string{"type"}
		}
		var fields []any
		for _, name := range names {
			fields = append(fields, e[name])
		}
		for cut && fields[len(fields)-1] == nil {
			fields = fields[:len(fields)-1]
		}
		events = append(events, fields)
	}
	batch[1] = events
	return pack(t, batch)
}
