package connector_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) {
	testkit.GoldenFlag()
	leak.Main(m)
}

// newDialect returns a dialect of the registry.
func newDialect(t *testing.T, name string) connector.Dialect {
	t.Helper()
	d, err := connector.New(name)
	require.NoError(t, err)
	return d
}

// TestGolden compares every leg of every case with its file. A case is a folder
// testdata/<dialect>/<endpoint>-<name> with the input (client.json, prefill_reply.json) and the expected
// output (prefill.json, decode.json). `go test ./internal/connector -update` writes the output.
func TestGolden(t *testing.T) {
	t.Parallel()
	for _, dialect := range connector.Names() {
		cases, err := filepath.Glob(filepath.Join("testdata", dialect, "*-*"))
		require.True(t, err == nil && len(cases) != 0, "no cases for %s (%v)", dialect, err)
		c := newDialect(t, dialect)
		for _, dir := range cases {
			t.Run(dialect+"/"+filepath.Base(dir), func(t *testing.T) {
				t.Parallel()
				r, err := request.Parse(kindOf(t, dir), read(t, dir, "client.json"))
				require.NoError(t, err)
				p := pair()
				if strings.Contains(dir, "-ranks-") {
					p.Prefill.Record.DPSize, p.Decode.Record.DPSize = 4, 4
					p.PrefillRank, p.DecodeRank = 2, 1
				}
				switch {
				case strings.HasSuffix(dir, "-ranks-equal"):
					p.DecodeRank = 2
				case strings.HasSuffix(dir, "-ranks-first"):
					p.PrefillRank, p.DecodeRank = 0, 0
				}
				prefill := c.Prefill(r, p)
				testkit.Golden(t, filepath.Join(dir, "prefill.json"), prefill.Body.Bytes())
				h, err := c.TransferParams(read(t, dir, "prefill_reply.json"))
				require.NoError(t, err)
				decode := c.Decode(r, p, h)
				testkit.Golden(t, filepath.Join(dir, "decode.json"), decode.Body.Bytes())
				testkit.Golden(t, filepath.Join(dir, "legs.txt"), describe(prefill, decode))
			})
		}
	}
}

// kindOf returns the kind of a case, which is the first part of its name.
func kindOf(t *testing.T, dir string) openai.Kind {
	t.Helper()
	kinds := map[string]openai.Kind{
		"completion": openai.Completion, "chat": openai.Chat, "responses": openai.Responses, "messages": openai.Messages,
		"generate": openai.Generate,
	}
	name, _, _ := strings.Cut(filepath.Base(dir), "-")
	kind, ok := kinds[name]
	require.True(t, ok, "%s begins with no kind", dir)
	return kind
}

// pair is the pair of all cases. Its engine id needs escaping in JSON.
func pair() connector.Pair {
	return connector.Pair{
		Prefill: &instance.Instance{Key: instance.Key{Role: instance.Prefill, Address: "10.0.0.1:8100"}, Record: instance.Record{
			EngineIDs: map[string]string{"0": `e-"1"`, "2": `e-"1"_dp2`}, Ports: map[string][]int{"bootstrap": {8998}, "p2p": {5710}},
			ZMQAddress: "host:10.0.0.1,handshake:6301,notify:61005", TPSize: 8}},
		Decode: &instance.Instance{Key: instance.Key{Role: instance.Decode, Address: "[fd00::2]:8200"}, Record: instance.Record{
			ZMQAddress: "host:fd00::2,handshake:6302,notify:61006", TPSize: 2,
			Ports: map[string][]int{"lmcache_init": {7300, 7301}, "lmcache_alloc": {7400, 7401}}}},
		ID: "client-01234567", Key: "00112233445566778899aabbccddeeff",
	}
}

// describe shows the parts of the legs other than their bodies.
func describe(prefill, decode connector.Leg) []byte {
	var b strings.Builder
	for i, l := range []connector.Leg{prefill, decode} {
		fmt.Fprintf(&b, "%s: path %q, id %q\n", [...]string{"prefill", "decode"}[i], l.Path, l.ID)
		for _, f := range l.Header {
			fmt.Fprintf(&b, "  %s: %s\n", f.Name, f.Value)
		}
	}
	return []byte(b.String())
}

