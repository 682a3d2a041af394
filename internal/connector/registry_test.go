package connector_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

const root = "../.."

// Every name that a release of vLLM or vllm-ascend registers is supported, or refused for a reason. The files
// of testdata/registered were read from the packages.
func TestRegisteredNames(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/registered/*.txt")
	require.True(t, err == nil && len(files) >= 3, "%q, %v", files, err)
	for _, f := range files {
		names := testkit.ReadFile(t, f)
		for name := range strings.FieldsSeq(string(names)) {
			_, ok := connector.OfClass(name)
			assert.True(t, ok, "%s: %s is not known", f, name)
		}
	}
}

// Every class has an existing dialect or a reason, and a page.
func TestClasses(t *testing.T) {
	t.Parallel()
	for _, c := range connector.Classes() {
		got, ok := connector.OfClass(strings.ToUpper(c.Name))
		assert.True(t, ok && got == c, "%s: %+v", c.Name, got)
		_, err := os.Stat(filepath.Join(root, c.Page))
		assert.NoError(t, err, c.Name)
		short, err := connector.Canonical(c.Name)
		switch {
		case c.Itself != "":
			require.NoError(t, err, c)
			assert.Equal(t, connector.MoRIIO, short, c)
		case c.Refused != "":
			if !errors.Is(err, connector.ErrUnknown) || !strings.Contains(err.Error(), c.Refused) || !strings.Contains(err.Error(), c.Page) || c.Dialect != "" {
				t.Errorf("%+v: %v", c, err)
			}
		case err != nil || short != c.Dialect || !slices.Contains(connector.Names(), short):
			t.Errorf("%+v is %q, %v", c, short, err)
		}
	}
	for name, want := range map[string]string{"NixlPullConnector": "nixl", "mooncakeconnector": "mooncake", "LMCacheConnectorV1": "plain", "MoRIIOConnector": "moriio", "": ""} {
		got, err := connector.Canonical(name)
		assert.True(t, got == want && err == nil, "Canonical(%q) = %q, %v", name, got, err)
	}
	got, ok := connector.OfClass("nixl")
	assert.False(t, ok, "a dialect is the class %+v", got)
}

// The table of docs/connectors matches the code.
func TestDocsTable_MatchesCode(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("| `kv_connector` | here | |\n|---|---|---|\n")
	for _, c := range connector.Classes() {
		here, more := "`"+c.Dialect+"`", ""
		switch {
		case c.Itself != "":
			here, more = "`moriio`", c.Itself
		case c.Refused != "":
			here, more = "refused", c.Refused
		case c.Local:
			more = "moves blocks within one machine"
		}
		page := filepath.Base(c.Page)
		fmt.Fprintf(&b, "| `%s` | [%s](%s) | %s |\n", c.Name, here, page, more)
	}
	doc := testkit.ReadFile(t, filepath.Join(root, "docs/connectors/README.md"))
	assert.Contains(t, string(doc), b.String())
	for _, name := range connector.Names() {
		if strings.HasPrefix(name, connector.MoRIIO) {
			name = connector.MoRIIO // two modes, one page
		}
		if _, err := os.Stat(filepath.Join(root, "docs/connectors", name+".md")); err != nil {
			t.Error(err)
		}
		assert.Contains(t, string(doc), "]("+name+".md)",
			"docs/connectors/README.md does not lead to %s.md", name)
	}
}

// Transfer params that are an empty object count as missing, so that decode does not have to detect it.
func TestNIXL_EmptyTransferParams(t *testing.T) {
	t.Parallel()
	d := newDialect(t, "nixl")
	for answer, empty := range map[string]bool{
		`{}`: true, `{"kv_transfer_params":null}`: true, `{"kv_transfer_params":{}}`: true, `{"kv_transfer_params": { } }`: true,
		`{"kv_transfer_params":{"remote_host":"h"}}`: false,
	} {
		h, err := d.TransferParams([]byte(answer))
		require.NoError(t, err, "%s: %q", answer, h.Params)
		assert.Equal(t, empty, h.Empty(), "%s: %q", answer, h.Params)
	}
	_, err := d.TransferParams([]byte(`{"kv_transfer_params":`))
	assert.Error(t, err, "half an answer is taken")
}

func TestPairKeyMismatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b connector.PairKey
		want string
	}{
		{connector.PairKey{"nixl", "1", 16}, connector.PairKey{"nixl", "1", 16}, ""},
		{connector.PairKey{"nixl", "1", 16}, connector.PairKey{"nixl", "", 0}, ""},
		{connector.PairKey{"nixl", "1", 16}, connector.PairKey{"p2p", "1", 16}, bypass.ConnectorMismatch},
		{connector.PairKey{"nixl", "1", 16}, connector.PairKey{"nixl", "2", 32}, bypass.VersionMismatch},
		{connector.PairKey{"nixl", "", 16}, connector.PairKey{"nixl", "2", 32}, bypass.BlockMismatch},
	} {
		got, back := c.a.Mismatch(c.b), c.b.Mismatch(c.a)
		assert.True(t, got == c.want && back == c.want, "%v, %v: %q and %q, want %q", c.a, c.b, got, back, c.want)
	}
	d := newDialect(t, "p2p")
	got := connector.PairKeyOf(d, &instance.Instance{Record: instance.Record{BlockSize: 48}})
	assert.True(t, got == (connector.PairKey{"p2p", "", 48}), "%+v", got)
}

// Every dialect can request the tokens of the prompt from prefill, and none requests them
// from decode.
func TestPrefill_ReturnsTokens(t *testing.T) {
	t.Parallel()
	for _, name := range connector.Names() {
		d := newDialect(t, name)
		for _, wanted := range []bool{false, true} {
			r, err := request.Parse(openai.Chat, []byte(`{"messages":[],"return_token_ids":false}`))
			require.NoError(t, err)
			in := &instance.Instance{Key: instance.Key{Address: "10.0.0.1:80"}}
			p := connector.Pair{Prefill: in, Decode: in, ID: "id", Key: "0123456789abcdef0123456789abcdef", TokenIDs: wanted}
			asks := func(l connector.Leg) bool { return bytes.Contains(l.Body.Bytes(), []byte(`"return_token_ids":true`)) }
			if asks(d.Prefill(r, p)) != wanted {
				t.Errorf("%s: wanted %t: %s", name, wanted, d.Prefill(r, p).Body.Bytes())
			}
			assert.False(t, asks(d.Decode(r, p, connector.TransferParams{})), "%s: decode is asked", name)
		}
	}
}

// An instance with more ranks than the proxy distinguishes is refused if a leg must name the rank of the
// other one. Otherwise all its requests would go to rank 0.
func TestRanks_MoreThanDistinguished(t *testing.T) {
	t.Parallel()
	for _, name := range connector.Names() {
		d := newDialect(t, name)
		moriio := strings.HasPrefix(name, connector.MoRIIO)
		for role, refused := range map[instance.Role]bool{
			instance.Prefill: moriio || name == "mooncake" || name == "p2p",
			instance.Decode:  moriio,
		} {
			in := pair().Prefill
			if role == instance.Decode {
				in = pair().Decode
			}
			in.Record.EngineIDs = nil // the proxy queries its bootstrap server for them
			for ranks, refused := range map[int]bool{instance.MaxRanks: false, instance.MaxRanks + 1: refused} {
				in.Record.DPSize = ranks
				err := d.Lacks(in)
				if says := err != nil && strings.Contains(err.Error(), strconv.Itoa(ranks)+" data-parallel ranks"); says != refused || (err != nil) != refused {
					t.Errorf("%s, %s of %d ranks: %v", name, role, ranks, err)
				}
			}
		}
	}
}
