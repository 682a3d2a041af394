package connector_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

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