func read(t *testing.T, dir, name string) []byte {
	t.Helper()
	b := testkit.ReadFile(t, filepath.Join(dir, name))
	return b
}

func TestNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"": "plain", "plain": "plain", "nixl": "nixl", "NixlConnector": "nixl", "NIXL": "nixl",
	} {
		c, err := connector.New(name)
		require.NoError(t, err, "New(%q)", name)
		assert.Equal(t, want, c.Name(), "New(%q)", name)
	}
	_, err := connector.New("teleport")
	assert.ErrorIs(t, err, connector.ErrUnknown, "New(teleport)")
}

func TestTransferParams_BadAnswer(t *testing.T) {
	t.Parallel()
	c := newDialect(t, "nixl")
	for _, answer := range []string{``, `[]`, `{"kv_transfer_params":{"a":1}`, `<html>`, `{} trailing`} {
		h, err := c.TransferParams([]byte(answer))
		assert.Error(t, err, "TransferParams(%q) = %s", answer, h.Params)
	}
	for _, answer := range []string{`{}`, `{"kv_transfer_params":null}`} {
		h, err := c.TransferParams([]byte(answer))
		assert.True(t, err == nil && h.Empty(), "TransferParams(%q) = %s, %v", answer, h.Params, err)
	}
}

// TestTerms checks the terms of dialects by version and by the lease in the record.
func TestTerms(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		dialect, version string
		stated           int
		want             connector.Terms
	}{
		{"plain", "0.32.0", 0, connector.Terms{}}, {"mooncake", "0.32.0", 0, connector.Terms{}},
		{"nixl", "", 0, connector.Terms{RefusalSpends: true, Renews: true}},
		{"nixl", "0.20.2", 0, connector.Terms{Build: "0.20.2", Lease: 480 * time.Second}},
		{"nixl", "0.21.0", 0, connector.Terms{Build: "0.21.0", Lease: 480 * time.Second, RefusalSpends: true}},
		{"nixl", "0.22.0", 0, connector.Terms{Build: "0.22.0", RefusalSpends: true, Renews: true}},
		{"nixl", "0.32.0", 90, connector.Terms{Build: "0.32.0", Lease: 90 * time.Second, RefusalSpends: true, Renews: true}},
		{"nixl_push", "0.32.0", 0, connector.Terms{Build: "0.32.0", RefusalSpends: true, Renews: true}},
		{"p2p", "0.32.0", 0, connector.Terms{Lease: time.Minute, RefusalSpends: true, Renews: true}},
		{"moriio_read", "0.20.2", 0, connector.Terms{Lease: time.Minute}}, {"moriio_read", "0.32.0", 0, connector.Terms{Lease: time.Minute, RefusalSpends: true}},
		{"ascend", "0.26.0", 0, connector.Terms{Lease: 480 * time.Second, RefusalSpends: true, GivesUp: "recomputed"}},
	} {
		c := newDialect(t, tc.dialect)
		in := &instance.Instance{Record: instance.Record{Version: tc.version, KVLease: tc.stated}}
		assert.Equal(t, tc.want, c.Terms(in), "%s of %q, %d s", tc.dialect, tc.version, tc.stated)
	}
}

// A dialect that supports different KV block sizes in a pair returns 0 for Blocks.
func TestBlocks_DifferentSizesInPair(t *testing.T) {
	t.Parallel()
	var got []string
	for _, name := range connector.Names() {
		c := newDialect(t, name)
		switch of := c.Terms(&instance.Instance{Record: instance.Record{BlockSize: 48}}).Blocks; of {
		case 48:
			got = append(got, name)
		case 0:
		default:
			t.Errorf("%s: %d", name, of)
		}
	}
	assert.Equal(t, []string{"mooncake", "p2p", "moriio_read", "moriio_write"}, got)
}

// TestUnfit checks the requests that a pair cannot serve.
func TestUnfit(t *testing.T) {
	t.Parallel()
	const old, length = "engine_too_old", "messages_need_length"
	for _, tc := range []struct {
		dialect, prefill, decode string
		kind                     openai.Kind
		want                     string
	}{
		{"plain", "0.8.5", "0.8.5", openai.Responses, ""}, {"plain", "0.8.5", "0.8.5", openai.Messages, ""},
		{"nixl", "0.8.5", "0.8.5", openai.Completion, ""}, {"nixl", "0.8.5", "0.8.5", openai.Chat, ""},
		{"nixl", "0.18.2", "0.19.0", openai.Responses, old}, {"nixl", "0.19.0", "0.18.2", openai.Responses, old},
		{"nixl", "0.19.0", "0.19.0rc1", openai.Responses, ""}, {"nixl", "0.19.0", "", openai.Responses, ""},
		{"nixl", "0.18.2", "0.19.0", openai.Messages, old}, {"nixl", "0.20.1", "0.32.0", openai.Messages, length},
		{"nixl", "0.32.0", "0.18.0", openai.Messages, old},
		{"nixl", "v0.21.0", "0.19.0", openai.Messages, ""}, {"nixl", "1.0.0", "1.0.0", openai.Messages, ""},
		{"nixl", "", "", openai.Messages, ""}, {"nixl", "nightly", "0.x", openai.Messages, ""},
		{"nixl", "0.1.dev1+g0123456", "0.1.dev1+g0123456", openai.Messages, ""},
		{"mooncake", "0.33.0", "0.33.0", openai.Messages, length}, {"mooncake", "0.18.0", "0.18.0", openai.Messages, length},
		{"mooncake", "0.33.0", "0.33.0", openai.Responses, ""}, {"mooncake", "0.33.0", "0.18.0", openai.Responses, old},
		{"mooncake", "0.18.0", "0.18.0", openai.Chat, ""},
		{"nixl_push", "0.24.0", "0.24.0", openai.Messages, ""}, {"nixl_push", "0.24.0", "0.24.0", openai.Responses, "responses_own_id"}, {"p2p", "0.27.0", "0.27.0", openai.Messages, ""},
		{"ascend", "0.26.0", "0.26.0", openai.Messages, length}, {"ascend", "0.26.0", "0.26.0", openai.Responses, ""},
		{"moriio_write", "0.33.0", "0.33.0", openai.Messages, length}, {"moriio_read", "0.33.0", "", openai.Messages, length},
		{"moriio_write", "0.31.0", "0.33.0", openai.Responses, old}, {"moriio_read", "0.33.0", "0.31.1", openai.Responses, old},
		{"moriio_write", "0.32.0", "0.33.0", openai.Responses, ""}, {"moriio_read", "0.18.0", "0.18.0", openai.Chat, ""},
		{"lmcache", "0.13.0", "0.13.0", openai.Chat, ""}, {"lmcache", "0.19.0", "0.20.0", openai.Messages, ""},
		{"lmcache", "0.18.0", "0.20.0", openai.Messages, old}, {"lmcache", "0.20.0", "0.18.0", openai.Responses, old},
	} {
		c := newDialect(t, tc.dialect)
		p := pair()
		p.Prefill.Record.Version, p.Decode.Record.Version = tc.prefill, tc.decode
		p.Prefill.Record.TPSize = 2 // as many ranks as decode
		if got := c.Unfit(tc.kind, p); got != tc.want {
			t.Errorf("%s of %q and %q, %s: %q, want %q", tc.dialect, tc.prefill, tc.decode, tc.kind.Path(), got, tc.want)
		}
		early := c.Unfit(tc.kind, connector.Pair{Prefill: p.Prefill})
		assert.False(t, early != "" && early != tc.want,
			"%s of %q: %q before decode is chosen, then %q", tc.dialect, tc.prefill, early, tc.want)
	}
}
